//! What a provider says that a call used, as disjoint counts.
//!
//! # Invariants
//! - Nothing a provider writes makes a count wrap, panic or silently become zero: what is not a plain count is `Nonsense`,
//!   and what is not there is `Missing`.
//! - No token is in two counts: the sum of all five is what was used.

use serde_json::Value;

/// More tokens than any call can use.
pub const TOKENS_MAX: u64 = 1 << 40;

/// The usage that a provider reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reported {
    /// None: count the delivered text.
    Missing,
    /// Counts that can be charged.
    Tokens(Tokens),
    /// Something that cannot be: negative, fractional, absurd, or at odds with itself. Count the delivered text.
    Nonsense(String),
}

/// Disjoint counts of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tokens {
    /// Input that was read anew.
    pub input: u64,
    /// Input that came from the provider's cache.
    pub cached_input: u64,
    /// Input that was written to the provider's cache.
    pub cache_write: u64,
    /// Output, without reasoning where the provider tells them apart.
    pub output: u64,
    /// Reasoning that the provider counted apart.
    pub reasoning: u64,
}

impl Tokens {
    /// All input, wherever it came from.
    #[must_use]
    pub const fn all_input(&self) -> u64 {
        self.input.saturating_add(self.cached_input).saturating_add(self.cache_write)
    }

    /// All output, reasoning included.
    #[must_use]
    pub const fn all_output(&self) -> u64 {
        self.output.saturating_add(self.reasoning)
    }
}

/// A count that is none.
type Odd = String;

/// The first of these names that is there, as a count.
fn count(usage: &Value, names: &[&str]) -> Result<Option<u64>, Odd> {
    let Some((name, value)) = names.iter().find_map(|name| Some((name, usage.get(name).filter(|v| !v.is_null())?)))
    else {
        return Ok(None);
    };
    match value.as_u64() {
        Some(tokens) if tokens <= TOKENS_MAX => Ok(Some(tokens)),
        Some(_) | None => Err(format!("{name} is {}", shortened(&value.to_string()))),
    }
}

