//! Reads `prices.toml`: strictly, with errors that name the file, the line, the model, the field and what is allowed.

use super::{Above, ModelPrice, PricesError};
use holdfast_domain::{CreditsPerUsd, NotAPrice, Price, Rates, RequestPrice};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;
use std::str::FromStr;
use toml::{Spanned, Value};

/// The longest name of a model.
const NAME_BYTES_MAX: usize = 200;
/// The most tokens that a limit can name: beyond it, a slip.
const TOKENS_MAX: u64 = 1_000_000_000;

type Field = Option<Spanned<Value>>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileBody {
    credits_per_usd: Field,
    #[serde(default)]
    models: BTreeMap<String, Spanned<ModelBody>>,
}

/// Values come in as any TOML, so that a number gets the error that explains it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ModelBody {
    provider: Field,
    input: Field,
    output: Field,
    cached_input: Field,
    cache_write: Field,
    reasoning: Field,
    per_request: Field,
    context: Field,
    max_output: Field,
    aliases: Field,
    #[serde(default)]
    above: Vec<Spanned<AboveBody>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AboveBody {
    input_tokens: Field,
    input: Field,
    output: Field,
    cached_input: Field,
    cache_write: Field,
    reasoning: Field,
}

/// The models and the worth of a credit that `text` describes.
pub(super) fn parse(path: &Path, text: &str) -> Result<(Vec<ModelPrice>, CreditsPerUsd), PricesError> {
    let reader = Reader { path, text };
    let body: FileBody = toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        reader.refuse(at, error.message().to_owned())
    })?;
    let credits_per_usd = match &body.credits_per_usd {
        None => CreditsPerUsd::DEFAULT,
        Some(value) => reader.credits_per_usd(value)?,
    };
    let models = body.models.iter().map(|(name, body)| reader.model(name, body, credits_per_usd));
    Ok((models.collect::<Result<_, _>>()?, credits_per_usd))
}

/// Whether a text can be the name of a model.
pub(super) fn is_name(text: &str) -> bool {
    let plain = |character: char| !character.is_whitespace() && !character.is_control();
    !text.is_empty() && text.len() <= NAME_BYTES_MAX && text.chars().all(plain)
}

/// The file that is read, for its errors.
struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Reader<'_> {
    fn refuse(&self, at: usize, message: String) -> PricesError {
        let before = self.text.as_bytes().get(..at).unwrap_or_default();
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        PricesError::Invalid { path: self.path.to_owned(), line: Some(line), message }
    }

    fn credits_per_usd(&self, value: &Spanned<Value>) -> Result<CreditsPerUsd, PricesError> {
        let credits = value.get_ref().as_integer().and_then(|credits| u64::try_from(credits).ok());
        credits.and_then(CreditsPerUsd::new).ok_or_else(|| {
            let most = CreditsPerUsd::MAX;
            let message =
                format!("credits_per_usd is {}, and must be a whole number from 1 to {most}", value.get_ref());
            self.refuse(value.span().start, message)
        })
    }

    fn model(
        &self,
        name: &str,
        body: &Spanned<ModelBody>,
        credits_per_usd: CreditsPerUsd,
    ) -> Result<ModelPrice, PricesError> {
        let at = body.span().start;
        if !is_name(name) {
            let message = format!("{name:?} cannot be a model's name: 1 to {NAME_BYTES_MAX} bytes without spaces");
            return Err(self.refuse(at, message));
        }
        let of = OfModel { reader: self, name };
        let body = body.get_ref();
        let rates = Rates {
            input: of.needed("input", at, of.price("input", &body.input)?)?,
            output: of.needed("output", at, of.price("output", &body.output)?)?,
            cached_input: of.price("cached_input", &body.cached_input)?,
            cache_write: of.price("cache_write", &body.cache_write)?,
            reasoning: of.price("reasoning", &body.reasoning)?,
            per_request: of.decimal::<RequestPrice, _>("per_request", "dollars per request", &body.per_request)?,
            credits_per_usd,
        };
        Ok(ModelPrice {
            name: name.to_owned(),
            provider: body.provider.as_ref().map(|value| of.name("provider", value.get_ref(), value)).transpose()?,
            rates,
            above: of.above(rates, &body.above)?,
            context: of.tokens("context", &body.context)?,
            max_output: of.tokens("max_output", &body.max_output)?,
            aliases: of.aliases(&body.aliases)?,
        })
    }
}

