//! Engines under the ledger's suite: the embedded one on a real directory, and the same with a fault planted between it and
//! its callers.

use holdfast_domain::budget::Used;
use holdfast_domain::charge::Charge;
use holdfast_domain::escrow::{self, Escrow};
use holdfast_domain::{Account, BudgetId, Budgets, Change, ChargeId, CreditUnit, EscrowId, OwnerId, Span};
use holdfast_engine::recovery::{self, OpenConfig};
use holdfast_engine::{
    Answer, Balance, Clock, Command, Engine, Limits, Outcome, Policy, Receipt, Record, Refusal, Request, Totals,
};
use holdfast_journal::{Config, JournalId, LocalDisk};
use holdfast_simulator::contract::ledger::{HandClock, LedgerUnderTest, OPEN_HOLDS_MAX};
use std::path::Path;
use std::sync::{Arc, Mutex};

const SEGMENT_BYTES: u32 = 256 * 1_024;

/// The embedded engine on a directory.
pub(crate) struct Embedded {
    engine: Engine<LocalDisk>,
    clock: Arc<HandClock>,
}

impl Embedded {
    pub(crate) fn open(directory: &Path, clock: &Arc<HandClock>) -> Arc<Self> {
        let disk = LocalDisk::at(directory).unwrap();
        let config = OpenConfig {
            journal: Config { segment_bytes: SEGMENT_BYTES, id: JournalId([5; 16]), verify_threads: 1 },
            limits: Limits { open_holds: OPEN_HOLDS_MAX },
            // Few, so that most keys and closed lives are looked for on the disk.
            keys_in_memory: Some(64),
        };
        let opened = recovery::open(disk.clone(), &config, &mut |_| {}).unwrap();
        let policy = Policy { snapshot_entries: 500, segment_bytes: SEGMENT_BYTES, ..Policy::STANDARD };
        let engine = Engine::start(opened, disk, Arc::clone(clock) as Arc<dyn Clock>, policy);
        Arc::new(Self { engine, clock: Arc::clone(clock) })
    }

    /// Ends it in order.
    pub(crate) fn stop(this: Arc<Self>) {
        Arc::into_inner(this).unwrap().engine.stop().unwrap();
    }
}

impl LedgerUnderTest for Embedded {
    async fn submit(&self, request: Request) -> Answer {
        self.engine.submit(request).await
    }

    async fn submit_batch(&self, requests: Vec<Request>) -> Result<Vec<Answer>, Refusal> {
        self.engine.submit_batch(requests).await
    }

    async fn balance(&self, owner: OwnerId) -> Result<Option<Balance>, Refusal> {
        self.engine.ask(move |view| view.balance(owner)).await
    }

    async fn account(&self, account: Account) -> Result<Option<Change>, Refusal> {
        self.engine.ask(move |view| view.account(&account)).await
    }

    async fn used(&self, budget: BudgetId) -> Result<Used, Refusal> {
        self.engine.ask(move |view| view.used(budget)).await
    }

    async fn charge(&self, id: ChargeId) -> Result<Option<(Charge, OwnerId)>, Refusal> {
        self.engine.ask(move |view| view.charge(id)).await?
    }

    async fn escrow(&self, id: EscrowId) -> Result<Option<(Escrow, OwnerId)>, Refusal> {
        self.engine.ask(move |view| view.escrow(id)).await?
    }

    async fn life(&self, id: ChargeId) -> Result<Vec<Receipt>, Refusal> {
        let life = self.engine.ask(move |view| view.life(id)).await??;
        Ok(life.into_iter().map(Record::into_receipt).collect())
    }

    async fn totals(&self) -> Result<Totals, Refusal> {
        self.engine.ask(|view| view.totals()).await
    }

    /// Whoever is at the desk gives back what is due before anything else, so many at a time: a look is enough.
    async fn expire_due(&self) -> Result<(), Refusal> {
        loop {
            let first = self.engine.ask(|view| view.open_charges(None, 1)).await?;
            if first.first().is_none_or(|(_, _, hold)| hold.expires_at > self.clock.now()) {
                return Ok(());
            }
        }
    }
}

/// What is wrong between a ledger and its callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A refusal for want of money is told as something that was done.
    SwallowedRefusal,
    /// A mint is done twice, the second time by a key of its own.
    DoubledMint,
    /// Keys get lost where a command can be told without.
    LostKey,
    /// Budgets get lost.
    LostBudgets,
    /// A hold lives for a moment less than was asked.
    ShorterLife,
    /// Of an escrow that is divided, the payee gets all.
    AllForThePayee,
    /// Its clock stands still.
    StoppedClock,
    /// One millionth of a credit is missing from the sums.
    WrongSum,
}

