//! What has come of a stream, and what is told of its cost.

use super::ask::IfGone;
use super::live::{Live, Money, Part};
use super::quote::Quote;
use crate::tokens::{self, Family};
use bytes::Bytes;
use holdfast_adapters::providers::{Piece, Reported};
use holdfast_domain::{Rounding, Usage};
use std::time::Instant;

/// What has come of a stream.
pub(super) struct Told {
    pub(super) text: String,
    pub(super) usage: Reported,
    /// The end, which is told after the charge.
    pub(super) withheld: Vec<Part>,
    pub(super) noted: Instant,
    /// How much of the text nobody read, in bytes from its beginning and in tokens.
    drained: (usize, u64),
}

impl Told {
    pub(super) fn new() -> Self {
        let (text, usage, withheld) = (String::new(), Reported::Missing, Vec::new());
        Self { text, usage, withheld, noted: Instant::now(), drained: (0, 0) }
    }

    /// Whether nobody reads it, and it comes to as much as its caller would pay for then.
    pub(super) fn is_drained_enough(
        &mut self,
        if_gone: IfGone,
        live: &Live,
        (quote, family): (&Quote, Family),
    ) -> bool {
        let IfGone::DrainUpTo(limit) = if_gone else { return false };
        if !self.withheld.is_empty() || !live.is_deserted() {
            return false;
        }
        let (counted, tokens) = &mut self.drained;
        *tokens += tokens::count_text(family, &self.text[*counted..]);
        *counted = self.text.len();
        let usage = Usage { input: quote.counted, output: *tokens, ..Usage::NONE };
        // A sum out of range is more than any limit.
        quote.rates_of(&usage).cost(usage, Rounding::Up).map_or(true, |cost| cost >= limit)
    }

    pub(super) fn take(&mut self, piece: Piece, live: &Live, shows_usage: bool) {
        let Piece { bytes, text, usage, only_usage, last } = piece;
        self.text.push_str(&text);
        if usage != Reported::Missing {
            self.usage = usage;
        }
        let part = Part { bytes, text };
        if only_usage && !shows_usage {
            return;
        }
        if only_usage || last || !self.withheld.is_empty() { self.withheld.push(part) } else { live.push(part) }
    }
}

/// The event that tells usage, with the cost in it.
pub(super) fn with_cost(part: Part, money: Option<Money>) -> Part {
    const USAGE: &str = "\"usage\":{";
    let (Some(money), Ok(text)) = (money, std::str::from_utf8(&part.bytes)) else { return part };
    match text.find(USAGE).filter(|_| part.text.is_empty() && text.contains("\"choices\":[]")) {
        None => part,
        Some(at) => {
            let (before, after) = text.split_at(at + USAGE.len());
            let bytes = Bytes::from(format!("{before}\"cost\":\"{}\",{after}", money.cost));
            Part { bytes, ..part }
        }
    }
}

/// Tells in a stream what it cost, where clients look for nothing.
pub(super) fn cost_comment(Money { cost, balance, credits_low, .. }: Money) -> Bytes {
    let low = if credits_low { " credits_low" } else { "" };
    Bytes::from(format!(": cost_cu={cost} balance_cu={balance}{low}\n\n"))
}
