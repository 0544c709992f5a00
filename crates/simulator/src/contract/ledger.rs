//! What every engine that holds the books must do. A test makes an empty ledger on a [`HandClock`], with at most
//! [`OPEN_HOLDS_MAX`] open holds an account, and passes it to [`rules`]; and another one, for every seed, to [`mixed`].
//!
//! [`rules`] tries the rules of the ledger by name, alone and in a crowd. [`mixed`] has the simulator's callers ask whatever
//! they ask, one or many at once, and compares every answer and all balances with the [`Model`](crate::Model). Several nodes on
//! one database are one ledger, whose adapter lets them take turns.
//!
//! # Invariants
//! - The books sum to zero after every rule, and after every round of a mixed run.
//! - Offsets need not be without gaps: only the entries of one owner must come in growing order.

mod crowd;
mod escrows;
mod lives;
mod mixed;
mod requests;
mod times;

pub use mixed::{Mixed, mixed};

use holdfast_domain::budget::Used;
use holdfast_domain::charge::Charge;
use holdfast_domain::escrow::Escrow;
use holdfast_domain::{Account, BudgetId, Change, ChargeId, EscrowId, OwnerId, Span, Timestamp};
use holdfast_engine::{Answer, Balance, Clock, Outcome, Receipt, Refusal, Request, Totals};
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::task::JoinSet;

/// The most open holds an account may have in a ledger under test.
pub const OPEN_HOLDS_MAX: u32 = 16;
/// Where a clock stands at first: early on a day of the year 2023.
const BEGINNING: Timestamp = Timestamp::from_millis(1_700_006_400_000);

/// A ledger, as far as its callers know it.
pub trait LedgerUnderTest: Send + Sync + 'static {
    /// Has one request decided. Where an engine may be too busy to take it, asking again is the adapter's work.
    fn submit(&self, request: Request) -> impl Future<Output = Answer> + Send;
    /// Has many decided, in order.
    fn submit_batch(&self, requests: Vec<Request>) -> impl Future<Output = Result<Vec<Answer>, Refusal>> + Send;
    /// An owner's balances.
    fn balance(&self, owner: OwnerId) -> impl Future<Output = Result<Option<Balance>, Refusal>> + Send;
    /// The balance of any account; `None` if it has never been posted to.
    fn account(&self, account: Account) -> impl Future<Output = Result<Option<Change>, Refusal>> + Send;
    /// What a budget has used.
    fn used(&self, budget: BudgetId) -> impl Future<Output = Result<Used, Refusal>> + Send;
    /// A charge and its owner.
    fn charge(&self, id: ChargeId) -> impl Future<Output = Result<Option<(Charge, OwnerId)>, Refusal>> + Send;
    /// An escrow and its owner.
    fn escrow(&self, id: EscrowId) -> impl Future<Output = Result<Option<(Escrow, OwnerId)>, Refusal>> + Send;
    /// Every entry of a charge's life, oldest first.
    fn life(&self, id: ChargeId) -> impl Future<Output = Result<Vec<Receipt>, Refusal>> + Send;
    /// The sums over the whole book.
    fn totals(&self) -> impl Future<Output = Result<Totals, Refusal>> + Send;
    /// Returns when every hold has been given back whose time has come by the clock.
    fn expire_due(&self) -> impl Future<Output = Result<(), Refusal>> + Send;
}

/// A clock that stands where the suite puts it. It never goes back.
#[derive(Debug)]
pub struct HandClock(AtomicU64);

impl HandClock {
    /// A clock at the beginning.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(BEGINNING.millis())))
    }

    fn forward(&self, by: Span) {
        self.0.fetch_add(by.millis(), Ordering::SeqCst);
    }
}

impl Clock for HandClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.0.load(Ordering::SeqCst))
    }
}

/// A rule that a ledger broke.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    /// Which.
    pub rule: &'static str,
    /// What was seen.
    pub what: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.what)
    }
}
impl std::error::Error for Broken {}

/// Whether a rule was kept; if not, what was seen.
type Kept = Result<(), String>;

/// A ledger that is being tried.
struct Tried<L> {
    ledger: Arc<L>,
    clock: Arc<HandClock>,
}

/// Tries every rule on a ledger that is empty.
pub async fn rules<L: LedgerUnderTest>(ledger: Arc<L>, clock: Arc<HandClock>) -> Result<(), Broken> {
    let tried = Tried { ledger, clock };
    tried.keeps("no overdraft in a crowd", crowd::no_overdraft(&tried)).await?;
    tried.keeps("once by key in a crowd", crowd::once_by_key(&tried)).await?;
    tried.keeps("once without a key in a crowd", crowd::once_by_charge(&tried)).await?;
    tried.keeps("a hold ends once in a crowd", crowd::one_end(&tried)).await?;
    tried.keeps("budgets in a crowd", crowd::budgets(&tried)).await?;
    tried.keeps("open holds are limited in a crowd", crowd::open_holds(&tried)).await?;
    tried.keeps("a key belongs to one body", lives::key_reused(&tried)).await?;
    tried.keeps("what can be meant twice needs a key", lives::key_required(&tried)).await?;
    tried.keeps("a batch is decided in order, each for itself", lives::batches(&tried)).await?;
    tried.keeps("what is unknown is refused", lives::unknown(&tried)).await?;
    tried.keeps("amounts and times that make no sense are refused", lives::senseless(&tried)).await?;
    tried.keeps("every state and every command", lives::transitions(&tried)).await?;
    tried.keeps("a cost above the hold", lives::overruns(&tried)).await?;
    tried.keeps("rates are frozen by the reserve", lives::frozen_rates(&tried)).await?;
    tried.keeps("a life is told in order", lives::told_in_order(&tried)).await?;
    tried.keeps("a hold ends at its time", times::expiry(&tried)).await?;
    tried.keeps("what comes after the end of a hold", times::late_results(&tried)).await?;
    tried.keeps("a budget of a day", times::budget_of_a_day(&tried)).await?;
    tried.keeps("an escrow is settled, refunded or divided", escrows::ends(&tried)).await?;
    tried.keeps("an escrow ends once in a crowd", escrows::one_end(&tried)).await?;
    tried.keeps("an escrow is held once by its key", escrows::once_by_key(&tried)).await
}

