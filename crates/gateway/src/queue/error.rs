//! Why the queue did not do what it was asked.

use super::purse::PurseFailed;
use holdfast_domain::queue::{Refusal, State};
use holdfast_domain::{CreditUnit, EscrowId, ItemId, escrow};
use holdfast_engine::Action;
use holdfast_engine::queue::QueueFailed;
use std::fmt;

/// Why something about an item was not done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum QueueError {
    /// There is no queue here.
    #[error("no queue runs here: this needs a running server with `--role all` or `--role queue`")]
    Off,
    /// There is no such item.
    #[error("there is no queue item {0}")]
    Unknown(ItemId),
    /// The rules do not allow it.
    #[error("{}", refused(*.item, .refusal))]
    Refused { item: ItemId, refusal: Refusal },
    /// The escrow is not good for the item.
    #[error("escrow {escrow} is not good for this: {mismatch}")]
    Linkage { escrow: EscrowId, mismatch: Mismatch },
    /// The key was used for another intake.
    #[error("this idempotency key was used for another intake; use a fresh one")]
    Reused,
    /// Whoever finishes an item names another payee than the item does.
    #[error("modelId: queue item {0} is for another payee")]
    OtherPayee(ItemId),
    /// The wallet would not, or does not answer.
    #[error(transparent)]
    Purse(#[from] PurseFailed),
    /// The store does not answer.
    #[error("the store of the queue does not answer: {0}; ask again in a moment")]
    Store(String),
}

/// What of an escrow does not fit an intake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mismatch {
    /// There is none.
    NotFound,
    /// It has ended.
    NotHeld(escrow::State),
    /// Another item has it.
    Linked,
    /// It is somebody else's.
    User,
    /// It holds another amount.
    Amount { held: CreditUnit },
    /// It is for another kind of work.
    Feature,
}

impl Mismatch {
    /// Its name on the wire.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::NotHeld(_) => "not_held",
            Self::Linked => "linked",
            Self::User => "user",
            Self::Amount { .. } => "amount",
            Self::Feature => "feature_type",
        }
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound => f.write_str("there is no such escrow"),
            Self::NotHeld(state) => write!(f, "it is {state}, and must be held"),
            Self::Linked => f.write_str("another queue item has it"),
            Self::User => f.write_str("it belongs to another user"),
            Self::Amount { held } => write!(f, "it holds {held}, which is not the item's amount"),
            Self::Feature => f.write_str("it is held for another featureType"),
        }
    }
}

/// States as they are listed to people.
fn names(states: &[State]) -> String {
    states.iter().map(|state| state.name()).collect::<Vec<_>>().join(" or ")
}

fn refused(item: ItemId, refusal: &Refusal) -> String {
    match refusal {
        Refusal::InvalidState { current, expected } => {
            format!("queue item {item} is {current}, and this needs it to be {}", names(expected))
        }
        Refusal::InvalidSplit { amount } => {
            format!("refundAmount and settleAmount must add up to exactly {amount}, what the item's escrow holds")
        }
        Refusal::InvalidCause(cause) => {
            format!("reason: {cause} is why an item is finished; give the reason why it is not, or not wholly, done")
        }
    }
}

impl QueueError {
    /// A store's answer about `item`.
    pub(super) fn of_store(item: ItemId, escrow: EscrowId, failed: QueueFailed) -> Self {
        match failed {
            QueueFailed::Refused(refusal) => Self::Refused { item, refusal },
            QueueFailed::Unknown => Self::Unknown(item),
            QueueFailed::Linked => Self::Linkage { escrow, mismatch: Mismatch::Linked },
            QueueFailed::Reused => Self::Reused,
            QueueFailed::Unavailable(why) => Self::Store(why),
        }
    }

    /// The stable code of this error.
    pub(crate) const fn code(&self) -> &'static str {
        match self {
            Self::Off => "QUEUE_OFF",
            Self::Unknown(_) => "QUEUE_ITEM_NOT_FOUND",
            Self::Refused { refusal: Refusal::InvalidState { .. }, .. } => "INVALID_QUEUE_STATE",
            Self::Refused { refusal: Refusal::InvalidSplit { .. }, .. } => "INVALID_SPLIT",
            Self::Refused { refusal: Refusal::InvalidCause(_), .. } => "INVALID_REASON",
            Self::Linkage { .. } => "ESCROW_LINKAGE_ERROR",
            Self::Reused => "ALREADY_USED_KEY",
            Self::OtherPayee(_) => "INVALID_REQUEST",
            Self::Purse(failed) => failed.code(),
            Self::Store(_) => "SERVICE_QUEUE_UNAVAILABLE",
        }
    }

    /// What to do about it.
    pub(crate) const fn action(&self) -> Action {
        match self {
            Self::Off
            | Self::Unknown(_)
            | Self::Refused { .. }
            | Self::Linkage { .. }
            | Self::Reused
            | Self::OtherPayee(_) => Action::FixRequest,
            Self::Purse(failed) => failed.action(),
            Self::Store(_) => Action::RetryLater,
        }
    }
}
