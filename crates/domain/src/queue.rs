//! The life of a queue item: queued, taken up, then exactly one of finished, abandoned or partial.
//!
//! The queue decides what becomes of an escrow, and the wallet does it: an end is first a [`Ruling`] with a command for the
//! wallet, and the item ends when the escrow has. So an item that was not seen to end, because its process died between the
//! two, ends as its escrow did ([`Item::ended_as`]).
//!
//! # Invariants
//! - An item ends once, and an ended item never changes.
//! - What an item's end says of money is what its escrow's end did: the verdict is the one source of both. Only an item that
//!   came when another had ended its escrow has no money to say anything of; it is abandoned.

use crate::escrow::{self, Ruling};
use crate::id::{EscrowId, ItemId, Label, OwnerId, PayeeId};
use crate::money::CreditUnit;
use crate::time::{Span, Timestamp};
use std::cmp::Reverse;
use std::fmt;
use std::str::FromStr;

/// Why an item ends as it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The work was done.
    PerformanceCompleted,
    /// The user went away.
    UserDisconnected,
    /// The payee would not do it.
    PerformerDeclined,
    /// Nobody took it up in time.
    RopeDropTimeout,
    /// An operator ended it.
    AdminCancelled,
    /// A part of the work was done.
    PartialDelivery,
    /// The work was not good enough.
    QualityIssue,
}

impl Cause {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::PerformanceCompleted,
        Self::UserDisconnected,
        Self::PerformerDeclined,
        Self::RopeDropTimeout,
        Self::AdminCancelled,
        Self::PartialDelivery,
        Self::QualityIssue,
    ];

    /// Its name on the wire and in the records.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::PerformanceCompleted => "performance_completed",
            Self::UserDisconnected => "user_disconnected",
            Self::PerformerDeclined => "performer_declined",
            Self::RopeDropTimeout => "rope_drop_timeout",
            Self::AdminCancelled => "admin_cancelled",
            Self::PartialDelivery => "partial_delivery",
            Self::QualityIssue => "quality_issue",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A text that names no [`Cause`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotACause;

impl fmt::Display for NotACause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Cause::ALL.map(Cause::name).join(", ");
        write!(f, "a reason is one of {names}")
    }
}
impl std::error::Error for NotACause {}

impl FromStr for Cause {
    type Err = NotACause;
    fn from_str(text: &str) -> Result<Self, NotACause> {
        Self::ALL.into_iter().find(|cause| cause.name() == text).ok_or(NotACause)
    }
}

/// What is asked for at intake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Intake {
    /// Its name.
    pub id: ItemId,
    /// Who pays.
    pub user: OwnerId,
    /// Who is to do the work, and earns the escrow.
    pub payee: PayeeId,
    /// What pays for it.
    pub escrow: EscrowId,
    /// How much that is.
    pub amount: CreditUnit,
    /// What kind of work it is.
    pub feature: Label,
    /// The higher goes first.
    pub priority: i32,
    /// The caller's own words about it: a JSON object, which nobody here reads.
    pub metadata: Option<Box<str>>,
}

/// A piece of work, and the escrow that pays for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// What it is.
    pub intake: Intake,
    /// When it came.
    pub queued_at: Timestamp,
    /// How far it is.
    pub stage: Stage,
}

/// How far an item is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// It waits for its payee.
    Queued {
        /// When it is given up, if nobody has taken it up by then.
        drop_at: Option<Timestamp>,
    },
    /// Its payee is at it.
    InProgress {
        /// Since when.
        started_at: Timestamp,
    },
    /// It is over.
    Ended(End),
}

/// The end of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// What became of it.
    pub verdict: Verdict,
    /// When it was taken up, if it was.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Timestamp,
}

/// What the queue decides about an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The work was done: the payee gets all of it.
    Finish,
    /// It will not be done: the user gets all of it back.
    Abandon {
        /// Why.
        cause: Cause,
    },
    /// A part was done: both get their part.
    Partial {
        /// What the payee gets.
        settle: CreditUnit,
        /// What the user gets back.
        refund: CreditUnit,
        /// Why.
        cause: Cause,
    },
}

