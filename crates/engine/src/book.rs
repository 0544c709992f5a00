//! The book: every balance, every open hold, and nothing else. It is the fold of the journal, kept in memory.
//!
//! # Invariants
//! - **No overdraft**: [`Book::prepare`] refuses an entry that would take a guarded account below zero. It is the only way
//!   to the [`Prepared`] that [`Book::post`] needs.
//! - **Conserved**: all balances sum to zero ([`Book::imbalance`]).

use crate::error::Refusal;
use crate::expiry::{Expiries, Moment};
use crate::keys::KeyHash;
use crate::open::{FrozenOpen, Open};
use crate::record::{Link, OwnerLink, Record};
use crate::table::{FrozenTable, Row, Table};
use holdfast_domain::budget::{BUDGETS_MAX, Used};
use holdfast_domain::charge::{Charge, Hold};
use holdfast_domain::escrow::{Escrow, Escrowed};
use holdfast_domain::{
    Budget, BudgetId, Change, ChargeId, CreditUnit, Day, EscrowId, Event, Guard, Overflow, OwnerId, PayeeId, Place,
    Postings, Timestamp,
};
use holdfast_journal::Location;

/// An owner's balances, and the end of the owner's history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) available: CreditUnit,
    pub(crate) held: CreditUnit,
    /// The offset of the last entry in the history.
    pub(crate) last: u64,
    /// How many entries the history has.
    pub(crate) entries: u64,
    pub(crate) open_holds: u32,
}

impl Owner {
    const NEW: Self = Self { available: CreditUnit::ZERO, held: CreditUnit::ZERO, last: 0, entries: 0, open_holds: 0 };
}

/// A payee's balance, and the end of the payee's history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Payee {
    pub(crate) balance: CreditUnit,
    pub(crate) last: u64,
    pub(crate) entries: u64,
}

impl Payee {
    const NEW: Self = Self { balance: CreditUnit::ZERO, last: 0, entries: 0 };
}

/// An open reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OpenCharge {
    pub(crate) id: ChargeId,
    pub(crate) hold: Hold,
    /// Its newest record.
    pub(crate) last: Location,
    /// Its owner's.
    pub(crate) row: Row,
    /// What it counts against.
    pub(crate) budgeted: Budgeted,
}

impl OpenCharge {
    /// A look at its beginning, middle and end, to have all of it at hand.
    pub(crate) const fn glance(&self) -> (CreditUnit, Row, Option<Row>, Timestamp) {
        (self.hold.held, self.row, self.budgeted.rows[0], self.hold.expires_at)
    }

    pub(crate) const fn standing(&self) -> Standing {
        Standing { last: self.last, row: self.row, budgeted: self.budgeted }
    }
}

impl OpenEscrow {
    pub(crate) const fn standing(&self) -> Standing {
        Standing { last: self.last, row: self.row, budgeted: Budgeted::NONE }
    }
}

/// What the book knows of a life besides its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Standing {
    /// Its newest record.
    pub(crate) last: Location,
    /// Its owner's.
    pub(crate) row: Row,
    /// What it counts against.
    pub(crate) budgeted: Budgeted,
}

/// The budgets that a charge counts against, and since when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Budgeted {
    rows: [Option<Row>; BUDGETS_MAX],
    pub(crate) reserved: Day,
}

impl Budgeted {
    pub(crate) const NONE: Self = Self { rows: [None; BUDGETS_MAX], reserved: Day::EPOCH };

    pub(crate) fn new(rows: impl Iterator<Item = Row>, reserved: Day) -> Self {
        let mut budgeted = Self { reserved, ..Self::NONE };
        for (free, row) in budgeted.rows.iter_mut().zip(rows) {
            *free = Some(row);
        }
        budgeted
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = Row> {
        self.rows.iter().flatten().copied()
    }
}

/// An open escrow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OpenEscrow {
    pub(crate) id: EscrowId,
    pub(crate) escrowed: Escrowed,
    /// Its newest record.
    pub(crate) last: Location,
    /// Its owner's.
    pub(crate) row: Row,
}

/// What budgets have used after an entry.
pub(crate) struct Spent(Vec<(Row, Used)>);

/// The balances of the books' outer ends, and of all escrows together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct System {
    pub(crate) revenue: Change,
    pub(crate) treasury: Change,
    pub(crate) escrowed: Change,
}

