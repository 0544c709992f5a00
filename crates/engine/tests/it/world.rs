//! An engine in a temporary directory, with a clock that the test sets.

use holdfast_domain::charge::{self, Actual, Finality, OnExpiry, Overrun, Reserve, Terms};
use holdfast_domain::{Budgets, ChargeId, CreditUnit, Key, Label, OwnerId, Span, Timestamp};
use holdfast_engine::recovery::{self, OpenConfig, Report, StartError};
use holdfast_engine::{Answer, Clock, Command, Engine, Limits, Policy, Request};
use holdfast_journal::{Config, JournalId, LocalDisk};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A clock that stands where it is put.
pub(crate) struct HandClock(pub(crate) AtomicU64);

impl Clock for HandClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.0.load(Ordering::Relaxed))
    }
}

pub(crate) struct World {
    pub(crate) engine: Engine<LocalDisk>,
    pub(crate) clock: Arc<HandClock>,
    pub(crate) report: Report,
    pub(crate) disk: LocalDisk,
}

pub(crate) const SEGMENT_BYTES: u32 = 256 * 1_024;

pub(crate) fn config() -> OpenConfig {
    OpenConfig {
        journal: Config { segment_bytes: SEGMENT_BYTES, id: JournalId([3; 16]), verify_threads: 2 },
        limits: Limits { open_holds: 100_000 },
        keys_in_memory: Some(64),
    }
}

pub(crate) fn try_open(directory: &Path) -> Result<World, StartError> {
    let disk = LocalDisk::at(directory).unwrap();
    let opened = recovery::open(disk.clone(), &config(), &mut |_| {})?;
    let clock = Arc::new(HandClock(AtomicU64::new(1_000)));
    let policy = Policy {
        snapshot_entries: 500,
        snapshot_every: Duration::from_secs(3_600),
        lag_max: 100_000,
        segment_bytes: SEGMENT_BYTES,
    };
    let report = opened.report;
    let engine = Engine::start(opened, disk.clone(), Arc::clone(&clock) as Arc<dyn Clock>, policy);
    Ok(World { engine, clock, report, disk })
}

pub(crate) fn open(directory: &Path) -> World {
    try_open(directory).unwrap()
}

pub(crate) fn cu(text: &str) -> CreditUnit {
    text.parse().unwrap()
}

pub(crate) fn id(text: &str) -> ChargeId {
    text.parse().unwrap()
}

pub(crate) fn owner(text: &str) -> OwnerId {
    text.parse().unwrap()
}

pub(crate) fn actor() -> Label {
    "test".parse().unwrap()
}

pub(crate) fn request(key: Option<&str>, command: Command) -> Request {
    Request { key: key.map(|key| key.parse::<Key>().unwrap()), actor: actor(), command }
}

pub(crate) fn mint(key: &str, to: &str, amount: &str) -> Request {
    let command = Command::Mint { owner: owner(to), amount: cu(amount), reason: "test credit".parse().unwrap() };
    request(Some(key), command)
}

pub(crate) const TERMS: Terms = Terms { rates: None, overrun: Overrun::Cap, on_expiry: OnExpiry::Release };

pub(crate) fn reserve(charge: &str, from: &str, amount: &str) -> Request {
    let reserve = Reserve {
        owner: owner(from),
        amount: cu(amount),
        terms: TERMS,
        ttl: Span::from_secs(60),
        budgets: Budgets::NONE,
    };
    request(None, Command::Reserve { charge: id(charge), reserve })
}

pub(crate) fn on(charge: &str, command: charge::Command) -> Request {
    request(None, Command::Charge { charge: id(charge), command })
}

pub(crate) fn commit(charge: &str, amount: &str) -> Request {
    on(charge, charge::Command::Commit { actual: Actual::Credits(cu(amount)), finality: Finality::Final })
}

impl World {
    pub(crate) fn submit(&self, request: Request) -> Answer {
        self.engine.submit_blocking(request)
    }

    /// The available and held balance of an owner, as text.
    pub(crate) fn balance(&self, of: &str) -> (String, String) {
        let of = owner(of);
        let balance = self.engine.ask_blocking(move |view| view.balance(of)).unwrap().unwrap();
        (balance.available.to_string(), balance.held.to_string())
    }
}
