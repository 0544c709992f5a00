//! A charge whose hold has ended: what is left to know of it, and what a late result still does to it.

use super::{Actual, Finality, Overrun, Refusal, Taken, Terms};
use crate::money::{CreditUnit, Overflow};

/// What is left to know of a charge whose hold has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closed {
    /// What was charged in all.
    pub charged: CreditUnit,
    /// What the work cost beyond what could be charged.
    pub uncollected: CreditUnit,
    /// What the hold gave back when it ended.
    pub returned: CreditUnit,
    /// The part of `charged` that came late, after the hold had ended.
    pub late: CreditUnit,
    /// How it ended, and so whether more can come.
    pub ended: Ended,
    /// What was agreed at reserve: a late result is still settled by it.
    pub terms: Terms,
}

/// How a charge ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// By a final commit, a release, a void, or an expiry that charged the estimate: nothing more is charged.
    Settled,
    /// By an expiry that gave the rest back: late results are still charged, until one of them is final.
    Expired,
}

impl Closed {
    /// A result that comes after the hold was given back is posted against what is available, by the agreed policy.
    pub(super) fn late(&self, actual: Actual, finality: Finality, available: CreditUnit) -> Result<Taken, Refusal> {
        let cost = self.terms.cost(actual, finality)?;
        if cost.is_zero() && finality == Finality::Partial {
            return Err(Refusal::ZeroAmount);
        }
        let chargeable = match self.terms.overrun {
            // What the hold gave back, less what late parts have already taken of it.
            Overrun::Cap | Overrun::Refuse => self.late.shortfall(self.returned).min(available),
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

    /// The charge after a late result, if one may still come. Replay verifies, as it does for a hold.
    pub(super) fn after_late(self, taken: &Taken, finality: Finality) -> Option<Self> {
        let again = self.late(Actual::Credits(taken.cost().ok()?), finality, taken.from_available).ok()?;
        if self.ended != Ended::Expired || again != *taken {
            return None;
        }
        let closed = self.charged_by(taken).ok()?;
        Some(match finality {
            Finality::Partial => closed,
            Finality::Final => closed.settled(),
        })
    }

    /// Whether so much was charged in all, and no late result has come in between; anything goes for who does not say.
    pub(super) fn is_still(&self, charged: Option<CreditUnit>) -> bool {
        charged.is_none_or(|charged| charged == self.charged)
    }

    /// The same charge, with nothing more to come.
    pub(super) const fn settled(self) -> Self {
        Self { ended: Ended::Settled, ..self }
    }

    fn charged_by(self, taken: &Taken) -> Result<Self, Overflow> {
        let charged = self.charged.checked_add(taken.charged()?)?;
        let late = self.late.checked_add(taken.charged()?)?;
        let uncollected = self.uncollected.checked_add(taken.uncollected)?;
        Ok(Self { charged, late, uncollected, ..self })
    }
}
