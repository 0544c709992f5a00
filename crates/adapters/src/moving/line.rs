//! The lines of an export: each a small JSON object that says itself what it is.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use holdfast_domain::budget::Used;
use holdfast_domain::{CreditUnit, Day};
use holdfast_engine::Record;
use holdfast_engine::moving::{Stands, Sums};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version of the format.
pub(super) const VERSION: u32 = 1;

/// What kept the books.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// A data directory.
    Embedded,
    /// A database.
    Postgres,
}

/// The first line: where the entries come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    pub(super) holdfast_export: u32,
    /// What kept the books.
    pub engine: Engine,
    /// The id of the journal or the ledger, as 32 hexadecimal digits.
    pub id: String,
    /// How many entries there are.
    pub entries: u64,
}

impl Head {
    /// The first line of an export of so many entries.
    #[must_use]
    pub fn new(engine: Engine, id: [u8; 16], entries: u64) -> Self {
        let id = holdfast_journal::JournalId(id).to_string();
        Self { holdfast_export: VERSION, engine, id, entries }
    }

    /// The id of the journal or the ledger; `None` if it is not one.
    #[must_use]
    pub fn id_bytes(&self) -> Option<[u8; 16]> {
        let number = u128::from_str_radix(&self.id, 16).ok()?;
        (format!("{number:032x}") == self.id).then(|| number.to_be_bytes())
    }
}

#[derive(Serialize)]
struct EntryLine {
    entry: u64,
    at_ms: u64,
    kind: &'static str,
    actor: String,
    key: Option<String>,
    owner: String,
    correlation_id: String,
    state: &'static str,
    changes_cu: BTreeMap<String, String>,
    available_cu: String,
    held_cu: String,
    body: String,
}

#[derive(Deserialize)]
struct BodyOnly<'a> {
    body: &'a str,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OwnerLine {
    owner: String,
    available_cu: String,
    held_cu: String,
    open_holds: u32,
    entries: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PayeeLine {
    payee: String,
    balance_cu: String,
    entries: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BudgetLine {
    budget: String,
    day: u64,
    today_cu: String,
    total_cu: String,
}

#[derive(Serialize)]
struct EndLine {
    end: EndBody,
}

#[derive(Serialize)]
struct EndBody {
    entries: u64,
    owners: u64,
    payees: u64,
    available_cu: String,
    held_cu: String,
    escrowed_cu: String,
    paid_cu: String,
    revenue_cu: String,
    treasury_cu: String,
}

#[derive(Serialize)]
struct HashLine<'a> {
    blake3: &'a str,
}

fn text(line: &impl Serialize) -> String {
    serde_json::to_string(line).expect("texts and numbers are always JSON")
}

pub(super) fn head(head: &Head) -> String {
    text(head)
}

pub(super) fn entry(record: &Record) -> String {
    let mut body = Vec::with_capacity(192);
    record.encode(&mut body);
    let changes =
        record.event.changes().map(|changes| changes.map(|(to, by)| (to.to_string(), by.to_string())).collect());
    text(&EntryLine {
        entry: record.offset,
        at_ms: record.at.millis(),
        kind: record.event.kind().name(),
        actor: record.actor.to_string(),
        key: record.key.map(|key| key.to_string()),
        owner: record.event.owner().to_string(),
        correlation_id: record.correlation(),
        state: record.state.name(),
        changes_cu: changes.unwrap_or_default(),
        available_cu: record.owner.available.balance.to_string(),
        held_cu: record.owner.held.to_string(),
        body: STANDARD.encode(body),
    })
}

/// The record of a line that [`entry`] wrote.
pub(super) fn read_entry(line: &str) -> Option<Record> {
    let BodyOnly { body } = serde_json::from_str(line).ok()?;
    let record = Record::decode(&STANDARD.decode(body).ok()?)?;
    // What people read is what programs read.
    (entry(&record) == line).then_some(record)
}

pub(super) fn stands(stands: &Stands) -> String {
    match stands {
        Stands::Owner { id, available, held, open_holds, entries } => text(&OwnerLine {
            owner: id.to_string(),
            available_cu: available.to_string(),
            held_cu: held.to_string(),
            open_holds: *open_holds,
            entries: *entries,
        }),
        Stands::Payee { id, balance, entries } => {
            text(&PayeeLine { payee: id.to_string(), balance_cu: balance.to_string(), entries: *entries })
        }
        Stands::Budget { id, used } => text(&BudgetLine {
            budget: id.to_string(),
            day: used.day.number(),
            today_cu: used.today.to_string(),
            total_cu: used.total.to_string(),
        }),
    }
}

/// What a line says that [`stands`] wrote.
pub(super) fn read_stands(line: &str) -> Option<Stands> {
    let amount = |text: &str| text.parse::<CreditUnit>().ok();
    let read = if line.starts_with("{\"owner\":") {
        let OwnerLine { owner, available_cu, held_cu, open_holds, entries } = serde_json::from_str(line).ok()?;
        let (available, held) = (amount(&available_cu)?, amount(&held_cu)?);
        Stands::Owner { id: owner.parse().ok()?, available, held, open_holds, entries }
    } else if line.starts_with("{\"payee\":") {
        let PayeeLine { payee, balance_cu, entries } = serde_json::from_str(line).ok()?;
        Stands::Payee { id: payee.parse().ok()?, balance: amount(&balance_cu)?, entries }
    } else {
        let BudgetLine { budget, day, today_cu, total_cu } = serde_json::from_str(line).ok()?;
        let used = Used { day: Day::from_number(day), today: amount(&today_cu)?, total: amount(&total_cu)? };
        Stands::Budget { id: budget.parse().ok()?, used }
    };
    (stands(&read) == line).then_some(read)
}

pub(super) fn end(sums: &Sums) -> String {
    text(&EndLine {
        end: EndBody {
            entries: sums.entries,
            owners: sums.owners,
            payees: sums.payees,
            available_cu: sums.available.to_string(),
            held_cu: sums.held.to_string(),
            escrowed_cu: sums.escrowed.to_string(),
            paid_cu: sums.paid.to_string(),
            revenue_cu: sums.revenue.to_string(),
            treasury_cu: sums.treasury.to_string(),
        },
    })
}

pub(super) fn hash(blake3: &str) -> String {
    text(&HashLine { blake3 })
}