/// The book as it stood at one moment.
#[derive(Debug, Clone)]
pub(crate) struct FrozenBook {
    pub(crate) system: System,
    pub(crate) owners: FrozenTable<Owner>,
    pub(crate) payees: FrozenTable<Payee>,
    pub(crate) budgets: FrozenTable<Used>,
    pub(crate) charges: FrozenOpen<OpenCharge>,
    pub(crate) escrows: FrozenOpen<OpenEscrow>,
    pub(crate) last_at: Timestamp,
}

/// Every balance and every open hold.
pub(crate) struct Book {
    pub(crate) system: System,
    pub(crate) owners: Table<Owner>,
    pub(crate) payees: Table<Payee>,
    pub(crate) budgets: Table<Used>,
    pub(crate) charges: Open<OpenCharge>,
    pub(crate) escrows: Open<OpenEscrow>,
    expiries: Expiries,
    /// The moment of the newest entry: time does not run backwards in a journal.
    pub(crate) last_at: Timestamp,
}

/// The balances that one entry can touch.
#[derive(Debug, Clone, Copy)]
struct Balances {
    available: Change,
    held: Change,
    payee: Change,
    system: System,
}

impl Balances {
    /// The balance at a place that the entry posts to. An escrow's own floor is its life, which leaves with exactly what it
    /// held.
    const fn at(&mut self, place: Place) -> &mut Change {
        match place {
            Place::Available => &mut self.available,
            Place::Held => &mut self.held,
            Place::Escrow => &mut self.system.escrowed,
            Place::Payee => &mut self.payee,
            Place::Revenue => &mut self.system.revenue,
            Place::Treasury => &mut self.system.treasury,
        }
    }
}

/// The balances that an entry leads to, all of them allowed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prepared {
    /// The owner's, `None` for a new one.
    row: Option<Row>,
    available: CreditUnit,
    held: CreditUnit,
    previous: Owner,
    payee: Option<(CreditUnit, Payee)>,
    system: System,
}

impl Prepared {
    /// What a record says of the owner's history.
    pub(crate) fn owner_link(&self) -> OwnerLink {
        let Owner { last, entries, .. } = self.previous;
        OwnerLink { available: Link { balance: self.available, previous: last, number: entries + 1 }, held: self.held }
    }

    /// What a record says of the payee's history.
    pub(crate) fn payee_link(&self) -> Option<Link> {
        self.payee.map(|(balance, before)| Link { balance, previous: before.last, number: before.entries + 1 })
    }
}

impl Book {
    pub(crate) fn new() -> Self {
        Self {
            system: System { revenue: Change::ZERO, treasury: Change::ZERO, escrowed: Change::ZERO },
            owners: Table::new(),
            payees: Table::new(),
            budgets: Table::new(),
            charges: Open::new(),
            escrows: Open::new(),
            expiries: Expiries::new(),
            last_at: Timestamp::EPOCH,
        }
    }

    /// The row of an owner who has been credited before.
    pub(crate) fn owner_row(&self, owner: OwnerId) -> Option<Row> {
        self.owners.find(owner.as_bytes())
    }

    /// The name of the owner in a row.
    pub(crate) fn owner_name(&self, row: Row) -> OwnerId {
        OwnerId::from_bytes(self.owners.name(row)).expect("only owners' ids are names of rows")
    }

    pub(crate) fn owner(&self, owner: OwnerId) -> Option<&Owner> {
        self.owner_row(owner).map(|row| self.owners.row(row))
    }

    pub(crate) fn payee(&self, payee: PayeeId) -> Option<&Payee> {
        self.payees.find(payee.as_bytes()).map(|row| self.payees.row(row))
    }

