//! A part of the books, loaded for some requests: for an engine whose truth is a database that several nodes share.
//!
//! ```text
//!  requests ─▶ Wanted ─▶ loaded under locks ─▶ Part: decided in order ─▶ Decided ─▶ admitted in the same transaction
//! ```
//!
//! The rules are those of [`crate::Ledger`], word for word: here it stands over what was loaded instead of over the disk. Nothing
//! here waits, locks or knows a database.
//!
//! # Invariants
//! - All that is decided of one owner was loaded at one moment, with every life that the requests name whole.
//! - What was decided says what it was decided on (the last entry of each owner, payee, budget and life), so that whoever
//!   admits it can refuse it if that has moved on.

mod loaded;
mod wanted;

pub use loaded::{BudgetRow, OwnerRow, PayeeRow, Rows};
pub use wanted::Wanted;

use crate::archive::{Archive, charge_of};
use crate::book::{Book, Owner, Standing};
use crate::error::Refusal;
use crate::keys::KeyHash;
use crate::ledger::{Ledger, Limits};
use crate::query::View;
use crate::record::Record;
use crate::request::{Answer, Request};
use holdfast_domain::budget::Used;
use holdfast_domain::charge::Charge;
use holdfast_domain::delivery::{Duty, Sum, owed};
use holdfast_domain::escrow::Escrow;
use holdfast_domain::{BudgetId, Change, ChargeId, CreditUnit, EscrowId, Event, OwnerId, PayeeId, Timestamp};
use holdfast_journal::Location;
use loaded::{Loaded, Page};
use std::collections::{BTreeMap, BTreeSet};

/// A part of the books, on which requests can be decided.
pub struct Part {
    ledger: Ledger<Loaded>,
    page: Page,
    now: Timestamp,
    before: Known,
}

/// Where those whom an entry may move stood when they were loaded.
#[derive(Default)]
struct Known {
    owners: BTreeMap<OwnerId, u64>,
    payees: BTreeMap<PayeeId, u64>,
    budgets: BTreeMap<BudgetId, (u64, Used)>,
}

/// A life that entries can move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LifeId {
    /// A charge.
    Charge(ChargeId),
    /// An escrow.
    Escrow(EscrowId),
}

impl LifeId {
    /// The life that an event moves; a mint has none.
    #[must_use]
    pub const fn of(event: &Event) -> Option<Self> {
        match event {
            Event::Minted(_) => None,
            Event::Charge { id, .. } => Some(Self::Charge(*id)),
            Event::Escrow { id, .. } => Some(Self::Escrow(*id)),
        }
    }
}

/// An entry to be admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEntry {
    /// What it says.
    pub record: Record,
    /// Its bytes.
    pub body: Vec<u8>,
    /// How it leaves its life.
    pub life: Option<LifeAfter>,
    /// What the peer is to be told of it.
    pub tell: Option<Tell>,
}

/// How an entry leaves its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LifeAfter {
    /// Which life.
    pub id: LifeId,
    /// The open reservations of its owner that it adds: one, none, or one less.
    pub opens: i32,
    /// What it holds.
    pub held: CreditUnit,
    /// When its hold ends by itself; `None` if it has ended, and of an escrow, which does not.
    pub expires_at: Option<Timestamp>,
}

/// What the peer is to be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tell {
    /// Of which part of the charge.
    pub part: holdfast_domain::delivery::Part,
    /// What it comes to.
    pub cost: CreditUnit,
}

/// A budget that entries counted against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewBudget {
    /// Whose.
    pub id: BudgetId,
    /// What has been used of it now.
    pub used: Used,
    /// The last entry that counted against it when it was loaded; 0 if it is new.
    pub last: u64,
}

/// An owner whom entries moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MovedOwner {
    /// The last entry when the owner was loaded; 0 for a new one.
    pub seen: u64,
    /// How the owner stands after them.
    pub after: OwnerRow,
}

/// What was decided, to be admitted whole or not at all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decided {
    /// The entries, in order.
    pub entries: Vec<NewEntry>,
    /// Their owners.
    pub owners: Vec<MovedOwner>,
    /// The last entry of each of their payees when it was loaded; 0 for a new one.
    pub payees: Vec<(PayeeId, u64)>,
    /// The budgets that they counted against.
    pub budgets: Vec<NewBudget>,
}

