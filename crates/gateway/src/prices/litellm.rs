//! Reads LiteLLM's list of prices (`model_prices_and_context_window.json`).
//!
//! Prices of long prompts are taken over as such. Beside them that list has more kinds of prices than a charge can tell apart:
//! service tiers, audio, caches that live an hour. The rule is never to undercharge silently: of every price that could apply the
//! **dearest** is taken, with a note that says which, or the model is left out with a reason. Whoever knows that some of them
//! cannot happen says so ([`LeaveOut`]).

use super::decimal::pico;
use super::file::is_name;
use super::{Above, ModelPrice, PricesError};
use holdfast_domain::{CreditsPerUsd, Price, Rates, RequestPrice};
use serde_json::value::RawValue;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

mod meaning;

use meaning::{Meaning, Of, meaning};

type Fields = BTreeMap<String, Box<RawValue>>;

/// Prices that cannot happen here, and so are not looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeaveOut {
    /// Priority, flex, batch and other tiers that a request has to ask for.
    Tiers,
    /// Audio, images and video, where they cost other than text.
    Modalities,
    /// Caches that live an hour.
    HourCache,
}

/// What to take from the list.
#[derive(Debug, Clone)]
pub(crate) struct Choice {
    /// Models whose names begin with one of these; all if there is none.
    pub(crate) only: Vec<String>,
    /// Prices that cannot happen here.
    pub(crate) leave_out: Vec<LeaveOut>,
    /// The worth of a credit.
    pub(crate) credits_per_usd: CreditsPerUsd,
}

/// What came of one model of the list.
#[derive(Debug)]
pub(crate) enum Taken {
    /// It has a price now.
    Imported { model: ModelPrice, notes: Vec<String> },
    /// It has none, and why.
    Skipped { name: String, why: String },
}

/// What comes of every chosen model of the list, in the order of their names.
pub(crate) fn read(path: &Path, text: &str, choice: &Choice) -> Result<Vec<Taken>, PricesError> {
    let list: BTreeMap<String, Box<RawValue>> = serde_json::from_str(text)
        .map_err(|error| PricesError::Source { path: path.to_owned(), message: error.to_string() })?;
    let is_chosen = |name: &str| choice.only.is_empty() || choice.only.iter().any(|prefix| name.starts_with(prefix));
    // The first entry of the list explains the list.
    let chosen = list.iter().filter(|(name, _)| *name != "sample_spec" && is_chosen(name));
    Ok(chosen.map(|(name, body)| take(name, body, choice)).collect())
}

/// The models of a file with those of the list: the list's prices replace the file's, and a model keeps its aliases.
pub(crate) fn merge(own: Vec<ModelPrice>, taken: &[Taken]) -> BTreeMap<String, ModelPrice> {
    let mut models: BTreeMap<_, _> = own.into_iter().map(|model| (model.name.clone(), model)).collect();
    for taken in taken {
        if let Taken::Imported { model, .. } = taken {
            let aliases = models.remove(&model.name).map_or(Vec::new(), |own| own.aliases);
            models.insert(model.name.clone(), ModelPrice { aliases, ..model.clone() });
        }
    }
    models
}

fn take(name: &str, body: &RawValue, choice: &Choice) -> Taken {
    let taken = serde_json::from_str::<Fields>(body.get())
        .map_err(|_| "it is not an object of fields".to_owned())
        .and_then(|fields| model(name, &fields, choice));
    match taken {
        Ok((model, notes)) => Taken::Imported { model, notes },
        Err(why) => Taken::Skipped { name: name.to_owned(), why },
    }
}

fn model(name: &str, fields: &Fields, choice: &Choice) -> Result<(ModelPrice, Vec<String>), String> {
    if !is_name(name) {
        return Err("its name is too long or has spaces".to_owned());
    }
    let mode = word(fields, "mode").unwrap_or_default();
    if !["chat", "responses", "completion", "embedding"].contains(&mode.as_str()) {
        return Err(format!("it is for {mode:?}, which is not charged by tokens here"));
    }
    if name.contains("deep-research") {
        return Err("it searches as often as it likes, and each search costs extra".to_owned());
    }
    let prices = Prices::collect(name, fields, choice)?;
    let (rates, above, notes) = prices.by_length(&mode, choice.credits_per_usd)?;
    let provider = word(fields, "litellm_provider").filter(|provider| !name.contains('/') && is_name(provider));
    let model = ModelPrice {
        name: name.to_owned(),
        provider,
        rates,
        above,
        context: tokens(fields, "max_input_tokens").or_else(|| tokens(fields, "max_tokens")),
        max_output: tokens(fields, "max_output_tokens").or_else(|| tokens(fields, "max_tokens")),
        aliases: Vec::new(),
    };
    Ok((model, notes))
}

