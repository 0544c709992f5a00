//! Every adapter of a port passes the port's suite.

mod journal;
pub(crate) mod ledgers;
mod queues;
mod shared;

use crate::postgres_world::Outbox;
use crate::redis_world::{redis_at, temp_dir};
use holdfast_adapters::SystemClock;
use holdfast_adapters::obligations::{Failover, MemoryStore, StandardError};
use holdfast_simulator::contract::ledger::{self, HandClock};
use holdfast_simulator::contract::obligations;
use holdfast_simulator::servers::{Mode, RedisServer};
use ledgers::{Embedded, Fault, Faulty};
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
async fn the_rules_of_the_ledger_in_the_embedded_engine() {
    let (data, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    let engine = Embedded::open(data.path(), &clock);
    ledger::rules(Arc::clone(&engine), clock).await.unwrap();
    Embedded::stop(engine);
}

#[tokio::test(flavor = "multi_thread")]
async fn mixed_callers_of_the_embedded_engine_beside_the_model() {
    let mut all = ledger::Mixed::default();
    for (seed, callers) in (0..12).map(|seed| (seed, 1)).chain([(100, 4), (101, 24)]) {
        let (data, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
        let engine = Embedded::open(data.path(), &clock);
        let came_to = ledger::mixed(Arc::clone(&engine), clock, seed, callers).await.unwrap();
        Embedded::stop(engine);
        all = all.and(came_to);
    }
    let ledger::Mixed { applied, replayed, refused, expired } = all;
    assert!([applied, replayed, refused, expired].into_iter().all(|count| count > 300), "{all:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ledgers_suite_catches_every_planted_fault() {
    for (fault, rule) in [
        (Fault::SwallowedRefusal, "no overdraft in a crowd"),
        (Fault::DoubledMint, "no overdraft in a crowd"),
        (Fault::WrongSum, "no overdraft in a crowd"),
        (Fault::LostBudgets, "budgets in a crowd"),
        (Fault::LostKey, "a key belongs to one body"),
        (Fault::StoppedClock, "every state and every command"),
        (Fault::ShorterLife, "a hold ends at its time"),
        (Fault::AllForThePayee, "an escrow is settled, refunded or divided"),
    ] {
        let (data, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
        let broken = ledger::rules(Faulty::open(data.path(), &clock, fault), clock).await;
        assert_eq!(broken.map_err(|broken| broken.rule), Err(rule), "{fault:?}");
        let (data, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
        let mixed = ledger::mixed(Faulty::open(data.path(), &clock, fault), clock, 1, 2).await;
        assert!(mixed.is_err(), "{fault:?}: {mixed:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn obligations_in_postgresql() {
    let outbox = Outbox::new().await;
    obligations::all(&Arc::new(outbox.store())).await.unwrap();
    let left = "SELECT count(*) FROM holdfast.payment_outbox_pending UNION ALL SELECT count(*) FROM holdfast.payment_outbox_dead_letters";
    assert_eq!(outbox.ask(left).await, [["0"], ["0"]]);
    assert_eq!(
        outbox.ask("SELECT note, resolved_by FROM holdfast.payment_outbox_resolutions").await,
        [["paid by hand", "node"]]
    );
}
