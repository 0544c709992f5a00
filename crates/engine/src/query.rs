//! What can be asked of the books as they stand: balances, open holds, and any charge or escrow, however old.

use crate::archive::Archive;
use crate::book::{OpenCharge, OpenEscrow};
use crate::error::Refusal;
use crate::keys::KeyHash;
use crate::ledger::Ledger;
use crate::record::Record;
use holdfast_domain::budget::Used;
use holdfast_domain::charge::{Charge, Hold};
use holdfast_domain::escrow::{Escrow, Escrowed};
use holdfast_domain::{Account, BudgetId, Change, ChargeId, CreditUnit, EscrowId, Key, Overflow, OwnerId, Timestamp};
use holdfast_journal::Location;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The books between two requests.
pub struct View<'a> {
    ledger: &'a dyn Books,
    now: Timestamp,
}

/// An owner's balances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Balance {
    /// What can be spent.
    pub available: CreditUnit,
    /// What open reservations hold.
    pub held: CreditUnit,
    /// How many reservations are open.
    pub open_holds: u32,
    /// The last entry of the owner's history.
    pub last: u64,
    /// How many entries the owner's history has.
    pub entries: u64,
}

/// The end of an account holder's history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryEnd {
    /// The last entry; 0 if there is none.
    pub last: u64,
    /// How many entries there are.
    pub entries: u64,
}

/// The ledger, whatever disk it is on.
trait Books {
    fn balance(&self, owner: OwnerId) -> Option<Balance>;
    fn used(&self, budget: BudgetId) -> Used;
    fn account(&self, account: &Account) -> Option<Change>;
    fn history_end(&self, account: &Account) -> Option<HistoryEnd>;
    fn owners(&self, after: Option<OwnerId>, at_most: usize) -> Vec<(OwnerId, Balance)>;
    fn totals(&self) -> Totals;
    fn standing(&self, at_most: usize) -> Result<Standing, Overflow>;
    fn open_charges(&self, owner: Option<OwnerId>, at_most: usize) -> Vec<(ChargeId, OwnerId, Hold)>;
    fn charge(&self, id: ChargeId) -> Result<Option<(Charge, OwnerId)>, Refusal>;
    fn escrow(&self, id: EscrowId) -> Result<Option<(Escrow, OwnerId)>, Refusal>;
    fn by_key(&self, key: &Key) -> Result<Option<Record>, Refusal>;
    fn life(&self, id: ChargeId) -> Result<Vec<Record>, Refusal>;
    fn escrow_life(&self, id: EscrowId) -> Result<Vec<Record>, Refusal>;
    fn open_escrows(&self, after: Option<EscrowId>, at_most: usize) -> Vec<(EscrowId, OwnerId, Escrowed)>;
}

/// The sums over the whole book.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Totals {
    /// How many owners there are.
    pub owners: usize,
    /// How many payees there are.
    pub payees: usize,
    /// How many reservations are open.
    pub open_charges: usize,
    /// How many escrows are open.
    pub open_escrows: usize,
    /// `system:revenue`.
    pub revenue: Change,
    /// `treasury:usdc_received`.
    pub treasury: Change,
    /// The sum over all accounts: zero.
    pub imbalance: i128,
}

/// What all owners have together, and those who have most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// What all of them can spend.
    pub available: CreditUnit,
    /// What is held of all of them.
    pub held: CreditUnit,
    /// Those who have most, held or not, most first.
    pub largest: Vec<(OwnerId, Balance)>,
}

struct At<'a, A: Archive> {
    ledger: &'a Ledger<A>,
    sheet: &'a A::Sheet,
}

impl<'a> View<'a> {
    pub(crate) fn with<A: Archive, T>(
        ledger: &Ledger<A>,
        sheet: &A::Sheet,
        now: Timestamp,
        look: impl FnOnce(&View<'_>) -> T,
    ) -> T {
        let at = At { ledger, sheet };
        look(&View { ledger: &at, now })
    }

    /// The moment of the look.
    #[must_use]
    pub const fn now(&self) -> Timestamp {
        self.now
    }

    /// An owner's balances.
    #[must_use]
    pub fn balance(&self, owner: OwnerId) -> Option<Balance> {
        self.ledger.balance(owner)
    }

    /// What a budget has used.
    #[must_use]
    pub fn used(&self, budget: BudgetId) -> Used {
        self.ledger.used(budget)
    }

    /// The balance of any account; `None` if it has never been posted to.
    #[must_use]
    pub fn account(&self, account: &Account) -> Option<Change> {
        self.ledger.account(account)
    }

    /// The end of an account holder's history; `None` for accounts without one.
    #[must_use]
    pub fn history_end(&self, account: &Account) -> Option<HistoryEnd> {
        self.ledger.history_end(account)
    }

    /// Owners in the order of their names, after a given one.
    #[must_use]
    pub fn owners(&self, after: Option<OwnerId>, at_most: usize) -> Vec<(OwnerId, Balance)> {
        self.ledger.owners(after, at_most)
    }

    /// The sums over the whole book.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.ledger.totals()
    }

