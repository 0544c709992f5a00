//! Prices and the rates frozen at reserve: how tokens become credits, and which way each rounding goes.
//!
//! A price is a whole number of micro-dollars per **million** tokens, which is 10⁻¹² dollars per token. The cost of a
//! request is summed in that unit and rounded once, to a millionth of a credit: up when it is reserved, down when it is
//! charged, so that an estimate is never below what it estimates.

use crate::money::{CreditUnit, NotMoney, Overflow};
use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

/// Micro-dollars per million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Price(NonZeroU64);

impl Price {
    /// The dearest price: a dollar per token. Anything above is a slip of units.
    pub const MAX: u64 = 1_000_000_000_000;

    /// A price, if it is above zero and believable.
    pub fn new(micro_usd_per_million: u64) -> Result<Self, NotAPrice> {
        match NonZeroU64::new(micro_usd_per_million) {
            None => Err(NotAPrice::Zero),
            Some(price) if price.get() > Self::MAX => Err(NotAPrice::TooLarge),
            Some(price) => Ok(Self(price)),
        }
    }

    /// Micro-dollars per million tokens.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

/// Why a text or number is not a price.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotAPrice {
    /// Not plain decimal digits.
    NotANumber,
    /// Zero: a free model must be said to be free elsewhere, never by a price.
    Zero,
    /// Finer than a micro-dollar per million tokens.
    TooPrecise,
    /// Above [`Price::MAX`].
    TooLarge,
}

impl fmt::Display for NotAPrice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotANumber => "write the price as plain decimal digits, in dollars per million tokens",
            Self::Zero => "a price of zero is refused: an unpriced model is never free",
            Self::TooPrecise => "a price has at most six decimal places, in dollars per million tokens",
            Self::TooLarge => "the price is above a dollar per token; is it in dollars per million tokens?",
        })
    }
}
impl std::error::Error for NotAPrice {}

impl FromStr for Price {
    type Err = NotAPrice;

    /// Reads dollars per million tokens from decimal text, never through a float: `"0.4"` is 400,000.
    fn from_str(text: &str) -> Result<Self, NotAPrice> {
        // Dollars with six places and credits with six places are the same digits, so one parser serves both.
        let amount: CreditUnit = text.parse().map_err(|error| match error {
            NotMoney::NotDigits | NotMoney::NotCanonical => NotAPrice::NotANumber,
            NotMoney::TooPrecise => NotAPrice::TooPrecise,
            NotMoney::TooLarge => NotAPrice::TooLarge,
        })?;
        Self::new(amount.units())
    }
}

/// Credits per US dollar: 100 unless configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CreditsPerUsd(NonZeroU64);

impl CreditsPerUsd {
    /// The default: one credit is a cent.
    pub const DEFAULT: Self = Self(NonZeroU64::new(100).expect("not zero"));
    /// The most that is believable.
    pub const MAX: u64 = 1_000_000;

    /// A rate from 1 to [`CreditsPerUsd::MAX`].
    #[must_use]
    pub fn new(credits: u64) -> Option<Self> {
        NonZeroU64::new(credits).filter(|credits| credits.get() <= Self::MAX).map(Self)
    }

    /// Credits per dollar.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

/// A number of tokens.
pub type Tokens = u64;

/// What a model really used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub input: Tokens,
    /// Tokens of the answer; at reserve, the most that it may have.
    pub output: Tokens,
}

/// The prices that a charge is settled by, frozen when it is reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rates {
    /// Price of a prompt's tokens.
    pub input: Price,
    /// Price of an answer's tokens.
    pub output: Price,
    /// Credits per dollar at that time.
    pub credits_per_usd: CreditsPerUsd,
}

/// Which way a fraction of the last place goes. A business decision, so always an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rounding {
    /// An estimate must cover what it estimates.
    Up,
    /// A charge never takes a fraction that was not used.
    Down,
}

impl Rates {
    /// The cost of `usage` in credits.
    pub fn cost(&self, usage: Usage, rounding: Rounding) -> Result<CreditUnit, Overflow> {
        // 10⁻¹² dollars × credits per dollar = 10⁻¹² credits; a stored unit is 10⁻⁶ credits.
        const PICO_PER_UNIT: u128 = 1_000_000;
        let part = |tokens: Tokens, price: Price| u128::from(tokens).checked_mul(u128::from(price.get()));
        let pico_usd = part(usage.input, self.input)
            .zip(part(usage.output, self.output))
            .and_then(|(input, output)| input.checked_add(output))
            .ok_or(Overflow)?;
        let pico = pico_usd.checked_mul(u128::from(self.credits_per_usd.get())).ok_or(Overflow)?;
        let units = match rounding {
            Rounding::Up => pico.div_ceil(PICO_PER_UNIT),
            Rounding::Down => pico.checked_div(PICO_PER_UNIT).ok_or(Overflow)?,
        };
        u64::try_from(units).map_err(|_| Overflow).and_then(CreditUnit::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rates(input: &str, output: &str) -> Rates {
        Rates {
            input: input.parse().unwrap(),
            output: output.parse().unwrap(),
            credits_per_usd: CreditsPerUsd::DEFAULT,
        }
    }

    #[test]
    fn a_price_is_read_exactly_from_decimal_text() {
        assert_eq!("0.4".parse::<Price>().map(Price::get), Ok(400_000));
        assert_eq!("15".parse::<Price>().map(Price::get), Ok(15_000_000));
        assert_eq!("0".parse::<Price>(), Err(NotAPrice::Zero));
        assert_eq!("-1".parse::<Price>(), Err(NotAPrice::NotANumber));
        assert_eq!("1e-6".parse::<Price>(), Err(NotAPrice::NotANumber));
        assert_eq!("0.0000001".parse::<Price>(), Err(NotAPrice::TooPrecise));
        assert_eq!("1000001".parse::<Price>(), Err(NotAPrice::TooLarge));
    }

    #[test]
    fn one_token_of_a_cheap_model_is_not_free() {
        // 0.4 micro-dollars is 0.00004 credits: kept to the last place, not rounded away.
        let cost = rates("0.4", "0.4").cost(Usage { input: 1, output: 0 }, Rounding::Down).unwrap();
        assert_eq!(cost.to_string(), "0.00004");
    }

    #[test]
    fn absurd_token_counts_are_refused_not_wrapped() {
        let usage = Usage { input: u64::MAX, output: u64::MAX };
        assert_eq!(rates("1000000", "1000000").cost(usage, Rounding::Down), Err(Overflow));
    }

    proptest! {
        #[test]
        fn an_estimate_covers_the_charge_by_at_most_one_unit(
            input in 0..10_000_000u64, output in 0..10_000_000u64, price in 1..Price::MAX / 1_000, per_usd in 1..=1_000u64,
        ) {
            let price = Price::new(price).unwrap();
            let rates = Rates { input: price, output: price, credits_per_usd: CreditsPerUsd::new(per_usd).unwrap() };
            let up = rates.cost(Usage { input, output }, Rounding::Up);
            let down = rates.cost(Usage { input, output }, Rounding::Down);
            if let (Ok(up), Ok(down)) = (up, down) {
                prop_assert!(up.checked_sub(down).is_ok_and(|difference| difference.units() <= 1));
            }
        }
    }
}
