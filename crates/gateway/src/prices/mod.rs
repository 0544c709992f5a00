//! What models cost: a table of prices, read from a TOML file that may change while the server runs.
//!
//! ```text
//!  prices.toml ──file──▶ Table ──▶ Prices (the handle: looks models up, follows the file)
//!  LiteLLM's JSON ──litellm──▶ models ──write──▶ prices.toml
//! ```
//!
//! # Invariants
//! - A model without a price is refused (`INVALID_MODEL`), never free: there is no price of zero and no `free` field.
//! - A name means one model: names, aliases and `provider/name` never overlap, or the file is refused.
//! - A file that cannot be read changes nothing: the table before it stays, and the error is shown until it is mended.

mod decimal;
mod error;
mod file;
mod handle;
pub(crate) mod litellm;
pub(crate) mod write;

pub(crate) use error::{PricesError, UnknownModel};
pub(crate) use handle::{IfMissing, Looked, Prices};

use holdfast_domain::{CreditUnit, CreditsPerUsd, Overflow, Rates};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::{fs, io};

/// The prices of the models that are built in, so that a fresh server can charge for them.
const BUILT_IN: &str = include_str!("built_in.toml");

/// What one model costs, and how much it takes and gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ModelPrice {
    /// Its own name, whatever it was asked for by.
    pub(crate) name: String,
    /// Who serves it: `provider/name` is then another name of it.
    pub(crate) provider: Option<String>,
    /// Its prices, to be frozen at reserve.
    pub(crate) rates: Rates,
    /// Those of longer prompts, in the order of their lengths.
    pub(crate) above: Vec<Above>,
    /// The most tokens of input that it takes, if known.
    pub(crate) context: Option<u64>,
    /// The most tokens of output that it gives, if known.
    pub(crate) max_output: Option<u64>,
    /// Other names of it.
    pub(crate) aliases: Vec<String>,
}

/// The prices of prompts that are longer than so many tokens. Every token of such a request has them, the first ones too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Above {
    pub(crate) input_tokens: u64,
    pub(crate) rates: Rates,
}

impl ModelPrice {
    /// The prices of a prompt of so many tokens.
    pub(crate) fn rates_for(&self, input_tokens: u64) -> Rates {
        let reached = self.above.iter().rev().find(|above| input_tokens > above.input_tokens);
        reached.map_or(self.rates, |above| above.rates)
    }

    /// The most that a prompt of at most so many tokens and an answer of at most so many can cost, and the prices by which it
    /// does.
    pub(crate) fn dearest(&self, input: u64, output: u64) -> Result<(CreditUnit, Rates), Overflow> {
        let mut dearest = (self.rates.bound(input, output)?, self.rates);
        for above in self.above.iter().filter(|above| input > above.input_tokens) {
            let bound = above.rates.bound(input, output)?;
            if bound > dearest.0 {
                dearest = (bound, above.rates);
            }
        }
        Ok(dearest)
    }

    /// Everything that it can be asked for by.
    fn names(&self) -> impl Iterator<Item = String> {
        let qualified = self.provider.as_ref().map(|provider| format!("{provider}/{}", self.name));
        let qualified = qualified.filter(|qualified| !self.aliases.contains(qualified));
        [self.name.clone()].into_iter().chain(self.aliases.iter().cloned()).chain(qualified)
    }
}

/// The models that a file itself prices, without the built-in ones; none if there is no file.
pub(crate) fn own_models(path: &Path) -> Result<(Vec<ModelPrice>, CreditsPerUsd), PricesError> {
    match fs::read_to_string(path) {
        Ok(text) => file::parse(path, &text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok((Vec::new(), CreditsPerUsd::DEFAULT)),
        Err(error) => Err(PricesError::Unreadable { path: path.to_owned(), error }),
    }
}

/// All models with a price.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    models: BTreeMap<String, Arc<ModelPrice>>,
    by_name: HashMap<String, Arc<ModelPrice>>,
    credits_per_usd: CreditsPerUsd,
}

/// Two models that a name could mean.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ambiguous {
    pub(crate) name: String,
    pub(crate) models: [String; 2],
}

impl Table {
    /// A table of these models, if every name means one of them.
    fn new(models: Vec<ModelPrice>, credits_per_usd: CreditsPerUsd) -> Result<Self, Ambiguous> {
        let models: BTreeMap<_, _> = models.into_iter().map(|model| (model.name.clone(), Arc::new(model))).collect();
        let mut by_name: HashMap<String, Arc<ModelPrice>> = HashMap::new();
        for model in models.values() {
            for name in model.names() {
                // `provider/name` may be written out as a model of its own, which then has its own price.
                if name != model.name && !model.aliases.contains(&name) && models.contains_key(&name) {
                    continue;
                }
                if let Some(other) = by_name.insert(name.clone(), Arc::clone(model)) {
                    return Err(Ambiguous { name, models: [other.name.clone(), model.name.clone()] });
                }
            }
        }
        Ok(Self { models, by_name, credits_per_usd })
    }

