//! Our stores of obligations.

use super::measure::{Figures, Filled, Queue, WORKERS, measure, only};
use super::{block_on, streams};
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
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

const LEASE: Span = Span::from_secs(60);
/// A sync of a busy disk takes longer than a gateway would wait.
const LIMITS: Limits = Limits { connect_within: Duration::from_secs(60), reply_within: Duration::from_secs(60) };

const POOL: postgres::Limits =
    postgres::Limits { connections: 2, connect_within: LIMITS.connect_within, answer_within: LIMITS.reply_within };

/// Measures the store in memory.
pub(super) fn memory(pending: u32, _dirs: &[PathBuf], plan: &Plan) -> Result<Vec<Figures>, BenchError> {
    let store = Arc::new(MemoryStore::new(Arc::new(SystemClock::start())));
    block_on(measure((0..WORKERS).map(|_| Stored(Arc::clone(&store))).collect(), pending, plan))
}

/// Measures a plain stream and the store, each in a Redis of its own, in turns.
pub(super) fn redis_beside_a_stream(pending: u32, dirs: &[PathBuf], plan: &Plan) -> Result<Vec<Figures>, BenchError> {
    let [plain, ours] = dirs else { return Err(BenchError::NotApplied("each has a directory".to_owned())) };
    let (plain, ours) = (Redis::start(plain)?, Redis::start(ours)?);
    block_on(async {
        let plain = streams::filled(&plain, pending, plan).await?;
        let ours = filled(&ours, pending, plan).await?;
        plain.measure_beside(&ours, plan).await
    })
}

/// The store in a Redis that is empty, with so many pending.
async fn filled(server: &Redis, pending: u32, plan: &Plan) -> Result<Filled<Stored<RedisStore>>, BenchError> {
    let address = Address::parse(&server.url()).map_err(|error| BenchError::NotApplied(error.to_string()))?;
    let clock = Arc::new(SystemClock::start());
    let connected = |_| {
        let store =
            RedisStore::new(address.clone(), PREFIX, LIMITS, Arc::clone(&clock) as Arc<_>, Arc::new(StandardError));
        Stored(Arc::new(store))
    };
    let filled = Filled::fill((0..WORKERS).map(connected).collect(), pending, plan).await?;
    server.rewrite_log().await?;
    Ok(filled)
}

/// Measures the store in a PostgreSQL of its own.
pub(super) fn postgres(pending: u32, dirs: &[PathBuf], plan: &Plan) -> Result<Vec<Figures>, BenchError> {
    let cluster = Cluster::start(only(dirs)?)?;
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
