//! What models cost, as a port: whoever keeps the prices fills it in.

use crate::prices::Prices;
use holdfast_domain::{CreditUnit, Overflow, Rates};

/// A table of prices.
pub(crate) trait RateTable: Send + Sync {
    /// The most that so many tokens of input and output of a model can cost, and the rates by which they do; `None` if it has
    /// no price, and then it cannot be reserved for.
    fn bound(&self, model: &str, input: u64, output: u64) -> Option<Result<(CreditUnit, Rates), Overflow>>;
}

impl RateTable for Prices {
    fn bound(&self, model: &str, input: u64, output: u64) -> Option<Result<(CreditUnit, Rates), Overflow>> {
        self.find(model).ok().map(|price| price.dearest(input, output))
    }
}

/// A table without any price.
pub(crate) struct NoRates;

impl RateTable for NoRates {
    fn bound(&self, _model: &str, _input: u64, _output: u64) -> Option<Result<(CreditUnit, Rates), Overflow>> {
        None
    }
}