impl Part {
    /// A part of the books from what was loaded.
    ///
    /// # Errors
    /// If what was loaded does not fit together.
    pub fn new(rows: Rows, limits: Limits) -> Result<Self, Refusal> {
        let mut book = Book::new();
        let mut before = Known::default();
        for owner in &rows.owners {
            book.last_at = book.last_at.max(owner.last_at);
            book.owners.find_or_insert(owner.id.as_bytes(), || owner.standing());
            before.owners.insert(owner.id, owner.last);
        }
        for payee in &rows.payees {
            book.payees.find_or_insert(payee.id.as_bytes(), || payee.standing());
            before.payees.insert(payee.id, payee.last);
        }
        for BudgetRow { id, used, last } in &rows.budgets {
            book.budgets.find_or_insert(id.as_bytes(), || *used);
            before.budgets.insert(*id, (*last, *used));
        }
        let page = Page::begin(rows.first_offset);
        let lives: BTreeSet<LifeId> = rows.lives.iter().filter_map(|record| LifeId::of(&record.event)).collect();
        let mut ends = BTreeMap::new();
        for record in &rows.lives {
            let end = LifeId::of(&record.event).map(|life| ends.entry(life).or_insert(record.offset));
            if let Some(end) = end {
                *end = record.offset.max(*end);
            }
        }
        let ledger = Ledger::over(Loaded::new(rows.lives, rows.keyed), book, limits);
        let mut part = Self { ledger, page, now: rows.now, before };
        for life in lives {
            part.open(life, Location::unpack(ends[&life]))?;
        }
        Ok(part)
    }

    /// Puts a loaded life into the book, or into the archive if it has ended.
    fn open(&mut self, life: LifeId, last: Location) -> Result<(), Refusal> {
        let Self { ledger, page, .. } = self;
        match life {
            LifeId::Charge(id) => {
                let Some((charge, first)) = ledger.archive.charge(id, last, page)? else { return Ok(()) };
                let key = KeyHash::of_charge(id);
                let row = ledger.book.owner_row(first.event.owner()).ok_or(Refusal::UnknownAccount)?;
                if let Charge::Held(_) = charge {
                    let budgeted = ledger.book.count_against(first.event.budgets(), first.at.day());
                    let open_holds = ledger.book.owners.row(row).open_holds;
                    ledger.book.put_charge(key, id, &charge, Standing { last, row, budgeted });
                    // It was among those counted already.
                    ledger.book.owners.row_mut(row).open_holds = open_holds;
                } else {
                    ledger.archive.note(key, last);
                }
            }
            LifeId::Escrow(id) => {
                let Some((escrow, first)) = ledger.archive.escrow(id, last, page)? else { return Ok(()) };
                let key = KeyHash::of_escrow(id);
                let row = ledger.book.owner_row(first.event.owner()).ok_or(Refusal::UnknownAccount)?;
                if let Escrow::Held(escrowed) = escrow {
                    let sum = &mut ledger.book.system.escrowed;
                    *sum = sum.checked_add(Change::plus(escrowed.amount))?;
                    ledger.book.put_escrow(key, id, &escrow, last, row);
                } else {
                    ledger.archive.note(key, last);
                }
            }
        }
        Ok(())
    }

    /// Decides one request, after those before it.
    pub fn decide(&mut self, request: &Request) -> Answer {
        self.ledger.decide(request, self.now, &mut self.page)
    }

    /// The rules over what was loaded, and what was written so far.
    pub(crate) const fn inside(&mut self) -> (&mut Ledger<Loaded>, &mut Page) {
        (&mut self.ledger, &mut self.page)
    }

