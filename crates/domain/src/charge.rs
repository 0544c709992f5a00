//! The life of a charge: reserve, commit, release, auto-release, void, and the peer's word on it.
//!
//! ```text
//!  (none) ─reserve─▶ Held ─commit──▶ Committed ─ack──▶ Acked
//!                     │ │               │  └──fail──▶ Failed ─ack (replay)─▶ Acked
//!                     │ └─expire─▶ AutoReleased ─commit (late)─▶ Committed
//!                     └─release─▶ Released        Committed | Acked | Failed ─void─▶ Voided
//! ```
//!
//! `decide` says what a command would do, as an event; `apply` is the only way the state changes, and refuses an event that
//! cannot follow. Commit, release and expiry race through one writer: whoever is decided first wins, the others are told the
//! state that they find.
//!
//! # Invariants
//! - **Complete**: a hold ends in exactly one of committed, released or auto-released.
//! - **Frozen rates**: a commit by usage is priced by the [`Terms`] of the reserve.
//! - A charge never takes more than the hold and, where the terms say so, what is available: no balance goes negative.

use crate::id::{OwnerId, Reason};
use crate::money::{CreditUnit, Overflow};
use crate::price::{Rates, Rounding, Usage};
use crate::time::{Span, Timestamp};
use std::fmt;

/// The longest that a hold may be asked to live: a year.
pub const TTL_MAX: Span = Span::from_secs(366 * 24 * 60 * 60);

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
    /// Given back because nobody settled it in time.
    AutoReleased(Closed),
}

/// An open hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold {
    /// Whose credits are held.
    pub owner: OwnerId,
    /// What is still set aside.
    pub held: CreditUnit,
    /// What partial commits have already charged.
    pub charged: CreditUnit,
    /// What partial commits could not collect.
    pub uncollected: CreditUnit,
    /// Whether the work has been sent upstream.
    pub stage: Stage,
    /// What was agreed at reserve.
    pub terms: Terms,
    /// When the hold is given back if nobody settles it.
    pub expires_at: Timestamp,
}

/// What is left to know of a charge whose hold has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closed {
    /// Whose charge it was.
    pub owner: OwnerId,
    /// What was charged in all.
    pub charged: CreditUnit,
    /// What the work cost beyond what could be charged.
    pub uncollected: CreditUnit,
    /// What the hold gave back when it ended.
    pub returned: CreditUnit,
    /// What was agreed at reserve: a late result is still settled by it.
    pub terms: Terms,
}

/// How far the work that a hold pays for has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Nothing has been sent upstream: expiry releases.
    Reserved,
    /// Work has started: expiry follows [`OnExpiry`].
    InFlight,
}

/// What a charge is settled by, frozen at reserve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Prices, if the charge is to be settled by usage.
    pub rates: Option<Rates>,
    /// What happens to cost above the hold.
    pub overrun: Overrun,
    /// What happens to a hold in flight that nobody settles.
    pub on_expiry: OnExpiry,
}

/// What a commit above the hold does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overrun {
    /// Charge the hold; the rest is recorded as uncollected.
    Cap,
    /// Charge the hold, then what is available; the rest is recorded as uncollected.
    Available,
    /// Refuse the commit; the hold stays.
    Refuse,
}

/// What expiry does to a hold whose work has started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnExpiry {
    /// Give it back.
    Release,
    /// Charge all of it.
    ChargeEstimate,
}

/// A request to set money aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reserve {
    /// Whose credits to hold.
    pub owner: OwnerId,
    /// How much.
    pub amount: CreditUnit,
    /// What to freeze.
    pub terms: Terms,
    /// How long the hold lives.
    pub ttl: Span,
}

/// What can be asked of a charge that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// The work has been sent upstream.
    Start,
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
        /// Whether the hold ends with it.
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
    Ack,
    /// The peer could not be told within the retries.
    Fail {
        /// Its last word.
        reason: Reason,
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

/// Whether a commit ends its hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finality {
    /// The rest of the hold is given back.
    Final,
    /// The rest of the hold stays.
    Partial,
}

