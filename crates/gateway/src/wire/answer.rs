//! The answers on the wire: `{"ok":true,…}` or `{"ok":false,"error":{…}}`, each on one line.

use super::Shown;
use super::entry::{Details, EntryBody};
use super::error::{ErrorBody, Problem};
use super::limits::LimitBody;
use super::time::Moment;
use crate::books::HistoryEntry;
use holdfast_domain::charge::{Hold, OnExpiry, Overrun, Stage, Terms};
use holdfast_domain::{Change, ChargeId, CreditUnit, Event, OwnerId, Price};
use holdfast_engine::recovery::Report;
use holdfast_engine::{Balance, Outcome, Totals};
use serde::Serialize;

/// Anything that was answered, marked as such.
#[derive(Serialize)]
struct Good<T> {
    ok: bool,
    #[serde(flatten)]
    body: T,
}

#[derive(Serialize)]
struct Bad {
    ok: bool,
    error: ErrorBody,
}

/// A line of the answer, without its end.
pub(crate) fn line<T: Serialize>(answer: Result<T, Problem>) -> String {
    let text = match answer {
        Ok(body) => serde_json::to_string(&Good { ok: true, body }),
        Err(problem) => serde_json::to_string(&Bad { ok: false, error: ErrorBody::from(&problem) }),
    };
    text.expect("the wire's types have text keys and no failing parts")
}

/// What a command did.
#[derive(Serialize)]
pub(crate) struct ReceiptBody {
    outcome: &'static str,
    offset: u64,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    account: Shown<OwnerId>,
    state: &'static str,
    available_cu: Shown<CreditUnit>,
    held_cu: Shown<CreditUnit>,
    at: Moment,
    #[serde(flatten)]
    details: Details,
}

impl From<&Outcome> for ReceiptBody {
    fn from(outcome: &Outcome) -> Self {
        let receipt = outcome.receipt();
        Self {
            outcome: match outcome {
                Outcome::Applied(_) => "applied",
                Outcome::Replayed(_) => "replayed",
            },
            offset: receipt.offset,
            kind: receipt.event.kind().name(),
            id: id_of(&receipt.event),
            account: Shown(receipt.event.owner()),
            state: receipt.state.name(),
            available_cu: Shown(receipt.available),
            held_cu: Shown(receipt.held),
            at: Moment(receipt.at),
            details: Details::of(&receipt.event),
        }
    }
}

/// The reservation or escrow that an event is about.
fn id_of(event: &Event) -> Option<String> {
    match event {
        Event::Minted(_) => None,
        Event::Charge { id, .. } => Some(id.to_string()),
        Event::Escrow { id, .. } => Some(id.to_string()),
    }
}

/// An owner's balances.
#[derive(Serialize)]
pub(crate) struct OwnerBody {
    account: Shown<OwnerId>,
    available_cu: Shown<CreditUnit>,
    held_cu: Shown<CreditUnit>,
    open_holds: u32,
    entries: u64,
    last_offset: u64,
    /// What its reservations count against, its own limit first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    limits: Vec<LimitBody>,
}

impl OwnerBody {
    pub(crate) const fn new(owner: OwnerId, balance: &Balance) -> Self {
        Self {
            account: Shown(owner),
            available_cu: Shown(balance.available),
            held_cu: Shown(balance.held),
            open_holds: balance.open_holds,
            entries: balance.entries,
            last_offset: balance.last,
            limits: Vec::new(),
        }
    }

    pub(crate) fn with_limits(self, limits: Vec<LimitBody>) -> Self {
        Self { limits, ..self }
    }
}

/// The balance of one account by its full name.
#[derive(Serialize)]
pub(crate) struct AccountBody {
    pub(crate) account: String,
    pub(crate) balance_cu: Shown<Change>,
}

/// Balances as of a moment: of an owner both, of one account its own.
#[derive(Serialize)]
pub(crate) struct AsOfBody {
    pub(crate) account: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) offset: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) at: Option<Moment>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) available_cu: Option<Shown<Change>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) held_cu: Option<Shown<Change>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) balance_cu: Option<Shown<Change>>,
}

/// A page of owners.
#[derive(Serialize)]
pub(crate) struct AccountsBody {
    pub(crate) accounts: Vec<OwnerBody>,
    /// What to ask for `after` to get the next page; null on the last.
    pub(crate) next: Option<Shown<OwnerId>>,
}

/// A page of a history, newest first.
#[derive(Serialize)]
pub(crate) struct HistoryBody {
    pub(crate) account: String,
    pub(crate) entries: Vec<HistoryEntryBody>,
    /// What to ask for `before` to get the next page; null on the last.
    pub(crate) next: Option<u64>,
}

#[derive(Serialize)]
pub(crate) struct HistoryEntryBody {
    offset: u64,
    at: Moment,
    kind: String,
    correlation_id: String,
    state: String,
    change_cu: Shown<Change>,
    held_change_cu: Shown<Change>,
    available_cu: Shown<Change>,
    held_cu: Shown<Change>,
}

impl From<HistoryEntry> for HistoryEntryBody {
    fn from(entry: HistoryEntry) -> Self {
        Self {
            offset: entry.offset,
            at: Moment(entry.at),
            kind: entry.kind,
            correlation_id: entry.correlation,
            state: entry.state,
            change_cu: Shown(entry.change),
            held_change_cu: Shown(entry.held_change),
            available_cu: Shown(entry.balance),
            held_cu: Shown(entry.held),
        }
    }
}

/// An open reservation.
#[derive(Serialize)]
pub(crate) struct HoldBody {
    id: Shown<ChargeId>,
    account: Shown<OwnerId>,
    held_cu: Shown<CreditUnit>,
    charged_cu: Shown<CreditUnit>,
    stage: &'static str,
    expires_at: Moment,
}

