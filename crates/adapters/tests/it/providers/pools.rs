//! Several targets: who is asked, who is left alone, and what the configuration says.

use super::server::{Server, answer};
use super::*;
use holdfast_adapters::providers::{Model, Secret};
use std::time::Duration;

const ANSWER: &str =
    r#"{"choices":[{"message":{"content":"Hello"}}],"usage":{"prompt_tokens":1,"completion_tokens":1}}"#;

fn two(first: &str, second: &str) -> Providers {
    providers(json!({
        "providers": {"a": {"kind": "openai", "base_url": first}, "b": {"kind": "openai", "base_url": second}},
        "models": [{"name": "m", "targets": [
            {"provider": "b", "model": "b-1", "priority": 1}, {"provider": "a", "model": "a-1"}]}],
    }))
}

#[tokio::test]
async fn a_failing_target_is_followed_by_the_next_and_then_left_alone() {
    let bad = Server::start(vec![answer(500, "", "{}")]).await;
    let good = Server::start(vec![answer(200, "", ANSWER)]).await;
    let pool = two(&bad.url, &good.url).resolve("m").unwrap();
    assert_eq!(pool.targets().collect::<Vec<_>>(), [("b", "b-1"), ("a", "a-1")]);
    for number in 1..=8 {
        let answered = pool.call(chat(Delivery::Whole)).await.unwrap();
        assert_eq!((answered.provider.as_str(), answered.target, answered.upstream_model.as_str()), ("b", 0, "b-1"));
        let [attempt] = &answered.attempts[..] else { panic!("one attempt failed") };
        assert_eq!((attempt.provider.as_str(), attempt.upstream_model.as_str()), ("a", "a-1"));
        let asked = number <= 5;
        assert_eq!(attempt.error == ProviderError::Failed { status: 500 }, asked, "{number}: {:?}", attempt.error);
    }
    assert_eq!((bad.seen().len(), good.seen().len()), (5, 8), "after five failures in a row it is not asked");
}

#[tokio::test]
async fn a_target_that_asks_for_time_gets_it() {
    let limited = Server::start(vec![answer(429, "retry-after: 30\r\n", "{}")]).await;
    let providers = providers(json!({"providers": {"p": {"kind": "openai", "base_url": limited.url}}}));
    let pool = providers.resolve("p/up").unwrap();
    let first = pool.call(chat(Delivery::Whole)).await.unwrap_err();
    assert_eq!(first, ProviderError::RateLimited { retry_after: Some(Duration::from_secs(30)) });
    let second = providers.resolve("p/other").unwrap().call(chat(Delivery::Stream)).await.unwrap_err();
    assert!(second.retry_after().unwrap() <= Duration::from_secs(30), "the rest of what it asked for: {second:?}");
    assert_eq!((second.status(), limited.seen().len()), (503, 1));
}

