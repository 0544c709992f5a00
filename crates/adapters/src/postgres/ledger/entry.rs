//! What was decided, in the database's own types: see `sql/0010_ledger_admit.sql`, `sql/0016_ledger_rounds.sql` and
//! `sql/0019_ledger_at_once.sql`.

use super::Settles;
use super::place::Place as RowPlace;
use super::rows::{End, First, Seen};
use crate::obligations::{late_id, line, same};
use holdfast_domain::delivery::{Obligation, Part};
use holdfast_domain::{ChargeId, Event, ObligationId, Place, Postings};
use holdfast_engine::moving::Due;
use holdfast_engine::part::{Decided, LifeId, NewBudget, NewEntry};
use holdfast_journal::JournalId;
use postgres_types::ToSql;
use std::collections::{BTreeMap, HashMap};

/// Every so many of an owner's entries there is a milestone, where a walk along the owner's history can begin.
const MILESTONE_EVERY: u64 = 256;
/// The first link of every owner's chain.
pub(super) const NO_CHAIN: [u8; 32] = [0; 32];

#[derive(Debug, ToSql)]
#[postgres(name = "ledger_new_entry")]
pub(super) struct EntryRow {
    entry_offset: i64,
    at: i64,
    kind: &'static str,
    owner: String,
    life: Option<String>,
    key: Option<String>,
    payee: Option<String>,
    available: i64,
    held: i64,
    escrow: i64,
    paid: i64,
    revenue: i64,
    treasury: i64,
    body: Vec<u8>,
    chain: Vec<u8>,
    previous: i64,
}

#[derive(Debug, ToSql)]
#[postgres(name = "ledger_milestone")]
pub(super) struct MilestoneRow {
    owner: String,
    entry_offset: i64,
    at: i64,
}

#[derive(Debug, ToSql)]
#[postgres(name = "ledger_moved_owner")]
pub(super) struct OwnerRow {
    owner: String,
    place: Option<RowPlace>,
    seen: i64,
    available: i64,
    held: i64,
    escrow: i64,
    paid: i64,
    revenue: i64,
    treasury: i64,
    opens: i32,
    entries: i64,
    last_offset: i64,
    last_at: i64,
    chain: Vec<u8>,
    fence: i64,
}

#[derive(Debug, ToSql)]
#[postgres(name = "ledger_new_life")]
pub(super) struct LifeRow {
    life: String,
    seen: i64,
    owner: String,
    state: &'static str,
    held: i64,
    expires_at: Option<i64>,
    budgets: Vec<String>,
    records: Vec<i64>,
}

#[derive(Debug, ToSql)]
#[postgres(name = "ledger_moved_life")]
pub(super) struct MovedLifeRow {
    life: String,
    place: Option<RowPlace>,
    seen: i64,
    owner: String,
    state: &'static str,
    held: i64,
    expires_at: Option<i64>,
    records: Vec<i64>,
}

#[derive(Debug, ToSql)]
#[postgres(name = "ledger_new_payee")]
pub(super) struct PayeeRow {
    payee: String,
    seen: i64,
    paid: i64,
    entries: i64,
    last_offset: i64,
}

#[derive(Debug, ToSql)]
#[postgres(name = "ledger_new_budget")]
pub(super) struct BudgetRow {
    budget: String,
    seen: i64,
    day: i64,
    today: i64,
    total: i64,
    last_offset: i64,
}

#[derive(Debug, ToSql)]
#[postgres(name = "ledger_obligation")]
pub(super) struct ObligationRow {
    charge: String,
    owner: String,
    idempotency_key: String,
    payload: String,
    made_at: i64,
}

/// All that is admitted together, each list by name, and the entries by their keys.
#[derive(Default)]
pub(super) struct Admission {
    first: Option<First>,
    pub(super) entries: Vec<EntryRow>,
    pub(super) owners: Vec<OwnerRow>,
    pub(super) milestones: Vec<MilestoneRow>,
    pub(super) begun: Vec<LifeRow>,
    pub(super) moved: Vec<MovedLifeRow>,
    pub(super) payees: Vec<PayeeRow>,
    pub(super) budgets: Vec<BudgetRow>,
    pub(super) obligations: Vec<ObligationRow>,
}