/// What happened to a charge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Money was set aside.
    Reserved {
        /// Whose.
        owner: OwnerId,
        /// How much.
        amount: CreditUnit,
        /// What was frozen.
        terms: Terms,
        /// When it ends by itself.
        expires_at: Timestamp,
    },
    /// Work was sent upstream.
    Started,
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
        /// Whether the hold ended.
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

/// Decides a reserve. Whether the owner can pay for it is the guard of the entry that it becomes.
pub fn reserve(request: &Reserve, now: Timestamp) -> Result<Event, Refusal> {
    let Reserve { owner, amount, terms, ttl } = *request;
    if amount.is_zero() {
        return Err(Refusal::ZeroAmount);
    }
    Ok(Event::Reserved { owner, amount, terms, expires_at: now.after(valid(ttl)?) })
}

fn valid(ttl: Span) -> Result<Span, Refusal> {
    if ttl.millis() == 0 || ttl > TTL_MAX { Err(Refusal::InvalidTtl) } else { Ok(ttl) }
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

    /// Whose charge it is.
    #[must_use]
    pub const fn owner(&self) -> OwnerId {
        match self {
            Self::Held(hold) => hold.owner,
            Self::Committed(closed)
            | Self::Acked(closed)
            | Self::Failed(closed)
            | Self::Voided(closed)
            | Self::Released(closed)
            | Self::AutoReleased(closed) => closed.owner,
        }
    }

    /// What `command` does to this charge.
    pub fn decide(&self, command: Command, context: &Context) -> Result<Event, Refusal> {
        match (self, command) {
            (Self::Held(hold), command) => hold.decide(command, context),
            (Self::AutoReleased(closed), Command::Commit { actual, .. }) => {
                let taken = closed.late(actual, context.available)?;
                Ok(Event::Committed { taken, finality: Finality::Final })
            }
            (Self::Committed(_), Command::Ack) | (Self::Failed(_), Command::Ack) => Ok(Event::Acked),
            (Self::Committed(_), Command::Fail { reason }) => Ok(Event::Failed { reason }),
            (Self::Committed(closed) | Self::Acked(closed) | Self::Failed(closed), Command::Void { reason }) => {
                Ok(Event::Voided { returned: closed.charged, reason })
            }
            // A part that was charged before the rest expired can be taken back like any other charge.
            (Self::AutoReleased(closed), Command::Void { reason }) if !closed.charged.is_zero() => {
                Ok(Event::Voided { returned: closed.charged, reason })
            }
            (
                Self::Committed(_)
                | Self::Acked(_)
                | Self::Failed(_)
                | Self::Voided(_)
                | Self::Released(_)
                | Self::AutoReleased(_),
                Command::Start
                | Command::Increase { .. }
                | Command::Extend { .. }
                | Command::Commit { .. }
                | Command::Release
                | Command::Expire
                | Command::Void { .. }
                | Command::Ack
                | Command::Fail { .. },
            ) => Err(Refusal::InvalidState(self.state())),
        }
    }

    /// The charge after `event`. An event that cannot follow means that the journal is corrupt.
    pub fn apply(charge: Option<Self>, event: &Event) -> Result<Self, CannotFollow> {
        let cannot_follow = CannotFollow { state: charge.map(|charge| charge.state()) };
        let next = match (charge, event) {
            (None, Event::Reserved { owner, amount, terms, expires_at }) if !amount.is_zero() => {
                Some(Self::Held(Hold {
                    owner: *owner,
                    held: *amount,
                    charged: CreditUnit::ZERO,
                    uncollected: CreditUnit::ZERO,
                    stage: Stage::Reserved,
                    terms: *terms,
                    expires_at: *expires_at,
                }))
            }
            (Some(Self::Held(hold)), event) => hold.apply(event),
            (Some(Self::AutoReleased(closed)), Event::Committed { taken, finality: Finality::Final }) => {
                closed.after_late(taken).map(Self::Committed)
            }
            (Some(Self::Committed(closed) | Self::Failed(closed)), Event::Acked) => Some(Self::Acked(closed)),
            (Some(Self::Committed(closed)), Event::Failed { .. }) => Some(Self::Failed(closed)),
            (
                Some(Self::Committed(closed) | Self::Acked(closed) | Self::Failed(closed)),
                Event::Voided { returned, .. },
            ) if *returned == closed.charged => Some(Self::Voided(closed)),
            (Some(Self::AutoReleased(closed)), Event::Voided { returned, .. })
                if *returned == closed.charged && !returned.is_zero() =>
            {
                Some(Self::Voided(closed))
            }
            (_, _) => None,
        };
        next.ok_or(cannot_follow)
    }
}

