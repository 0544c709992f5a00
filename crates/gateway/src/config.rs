//! The configuration file: TOML, strict, and optional. Whatever it can say has a sensible value without it.

use crate::failure::Failure;
use crate::prices::{IfMissing, Prices};
use crate::settings::{Said, Table};
use holdfast_adapters::providers::config::{Kind, ModelConfig, ProviderConfig, TargetConfig};
use holdfast_adapters::providers::{self, Providers};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// What the file says.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileConfig {
    /// Where the prices are; beside this file, if it is no absolute path.
    prices: Option<PathBuf>,
    /// Settings of the server, by their names in the environment without `HOLDFAST_`.
    #[serde(default)]
    server: Table,
    /// Settings about telling the peer: `HOLDFAST_PEER_`.
    #[serde(default)]
    peer: Table,
    /// Settings about settling charges: `HOLDFAST_BILLING_`.
    #[serde(default)]
    billing: Table,
    /// Settings about the queue and the wallet: `HOLDFAST_QUEUE_`.
    #[serde(default)]
    queue: Table,
    #[serde(default)]
    providers: BTreeMap<String, ProviderConfig>,
    #[serde(default)]
    models: Vec<ModelConfig>,
}

impl FileConfig {
    /// Reads a file; nothing at all without one.
    pub(crate) fn read(path: Option<&Path>) -> Result<Self, Failure> {
        let Some(path) = path else { return Ok(Self::default()) };
        let unusable = |why: String| Failure::Config { path: path.to_owned(), why };
        let text = fs::read_to_string(path).map_err(|error| unusable(error.to_string()))?;
        let mut config: Self = toml::from_str(&text).map_err(|error| unusable(error.to_string()))?;
        let beside = path.parent().unwrap_or(Path::new("."));
        config.prices = config.prices.map(|prices| beside.join(prices));
        Ok(config)
    }

    /// What it says about the server, the peer, settling and the queue; the environment goes first.
    pub(crate) fn said(&self) -> Result<Said, Failure> {
        let tables =
            [("server", &self.server), ("peer", &self.peer), ("billing", &self.billing), ("queue", &self.queue)];
        Said::in_file(tables.into_iter().map(|(name, table)| (name, table.clone())).collect())
    }

    /// The prices: from the file that `named` or this names, else from the data directory's, else the built-in ones.
    pub(crate) fn open_prices(&self, data: &Path, named: Option<&Path>) -> Result<Prices, Failure> {
        let opened = match named.or(self.prices.as_deref()) {
            Some(path) => Prices::open(path, IfMissing::Refuse),
            None => Prices::open(&data.join("prices.toml"), IfMissing::UseBuiltIn),
        };
        opened.map_err(Failure::Prices)
    }

    /// The providers as they are configured, and whether each has its key.
    pub(crate) fn providers_seen(&self) -> Vec<ProviderSeen> {
        let has = |variable: &str| std::env::var(variable).is_ok_and(|value| !value.trim().is_empty());
        let seen = |(name, config): (&String, &ProviderConfig)| ProviderSeen {
            name: name.clone(),
            kind: config.kind,
            base_url: config.base_url.clone(),
            key_env: config.key_env.clone(),
            has_key: config.key_env.as_deref().is_some_and(has),
        };
        if !self.providers.is_empty() {
            return self.providers.iter().map(seen).collect();
        }
        let usual = [("openai", Kind::OpenAi, "OPENAI_API_KEY"), ("anthropic", Kind::Anthropic, "ANTHROPIC_API_KEY")];
        let there = usual.into_iter().filter(|(_, _, variable)| has(variable)).map(|(name, kind, variable)| {
            let config = ProviderConfig { key_env: Some(variable.to_owned()), ..ProviderConfig::new(kind) };
            seen((&name.to_owned(), &config))
        });
        let echo = seen((&"echo".to_owned(), &ProviderConfig::new(Kind::Echo)));
        std::iter::once(echo).chain(there).collect()
    }

    /// The names of models that are configured and that nobody could be charged for.
    pub(crate) fn unpriced(&self, prices: &Prices) -> Vec<String> {
        let has_price = |model: &&ModelConfig| {
            let target_has = |target: &TargetConfig| {
                let full = format!("{}/{}", target.provider, target.model);
                prices.find(&full).is_ok() || prices.find(&target.model).is_ok()
            };
            prices.find(&model.name).is_ok() || model.targets.iter().all(target_has)
        };
        self.models.iter().filter(|model| !has_price(model)).map(|model| model.name.clone()).collect()
    }

    /// How many models are configured by name.
    pub(crate) const fn models(&self) -> usize {
        self.models.len()
    }

    /// The providers and models, with keys from the environment.
    pub(crate) fn providers(self) -> Result<Providers, Failure> {
        let config = providers::Config { providers: self.providers, models: self.models };
        let usable = Providers::from_config(config, |name| std::env::var(name).ok());
        usable.map_err(|error| Failure::Providers(error.to_string()))
    }
}

/// A provider, as far as it can be told without asking it.
pub(crate) struct ProviderSeen {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) base_url: Option<String>,
    /// The variable that has its key, if it takes one.
    pub(crate) key_env: Option<String>,
    pub(crate) has_key: bool,
}