    /// What all owners have together, and those who have most: one pass over the owners, in the memory of `at_most`.
    pub fn standing(&self, at_most: usize) -> Result<Standing, Overflow> {
        self.ledger.standing(at_most)
    }

    /// Open reservations and their owners, those that end first before the others.
    #[must_use]
    pub fn open_charges(&self, owner: Option<OwnerId>, at_most: usize) -> Vec<(ChargeId, OwnerId, Hold)> {
        self.ledger.open_charges(owner, at_most)
    }

    /// A charge and its owner, open or closed, however old.
    pub fn charge(&self, id: ChargeId) -> Result<Option<(Charge, OwnerId)>, Refusal> {
        self.ledger.charge(id)
    }

    /// An escrow and its owner, open or closed, however old.
    pub fn escrow(&self, id: EscrowId) -> Result<Option<(Escrow, OwnerId)>, Refusal> {
        self.ledger.escrow(id)
    }

    /// The entry that a caller's key made.
    pub fn by_key(&self, key: &Key) -> Result<Option<Record>, Refusal> {
        self.ledger.by_key(key)
    }

    /// Every entry of a charge's life, oldest first.
    pub fn life(&self, id: ChargeId) -> Result<Vec<Record>, Refusal> {
        self.ledger.life(id)
    }

    /// Every entry of an escrow's life, oldest first.
    pub fn escrow_life(&self, id: EscrowId) -> Result<Vec<Record>, Refusal> {
        self.ledger.escrow_life(id)
    }

    /// Open escrows and their owners in the order of their names, after a given one, at most so many.
    #[must_use]
    pub fn open_escrows(&self, after: Option<EscrowId>, at_most: usize) -> Vec<(EscrowId, OwnerId, Escrowed)> {
        self.ledger.open_escrows(after, at_most)
    }
}