    /// The balances that an event's postings lead to, or the refusal of the guard that they break. Changes nothing.
    /// `row` is its owner's, `None` for a new one.
    #[inline(always)]
    pub(crate) fn prepare(&self, event: &Event, postings: &Postings, row: Option<Row>) -> Result<Prepared, Refusal> {
        let previous = row.map_or(Owner::NEW, |row| *self.owners.row(row));
        let payee = event.payee().map(|payee| self.payee(payee).copied().unwrap_or(Payee::NEW));
        let mut before = Balances {
            available: Change::plus(previous.available),
            held: Change::plus(previous.held),
            payee: payee.map_or(Change::ZERO, |payee| Change::plus(payee.balance)),
            system: self.system,
        };
        let mut after = before;
        for posting in postings.iter() {
            let balance = after.at(posting.place);
            *balance = balance.checked_add(posting.change)?;
        }
        for Guard::Floor(place) in postings.floors() {
            let left = *after.at(place);
            if left < Change::ZERO {
                let available = before.at(place).amount()?;
                let missing = CreditUnit::new(left.units().unsigned_abs())?;
                return Err(Refusal::InsufficientBalance { available, required: available.checked_add(missing)? });
            }
        }
        Ok(Prepared {
            row,
            available: after.available.amount()?,
            held: after.held.amount()?,
            previous,
            payee: payee.map(|before| Ok::<_, Overflow>((after.payee.amount()?, before))).transpose()?,
            system: after.system,
        })
    }

    /// Takes over the balances of an event's entry that was prepared against this very book, with nothing posted in between.
    /// Gives the owner's row.
    pub(crate) fn post(&mut self, prepared: &Prepared, event: &Event, offset: u64, at: Timestamp) -> Row {
        let Prepared { row, available, held, payee, system, .. } = *prepared;
        let row = row.unwrap_or_else(|| self.owners.find_or_insert(event.owner().as_bytes(), || Owner::NEW));
        let owner = self.owners.row_mut(row);
        (owner.available, owner.held, owner.last) = (available, held, offset);
        owner.entries += 1;
        if let Some((payee, (balance, _))) = event.payee().zip(payee) {
            let row = self.payees.find_or_insert(payee.as_bytes(), || Payee::NEW);
            let payee = self.payees.row_mut(row);
            (payee.balance, payee.last) = (balance, offset);
            payee.entries += 1;
        }
        self.system = system;
        self.last_at = at;
        row
    }

    /// What a budget has used.
    pub(crate) fn used(&self, budget: BudgetId) -> Used {
        self.budgets.find(budget.as_bytes()).map_or(Used::NOTHING, |row| *self.budgets.row(row))
    }

    /// Refuses `amount` more if one of the budgets does not admit it.
    pub(crate) fn check_budgets(&self, budgets: &[Budget], amount: CreditUnit, day: Day) -> Result<(), Refusal> {
        let admits = |budget: &Budget| self.used(budget.id).admits(budget, amount, day);
        let refused = |over| Refusal::BudgetExceeded { over: Box::new(over), required: amount };
        budgets.iter().try_for_each(admits).map_err(refused)
    }

    /// The budgets that an older charge, reserved on `day`, counts against.
    pub(crate) fn known_budgets(&self, budgets: &[Budget], day: Day) -> Budgeted {
        Budgeted::new(budgets.iter().filter_map(|budget| self.budgets.find(budget.id.as_bytes())), day)
    }

    /// The budgets that a charge reserved on `day` counts against from now on.
    pub(crate) fn count_against(&mut self, budgets: &[Budget], day: Day) -> Budgeted {
        let row = |budget: &Budget| self.budgets.find_or_insert(budget.id.as_bytes(), || Used::NOTHING);
        Budgeted::new(budgets.iter().map(row), day)
    }

    /// What the budgets have used after an entry of `day` that changes what the owner can spend by `available`.
    pub(crate) fn spend(&self, budgeted: &Budgeted, available: Change, day: Day) -> Result<Spent, Overflow> {
        if available == Change::ZERO {
            return Ok(Spent(Vec::new()));
        }
        let after = |row| Ok((row, self.budgets.row(row).after(available, budgeted.reserved, day)?));
        budgeted.rows().map(after).collect::<Result<_, _>>().map(Spent)
    }

    /// Takes over what [`Book::spend`] has worked out.
    pub(crate) fn post_spent(&mut self, spent: &Spent) {
        for (row, used) in &spent.0 {
            *self.budgets.row_mut(*row) = *used;
        }
    }

