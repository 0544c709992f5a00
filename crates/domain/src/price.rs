//! Prices and the rates frozen at reserve: how tokens become credits, and which way each rounding goes.
//!
//! A price is a whole number of micro-dollars per **million** tokens, which is 10⁻¹² dollars per token. The cost of a
//! request is summed in that unit and rounded once, to a millionth of a credit: up when it is reserved, down when it is
//! charged, so that an estimate is never below what it estimates.

use crate::money::{CreditUnit, NotMoney, Overflow, write_decimal};
use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

/// Prices count micro-dollars, and are written in dollars.
const USD_PLACES: usize = 6;

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

impl fmt::Display for Price {
    /// Dollars per million tokens, as they are read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_decimal(f, "", self.get(), USD_PLACES)
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

/// A price per request in micro-dollars, whatever its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestPrice(NonZeroU64);

impl RequestPrice {
    /// The dearest request: a thousand dollars. Anything above is a slip of units.
    pub const MAX: u64 = 1_000_000_000;

    /// A price, if it is above zero and believable.
    pub fn new(micro_usd: u64) -> Result<Self, NotARequestPrice> {
        NonZeroU64::new(micro_usd).filter(|price| price.get() <= Self::MAX).map(Self).ok_or(NotARequestPrice)
    }

    /// Micro-dollars.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl FromStr for RequestPrice {
    type Err = NotARequestPrice;

    /// Reads dollars from decimal text, never through a float: `"0.01"` is 10,000.
    fn from_str(text: &str) -> Result<Self, NotARequestPrice> {
        // Dollars with six places and credits with six places are the same digits, as for [`Price`].
        text.parse::<CreditUnit>().map_err(|_| NotARequestPrice).and_then(|amount| Self::new(amount.units()))
    }
}

impl fmt::Display for RequestPrice {
    /// Dollars, as they are read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_decimal(f, "", self.get(), USD_PLACES)
    }
}

/// A text or number that is no price per request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotARequestPrice;

impl fmt::Display for NotARequestPrice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("write the price of a request in dollars, as plain digits from 0.000001 to 1000, such as 0.01")
    }
}
impl std::error::Error for NotARequestPrice {}

/// A number of tokens.
pub type Tokens = u64;

/// What a model really used. The counts are disjoint: every token is in exactly one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt that were neither read from nor written to a cache.
    pub input: Tokens,
    /// Tokens of the prompt that were read from a cache.
    pub cached_input: Tokens,
    /// Tokens of the prompt that were written to a cache.
    pub cache_write: Tokens,
    /// Tokens of the answer that the caller sees.
    pub output: Tokens,
    /// Tokens that the model thought and did not show.
    pub reasoning: Tokens,
}

impl Usage {
    /// No token at all.
    pub const NONE: Self = Self { input: 0, cached_input: 0, cache_write: 0, output: 0, reasoning: 0 };
}

