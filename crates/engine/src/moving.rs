//! Books that move from one engine to another: entries that were decided elsewhere are taken over, one by one, by the rules.
//!
//! What was decided stays as it was: who, when, what, the key, the fingerprint, the state and the owner's balances. What says
//! where an entry stands is made anew, because it stands elsewhere now: its offset, and its links to the entries before it.
//!
//! # Invariants
//! - An entry is taken over only if it follows from those before it and leads to the balances and the state that it names.
//! - What two engines say of the same books is said in one form ([`Stands`], [`Sums`]), in one order, so that it can be compared.

use crate::archive::{Archive, OnDisk, Sheet};
use crate::book::Standing;
use crate::error::Refusal;
use crate::ledger::Ledger;
use crate::life::{Before, Life, advance, state_of};
use crate::part::{Part, Wanted};
use crate::record::{Draft, Link, Record};
use crate::replay::{Corrupt, hashes_of};
use holdfast_domain::budget::Used;
use holdfast_domain::delivery::{Duty, Part as OwedPart, Sum, owed};
use holdfast_domain::{
    BudgetId, Change, ChargeId, CreditUnit, Event, Overflow, OwnerId, PayeeId, Place, Timestamp, charge,
};
use holdfast_journal::Disk;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Why an entry was not taken over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotTaken {
    /// It does not follow. Its offset is the one that it had.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// What is before it cannot be read.
    #[error(transparent)]
    Unread(#[from] Refusal),
}

impl<A: Archive> Ledger<A> {
    /// Takes over an entry that was decided elsewhere: onto the sheet and into the book, in one step, or not at all.
    ///
    /// # Errors
    /// If it does not follow from what is here.
    pub fn take_over(&mut self, record: &Record, sheet: &mut A::Sheet) -> Result<(), NotTaken> {
        let corrupt = |what| Corrupt { offset: record.offset, what };
        let postings = record.event.postings().map_err(|_| corrupt("its postings do not balance"))?;
        let row = self.book.owner_row(record.event.owner());
        let prepared = self.book.prepare(&record.event, &postings, row).map_err(|_| corrupt("it breaks a floor"))?;
        let owner = prepared.owner_link();
        let said = Link { previous: owner.available.previous, ..record.owner.available };
        if (owner.available, owner.held) != (said, record.owner.held) {
            return Err(corrupt("it leads to other balances than it names").into());
        }
        let hashes = hashes_of(record);
        if let Some(key) = hashes.key
            && self.archive.find(key)?.is_some()
        {
            return Err(corrupt("its key was used by an entry before it").into());
        }
        let before = self.life_found(record, sheet)?;
        if before.last.is_some() && before.row != row {
            return Err(corrupt("it names another owner than the record before it").into());
        }
        let next =
            advance(&before.life, &record.event).ok_or(corrupt("its event cannot follow the state before it"))?;
        if (state_of(&next), before.last.is_some()) != (record.state, record.life_previous.is_some()) {
            return Err(corrupt("it names another state than it leads to").into());
        }
        if record.at < self.book.last_at {
            return Err(corrupt("it is older than the entry before it").into());
        }
        let day = record.at.day();
        if let Event::Charge { event: charge::Event::Reserved { amount, budgets, .. }, .. } = &record.event {
            let checked = self.book.check_budgets(budgets.as_slice(), *amount, day);
            checked.map_err(|_| corrupt("it passes a limit that it names"))?;
        }
        let budgeted = self.budgeted(&record.event, &before, day);
        let spent = self.book.spend(&budgeted, postings.at(Place::Available), day);
        let spent = spent.map_err(|_| corrupt("it takes more back from a budget than was used"))?;
        let (location, offset) = sheet.next();
        let Record { at, fingerprint, state, .. } = *record;
        let (payee, life_previous) = (prepared.payee_link(), before.last);
        let (actor, key, event) = (&record.actor, record.key.as_ref(), &record.event);
        let draft = Draft { offset, at, actor, key, fingerprint, event, state, owner, payee, life_previous };
        sheet.push(|bytes| draft.encode(bytes)).map_err(|_| corrupt("it is too long"))?;
        let row = self.book.post(&prepared, event, offset, at);
        self.book.post_spent(&spent);
        self.settle(hashes.life, event, &next, Standing { last: location, row, budgeted });
        self.remember(&hashes, state, location);
        self.archive.noted(offset);
        Ok(())
    }

    /// The life that a record moves on, as it stands here.
    fn life_found(&self, record: &Record, sheet: &A::Sheet) -> Result<Before, Refusal> {
        let key = hashes_of(record).life;
        Ok(match &record.event {
            Event::Minted(_) => Before::nothing(Life::None, None),
            Event::Charge { id, .. } => match self.charge(key, id, sheet)? {
                Some(found) => Before::of(Life::Charge(Some(found.life)), found.standing),
                None => Before::nothing(Life::Charge(None), None),
            },
            Event::Escrow { id, .. } => match self.escrow(key, *id, sheet)? {
                Some(found) => Before::of(Life::Escrow(Some(found.life)), found.standing),
                None => Before::nothing(Life::Escrow(None), None),
            },
        })
    }
}

impl Part {
    /// Takes over an entry that was decided elsewhere, after those before it.
    ///
    /// # Errors
    /// If it does not follow from what was loaded.
    pub fn take_over(&mut self, record: &Record) -> Result<(), NotTaken> {
        let (ledger, page) = self.inside();
        ledger.take_over(record, page)
    }
}

impl Wanted {
    /// What taking these over may look at.
    #[must_use]
    pub fn to_take_over<'a>(records: impl IntoIterator<Item = &'a Record>) -> Self {
        let mut wanted = Self::default();
        for record in records {
            wanted.owners.push(record.event.owner());
            wanted.payees.extend(record.event.payee());
            wanted.budgets.extend(record.event.budgets().iter().map(|budget| budget.id));
            wanted.keys.extend(record.key);
            match &record.event {
                Event::Minted(_) => {}
                Event::Charge { id, .. } => wanted.charges.push(*id),
                Event::Escrow { id, .. } => wanted.escrows.push(*id),
            }
        }
        wanted.in_order()
    }
}

