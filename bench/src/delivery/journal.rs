//! The store that is derived from the journal. A put is the charge itself, a reserve and a commit of the engine: nothing is
//! written besides. It can be claimed once the follower has come to it, which is waited for but not timed.

use super::block_on;
use super::measure::{Figures, Queue, WORKERS, measure, only};
use super::store::Stored;
use crate::error::BenchError;
use crate::ledger::holdfast::{Running, config};
use crate::plan::Plan;
use holdfast_adapters::SystemClock;
use holdfast_adapters::obligations::JournalStore;
use holdfast_adapters::obligations::journal::OBLIGATIONS;
use holdfast_domain::charge::{Actual, Command as OfCharge, Finality, OnExpiry, Overrun, Reserve, Terms};
use holdfast_domain::delivery::Obligation;
use holdfast_domain::{Budgets, CreditUnit, Key, Label, OwnerId};
use holdfast_engine::dispatcher::Bell;
use holdfast_engine::obligations::Lease;
use holdfast_engine::{Command, Engine, Policy, Request, TTL_DEFAULT};
use holdfast_journal::LocalDisk;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// More than one tenant is charged in any run.
const FUNDS: u64 = 100_000_000_000_000;
const TENANTS: u32 = 1_000;
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Measures it in an engine of its own.
pub(super) fn in_engine(pending: u32, dirs: &[PathBuf], plan: &Plan) -> Result<Vec<Figures>, BenchError> {
    let dir = only(dirs)?;
    let running = Running::start(dir, Policy::STANDARD)?;
    let entries = Arc::clone(&running.engine) as Arc<_>;
    let (clock, bell) = (Arc::new(SystemClock::start()), Arc::new(Bell::default()));
    let opened = JournalStore::open(dir, (config().journal.id, 0), entries, clock, bell);
    let (store, follower) = opened.map_err(|error| BenchError::NotApplied(error.to_string()))?;
    let following = running.engine.follow(follower);
    let store = Arc::new(store);
    let queue = |_| Derived { engine: Arc::clone(&running.engine), store: Stored(Arc::clone(&store)) };
    let figures = block_on(async {
        Derived { engine: Arc::clone(&running.engine), store: Stored(Arc::clone(&store)) }.fund().await?;
        measure((0..WORKERS).map(queue).collect(), pending, plan).await
    });
    drop(store);
    running.stop()?;
    following.join().map_err(|_| BenchError::NotApplied("the follower panicked".to_owned()))?;
    figures
}

struct Derived {
    engine: Arc<Engine<LocalDisk>>,
    store: Stored<JournalStore>,
}

impl Derived {
    async fn submit(&self, commands: impl IntoIterator<Item = (Option<Key>, Command)>) -> Result<(), BenchError> {
        let failed = |error: &dyn std::fmt::Display| BenchError::NotApplied(error.to_string());
        let actor: Label = "bench".parse().map_err(|error| failed(&error))?;
        let requests: Vec<_> = commands.into_iter().map(|(key, command)| Request { key, actor, command }).collect();
        let answers = self.engine.submit_batch(requests).await.map_err(|error| failed(&error))?;
        answers.into_iter().try_for_each(|answer| answer.map(drop).map_err(|error| failed(&error)))
    }

    async fn fund(&self) -> Result<(), BenchError> {
        let mint = |tenant: u32| Command::Mint {
            owner: tenant_named(tenant),
            amount: CreditUnit::new(FUNDS).expect("a sum in range"),
            reason: "benchmark funds".parse().expect("one line"),
        };
        // A mint is meant once for each key.
        let key = |tenant| Some(format!("fund-{tenant}").parse().expect("a plain key"));
        self.submit((0..TENANTS).map(|tenant| (key(tenant), mint(tenant)))).await
    }
}

fn tenant_named(tenant: u32) -> OwnerId {
    format!("tenant-{tenant:04}").parse().expect("a short plain id")
}

fn charged(obligation: &Obligation) -> [Command; 2] {
    let terms = Terms { rates: None, overrun: Overrun::Cap, on_expiry: OnExpiry::Release };
    let (owner, amount, charge) = (obligation.owner, obligation.cost, obligation.charge);
    let reserve = Reserve { owner, amount, terms, ttl: TTL_DEFAULT, budgets: Budgets::NONE };
    let command = OfCharge::Commit { actual: Actual::Credits(amount), finality: Finality::Final };
    [Command::Reserve { charge, reserve }, Command::Charge { charge, command }]
}

impl Queue for Derived {
    type Held = Lease;

    async fn put(&self, obligations: &[Obligation]) -> Result<(), BenchError> {
        self.submit(obligations.iter().flat_map(charged).map(|command| (None, command))).await
    }

    async fn claim(&self, limit: usize) -> Result<Vec<Lease>, BenchError> {
        self.store.claim(limit).await
    }

    async fn complete(&self, held: Vec<Lease>) -> Result<(), BenchError> {
        self.store.complete(held).await
    }

    async fn pending(&self) -> Result<u64, BenchError> {
        self.caught_up().await?;
        self.store.pending().await
    }

    async fn caught_up(&self) -> Result<(), BenchError> {
        let durable = self.engine.health().durable;
        loop {
            let followed = self.engine.followed(OBLIGATIONS);
            if let Some(failed) = followed.as_ref().and_then(|followed| followed.failed.clone()) {
                return Err(BenchError::NotApplied(failed));
            }
            if followed.is_some_and(|followed| followed.applied >= durable) {
                return Ok(());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}
