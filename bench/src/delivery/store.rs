//! Our stores of obligations.

use super::block_on;
use super::measure::{Figures, Filled, Queue, WORKERS, measure};
use crate::error::BenchError;
use crate::plan::Plan;
use crate::servers::postgres::Cluster;
use crate::servers::redis::Redis;
use holdfast_adapters::SystemClock;
use holdfast_adapters::obligations::redis::{Address, Limits, PREFIX};
use holdfast_adapters::obligations::{MemoryStore, PostgresStore, RedisStore, StandardError};
use holdfast_adapters::postgres::{self, Database};
use holdfast_domain::Span;
use holdfast_domain::delivery::Obligation;
use holdfast_engine::obligations::{Lease, ObligationStore, Outcome, StoreFailed};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const LEASE: Span = Span::from_secs(60);
/// A sync of a busy disk takes longer than a gateway would wait.
const LIMITS: Limits = Limits { connect_within: Duration::from_secs(60), reply_within: Duration::from_secs(60) };

const POOL: postgres::Limits =
    postgres::Limits { connections: 2, connect_within: LIMITS.connect_within, answer_within: LIMITS.reply_within };

/// Measures the store in memory.
pub(super) fn memory(pending: u32, _dir: &Path, plan: &Plan) -> Result<Figures, BenchError> {
    let store = Arc::new(MemoryStore::new(Arc::new(SystemClock::start())));
    block_on(measure((0..WORKERS).map(|_| Stored(Arc::clone(&store))).collect(), pending, plan))
}

/// Measures the store in a Redis of its own.
pub(super) fn redis(pending: u32, dir: &Path, plan: &Plan) -> Result<Figures, BenchError> {
    let server = Redis::start(dir)?;
    let address = Address::parse(&server.url()).map_err(|error| BenchError::NotApplied(error.to_string()))?;
    let clock = Arc::new(SystemClock::start());
    let connected = |_| {
        let store =
            RedisStore::new(address.clone(), PREFIX, LIMITS, Arc::clone(&clock) as Arc<_>, Arc::new(StandardError));
        Stored(Arc::new(store))
    };
    block_on(async {
        let filled = Filled::fill((0..WORKERS).map(connected).collect(), pending, plan).await?;
        server.rewrite_log().await?;
        filled.measure(plan).await
    })
}

/// Measures the store in a PostgreSQL of its own.
pub(super) fn postgres(pending: u32, dir: &Path, plan: &Plan) -> Result<Figures, BenchError> {
    let cluster = Cluster::start(dir)?;
    let unusable = |error: postgres::DatabaseError| BenchError::NotApplied(error.to_string());
    let database = Database::at(&cluster.url(), None).map_err(unusable)?;
    let clock = Arc::new(SystemClock::start());
    let connected = |_| {
        let (database, clock) = (database.clone(), Arc::clone(&clock));
        Stored(Arc::new(PostgresStore::new(database, POOL, clock, Arc::new(StandardError))))
    };
    block_on(async {
        postgres::migrate(&mut cluster.connect().await?, &postgres::ALL).await.map_err(unusable)?;
        measure((0..WORKERS).map(connected).collect(), pending, plan).await
    })
}

/// One of our stores as a queue.
pub(super) struct Stored<S>(pub(super) Arc<S>);

fn failed(error: StoreFailed) -> BenchError {
    BenchError::NotApplied(error.to_string())
}

impl<S: ObligationStore> Queue for Stored<S> {
    type Held = Lease;

    async fn put(&self, obligations: &[Obligation]) -> Result<(), BenchError> {
        self.0.put(obligations).await.map_err(failed)
    }

    async fn claim(&self, limit: usize) -> Result<Vec<Lease>, BenchError> {
        let worker = "bench".parse().map_err(|_| BenchError::NotApplied("a worker's name".to_owned()))?;
        let claimed = self.0.claim_ready(worker, limit, LEASE).await.map_err(failed)?;
        Ok(claimed.into_iter().map(|claimed| claimed.lease).collect())
    }

    async fn complete(&self, held: Vec<Lease>) -> Result<(), BenchError> {
        let done: Vec<_> = held.into_iter().map(|lease| (lease, Outcome::Delivered)).collect();
        let answers = self.0.complete(&done).await.map_err(failed)?;
        if answers.iter().all(Result::is_ok) {
            Ok(())
        } else {
            Err(BenchError::NotApplied("a lease was lost".to_owned()))
        }
    }

    async fn pending(&self) -> Result<u64, BenchError> {
        Ok(self.0.count().await.map_err(failed)?.pending)
    }
}
