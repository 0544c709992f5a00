//! What the books answer with: plain values that any engine can fill.
//!
//! # Invariants
//! - Every part of an overview is bounded: so many rows, looked for in so many entries, whatever the size of the books.

use holdfast_domain::charge::{Charge, Hold};
use holdfast_domain::escrow::Escrow;
use holdfast_domain::{Account, Change, ChargeId, CreditUnit, Day, EscrowId, Event, Key, Label, OwnerId, Timestamp};
use holdfast_engine::recovery::StartError;
use holdfast_engine::{Action, LifeState, Record, Refusal, Standing, Totals, View};
use holdfast_journal::{Hash, Location};
use serde::Serialize;

pub(crate) use holdfast_adapters::read_model::{AsOf, TailRow};

/// The rows of each table of an overview.
pub(super) const ROWS: usize = 10;
/// The open holds that an overview shows.
pub(super) const HOLDS: usize = 20;
/// The newest entries that are shown.
pub(crate) const TAIL: usize = 40;
/// The days of an overview's chart.
pub(super) const DAYS: u64 = 14;

/// How an engine is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Health {
    /// What it is called: `embedded`, or the database that it is on.
    pub(crate) engine: &'static str,
    /// Why nothing is accepted any more.
    pub(crate) failed: Option<String>,
    /// The last durable entry.
    pub(crate) durable: u64,
    /// Where the journal is durable up to, if there is one.
    pub(crate) end: Option<Location>,
    /// The last entry that histories know.
    pub(crate) applied: u64,
    /// Why histories know no more entries.
    pub(crate) read_model_failed: Option<String>,
    /// Requests that wait.
    pub(crate) waiting: usize,
    /// The database, if the books are in one.
    pub(crate) database: Option<DatabaseHealth>,
}

/// How the way to a database is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct DatabaseHealth {
    /// Whether the last that was heard of it was an answer.
    pub(crate) reached: bool,
    /// How many connections decide.
    pub(crate) connections: usize,
    /// Batches that were decided again because another node was there at the same moment.
    pub(crate) overtaken: u64,
    /// Commits whose answer was lost, and whose end was found out.
    pub(crate) in_doubt: u64,
}

/// An entry with all that is shown of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) offset: u64,
    pub(crate) at: Timestamp,
    pub(crate) actor: Label,
    pub(crate) key: Option<Key>,
    /// The charge or escrow, or the key of a mint.
    pub(crate) correlation: String,
    pub(crate) event: Event,
    /// The state that it left its charge or escrow in.
    pub(crate) state: LifeState,
    /// What the owner could spend after it.
    pub(crate) available: CreditUnit,
    /// What was held of the owner after it.
    pub(crate) held: CreditUnit,
    /// The payee's balance after it, if one was paid.
    pub(crate) payee: Option<CreditUnit>,
    /// Where it stands, if that was asked for and the engine keeps frames.
    pub(crate) frame: Option<Frame>,
}

/// The frame of a journal's file that an entry stands in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) location: Location,
    pub(crate) hash: Hash,
}

impl From<Record> for Entry {
    fn from(record: Record) -> Self {
        Self {
            correlation: record.correlation(),
            offset: record.offset,
            at: record.at,
            actor: record.actor,
            key: record.key,
            event: record.event,
            state: record.state,
            available: record.owner.available.balance,
            held: record.owner.held,
            payee: record.payee.map(|payee| payee.balance),
            frame: None,
        }
    }
}

impl Entry {
    /// The same entry, with the frame that it stands in.
    pub(crate) fn within(self, frame: Frame) -> Self {
        Self { frame: Some(frame), ..self }
    }
}

/// A charge with its whole life.
pub(crate) struct Life {
    pub(crate) charge: Charge,
    pub(crate) owner: OwnerId,
    /// Oldest first.
    pub(crate) entries: Vec<Entry>,
}

/// An escrow with its whole life.
pub(crate) struct EscrowLife {
    pub(crate) escrow: Escrow,
    pub(crate) owner: OwnerId,
    /// Oldest first: how it was held, and how it ended if it has.
    pub(crate) entries: Vec<Entry>,
}