/// An event that cannot follow the state before it: the record is corrupt, and nothing may be built on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CannotFollow {
    /// The state that it met.
    pub state: Option<State>,
}

impl Hold {
    fn decide(&self, command: Command, context: &Context) -> Result<Event, Refusal> {
        match command {
            Command::Start if self.stage == Stage::Reserved => Ok(Event::Started),
            Command::Increase { amount } if amount.is_zero() => Err(Refusal::ZeroAmount),
            Command::Increase { amount } => {
                self.increased(amount)?;
                Ok(Event::Increased { amount })
            }
            Command::Extend { ttl } => {
                let expires_at = context.now.after(valid(ttl)?).max(self.expires_at);
                Ok(Event::Extended { expires_at })
            }
            Command::Commit { actual, finality } => {
                let taken = self.commit(actual, finality, context.available)?;
                Ok(Event::Committed { taken, finality })
            }
            Command::Release => Ok(Event::Released { returned: self.held }),
            // Whoever asks for expiry may have looked before the hold was extended: the time is checked here, in its turn.
            Command::Expire if self.expires_at <= context.now => Ok(self.expire()),
            Command::Start | Command::Expire | Command::Void { .. } | Command::Ack | Command::Fail { .. } => {
                Err(Refusal::InvalidState(State::Held))
            }
        }
    }

    fn commit(&self, actual: Actual, finality: Finality, available: CreditUnit) -> Result<Taken, Refusal> {
        let cost = cost(actual, &self.terms)?;
        if cost.is_zero() && finality == Finality::Partial {
            return Err(Refusal::ZeroAmount);
        }
        let from_hold = cost.min(self.held);
        let overrun = self.held.shortfall(cost);
        let from_available = match self.terms.overrun {
            Overrun::Refuse if !overrun.is_zero() => return Err(Refusal::ExceedsHold { chargeable: self.held }),
            Overrun::Refuse | Overrun::Cap => CreditUnit::ZERO,
            Overrun::Available => overrun.min(available),
        };
        let rest = self.held.checked_sub(from_hold)?;
        let returned = match finality {
            Finality::Final => rest,
            Finality::Partial => CreditUnit::ZERO,
        };
        let taken = Taken { from_hold, from_available, returned, uncollected: overrun.checked_sub(from_available)? };
        self.charged_by(&taken)?;
        Ok(taken)
    }

    fn expire(&self) -> Event {
        match (self.stage, self.terms.on_expiry) {
            (Stage::InFlight, OnExpiry::ChargeEstimate) => Event::Committed {
                taken: Taken {
                    from_hold: self.held,
                    from_available: CreditUnit::ZERO,
                    returned: CreditUnit::ZERO,
                    uncollected: CreditUnit::ZERO,
                },
                finality: Finality::Final,
            },
            (Stage::Reserved, _) | (Stage::InFlight, OnExpiry::Release) => Event::AutoReleased { returned: self.held },
        }
    }

