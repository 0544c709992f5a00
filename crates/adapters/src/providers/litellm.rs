//! LiteLLM's `config.yaml`, read as it is: its `model_list` becomes providers and models.

use super::config::{Config, ConfigError, Kind, ModelConfig, ProviderConfig, TargetConfig};
use serde::Deserialize;
use std::collections::BTreeMap;

/// What was read, and what of it has no place here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    /// The configuration.
    pub config: Config,
    /// What was left out and why, for the operator to read.
    pub notes: Vec<String>,
}

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    model_list: Vec<Entry>,
    #[serde(flatten)]
    others: BTreeMap<String, serde_json::Value>,
}

#[derive(Deserialize)]
struct Entry {
    model_name: String,
    litellm_params: Params,
}

#[derive(Deserialize)]
struct Params {
    model: String,
    api_base: Option<String>,
    api_key: Option<String>,
    weight: Option<u32>,
    order: Option<u32>,
    #[serde(flatten)]
    others: BTreeMap<String, serde_json::Value>,
}

/// Reads LiteLLM's configuration.
///
/// # Errors
/// If it is not one; if it has a key in it, which belongs into the environment; if a provider's kind is unknown.
pub fn from_litellm(yaml: &str) -> Result<Imported, ConfigError> {
    let file: File = serde_saphyr::from_str(yaml)
        .map_err(|error| ConfigError::new("config.yaml", format!("it is not LiteLLM's configuration: {error}")))?;
    let mut config = Config::default();
    let mut notes: Vec<String> = file.others.keys().map(|name| format!("`{name}` is not read")).collect();
    for (number, entry) in file.model_list.iter().enumerate() {
        let place = format!("model_list[{number}]");
        let (provider, model) = provider(&entry.litellm_params, &place, &mut config)?;
        let Params { weight, order, others, .. } = &entry.litellm_params;
        notes.extend(others.keys().map(|name| format!("{place}: `{name}` is not read")));
        let target = TargetConfig { provider, model, weight: weight.unwrap_or(1), priority: order.unwrap_or(0) };
        match config.models.iter_mut().find(|model| model.name == entry.model_name) {
            Some(model) => model.targets.push(target),
            None => config.models.push(ModelConfig { name: entry.model_name.clone(), targets: vec![target] }),
        }
    }
    if config.models.is_empty() {
        return Err(ConfigError::new("model_list", "it is empty; there is nothing to import"));
    }
    Ok(Imported { config, notes })
}

/// The provider of an entry, put into the configuration if it is new, and the model's name there.
fn provider(params: &Params, place: &str, config: &mut Config) -> Result<(String, String), ConfigError> {
    let (prefix, model) = params.model.split_once('/').unwrap_or((bare(&params.model), &params.model));
    let (kind, variable) = match (prefix, &params.api_base) {
        ("openai" | "text-completion-openai", _) => (Kind::OpenAi, "OPENAI_API_KEY"),
        ("anthropic", _) => (Kind::Anthropic, "ANTHROPIC_API_KEY"),
        // Whatever it is called, a server with a URL of its own is spoken to like OpenAI.
        ("hosted_vllm" | "vllm" | "openai_like" | "custom_openai" | "litellm_proxy" | "lm_studio", Some(_)) => {
            (Kind::OpenAi, "")
        }
        _ => {
            let problem =
                format!("`{}` is of a provider that is not known here; openai and anthropic are", params.model);
            return Err(ConfigError::new(format!("{place}.litellm_params.model"), problem));
        }
    };
    let key_env = match params.api_key.as_deref() {
        None if params.api_base.is_some() || variable.is_empty() => None,
        None => Some(variable.to_owned()),
        Some(key) => match key.strip_prefix("os.environ/") {
            Some(variable) => Some(variable.to_owned()),
            None => {
                let problem = "there is a key in the file; put it into the environment and write os.environ/NAME";
                return Err(ConfigError::new(format!("{place}.litellm_params.api_key"), problem));
            }
        },
    };
    let settings = ProviderConfig { base_url: params.api_base.clone(), key_env, ..ProviderConfig::new(kind) };
    if let Some((name, _)) = config.providers.iter().find(|(_, known)| **known == settings) {
        return Ok((name.clone(), model.to_owned()));
    }
    let taken = |name: &String| config.providers.contains_key(name);
    let numbered = (2..).map(|number| format!("{prefix}-{number}"));
    let name = std::iter::once(prefix.to_owned()).chain(numbered).find(|name| !taken(name)).unwrap_or_default();
    config.providers.insert(name.clone(), settings);
    Ok((name, model.to_owned()))
}

/// The provider of a name without one.
fn bare(model: &str) -> &'static str {
    if model.starts_with("claude-") { "anthropic" } else { "openai" }
}

#[cfg(test)]
mod tests {
    use super::*;

    const YAML: &str = "
model_list:
  - model_name: gpt-4o
    litellm_params:
      model: openai/gpt-4o
      api_key: os.environ/OPENAI_API_KEY
      rpm: 6
  - model_name: gpt-4o
    litellm_params: { model: openai/gpt-4o, api_base: https://eu.example/v1, api_key: os.environ/EU_KEY, order: 1, weight: 2 }
  - model_name: claude
    litellm_params:
      model: claude-sonnet-4-5
  - model_name: local
    litellm_params:
      model: hosted_vllm/facebook/opt-125m
      api_base: http://localhost:8000/v1
general_settings:
  master_key: sk-1234
";

    #[test]
    fn a_model_list_becomes_providers_and_pools() {
        let Imported { config, notes } = from_litellm(YAML).unwrap();
        let target = |provider: &str, model: &str, weight, priority| TargetConfig {
            provider: provider.into(),
            model: model.into(),
            weight,
            priority,
        };
        let model = |name: &str, targets| ModelConfig { name: name.into(), targets };
        assert_eq!(
            config.models,
            [
                model("gpt-4o", vec![target("openai", "gpt-4o", 1, 0), target("openai-2", "gpt-4o", 2, 1)]),
                model("claude", vec![target("anthropic", "claude-sonnet-4-5", 1, 0)]),
                model("local", vec![target("hosted_vllm", "facebook/opt-125m", 1, 0)]),
            ]
        );
        let keys: Vec<_> =
            config.providers.iter().map(|(name, p)| (name.as_str(), p.kind, p.key_env.as_deref())).collect();
        assert_eq!(
            keys,
            [
                ("anthropic", Kind::Anthropic, Some("ANTHROPIC_API_KEY")),
                ("hosted_vllm", Kind::OpenAi, None),
                ("openai", Kind::OpenAi, Some("OPENAI_API_KEY")),
                ("openai-2", Kind::OpenAi, Some("EU_KEY")),
            ]
        );
        assert_eq!(notes, ["`general_settings` is not read", "model_list[0]: `rpm` is not read"]);
        assert!(crate::providers::Providers::from_config(config, |_| None).is_ok());
    }

    #[test]
    fn what_cannot_be_imported_names_itself() {
        let check = |yaml: &str, setting: &str| assert_eq!(from_litellm(yaml).unwrap_err().setting, setting, "{yaml}");
        check("model_list: 5", "config.yaml");
        check("a: 1", "model_list");
        check(
            "model_list: [{model_name: a, litellm_params: {model: bedrock/x}}]",
            "model_list[0].litellm_params.model",
        );
        let key = "model_list: [{model_name: a, litellm_params: {model: openai/x, api_key: sk-12345}}]";
        check(key, "model_list[0].litellm_params.api_key");
        assert!(!from_litellm(key).unwrap_err().to_string().contains("12345"));
    }
}