/// Something that was decided and cannot be said to the database: a fault of ours.
#[derive(Debug)]
pub(super) struct NotSayable;

/// Whose books these are, and whether there is a peer.
#[derive(Clone, Copy)]
pub(super) struct Ledger {
    pub(super) id: [u8; 16],
    pub(super) settles: Settles,
}

/// What a batch's entries together do, by name.
struct Sums {
    owners: BTreeMap<String, OwnerRow>,
    lives: BTreeMap<String, LifeRow>,
    payees: BTreeMap<String, PayeeRow>,
}

impl Admission {
    /// What is to be admitted, with what is owed by it if there is a peer, on what was seen.
    pub(super) fn of(decided: &Decided, seen: &Seen, ledger: Ledger) -> Result<Self, NotSayable> {
        let mut sums = Sums::begin(decided, &seen.owners)?;
        let mut admission = Self::default();
        for entry in &decided.entries {
            let row = sums.add(entry)?;
            admission.milestones.extend(MilestoneRow::at(entry, &row));
            admission.entries.push(row);
            if let (Settles::Yes, Some(obligation)) = (ledger.settles, owed(entry, ledger.id)) {
                admission.obligations.push(ObligationRow::of(&obligation)?);
            }
        }
        let last = decided.entries.last().map_or(0, |entry| entry.record.offset);
        for budget in &decided.budgets {
            admission.budgets.push(BudgetRow::of(budget, last)?);
        }
        let first = admission.entries.first();
        admission.first =
            first.map(|first| First { offset: first.entry_offset.cast_unsigned(), chain: first.chain.clone() });
        // Whoever writes two keys that others write too does it in the same order.
        admission.entries.sort_by(|one, other| (one.key.is_none(), &one.key).cmp(&(other.key.is_none(), &other.key)));
        admission.owners = sums.owners.into_values().collect();
        let (begun, moved): (Vec<LifeRow>, Vec<LifeRow>) = sums.lives.into_values().partition(|life| life.seen == 0);
        admission.begun = begun;
        admission.moved = moved.into_iter().map(|life| life.moved(&seen.lives)).collect();
        admission.payees = sums.payees.into_values().collect();
        Ok(admission)
    }

    /// It, and how it begins, if there is anything in it.
    pub(super) fn begun(mut self) -> Option<(Self, First)> {
        let first = self.first.take()?;
        Some((self, first))
    }

    /// The values of `ledger_admit`, in order.
    pub(super) fn values<'a>(&'a self, decided_at: &'a i64) -> [&'a (dyn ToSql + Sync); 9] {
        let Self { entries, owners, milestones, begun, moved, payees, budgets, obligations, .. } = self;
        [decided_at, entries, owners, milestones, begun, moved, payees, budgets, obligations]
    }

    /// An owner who was there before it: what of it is in doubt can be kept from being done later.
    pub(super) fn fence(&self) -> Option<&str> {
        self.owners.iter().find(|owner| owner.place.is_some()).map(|owner| owner.owner.as_str())
    }

    /// Where things are once it was admitted at these places.
    pub(super) fn admitted(self, places: Places) -> Seen {
        let Places { owners, begun, moved } = places;
        let (there, new): (Vec<OwnerRow>, Vec<OwnerRow>) = self.owners.into_iter().partition(|row| row.seen > 0);
        let owners = there.into_iter().chain(new).zip(owners.unwrap_or_default());
        let owners = owners.map(|(row, place)| (row.owner, End { place, chain: row.chain, fence: row.fence }));
        let begun = self.begun.into_iter().map(|row| row.life).zip(begun.unwrap_or_default());
        let moved = self.moved.into_iter().map(|row| row.life).zip(moved.unwrap_or_default());
        Seen { owners: owners.collect(), lives: begun.chain(moved).collect() }
    }
}

/// Where the rows of what was admitted are: those of owners who were there before those of new ones.
pub(super) struct Places {
    pub(super) owners: Option<Vec<RowPlace>>,
    pub(super) begun: Option<Vec<RowPlace>>,
    pub(super) moved: Option<Vec<RowPlace>>,
}