/// How one account holder or budget stands. Owners come before payees, payees before budgets, each by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stands {
    /// An owner.
    Owner {
        /// Who.
        id: OwnerId,
        /// What can be spent.
        available: CreditUnit,
        /// What open reservations hold.
        held: CreditUnit,
        /// How many reservations are open.
        open_holds: u32,
        /// How many entries the history has.
        entries: u64,
    },
    /// A payee.
    Payee {
        /// Who.
        id: PayeeId,
        /// What was earned.
        balance: CreditUnit,
        /// How many entries the history has.
        entries: u64,
    },
    /// A budget of which something is used.
    Budget {
        /// Whose.
        id: BudgetId,
        /// What is used of it.
        used: Used,
    },
}

/// The sums over all books.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sums {
    /// How many entries there are.
    pub entries: u64,
    /// How many owners.
    pub owners: u64,
    /// How many payees.
    pub payees: u64,
    /// What all owners can spend.
    pub available: Change,
    /// What is held of all owners.
    pub held: Change,
    /// What is in escrow.
    pub escrowed: Change,
    /// What all payees have earned.
    pub paid: Change,
    /// `system:revenue`.
    pub revenue: Change,
    /// `treasury:usdc_received`.
    pub treasury: Change,
}

impl Sums {
    /// Of no entries.
    pub const NOTHING: Self = Self {
        entries: 0,
        owners: 0,
        payees: 0,
        available: Change::ZERO,
        held: Change::ZERO,
        escrowed: Change::ZERO,
        paid: Change::ZERO,
        revenue: Change::ZERO,
        treasury: Change::ZERO,
    };

    /// Adds what one entry changes.
    ///
    /// # Errors
    /// If a sum leaves the range of amounts, or the entry does not balance.
    pub fn add(&mut self, record: &Record) -> Result<(), Overflow> {
        let postings = record.event.postings().map_err(|_| Overflow)?;
        for posting in postings.iter() {
            let sum = match posting.place {
                Place::Available => &mut self.available,
                Place::Held => &mut self.held,
                Place::Escrow => &mut self.escrowed,
                Place::Payee => &mut self.paid,
                Place::Revenue => &mut self.revenue,
                Place::Treasury => &mut self.treasury,
            };
            *sum = sum.checked_add(posting.change)?;
        }
        self.entries += 1;
        self.owners += u64::from(record.owner.available.number == 1);
        self.payees += u64::from(record.payee.is_some_and(|link| link.number == 1));
        Ok(())
    }
}

