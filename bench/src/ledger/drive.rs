//! Drives callers against a subject and counts what was acknowledged.
//!
//! # Invariants
//! - Warm-up is apart: no caller is timed before all have warmed up.
//! - The clock runs from the common start to the last answer, so no pair is counted whose time is not.

use super::work::{FUNDS, Order, PAYERS, Work};
use super::{Case, Measured};
use crate::error::BenchError;
use crate::latency::Latencies;
use crate::plan::{Plan, Stop};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

/// How much longer than planned a case may take before it counts as hung.
const SLACK: Duration = Duration::from_secs(60);
/// How many connections callers share: what a service would give its pool.
pub const CONNECTIONS: usize = 64;

/// One who asks and waits. A request carries one operation or a whole batch, and returns when all of it is durable.
pub trait Caller: Send + 'static {
    /// Reserves `HELD` for every order.
    fn reserve(&mut self, orders: &[Order]) -> impl Future<Output = Result<(), BenchError>> + Send;
    /// Commits every order's `actual` and returns the rest to its payer.
    fn commit(&mut self, orders: &[Order]) -> impl Future<Output = Result<(), BenchError>> + Send;
}

/// What a drive found.
#[derive(Debug, Default)]
pub struct Driven {
    /// Pairs acknowledged.
    pub pairs: u64,
    /// What was committed, warm-up included: the subject's books must say the same.
    pub spent: u64,
    /// From the common start to the last answer.
    pub elapsed: Duration,
    /// Of every operation.
    pub latencies: Latencies,
}

/// What the books must say after a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Books {
    /// The sum of what the payers have left.
    pub left: u64,
    /// What was earned.
    pub revenue: u64,
}

impl Driven {
    /// For the report.
    #[must_use]
    pub fn measured(&self) -> Measured {
        Measured::new(self.pairs, self.elapsed, &self.latencies)
    }

    /// Adds what was found in another turn of the same subject.
    pub fn add_turn(&mut self, turn: Self) {
        let elapsed = self.elapsed + turn.elapsed;
        self.add_caller(turn);
        self.elapsed = elapsed;
    }

    /// Adds what another caller did at the same time.
    fn add_caller(&mut self, other: Self) {
        self.pairs += other.pairs;
        self.spent += other.spent;
        self.elapsed = self.elapsed.max(other.elapsed);
        self.latencies.merge(other.latencies);
    }

    /// The measured figures, if `found` is what the work amounts to with no hold left open.
    ///
    /// # Errors
    /// `Books`, if money was made or lost.
    pub fn proven_by(self, found: Books) -> Result<Measured, BenchError> {
        let expected = Books { left: PAYERS * FUNDS - self.spent, revenue: self.spent };
        if found == expected {
            return Ok(self.measured());
        }
        Err(BenchError::Books { expected: format!("{expected:?}"), found: format!("{found:?}") })
    }
}

/// The runtime that clients run in.
///
/// # Errors
/// If threads cannot be had.
pub fn runtime() -> Result<Runtime, BenchError> {
    Builder::new_multi_thread().enable_all().build().map_err(BenchError::io("start a runtime"))
}

/// Runs all callers at once: warm-up, then the planned duration.
///
/// # Errors
/// The first error of any caller.
pub async fn drive<C: Caller>(callers: Vec<C>, case: Case, plan: &Plan) -> Result<Driven, BenchError> {
    let barrier = Arc::new(Barrier::new(callers.len()));
    let mut running = JoinSet::new();
    for (number, caller) in (0..).zip(callers) {
        let shift = Shift {
            caller,
            work: Work::of_caller(number),
            orders: Vec::with_capacity(case.batch),
            batch: case.batch,
            stop: plan.stop.clone(),
            done: Driven::default(),
        };
        running.spawn(shift.run(plan.warm_up, plan.duration, Arc::clone(&barrier)));
    }
    let after = plan.warm_up + plan.duration + SLACK;
    // On any error the set is dropped, which ends the callers that still wait at the barrier.
    tokio::time::timeout(after, gather(running)).await.map_err(|_| BenchError::Hung { after })?
}

async fn gather(mut running: JoinSet<Result<Driven, BenchError>>) -> Result<Driven, BenchError> {
    let mut total = Driven::default();
    while let Some(ended) = running.join_next().await {
        total.add_caller(ended.map_err(|error| BenchError::NotApplied(error.to_string()))??);
    }
    Ok(total)
}

struct Shift<C> {
    caller: C,
    work: Work,
    orders: Vec<Order>,
    batch: usize,
    stop: Stop,
    done: Driven,
}

impl<C: Caller> Shift<C> {
    async fn run(mut self, warm_up: Duration, duration: Duration, barrier: Arc<Barrier>) -> Result<Driven, BenchError> {
        self.work_for(warm_up).await?;
        self.done = Driven { spent: self.done.spent, ..Driven::default() };
        barrier.wait().await;
        self.done.elapsed = self.work_for(duration).await?;
        Ok(self.done)
    }

    /// At least one pair, so that even the slowest has a figure.
    async fn work_for(&mut self, duration: Duration) -> Result<Duration, BenchError> {
        let began = Instant::now();
        loop {
            self.stop.check()?;
            self.pair().await?;
            if began.elapsed() >= duration {
                return Ok(began.elapsed());
            }
        }
    }

    async fn pair(&mut self) -> Result<(), BenchError> {
        self.work.fill(&mut self.orders, self.batch);
        let began = Instant::now();
        self.caller.reserve(&self.orders).await?;
        let reserved = Instant::now();
        self.caller.commit(&self.orders).await?;
        self.done.latencies.record(reserved - began);
        self.done.latencies.record(reserved.elapsed());
        self.done.pairs += self.orders.len() as u64;
        self.done.spent += self.orders.iter().map(|order| order.actual).sum::<u64>();
        Ok(())
    }
}