impl<A: Archive> Books for At<'_, A> {
    fn balance(&self, owner: OwnerId) -> Option<Balance> {
        self.ledger.book.owner(owner).map(balance)
    }

    fn used(&self, budget: BudgetId) -> Used {
        self.ledger.book.used(budget)
    }

    fn account(&self, account: &Account) -> Option<Change> {
        let book = &self.ledger.book;
        match account {
            Account::Available(owner) => book.owner(*owner).map(|owner| Change::plus(owner.available)),
            Account::Held(owner) => book.owner(*owner).map(|owner| Change::plus(owner.held)),
            Account::Payee(payee) => book.payee(*payee).map(|payee| Change::plus(payee.balance)),
            Account::Escrow(id) => {
                let open = book.escrows.get(KeyHash::of_escrow(*id));
                open.filter(|open| open.id == *id).map(|open| Change::plus(open.escrowed.amount))
            }
            Account::Revenue => Some(book.system.revenue),
            Account::Treasury => Some(book.system.treasury),
        }
    }

    fn history_end(&self, account: &Account) -> Option<HistoryEnd> {
        let book = &self.ledger.book;
        match account {
            Account::Available(owner) | Account::Held(owner) => {
                book.owner(*owner).map(|owner| HistoryEnd { last: owner.last, entries: owner.entries })
            }
            Account::Payee(payee) => {
                book.payee(*payee).map(|payee| HistoryEnd { last: payee.last, entries: payee.entries })
            }
            Account::Escrow(_) | Account::Revenue | Account::Treasury => None,
        }
    }

    fn owners(&self, after: Option<OwnerId>, at_most: usize) -> Vec<(OwnerId, Balance)> {
        let parse = |(name, owner)| Some((OwnerId::from_bytes(name).ok()?, balance(owner)));
        let mut owners: Vec<_> = self.ledger.book.owners.iter().filter_map(parse).collect();
        owners.retain(|(owner, _)| after.is_none_or(|after| *owner > after));
        owners.sort_unstable_by_key(|(owner, _)| *owner);
        owners.truncate(at_most);
        owners
    }

    fn totals(&self) -> Totals {
        let book = &self.ledger.book;
        Totals {
            owners: book.owners.len(),
            payees: book.payees.len(),
            open_charges: book.charges.len(),
            open_escrows: book.escrows.len(),
            revenue: book.system.revenue,
            treasury: book.system.treasury,
            imbalance: book.imbalance(),
        }
    }

    fn standing(&self, at_most: usize) -> Result<Standing, Overflow> {
        let (mut available, mut held) = (CreditUnit::ZERO, CreditUnit::ZERO);
        // The least of those kept is on top, and the first to go.
        let mut kept: BinaryHeap<Reverse<(CreditUnit, Reverse<OwnerId>)>> = BinaryHeap::new();
        for (name, owner) in self.ledger.book.owners.iter() {
            available = available.checked_add(owner.available)?;
            held = held.checked_add(owner.held)?;
            let all = owner.available.checked_add(owner.held)?;
            let Ok(id) = OwnerId::from_bytes(name) else { continue };
            let is_among = kept.len() < at_most || kept.peek().is_some_and(|Reverse((least, ..))| all > *least);
            if is_among {
                kept.push(Reverse((all, Reverse(id))));
                if kept.len() > at_most {
                    kept.pop();
                }
            }
        }
        let largest = kept.into_sorted_vec().into_iter();
        let largest = largest.filter_map(|Reverse((_, Reverse(id)))| Some((id, self.balance(id)?)));
        Ok(Standing { available, held, largest: largest.collect() })
    }

    fn open_charges(&self, owner: Option<OwnerId>, at_most: usize) -> Vec<(ChargeId, OwnerId, Hold)> {
        let book = &self.ledger.book;
        let row = owner.map(|owner| book.owner_row(owner));
        let found = book.charges.values().filter(|open| row.is_none_or(|row| row == Some(open.row))).collect();
        let found = first_by(found, at_most, |open: &&OpenCharge| (open.hold.expires_at, open.id));
        found.into_iter().map(|open| (open.id, book.owner_name(open.row), open.hold)).collect()
    }

    fn charge(&self, id: ChargeId) -> Result<Option<(Charge, OwnerId)>, Refusal> {
        let found = self.ledger.charge(KeyHash::of_charge(id), &id, self.sheet)?;
        Ok(found.map(|found| (found.life, self.ledger.book.owner_name(found.standing.row))))
    }

    fn escrow(&self, id: EscrowId) -> Result<Option<(Escrow, OwnerId)>, Refusal> {
        let found = self.ledger.escrow(KeyHash::of_escrow(id), id, self.sheet)?;
        Ok(found.map(|found| (found.life, self.ledger.book.owner_name(found.standing.row))))
    }

    fn by_key(&self, key: &Key) -> Result<Option<Record>, Refusal> {
        let Some(location) = self.ledger.key_location(key)? else { return Ok(None) };
        self.ledger.archive.read(location, self.sheet).map(Some)
    }

    fn life(&self, id: ChargeId) -> Result<Vec<Record>, Refusal> {
        let Some(found) = self.ledger.charge(KeyHash::of_charge(id), &id, self.sheet)? else {
            return Ok(Vec::new());
        };
        self.records(found.standing.last)
    }

    fn escrow_life(&self, id: EscrowId) -> Result<Vec<Record>, Refusal> {
        let Some(found) = self.ledger.escrow(KeyHash::of_escrow(id), id, self.sheet)? else {
            return Ok(Vec::new());
        };
        self.records(found.standing.last)
    }

    fn open_escrows(&self, after: Option<EscrowId>, at_most: usize) -> Vec<(EscrowId, OwnerId, Escrowed)> {
        let book = &self.ledger.book;
        let is_after = |open: &&OpenEscrow| after.is_none_or(|after| open.id > after);
        first_by(book.escrows.values().filter(is_after).collect(), at_most, |open| open.id)
            .into_iter()
            .map(|open| (open.id, book.owner_name(open.row), open.escrowed))
            .collect()
    }
}

impl<A: Archive> At<'_, A> {
    /// A life from its last record back, oldest first.
    fn records(&self, last: Location) -> Result<Vec<Record>, Refusal> {
        let mut records = self.ledger.archive.life(last, self.sheet)?;
        records.reverse();
        Ok(records)
    }
}

/// The first few by `key`, in order. Only those that are wanted are brought in order: there may be very many others.
fn first_by<T, K: Ord>(mut found: Vec<T>, at_most: usize, key: impl Fn(&T) -> K) -> Vec<T> {
    if at_most < found.len() {
        found.select_nth_unstable_by_key(at_most, &key);
        found.truncate(at_most);
    }
    found.sort_unstable_by_key(key);
    found
}

const fn balance(owner: &crate::book::Owner) -> Balance {
    Balance {
        available: owner.available,
        held: owner.held,
        open_holds: owner.open_holds,
        last: owner.last,
        entries: owner.entries,
    }
}
