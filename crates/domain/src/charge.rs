//! The life of a charge: reserve, commit, release, auto-release, void, and the peer's word on it.
//!
//! ```text
//!  (none) ─reserve─▶ Held ─commit──▶ Committed ─ack──▶ Acked
//!                     │ │               │  └──fail──▶ Failed ─ack (replay)─▶ Acked
//!                     │ └─expire─▶ AutoReleased ─commit (late)─▶ Committed
//!                     └─release─▶ Released        Committed | Acked | Failed ─void─▶ Voided
//! ```
//!
//! A hold that was charged in part ends as Committed, even by release or expiry: the peer must learn of that part.
//! After an expiry that gave the rest back, late results are still charged, until one is final or the charge is voided:
//! AutoReleased takes late parts as it is, and Committed, Acked and Failed go (back) to Committed with the new total.
//!
//! `decide` says what a command would do, as an event; `apply` is the only way the state changes, and refuses an event that
//! cannot follow. Commit, release and expiry race through one writer: whoever is decided first wins, the others are told the
//! state that they find.
//!
//! Whose charge it is stands in the entry ([`crate::Event`]), not here: an owner never changes.
//!
//! # Invariants
//! - **Complete**: a hold ends in exactly one of committed, released or auto-released.
//! - **Frozen rates**: a commit by usage is priced by the [`Terms`] of the reserve.
//! - A charge never takes more than the hold and, where the terms say so, what is available: no balance goes negative.
//!   Late results together take no more than the hold gave back, unless the terms say so.

mod closed;
mod hold;
mod terms;

pub use closed::{Closed, Ended};
pub use hold::{Hold, Reserve, Stage, TTL_MAX, reserve};
pub use terms::{OnExpiry, Overrun, Terms};

use crate::budget::Budgets;
use crate::id::Reason;
use crate::money::{CreditUnit, Overflow};
use crate::price::Usage;
use crate::time::{Span, Timestamp};
use std::fmt;

/// A charge as it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Charge {
    /// Money is set aside and the work is not yet paid.
    Held(Hold),
    /// Paid here; the peer does not know yet (`FINALIZE_PENDING`).
    Committed(Closed),
    /// Paid, and the peer has acknowledged it.
    Acked(Closed),
    /// Paid, and the peer could not be told within the retries.
    Failed(Closed),
    /// Paid and then taken back by a compensating entry.
    Voided(Closed),
    /// Given back unspent.
    Released(Closed),
    /// Given back because nobody settled it in time; late parts may have been charged since.
    AutoReleased(Closed),
}

impl Charge {
    /// The name of its state.
    #[must_use]
    pub const fn state(&self) -> State {
        match self {
            Self::Held(_) => State::Held,
            Self::Committed(_) => State::Committed,
            Self::Acked(_) => State::Acked,
            Self::Failed(_) => State::Failed,
            Self::Voided(_) => State::Voided,
            Self::Released(_) => State::Released,
            Self::AutoReleased(_) => State::AutoReleased,
        }
    }

    /// What `command` does to this charge.
    pub fn decide(&self, command: &Command, context: &Context) -> Result<Event, Refusal> {
        match (self, command) {
            (Self::Held(hold), command) => hold.decide(command, context),
            (
                Self::AutoReleased(closed) | Self::Committed(closed) | Self::Acked(closed) | Self::Failed(closed),
                Command::Commit { actual, finality },
            ) if closed.ended == Ended::Expired => {
                let taken = closed.late(*actual, *finality, context.available)?;
                Ok(Event::Committed { taken, finality: *finality })
            }
            (Self::Committed(closed) | Self::Failed(closed), Command::Ack { charged }) if closed.is_still(*charged) => {
                Ok(Event::Acked)
            }
            (Self::Committed(closed), Command::Fail { reason, charged }) if closed.is_still(*charged) => {
                Ok(Event::Failed { reason: reason.clone() })
            }
            (Self::Committed(closed) | Self::Acked(closed) | Self::Failed(closed), Command::Void { reason }) => {
                Ok(Event::Voided { returned: closed.charged, reason: reason.clone() })
            }
            // A late part can be taken back like any other charge, also while the final one is missing.
            (Self::AutoReleased(closed), Command::Void { reason }) if !closed.charged.is_zero() => {
                Ok(Event::Voided { returned: closed.charged, reason: reason.clone() })
            }
            (
                Self::Committed(_)
                | Self::Acked(_)
                | Self::Failed(_)
                | Self::Voided(_)
                | Self::Released(_)
                | Self::AutoReleased(_),
                Command::Start
                | Command::Note { .. }
                | Command::Abandon
                | Command::Increase { .. }
                | Command::Extend { .. }
                | Command::Commit { .. }
                | Command::Release
                | Command::Expire
                | Command::Void { .. }
                | Command::Ack { .. }
                | Command::Fail { .. },
            ) => Err(Refusal::InvalidState(self.state())),
        }
    }