/// One model of the file, for its errors.
struct OfModel<'a> {
    reader: &'a Reader<'a>,
    name: &'a str,
}

impl OfModel<'_> {
    fn refuse(&self, field: &str, value: &Spanned<Value>, allowed: impl Display) -> PricesError {
        let message = format!("model {:?}: {field} is {}; {allowed}", self.name, value.get_ref());
        self.reader.refuse(value.span().start, message)
    }

    fn needed<T>(&self, field: &str, at: usize, value: Option<T>) -> Result<T, PricesError> {
        let message = || format!("model {:?} has no {field}; a model without a price is never free", self.name);
        value.ok_or_else(|| self.reader.refuse(at, message()))
    }

    /// The prices of longer prompts. What is charged once for each request is the same whatever its length.
    fn above(&self, usual: Rates, bodies: &[Spanned<AboveBody>]) -> Result<Vec<Above>, PricesError> {
        let mut all: Vec<Above> = Vec::new();
        for body in bodies {
            let (at, body) = (body.span().start, body.get_ref());
            let tokens = self.tokens("above.input_tokens", &body.input_tokens)?;
            let input_tokens = self.needed("above.input_tokens", at, tokens)?;
            if all.last().is_some_and(|last| last.input_tokens >= input_tokens) {
                let message = format!("model {:?}: write `above` in the order of its input_tokens", self.name);
                return Err(self.reader.refuse(at, message));
            }
            let rates = Rates {
                input: self.needed("above.input", at, self.price("above.input", &body.input)?)?,
                output: self.needed("above.output", at, self.price("above.output", &body.output)?)?,
                cached_input: self.price("above.cached_input", &body.cached_input)?,
                cache_write: self.price("above.cache_write", &body.cache_write)?,
                reasoning: self.price("above.reasoning", &body.reasoning)?,
                ..usual
            };
            all.push(Above { input_tokens, rates });
        }
        Ok(all)
    }

    fn price(&self, field: &str, value: &Field) -> Result<Option<Price>, PricesError> {
        self.decimal::<Price, NotAPrice>(field, "dollars per million tokens", value)
    }

    fn decimal<T: FromStr<Err = E>, E: Display>(
        &self,
        field: &str,
        unit: &str,
        value: &Field,
    ) -> Result<Option<T>, PricesError> {
        let Some(value) = value else { return Ok(None) };
        let Some(text) = value.get_ref().as_str() else {
            let allowed = format!("write {unit} as a string of digits, such as \"2.5\": a bare number can lose digits");
            return Err(self.refuse(field, value, allowed));
        };
        text.parse().map(Some).map_err(|error| self.refuse(field, value, error))
    }

    fn tokens(&self, field: &str, value: &Field) -> Result<Option<u64>, PricesError> {
        let Some(value) = value else { return Ok(None) };
        let tokens = value.get_ref().as_integer().and_then(|tokens| u64::try_from(tokens).ok());
        let tokens = tokens.filter(|tokens| (1..=TOKENS_MAX).contains(tokens));
        let refuse = || self.refuse(field, value, format!("write a whole number of tokens from 1 to {TOKENS_MAX}"));
        tokens.map(Some).ok_or_else(refuse)
    }

    fn name(&self, field: &str, name: &Value, whole: &Spanned<Value>) -> Result<String, PricesError> {
        let text = name.as_str().filter(|text| is_name(text));
        let allowed = format!("write names of 1 to {NAME_BYTES_MAX} bytes without spaces, in quotes");
        text.map(str::to_owned).ok_or_else(|| self.refuse(field, whole, allowed))
    }

    fn aliases(&self, value: &Field) -> Result<Vec<String>, PricesError> {
        let Some(value) = value else { return Ok(Vec::new()) };
        let Some(names) = value.get_ref().as_array() else {
            return Err(self.refuse("aliases", value, "write a list of names, such as [\"best\"]"));
        };
        names.iter().map(|name| self.name("aliases", name, value)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<ModelPrice>, String> {
        parse(Path::new("prices.toml"), text).map(|(models, _)| models).map_err(|error| error.to_string())
    }

    #[test]
    fn every_field_is_read_exactly() {
        let text = "credits_per_usd = 250\n[models.\"gpt-4o\"]\nprovider = \"openai\"\ninput = \"2.5\"\noutput = \"10\"\n\
            cached_input = \"1.25\"\ncache_write = \"3\"\nreasoning = \"12\"\nper_request = \"0.01\"\ncontext = 128000\n\
            max_output = 16384\naliases = [\"best\"]\n[[models.\"gpt-4o\".above]]\ninput_tokens = 100000\ninput = \"5\"\n\
            output = \"20\"\ncached_input = \"2.5\"\n";
        let [model] = &read(text).unwrap()[..] else { panic!("one model") };
        let rates = model.rates;
        assert_eq!((rates.input.get(), rates.output.get()), (2_500_000, 10_000_000));
        assert_eq!(rates.cached_input.map(Price::get), Some(1_250_000));
        assert_eq!(rates.cache_write.map(Price::get), Some(3_000_000));
        assert_eq!(rates.reasoning.map(Price::get), Some(12_000_000));
        assert_eq!(rates.per_request.map(RequestPrice::get), Some(10_000));
        assert_eq!(rates.credits_per_usd.get(), 250);
        assert_eq!((model.context, model.max_output), (Some(128_000), Some(16_384)));
        let [long] = model.above[..] else { panic!("one longer prompt") };
        let further = Rates { cache_write: None, reasoning: None, ..rates };
        let [input, output, cached_input] = ["5", "20", "2.5"].map(|price| price.parse().unwrap());
        let expected = Rates { input, output, cached_input: Some(cached_input), ..further };
        assert_eq!((long.input_tokens, long.rates), (100_000, expected));
        assert_eq!((model.rates_for(100_000), model.rates_for(100_001)), (rates, expected));
        assert_eq!(model.dearest(100_000, 10).unwrap().1, rates, "no longer prompt is possible");
        assert_eq!(model.dearest(100_001, 10).unwrap(), (expected.bound(100_001, 10).unwrap(), expected));
        assert_eq!((model.provider.as_deref(), &model.aliases[..]), (Some("openai"), &["best".to_owned()][..]));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_file_line_model_and_field() {
        let with = |line: &str| format!("[models.m]\ninput = \"1\"\noutput = \"1\"\n{line}\n");
        let cases: [(String, &[&str]); 19] = [
            (with("free = true"), &["line 4", "unknown field `free`"]),
            (with("cached_input = 0.5"), &["line 4", "model \"m\"", "cached_input is 0.5", "as a string"]),
            (with("reasoning = \"0\""), &["line 4", "reasoning is \"0\"", "never free"]),
            (with("reasoning = \"-1\""), &["line 4", "reasoning is \"-1\"", "plain decimal digits"]),
            (with("cache_write = \"1e-6\""), &["cache_write", "plain decimal digits"]),
            (with("cache_write = \"0.0000001\""), &["six decimal places"]),
            (with("per_request = \"2000\""), &["per_request is \"2000\"", "from 0.000001 to 1000"]),
            (with("context = 0"), &["context is 0", "whole number of tokens"]),
            (with("max_output = \"many\""), &["max_output is \"many\""]),
            (with("aliases = \"x\""), &["aliases", "a list"]),
            (with("[[models.m.above]]\ninput = \"2\"\noutput = \"2\""), &["line 4", "has no above.input_tokens"]),
            (with("[[models.m.above]]\ninput_tokens = 9\noutput = \"2\""), &["line 4", "has no above.input"]),
            (
                with(
                    "above = [{ input_tokens = 9, input = \"2\", output = \"2\" }, { input_tokens = 9, input = \"2\", output = \"2\" }]",
                ),
                &["line 4", "in the order of its input_tokens"],
            ),
            (with("aliases = [\"a b\"]"), &["aliases", "without spaces"]),
            ("[models.m]\ninput = \"1\"\n".to_owned(), &["line 1", "model \"m\" has no output"]),
            ("[models.\"a b\"]\ninput = \"1\"\noutput = \"1\"\n".to_owned(), &["\"a b\" cannot be a model's name"]),
            ("credits_per_usd = 0\n".to_owned(), &["line 1", "credits_per_usd is 0", "from 1 to 1000000"]),
            ("[modles.m]\n".to_owned(), &["line 1", "unknown field `modles`"]),
            ("[models.m]\ninput = \"1\"\ninput = \"2\"\n".to_owned(), &["line 3", "duplicate key"]),
        ];
        for (text, words) in cases {
            let error = read(&text).expect_err(&text);
            assert!(error.starts_with("prices.toml, line "), "{error}");
            for word in words {
                assert!(error.contains(word), "{word:?} is not in {error:?}");
            }
        }
    }
}
