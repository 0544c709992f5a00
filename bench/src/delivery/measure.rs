//! The work: the same for every subject.
//!
//! # Invariants
//! - Whoever claims completes: after the work as many are pending as before it, and that is checked.
//! - Each measurement ends with its time, but not before one round.

use crate::error::BenchError;
use crate::latency::Latencies;
use crate::plan::Plan;
use holdfast_domain::delivery::Obligation;
use holdfast_domain::{CreditUnit, Timestamp};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// How many are claimed and completed at once.
pub(super) const BATCH: usize = 100;
/// How many work at once, each with a connection of its own.
pub(super) const WORKERS: usize = 4;
/// How many turns each of two takes.
const TURNS: u32 = 10;
/// How many are put at once before the clock starts.
const FILLED_AT_ONCE: u32 = 1_000;

/// What one subject did in one case.
pub(super) struct Figures {
    pub(super) per_second: f64,
    pub(super) put: (Duration, Duration),
    pub(super) claim: (Duration, Duration),
    pub(super) complete: (Duration, Duration),
}

/// Something that obligations go through.
pub(super) trait Queue: Send + Sync + 'static {
    /// One that was claimed.
    type Held: Send;
    fn put(&self, obligations: &[Obligation]) -> impl Future<Output = Result<(), BenchError>> + Send;
    fn claim(&self, limit: usize) -> impl Future<Output = Result<Vec<Self::Held>, BenchError>> + Send;
    fn complete(&self, held: Vec<Self::Held>) -> impl Future<Output = Result<(), BenchError>> + Send;
    fn pending(&self) -> impl Future<Output = Result<u64, BenchError>> + Send;
    /// Waits until what was put can be claimed.
    fn caught_up(&self) -> impl Future<Output = Result<(), BenchError>> + Send {
        async {
            tokio::task::yield_now().await;
            Ok(())
        }
    }
}

/// A queue for each worker, with so many pending.
pub(super) struct Filled<Q> {
    queues: Vec<Arc<Q>>,
    next: Arc<AtomicU32>,
    pending: u32,
}

/// Does all of it with one queue for each worker.
pub(super) async fn measure<Q: Queue>(queues: Vec<Q>, pending: u32, plan: &Plan) -> Result<Vec<Figures>, BenchError> {
    Ok(vec![Filled::fill(queues, pending, plan).await?.measure(plan).await?])
}

/// The directory of one who is measured alone.
pub(super) fn only(dirs: &[PathBuf]) -> Result<&Path, BenchError> {
    dirs.first().map(PathBuf::as_path).ok_or_else(|| BenchError::NotApplied("there is no directory".to_owned()))
}

impl<Q: Queue> Filled<Q> {
    /// Puts what is to be pending before the clock starts.
    pub(super) async fn fill(queues: Vec<Q>, pending: u32, plan: &Plan) -> Result<Self, BenchError> {
        let next = Arc::new(AtomicU32::new(0));
        let filled = Self { queues: queues.into_iter().map(Arc::new).collect(), next, pending };
        let first = filled.first()?;
        while filled.next.load(Ordering::Relaxed) < pending {
            plan.stop.check()?;
            first.put(&fresh(&filled.next, FILLED_AT_ONCE)).await?;
        }
        first.caught_up().await?;
        Ok(filled)
    }

    fn first(&self) -> Result<&Q, BenchError> {
        self.queues.first().map(|first| &**first).ok_or_else(|| BenchError::NotApplied("nobody works".to_owned()))
    }

    /// Measures it.
    async fn measure(&self, plan: &Plan) -> Result<Figures, BenchError> {
        let mut figures = self.latencies(plan).await?;
        figures.per_second = self.throughput(plan, plan.duration).await?.per_second();
        self.check().await?;
        Ok(figures)
    }

    /// Measures it and another that take turns at the throughput, so that a slow minute of the machine is one for both.
    pub(super) async fn measure_beside<P: Queue>(
        &self,
        other: &Filled<P>,
        plan: &Plan,
    ) -> Result<Vec<Figures>, BenchError> {
        let (mut one, mut another) = (self.latencies(plan).await?, other.latencies(plan).await?);
        let (mut by_one, mut by_another) = (Done::default(), Done::default());
        for _ in 0..TURNS {
            by_one.add(self.throughput(plan, plan.duration / 5).await?);
            by_another.add(other.throughput(plan, plan.duration / 5).await?);
        }
        (one.per_second, another.per_second) = (by_one.per_second(), by_another.per_second());
        self.check().await?;
        other.check().await?;
        Ok(vec![one, another])
    }