    /// The charge after `event`. An event that cannot follow means that the journal is corrupt.
    pub fn apply(charge: Option<Self>, event: &Event) -> Result<Self, CannotFollow> {
        let cannot_follow = CannotFollow { state: charge.map(|charge| charge.state()) };
        let next = match (charge, event) {
            (None, Event::Reserved { amount, terms, expires_at, budgets: _ }) if !amount.is_zero() => {
                Some(Self::Held(Hold::open(*amount, *terms, *expires_at)))
            }
            (Some(Self::Held(hold)), event) => hold.apply(event),
            (Some(Self::AutoReleased(closed)), Event::Committed { taken, finality: Finality::Partial }) => {
                closed.after_late(taken, Finality::Partial).map(Self::AutoReleased)
            }
            (
                Some(Self::AutoReleased(closed) | Self::Committed(closed) | Self::Acked(closed) | Self::Failed(closed)),
                Event::Committed { taken, finality },
            ) => closed.after_late(taken, *finality).map(Self::Committed),
            (Some(Self::Committed(closed) | Self::Failed(closed)), Event::Acked) => Some(Self::Acked(closed)),
            (Some(Self::Committed(closed)), Event::Failed { .. }) => Some(Self::Failed(closed)),
            (
                Some(Self::Committed(closed) | Self::Acked(closed) | Self::Failed(closed)),
                Event::Voided { returned, .. },
            ) if *returned == closed.charged => Some(Self::Voided(closed.settled())),
            (Some(Self::AutoReleased(closed)), Event::Voided { returned, .. })
                if *returned == closed.charged && !returned.is_zero() =>
            {
                Some(Self::Voided(closed.settled()))
            }
            (_, _) => None,
        };
        next.ok_or(cannot_follow)
    }
}

/// What can be asked of a charge that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// The work has been sent upstream.
    Start,
    /// Note how much has been delivered so far, in case nobody can tell later.
    Note {
        /// Its cost.
        actual: Actual,
    },
    /// Whoever did the work is gone: charge what was noted, give the rest back.
    Abandon,
    /// Hold more.
    Increase {
        /// By how much.
        amount: CreditUnit,
    },
    /// Hold for longer: until `ttl` from now, and never for less than before.
    Extend {
        /// From now.
        ttl: Span,
    },
    /// Charge what the work cost.
    Commit {
        /// The cost.
        actual: Actual,
        /// Whether it is the last.
        finality: Finality,
    },
    /// Give the hold back.
    Release,
    /// The hold's time has come; refused while it has not.
    Expire,
    /// Take a charge back.
    Void {
        /// Why.
        reason: Reason,
    },
    /// The peer has acknowledged the charge.
    Ack {
        /// What it was told in all, from whoever told it: refused if more has been charged since. A person need not say.
        charged: Option<CreditUnit>,
    },
    /// The peer could not be told within the retries.
    Fail {
        /// Its last word.
        reason: Reason,
        /// What it should have been told in all; as for an acknowledgement.
        charged: Option<CreditUnit>,
    },
}

/// What the work cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Actual {
    /// In credits.
    Credits(CreditUnit),
    /// In tokens, to be priced by the frozen rates.
    Usage(Usage),
}