impl HoldBody {
    pub(crate) const fn new(id: ChargeId, owner: OwnerId, hold: &Hold) -> Self {
        Self {
            id: Shown(id),
            account: Shown(owner),
            held_cu: Shown(hold.held),
            charged_cu: Shown(hold.charged),
            stage: stage_name(hold.stage),
            expires_at: Moment(hold.expires_at),
        }
    }
}

pub(crate) const fn stage_name(stage: Stage) -> &'static str {
    match stage {
        Stage::Reserved => "reserved",
        Stage::InFlight => "in_flight",
    }
}

/// Open reservations, those that end first before the others.
#[derive(Serialize)]
pub(crate) struct HoldsBody {
    pub(crate) reservations: Vec<HoldBody>,
}

/// A reservation and its whole life.
#[derive(Serialize)]
pub(crate) struct ReservationBody {
    pub(crate) id: Shown<ChargeId>,
    pub(crate) account: Shown<OwnerId>,
    pub(crate) state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stage: Option<&'static str>,
    pub(crate) held_cu: Shown<CreditUnit>,
    pub(crate) charged_cu: Shown<CreditUnit>,
    pub(crate) uncollected_cu: Shown<CreditUnit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) expires_at: Option<Moment>,
    #[serde(flatten)]
    pub(crate) terms: TermsBody,
    pub(crate) life: Vec<EntryBody>,
}

/// What a reservation is settled by.
#[derive(Serialize)]
pub(crate) struct TermsBody {
    overrun: &'static str,
    on_expiry: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    rates: Option<RatesBody>,
}

#[derive(Serialize)]
struct RatesBody {
    input_usd_per_mtok: String,
    output_usd_per_mtok: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    cached_input_usd_per_mtok: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_write_usd_per_mtok: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_usd_per_mtok: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    per_request_usd: Option<String>,
    credits_per_usd: u64,
}

impl From<&Terms> for TermsBody {
    fn from(terms: &Terms) -> Self {
        let may_have = |price: Option<Price>| price.map(|price| price.to_string());
        Self {
            overrun: match terms.overrun {
                Overrun::Cap => "cap",
                Overrun::Available => "available",
                Overrun::Refuse => "refuse",
            },
            on_expiry: match terms.on_expiry {
                OnExpiry::Release => "release",
                OnExpiry::ChargeEstimate => "charge_estimate",
            },
            rates: terms.rates.map(|rates| RatesBody {
                input_usd_per_mtok: rates.input.to_string(),
                output_usd_per_mtok: rates.output.to_string(),
                cached_input_usd_per_mtok: may_have(rates.cached_input),
                cache_write_usd_per_mtok: may_have(rates.cache_write),
                reasoning_usd_per_mtok: may_have(rates.reasoning),
                per_request_usd: rates.per_request.map(|price| price.to_string()),
                credits_per_usd: rates.credits_per_usd.get(),
            }),
        }
    }
}

/// An escrow as it stands.
#[derive(Serialize)]
pub(crate) struct EscrowBody {
    pub(crate) escrow_id: String,
    pub(crate) account: Shown<OwnerId>,
    pub(crate) state: &'static str,
    pub(crate) amount_cu: Shown<CreditUnit>,
    pub(crate) feature: String,
    pub(crate) held_at: Moment,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ended_at: Option<Moment>,
    /// How it ended, if it has.
    #[serde(flatten)]
    pub(crate) end: Details,
}

/// The sums over the whole book.
#[derive(Serialize)]
pub(crate) struct TotalsBody {
    accounts: usize,
    payees: usize,
    open_reservations: usize,
    open_escrows: usize,
    revenue_cu: Shown<Change>,
    treasury_cu: Shown<Change>,
    /// The sum over all accounts, in millionths of a credit: zero.
    imbalance: String,
}

impl From<Totals> for TotalsBody {
    fn from(totals: Totals) -> Self {
        Self {
            accounts: totals.owners,
            payees: totals.payees,
            open_reservations: totals.open_charges,
            open_escrows: totals.open_escrows,
            revenue_cu: Shown(totals.revenue),
            treasury_cu: Shown(totals.treasury),
            imbalance: totals.imbalance.to_string(),
        }
    }
}

/// How the server is.
#[derive(Serialize)]
pub(crate) struct HealthBody {
    pub(crate) status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failed: Option<String>,
    pub(crate) version: &'static str,
    pub(crate) pid: u32,
    /// The last durable entry.
    pub(crate) durable: u64,
    /// Where the journal is durable up to: its packed place, for whoever reads the files beside the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) journal_end: Option<u64>,
    /// The last entry that the read model has applied.
    pub(crate) applied: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) read_model_failed: Option<String>,
    pub(crate) waiting: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) recovered: Option<RecoveredBody>,
}

/// What the last start found and did.
#[derive(Serialize)]
pub(crate) struct RecoveredBody {
    journal: String,
    created: bool,
    entries: u64,
    segments: u32,
    snapshot: Option<u64>,
    bad_snapshots: u32,
    replayed: u64,
    reindexed: u64,
    torn_tails_cut: u32,
    torn_bytes_cut: u64,
}

impl From<Report> for RecoveredBody {
    fn from(report: Report) -> Self {
        let found = &report.recovered.verified;
        Self {
            journal: found.id.to_string(),
            created: report.recovered.created,
            entries: found.end.next_offset - 1,
            segments: found.segments,
            snapshot: report.snapshot,
            bad_snapshots: report.bad_snapshots,
            replayed: report.replayed,
            reindexed: report.reindexed,
            torn_tails_cut: u32::from(found.tail.is_some()),
            torn_bytes_cut: found.tail.map_or(0, |cut| cut.bytes),
        }
    }
}