impl<D: Disk> Ledger<OnDisk<D>> {
    /// How all of them stand, in order.
    #[must_use]
    pub fn stands(&self) -> Vec<Stands> {
        let mut owners: Vec<_> = self.book.owners.iter().collect();
        let mut payees: Vec<_> = self.book.payees.iter().collect();
        let mut budgets: Vec<_> = self.book.budgets.iter().collect();
        owners.sort_unstable_by_key(|(name, _)| *name);
        payees.sort_unstable_by_key(|(name, _)| *name);
        budgets.sort_unstable_by_key(|(name, _)| *name);
        let owners = owners.into_iter().filter_map(|(name, owner)| {
            let crate::book::Owner { available, held, open_holds, entries, .. } = *owner;
            Some(Stands::Owner { id: OwnerId::from_bytes(name).ok()?, available, held, open_holds, entries })
        });
        let payees = payees.into_iter().filter_map(|(name, payee)| {
            let crate::book::Payee { balance, entries, .. } = *payee;
            Some(Stands::Payee { id: PayeeId::from_bytes(name).ok()?, balance, entries })
        });
        let budgets = budgets.into_iter().filter(|(_, used)| !used.today.is_zero() || !used.total.is_zero());
        let budgets = budgets
            .filter_map(|(name, used)| Some(Stands::Budget { id: BudgetId::from_bytes(name).ok()?, used: *used }));
        owners.chain(payees).chain(budgets).collect()
    }

    /// The sums over the book, which holds so many entries.
    ///
    /// # Errors
    /// If a sum leaves the range of amounts.
    pub fn sums(&self, entries: u64) -> Result<Sums, Overflow> {
        let crate::book::System { revenue, treasury, escrowed } = self.book.system;
        let (owners, payees) = (self.book.owners.len() as u64, self.book.payees.len() as u64);
        let mut sums = Sums { entries, owners, payees, revenue, treasury, escrowed, ..Sums::NOTHING };
        for (_, owner) in self.book.owners.iter() {
            sums.available = sums.available.checked_add(Change::plus(owner.available))?;
            sums.held = sums.held.checked_add(Change::plus(owner.held))?;
        }
        for (_, payee) in self.book.payees.iter() {
            sums.paid = sums.paid.checked_add(Change::plus(payee.balance))?;
        }
        Ok(sums)
    }
}

/// Something that the peer has not acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// Of which part of its charge.
    pub part: OwedPart,
    /// The charge's owner.
    pub owner: OwnerId,
    /// What it comes to.
    pub cost: CreditUnit,
    /// Since when.
    pub at: Timestamp,
    /// By which entry.
    pub offset: u64,
}

/// What the peer is owed by all entries so far.
#[derive(Debug, Clone, Default)]
pub struct Owing {
    sums: HashMap<ChargeId, Sum>,
    /// What is not acknowledged, by charge.
    pub due: BTreeMap<ChargeId, Vec<Due>>,
    /// Charges that the peer could not be told of.
    pub given_up: BTreeSet<ChargeId>,
}

impl Owing {
    /// Adds what one entry means.
    ///
    /// # Errors
    /// If a sum leaves the range of amounts.
    pub fn add(&mut self, record: &Record) -> Result<(), Overflow> {
        let (Event::Charge { id, owner, event }, crate::LifeState::Charge(state)) = (&record.event, record.state)
        else {
            return Ok(());
        };
        let (duty, sum) = owed(self.sums.get(id).copied(), event, state)?;
        match sum {
            Some(sum) => drop(self.sums.insert(*id, sum)),
            None => drop(self.sums.remove(id)),
        }
        match duty {
            Duty::Nothing => {}
            Duty::Tell { part, cost, .. } => {
                let due = Due { part, owner: *owner, cost, at: record.at, offset: record.offset };
                self.due.entry(*id).or_default().push(due);
            }
            Duty::Settled | Duty::Cancelled => {
                self.due.remove(id);
                self.given_up.remove(id);
            }
            Duty::GivenUp => {
                self.due.remove(id);
                self.given_up.insert(*id);
            }
        }
        Ok(())
    }
}
