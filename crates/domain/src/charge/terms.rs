//! What a charge is settled by: agreed at reserve, frozen for its whole life.

use super::{Actual, Finality, Refusal};
use crate::money::CreditUnit;
use crate::price::{Rates, Rounding};

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

impl Terms {
    /// The cost in credits, rounded down: a charge never takes a fraction that was not used. The price per request comes
    /// with the final usage, so that it is charged once however many parts there are.
    pub(super) fn cost(&self, actual: Actual, finality: Finality) -> Result<CreditUnit, Refusal> {
        match actual {
            Actual::Credits(amount) => Ok(amount),
            Actual::Usage(usage) => {
                let rates = self.rates.ok_or(Refusal::NoFrozenRates)?;
                Ok(match finality {
                    Finality::Final => rates.cost(usage, Rounding::Down)?,
                    Finality::Partial => rates.cost_of_part(usage, Rounding::Down)?,
                })
            }
        }
    }
}