impl LifeRow {
    fn moved(self, places: &HashMap<String, RowPlace>) -> MovedLifeRow {
        let Self { life, seen, owner, state, held, expires_at, records, .. } = self;
        MovedLifeRow { place: places.get(&life).copied(), life, seen, owner, state, held, expires_at, records }
    }
}

/// The next link of an owner's chain: a hash over the one before and the entry.
pub(super) fn link(before: &[u8], body: &[u8]) -> Vec<u8> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(before).update(body);
    hasher.finalize().as_bytes().to_vec()
}

fn signed(number: u64) -> Result<i64, NotSayable> {
    i64::try_from(number).map_err(|_| NotSayable)
}

fn add(sum: &mut i64, more: i64) -> Result<(), NotSayable> {
    *sum = sum.checked_add(more).ok_or(NotSayable)?;
    Ok(())
}

impl Sums {
    fn begin(decided: &Decided, ends: &HashMap<String, End>) -> Result<Self, NotSayable> {
        let mut sums = Self { owners: BTreeMap::new(), lives: BTreeMap::new(), payees: BTreeMap::new() };
        for owner in &decided.owners {
            let name = owner.after.id.to_string();
            let row = OwnerRow::nothing(name.clone(), signed(owner.seen)?, ends.get(&name));
            sums.owners.insert(name, row);
        }
        for (payee, last) in &decided.payees {
            let name = payee.to_string();
            let row = PayeeRow { payee: name.clone(), seen: signed(*last)?, paid: 0, entries: 0, last_offset: 0 };
            sums.payees.insert(name, row);
        }
        Ok(sums)
    }

    fn add(&mut self, entry: &NewEntry) -> Result<EntryRow, NotSayable> {
        let row = self.owners.get_mut(entry.record.event.owner().as_str()).ok_or(NotSayable)?;
        let chain = link(&row.chain, &entry.body);
        let postings = entry.record.event.postings().map_err(|_| NotSayable)?;
        let said = EntryRow::of(entry, &postings, chain)?;
        row.add(&said, entry.life.map_or(0, |life| life.opens))?;
        if let Some(payee) = &said.payee {
            let row = self.payees.get_mut(payee).ok_or(NotSayable)?;
            add(&mut row.paid, said.paid)?;
            (row.entries, row.last_offset) = (row.entries + 1, said.entry_offset);
        }
        if let Some(life) = &said.life {
            self.move_life(life, entry, said.entry_offset)?;
        }
        Ok(said)
    }

    fn move_life(&mut self, name: &str, entry: &NewEntry, offset: i64) -> Result<(), NotSayable> {
        let after = entry.life.ok_or(NotSayable)?;
        let record = &entry.record;
        if !self.lives.contains_key(name) {
            let seen = record.life_previous.map_or(Ok(0), |place| signed(place.pack()))?;
            let budgets = record.event.budgets().iter().map(|budget| budget.id.to_string()).collect();
            let (life, owner) = (name.to_owned(), record.event.owner().to_string());
            let row = LifeRow { life, seen, owner, state: "", held: 0, expires_at: None, budgets, records: Vec::new() };
            self.lives.insert(name.to_owned(), row);
        }
        let row = self.lives.get_mut(name).ok_or(NotSayable)?;
        row.state = record.state.name();
        row.held = signed(after.held.units())?;
        row.expires_at = after.expires_at.map(|at| signed(at.millis())).transpose()?;
        row.records.push(offset);
        Ok(())
    }
}

impl EntryRow {
    fn of(entry: &NewEntry, postings: &Postings, chain: Vec<u8>) -> Result<Self, NotSayable> {
        let NewEntry { record, body, life, .. } = entry;
        let change = |place| postings.at(place).units();
        Ok(Self {
            entry_offset: signed(record.offset)?,
            at: signed(record.at.millis())?,
            kind: record.event.kind().name(),
            owner: record.event.owner().to_string(),
            life: life.map(|life| life_name(life.id)),
            key: record.key.map(|key| key.to_string()),
            payee: record.event.payee().map(|payee| payee.to_string()),
            available: change(Place::Available),
            held: change(Place::Held),
            escrow: change(Place::Escrow),
            paid: change(Place::Payee),
            revenue: change(Place::Revenue),
            treasury: change(Place::Treasury),
            body: body.clone(),
            chain,
            previous: signed(record.owner.available.previous)?,
        })
    }
}