    /// All but the throughput.
    async fn latencies(&self, plan: &Plan) -> Result<Figures, BenchError> {
        let (first, next) = (self.first()?, &self.next);
        latencies(first, next, plan, plan.warm_up).await?;
        let (put, claim, complete) = latencies(first, next, plan, plan.duration).await?;
        let [put, claim, complete] = [put, claim, complete].map(|of| of.p50_and_p99());
        Ok(Figures { per_second: 0.0, put, claim, complete })
    }

    async fn throughput(&self, plan: &Plan, duration: Duration) -> Result<Done, BenchError> {
        throughput(&self.queues, &self.next, plan, duration).await
    }

    /// As many are pending as before.
    async fn check(&self) -> Result<(), BenchError> {
        let (found, pending) = (self.first()?.pending().await?, self.pending);
        if found == u64::from(pending) {
            Ok(())
        } else {
            Err(BenchError::Books { expected: format!("{pending} pending"), found: format!("{found}") })
        }
    }
}

/// How many went through, and how long that took.
#[derive(Default)]
struct Done {
    delivered: u64,
    took: Duration,
}

impl Done {
    fn add(&mut self, more: Self) {
        self.delivered += more.delivered;
        self.took += more.took;
    }

    fn per_second(&self) -> f64 {
        self.delivered as f64 / self.took.as_secs_f64()
    }
}

/// Puts a batch one by one, claims as many, completes them; one after the other.
async fn latencies<Q: Queue>(
    queue: &Q,
    next: &AtomicU32,
    plan: &Plan,
    duration: Duration,
) -> Result<(Latencies, Latencies, Latencies), BenchError> {
    let (mut put, mut claim, mut complete) = (Latencies::default(), Latencies::default(), Latencies::default());
    let began = Instant::now();
    loop {
        plan.stop.check()?;
        for obligation in fresh(next, BATCH as u32) {
            let asked = Instant::now();
            queue.put(&[obligation]).await?;
            put.record(asked.elapsed());
        }
        queue.caught_up().await?;
        let asked = Instant::now();
        let held = whole(queue.claim(BATCH).await?)?;
        claim.record(asked.elapsed());
        let asked = Instant::now();
        queue.complete(held).await?;
        complete.record(asked.elapsed());
        if began.elapsed() >= duration {
            return Ok((put, claim, complete));
        }
    }
}

/// All workers put, claim and complete in batches.
async fn throughput<Q: Queue>(
    queues: &[Arc<Q>],
    next: &Arc<AtomicU32>,
    plan: &Plan,
    duration: Duration,
) -> Result<Done, BenchError> {
    let began = Instant::now();
    let mut running = JoinSet::new();
    for queue in queues {
        let (queue, next, stop) = (Arc::clone(queue), Arc::clone(next), plan.stop.clone());
        running.spawn(async move {
            let mut delivered = 0_u64;
            while delivered == 0 || began.elapsed() < duration {
                stop.check()?;
                queue.put(&fresh(&next, BATCH as u32)).await?;
                // Another may have claimed what this one put, and not yet put its own.
                let mut left = BATCH;
                while left > 0 {
                    let held = queue.claim(left).await?;
                    left -= held.len();
                    delivered += held.len() as u64;
                    if held.is_empty() {
                        queue.caught_up().await?;
                    } else {
                        queue.complete(held).await?;
                    }
                }
            }
            Ok::<u64, BenchError>(delivered)
        });
    }
    let mut delivered = 0;
    while let Some(ended) = running.join_next().await {
        delivered += ended.map_err(|error| BenchError::NotApplied(error.to_string()))??;
    }
    Ok(Done { delivered, took: began.elapsed() })
}

fn whole<T>(held: Vec<T>) -> Result<Vec<T>, BenchError> {
    if held.len() == BATCH {
        Ok(held)
    } else {
        Err(BenchError::NotApplied(format!("{} of {BATCH} claimed", held.len())))
    }
}

/// So many that nobody has seen.
fn fresh(next: &AtomicU32, count: u32) -> Vec<Obligation> {
    let first = next.fetch_add(count, Ordering::Relaxed);
    (first..first + count).map(obligation).collect()
}

fn obligation(number: u32) -> Obligation {
    Obligation {
        id: format!("01J9ZQ3V7{number:017}").parse().expect("a short plain id"),
        charge: format!("01J9ZQ3V7{number:017}").parse().expect("a short plain id"),
        owner: format!("tenant-{:04}", number % 1_000).parse().expect("a short plain id"),
        cost: CreditUnit::new(u64::from(number) * 7 + 1).expect("a sum in range"),
        created_at: Timestamp::from_millis(1_700_000_000_000 + u64::from(number)),
    }
}