    fn apply(self, event: &Event) -> Option<Charge> {
        match event {
            Event::Started if self.stage == Stage::Reserved => {
                Some(Charge::Held(Self { stage: Stage::InFlight, ..self }))
            }
            Event::Increased { amount } if !amount.is_zero() => self.increased(*amount).ok().map(Charge::Held),
            Event::Extended { expires_at } => {
                (*expires_at >= self.expires_at).then_some(Charge::Held(Self { expires_at: *expires_at, ..self }))
            }
            Event::Committed { taken, finality } => self.after_commit(taken, *finality),
            Event::Released { returned } if *returned == self.held => {
                // Giving back the rest of a hold that was charged in part leaves a charge, not a release.
                let closed = self.close(*returned);
                Some(if self.charged.is_zero() { Charge::Released(closed) } else { Charge::Committed(closed) })
            }
            Event::AutoReleased { returned } if *returned == self.held => {
                Some(Charge::AutoReleased(self.close(*returned)))
            }
            Event::Started
            | Event::Reserved { .. }
            | Event::Increased { .. }
            | Event::Released { .. }
            | Event::AutoReleased { .. }
            | Event::Voided { .. }
            | Event::Acked
            | Event::Failed { .. } => None,
        }
    }

    /// Replay verifies: the money must have been taken as this hold decides it again for the same cost.
    fn after_commit(self, taken: &Taken, finality: Finality) -> Option<Charge> {
        let again = self.commit(Actual::Credits(taken.cost().ok()?), finality, taken.from_available).ok()?;
        if again != *taken {
            return None;
        }
        let hold = self.charged_by(taken).ok()?;
        match finality {
            Finality::Partial => Some(Charge::Held(hold)),
            Finality::Final => hold.held.is_zero().then_some(Charge::Committed(hold.close(taken.returned))),
        }
    }

    fn increased(self, amount: CreditUnit) -> Result<Self, Overflow> {
        Self { held: self.held.checked_add(amount)?, ..self }.in_range()
    }

    fn charged_by(self, taken: &Taken) -> Result<Self, Overflow> {
        let held = self.held.checked_sub(taken.from_hold)?.checked_sub(taken.returned)?;
        let charged = self.charged.checked_add(taken.charged()?)?;
        let uncollected = self.uncollected.checked_add(taken.uncollected)?;
        Self { held, charged, uncollected, ..self }.in_range()
    }

    /// What is still held can be charged on top of what was, or expiry could decide a charge that nobody can read back.
    fn in_range(self) -> Result<Self, Overflow> {
        self.charged.checked_add(self.held).map(|_| self)
    }

    fn close(self, returned: CreditUnit) -> Closed {
        let Self { owner, charged, uncollected, terms, .. } = self;
        Closed { owner, charged, uncollected, returned, terms }
    }
}

impl Closed {
    /// A result that comes after the hold was given back is posted against what is available, by the agreed policy.
    fn late(&self, actual: Actual, available: CreditUnit) -> Result<Taken, Refusal> {
        let cost = cost(actual, &self.terms)?;
        let chargeable = match self.terms.overrun {
            Overrun::Cap | Overrun::Refuse => self.returned.min(available),
            Overrun::Available => available,
        };
        if self.terms.overrun == Overrun::Refuse && cost > chargeable {
            return Err(Refusal::ExceedsHold { chargeable });
        }
        let from_available = cost.min(chargeable);
        let taken = Taken {
            from_hold: CreditUnit::ZERO,
            from_available,
            returned: CreditUnit::ZERO,
            uncollected: cost.checked_sub(from_available)?,
        };
        self.charged_by(&taken)?;
        Ok(taken)
    }

    /// Replay verifies, as it does for a hold.
    fn after_late(self, taken: &Taken) -> Option<Self> {
        let again = self.late(Actual::Credits(taken.cost().ok()?), taken.from_available).ok()?;
        if again == *taken { self.charged_by(taken).ok() } else { None }
    }

    fn charged_by(self, taken: &Taken) -> Result<Self, Overflow> {
        let charged = self.charged.checked_add(taken.charged()?)?;
        let uncollected = self.uncollected.checked_add(taken.uncollected)?;
        Ok(Self { charged, uncollected, ..self })
    }
}

/// The cost in credits, rounded down: a charge never takes a fraction that was not used.
fn cost(actual: Actual, terms: &Terms) -> Result<CreditUnit, Refusal> {
    match actual {
        Actual::Credits(amount) => Ok(amount),
        Actual::Usage(usage) => {
            let rates = terms.rates.ok_or(Refusal::NoFrozenRates)?;
            Ok(rates.cost(usage, Rounding::Down)?)
        }
    }
}