/// A ledger with a fault.
pub(crate) struct Faulty {
    inner: Arc<Embedded>,
    fault: Fault,
    /// The last receipt that anybody was told.
    last: Mutex<Option<Receipt>>,
}

impl Faulty {
    pub(crate) fn open(directory: &Path, clock: &Arc<HandClock>, fault: Fault) -> Arc<Self> {
        let stopped = HandClock::new();
        let inner = Embedded::open(directory, if fault == Fault::StoppedClock { &stopped } else { clock });
        Arc::new(Self { inner, fault, last: Mutex::new(None) })
    }

    /// What is asked instead.
    fn asked(&self, mut request: Request) -> Request {
        if self.fault == Fault::LostKey && !request.command.needs_key() {
            request.key = None;
        }
        match (self.fault, &mut request.command) {
            (Fault::LostBudgets, Command::Reserve { reserve, .. }) => reserve.budgets = Budgets::NONE,
            (Fault::ShorterLife, Command::Reserve { reserve, .. }) if reserve.ttl.millis() > 1 => {
                reserve.ttl = Span::from_millis(reserve.ttl.millis() - 1);
            }
            (Fault::AllForThePayee, Command::Escrow { command, .. }) => {
                if let escrow::Command::PartialSettle { settle, refund, .. } = command {
                    *settle = settle.checked_add(*refund).unwrap();
                    *refund = CreditUnit::ZERO;
                }
            }
            (_, _) => {}
        }
        request
    }

    /// What is told instead.
    async fn told(&self, request: &Request, answer: Answer) -> Answer {
        match (self.fault, answer) {
            (Fault::DoubledMint, Ok(Outcome::Applied(_))) if matches!(request.command, Command::Mint { .. }) => {
                let key = request.key.map(|key| format!("{key}-twice").parse().unwrap());
                self.inner.submit(Request { key, ..request.clone() }).await
            }
            (Fault::SwallowedRefusal, Err(refusal @ Refusal::InsufficientBalance { .. })) => {
                self.last.lock().unwrap().clone().map(Outcome::Applied).ok_or(refusal)
            }
            (_, Ok(outcome)) => {
                *self.last.lock().unwrap() = Some(outcome.receipt().clone());
                Ok(outcome)
            }
            (_, Err(refusal)) => Err(refusal),
        }
    }
}

impl LedgerUnderTest for Faulty {
    async fn submit(&self, request: Request) -> Answer {
        let request = self.asked(request);
        let answer = self.inner.submit(request.clone()).await;
        self.told(&request, answer).await
    }

    async fn submit_batch(&self, requests: Vec<Request>) -> Result<Vec<Answer>, Refusal> {
        let requests: Vec<Request> = requests.into_iter().map(|request| self.asked(request)).collect();
        let mut answers = self.inner.submit_batch(requests.clone()).await?;
        for (request, answer) in requests.iter().zip(&mut answers) {
            *answer = self.told(request, answer.clone()).await;
        }
        Ok(answers)
    }

    async fn balance(&self, owner: OwnerId) -> Result<Option<Balance>, Refusal> {
        self.inner.balance(owner).await
    }

    async fn account(&self, account: Account) -> Result<Option<Change>, Refusal> {
        self.inner.account(account).await
    }

    async fn used(&self, budget: BudgetId) -> Result<Used, Refusal> {
        self.inner.used(budget).await
    }

    async fn charge(&self, id: ChargeId) -> Result<Option<(Charge, OwnerId)>, Refusal> {
        self.inner.charge(id).await
    }

    async fn escrow(&self, id: EscrowId) -> Result<Option<(Escrow, OwnerId)>, Refusal> {
        self.inner.escrow(id).await
    }

    async fn life(&self, id: ChargeId) -> Result<Vec<Receipt>, Refusal> {
        self.inner.life(id).await
    }

    async fn totals(&self) -> Result<Totals, Refusal> {
        let imbalance = i128::from(self.fault == Fault::WrongSum);
        Ok(Totals { imbalance, ..self.inner.totals().await? })
    }

    async fn expire_due(&self) -> Result<(), Refusal> {
        self.inner.expire_due().await
    }
}
