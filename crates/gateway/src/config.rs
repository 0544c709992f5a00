//! The configuration file: TOML, strict, and optional. Whatever it can say has a sensible value without it.

use crate::failure::Failure;
use holdfast_adapters::providers::config::{ModelConfig, ProviderConfig};
use holdfast_adapters::providers::{self, Providers};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// What the file says.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileConfig {
    /// Where the prices are; beside this file, if it is no absolute path.
    prices: Option<PathBuf>,
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

    /// The file of the prices, if one is named.
    pub(crate) fn prices(&self) -> Option<&Path> {
        self.prices.as_deref()
    }

    /// The providers and models, with keys from the environment.
    pub(crate) fn providers(self) -> Result<Providers, Failure> {
        let config = providers::Config { providers: self.providers, models: self.models };
        let usable = Providers::from_config(config, |name| std::env::var(name).ok());
        usable.map_err(|error| Failure::Providers(error.to_string()))
    }
}