    /// Looks at the part. Sums and lists over the whole book are not to be had here.
    pub fn look<T>(&self, look: impl FnOnce(&View<'_>) -> T) -> T {
        View::with(&self.ledger, &self.page, self.now, look)
    }

    /// What was decided.
    ///
    /// # Errors
    /// If it cannot be read back, which would be a fault of ours.
    pub fn decided(&self) -> Result<Decided, Refusal> {
        let mut decided = Decided::default();
        let (mut owners, mut payees) = (BTreeMap::new(), BTreeSet::new());
        for record in self.page.records()? {
            owners.insert(record.event.owner(), record.at);
            payees.extend(record.event.payee());
            decided.entries.push(self.entry(record)?);
        }
        let moved = owners.into_iter().map(|(id, last_at)| self.moved(id, last_at));
        decided.owners = moved.collect::<Result<_, _>>()?;
        let last_of = |payee: PayeeId| (payee, self.before.payees.get(&payee).copied().unwrap_or(0));
        decided.payees = payees.into_iter().map(last_of).collect();
        for (name, used) in self.ledger.book.budgets.iter() {
            let id = BudgetId::from_bytes(name).map_err(|error| Refusal::Unreadable(error.to_string()))?;
            let known = self.before.budgets.get(&id);
            if known.is_none_or(|(_, before)| before != used) {
                decided.budgets.push(NewBudget { id, used: *used, last: known.map_or(0, |(last, _)| *last) });
            }
        }
        decided.budgets.sort_unstable_by_key(|budget| budget.id);
        Ok(decided)
    }

    fn moved(&self, id: OwnerId, last_at: Timestamp) -> Result<MovedOwner, Refusal> {
        let seen = self.before.owners.get(&id).copied().unwrap_or(0);
        let Owner { available, held, open_holds, last, entries } =
            *self.ledger.book.owner(id).ok_or(Refusal::UnknownAccount)?;
        Ok(MovedOwner { seen, after: OwnerRow { id, available, held, open_holds, last, entries, last_at } })
    }

    fn entry(&self, record: Record) -> Result<NewEntry, Refusal> {
        let location = Location::unpack(record.offset);
        let archive = &self.ledger.archive;
        let corrupt = || Refusal::Unreadable(format!("entry {} does not follow from its life", record.offset));
        let (life, tell) = match &record.event {
            Event::Minted(_) => (None, None),
            Event::Charge { id, .. } => {
                let records = archive.life(location, &self.page)?;
                let (held, expires_at) = match charge_of(*id, &records)?.ok_or_else(corrupt)? {
                    Charge::Held(hold) => (hold.held, Some(hold.expires_at)),
                    Charge::Committed(_)
                    | Charge::Acked(_)
                    | Charge::Failed(_)
                    | Charge::Voided(_)
                    | Charge::Released(_)
                    | Charge::AutoReleased(_) => (CreditUnit::ZERO, None),
                };
                let was_open = records.get(1).is_some_and(|previous| !previous.state.is_closed());
                let opens = i32::from(expires_at.is_some()) - i32::from(was_open);
                (Some(LifeAfter { id: LifeId::Charge(*id), opens, held, expires_at }), tell(&records)?)
            }
            Event::Escrow { id, .. } => {
                let (escrow, _) = archive.escrow(*id, location, &self.page)?.ok_or_else(corrupt)?;
                let held = match escrow {
                    Escrow::Held(escrowed) => escrowed.amount,
                    Escrow::Settled(_) | Escrow::Refunded(_) | Escrow::Partial(_) => CreditUnit::ZERO,
                };
                (Some(LifeAfter { id: LifeId::Escrow(*id), opens: 0, held, expires_at: None }), None)
            }
        };
        let body = self.page.body(record.offset).ok_or_else(corrupt)?.to_vec();
        Ok(NewEntry { record, body, life, tell })
    }
}

/// What the newest of these records means for what the peer is owed: worked out from all that its charge went through.
fn tell(records: &[Record]) -> Result<Option<Tell>, Refusal> {
    let (mut sum, mut duty): (Option<Sum>, Duty) = (None, Duty::Nothing);
    for record in records.iter().rev() {
        let (Event::Charge { event, .. }, crate::LifeState::Charge(state)) = (&record.event, record.state) else {
            continue;
        };
        (duty, sum) = owed(sum, event, state)?;
    }
    Ok(match duty {
        Duty::Tell { part, cost, .. } => Some(Tell { part, cost }),
        Duty::Nothing | Duty::Settled | Duty::GivenUp | Duty::Cancelled => None,
    })
}