fn word(fields: &Fields, field: &str) -> Option<String> {
    fields.get(field).and_then(|value| serde_json::from_str(value.get()).ok())
}

fn tokens(fields: &Fields, field: &str) -> Option<u64> {
    let tokens = fields.get(field)?.get().parse::<u64>().ok();
    tokens.filter(|tokens| (1..=1_000_000_000).contains(tokens))
}

/// A price of the list that could apply.
#[derive(Debug, Clone)]
struct Candidate {
    of: Of,
    /// Of prompts that are longer than so many tokens; 0 of all.
    above: u64,
    /// What else it is for: nothing for the usual text, else such as `_priority`.
    tag: String,
    field: String,
    pico_usd: u64,
    rounded: bool,
}

/// Everything that one model costs.
#[derive(Debug)]
struct Prices {
    candidates: Vec<Candidate>,
    notes: Vec<String>,
}

impl Prices {
    fn collect(name: &str, fields: &Fields, choice: &Choice) -> Result<Self, String> {
        let mut prices = Self { candidates: Vec::new(), notes: Vec::new() };
        // These search at every request, so that the price of a search is a price per request.
        let always_searches = name.contains("search") || name.contains("sonar");
        for (field, value) in fields {
            let text = value.get();
            match meaning(field) {
                Meaning::Price { leave_out, .. } if leave_out.iter().any(|kind| choice.leave_out.contains(kind)) => {}
                Meaning::Price { of, above, tag, .. } => prices.add((of, above), tag, field, text)?,
                Meaning::Tiers => prices.add_tiers(field, text)?,
                Meaning::Search if always_searches => prices.add_searches(field, text)?,
                Meaning::PerUnit if is_nothing(text) => {}
                Meaning::PerUnit if choice.leave_out.contains(&LeaveOut::Modalities) => {
                    prices.notes.push(format!("{field} is not charged"));
                }
                Meaning::PerUnit => return Err(format!("{field} is {text}, which no count of tokens covers")),
                Meaning::Search | Meaning::Extra if !is_nothing(text) => {
                    prices.notes.push(format!("{field} is not charged: refuse requests with that tool"));
                }
                Meaning::Search | Meaning::Extra | Meaning::Nothing => {}
            }
        }
        Ok(prices)
    }

    fn add(&mut self, (of, above): (Of, u64), tag: String, field: &str, text: &str) -> Result<(), String> {
        if text == "null" {
            return Ok(());
        }
        let price = pico(text).ok_or_else(|| format!("{field} is {text}, which is no price"))?;
        self.candidates.push(Candidate {
            of,
            above,
            tag,
            field: field.to_owned(),
            pico_usd: price.units,
            rounded: price.rounded,
        });
        Ok(())
    }

    /// Prices by the length of the prompt. One that does not say of which could apply to any.
    fn add_tiers(&mut self, field: &str, text: &str) -> Result<(), String> {
        let tiers: Vec<Fields> = serde_json::from_str(text).map_err(|_| format!("{field} is not understood"))?;
        for (number, tier) in (1..).zip(&tiers) {
            let range =
                tier.get("range").and_then(|range| serde_json::from_str::<[Box<RawValue>; 2]>(range.get()).ok());
            let from = range.and_then(|[from, _]| whole(from.get()));
            for (inner, value) in tier {
                if let Meaning::Price { of, tag, .. } = meaning(inner) {
                    let tag = if from.is_some() { tag } else { format!("{tag}_tier_{number}") };
                    let of = (of, from.unwrap_or(0));
                    self.add(of, tag, &format!("{field}[{number}].{inner}"), value.get())?;
                }
            }
        }
        Ok(())
    }

    fn add_searches(&mut self, field: &str, text: &str) -> Result<(), String> {
        let sizes: Fields = serde_json::from_str(text).map_err(|_| format!("{field} is not understood"))?;
        for (size, value) in &sizes {
            self.add((Of::Request, 0), size.clone(), &format!("{field}.{size}"), value.get())?;
        }
        Ok(())
    }

    /// The dearest price of a kind, unless all are zero.
    fn dearest(&self, of: Of) -> Option<&Candidate> {
        let those = self.candidates.iter().filter(|candidate| candidate.of == of && candidate.pico_usd > 0);
        // Of two that are equal the first in the order of names, so that the usual one needs no note.
        those.rev().max_by_key(|candidate| candidate.pico_usd)
    }

