//! What the fields of LiteLLM's list mean for a charge.

use super::LeaveOut;

/// What a price is the price of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    Input,
    Output,
    CachedInput,
    CacheWrite,
    Reasoning,
    Request,
}

impl Of {
    /// Its name in `prices.toml`.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Output => "output",
            Self::CachedInput => "cached_input",
            Self::CacheWrite => "cache_write",
            Self::Reasoning => "reasoning",
            Self::Request => "per_request",
        }
    }
}

/// What a field means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Meaning {
    /// A price per token or request.
    Price {
        of: Of,
        /// Of prompts that are longer than so many tokens; 0 of all.
        above: u64,
        /// What else it is for: empty for the usual text.
        tag: String,
        /// Why it might not be able to happen.
        leave_out: Vec<LeaveOut>,
    },
    /// Prices by the length of the prompt, as a list.
    Tiers,
    /// A price per search, by its size.
    Search,
    /// A price per image, second, page or the like.
    PerUnit,
    /// A price of a tool that a request has to ask for.
    Extra,
    /// No price, or one that is told by another field too, or a discount.
    Nothing,
}

const TEXT: [(&str, Of); 9] = [
    // Before the field whose name it begins with.
    ("input_cost_per_token_cache_hit", Of::CachedInput),
    ("input_cost_per_token", Of::Input),
    ("output_cost_per_token", Of::Output),
    ("cache_read_input_token_cost", Of::CachedInput),
    ("explicit_cache_read_input_token_cost", Of::CachedInput),
    ("cache_creation_input_token_cost", Of::CacheWrite),
    ("output_cost_per_reasoning_token", Of::Reasoning),
    ("input_cost_per_request", Of::Request),
    ("input_cost_per_query", Of::Request),
];

/// Tokens of other things than text: the name before and after the thing.
const OTHER: [(&str, &str, Of); 4] = [
    ("input_cost_per_", "_token", Of::Input),
    ("output_cost_per_", "_token", Of::Output),
    ("cache_read_input_", "_token_cost", Of::CachedInput),
    ("cache_creation_input_", "_token_cost", Of::CacheWrite),
];
const THINGS: [&str; 3] = ["audio", "image", "video"];

const EXTRAS: [&str; 5] =
    ["google_maps_grounding_cost", "code_interpreter_cost", "computer_use_", "file_search_cost", "vector_store_cost"];

/// What `field` means. A cost that is not known is one that no count of tokens covers.
pub(super) fn meaning(field: &str) -> Meaning {
    if let Some((of, suffix)) = TEXT.iter().find_map(|(base, of)| Some((*of, suffix(field, base)?))) {
        return price(of, "", suffix);
    }
    for (before, after, of) in OTHER {
        for thing in THINGS {
            if let Some(suffix) = suffix(field, &format!("{before}{thing}{after}")) {
                return price(of, thing, suffix);
            }
        }
    }
    match field {
        "tiered_pricing" => Meaning::Tiers,
        // The usual prices are those of the other hours, and dearer.
        "off_peak_pricing" => Meaning::Nothing,
        _ if field.starts_with("search_context_cost") => Meaning::Search,
        _ if EXTRAS.iter().any(|extra| field.starts_with(extra)) => Meaning::Extra,
        // The same price in a provider's own unit.
        _ if field.contains("_dbu_cost_") => Meaning::Nothing,
        _ if field.contains("cost") || field.contains("pricing") => Meaning::PerUnit,
        _ => Meaning::Nothing,
    }
}

/// What follows `base` in `field`, if that is a word of its own.
fn suffix<'a>(field: &'a str, base: &str) -> Option<&'a str> {
    field.strip_prefix(base).filter(|suffix| suffix.is_empty() || suffix.starts_with('_'))
}

fn price(of: Of, thing: &str, suffix: &str) -> Meaning {
    let mut leave_out = Vec::new();
    if !thing.is_empty() {
        leave_out.push(LeaveOut::Modalities);
    }
    let (hour, rest) = match suffix.strip_prefix("_above_1hr") {
        Some(rest) => ("_above_1hr", rest),
        None => ("", suffix),
    };
    if !hour.is_empty() {
        leave_out.push(LeaveOut::HourCache);
    }
    let (above, rest) = length(rest).unwrap_or((0, rest));
    if !rest.is_empty() {
        leave_out.push(LeaveOut::Tiers);
    }
    Meaning::Price { of, above, tag: format!("{thing}{hour}{rest}"), leave_out }
}

/// The length that `_above_128k_tokens` at the beginning of a suffix names, and what follows it.
fn length(suffix: &str) -> Option<(u64, &str)> {
    let (thousands, rest) = suffix.strip_prefix("_above_")?.split_once("k_tokens")?;
    let is_plain = thousands.bytes().all(|byte| byte.is_ascii_digit());
    let tokens = thousands.parse::<u64>().ok().filter(|_| is_plain)?.checked_mul(1_000)?;
    Some((tokens, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_price_of_tokens_is_known_whatever_it_is_for() {
        use LeaveOut::{HourCache, Modalities, Tiers};
        let cases: [(&str, Of, u64, &str, &[LeaveOut]); 13] = [
            ("input_cost_per_token", Of::Input, 0, "", &[]),
            ("input_cost_per_token_above_128k_tokens", Of::Input, 128_000, "", &[]),
            ("input_cost_per_token_above_xk_tokens", Of::Input, 0, "_above_xk_tokens", &[Tiers]),
            ("input_cost_per_token_priority", Of::Input, 0, "_priority", &[Tiers]),
            ("output_cost_per_token_above_272k_tokens_flex", Of::Output, 272_000, "_flex", &[Tiers]),
            ("output_cost_per_token_of_tomorrow", Of::Output, 0, "_of_tomorrow", &[Tiers]),
            ("input_cost_per_token_cache_hit", Of::CachedInput, 0, "", &[]),
            ("cache_creation_input_token_cost_above_1hr", Of::CacheWrite, 0, "_above_1hr", &[HourCache]),
            (
                "cache_creation_input_token_cost_above_1hr_above_200k_tokens",
                Of::CacheWrite,
                200_000,
                "_above_1hr",
                &[HourCache],
            ),
            ("input_cost_per_audio_token", Of::Input, 0, "audio", &[Modalities]),
            ("cache_read_input_audio_token_cost_priority", Of::CachedInput, 0, "audio_priority", &[Modalities, Tiers]),
            ("output_cost_per_image_token", Of::Output, 0, "image", &[Modalities]),
            ("input_cost_per_request", Of::Request, 0, "", &[]),
        ];
        for (field, of, above, tag, leave_out) in cases {
            let expected = Meaning::Price { of, above, tag: tag.to_owned(), leave_out: leave_out.to_vec() };
            assert_eq!(meaning(field), expected, "{field}");
        }
    }

    #[test]
    fn a_cost_that_nobody_knows_is_not_overlooked() {
        for field in ["input_cost_per_image", "output_cost_per_second", "citation_cost_per_token", "some_new_pricing"] {
            assert_eq!(meaning(field), Meaning::PerUnit, "{field}");
        }
        for field in ["mode", "max_tokens", "supports_vision", "off_peak_pricing", "input_dbu_cost_per_token"] {
            assert_eq!(meaning(field), Meaning::Nothing, "{field}");
        }
        assert_eq!(meaning("google_maps_grounding_cost_per_query"), Meaning::Extra);
    }
}