impl Verdict {
    /// Why it is so.
    #[must_use]
    pub const fn cause(self) -> Cause {
        match self {
            Self::Finish => Cause::PerformanceCompleted,
            Self::Abandon { cause } | Self::Partial { cause, .. } => cause,
        }
    }

    /// The state that it ends an item in.
    #[must_use]
    pub const fn state(self) -> State {
        match self {
            Self::Finish => State::Finished,
            Self::Abandon { .. } => State::Abandoned,
            Self::Partial { .. } => State::Partial,
        }
    }

    /// The name of what the wallet does about it: the end of its idempotency key.
    #[must_use]
    pub const fn operation(self) -> &'static str {
        match self {
            Self::Finish => "settle",
            Self::Abandon { .. } => "refund",
            Self::Partial { .. } => "partial",
        }
    }
}

/// The name of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// [`Stage::Queued`].
    Queued,
    /// [`Stage::InProgress`].
    InProgress,
    /// Ended by [`Verdict::Finish`].
    Finished,
    /// Ended by [`Verdict::Abandon`].
    Abandoned,
    /// Ended by [`Verdict::Partial`].
    Partial,
}

impl State {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Queued, Self::InProgress, Self::Finished, Self::Abandoned, Self::Partial];

    /// Its name on the wire and in the records.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::InProgress => "in_progress",
            Self::Finished => "finished",
            Self::Abandoned => "abandoned",
            Self::Partial => "partial",
        }
    }

    /// Whether nothing can follow.
    #[must_use]
    pub const fn is_end(self) -> bool {
        match self {
            Self::Queued | Self::InProgress => false,
            Self::Finished | Self::Abandoned | Self::Partial => true,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Why something was not done. Nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// It is not in a state in which this can be done.
    InvalidState {
        /// The state that it is in.
        current: State,
        /// Those that it would have to be in.
        expected: &'static [State],
    },
    /// The two parts do not add up to the escrow.
    InvalidSplit {
        /// What they must add up to.
        amount: CreditUnit,
    },
    /// Work that was done is not a reason to give money back.
    InvalidCause(Cause),
}

/// What the escrow that an item waits for says to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    /// What the wallet is to do.
    pub command: escrow::Command,
    /// On what word.
    pub ruling: Ruling,
}

/// A new item. Whether its escrow is good for it is seen by [`accepts`].
#[must_use]
pub fn enqueue(intake: Intake, now: Timestamp, rope_drop: Option<Span>) -> Item {
    Item { intake, queued_at: now, stage: Stage::Queued { drop_at: rope_drop.map(|span| now.after(span)) } }
}

/// Whether an escrow is good for an item: held, and of the same user, amount and kind of work. That no other item has it is
/// the store's guard.
#[must_use]
pub fn accepts(intake: &Intake, escrow: &escrow::Escrow, owner: OwnerId) -> bool {
    let escrow::Escrow::Held(held) = escrow else { return false };
    owner == intake.user && held.amount == intake.amount && held.feature == intake.feature
}

impl Item {
    /// The name of its state.
    #[must_use]
    pub const fn state(&self) -> State {
        match self.stage {
            Stage::Queued { .. } => State::Queued,
            Stage::InProgress { .. } => State::InProgress,
            Stage::Ended(end) => end.verdict.state(),
        }
    }

    /// When it was taken up, if it was.
    #[must_use]
    pub const fn started_at(&self) -> Option<Timestamp> {
        match self.stage {
            Stage::Queued { .. } => None,
            Stage::InProgress { started_at } => Some(started_at),
            Stage::Ended(end) => end.started_at,
        }
    }

    /// Who goes first: the higher priority, then the older, then the smaller name.
    #[must_use]
    pub const fn rank(&self) -> Rank {
        (Reverse(self.intake.priority), self.queued_at, self.intake.id)
    }

    /// Whether nobody has taken it up in time.
    #[must_use]
    pub fn is_overdue(&self, now: Timestamp) -> bool {
        matches!(self.stage, Stage::Queued { drop_at: Some(at) } if at <= now)
    }