impl EscrowLife {
    /// The life of an escrow, if there is such a one.
    pub(super) fn of(view: &View<'_>, id: EscrowId) -> Result<Option<Self>, Refusal> {
        let Some((escrow, owner)) = view.escrow(id)? else { return Ok(None) };
        let entries = view.escrow_life(id)?.into_iter().map(Entry::from).collect();
        Ok(Some(Self { escrow, owner, entries }))
    }
}

/// A page of a history, newest first.
pub(crate) struct HistoryPage {
    pub(crate) entries: Vec<HistoryEntry>,
    /// What to ask for `before` to get the next page; `None` on the last.
    pub(crate) next: Option<u64>,
}

/// One entry of a history. Of a payee, what can be spent is the payee's balance.
pub(crate) struct HistoryEntry {
    pub(crate) offset: u64,
    pub(crate) at: Timestamp,
    pub(crate) kind: String,
    /// The reservation, the escrow, or the key of a mint.
    pub(crate) correlation: String,
    pub(crate) state: String,
    /// What it changed of what can be spent.
    pub(crate) change: Change,
    /// What it changed of what is held.
    pub(crate) held_change: Change,
    /// What could be spent after it.
    pub(crate) balance: Change,
    /// What was held after it.
    pub(crate) held: Change,
}

/// An owner's balances as of a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OwnerAsOf {
    pub(crate) available: Change,
    pub(crate) held: Change,
}

/// The books at a glance, with everything in it that was acknowledged when it was asked for.
pub(crate) struct Overview {
    pub(crate) at: Timestamp,
    /// The last entry that it knows.
    pub(crate) through: u64,
    pub(crate) totals: Totals,
    pub(crate) standing: Standing,
    /// Those that end first.
    pub(crate) holds: Vec<OpenHold>,
    pub(crate) by_day: Vec<(Day, Change)>,
    /// Of whom most was earned since `since`.
    pub(crate) by_owner: Vec<(String, Change)>,
    /// When the entries begin that `by_owner` was added up from; `None` if they are all there are.
    pub(crate) since: Option<Timestamp>,
    /// Oldest first.
    pub(crate) tail: Vec<TailRow>,
}

/// An open hold.
pub(crate) struct OpenHold {
    pub(crate) id: ChargeId,
    pub(crate) owner: OwnerId,
    pub(crate) hold: Hold,
    /// When it was made; `None` if that is longer ago than was looked.
    pub(crate) reserved_at: Option<Timestamp>,
}

/// Why a question about entries has no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoAnswer {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(
        "{0} has no balance of its own as of a moment; ask for its user, payee, system:revenue or treasury:usdc_received"
    )]
    NoHistory(Account),
    #[error("there is no entry {offset}: the journal ends at {last}")]
    NoSuchEntry { offset: u64, last: u64 },
    #[error("the read model is still {behind} entries behind; ask again in a moment")]
    Behind { behind: u64 },
    #[error("the read model failed: {0}; stop the server and run `holdfast rebuild`")]
    Failed(String),
    #[error("the read model cannot be read: {0}; run `holdfast rebuild`")]
    Unreadable(String),
    #[error(transparent)]
    Journal(#[from] StartError),
}

impl NoAnswer {
    /// The stable code of this error.
    pub(crate) const fn code(&self) -> &'static str {
        match self {
            Self::Refused(refusal) => refusal.code(),
            Self::NoHistory(_) => "ACCOUNT_WITHOUT_HISTORY",
            Self::NoSuchEntry { .. } => "ENTRY_NOT_FOUND",
            Self::Behind { .. } => "SERVICE_READ_MODEL_BEHIND",
            Self::Failed(_) => "SERVICE_READ_MODEL_FAILED",
            Self::Unreadable(_) => "SERVICE_READ_MODEL_UNREADABLE",
            Self::Journal(error) => error.code(),
        }
    }

    /// What to do about it.
    pub(crate) const fn action(&self) -> Action {
        match self {
            Self::Refused(refusal) => refusal.action(),
            Self::NoHistory(_) | Self::NoSuchEntry { .. } => Action::FixRequest,
            Self::Behind { .. } | Self::Failed(_) | Self::Unreadable(_) | Self::Journal(_) => Action::RetryLater,
        }
    }
}