    /// The models that are built in, alone.
    pub(crate) fn built_in() -> Self {
        let (models, credits_per_usd) =
            file::parse(Path::new("built_in.toml"), BUILT_IN).expect("a test reads the built-in prices");
        Self::new(models, credits_per_usd).expect("a test reads the built-in prices")
    }

    /// The table that a file's text describes, with the built-in models that it does not price itself.
    pub(crate) fn parse(path: &Path, text: &str) -> Result<Self, PricesError> {
        let (mut models, credits_per_usd) = file::parse(path, text)?;
        let (built_in, _) = file::parse(Path::new("built_in.toml"), BUILT_IN)?;
        for mut model in built_in {
            if !models.iter().any(|own| own.name == model.name) {
                model.rates.credits_per_usd = credits_per_usd;
                model.above.iter_mut().for_each(|above| above.rates.credits_per_usd = credits_per_usd);
                models.push(model);
            }
        }
        Self::new(models, credits_per_usd).map_err(|Ambiguous { name, models: [one, other] }| PricesError::Invalid {
            path: path.to_owned(),
            line: None,
            message: format!("the name {name:?} means both {one:?} and {other:?}; take it away from one of them"),
        })
    }

    /// The model that `name` means.
    pub(crate) fn find(&self, name: &str) -> Result<Arc<ModelPrice>, UnknownModel> {
        self.by_name.get(name).map(Arc::clone).ok_or_else(|| UnknownModel::new(name))
    }

    /// All models by name.
    pub(crate) fn models(&self) -> impl Iterator<Item = &ModelPrice> {
        self.models.values().map(Arc::as_ref)
    }

    /// Credits per dollar.
    pub(crate) const fn credits_per_usd(&self) -> CreditsPerUsd {
        self.credits_per_usd
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(text: &str) -> Result<Table, PricesError> {
        Table::parse(Path::new("prices.toml"), text)
    }

    fn found(table: &Table, name: &str) -> Option<String> {
        table.find(name).ok().map(|model| model.name.clone())
    }

    #[test]
    fn a_fresh_table_prices_the_built_in_models_and_refuses_all_others() {
        let table = Table::built_in();
        assert_eq!(found(&table, "echo").as_deref(), Some("echo"));
        assert_eq!(found(&table, "holdfast/echo").as_deref(), Some("echo"));
        let error = table.find("gpt-4o").unwrap_err();
        assert_eq!(error.code(), "INVALID_MODEL");
        assert!(error.to_string().contains("\"gpt-4o\""), "{error}");
    }

    #[test]
    fn a_model_is_found_by_its_name_its_aliases_and_its_provider() {
        let table = table(
            "[models.\"gpt-4o\"]\nprovider = \"openai\"\ninput = \"2.5\"\noutput = \"10\"\naliases = [\"best\", \"4o\"]\n",
        )
        .unwrap();
        for name in ["gpt-4o", "best", "4o", "openai/gpt-4o"] {
            assert_eq!(found(&table, name).as_deref(), Some("gpt-4o"), "{name}");
        }
        // Another host may ask another price: a prefix is never just dropped.
        for name in ["azure/gpt-4o", "GPT-4o", "gpt-4o ", "openai/best", ""] {
            assert_eq!(found(&table, name), None, "{name}");
        }
        assert_eq!(found(&table, "echo").as_deref(), Some("echo"), "the built-in models stay");
    }

    #[test]
    fn a_model_written_out_with_its_provider_has_its_own_price() {
        let text = "[models.m]\nprovider = \"p\"\ninput = \"1\"\noutput = \"1\"\n[models.\"p/m\"]\ninput = \"2\"\noutput = \"2\"\n";
        let table = table(text).unwrap();
        assert_eq!(found(&table, "p/m").as_deref(), Some("p/m"));
        assert_eq!(found(&table, "m").as_deref(), Some("m"));
    }

    #[test]
    fn a_name_that_could_mean_two_models_is_refused() {
        let text = "[models.a]\ninput = \"1\"\noutput = \"1\"\naliases = [\"x\"]\n[models.b]\ninput = \"1\"\noutput = \"1\"\naliases = [\"x\"]\n";
        let error = table(text).unwrap_err();
        assert_eq!(error.code(), "INVALID_PRICES");
        for word in ["\"x\"", "\"a\"", "\"b\""] {
            assert!(error.to_string().contains(word), "{error}");
        }
        let shadowing =
            "[models.a]\ninput = \"1\"\noutput = \"1\"\naliases = [\"b\"]\n[models.b]\ninput = \"1\"\noutput = \"1\"\n";
        assert!(table(shadowing).is_err());
    }

    #[test]
    fn the_file_may_price_a_built_in_model_and_the_credit() {
        let table = table("credits_per_usd = 1000\n[models.echo]\ninput = \"7\"\noutput = \"7\"\n").unwrap();
        let echo = table.find("echo").unwrap();
        assert_eq!((echo.rates.input.to_string().as_str(), echo.rates.credits_per_usd.get()), ("7", 1_000));
        let embedding = table.find("echo-embedding").unwrap();
        assert_eq!(embedding.rates.credits_per_usd.get(), 1_000, "one credit has one worth");
    }
}
