//! The rows of `ledger_look` and `ledger_open`: see `sql/0009_ledger_open.sql` and `sql/0021_ledger_milestones.sql`.

use super::Time;
use super::entry::life_name;
use super::place::Place;
use holdfast_domain::budget::Used;
use holdfast_domain::{BudgetId, CreditUnit, Day, Event, Id, IdKind, OwnerId, Timestamp};
use holdfast_engine::Record;
use holdfast_engine::part::{BudgetRow, LifeId, OwnerRow, PayeeRow, Rows, Wanted};
use std::collections::{HashMap, HashSet};
use tokio_postgres::Row;

/// What is wanted, in the database's words.
pub(super) struct Names {
    pub(super) owners: Vec<String>,
    pub(super) lives: Vec<String>,
    pub(super) keys: Vec<String>,
    pub(super) payees: Vec<String>,
    pub(super) budgets: Vec<String>,
}

pub(super) fn names(wanted: &Wanted) -> Names {
    fn texts<K: IdKind>(ids: &[Id<K>]) -> Vec<String> {
        ids.iter().map(Id::to_string).collect()
    }
    let charges = wanted.charges.iter().map(|id| life_name(LifeId::Charge(*id)));
    let escrows = wanted.escrows.iter().map(|id| life_name(LifeId::Escrow(*id)));
    Names {
        owners: texts(&wanted.owners),
        lives: charges.chain(escrows).collect(),
        keys: texts(&wanted.keys),
        payees: texts(&wanted.payees),
        budgets: texts(&wanted.budgets),
    }
}

/// What was opened.
pub(super) struct Opened {
    pub(super) rows: Rows,
    /// Where it is.
    pub(super) seen: Seen,
    /// The moment, by the database.
    pub(super) moment: Timestamp,
    /// The first entries that are there of those that were in doubt, or others in their place.
    pub(super) done: Vec<First>,
}

/// Where rows are, by name.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Owners, and how they end.
    pub(super) owners: HashMap<String, End>,
    pub(super) lives: HashMap<String, Place>,
}

/// The first entry of a batch: where it is, and how its owner's chain goes on by it.
///
/// Where it is does not say whose it is: a database that crashed gives the offsets of batches that were not committed again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct First {
    pub(super) offset: u64,
    pub(super) chain: Vec<u8>,
}

/// Where an owner's row is, and how the owner's history ends.
#[derive(Debug, Clone)]
pub(super) struct End {
    pub(super) place: Place,
    pub(super) chain: Vec<u8>,
    /// How often something in doubt was found not to have been done.
    pub(super) fence: i64,
}

impl Opened {
    /// Nothing yet, to be written from an offset on.
    pub(super) fn nothing(first_offset: u64, moment: Timestamp) -> Self {
        let rows = Rows {
            owners: Vec::new(),
            payees: Vec::new(),
            budgets: Vec::new(),
            lives: Vec::new(),
            keyed: Vec::new(),
            now: moment,
            first_offset,
        };
        Self { rows, seen: Seen::default(), moment, done: Vec::new() }
    }

    /// What the rows say; `None` if they are not such rows.
    pub(super) fn read(rows: &[Row], time: &Time) -> Option<Self> {
        Self::nothing(0, Timestamp::EPOCH).and(rows, time)
    }

    /// What the rows say as well.
    pub(super) fn and(mut self, rows: &[Row], time: &Time) -> Option<Self> {
        for row in rows {
            self.add(row)?;
        }
        self.moment = self.rows.now;
        self.rows.now = time.given().unwrap_or(self.rows.now);
        Some(self)
    }

    /// Whether what is written goes after all that was there.
    pub(super) fn is_after(&self) -> bool {
        let Rows { owners, payees, budgets, first_offset, .. } = &self.rows;
        let lasts = owners.iter().map(|owner| owner.last).chain(payees.iter().map(|payee| payee.last));
        lasts.chain(budgets.iter().map(|budget| budget.last)).all(|last| last < *first_offset)
    }

    /// Whether the owner and the budgets of every life came with it. A life that was made while the locks were waited for came
    /// without.
    pub(super) fn is_whole(&self) -> bool {
        let Rows { owners, budgets, lives, .. } = &self.rows;
        if lives.is_empty() {
            return true;
        }
        let owners: HashSet<OwnerId> = owners.iter().map(|row| row.id).collect();
        let budgets: HashSet<BudgetId> = budgets.iter().map(|row| row.id).collect();
        let has_all = |event: &Event| event.budgets().iter().all(|budget| budgets.contains(&budget.id));
        lives.iter().all(|record| owners.contains(&record.event.owner()) && has_all(&record.event))
    }

    fn add(&mut self, row: &Row) -> Option<()> {
        let (what, name): (&str, &str) = (row.try_get(0).ok()?, row.try_get(1).ok()?);
        let numbers: Vec<i64> = row.try_get(2).ok()?;
        let numbers: Vec<u64> = numbers.into_iter().map(u64::try_from).collect::<Result<_, _>>().ok()?;
        let body: Option<&[u8]> = row.try_get(3).ok()?;
        let rows = &mut self.rows;
        match (what, numbers.as_slice()) {
            ("owner", [available, held, open_holds, last, entries, last_at, fence]) => {
                let (place, chain, fence) = (row.try_get(4).ok()?, body?.to_vec(), fence.cast_signed());
                self.seen.owners.insert(name.to_owned(), End { place, chain, fence });
                rows.owners.push(OwnerRow {
                    id: name.parse().ok()?,
                    available: CreditUnit::new(*available).ok()?,
                    held: CreditUnit::new(*held).ok()?,
                    open_holds: u32::try_from(*open_holds).ok()?,
                    last: *last,
                    entries: *entries,
                    last_at: Timestamp::from_millis(*last_at),
                });
            }
            ("payee", [balance, last, entries]) => {
                let (id, balance) = (name.parse().ok()?, CreditUnit::new(*balance).ok()?);
                rows.payees.push(PayeeRow { id, balance, last: *last, entries: *entries });
            }
            ("budget", [day, today, total, last]) => {
                let (today, total) = (CreditUnit::new(*today).ok()?, CreditUnit::new(*total).ok()?);
                let used = Used { day: Day::from_number(*day), today, total };
                rows.budgets.push(BudgetRow { id: name.parse().ok()?, used, last: *last });
            }
            ("life", [_]) => {
                self.seen.lives.insert(name.to_owned(), row.try_get(4).ok()?);
                rows.lives.push(Record::decode(body?)?);
            }
            ("key", [_]) => rows.keyed.push(Record::decode(body?)?),
            ("moment", [moment]) => rows.now = Timestamp::from_millis(*moment),
            ("block", [first, moment]) => (rows.first_offset, rows.now) = (*first, Timestamp::from_millis(*moment)),
            ("done", [offset]) => self.done.push(First { offset: *offset, chain: body?.to_vec() }),
            (_, _) => return None,
        }
        Some(())
    }
}
