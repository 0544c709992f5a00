//! Holdfast itself, in process: the embedded engine as `holdfast serve` starts it, with the read model following.

use super::drive::{Books, Caller, drive, runtime};
use super::work::{FUNDS, HELD, Order, PAYERS};
use super::{Case, Outcome};
use crate::error::BenchError;
use crate::plan::Plan;
use holdfast_adapters::{ReadModel, SystemClock};
use holdfast_domain::charge::{self, Actual, Finality, OnExpiry, Overrun, Reserve, Terms};
use holdfast_domain::{Budgets, ChargeId, CreditUnit, Id, IdKind, Label, OwnerId};
use holdfast_engine::recovery::{self, OpenConfig};
use holdfast_engine::{Answer, Command, Engine, Limits, Outcome as Done, Policy, Request, TTL_DEFAULT};
use holdfast_journal::{Config, JournalId, LocalDisk, SEGMENT_BYTES};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

/// What it is.
#[must_use]
pub fn about() -> String {
    format!("{} in process, read model following", env!("CARGO_PKG_VERSION"))
}

/// Runs one case.
///
/// # Errors
/// If the engine cannot be started, refuses an operation, or its books do not balance.
pub fn measure(case: Case, dir: &Path, plan: &Plan) -> Result<Outcome, BenchError> {
    let running = Running::start(dir, Policy::STANDARD)?;
    running.fund(PAYERS, FUNDS)?;
    let callers = (0..case.callers).map(|_| Direct { engine: Arc::clone(&running.engine), first: 0 }).collect();
    let driven = runtime()?.block_on(drive(callers, case, plan))?;
    let books = running.books()?;
    running.stop()?;
    Ok(Outcome::Measured(driven.proven_by(books)?))
}

/// How a server opens its data directory.
#[must_use]
pub const fn config() -> OpenConfig {
    OpenConfig {
        journal: Config { segment_bytes: SEGMENT_BYTES, id: JournalId([1; 16]), verify_threads: 2 },
        limits: Limits { open_holds: 1_000_000 },
        keys_in_memory: None,
    }
}

/// An engine with everything that a server starts beside it.
pub struct Running {
    /// The engine.
    pub engine: Arc<Engine<LocalDisk>>,
    read_model: JoinHandle<()>,
}

fn failed(error: impl std::fmt::Display) -> BenchError {
    BenchError::NotApplied(error.to_string())
}

impl Running {
    /// Opens the data directory at `dir` and starts the engine and the read model on it.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn start(dir: &Path, policy: Policy) -> Result<Self, BenchError> {
        let disk = LocalDisk::at(dir).map_err(BenchError::io("make the data directory"))?;
        let opened = recovery::open(disk.clone(), &config(), &mut |_| {}).map_err(failed)?;
        let (id, last) = (opened.journal.id(), opened.journal.end().next_offset - 1);
        let engine = Engine::start(opened, disk, Arc::new(SystemClock::start()), policy);
        let read_model = engine.follow(ReadModel::open(dir, id, last).map_err(failed)?);
        Ok(Self { engine: Arc::new(engine), read_model })
    }

    /// Credits payers `0..payers` with `funds` each.
    ///
    /// # Errors
    /// If one is refused.
    pub fn fund(&self, payers: u64, funds: u64) -> Result<(), BenchError> {
        for from in (0..payers).step_by(8_000) {
            let mints = (from..payers.min(from + 8_000)).map(|payer| mint(payer, funds)).collect();
            self.submit(mints)?;
        }
        Ok(())
    }

    /// Does `request` for every order, in one batch.
    ///
    /// # Errors
    /// If one is refused.
    pub fn batch(&self, orders: &[Order], request: fn(&Order) -> Request) -> Result<(), BenchError> {
        self.submit(orders.iter().map(request).collect())
    }

    fn submit(&self, requests: Vec<Request>) -> Result<(), BenchError> {
        let answers = self.engine.submit_batch_blocking(requests).map_err(failed)?;
        answers.into_iter().try_for_each(applied)
    }

    /// What the payers have and what was earned.
    ///
    /// # Errors
    /// If the engine has failed.
    pub fn books(&self) -> Result<Books, BenchError> {
        let (owners, revenue) =
            self.engine.ask_blocking(|view| (view.owners(None, usize::MAX), view.totals().revenue)).map_err(failed)?;
        let left = owners.iter().map(|(_, balance)| balance.available.units()).sum();
        Ok(Books { left, revenue: revenue.units().unsigned_abs() })
    }

    /// Stops the engine and waits until the read model has everything.
    ///
    /// # Errors
    /// If the journal failed.
    pub fn stop(self) -> Result<(), BenchError> {
        let engine = Arc::into_inner(self.engine).ok_or_else(|| failed("a caller is still there"))?;
        engine.stop().map_err(failed)?;
        self.read_model.join().map_err(|_| failed("the read model panicked"))
    }
}