/// The prices that a charge is settled by, frozen when it is reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rates {
    /// Price of a prompt's tokens.
    pub input: Price,
    /// Price of an answer's tokens.
    pub output: Price,
    /// Price of a prompt's tokens that were read from a cache; `None`: the input price.
    pub cached_input: Option<Price>,
    /// Price of a prompt's tokens that were written to a cache; `None`: the input price.
    pub cache_write: Option<Price>,
    /// Price of the tokens that the model thought; `None`: the output price.
    pub reasoning: Option<Price>,
    /// Price of a request, whatever its tokens: charged once, with the final commit by usage.
    pub per_request: Option<RequestPrice>,
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
    /// The cost in credits of a whole request that used `usage`: its tokens and the price per request.
    pub fn cost(&self, usage: Usage, rounding: Rounding) -> Result<CreditUnit, Overflow> {
        self.credits(self.pico_usd(usage)?.checked_add(self.pico_usd_per_request()).ok_or(Overflow)?, rounding)
    }

    /// The cost in credits of a part of a request: its tokens alone. The price per request comes with the final part, so
    /// a request in parts pays it once; one that is released or runs out before its final part does not pay it.
    pub fn cost_of_part(&self, usage: Usage, rounding: Rounding) -> Result<CreditUnit, Overflow> {
        self.credits(self.pico_usd(usage)?, rounding)
    }

    /// The most that a request of at most so many tokens can cost, however they divide among the kinds of tokens: every
    /// token at the dearest price of its side, and the price per request. Rounded up.
    pub fn bound(&self, input_tokens: Tokens, max_output_tokens: Tokens) -> Result<CreditUnit, Overflow> {
        let dearest = Self {
            input: self.dearest_input(),
            output: self.dearest_output(),
            cached_input: None,
            cache_write: None,
            reasoning: None,
            ..*self
        };
        let usage = Usage { input: input_tokens, output: max_output_tokens, ..Usage::NONE };
        dearest.cost(usage, Rounding::Up)
    }

    /// The most that a token of the prompt can cost.
    fn dearest_input(&self) -> Price {
        [self.cached_input, self.cache_write].into_iter().flatten().fold(self.input, Price::max)
    }

    /// The most that a token of the answer can cost.
    fn dearest_output(&self) -> Price {
        self.reasoning.into_iter().fold(self.output, Price::max)
    }

    /// The cost of the tokens in 10⁻¹² dollars.
    fn pico_usd(&self, usage: Usage) -> Result<u128, Overflow> {
        let Usage { input, cached_input, cache_write, output, reasoning } = usage;
        let parts = [
            (input, self.input),
            (cached_input, self.cached_input.unwrap_or(self.input)),
            (cache_write, self.cache_write.unwrap_or(self.input)),
            (output, self.output),
            (reasoning, self.reasoning.unwrap_or(self.output)),
        ];
        parts.into_iter().try_fold(0_u128, |sum, (tokens, price)| {
            let part = u128::from(tokens).checked_mul(u128::from(price.get())).ok_or(Overflow)?;
            sum.checked_add(part).ok_or(Overflow)
        })
    }

    fn pico_usd_per_request(&self) -> u128 {
        const PICO_PER_MICRO: u128 = 1_000_000;
        let micro_usd = self.per_request.map_or(0, RequestPrice::get);
        // A request costs at most 10⁹ micro-dollars, so this never saturates.
        u128::from(micro_usd).saturating_mul(PICO_PER_MICRO)
    }

    /// 10⁻¹² dollars in credits.
    fn credits(&self, pico_usd: u128, rounding: Rounding) -> Result<CreditUnit, Overflow> {
        // 10⁻¹² dollars × credits per dollar = 10⁻¹² credits; a stored unit is 10⁻⁶ credits.
        const PICO_PER_UNIT: u128 = 1_000_000;
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
            cached_input: None,
            cache_write: None,
            reasoning: None,
            per_request: None,
            credits_per_usd: CreditsPerUsd::DEFAULT,
        }
    }

    fn detailed() -> Rates {
        Rates {
            cached_input: Some("0.25".parse().unwrap()),
            cache_write: Some("3.75".parse().unwrap()),
            reasoning: Some("20".parse().unwrap()),
            per_request: Some("0.01".parse().unwrap()),
            ..rates("2.5", "10")
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
    fn a_price_per_request_is_read_exactly_from_decimal_text() {
        assert_eq!("0.01".parse::<RequestPrice>().map(RequestPrice::get), Ok(10_000));
        assert_eq!("1000".parse::<RequestPrice>().map(RequestPrice::get), Ok(RequestPrice::MAX));
        for bad in ["0", "-1", "1000.000001", "0.0000001", "1e-3", "", "0.10"] {
            assert_eq!(bad.parse::<RequestPrice>(), Err(NotARequestPrice), "{bad:?}");
        }
    }

    #[test]
    fn one_token_of_a_cheap_model_is_not_free() {
        // 0.4 micro-dollars is 0.00004 credits: kept to the last place, not rounded away.
        let cost = rates("0.4", "0.4").cost(Usage { input: 1, ..Usage::NONE }, Rounding::Down).unwrap();
        assert_eq!(cost.to_string(), "0.00004");
    }

    #[test]
    fn every_kind_of_token_has_its_price_and_the_request_its_own() {
        let usage = Usage { input: 100, cached_input: 1_000, cache_write: 200, output: 300, reasoning: 400 };
        // 250 + 250 + 750 + 3000 + 8000 micro-dollars for the tokens and 10000 for the request; 100 credits a dollar.
        assert_eq!(detailed().cost(usage, Rounding::Down).unwrap().to_string(), "2.225");
        assert_eq!(detailed().cost_of_part(usage, Rounding::Down).unwrap().to_string(), "1.225");
    }

    #[test]
    fn a_kind_of_token_without_a_price_costs_what_its_side_costs() {
        let rates = rates("2.5", "10");
        let plain = Usage { input: 6, output: 9, ..Usage::NONE };
        let divided = Usage { input: 1, cached_input: 2, cache_write: 3, output: 4, reasoning: 5 };
        assert_eq!(rates.cost(divided, Rounding::Down), rates.cost(plain, Rounding::Down));
    }

    #[test]
    fn a_bound_takes_the_dearest_price_of_each_side() {
        // 1000 tokens at 3.75 (cache write), 1000 at 20 (reasoning), and a cent for the request.
        assert_eq!(detailed().bound(1_000, 1_000).unwrap().to_string(), "3.375");
        assert_eq!(rates("2.5", "10").bound(1, 0).unwrap().to_string(), "0.00025");
    }

    #[test]
    fn absurd_token_counts_are_refused_not_wrapped() {
        let most = Usage {
            input: u64::MAX,
            cached_input: u64::MAX,
            cache_write: u64::MAX,
            output: u64::MAX,
            reasoning: u64::MAX,
        };
        let dear =
            Rates { credits_per_usd: CreditsPerUsd::new(CreditsPerUsd::MAX).unwrap(), ..rates("1000000", "1000000") };
        assert_eq!(dear.cost(most, Rounding::Down), Err(Overflow));
        assert_eq!(dear.bound(u64::MAX, u64::MAX), Err(Overflow));
    }

    #[test]
    fn a_missing_price_takes_no_room() {
        assert_eq!(size_of::<Rates>(), 7 * size_of::<u64>());
    }

    fn any_price() -> impl Strategy<Value = Price> {
        prop_oneof![1..100u64, 1..Price::MAX / 1_000].prop_map(|price| Price::new(price).unwrap())
    }

    prop_compose! {
        fn any_rates()(
            (input, output) in (any_price(), any_price()),
            cached_input in prop::option::of(any_price()),
            cache_write in prop::option::of(any_price()),
            reasoning in prop::option::of(any_price()),
            per_request in prop::option::of((1..=RequestPrice::MAX).prop_map(|price| RequestPrice::new(price).unwrap())),
            credits_per_usd in (1..=1_000u64).prop_map(|credits| CreditsPerUsd::new(credits).unwrap()),
        ) -> Rates {
            Rates { input, output, cached_input, cache_write, reasoning, per_request, credits_per_usd }
        }
    }

    prop_compose! {
        fn any_usage()(
            input in 0..1_000_000u64, cached_input in 0..1_000_000u64, cache_write in 0..1_000_000u64,
            output in 0..1_000_000u64, reasoning in 0..1_000_000u64,
        ) -> Usage {
            Usage { input, cached_input, cache_write, output, reasoning }
        }
    }

    /// All tokens of input, and all of output.
    fn sides(usages: &[Usage]) -> (Tokens, Tokens) {
        let input = usages.iter().flat_map(|usage| [usage.input, usage.cached_input, usage.cache_write]).sum();
        (input, usages.iter().flat_map(|usage| [usage.output, usage.reasoning]).sum())
    }

    proptest! {
        #[test]
        fn an_estimate_covers_the_charge_by_at_most_one_unit(rates in any_rates(), usage in any_usage()) {
            let up = rates.cost(usage, Rounding::Up).unwrap();
            let down = rates.cost(usage, Rounding::Down).unwrap();
            prop_assert!(up.checked_sub(down).is_ok_and(|difference| difference.units() <= 1));
        }

        #[test]
        fn text_and_price_are_one_to_one(price in any_price(), per_request in 1..=RequestPrice::MAX) {
            prop_assert_eq!(price.to_string().parse(), Ok(price));
            let per_request = RequestPrice::new(per_request).unwrap();
            prop_assert_eq!(per_request.to_string().parse(), Ok(per_request));
        }

        #[test]
        fn no_usage_within_the_token_counts_costs_more_than_the_bound(
            rates in any_rates(), usage in any_usage(), more_input in 0..10u64, more_output in 0..10u64,
        ) {
            let (input, output) = sides(&[usage]);
            let (input, output) = (input.saturating_add(more_input), output.saturating_add(more_output));
            let bound = rates.bound(input, output).unwrap();
            prop_assert!(rates.cost(usage, Rounding::Down).unwrap() <= bound);
            prop_assert!(rates.cost(usage, Rounding::Up).unwrap() <= bound);
        }

        #[test]
        fn a_request_in_parts_costs_no_more_than_its_bound(
            rates in any_rates(), parts in prop::collection::vec(any_usage(), 0..4), last in any_usage(),
        ) {
            let of_parts = parts.iter().map(|usage| rates.cost_of_part(*usage, Rounding::Down).unwrap());
            let whole = of_parts.chain([rates.cost(last, Rounding::Down).unwrap()]).map(CreditUnit::units).sum::<u64>();
            let (input, output) = sides(&[&parts[..], &[last]].concat());
            prop_assert!(whole <= rates.bound(input, output).unwrap().units());
        }
    }
}
