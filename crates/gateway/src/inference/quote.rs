//! What a request can cost at the most: pure sums over its tokens and the model's prices.

use crate::prices::ModelPrice;
use crate::tokens::InputTokens;
use holdfast_domain::{CreditUnit, Overflow, Rates, Usage};
use std::sync::Arc;

/// The output that is held for when the caller names no limit; the model is told the same.
const OUTPUT_DEFAULT: u64 = 4_096;

/// A price that was given for one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Quote {
    pub(crate) price: Arc<ModelPrice>,
    /// The tokens of input at the most.
    pub(crate) input: u64,
    /// The best estimate of them.
    pub(crate) counted: u64,
    /// The tokens of output at the most, for each answer.
    pub(crate) output: u64,
    pub(crate) choices: u64,
}

/// Why a request cannot be quoted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoQuote {
    #[error(
        "`{0}` lets the model read what is not in the request, and the model's context is not known; \
         give it a `context` in the prices, or leave the field out"
    )]
    Hidden(&'static str),
    #[error("the tokens at the model's prices come to a sum out of range; ask for fewer with `max_tokens`")]
    OutOfRange,
}

impl Quote {
    /// The quote for `asked` tokens of output in each of `choices` answers. What answers nothing, like embeddings, is quoted
    /// with `Some(0)`.
    pub(crate) fn new(
        price: Arc<ModelPrice>,
        tokens: InputTokens,
        asked: Option<u64>,
        choices: u64,
    ) -> Result<Self, NoQuote> {
        let input = match (tokens.hidden, price.context) {
            (None, _) => tokens.bound,
            (Some(_), Some(context)) => tokens.bound.max(context),
            (Some(field), None) => return Err(NoQuote::Hidden(field)),
        };
        let limit = price.max_output.unwrap_or(u64::MAX);
        let output = asked.unwrap_or(OUTPUT_DEFAULT).min(limit);
        Ok(Self { price, input, counted: tokens.counted, output, choices })
    }

    /// What must be held, and the rates by which it can come to that.
    pub(crate) fn hold(&self) -> Result<(CreditUnit, Rates), NoQuote> {
        self.hold_for(self.output).map_err(|Overflow| NoQuote::OutOfRange)
    }

    fn hold_for(&self, output: u64) -> Result<(CreditUnit, Rates), Overflow> {
        self.price.dearest(self.input, output.checked_mul(self.choices).ok_or(Overflow)?)
    }

    /// The rates of what was used, which depend on how long the prompt really was.
    pub(crate) fn rates_of(&self, usage: &Usage) -> Rates {
        let Usage { input, cached_input, cache_write, output: _, reasoning: _ } = usage;
        self.price.rates_for(input.saturating_add(*cached_input).saturating_add(*cache_write))
    }

    /// The tokens of output, for each answer, that `available` covers; `None` if it does not even cover the input.
    pub(crate) fn affordable(&self, available: CreditUnit) -> Option<u64> {
        let covers = |output| self.hold_for(output).is_ok_and(|(hold, _)| hold <= available);
        if !covers(0) {
            return None;
        }
        // Covered at `low`, not covered at `high`.
        let (mut low, mut high) = (0, self.output.saturating_add(1));
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if covers(middle) { low = middle } else { high = middle }
        }
        Some(low)
    }

    /// The same request with a shorter answer.
    pub(crate) fn with_output(self, output: u64) -> Self {
        Self { output, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prices::Above;
    use holdfast_domain::{CreditsPerUsd, Price};
    use proptest::prelude::*;

    fn price(max_output: Option<u64>, context: Option<u64>) -> Arc<ModelPrice> {
        let rates = Rates {
            input: "1".parse::<Price>().unwrap(),
            output: "2".parse::<Price>().unwrap(),
            cached_input: None,
            cache_write: None,
            reasoning: None,
            per_request: None,
            credits_per_usd: CreditsPerUsd::DEFAULT,
        };
        let long = Rates { input: "3".parse().unwrap(), ..rates };
        let above = vec![Above { input_tokens: 5_000, rates: long }];
        let (name, aliases) = ("m".to_owned(), Vec::new());
        Arc::new(ModelPrice { name, provider: None, rates, above, context, max_output, aliases })
    }

    fn tokens(bound: u64, hidden: Option<&'static str>) -> InputTokens {
        InputTokens { counted: bound / 2, bound, hidden }
    }

    #[test]
    fn output_is_what_is_asked_for_as_far_as_the_model_goes() {
        let output = |asked, most| Quote::new(price(most, None), tokens(10, None), asked, 1).unwrap().output;
        assert_eq!(output(Some(50), None), 50);
        assert_eq!(output(Some(50), Some(20)), 20);
        assert_eq!(output(None, Some(20)), 20);
        assert_eq!(output(None, None), OUTPUT_DEFAULT);
        assert_eq!(output(Some(0), None), 0);
    }

    #[test]
    fn input_that_nobody_sees_is_bounded_by_the_context_or_refused() {
        let quote = |context| Quote::new(price(None, context), tokens(10, Some("file")), None, 1);
        assert_eq!(quote(Some(1_000)).unwrap().input, 1_000);
        assert_eq!(quote(None), Err(NoQuote::Hidden("file")));
    }

    #[test]
    fn every_answer_is_held_for() {
        let quote = |choices| {
            Quote::new(price(None, None), tokens(0, None), Some(1_000), choices).unwrap().hold().map(|(hold, _)| hold)
        };
        assert_eq!(quote(1).unwrap().to_string(), "0.2");
        assert_eq!(quote(3).unwrap().to_string(), "0.6");
        let absurd = Quote::new(price(None, None), tokens(0, None), Some(u64::MAX), 2).unwrap();
        assert_eq!(absurd.hold(), Err(NoQuote::OutOfRange));
    }

    #[test]
    fn a_long_prompt_is_held_for_at_its_price_and_charged_by_how_long_it_really_was() {
        let quote = Quote::new(price(None, None), tokens(5_001, None), Some(0), 1).unwrap();
        let (hold, rates) = quote.hold().unwrap();
        assert_eq!((hold.to_string().as_str(), rates), ("1.5003", quote.price.above[0].rates));
        let used = |input, cached_input| Usage { input, cached_input, ..Usage::NONE };
        assert_eq!(quote.rates_of(&used(4_000, 1_000)), quote.price.rates);
        assert_eq!(quote.rates_of(&used(4_000, 1_001)), quote.price.above[0].rates);
        let short = Quote::new(price(None, None), tokens(5_000, None), Some(0), 1).unwrap();
        assert_eq!(short.hold().unwrap().1, short.price.rates, "it cannot be longer");
    }

    proptest! {
        #[test]
        fn what_is_affordable_is_covered_and_no_token_more_is(
            input in 0_u64..10_000, output in 0_u64..100_000, choices in 1_u64..5, units in 0_u64..200_000_000,
        ) {
            let quote = Quote::new(price(None, None), tokens(input, None), Some(output), choices).unwrap();
            let available = CreditUnit::new(units).unwrap();
            match quote.affordable(available) {
                None => prop_assert!(quote.hold_for(0).unwrap().0 > available),
                Some(most) => {
                    prop_assert!(most <= output);
                    prop_assert!(quote.hold_for(most).unwrap().0 <= available);
                    prop_assert!(most == output || quote.hold_for(most + 1).unwrap().0 > available);
                }
            }
        }
    }
}