/// Calls the engine directly.
pub struct Direct {
    /// The engine.
    pub engine: Arc<Engine<LocalDisk>>,
    /// Added to every hold's id, so that a later run on the same books has ids of its own.
    pub first: u64,
}

impl Caller for Direct {
    async fn reserve(&mut self, orders: &[Order]) -> Result<(), BenchError> {
        self.send(orders, reserve).await
    }

    async fn commit(&mut self, orders: &[Order]) -> Result<(), BenchError> {
        self.send(orders, commit).await
    }
}

impl Direct {
    async fn send(&self, orders: &[Order], request: fn(&Order) -> Request) -> Result<(), BenchError> {
        let request = |order: &Order| request(&Order { hold: order.hold + self.first, ..*order });
        if let [order] = orders {
            return applied(self.engine.submit(request(order)).await);
        }
        let answers = self.engine.submit_batch(orders.iter().map(request)).await.map_err(failed)?;
        answers.into_iter().try_for_each(applied)
    }
}

pub(super) fn applied(answer: Answer) -> Result<(), BenchError> {
    match answer {
        Ok(Done::Applied(_)) => Ok(()),
        Ok(Done::Replayed(receipt)) => Err(failed(format!("taken for a replay of entry {}", receipt.offset))),
        Err(refusal) => Err(failed(refusal)),
    }
}

fn actor() -> Label {
    Label::from_bytes(b"bench").expect("a plain word")
}

fn payer(payer: u64) -> OwnerId {
    named(*b"payer-0000000", payer)
}

/// A name that ends in a number, without going through a formatter: callers have their ids at hand.
fn named<const N: usize, K: IdKind>(mut name: [u8; N], mut number: u64) -> Id<K> {
    for digit in name.iter_mut().rev() {
        if number == 0 {
            break;
        }
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
    Id::from_bytes(&name).expect("a plain name")
}

fn units(units: u64) -> CreditUnit {
    CreditUnit::new(units).expect("small amounts")
}

/// An id as long as the ULIDs that clients send.
fn charge(hold: u64) -> ChargeId {
    named(*b"req_0000000000000000000000", hold)
}

pub(super) fn mint(to: u64, amount: u64) -> Request {
    let reason = "benchmark funds".parse().expect("one line");
    let command = Command::Mint { owner: payer(to), amount: units(amount), reason };
    Request { key: Some(format!("fund-{to}").parse().expect("a plain key")), actor: actor(), command }
}

/// The reserve of an order.
#[must_use]
pub fn reserve(order: &Order) -> Request {
    let terms = Terms { rates: None, overrun: Overrun::Cap, on_expiry: OnExpiry::Release };
    let reserve =
        Reserve { owner: payer(order.payer), amount: units(HELD), terms, ttl: TTL_DEFAULT, budgets: Budgets::NONE };
    Request { key: None, actor: actor(), command: Command::Reserve { charge: charge(order.hold), reserve } }
}

/// The commit of an order.
#[must_use]
pub fn commit(order: &Order) -> Request {
    let command = charge::Command::Commit { actual: Actual::Credits(units(order.actual)), finality: Finality::Final };
    Request { key: None, actor: actor(), command: Command::Charge { charge: charge(order.hold), command } }
}