impl MilestoneRow {
    /// The milestone at an entry, if there is one.
    fn at(entry: &NewEntry, row: &EntryRow) -> Option<Self> {
        let is_one = entry.record.owner.available.number.is_multiple_of(MILESTONE_EVERY);
        is_one.then(|| Self { owner: row.owner.clone(), entry_offset: row.entry_offset, at: row.at })
    }
}

impl OwnerRow {
    fn nothing(owner: String, seen: i64, end: Option<&End>) -> Self {
        let chain = end.map_or_else(|| NO_CHAIN.to_vec(), |end| end.chain.clone());
        let (place, fence) = (end.map(|end| end.place), end.map_or(0, |end| end.fence));
        Self {
            owner,
            place,
            seen,
            available: 0,
            held: 0,
            escrow: 0,
            paid: 0,
            revenue: 0,
            treasury: 0,
            opens: 0,
            entries: 0,
            last_offset: 0,
            last_at: 0,
            chain,
            fence,
        }
    }

    fn add(&mut self, entry: &EntryRow, opens: i32) -> Result<(), NotSayable> {
        add(&mut self.available, entry.available)?;
        add(&mut self.held, entry.held)?;
        add(&mut self.escrow, entry.escrow)?;
        add(&mut self.paid, entry.paid)?;
        add(&mut self.revenue, entry.revenue)?;
        add(&mut self.treasury, entry.treasury)?;
        self.opens += opens;
        self.entries += 1;
        (self.last_offset, self.last_at) = (entry.entry_offset, entry.at);
        self.chain.clone_from(&entry.chain);
        Ok(())
    }
}

impl BudgetRow {
    fn of(budget: &NewBudget, last: u64) -> Result<Self, NotSayable> {
        Ok(Self {
            budget: budget.id.to_string(),
            seen: signed(budget.last)?,
            day: signed(budget.used.day.number())?,
            today: signed(budget.used.today.units())?,
            total: signed(budget.used.total.units())?,
            last_offset: signed(last)?,
        })
    }
}

/// The name of a life in the database.
pub(super) fn life_name(life: LifeId) -> String {
    match life {
        LifeId::Charge(id) => format!("c:{id}"),
        LifeId::Escrow(id) => format!("e:{id}"),
    }
}

impl ObligationRow {
    /// What is due by an entry of `books`.
    pub(super) fn due(charge: ChargeId, due: &Due, books: JournalId) -> Result<Self, NotSayable> {
        let id = part_id(due.part, charge, due.offset, books.0);
        Self::of(&Obligation { id, charge, owner: due.owner, cost: due.cost, created_at: due.at })
    }

    fn of(obligation: &Obligation) -> Result<Self, NotSayable> {
        Ok(Self {
            charge: obligation.charge.to_string(),
            owner: obligation.owner.to_string(),
            idempotency_key: obligation.id.to_string(),
            payload: line::encode(obligation),
            made_at: signed(obligation.created_at.millis())?,
        })
    }
}

/// What the peer is to be told of an entry.
fn owed(entry: &NewEntry, ledger: [u8; 16]) -> Option<Obligation> {
    let tell = entry.tell?;
    let Event::Charge { id: charge, owner, .. } = entry.record.event else { return None };
    let id = part_id(tell.part, charge, entry.record.offset, ledger);
    Some(Obligation { id, charge, owner, cost: tell.cost, created_at: entry.record.at })
}

/// The id of a part of what the peer is told of a charge, by the entry at `offset`.
pub(super) fn part_id(part: Part, charge: ChargeId, offset: u64, ledger: [u8; 16]) -> ObligationId {
    match part {
        Part::First => same(charge),
        Part::Late => late_id(JournalId(ledger), charge, offset),
    }
}
