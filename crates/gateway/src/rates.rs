//! What models cost, as a port: whoever keeps the prices fills it in.

use crate::prices::Prices;
use holdfast_domain::Rates;

/// A table of prices.
pub(crate) trait RateTable: Send + Sync {
    /// The rates of a model; `None` if it has no price, and then it cannot be reserved for.
    fn rates(&self, model: &str) -> Option<Rates>;
}

impl RateTable for Prices {
    fn rates(&self, model: &str) -> Option<Rates> {
        self.find(model).ok().map(|price| price.rates)
    }
}

/// A table without any price.
pub(crate) struct NoRates;

impl RateTable for NoRates {
    fn rates(&self, _model: &str) -> Option<Rates> {
        None
    }
}
