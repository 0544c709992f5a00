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
        /// What it is for: empty for the usual text.
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
    let mut rest = suffix;
    if let Some(after) = rest.strip_prefix("_above_1hr") {
        leave_out.push(LeaveOut::HourCache);
        rest = after;
    }
    // A long prompt is in nobody's hands but the caller's, so its price always could apply.
    rest = without_length(rest);
    if !rest.is_empty() {
        leave_out.push(LeaveOut::Tiers);
    }
    Meaning::Price { of, tag: format!("{thing}{suffix}"), leave_out }
}

/// The suffix without `_above_128k_tokens` at its beginning.
fn without_length(suffix: &str) -> &str {
    let after =
        suffix.strip_prefix("_above_").map(|rest| rest.trim_start_matches(|digit: char| digit.is_ascii_digit()));
    after.and_then(|rest| rest.strip_prefix("k_tokens")).unwrap_or(suffix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_price_of_tokens_is_known_whatever_it_is_for() {
        use LeaveOut::{HourCache, Modalities, Tiers};
        let cases: [(&str, Of, &str, &[LeaveOut]); 12] = [
            ("input_cost_per_token", Of::Input, "", &[]),
            ("input_cost_per_token_above_128k_tokens", Of::Input, "_above_128k_tokens", &[]),
            ("input_cost_per_token_priority", Of::Input, "_priority", &[Tiers]),
            ("output_cost_per_token_above_272k_tokens_flex", Of::Output, "_above_272k_tokens_flex", &[Tiers]),
            ("output_cost_per_token_of_tomorrow", Of::Output, "_of_tomorrow", &[Tiers]),
            ("input_cost_per_token_cache_hit", Of::CachedInput, "", &[]),
            ("cache_creation_input_token_cost_above_1hr", Of::CacheWrite, "_above_1hr", &[HourCache]),
            (
                "cache_creation_input_token_cost_above_1hr_above_200k_tokens",
                Of::CacheWrite,
                "_above_1hr_above_200k_tokens",
                &[HourCache],
            ),
            ("input_cost_per_audio_token", Of::Input, "audio", &[Modalities]),
            ("cache_read_input_audio_token_cost_priority", Of::CachedInput, "audio_priority", &[Modalities, Tiers]),
            ("output_cost_per_image_token", Of::Output, "image", &[Modalities]),
            ("input_cost_per_request", Of::Request, "", &[]),
        ];
        for (field, of, tag, leave_out) in cases {
            let expected = Meaning::Price { of, tag: tag.to_owned(), leave_out: leave_out.to_vec() };
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