    /// The dearest price of a kind of token that is cheaper or dearer than `usual`. If it has none for what `usual` is
    /// the price of, then what it costs there is not known, and the usual price stands.
    fn beside(&self, of: Of, usual: &Candidate) -> Option<&Candidate> {
        let own = self.dearest(of)?;
        let is_known = self.candidates.iter().any(|candidate| candidate.of == of && candidate.tag == usual.tag);
        (is_known || own.pico_usd >= usual.pico_usd).then_some(own)
    }

    /// The usual rates, those of longer prompts, and what is to be said about them. What is dearer for a shorter prompt is taken
    /// for a longer one too, whose own price of it is not said.
    fn by_length(self, mode: &str, credits_per_usd: CreditsPerUsd) -> Result<(Rates, Vec<Above>, Vec<String>), String> {
        let mut notes = self.notes;
        let mut up_to = |length: u64| {
            let those = self.candidates.iter().filter(|candidate| candidate.above <= length);
            let prices = Self { candidates: those.cloned().collect(), notes: Vec::new() };
            let (rates, said) = prices.rates(mode, credits_per_usd)?;
            notes.extend(said);
            Ok::<_, String>(rates)
        };
        // A list that prices only longer prompts prices none in particular.
        let usual = up_to(0).or_else(|_| up_to(u64::MAX))?;
        let lengths: BTreeSet<u64> = self.candidates.iter().map(|candidate| candidate.above).collect();
        let (mut above, mut last) = (Vec::new(), usual);
        for input_tokens in lengths.into_iter().filter(|length| *length > 0) {
            let rates = up_to(input_tokens).unwrap_or(usual);
            if rates != last {
                above.push(Above { input_tokens, rates });
                last = rates;
            }
        }
        let mut told = BTreeSet::new();
        notes.retain(|note| told.insert(note.clone()));
        Ok((usual, above, notes))
    }

    fn rates(mut self, mode: &str, credits_per_usd: CreditsPerUsd) -> Result<(Rates, Vec<String>), String> {
        let input = self.dearest(Of::Input).ok_or("it has no price per token of input, and is never free")?.clone();
        let output = match self.dearest(Of::Output) {
            Some(output) => output.clone(),
            // An embedding gives no tokens, so any price does.
            None if mode == "embedding" => Candidate { of: Of::Output, tag: String::new(), ..input.clone() },
            None => return Err("it has no price per token of output, and is never free".to_owned()),
        };
        let cached_input = self.beside(Of::CachedInput, &input).cloned();
        let cache_write = self.beside(Of::CacheWrite, &input).cloned();
        let reasoning = self.beside(Of::Reasoning, &output).cloned();
        let per_request = self.dearest(Of::Request).cloned();
        let price = |candidate: &Candidate| {
            Price::new(candidate.pico_usd).map_err(|error| format!("{}: {error}", candidate.field))
        };
        let request_price = |candidate: &Candidate| {
            let micro_usd = candidate.pico_usd.div_ceil(1_000_000);
            RequestPrice::new(micro_usd).map_err(|error| format!("{}: {error}", candidate.field))
        };
        let rates = Rates {
            input: price(&input)?,
            output: price(&output)?,
            cached_input: cached_input.as_ref().map(price).transpose()?,
            cache_write: cache_write.as_ref().map(price).transpose()?,
            reasoning: reasoning.as_ref().map(price).transpose()?,
            per_request: per_request.as_ref().map(request_price).transpose()?,
            credits_per_usd,
        };
        let used = [Some(input), Some(output), cached_input, cache_write, reasoning, per_request];
        for candidate in used.into_iter().flatten() {
            if !candidate.tag.is_empty() {
                self.notes.push(format!("{} by {}", candidate.of.name(), candidate.field));
            }
            if candidate.rounded {
                self.notes.push(format!("{} rounded up", candidate.field));
            }
        }
        Ok((rates, self.notes))
    }
}

/// A whole number, written with a fraction of zeros or without one.
fn whole(text: &str) -> Option<u64> {
    let (digits, fraction) = text.split_once('.').unwrap_or((text, ""));
    digits.parse().ok().filter(|_| fraction.bytes().all(|byte| byte == b'0'))
}

/// Whether a cost is missing or zero, in all its parts.
fn is_nothing(text: &str) -> bool {
    if let Ok(parts) = serde_json::from_str::<Fields>(text) {
        return parts.values().all(|part| is_nothing(part.get()));
    }
    text == "null" || pico(text).is_some_and(|price| price.units == 0)
}

#[cfg(test)]
mod tests;
