//! All providers and models of a server: made once from the configuration, then only read.

use super::breaker;
use super::call::Secret;
use super::choice::Rank;
use super::config::{Config, ConfigError, Kind, ProviderConfig, TargetConfig};
use super::gate::Gate;
use super::http::Upstream;
use super::pool::{Backend, Pool, Provider, SharedBreaker, Target};
use std::collections::{BTreeMap, HashMap};
use std::hash::RandomState;
use std::sync::Arc;
use std::time::Duration;

/// The providers and models of a server. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Providers(Arc<Registry>);

#[derive(Debug)]
struct Registry {
    providers: BTreeMap<String, Arc<Provider>>,
    kinds: BTreeMap<String, Kind>,
    pools: HashMap<String, Pool>,
    /// The names in the order of the configuration.
    names: Vec<String>,
    seed: RandomState,
}

/// A model that can be asked for by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    /// Its name.
    pub name: String,
    /// The provider that is asked first.
    pub owned_by: String,
}

/// The built-in provider and its model.
const ECHO: &str = "echo";
/// Bare names that need no configuration: what they begin with, the provider that they belong to, and its kind.
const KNOWN_PREFIXES: [(&str, &str, Kind); 7] = [
    ("gpt-", "openai", Kind::OpenAi),
    ("chatgpt-", "openai", Kind::OpenAi),
    ("o1", "openai", Kind::OpenAi),
    ("o3", "openai", Kind::OpenAi),
    ("o4", "openai", Kind::OpenAi),
    ("text-embedding-", "openai", Kind::OpenAi),
    ("claude-", "anthropic", Kind::Anthropic),
];

impl Providers {
    /// Makes the providers. Without any in the configuration: `echo`, and OpenAI and Anthropic if their keys are in the
    /// environment, which `env` looks up.
    ///
    /// # Errors
    /// If a setting cannot be used; it names itself.
    pub fn from_config(config: Config, env: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let env = &|name: &str| env(name).filter(|value| !value.trim().is_empty());
        let config = if config.providers.is_empty() { with_usual_providers(config, env) } else { config };
        let mut providers = BTreeMap::new();
        for (name, settings) in &config.providers {
            if name.is_empty() || name.contains('/') {
                return Err(ConfigError::new(
                    format!("providers.{name}"),
                    "a provider's name is not empty and has no `/`",
                ));
            }
            providers.insert(name.clone(), Arc::new(provider(name, settings, env)?));
        }
        let seed = RandomState::new();
        let mut pools = HashMap::new();
        let mut names = Vec::new();
        for model in &config.models {
            let pool = pool(&model.name, &model.targets, &providers, &seed)?;
            if pools.insert(model.name.clone(), pool).is_some() {
                return Err(ConfigError::new(
                    format!("models.{}", model.name),
                    "two models have this name; names are used once",
                ));
            }
            names.push(model.name.clone());
        }
        let kinds = config.providers.iter().map(|(name, settings)| (name.clone(), settings.kind)).collect();
        Ok(Self(Arc::new(Registry { providers, kinds, pools, names, seed })))
    }

    /// The models that are configured by name. `PROVIDER/NAME` can be asked for beside them.
    #[must_use]
    pub fn models(&self) -> Vec<Model> {
        let owner = |name: &String| {
            let pool = self.0.pools.get(name)?;
            let first = pool.targets.iter().min_by_key(|target| target.rank.priority)?;
            Some(Model { name: name.clone(), owned_by: first.provider.name.clone() })
        };
        self.0.names.iter().filter_map(owner).collect()
    }