#[tokio::test]
async fn a_fault_of_the_callers_is_tried_once() {
    let refuses = Server::start(vec![answer(422, "", r#"{"error":{"message":"no"}}"#)]).await;
    let good = Server::start(vec![answer(200, "", ANSWER)]).await;
    let pool = two(&refuses.url, &good.url).resolve("m").unwrap();
    for _ in 0..10 {
        assert_eq!(pool.call(chat(Delivery::Whole)).await.unwrap_err().status(), 422);
    }
    assert_eq!((refuses.seen().len(), good.seen().len()), (10, 0), "and says nothing against the target");
}

#[tokio::test]
async fn what_cannot_be_reached_or_read_or_lets_no_one_in_is_followed_by_the_next() {
    let good = Server::start(vec![answer(200, "", ANSWER)]).await;
    // A port that was free a moment ago, and is closed.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let closed = format!("http://{closed}");
    let unreadable = Server::start(vec![answer(200, "", "<html>")]).await;
    let no_key = Server::start(vec![answer(401, "", "{}")]).await;
    for (url, code) in [
        (&closed, "SERVICE_PROVIDER_UNAVAILABLE"),
        (&unreadable.url, "PROVIDER_UNREADABLE"),
        (&no_key.url, "PROVIDER_KEY_REFUSED"),
    ] {
        let answered = two(url, &good.url).resolve("m").unwrap().call(chat(Delivery::Whole)).await.unwrap();
        assert_eq!(answered.attempts[0].error.code(), code);
    }
}

#[tokio::test]
async fn when_all_fail_the_caller_is_told_the_most_telling() {
    let bad = Server::start(vec![answer(500, "", "{}")]).await;
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let pool = two(&bad.url, &format!("http://{closed}")).resolve("m").unwrap();
    assert_eq!(pool.call(chat(Delivery::Whole)).await.unwrap_err(), ProviderError::Failed { status: 500 });
}

#[tokio::test]
async fn without_a_key_nothing_is_sent_but_the_callers_own_will_do() {
    let good = Server::start(vec![answer(200, "", ANSWER)]).await;
    let config = json!({"providers": {"p": {"kind": "openai", "base_url": good.url, "key_env": "P_KEY"}}});
    let providers = Providers::from_config(serde_json::from_value(config).unwrap(), |_| None).unwrap();
    let pool = providers.resolve("p/up").unwrap();
    let error = pool.call(chat(Delivery::Whole)).await.unwrap_err();
    assert_eq!(error, ProviderError::KeyMissing { variable: "P_KEY".to_owned() });
    let mut call = chat(Delivery::Whole);
    call.key = Some(Secret::new("sk-own"));
    assert!(pool.call(call).await.is_ok());
    assert_eq!(good.seen().len(), 1);
}

#[test]
fn without_configuration_the_environment_says_who_there_is() {
    let names = |names: &'static [&'static str]| {
        Providers::from_config(Config::default(), move |name| names.contains(&name).then(|| "k".to_owned())).unwrap()
    };
    let alone = names(&[]);
    assert_eq!(alone.models(), [Model { name: "echo".to_owned(), owned_by: "echo".to_owned() }]);
    let resolves = |providers: &Providers, model: &str| {
        let pool = providers.resolve(model)?;
        pool.targets().next().map(|(provider, model)| format!("{provider} {model}"))
    };
    assert_eq!(resolves(&alone, "echo").as_deref(), Some("echo echo"));
    assert_eq!(resolves(&alone, "echo:words=5").as_deref(), Some("echo echo:words=5"));
    for unknown in ["gpt-4o", "claude-x", "openai/gpt-4o", "", "x", "echo/", "/x"] {
        assert_eq!(resolves(&alone, unknown), None, "{unknown}");
    }
    let both = names(&["OPENAI_API_KEY", "ANTHROPIC_API_KEY"]);
    for (model, expected) in [
        ("gpt-4o", "openai gpt-4o"),
        ("o1-mini", "openai o1-mini"),
        ("openai/x/y", "openai x/y"),
        ("claude-sonnet-4-5", "anthropic claude-sonnet-4-5"),
        ("anthropic/z", "anthropic z"),
    ] {
        assert_eq!(resolves(&both, model).as_deref(), Some(expected));
    }
}

#[test]
fn a_configuration_that_cannot_be_used_names_its_setting() {
    let check = |config: Value, setting: &str| {
        let config: Config = serde_json::from_value(config).unwrap();
        let error = Providers::from_config(config, |_| None).unwrap_err();
        assert_eq!((error.setting.as_str(), error.code()), (setting, "INVALID_SETTING"));
    };
    check(json!({"providers": {"p": {"kind": "openai", "base_url": "ftp://x"}}}), "providers.p.base_url");
    check(json!({"providers": {"p": {"kind": "openai", "base_url": "https://u:secret@x"}}}), "providers.p.base_url");
    check(json!({"providers": {"a/b": {"kind": "echo"}}}), "providers.a/b");
    check(json!({"providers": {"p": {"kind": "echo", "max_concurrent": 0}}}), "providers.p.max_concurrent");
    check(json!({"models": [{"name": "m", "targets": []}]}), "models.m.targets");
    check(json!({"models": [{"name": "m", "targets": [{"provider": "x", "model": "y"}]}]}), "models.m.targets");
    let twice = json!({"name": "m", "targets": [{"provider": "echo", "model": "echo"}]});
    check(json!({"models": [twice, twice]}), "models.m");
    for unknown in [json!({"provider": {}}), json!({"providers": {"p": {"kind": "echo", "key": "sk-1"}}})] {
        assert!(
            serde_json::from_value::<Config>(unknown).is_err(),
            "keys are not settings, and typing errors are told"
        );
    }
}