/// Text of others, short enough for a log.
pub(crate) fn shortened(text: &str) -> String {
    match text.char_indices().nth(200) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn reported(counts: Result<Option<Tokens>, Odd>) -> Reported {
    match counts {
        Ok(Some(tokens)) => Reported::Tokens(tokens),
        Ok(None) => Reported::Missing,
        Err(odd) => Reported::Nonsense(odd),
    }
}

/// Usage as in `chat.completions`, `responses` and `embeddings`, where cached input and reasoning are inside the totals.
pub(crate) fn of_openai(usage: &Value) -> Reported {
    reported(openai_counts(usage))
}

fn openai_counts(usage: &Value) -> Result<Option<Tokens>, Odd> {
    let details = |names: [&str; 2], field| {
        names.iter().find_map(|name| usage.get(name)).map_or(Ok(None), |inner| count(inner, &[field]))
    };
    let Some(input) = count(usage, &["prompt_tokens", "input_tokens"])? else { return Ok(None) };
    let total = count(usage, &["total_tokens"])?;
    let output = match count(usage, &["completion_tokens", "output_tokens"])? {
        Some(output) => output,
        // Embeddings have no output, and a total that says so.
        None if total == Some(input) => 0,
        None => return Ok(None),
    };
    let cached = details(["prompt_tokens_details", "input_tokens_details"], "cached_tokens")?.unwrap_or(0);
    let reasoning = details(["completion_tokens_details", "output_tokens_details"], "reasoning_tokens")?.unwrap_or(0);
    let fresh = input.checked_sub(cached).ok_or_else(|| format!("{cached} cached of {input} input tokens"))?;
    // Some providers count reasoning beside the completion: then the total shows it.
    let apart = reasoning > 0 && total == Some(input + output + reasoning);
    let spoken = if apart { Some(output) } else { output.checked_sub(reasoning) };
    let spoken = spoken.ok_or_else(|| format!("{reasoning} reasoning of {output} output tokens"))?;
    Ok(Some(Tokens { input: fresh, cached_input: cached, cache_write: 0, output: spoken, reasoning }))
}

/// Usage as in Anthropic's messages, where the counts are disjoint already.
pub(crate) fn of_anthropic(usage: &Value) -> Reported {
    let counts = || {
        let (Some(input), Some(output)) = (count(usage, &["input_tokens"])?, count(usage, &["output_tokens"])?) else {
            return Ok(None);
        };
        let cached_input = count(usage, &["cache_read_input_tokens"])?.unwrap_or(0);
        let cache_write = count(usage, &["cache_creation_input_tokens"])?.unwrap_or(0);
        Ok(Some(Tokens { input, cached_input, cache_write, output, reasoning: 0 }))
    };
    reported(counts())
}

/// Usage in a stream of Anthropic's: the input comes first, the output in running totals. What a later event does not
/// name stays as it was.
#[derive(Debug, Default)]
pub(crate) struct Running(serde_json::Map<String, Value>);

impl Running {
    /// Takes what this event says.
    pub(crate) fn add(&mut self, usage: &Value) {
        for (name, value) in usage.as_object().into_iter().flatten() {
            if !value.is_null() && name.ends_with("_tokens") {
                self.0.insert(name.clone(), value.clone());
            }
        }
    }

    /// What is known so far.
    pub(crate) fn reported(&self) -> Reported {
        of_anthropic(&Value::Object(self.0.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tokens(input: u64, cached_input: u64, cache_write: u64, output: u64, reasoning: u64) -> Reported {
        Reported::Tokens(Tokens { input, cached_input, cache_write, output, reasoning })
    }

    #[test]
    fn cached_input_and_reasoning_are_taken_out_of_openai_totals() {
        let usage = json!({"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150,
            "prompt_tokens_details": {"cached_tokens": 60, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 30}});
        assert_eq!(of_openai(&usage), tokens(40, 60, 0, 20, 30));
        let usage = json!({"input_tokens": 36, "input_tokens_details": {"cached_tokens": 6},
            "output_tokens": 87, "output_tokens_details": {"reasoning_tokens": 7}, "total_tokens": 123});
        assert_eq!(of_openai(&usage), tokens(30, 6, 0, 80, 7));
    }

    #[test]
    fn reasoning_that_is_counted_beside_the_completion_is_not_taken_out_of_it() {
        let usage = json!({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 115,
            "completion_tokens_details": {"reasoning_tokens": 100}});
        assert_eq!(of_openai(&usage), tokens(10, 0, 0, 5, 100));
    }

    #[test]
    fn embeddings_have_input_only() {
        assert_eq!(of_openai(&json!({"prompt_tokens": 8, "total_tokens": 8})), tokens(8, 0, 0, 0, 0));
    }

    #[test]
    fn anthropic_counts_are_disjoint_already() {
        let usage = json!({"input_tokens": 5, "cache_creation_input_tokens": 7, "cache_read_input_tokens": 11, "output_tokens": 13});
        assert_eq!(of_anthropic(&usage), tokens(5, 11, 7, 13, 0));
    }

    #[test]
    fn what_is_not_there_is_missing_and_never_zero() {
        for usage in [json!({}), json!(null), json!({"prompt_tokens": 5}), json!({"completion_tokens": 5}), json!("x")]
        {
            assert_eq!(of_openai(&usage), Reported::Missing, "{usage}");
        }
        for usage in [json!({}), json!({"input_tokens": 5}), json!({"output_tokens": null, "input_tokens": 1})] {
            assert_eq!(of_anthropic(&usage), Reported::Missing, "{usage}");
        }
    }

    #[test]
    fn what_cannot_be_is_nonsense() {
        for odd in [json!(-1), json!(1.5), json!(1e300), json!("7"), json!(TOKENS_MAX + 1), json!([]), json!(u64::MAX)]
        {
            let usage = json!({"prompt_tokens": 1, "completion_tokens": odd});
            assert!(matches!(of_openai(&usage), Reported::Nonsense(_)), "{usage}");
            let usage = json!({"input_tokens": odd, "output_tokens": 1});
            assert!(matches!(of_anthropic(&usage), Reported::Nonsense(_)), "{usage}");
        }
        let more_cached =
            json!({"prompt_tokens": 1, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 2}});
        assert!(matches!(of_openai(&more_cached), Reported::Nonsense(_)));
        let more_reasoning =
            json!({"prompt_tokens": 1, "completion_tokens": 1, "completion_tokens_details": {"reasoning_tokens": 2}});
        assert!(matches!(of_openai(&more_reasoning), Reported::Nonsense(_)));
    }

    #[test]
    fn a_running_total_keeps_what_later_events_do_not_name() {
        let mut running = Running::default();
        assert_eq!(running.reported(), Reported::Missing);
        running.add(&json!({"input_tokens": 25, "output_tokens": 1, "cache_read_input_tokens": 3}));
        assert_eq!(running.reported(), tokens(25, 3, 0, 1, 0));
        running.add(&json!({"output_tokens": 15, "input_tokens": null}));
        assert_eq!(running.reported(), tokens(25, 3, 0, 15, 0));
        running.add(&json!({"output_tokens": -15}));
        assert!(matches!(running.reported(), Reported::Nonsense(_)));
    }
}
