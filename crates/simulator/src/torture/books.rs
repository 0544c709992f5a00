//! The books as the journal's entries make them: a second, simple ledger that knows what each request must have done.

use super::amount::Micro;
use super::entry::Entry;
use super::order::{Body, Order};
use std::collections::{BTreeMap, BTreeSet, HashMap};

pub(crate) const TREASURY: &str = "treasury:usdc_received";
pub(crate) const REVENUE: &str = "system:revenue";

/// Balances, charges and escrows after some entries.
#[derive(Default)]
pub(crate) struct Books {
    pub(crate) balances: BTreeMap<String, Micro>,
    charges: HashMap<String, Charge>,
    escrows: HashMap<String, Escrow>,
}

struct Charge {
    account: u64,
    held: Micro,
    charged: Micro,
    life: Life,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Held,
    Committed,
    Released,
    Expired,
    Voided,
}

struct Escrow {
    account: u64,
    amount: Micro,
    open: bool,
}

type Postings = Vec<(String, Micro)>;

impl Books {
    /// Applies an entry; `order` is the request that it came from, `None` if nobody asked for it.
    pub(crate) fn apply(&mut self, entry: &Entry, order: Option<&Order>) -> Result<(), String> {
        let expected = match order {
            Some(order) => self.ordered(order)?,
            None if entry.kind == "billing_auto_release" => self.expired(entry.subject.as_deref().unwrap_or(""))?,
            None => return Err("nobody asked for it".to_owned()),
        };
        match expected {
            Expected::Exactly(postings) => same(&entry.postings, postings)?,
            Expected::LateCommit { charge, actual } => self.late(entry, &charge, actual)?,
        }
        self.post(entry)
    }

    /// Posts the changes: they sum to zero, leave no guarded account below it, and lead to the balances that the entry names.
    fn post(&mut self, entry: &Entry) -> Result<(), String> {
        let sum: Micro = entry.postings.iter().map(|(_, change)| *change).sum();
        if sum != Micro::ZERO {
            return Err(format!("its postings sum to {sum}"));
        }
        for (account, change) in &entry.postings {
            let balance = self.balances.entry(account.clone()).or_default();
            *balance = *balance + *change;
            if *balance < Micro::ZERO && account != TREASURY && account != REVENUE {
                return Err(format!("it leaves {account} at {balance}"));
            }
        }
        for (account, stated) in &entry.balances {
            let balance = self.balances.get(account).copied().unwrap_or_default();
            if balance != *stated {
                return Err(format!("it says that {account} is then {stated}, and the postings lead to {balance}"));
            }
        }
        Ok(())
    }

    /// What an order does to the books as they are.
    fn ordered(&mut self, order: &Order) -> Result<Expected, String> {
        let subject = order.subject().unwrap_or_default();
        match order.body {
            Body::Mint { account, amount } => Ok(moved(amount, TREASURY.to_owned(), available(account))),
            Body::Reserve { account, amount, .. } => {
                let charge = Charge { account, held: amount, charged: Micro::ZERO, life: Life::Held };
                match self.charges.insert(subject, charge) {
                    None => Ok(moved(amount, available(account), held(account))),
                    Some(_) => Err("the charge was there already".to_owned()),
                }
            }
            Body::Start { .. } => self.charge(&subject, &[Life::Held]).map(|_| Expected::Exactly(Vec::new())),
            Body::Increase { amount, .. } => {
                let charge = self.charge(&subject, &[Life::Held])?;
                charge.held = charge.held + amount;
                Ok(moved(amount, available(charge.account), held(charge.account)))
            }
            Body::Commit { actual, .. } => self.commit(subject, actual),
            Body::Release { .. } => {
                let charge = self.charge(&subject, &[Life::Held])?;
                charge.life = Life::Released;
                Ok(moved(charge.held, held(charge.account), available(charge.account)))
            }
            Body::Ack { .. } => self.charge(&subject, &[Life::Committed]).map(|_| Expected::Exactly(Vec::new())),
            Body::Void { .. } => {
                let charge = self.charge(&subject, &[Life::Committed])?;
                charge.life = Life::Voided;
                Ok(moved(charge.charged, REVENUE.to_owned(), available(charge.account)))
            }
            Body::Hold { account, amount } => {
                let escrow = Escrow { account, amount, open: true };
                match self.escrows.insert(subject.clone(), escrow) {
                    None => Ok(moved(amount, available(account), format!("escrow:{subject}"))),
                    Some(_) => Err("the escrow was there already".to_owned()),
                }
            }
            Body::Settle { payee, .. } => {
                let escrow = self.close_escrow(&subject)?;
                Ok(moved(escrow.amount, format!("escrow:{subject}"), format!("payee:p{payee}:available")))
            }
            Body::Refund { .. } => {
                let escrow = self.close_escrow(&subject)?;
                Ok(moved(escrow.amount, format!("escrow:{subject}"), available(escrow.account)))
            }
            Body::Split { payee, settle, refund, .. } => {
                let escrow = self.close_escrow(&subject)?;
                let payee = (format!("payee:p{payee}:available"), settle);
                let rest = (available(escrow.account), refund);
                Ok(Expected::Exactly(vec![(format!("escrow:{subject}"), -escrow.amount), payee, rest]))
            }
        }
    }

