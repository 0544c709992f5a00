//! What was decided, in the database's own types: see `sql/0010_ledger_admit.sql`.

use crate::obligations::{late_id, line, same};
use holdfast_domain::delivery::{Obligation, Part};
use holdfast_domain::{Event, Place};
use holdfast_engine::part::{Decided, LifeId, NewBudget, NewEntry};
use holdfast_journal::JournalId;
use postgres_types::ToSql;
use std::collections::HashMap;

/// The first link of every owner's chain.
const NO_CHAIN: [u8; 32] = [0; 32];

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
    owner_seen: i64,
    payee_seen: i64,
    life_previous: Option<i64>,
    opens: i32,
    state: &'static str,
    life_held: i64,
    expires_at: Option<i64>,
    budgets: Vec<String>,
}

#[derive(Debug, ToSql)]
#[postgres(name = "ledger_new_budget")]
pub(super) struct BudgetRow {
    budget: String,
    seen: i64,
    day: i64,
    today: i64,
    total: i64,
}

#[derive(Debug, ToSql)]
#[postgres(name = "ledger_obligation")]
pub(super) struct ObligationRow {
    charge: String,
    owner: String,
    idempotency_key: String,
    payload: String,
}

/// All that is admitted together.
pub(super) struct Admission {
    pub(super) entries: Vec<EntryRow>,
    pub(super) budgets: Vec<BudgetRow>,
    pub(super) obligations: Vec<ObligationRow>,
}

/// Something that was decided and cannot be said to the database: a fault of ours.
#[derive(Debug)]
pub(super) struct NotSayable;

impl Admission {
    /// What is to be admitted. `chains` are the ends of the owners' chains when they were loaded, and `ledger` is whose it is.
    pub(super) fn of(
        decided: &Decided,
        mut chains: HashMap<String, Vec<u8>>,
        ledger: [u8; 16],
    ) -> Result<Self, NotSayable> {
        let owners: HashMap<&str, u64> = decided.owners.iter().map(|(id, last)| (id.as_str(), *last)).collect();
        let payees: HashMap<&str, u64> = decided.payees.iter().map(|(id, last)| (id.as_str(), *last)).collect();
        let mut admission = Self { entries: Vec::new(), budgets: Vec::new(), obligations: Vec::new() };
        for entry in &decided.entries {
            let owner = entry.record.event.owner();
            let before = chains.get(owner.as_str()).map_or(NO_CHAIN.as_slice(), Vec::as_slice);
            let chain = link(before, &entry.body);
            let payee = entry.record.event.payee();
            let seen = Seen {
                owner: owners.get(owner.as_str()).copied().unwrap_or(0),
                payee: payee.and_then(|payee| payees.get(payee.as_str()).copied()).unwrap_or(0),
            };
            admission.entries.push(EntryRow::of(entry, chain.clone(), seen)?);
            chains.insert(owner.to_string(), chain);
            admission.obligations.extend(owed(entry, ledger));
        }
        for budget in &decided.budgets {
            admission.budgets.push(BudgetRow::of(budget)?);
        }
        Ok(admission)
    }
}

/// The next link of an owner's chain: a hash over the one before and the entry.
pub(super) fn link(before: &[u8], body: &[u8]) -> Vec<u8> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(before).update(body);
    hasher.finalize().as_bytes().to_vec()
}

struct Seen {
    owner: u64,
    payee: u64,
}

fn signed(number: u64) -> Result<i64, NotSayable> {
    i64::try_from(number).map_err(|_| NotSayable)
}

impl EntryRow {
    fn of(entry: &NewEntry, chain: Vec<u8>, seen: Seen) -> Result<Self, NotSayable> {
        let NewEntry { record, body, life, .. } = entry;
        let postings = record.event.postings().map_err(|_| NotSayable)?;
        let change = |place| postings.at(place).units();
        let (life_held, expires_at) = life.map_or((0, None), |life| (life.held.units(), life.expires_at));
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
            owner_seen: signed(seen.owner)?,
            payee_seen: signed(seen.payee)?,
            life_previous: record.life_previous.map(|place| signed(place.pack())).transpose()?,
            opens: life.map_or(0, |life| life.opens),
            state: record.state.name(),
            life_held: signed(life_held)?,
            expires_at: expires_at.map(|at| signed(at.millis())).transpose()?,
            budgets: record.event.budgets().iter().map(|budget| budget.id.to_string()).collect(),
        })
    }
}

impl BudgetRow {
    fn of(budget: &NewBudget) -> Result<Self, NotSayable> {
        Ok(Self {
            budget: budget.id.to_string(),
            seen: signed(budget.last)?,
            day: signed(budget.used.day.number())?,
            today: signed(budget.used.today.units())?,
            total: signed(budget.used.total.units())?,
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

/// What the peer is to be told of an entry.
fn owed(entry: &NewEntry, ledger: [u8; 16]) -> Option<ObligationRow> {
    let tell = entry.tell?;
    let Event::Charge { id: charge, owner, .. } = entry.record.event else { return None };
    let id = match tell.part {
        Part::First => same(charge),
        Part::Late => late_id(JournalId(ledger), charge, entry.record.offset),
    };
    let obligation = Obligation { id, charge, owner, cost: tell.cost, created_at: entry.record.at };
    Some(ObligationRow {
        charge: charge.to_string(),
        owner: owner.to_string(),
        idempotency_key: id.to_string(),
        payload: line::encode(&obligation),
    })
}
