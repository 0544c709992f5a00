//! The simulator's callers, who ask whatever they ask, beside the model: every answer and all balances are compared.
//!
//! Callers at once share no account, charge, escrow, key, payee or budget. So what each is answered is known, however the
//! ledger puts their requests in order, and a ledger that mixes them up is caught.
//!
//! # Invariants
//! - The same seed asks the same of every ledger.
//! - Of the model's offsets only the order within one owner counts; the n-th entry of one is the n-th of the other.

use super::{HandClock, Kept, LedgerUnderTest, OPEN_HOLDS_MAX, Tried, applied, asked, same};
use crate::model::Model;
use crate::rng::Rng;
use crate::workload::{Profile, Workload};
use holdfast_domain::{Account, Change, Label, OwnerId, Span, charge};
use holdfast_engine::{Answer, Clock, Command, Outcome, Receipt, Refusal, Request};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use tokio::task::JoinSet;

const ROUNDS: u32 = 40;
/// The batches that each caller asks in a round, one after the other.
const BATCHES: u32 = 2;
/// Every so many rounds all balances and lives are compared, and not only those of the owners.
const ALL_EVERY: u32 = 8;

/// What a mixed run came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mixed {
    /// Requests that were done.
    pub applied: u64,
    /// Requests that were answered like an earlier one.
    pub replayed: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Holds that ended by themselves.
    pub expired: u64,
}

impl Mixed {
    /// Both together.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            applied: self.applied + other.applied,
            replayed: self.replayed + other.replayed,
            refused: self.refused + other.refused,
            expired: self.expired + other.expired,
        }
    }
}

/// One of those who ask, and what must be of all that they asked.
struct Caller<L> {
    tried: Tried<L>,
    rng: Rng,
    model: Model,
    workload: Workload,
    /// The ledger's offset of each entry of the model, where it is known: what ends by itself tells nobody.
    offsets: HashMap<u64, u64>,
    /// The newest entry of each owner.
    newest: BTreeMap<OwnerId, u64>,
    tally: Mixed,
}

/// Has so many callers of one seed ask a ledger that is empty, all at once; the error says what was answered otherwise than it
/// must be.
pub async fn mixed<L: LedgerUnderTest>(
    ledger: Arc<L>,
    clock: Arc<HandClock>,
    seed: u64,
    callers: u32,
) -> Result<Mixed, String> {
    let mut rng = Rng::new(seed);
    let tried = Tried { ledger, clock };
    let mut callers: Vec<_> = (0..callers).map(|number| Caller::new(&tried, &mut rng, number)).collect();
    for round in 1..=ROUNDS {
        let told = |what| format!("seed {seed}, round {round}: {what}");
        let millis = match rng.below(8) {
            0 => rng.between(3_600_000, 30 * 3_600_000),
            1..=3 => rng.below(90_000),
            _ => rng.below(20),
        };
        tried.later(Span::from_millis(millis)).await.map_err(told)?;
        callers = at_once(callers).await.map_err(told)?;
        compare_sums(&tried, &callers).await.map_err(told)?;
        for caller in &callers {
            caller.compare_owners().await.map_err(told)?;
            if round.is_multiple_of(ALL_EVERY) {
                caller.compare_all().await.map_err(told)?;
            }
        }
    }
    Ok(callers.iter().fold(Mixed::default(), |all, caller| all.and(caller.tally)))
}

/// A round of every caller.
async fn at_once<L: LedgerUnderTest>(callers: Vec<Caller<L>>) -> Result<Vec<Caller<L>>, String> {
    // All of them are waited for.
    let mut tasks = JoinSet::new();
    for caller in callers {
        tasks.spawn(caller.round());
    }
    let mut back = Vec::with_capacity(tasks.len());
    while let Some(ended) = tasks.join_next().await {
        back.push(ended.map_err(|error| error.to_string())??);
    }
    // In the order that they always have, so that a seed is a seed.
    back.sort_unstable_by_key(|caller| caller.workload.realm().to_owned());
    Ok(back)
}

/// Compares the sums over the whole book with those of all callers together.
async fn compare_sums<L: LedgerUnderTest>(tried: &Tried<L>, callers: &[Caller<L>]) -> Kept {
    let totals = asked(tried.ledger.totals().await)?;
    let models = || callers.iter().map(|caller| &caller.model);
    same("the sum over all accounts", totals.imbalance, 0)?;
    same("owners", totals.owners, models().map(|model| model.owners().count()).sum())?;
    same("payees", totals.payees, models().map(|model| model.payees().count()).sum())?;
    same("open charges", totals.open_charges, models().map(Model::open_charges).sum())?;
    same("open escrows", totals.open_escrows, models().map(|model| model.open_escrows().count()).sum())?;
    let revenue = models().map(|model| model.system().revenue).sum();
    same("what was earned", i128::from(totals.revenue.units()), revenue)?;
    let treasury = models().map(|model| model.system().treasury).sum();
    same("what came in", i128::from(totals.treasury.units()), treasury)
}

impl<L: LedgerUnderTest> Caller<L> {
    fn new(tried: &Tried<L>, rng: &mut Rng, number: u32) -> Self {
        let profile = Profile { owners: rng.between(1, 4) as usize, width: 8, huge: false };
        Self {
            tried: Tried { ledger: Arc::clone(&tried.ledger), clock: Arc::clone(&tried.clock) },
            model: Model::new(OPEN_HOLDS_MAX),
            workload: Workload::within(format!("r{number:04}-"), rng.fork(), profile),
            rng: rng.fork(),
            offsets: HashMap::new(),
            newest: BTreeMap::new(),
            tally: Mixed::default(),
        }
    }

