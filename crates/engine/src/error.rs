//! Why a request was not done: a stable code for programs, a sentence for people, and what to do about it.

use holdfast_domain::budget::{OverBudget, Window};
use holdfast_domain::{CreditUnit, Overflow, charge, escrow};

/// A request that was refused. Nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The account has never been credited.
    #[error("there is no such account; credit it first")]
    UnknownAccount,
    /// There is no such reservation.
    #[error("there is no such reservation")]
    UnknownCharge,
    /// There is no such escrow.
    #[error("there is no such escrow")]
    UnknownEscrow,
    /// The account does not have enough to spend.
    #[error("the account has {available} to spend and {required} is needed; {} is missing", available.shortfall(*required))]
    InsufficientBalance {
        /// What it has.
        available: CreditUnit,
        /// What is needed.
        required: CreditUnit,
    },
    /// A budget does not allow for it.
    #[error("the budget {} allows {} {}, of which {} is used; {required} more is needed", over.id, over.limit, in_words(over.window), over.used)]
    BudgetExceeded {
        /// Which, and how far it is used. Boxed, because every answer is as long as its longest kind, and this one is rare.
        over: Box<OverBudget>,
        /// What is needed.
        required: CreditUnit,
    },
    /// The account has as many open holds as it may have.
    #[error("the account has {open} open holds, the most that it may have; settle or release some first")]
    TooManyOpenHolds {
        /// How many.
        open: u32,
    },
    /// The key, or the charge or escrow id, was used before with another body.
    #[error("this key or id was used before for another request; use a new one, or repeat the request unchanged")]
    KeyReused,
    /// The command can be meant twice, so it needs a key.
    #[error("this request can be meant more than once: give it an idempotency key")]
    KeyRequired,
    /// The charge is in another state than the command needs.
    #[error("the reservation is {0}: this cannot be done to it any more")]
    InvalidState(charge::State),
    /// The cost is above the hold, and its policy is to refuse that.
    #[error("the cost is above the hold, and at most {chargeable} can be charged; increase the hold or charge less")]
    ExceedsHold {
        /// What could be charged.
        chargeable: CreditUnit,
    },
    /// The escrow has already been settled, refunded or divided.
    #[error("the escrow is already {0}")]
    EscrowAlreadyProcessed(escrow::State),
    /// The two parts of an escrow do not add up to it.
    #[error("the two parts must add up to {amount}, what the escrow holds")]
    InvalidSplit {
        /// What they must add up to.
        amount: CreditUnit,
    },
    /// An amount of zero, or one that leads out of range.
    #[error("{0}")]
    InvalidAmount(&'static str),
    /// A life of zero, or of more than a year.
    #[error("a hold lives from one millisecond to 366 days")]
    InvalidTtl,
    /// A commit by usage on a hold that froze no rates.
    #[error("the hold was reserved by amount and froze no rates: commit it by amount too")]
    NoFrozenRates,
    /// More requests in one batch than are taken.
    #[error("a batch has at most {} requests", crate::request::BATCH_MAX)]
    BatchTooLarge,
    /// Too much is waiting already.
    #[error("the engine is overloaded; try again in a moment, with the same key")]
    Overloaded,
    /// The journal failed: whether the request was done is known after a restart.
    #[error("the journal failed; whether this was done is known after a restart: ask again then, with the same key")]
    JournalFailed,
    /// The engine has been told to stop.
    #[error("the engine is stopping; try again with the same key when it is back")]
    Stopping,
    /// The database does not answer, or refuses: whether the request was done is known when it does again.
    #[error("the database does not answer; ask again with the same key: what was done gives its first answer")]
    DatabaseUnavailable,
    /// Others changed the same accounts at the same moment, again and again: nothing was done.
    #[error(
        "others were at the same accounts at every try, and nothing was done; ask again in a moment with the same key"
    )]
    Overtaken,
    /// What is on the disk could not be read to decide this request.
    #[error("an older entry could not be read: {0}")]
    Unreadable(String),
}

/// What a caller should do about a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The request is wrong, and will stay so.
    FixRequest,
    /// Pay first.
    Pay,
    /// The same request, with the same key, later.
    RetryLater,
}

