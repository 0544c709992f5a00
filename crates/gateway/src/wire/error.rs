//! Why a line was not answered as asked: a stable code, a sentence, what to do, and the figures that a program needs.

use super::Shown;
use crate::books::NoAnswer;
use crate::identity::IdentityError;
use crate::queue::{PurseFailed, QueueError};
use crate::wallet::{NotAuthorized, WalletFailed};
use holdfast_adapters::escrow_metadata::MetadataFailed;
use holdfast_domain::{CreditUnit, NotAnAccount, ObligationId, queue};
use holdfast_engine::obligations::StoreFailed;
use holdfast_engine::{Action, Refusal};
use serde::Serialize;

/// A line that says nothing that can be done. Nothing was decided or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WireError {
    /// Not JSON, or not of the shape that its `op` has.
    #[error("the request is not understood: {0}")]
    Malformed(String),
    #[error("the request is longer than {max} bytes; send it in parts")]
    TooLong { max: usize },
    #[error("{field}: {why}")]
    Amount { field: &'static str, why: String },
    #[error("{field}: {why}")]
    Id { field: &'static str, why: String },
    #[error("{0}")]
    Account(#[from] NotAnAccount),
    #[error("reason: {0}")]
    Reason(String),
    #[error("ttl_s: a hold lives from 1 to 31622400 whole seconds (366 days); give such a number")]
    Ttl,
    #[error("{field}: {why}")]
    Price { field: &'static str, why: String },
    #[error("at: {0:?} is no moment; write one such as 2026-01-31T09:30:00Z")]
    Moment(String),
    #[error("model: {0:?} has no price here, and an unpriced model is never free; name a priced one")]
    Model(String),
}

impl WireError {
    /// The stable code of this error.
    pub(crate) const fn code(&self) -> &'static str {
        match self {
            Self::Malformed(_) => "INVALID_REQUEST",
            Self::TooLong { .. } => "REQUEST_TOO_LARGE",
            Self::Amount { .. } => "INVALID_AMOUNT",
            Self::Id { .. } => "INVALID_ID",
            Self::Account(_) => "INVALID_ACCOUNT",
            Self::Reason(_) => "INVALID_REASON",
            Self::Ttl => "INVALID_TTL",
            Self::Price { .. } => "INVALID_PRICE",
            Self::Moment(_) => "INVALID_TIME",
            Self::Model(_) => "INVALID_MODEL",
        }
    }
}

/// Why nothing was done about what the peer is to be told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DeliveryError {
    #[error("no charges are delivered here: this needs a running server with a peer in its configuration")]
    Off,
    #[error("the peer is owed nothing under {0}: it knows of it, or there never was such a charge")]
    Unknown(ObligationId),
    #[error("the peer is being told of {0} right now; look again in a moment")]
    InDelivery(ObligationId),
    #[error("{0} is no dead letter: only what was given up is resolved by hand")]
    NotDead(ObligationId),
    #[error(transparent)]
    Store(#[from] StoreFailed),
}

impl DeliveryError {
    const fn code(&self) -> &'static str {
        match self {
            Self::Off => "DELIVERY_OFF",
            Self::Unknown(_) => "OBLIGATION_NOT_FOUND",
            Self::InDelivery(_) => "OBLIGATION_IN_DELIVERY",
            Self::NotDead(_) => "OBLIGATION_NOT_DEAD",
            Self::Store(_) => "SERVICE_OBLIGATIONS_UNREACHABLE",
        }
    }

    const fn action(&self) -> Action {
        match self {
            Self::Off | Self::Unknown(_) | Self::NotDead(_) => Action::FixRequest,
            Self::InDelivery(_) | Self::Store(_) => Action::RetryLater,
        }
    }
}

/// Why a request or question has no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Problem {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Books(NoAnswer),
    #[error("an id cannot be made: {0}; give one in the request")]
    NoRandomness(String),
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(transparent)]
    Delivery(#[from] DeliveryError),
    #[error("the peer that must learn of every charge is away, so no new paid work is begun; ask again in a moment")]
    PeerAway,
    #[error(transparent)]
    NotAuthorized(#[from] NotAuthorized),
    #[error(transparent)]
    Metadata(#[from] MetadataFailed),
    #[error(transparent)]
    Queue(QueueError),
}

impl From<QueueError> for Problem {
    fn from(error: QueueError) -> Self {
        match error {
            // The wallet's own words come through as they would to whoever asks it directly.
            QueueError::Purse(PurseFailed::Wallet(failed)) => failed.into(),
            QueueError::Purse(PurseFailed::Away(_) | PurseFailed::NotAuthorized(_))
            | QueueError::Off
            | QueueError::Unknown(_)
            | QueueError::Refused { .. }
            | QueueError::Linkage { .. }
            | QueueError::Reused
            | QueueError::OtherPayee(_)
            | QueueError::Store(_) => Self::Queue(error),
        }
    }
}

impl Problem {
    /// The stable code of this error.
    pub(crate) const fn code(&self) -> &'static str {
        match self {
            Self::Wire(error) => error.code(),
            Self::Refused(refusal) => refusal.code(),
            Self::Books(error) => error.code(),
            Self::NoRandomness(_) => "SERVICE_NO_RANDOMNESS",
            Self::Identity(error) => error.code(),
            Self::Delivery(error) => error.code(),
            Self::PeerAway => "SERVICE_PEER_AWAY",
            Self::Queue(error) => error.code(),
            Self::NotAuthorized(refused) => refused.code(),
            Self::Metadata(failed) => failed.code(),
        }
    }

    /// What to do about it.
    pub(crate) const fn action(&self) -> Action {
        match self {
            Self::Wire(_)
            | Self::NotAuthorized(_)
            | Self::Identity(IdentityError::UnknownKey(_) | IdentityError::BadKey(_)) => Action::FixRequest,
            Self::Refused(refusal) => refusal.action(),
            Self::Books(error) => error.action(),
            Self::Delivery(error) => error.action(),
            Self::Queue(error) => error.action(),
            Self::NoRandomness(_) | Self::PeerAway | Self::Identity(_) | Self::Metadata(_) => Action::RetryLater,
        }
    }
}

impl From<WalletFailed> for Problem {
    fn from(failed: WalletFailed) -> Self {
        match failed {
            WalletFailed::NotAuthorized(refused) => Self::NotAuthorized(refused),
            WalletFailed::Refused(refusal) => Self::Refused(refusal),
            WalletFailed::Metadata(failed) => Self::Metadata(failed),
        }
    }
}

impl From<NoAnswer> for Problem {
    fn from(error: NoAnswer) -> Self {
        match error {
            NoAnswer::Refused(refusal) => Self::Refused(refusal),
            NoAnswer::NoHistory(_)
            | NoAnswer::NoSuchEntry { .. }
            | NoAnswer::Behind { .. }
            | NoAnswer::Failed(_)
            | NoAnswer::Unreadable(_)
            | NoAnswer::Journal(_) => Self::Books(error),
        }
    }
}

/// The body of a refusal on the wire.
#[derive(Serialize)]
pub(crate) struct ErrorBody {
    code: &'static str,
    message: String,
    action: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    available_cu: Option<Shown<CreditUnit>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    required_cu: Option<Shown<CreditUnit>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deficit_cu: Option<Shown<CreditUnit>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    chargeable_cu: Option<Shown<CreditUnit>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    amount_cu: Option<Shown<CreditUnit>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    open_holds: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    current: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expected: Option<Vec<&'static str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    check: Option<&'static str>,
}

impl From<&Problem> for ErrorBody {
    fn from(problem: &Problem) -> Self {
        let mut body = Self {
            code: problem.code(),
            message: problem.to_string(),
            action: action_name(problem.action()),
            available_cu: None,
            required_cu: None,
            deficit_cu: None,
            chargeable_cu: None,
            amount_cu: None,
            open_holds: None,
            state: None,
            current: None,
            expected: None,
            check: None,
        };
        if let Problem::Refused(refusal) = problem {
            body.add_figures(refusal);
        }
        if let Problem::Queue(error) = problem {
            body.add_states(error);
        }
        body
    }
}

impl ErrorBody {
    fn add_states(&mut self, error: &QueueError) {
        match error {
            QueueError::Refused { refusal: queue::Refusal::InvalidState { current, expected }, .. } => {
                self.current = Some(current.name());
                self.expected = Some(expected.iter().map(|state| state.name()).collect());
            }
            QueueError::Refused { refusal: queue::Refusal::InvalidSplit { amount }, .. } => {
                self.amount_cu = Some(Shown(*amount));
            }
            QueueError::Linkage { mismatch, .. } => self.check = Some(mismatch.name()),
            QueueError::Refused { refusal: queue::Refusal::InvalidCause(_), .. }
            | QueueError::Off
            | QueueError::Unknown(_)
            | QueueError::Reused
            | QueueError::OtherPayee(_)
            | QueueError::Purse(_)
            | QueueError::Store(_) => {}
        }
    }

    const fn add_figures(&mut self, refusal: &Refusal) {
        match refusal {
            Refusal::InsufficientBalance { available, required } => {
                self.available_cu = Some(Shown(*available));
                self.required_cu = Some(Shown(*required));
                self.deficit_cu = Some(Shown(available.shortfall(*required)));
            }
            Refusal::BudgetExceeded { over, required } => {
                self.available_cu = Some(Shown(over.used.shortfall(over.limit)));
                self.required_cu = Some(Shown(*required));
                self.deficit_cu = Some(Shown(over.used.shortfall(over.limit).shortfall(*required)));
            }
            Refusal::TooManyOpenHolds { open } => self.open_holds = Some(*open),
            Refusal::InvalidState(state) => self.state = Some(state.name()),
            Refusal::ExceedsHold { chargeable } => self.chargeable_cu = Some(Shown(*chargeable)),
            Refusal::EscrowAlreadyProcessed(state) => self.state = Some(state.name()),
            Refusal::InvalidSplit { amount } => self.amount_cu = Some(Shown(*amount)),
            Refusal::UnknownAccount
            | Refusal::UnknownCharge
            | Refusal::UnknownEscrow
            | Refusal::KeyReused
            | Refusal::KeyRequired
            | Refusal::InvalidAmount(_)
            | Refusal::InvalidTtl
            | Refusal::NoFrozenRates
            | Refusal::BatchTooLarge
            | Refusal::Overloaded
            | Refusal::JournalFailed
            | Refusal::Stopping
            | Refusal::DatabaseUnavailable
            | Refusal::Overtaken
            | Refusal::Unreadable(_) => {}
        }
    }
}

const fn action_name(action: Action) -> &'static str {
    match action {
        Action::FixRequest => "fix_request",
        Action::Pay => "pay",
        Action::RetryLater => "retry_later",
    }
}