    /// Puts a charge in its new state: open charges are kept here, closed ones are on the disk.
    pub(crate) fn put_charge(&mut self, key: KeyHash, id: ChargeId, charge: &Charge, standing: Standing) {
        let Standing { last, row, budgeted } = standing;
        let ended_at = |open: &OpenCharge| open.hold.expires_at;
        let (ended_at, ends_at) = match charge {
            Charge::Held(hold) => {
                let open = OpenCharge { id, hold: *hold, last, row, budgeted };
                (self.charges.put(key, open, ended_at), Some(hold.expires_at))
            }
            Charge::Committed(_)
            | Charge::Acked(_)
            | Charge::Failed(_)
            | Charge::Voided(_)
            | Charge::Released(_)
            | Charge::AutoReleased(_) => (self.charges.remove(key, ended_at), None),
        };
        if ends_at == ended_at {
            return;
        }
        if let Some(ends_at) = ends_at {
            self.expiries.insert((ends_at, key), |moment| is_open(&self.charges, moment));
        }
        match (ended_at, ends_at) {
            (None, Some(_)) => self.owners.row_mut(row).open_holds += 1,
            (Some(_), None) => self.owners.row_mut(row).open_holds -= 1,
            (None, None) | (Some(_), Some(_)) => {}
        }
    }

    /// Puts an escrow in its new state.
    pub(crate) fn put_escrow(&mut self, key: KeyHash, id: EscrowId, escrow: &Escrow, last: Location, row: Row) {
        match escrow {
            Escrow::Held(escrowed) => self.escrows.put(key, OpenEscrow { id, escrowed: *escrowed, last, row }, |_| ()),
            Escrow::Settled(_) | Escrow::Refunded(_) | Escrow::Partial(_) => self.escrows.remove(key, |_| ()),
        };
    }

    /// Takes out the moments of holds whose time has come, oldest first. [`Book::put_back`] those that stay open.
    pub(crate) fn take_due(&mut self, now: Timestamp, at_most: usize) -> Vec<Moment> {
        self.expiries.take_due(now, at_most, |moment| is_open(&self.charges, moment))
    }

    /// Puts back a moment that was taken out, if its hold is still open.
    pub(crate) fn put_back(&mut self, moment: Moment) {
        if is_open(&self.charges, &moment) {
            self.expiries.insert(moment, |moment| is_open(&self.charges, moment));
        }
    }

    /// Whether a hold's time may have come; if not, none has.
    pub(crate) fn may_be_due(&self, now: Timestamp) -> bool {
        self.expiries.may_be_due(now)
    }

    /// When the next hold's time comes. Looks at all of them.
    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        self.expiries.first(|moment| is_open(&self.charges, moment)).map(|(ends_at, _)| ends_at)
    }

    /// The sum of all balances: zero, unless the book is wrong.
    pub(crate) fn imbalance(&self) -> i128 {
        let owners =
            self.owners.iter().map(|(_, owner)| i128::from(owner.available.units()) + i128::from(owner.held.units()));
        let payees = self.payees.iter().map(|(_, payee)| i128::from(payee.balance.units()));
        let System { revenue, treasury, escrowed } = self.system;
        let system = [revenue, treasury, escrowed].map(|balance| i128::from(balance.units()));
        owners.chain(payees).chain(system).sum()
    }

    /// The difference between what owners' accounts say is held and what open holds add up to: zero, unless the book is
    /// wrong.
    pub(crate) fn hold_imbalance(&self) -> i128 {
        let held: i128 = self.owners.iter().map(|(_, owner)| i128::from(owner.held.units())).sum();
        let holds: i128 = self.charges.values().map(|open| i128::from(open.hold.held.units())).sum();
        let escrows: i128 = self.escrows.values().map(|open| i128::from(open.escrowed.amount.units())).sum();
        held - holds + i128::from(self.system.escrowed.units()) - escrows
    }

    pub(crate) fn freeze(&mut self) -> FrozenBook {
        FrozenBook {
            system: self.system,
            owners: self.owners.freeze(),
            payees: self.payees.freeze(),
            budgets: self.budgets.freeze(),
            charges: self.charges.freeze(),
            escrows: self.escrows.freeze(),
            last_at: self.last_at,
        }
    }

    /// Whether a record says of its owner and payee what the book says: the check that a replay makes of every entry.
    pub(crate) fn agrees(prepared: &Prepared, record: &Record) -> bool {
        prepared.owner_link() == record.owner && prepared.payee_link() == record.payee
    }
}

/// Whether a hold is open and ends at this moment.
fn is_open(charges: &Open<OpenCharge>, (ends_at, key): &Moment) -> bool {
    charges.get(*key).is_some_and(|open| open.hold.expires_at == *ends_at)
}