    /// Who answers for a name: a configured model; `PROVIDER/NAME`; `echo:SETTINGS`; or a name that is known to belong to
    /// OpenAI or Anthropic, if there is such a provider.
    #[must_use]
    pub fn resolve(&self, model: &str) -> Option<Pool> {
        if let Some(pool) = self.0.pools.get(model) {
            return Some(pool.clone());
        }
        let (provider, name) = match model.split_once('/') {
            Some((provider, name)) => (provider, name),
            None if model.starts_with("echo:") => (ECHO, model),
            None => {
                let known = KNOWN_PREFIXES.iter().find(|(prefix, ..)| model.starts_with(prefix));
                let (_, provider, kind) = known?;
                (self.0.kinds.get(*provider) == Some(kind)).then_some((*provider, model))?
            }
        };
        let provider = Arc::clone(self.0.providers.get(provider).filter(|_| !name.is_empty())?);
        let (rank, breaker) = (Rank { priority: 0, weight: 1 }, provider.breaker.clone());
        let target = Target { provider, model: name.to_owned(), rank, breaker };
        Some(Pool { targets: Arc::new([target]), seed: self.0.seed.clone() })
    }
}

/// What there is without configuration.
fn with_usual_providers(mut config: Config, env: impl Fn(&str) -> Option<String>) -> Config {
    config.providers.insert(ECHO.to_owned(), ProviderConfig::new(Kind::Echo));
    for (name, kind, variable) in
        [("openai", Kind::OpenAi, "OPENAI_API_KEY"), ("anthropic", Kind::Anthropic, "ANTHROPIC_API_KEY")]
    {
        if env(variable).is_some() {
            let settings = ProviderConfig { key_env: Some(variable.to_owned()), ..ProviderConfig::new(kind) };
            config.providers.insert(name.to_owned(), settings);
        }
    }
    if config.models.iter().all(|model| model.name != ECHO) {
        let target = TargetConfig { provider: ECHO.to_owned(), model: ECHO.to_owned(), weight: 1, priority: 0 };
        config.models.push(super::config::ModelConfig { name: ECHO.to_owned(), targets: vec![target] });
    }
    config
}

fn provider(
    name: &str,
    settings: &ProviderConfig,
    env: impl Fn(&str) -> Option<String>,
) -> Result<Provider, ConfigError> {
    if settings.max_concurrent == 0 {
        return Err(ConfigError::new(format!("providers.{name}.max_concurrent"), "it is 0; allow at least one call"));
    }
    let backend = match settings.kind {
        Kind::Echo => Backend::Echo,
        Kind::OpenAi | Kind::Anthropic => {
            let key = settings.key_env.as_deref().and_then(env).map(|key| Secret::new(key.trim()));
            Backend::Http(Box::new(Upstream::new(name, settings, key)?))
        }
    };
    let wait_max = Duration::from_millis(settings.max_wait_ms);
    let gate = Gate::new(settings.max_concurrent, settings.max_waiting, wait_max);
    Ok(Provider { name: name.to_owned(), backend, gate, breaker: SharedBreaker::new() })
}

fn pool(
    name: &str,
    targets: &[TargetConfig],
    providers: &BTreeMap<String, Arc<Provider>>,
    seed: &RandomState,
) -> Result<Pool, ConfigError> {
    let setting = || format!("models.{name}.targets");
    if name.is_empty() || targets.is_empty() {
        return Err(ConfigError::new(setting(), "a model needs a name and at least one target"));
    }
    let target = |target: &TargetConfig| {
        let known = providers.get(&target.provider).ok_or_else(|| {
            let known: Vec<&str> = providers.keys().map(String::as_str).collect();
            let problem = format!("there is no provider `{}`; there are: {}", target.provider, known.join(", "));
            ConfigError::new(setting(), problem)
        })?;
        let rank = Rank { priority: target.priority, weight: target.weight };
        Ok(Target { provider: Arc::clone(known), model: target.model.clone(), rank, breaker: SharedBreaker::new() })
    };
    let targets: Vec<Target> = targets.iter().map(target).collect::<Result<_, _>>()?;
    Ok(Pool { targets: targets.into(), seed: seed.clone() })
}

// The policy of every breaker is one; a rest must be shorter than what a target can ask for, or the bound is none.
const _: () = assert!(breaker::POLICY.rest.as_secs() <= breaker::POLICY.rest_max.as_secs());