impl<L: LedgerUnderTest> Tried<L> {
    /// Tries one rule, and that the books sum to zero after it.
    async fn keeps(&self, rule: &'static str, kept: impl Future<Output = Kept>) -> Result<(), Broken> {
        let broken = |what| Broken { rule, what };
        kept.await.map_err(broken)?;
        self.sums_to_zero().await.map_err(broken)
    }

    async fn sums_to_zero(&self) -> Kept {
        let totals = asked(self.ledger.totals().await)?;
        same("the sum over all accounts", totals.imbalance, 0)
    }

    async fn submit(&self, request: Request) -> Answer {
        self.ledger.submit(request).await
    }

    /// Has one request done that must be.
    async fn done(&self, request: Request) -> Result<Receipt, String> {
        let shown = format!("{request:?}");
        applied(self.submit(request).await).map_err(|what| format!("{shown}: {what}"))
    }

    /// Has many requests done that must be, in order.
    async fn all_done(&self, requests: Vec<Request>) -> Kept {
        let answers = asked(self.ledger.submit_batch(requests.clone()).await)?;
        same("answers to a batch", answers.len(), requests.len())?;
        for (request, answer) in requests.iter().zip(answers) {
            applied(answer).map_err(|what| format!("{request:?}: {what}"))?;
        }
        Ok(())
    }

    /// Submits each request in a task of its own, all at once; the answers are in the requests' order.
    async fn crowd(&self, requests: Vec<Request>) -> Result<Vec<Answer>, String> {
        // All of them are waited for below.
        let mut tasks = JoinSet::new();
        for (number, request) in requests.into_iter().enumerate() {
            let ledger = Arc::clone(&self.ledger);
            tasks.spawn(async move { (number, ledger.submit(request).await) });
        }
        let mut answers = Vec::with_capacity(tasks.len());
        while let Some(ended) = tasks.join_next().await {
            answers.push(ended.map_err(|error| error.to_string())?);
        }
        answers.sort_unstable_by_key(|(number, _)| *number);
        Ok(answers.into_iter().map(|(_, answer)| answer).collect())
    }

    /// What an owner can spend, and what is held.
    async fn balance(&self, owner: OwnerId) -> Result<Balance, String> {
        asked(self.ledger.balance(owner).await)?.ok_or_else(|| format!("{owner} has no account"))
    }

    /// Whether an owner can spend so much, and so much is held, in credits.
    async fn has(&self, owner: OwnerId, available: &str, held: &str) -> Kept {
        let balance = self.balance(owner).await?;
        let found = (balance.available.to_string(), balance.held.to_string());
        same(&format!("what {owner} has"), found, (available.to_owned(), held.to_owned()))
    }

    async fn charge(&self, id: ChargeId) -> Result<Charge, String> {
        let found = asked(self.ledger.charge(id).await)?;
        found.map(|(charge, _)| charge).ok_or_else(|| format!("there is no charge {id}"))
    }

    /// Lets time pass, and what ends by itself end.
    async fn later(&self, by: Span) -> Kept {
        self.clock.forward(by);
        asked(self.ledger.expire_due().await)
    }
}

/// The receipt of a request that must be done by this answer.
fn applied(answer: Answer) -> Result<Receipt, String> {
    match answer {
        Ok(Outcome::Applied(receipt)) => Ok(receipt),
        Ok(Outcome::Replayed(receipt)) => Err(format!("it was taken for a repetition of entry {}", receipt.offset)),
        Err(refusal) => Err(format!("it was refused: {refusal}")),
    }
}

/// A question that must be answered.
fn asked<T>(answer: Result<T, Refusal>) -> Result<T, String> {
    answer.map_err(|refusal| format!("a question was refused: {refusal}"))
}

fn same<T: PartialEq + fmt::Debug>(what: &str, found: T, expected: T) -> Kept {
    if found == expected { Ok(()) } else { Err(format!("{what}: {found:?}, and not {expected:?}")) }
}

/// Whether a request was refused with this code.
fn refused(what: &str, answer: &Answer, code: &str) -> Kept {
    match answer {
        Err(refusal) if refusal.code() == code => Ok(()),
        other => Err(format!("{what}: {other:?}, and not {code}")),
    }
}