    /// Asks some batches, and compares every answer.
    async fn round(mut self) -> Result<Self, String> {
        self.end_due()?;
        for _ in 0..BATCHES {
            self.batch().await?;
        }
        Ok(self)
    }

    async fn batch(&mut self) -> Kept {
        let most = self.rng.pick(&[1, 4, 40]).unwrap_or(4);
        let now = self.tried.clock.now().millis();
        let mut expected = Vec::new();
        for _ in 0..self.rng.between(1, most) {
            // What the model has decided shapes what is asked next.
            let request = self.workload.next(&self.model);
            let answer = self.model.decide(&request, now);
            expected.push((request, answer));
        }
        let answers = if let [(request, _)] = expected.as_slice() {
            vec![self.tried.submit(request.clone()).await]
        } else {
            asked(self.tried.ledger.submit_batch(expected.iter().map(|(request, _)| request.clone()).collect()).await)?
        };
        same("answers to a batch", answers.len(), expected.len())?;
        for ((request, expected), answer) in expected.iter().zip(&answers) {
            self.compare(answer, expected)
                .map_err(|what| format!("{request:?}\n  was answered {answer:?}\n  and not {expected:?}: {what}"))?;
        }
        Ok(())
    }

    /// Ends in the model what has ended by itself.
    fn end_due(&mut self) -> Kept {
        let now = self.tried.clock.now().millis();
        let actor: Label = "expiry".parse().expect("a plain word");
        while let Some((due, charge)) = self.model.next_due().filter(|(due, _)| *due <= now) {
            let command = Command::Charge { charge, command: charge::Command::Expire };
            let ended = self.model.decide(&Request { key: None, actor, command }, now);
            applied(ended).map_err(|what| format!("the model does not end {charge}, due at {due}: {what}"))?;
            self.tally.expired += 1;
        }
        Ok(())
    }

    fn compare(&mut self, answer: &Answer, expected: &Answer) -> Kept {
        match (answer, expected) {
            (Ok(Outcome::Applied(found)), Ok(Outcome::Applied(right))) => {
                self.tally.applied += 1;
                same("the receipt", &with_offset(found, 0), &with_offset(right, 0))?;
                let newest = self.newest.entry(found.event.owner()).or_default();
                if found.offset <= *newest {
                    return Err(format!("entry {} comes after entry {newest} of the same owner", found.offset));
                }
                *newest = found.offset;
                self.offsets.insert(right.offset, found.offset);
                Ok(())
            }
            (Ok(Outcome::Replayed(found)), Ok(Outcome::Replayed(right))) => {
                self.tally.replayed += 1;
                match self.offsets.get(&right.offset) {
                    Some(offset) => same("the receipt", found, &with_offset(right, *offset)),
                    // It ended by itself: where in the order of those that ended with it, is nobody's business.
                    None => same("the end", (&found.event, found.state), (&right.event, right.state)),
                }
            }
            (Err(Refusal::InvalidAmount(_)), Err(Refusal::InvalidAmount(_))) => {
                self.tally.refused += 1;
                Ok(())
            }
            (found, right) => {
                self.tally.refused += 1;
                same("the answer", found, right)
            }
        }
    }

    /// Compares the balances of every owner.
    async fn compare_owners(&self) -> Kept {
        for (owner, row) in self.model.owners() {
            let balance = self.tried.balance(*owner).await?;
            let found = (i128::from(balance.available.units()), i128::from(balance.held.units()));
            same(&format!("what {owner} has"), found, (row.available, row.held))?;
            same("open holds and entries", (balance.open_holds, balance.entries), (row.open, row.entries))?;
            if let Some(offset) = self.offsets.get(&row.last) {
                same("the last entry", balance.last, *offset)?;
            }
        }
        Ok(())
    }

    /// Compares payees, escrows, budgets, and the state of every charge that there ever was.
    async fn compare_all(&self) -> Kept {
        let ledger = &self.tried.ledger;
        let units = |found: Option<Change>| found.map(|change| i128::from(change.units()));
        for (payee, row) in self.model.payees() {
            let found = asked(ledger.account(Account::Payee(*payee)).await)?;
            same(&format!("what {payee} earned"), units(found), Some(row.balance))?;
        }
        for (escrow, amount) in self.model.open_escrows() {
            let found = asked(ledger.account(Account::Escrow(escrow)).await)?;
            same(&format!("what {escrow} holds"), units(found), Some(amount))?;
        }
        for (escrow, state) in self.model.escrows() {
            let found = asked(ledger.escrow(escrow).await)?.map(|(found, _)| found.state());
            same(&format!("the state of {escrow}"), found, Some(state))?;
        }
        for (charge, state) in self.model.charges() {
            let found = asked(ledger.charge(charge).await)?.map(|(found, _)| found.state());
            same(&format!("the state of {charge}"), found, Some(state))?;
        }
        for budget in self.model.budgets() {
            let used = asked(ledger.used(budget).await)?;
            if !self.model.has_used(budget, &used) {
                return Err(format!("budget {budget} has used {used:?}"));
            }
        }
        Ok(())
    }
}

fn with_offset(receipt: &Receipt, offset: u64) -> Receipt {
    Receipt { offset, ..receipt.clone() }
}
