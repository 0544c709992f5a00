//! The open hold: how it is reserved, what can be asked of it, and how it ends.

use super::{
    Actual, Charge, Closed, Command, Context, Ended, Event, Finality, OnExpiry, Overrun, Refusal, State, Taken, Terms,
};
use crate::budget::Budgets;
use crate::id::OwnerId;
use crate::money::{CreditUnit, Overflow};
use crate::time::{Span, Timestamp};

/// An open hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold {
    /// What is still set aside.
    pub held: CreditUnit,
    /// What partial commits have already charged.
    pub charged: CreditUnit,
    /// What partial commits could not collect.
    pub uncollected: CreditUnit,
    /// What the work noted as delivered costs.
    pub noted: CreditUnit,
    /// Whether the work has been sent upstream.
    pub stage: Stage,
    /// What was agreed at reserve.
    pub terms: Terms,
    /// When the hold is given back if nobody settles it.
    pub expires_at: Timestamp,
}

/// How far the work that a hold pays for has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Nothing has been sent upstream: expiry releases.
    Reserved,
    /// Work has started: expiry follows [`OnExpiry`].
    InFlight,
}

/// The longest that a hold may be asked to live: a year.
pub const TTL_MAX: Span = Span::from_secs(366 * 24 * 60 * 60);

/// A request to set money aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reserve {
    /// Whose credits to hold.
    pub owner: OwnerId,
    /// How much.
    pub amount: CreditUnit,
    /// What to freeze.
    pub terms: Terms,
    /// How long the hold lives.
    pub ttl: Span,
    /// What it counts against. No part of what the caller asked for: a retry may find other limits.
    pub budgets: Budgets,
}

/// Decides a reserve. Whether the owner and the budgets can bear it is for whoever admits the entry that it becomes.
pub fn reserve(request: &Reserve, now: Timestamp) -> Result<Event, Refusal> {
    let Reserve { amount, terms, ttl, .. } = *request;
    let budgets = request.budgets.clone();
    if amount.is_zero() {
        return Err(Refusal::ZeroAmount);
    }
    Ok(Event::Reserved { amount, terms, expires_at: now.after(valid(ttl)?), budgets })
}

impl Hold {
    /// The hold that a reserve opens.
    pub(super) const fn open(amount: CreditUnit, terms: Terms, expires_at: Timestamp) -> Self {
        Self {
            held: amount,
            charged: CreditUnit::ZERO,
            uncollected: CreditUnit::ZERO,
            noted: CreditUnit::ZERO,
            stage: Stage::Reserved,
            terms,
            expires_at,
        }
    }

    pub(super) fn decide(&self, command: &Command, context: &Context) -> Result<Event, Refusal> {
        match command {
            Command::Start if self.stage == Stage::Reserved => Ok(Event::Started),
            // What was delivered costs as much as if nothing followed.
            Command::Note { actual } => {
                Ok(Event::Noted { cost: self.terms.cost(*actual, Finality::Final)?.max(self.noted) })
            }
            Command::Abandon => self.abandon(context.available),
            Command::Increase { amount } if amount.is_zero() => Err(Refusal::ZeroAmount),
            Command::Increase { amount } => {
                self.increased(*amount)?;
                Ok(Event::Increased { amount: *amount })
            }
            Command::Extend { ttl } => {
                let expires_at = context.now.after(valid(*ttl)?).max(self.expires_at);
                Ok(Event::Extended { expires_at })
            }
            Command::Commit { actual, finality } => {
                let taken = self.commit(*actual, *finality, context.available)?;
                Ok(Event::Committed { taken, finality: *finality })
            }
            Command::Release => Ok(Event::Released { returned: self.held }),
            // Whoever asks may have looked before the hold was extended, so the time is checked here, in its turn.
            Command::Expire if self.expires_at <= context.now => Ok(self.expire()),
            Command::Start | Command::Expire | Command::Void { .. } | Command::Ack { .. } | Command::Fail { .. } => {
                Err(Refusal::InvalidState(State::Held))
            }
        }
    }

    fn commit(&self, actual: Actual, finality: Finality, available: CreditUnit) -> Result<Taken, Refusal> {
        let cost = self.terms.cost(actual, finality)?;
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

    /// What was noted and not yet charged by a partial commit is charged. The caller's policy on overruns does not matter
    /// here: nobody is left to be told no.
    fn abandon(&self, available: CreditUnit) -> Result<Event, Refusal> {
        let cost = self.uncollected.shortfall(self.charged.shortfall(self.noted));
        if cost.is_zero() {
            return Ok(Event::Released { returned: self.held });
        }
        let cost = if self.terms.overrun == Overrun::Refuse { cost.min(self.held) } else { cost };
        let taken = self.commit(Actual::Credits(cost), Finality::Final, available)?;
        Ok(Event::Committed { taken, finality: Finality::Final })
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

    pub(super) fn apply(self, event: &Event) -> Option<Charge> {
        match event {
            Event::Started if self.stage == Stage::Reserved => {
                Some(Charge::Held(Self { stage: Stage::InFlight, ..self }))
            }
            Event::Noted { cost } if *cost >= self.noted => Some(Charge::Held(Self { noted: *cost, ..self })),
            Event::Increased { amount } if !amount.is_zero() => self.increased(*amount).ok().map(Charge::Held),
            Event::Extended { expires_at } => {
                (*expires_at >= self.expires_at).then_some(Charge::Held(Self { expires_at: *expires_at, ..self }))
            }
            Event::Committed { taken, finality } => self.after_commit(taken, *finality),
            Event::Released { returned } if *returned == self.held => {
                Some(self.given_back(Ended::Settled, Charge::Released))
            }
            Event::AutoReleased { returned } if *returned == self.held => {
                Some(self.given_back(Ended::Expired, Charge::AutoReleased))
            }
            Event::Started
            | Event::Reserved { .. }
            | Event::Noted { .. }
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
            Finality::Final => {
                let closed = hold.close(taken.returned, Ended::Settled);
                hold.held.is_zero().then_some(Charge::Committed(closed))
            }
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

    /// Giving back the rest of a hold that was charged in part leaves a charge that the peer must learn of.
    fn given_back(self, ended: Ended, uncharged: impl FnOnce(Closed) -> Charge) -> Charge {
        let closed = self.close(self.held, ended);
        if self.charged.is_zero() { uncharged(closed) } else { Charge::Committed(closed) }
    }

    const fn close(self, returned: CreditUnit, ended: Ended) -> Closed {
        let Self { charged, uncollected, terms, .. } = self;
        Closed { charged, uncollected, returned, late: CreditUnit::ZERO, ended, terms }
    }
}

fn valid(ttl: Span) -> Result<Span, Refusal> {
    if ttl.millis() == 0 || ttl > TTL_MAX { Err(Refusal::InvalidTtl) } else { Ok(ttl) }
}
