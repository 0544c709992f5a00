//! Every adapter of a port passes the port's suite.

mod journal;

use holdfast_adapters::SystemClock;
use holdfast_adapters::obligations::MemoryStore;
use holdfast_simulator::contract::obligations;
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