/// Whether a commit is the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finality {
    /// The rest of the hold is given back, and nothing more is charged.
    Final,
    /// The rest of the hold stays; of a hold that has expired, more may come.
    Partial,
}

/// What happened to a charge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Money was set aside.
    Reserved {
        /// How much.
        amount: CreditUnit,
        /// What was frozen.
        terms: Terms,
        /// When it ends by itself.
        expires_at: Timestamp,
        /// What it counts against.
        budgets: Budgets,
    },
    /// Work was sent upstream.
    Started,
    /// It was noted how much work has been delivered so far.
    Noted {
        /// What it costs.
        cost: CreditUnit,
    },
    /// More was set aside.
    Increased {
        /// By how much.
        amount: CreditUnit,
    },
    /// The hold lives longer.
    Extended {
        /// When it now ends by itself.
        expires_at: Timestamp,
    },
    /// A cost was charged.
    Committed {
        /// Where the money went.
        taken: Taken,
        /// Whether it was the last.
        finality: Finality,
    },
    /// The hold was given back.
    Released {
        /// How much came back.
        returned: CreditUnit,
    },
    /// The hold was given back because its time had come.
    AutoReleased {
        /// How much came back.
        returned: CreditUnit,
    },
    /// The charge was taken back.
    Voided {
        /// How much came back.
        returned: CreditUnit,
        /// Why.
        reason: Reason,
    },
    /// The peer acknowledged.
    Acked,
    /// The peer could not be told.
    Failed {
        /// Its last word.
        reason: Reason,
    },
}

/// Where the money of a commit came from and went to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// Charged from the hold.
    pub from_hold: CreditUnit,
    /// Charged from what was available.
    pub from_available: CreditUnit,
    /// Given back from the hold.
    pub returned: CreditUnit,
    /// Cost that could not be charged.
    pub uncollected: CreditUnit,
}

impl Taken {
    /// What was charged in all.
    pub fn charged(&self) -> Result<CreditUnit, Overflow> {
        self.from_hold.checked_add(self.from_available)
    }

    /// What the work cost: what was charged, and what could not be.
    fn cost(&self) -> Result<CreditUnit, Overflow> {
        self.charged()?.checked_add(self.uncollected)
    }
}

/// What a decision may look at besides the charge itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context {
    /// The moment of the decision.
    pub now: Timestamp,
    /// What the owner can spend.
    pub available: CreditUnit,
}

/// Why a command was not done. Nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The charge is in another state than the command needs; the caller is told which.
    InvalidState(State),
    /// The cost is above the hold, and the terms say to refuse.
    ExceedsHold {
        /// What could have been charged.
        chargeable: CreditUnit,
    },
    /// An amount of zero where only a positive one makes sense.
    ZeroAmount,
    /// A life of zero, or beyond [`TTL_MAX`].
    InvalidTtl,
    /// A commit by usage on a hold that froze no rates.
    NoFrozenRates,
    /// A sum out of range.
    Overflow,
}

impl From<Overflow> for Refusal {
    fn from(Overflow: Overflow) -> Self {
        Self::Overflow
    }
}

/// The name of a state, for messages and for the guard that an entry carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// [`Charge::Held`].
    Held,
    /// [`Charge::Committed`].
    Committed,
    /// [`Charge::Acked`].
    Acked,
    /// [`Charge::Failed`].
    Failed,
    /// [`Charge::Voided`].
    Voided,
    /// [`Charge::Released`].
    Released,
    /// [`Charge::AutoReleased`].
    AutoReleased,
}

impl State {
    /// Its name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Held => "RESERVE_HELD",
            Self::Committed => "FINALIZE_PENDING",
            Self::Acked => "FINALIZE_ACKED",
            Self::Failed => "FINALIZE_FAILED",
            Self::Voided => "VOIDED",
            Self::Released => "RELEASED",
            Self::AutoReleased => "AUTO_RELEASED",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// An event that cannot follow the state before it: the record is corrupt, and nothing may be built on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CannotFollow {
    /// The state that it met.
    pub state: Option<State>,
}
