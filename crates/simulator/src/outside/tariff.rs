//! What a call costs, by a calculation of our own: the auditor is not the program that it audits.

use crate::upstream::Usage;
use holdfast_domain::{CreditUnit, CreditsPerUsd, Price};

/// Micro-dollars per million tokens × credits per dollar, per millionth of a credit.
const PICO_PER_UNIT: u128 = 1_000_000;

/// The prices of a model whose cached and reasoning tokens cost what others do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tariff {
    /// Of the prompt's tokens.
    pub input: Price,
    /// Of the answer's.
    pub output: Price,
    /// Credits per dollar.
    pub credits_per_usd: CreditsPerUsd,
}

impl Tariff {
    /// What so many tokens cost, rounded down to a millionth of a credit; none if that is out of range.
    #[must_use]
    pub fn cost(&self, usage: Usage) -> Option<CreditUnit> {
        let part = |tokens: u64, price: Price| u128::from(tokens).checked_mul(u128::from(price.get()));
        let pico_usd = part(usage.input, self.input)?.checked_add(part(usage.output, self.output)?)?;
        let pico = pico_usd.checked_mul(u128::from(self.credits_per_usd.get()))?;
        CreditUnit::new(u64::try_from(pico / PICO_PER_UNIT).ok()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fraction_of_the_last_place_is_not_charged() {
        let [input, output] = ["0.4", "1.6"].map(|price| price.parse().unwrap());
        let tariff = Tariff { input, output, credits_per_usd: CreditsPerUsd::DEFAULT };
        let cost = |input, output| tariff.cost(Usage { input, cached: 0, output, reasoning: 0 }).unwrap().to_string();
        assert_eq!(cost(10, 5), "0.0012");
        assert_eq!(cost(1, 0), "0.00004");
        let least = Tariff { input: "0.000001".parse().unwrap(), ..tariff };
        assert_eq!(least.cost(Usage { input: 9_999, cached: 0, output: 0, reasoning: 0 }).unwrap().to_string(), "0");
        assert_eq!(
            least.cost(Usage { input: 10_000, cached: 0, output: 0, reasoning: 0 }).unwrap().to_string(),
            "0.000001"
        );
    }
}