    /// The item as its payee takes it up.
    pub fn start(&self, now: Timestamp) -> Result<Self, Refusal> {
        match self.stage {
            Stage::Queued { .. } => Ok(Self { stage: Stage::InProgress { started_at: now }, ..self.clone() }),
            Stage::InProgress { .. } | Stage::Ended(_) => Err(self.not_in(&[State::Queued])),
        }
    }

    /// What the wallet is to do for `verdict`.
    pub fn order(&self, verdict: Verdict) -> Result<Order, Refusal> {
        let Intake { id: item, payee, amount, .. } = self.intake;
        let command = match verdict {
            Verdict::Finish => escrow::Command::Settle { payee },
            Verdict::Abandon { .. } => escrow::Command::Refund,
            Verdict::Partial { settle, refund, .. } => escrow::Command::PartialSettle { payee, settle, refund },
        };
        self.may_end(verdict)?;
        match verdict {
            Verdict::Abandon { cause } | Verdict::Partial { cause, .. } if cause == Cause::PerformanceCompleted => {
                return Err(Refusal::InvalidCause(cause));
            }
            Verdict::Partial { settle, refund, .. } if settle.checked_add(refund) != Ok(amount) => {
                return Err(Refusal::InvalidSplit { amount });
            }
            Verdict::Finish | Verdict::Abandon { .. } | Verdict::Partial { .. } => {}
        }
        Ok(Order { command, ruling: Ruling { item, cause: verdict.cause() } })
    }

    /// The item after its escrow ended so. Whether it may end so was asked by [`Item::order`]: now the money has moved, and an
    /// item that has not ended follows it, even one that an operator has ended from outside before it was taken up.
    pub fn end(&self, verdict: Verdict, now: Timestamp) -> Result<Self, Refusal> {
        if self.state().is_end() {
            self.may_end(verdict)?;
        }
        let end = End { verdict, started_at: self.started_at(), ended_at: now };
        Ok(Self { stage: Stage::Ended(end), ..self.clone() })
    }

    /// The item as its escrow says that it ended, whatever the queue saw of it: the money has moved.
    ///
    /// `None` if the escrow still holds its money, or if the item has ended. An escrow that an operator ended has no ruling.
    /// One that another item ended was never this one's, which came too late for it: there is nothing to do the work for.
    #[must_use]
    pub fn ended_as(&self, escrow: &escrow::Event, ruling: Option<Ruling>, at: Timestamp) -> Option<Self> {
        if self.state().is_end() {
            return None;
        }
        let cause = ruling.map_or(Cause::AdminCancelled, |ruling| ruling.cause);
        let is_of_another = ruling.is_some_and(|ruling| ruling.item != self.intake.id);
        let verdict = match *escrow {
            escrow::Event::Held(_) => return None,
            escrow::Event::Settled { .. } | escrow::Event::Refunded { .. } | escrow::Event::PartiallySettled { .. }
                if is_of_another =>
            {
                Verdict::Abandon { cause: Cause::AdminCancelled }
            }
            escrow::Event::Settled { .. } => Verdict::Finish,
            escrow::Event::Refunded { .. } => Verdict::Abandon { cause },
            escrow::Event::PartiallySettled { settled, refunded, .. } => {
                Verdict::Partial { settle: settled, refund: refunded, cause }
            }
        };
        self.end(verdict, at).ok()
    }

    fn may_end(&self, verdict: Verdict) -> Result<(), Refusal> {
        const STARTED: &[State] = &[State::InProgress];
        const OPEN: &[State] = &[State::Queued, State::InProgress];
        match (self.stage, verdict) {
            (Stage::InProgress { .. }, _) | (Stage::Queued { .. }, Verdict::Abandon { .. }) => Ok(()),
            (Stage::Ended(_), Verdict::Abandon { .. }) => Err(self.not_in(OPEN)),
            (Stage::Queued { .. } | Stage::Ended(_), Verdict::Finish | Verdict::Partial { .. }) => {
                Err(self.not_in(STARTED))
            }
        }
    }

    const fn not_in(&self, expected: &'static [State]) -> Refusal {
        Refusal::InvalidState { current: self.state(), expected }
    }
}

/// A place in the order of a queue.
pub type Rank = (Reverse<i32>, Timestamp, ItemId);
