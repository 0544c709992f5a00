//! Every adapter of a port passes the port's suite.

mod journal;

use crate::postgres_world::Outbox;
use crate::redis_world::{redis_at, temp_dir};
use holdfast_adapters::SystemClock;
use holdfast_adapters::obligations::{Failover, MemoryStore, StandardError};
use holdfast_simulator::contract::obligations;
use holdfast_simulator::servers::{Mode, RedisServer};
use std::sync::Arc;

#[tokio::test(flavor = "multi_thread")]
async fn obligations_in_memory() {
    let store = Arc::new(MemoryStore::new(Arc::new(SystemClock::start())));
    obligations::all(&store).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn obligations_derived_from_the_journal() {
    let data = tempfile::tempdir().unwrap();
    let store = Arc::new(journal::Fed::new(data.path()));
    obligations::all(&store).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn obligations_in_redis() {
    let dir = temp_dir();
    let server = RedisServer::start(dir.path(), Mode::Plain, &[]).unwrap();
    obligations::all(&Arc::new(redis_at(&server.url()))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn obligations_in_a_redis_cluster() {
    let dir = temp_dir();
    let server = RedisServer::start(dir.path(), Mode::Cluster, &[]).unwrap();
    obligations::all(&Arc::new(redis_at(&server.url()))).await.unwrap();
    let keys = server.command("KEYS *").unwrap();
    assert_eq!(keys, "*1\r\n$28\r\n{finn:hounfour:dlq}:resolved\r\n", "only what was resolved stays");
}

#[tokio::test(flavor = "multi_thread")]
async fn obligations_in_a_redis_that_a_sentinel_knows() {
    let (dir, beside) = (temp_dir(), temp_dir());
    let server = RedisServer::start(dir.path(), Mode::Plain, &[]).unwrap();
    let (_sentinel, url) = server.sentinel(beside.path()).unwrap();
    obligations::all(&Arc::new(redis_at(&url))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn obligations_in_redis_with_memory_behind_it() {
    let dir = temp_dir();
    let server = RedisServer::start(dir.path(), Mode::Plain, &[]).unwrap();
    let clock = Arc::new(SystemClock::start());
    let store = Failover::new(redis_at(&server.url()), clock, Arc::new(StandardError));
    obligations::all(&Arc::new(store)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn obligations_in_postgresql() {
    let outbox = Outbox::new().await;
    obligations::all(&Arc::new(outbox.store())).await.unwrap();
    let left = "SELECT count(*) FROM holdfast.payment_outbox_queue UNION ALL SELECT count(*) FROM holdfast.payment_outbox_dead_letters";
    assert_eq!(outbox.ask(left).await, [["0"], ["0"]]);
    assert_eq!(
        outbox.ask("SELECT note, resolved_by FROM holdfast.payment_outbox_resolutions").await,
        [["paid by hand", "node"]]
    );
}