impl Refusal {
    /// The stable code of this error: API, unlike its message.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::UnknownAccount => "ACCOUNT_NOT_FOUND",
            Self::UnknownCharge => "RESERVATION_NOT_FOUND",
            Self::UnknownEscrow => "ESCROW_NOT_FOUND",
            Self::InsufficientBalance { .. } => "INSUFFICIENT_BALANCE",
            Self::BudgetExceeded { .. } => "INSUFFICIENT_BUDGET",
            Self::TooManyOpenHolds { .. } => "TOO_MANY_OPEN_HOLDS",
            Self::KeyReused => "ALREADY_USED_KEY",
            Self::KeyRequired => "KEY_REQUIRED",
            Self::InvalidState(_) => "INVALID_STATE",
            Self::ExceedsHold { .. } => "EXCEEDS_HOLD",
            Self::EscrowAlreadyProcessed(_) => "ESCROW_ALREADY_PROCESSED",
            Self::InvalidSplit { .. } => "INVALID_SPLIT",
            Self::InvalidAmount(_) => "INVALID_AMOUNT",
            Self::InvalidTtl => "INVALID_TTL",
            Self::NoFrozenRates => "NO_FROZEN_RATES",
            Self::BatchTooLarge => "BATCH_TOO_LARGE",
            Self::Overloaded => "SERVICE_OVERLOADED",
            Self::JournalFailed => "SERVICE_JOURNAL_FAILED",
            Self::Stopping => "SERVICE_STOPPING",
            Self::DatabaseUnavailable => "SERVICE_DATABASE_UNAVAILABLE",
            Self::Overtaken => "OPTIMISTIC_LOCK",
            Self::Unreadable(_) => "SERVICE_UNREADABLE",
        }
    }

    /// What to do about it.
    #[must_use]
    pub const fn action(&self) -> Action {
        match self {
            Self::InsufficientBalance { .. } | Self::BudgetExceeded { .. } => Action::Pay,
            Self::TooManyOpenHolds { .. }
            | Self::Overloaded
            | Self::JournalFailed
            | Self::Stopping
            | Self::DatabaseUnavailable
            | Self::Overtaken
            | Self::Unreadable(_) => Action::RetryLater,
            Self::UnknownAccount
            | Self::UnknownCharge
            | Self::UnknownEscrow
            | Self::KeyReused
            | Self::KeyRequired
            | Self::InvalidState(_)
            | Self::ExceedsHold { .. }
            | Self::EscrowAlreadyProcessed(_)
            | Self::InvalidSplit { .. }
            | Self::InvalidAmount(_)
            | Self::InvalidTtl
            | Self::NoFrozenRates
            | Self::BatchTooLarge => Action::FixRequest,
        }
    }
}

const fn in_words(window: Window) -> &'static str {
    match window {
        Window::Day => "a day",
        Window::Total => "in all",
    }
}

const ZERO: &str = "an amount of zero does nothing; give a positive one";
const OUT_OF_RANGE: &str = "the amount leads to a sum out of range";

impl Refusal {
    /// A sum that leads out of range.
    pub(crate) const OUT_OF_RANGE: Self = Self::InvalidAmount(OUT_OF_RANGE);
    /// An amount of zero.
    pub(crate) const ZERO: Self = Self::InvalidAmount(ZERO);
}

impl From<Overflow> for Refusal {
    fn from(Overflow: Overflow) -> Self {
        Self::OUT_OF_RANGE
    }
}

impl From<charge::Refusal> for Refusal {
    fn from(refusal: charge::Refusal) -> Self {
        match refusal {
            charge::Refusal::InvalidState(state) => Self::InvalidState(state),
            charge::Refusal::ExceedsHold { chargeable } => Self::ExceedsHold { chargeable },
            charge::Refusal::ZeroAmount => Self::ZERO,
            charge::Refusal::InvalidTtl => Self::InvalidTtl,
            charge::Refusal::NoFrozenRates => Self::NoFrozenRates,
            charge::Refusal::Overflow => Self::OUT_OF_RANGE,
        }
    }
}

impl From<escrow::Refusal> for Refusal {
    fn from(refusal: escrow::Refusal) -> Self {
        match refusal {
            escrow::Refusal::AlreadyProcessed(state) => Self::EscrowAlreadyProcessed(state),
            escrow::Refusal::InvalidSplit { amount } => Self::InvalidSplit { amount },
            escrow::Refusal::ZeroAmount => Self::ZERO,
        }
    }
}