    /// A commit of no more than the hold takes it all and gives the rest back; one after the expiry takes what there is.
    fn commit(&mut self, subject: String, actual: Micro) -> Result<Expected, String> {
        let charge = self.charge(&subject, &[Life::Held, Life::Expired])?;
        if charge.life == Life::Expired {
            return Ok(Expected::LateCommit { charge: subject, actual });
        }
        (charge.life, charge.charged) = (Life::Committed, actual);
        Ok(Expected::Exactly(vec![
            (held(charge.account), -charge.held),
            (REVENUE.to_owned(), actual),
            (available(charge.account), charge.held - actual),
        ]))
    }

    fn late(&mut self, entry: &Entry, subject: &str, actual: Micro) -> Result<(), String> {
        let charge = self.charge(subject, &[Life::Expired])?;
        let taken =
            entry.postings.iter().find(|(account, _)| account == REVENUE).map_or(Micro::ZERO, |(_, taken)| *taken);
        if taken < Micro::ZERO || taken > actual {
            return Err(format!("a late commit of {actual} took {taken}"));
        }
        (charge.life, charge.charged) = (Life::Committed, taken);
        same(&entry.postings, vec![(REVENUE.to_owned(), taken), (available(charge.account), -taken)])
    }

    fn expired(&mut self, subject: &str) -> Result<Expected, String> {
        let charge = self.charge(subject, &[Life::Held])?;
        charge.life = Life::Expired;
        Ok(moved(charge.held, held(charge.account), available(charge.account)))
    }

    fn charge(&mut self, subject: &str, lives: &[Life]) -> Result<&mut Charge, String> {
        let charge = self.charges.get_mut(subject).ok_or_else(|| format!("there is no charge {subject} before it"))?;
        if lives.contains(&charge.life) { Ok(charge) } else { Err(format!("{subject} is {:?} before it", charge.life)) }
    }

    fn close_escrow(&mut self, subject: &str) -> Result<&Escrow, String> {
        let escrow = self.escrows.get_mut(subject).ok_or_else(|| format!("there is no escrow {subject} before it"))?;
        if !std::mem::replace(&mut escrow.open, false) {
            return Err(format!("{subject} had been paid out or back before it"));
        }
        Ok(escrow)
    }

    /// Where these books and the balances that the server tells differ. Accounts at zero may be left out.
    pub(crate) fn differences(&self, told: &BTreeMap<String, Micro>) -> Vec<String> {
        let names: BTreeSet<&String> = self.balances.keys().chain(told.keys()).collect();
        let mut differences = Vec::new();
        for name in names {
            let [ours, theirs] = [&self.balances, told].map(|balances| balances.get(name).copied().unwrap_or_default());
            if ours != theirs {
                differences.push(format!("the postings of {name} sum to {ours}, and the server tells {theirs}"));
            }
        }
        differences
    }
}

enum Expected {
    Exactly(Postings),
    /// How much a late commit takes depends on what is available; it takes no more than it says.
    LateCommit {
        charge: String,
        actual: Micro,
    },
}

fn available(account: u64) -> String {
    format!("user:a{account}:available")
}

fn held(account: u64) -> String {
    format!("user:a{account}:held")
}

fn moved(amount: Micro, from: String, to: String) -> Expected {
    Expected::Exactly(vec![(from, -amount), (to, amount)])
}

/// Whether two sets of postings change the same accounts by the same amounts, whatever their order.
fn same(found: &[(String, Micro)], expected: Postings) -> Result<(), String> {
    let fold = |postings: &[(String, Micro)]| {
        let mut sums: BTreeMap<String, Micro> = BTreeMap::new();
        for (account, change) in postings {
            let sum = sums.entry(account.clone()).or_default();
            *sum = *sum + *change;
        }
        sums.retain(|_, sum| *sum != Micro::ZERO);
        sums
    };
    let (found, expected) = (fold(found), fold(&expected));
    if found == expected { Ok(()) } else { Err(format!("it posts {found:?}, and was to post {expected:?}")) }
}
