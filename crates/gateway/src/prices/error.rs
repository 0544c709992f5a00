//! Why prices cannot be had: each with a stable code and what to do.

use std::io;
use std::path::PathBuf;

/// A file of prices that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PricesError {
    #[error("cannot use the prices in {}: {error}", path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    #[error("{}{}: {message}", path.display(), line.map_or(String::new(), |line| format!(", line {line}")))]
    Invalid { path: PathBuf, line: Option<usize>, message: String },
    #[error("{} is not LiteLLM's list of prices: {message}", path.display())]
    Source { path: PathBuf, message: String },
}

impl PricesError {
    /// The stable code of this error.
    pub(crate) const fn code(&self) -> &'static str {
        match self {
            Self::Unreadable { .. } => "PRICES_UNREADABLE",
            Self::Invalid { .. } => "INVALID_PRICES",
            Self::Source { .. } => "INVALID_PRICE_SOURCE",
        }
    }
}

/// A model that has no price, and so is not served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the model {shown:?} has no price here, and a model without a price is never free; `holdfast prices list` shows those that have one"
)]
pub(crate) struct UnknownModel {
    shown: String,
}

impl UnknownModel {
    /// A refusal that repeats only as much of the name as a name can have.
    pub(super) fn new(name: &str) -> Self {
        const SHOWN_CHARACTERS: usize = 100;
        Self { shown: name.chars().take(SHOWN_CHARACTERS).collect() }
    }

    /// The stable code of this error.
    pub(crate) const fn code(&self) -> &'static str {
        "INVALID_MODEL"
    }
}
