//! The providers: whether their keys are there and, if asked for, whether they take them.

use super::Finding;
use crate::cli::config::kind_name;
use crate::config::{FileConfig, ProviderSeen};
use holdfast_adapters::providers::config::Kind;
use reqwest::{Client, RequestBuilder, StatusCode, redirect};
use std::time::Duration;
use tokio::runtime::Builder;

/// How long a provider has to answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Checks every provider; online, if that is wanted.
pub(super) fn check(config: &FileConfig, online: bool) -> Vec<Finding> {
    config.providers_seen().iter().map(|provider| one(provider, online)).collect()
}

fn one(provider: &ProviderSeen, online: bool) -> Finding {
    let check = format!("provider {}", provider.name);
    match (provider.kind, &provider.key_env) {
        (Kind::Echo, _) => Finding::pass(&check, "built in"),
        (Kind::OpenAi | Kind::Anthropic, Some(variable)) if !provider.has_key => Finding::warn(
            &check,
            format!("its key is not in {variable}"),
            format!("set {variable} for the server; until then only callers with keys of their own are answered"),
        ),
        (Kind::OpenAi | Kind::Anthropic, _) if online => asked(&check, provider),
        (Kind::OpenAi | Kind::Anthropic, Some(variable)) => {
            Finding::pass(&check, format!("its key is in {variable}; --online asks whether it is taken"))
        }
        (Kind::OpenAi | Kind::Anthropic, None) => {
            Finding::pass(&check, "takes no key; --online asks whether it is there")
        }
    }
}

/// Asks a provider for its models, which costs nothing.
fn asked(check: &str, provider: &ProviderSeen) -> Finding {
    let runtime = Builder::new_current_thread().enable_all().build();
    let client = Client::builder().timeout(ANSWER_MAX).redirect(redirect::Policy::none()).build();
    let (Ok(runtime), Ok(client)) = (runtime, client) else {
        return Finding::warn(check, "could not be asked", "try again");
    };
    let answer = runtime.block_on(async { request(&client, provider).send().await });
    let status = match answer {
        Ok(answer) => answer.status(),
        Err(error) => {
            let why = if error.is_timeout() { "did not answer in 10 s" } else { "cannot be reached" };
            return Finding::fail(check, why, "check base_url, the network, and its proxy and firewall");
        }
    };
    match status {
        status if status.is_success() => {
            Finding::pass(check, format!("answers, and speaks {}", kind_name(provider.kind)))
        }
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            let variable = provider.key_env.as_deref().unwrap_or("key_env");
            Finding::fail(check, format!("refuses the key ({status})"), format!("put a good key into {variable}"))
        }
        StatusCode::NOT_FOUND => {
            Finding::warn(check, "answers, but has no list of models", "check that base_url is what the provider says")
        }
        status => Finding::warn(check, format!("answers {status}"), "look at the provider's own status"),
    }
}

fn request(client: &Client, provider: &ProviderSeen) -> RequestBuilder {
    let key = provider.key_env.as_deref().and_then(|variable| std::env::var(variable).ok());
    let key = key.map(|key| key.trim().to_owned());
    let at = |usual: &str| provider.base_url.as_deref().unwrap_or(usual).trim_end_matches('/').to_owned();
    match provider.kind {
        Kind::OpenAi | Kind::Echo => {
            let request = client.get(format!("{}/models", at("https://api.openai.com/v1")));
            key.into_iter().fold(request, RequestBuilder::bearer_auth)
        }
        Kind::Anthropic => {
            let request = client.get(format!("{}/v1/models", at("https://api.anthropic.com")));
            let request = request.header("anthropic-version", "2023-06-01");
            key.into_iter().fold(request, |request, key| request.header("x-api-key", key))
        }
    }
}
