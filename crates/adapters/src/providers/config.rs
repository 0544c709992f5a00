//! What an operator writes about providers and models. Keys are never in it: it names the variables that have them.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Providers and the models that are made of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// `[providers.NAME]`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub providers: BTreeMap<String, ProviderConfig>,
    /// `[[models]]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<ModelConfig>,
}

/// What a provider speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// OpenAI, or a server that is compatible with it.
    OpenAi,
    /// Anthropic, or a server that is compatible with it.
    Anthropic,
    /// The built-in model.
    Echo,
}

/// Who answers `/v1/responses`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Responses {
    /// The provider has it.
    Native,
    /// It is translated to chat completions.
    Translated,
}

/// One provider. Only `kind` is needed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProviderConfig {
    /// What it speaks.
    pub kind: Kind,
    /// The URL below which its endpoints are: `https://api.openai.com/v1`, `https://api.anthropic.com`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
    /// The environment's variable with the key. Without one, no key is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_env: Option<String>,
    /// Whether the provider has `/responses` itself. Left out: OpenAI's own URL has, another has not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub responses: Option<Responses>,
    /// To connect.
    #[serde(default = "connect_timeout_ms")]
    pub connect_timeout_ms: u64,
    /// From a request to the first event of its stream.
    #[serde(default = "first_byte_timeout_ms")]
    pub first_byte_timeout_ms: u64,
    /// From a request to the first byte of an answer that comes whole, which takes as long as the model does.
    #[serde(default = "whole_timeout_ms")]
    pub whole_timeout_ms: u64,
    /// From one byte to the next.
    #[serde(default = "idle_timeout_ms")]
    pub idle_timeout_ms: u64,
    /// Calls at once.
    #[serde(default = "max_concurrent")]
    pub max_concurrent: usize,
    /// Calls that wait for their turn; more are turned away.
    #[serde(default = "max_waiting")]
    pub max_waiting: usize,
    /// How long one waits for its turn.
    #[serde(default = "max_wait_ms")]
    pub max_wait_ms: u64,
    /// The longest answer that is taken.
    #[serde(default = "max_reply_bytes")]
    pub max_reply_bytes: usize,
}

const fn connect_timeout_ms() -> u64 {
    5_000
}

const fn first_byte_timeout_ms() -> u64 {
    60_000
}

const fn whole_timeout_ms() -> u64 {
    600_000
}

const fn idle_timeout_ms() -> u64 {
    120_000
}

const fn max_concurrent() -> usize {
    1_024
}

const fn max_waiting() -> usize {
    1_024
}

const fn max_wait_ms() -> u64 {
    10_000
}

const fn max_reply_bytes() -> usize {
    64 * 1_024 * 1_024
}

impl ProviderConfig {
    /// A provider of this kind with the usual settings and no key.
    #[must_use]
    pub const fn new(kind: Kind) -> Self {
        Self {
            kind,
            base_url: None,
            key_env: None,
            responses: None,
            connect_timeout_ms: connect_timeout_ms(),
            first_byte_timeout_ms: first_byte_timeout_ms(),
            whole_timeout_ms: whole_timeout_ms(),
            idle_timeout_ms: idle_timeout_ms(),
            max_concurrent: max_concurrent(),
            max_waiting: max_waiting(),
            max_wait_ms: max_wait_ms(),
            max_reply_bytes: max_reply_bytes(),
        }
    }
}

/// One model's name and who answers for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// What callers name.
    pub name: String,
    /// Who answers.
    pub targets: Vec<TargetConfig>,
}

/// One that may answer for a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetConfig {
    /// The provider's name.
    pub provider: String,
    /// The model's name there.
    pub model: String,
    /// Its share among those of its priority.
    #[serde(default = "weight")]
    pub weight: u32,
    /// Lower goes first; the others are for when it fails.
    #[serde(default)]
    pub priority: u32,
}

const fn weight() -> u32 {
    1
}

/// A configuration that cannot be used: which setting, what it was, what it may be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{setting}: {problem}")]
pub struct ConfigError {
    /// Which setting.
    pub setting: String,
    /// What is wrong with it and what is allowed.
    pub problem: String,
}

impl ConfigError {
    pub(crate) fn new(setting: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { setting: setting.into(), problem: problem.into() }
    }

    /// The stable code of this error: API, unlike its message.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        "INVALID_SETTING"
    }
}
