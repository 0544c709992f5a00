//! One target: what is sent, and how every kind of answer is understood.

use super::server::{Act, END, STREAM, Server, answer, chunk};
use super::*;
use holdfast_adapters::providers::{Reported, Secret, Stage, Tokens};
use std::time::Duration;
use tokio::time::Instant;

const ANSWER: &str = "{ \"id\":\"chatcmpl-1\", \"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"Hello\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2,\"total_tokens\":11}, \"odd\": 1.00}";

fn one(kind: &str, url: &str, extra: &Value) -> Providers {
    let mut provider = json!({"kind": kind, "base_url": url, "key_env": "KEY"});
    provider.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    providers(
        json!({"providers": {"p": provider}, "models": [{"name": "m", "targets": [{"provider": "p", "model": "up"}]}]}),
    )
}

async fn answered(script: Vec<Act>, extra: Value, call: Call) -> Result<Reply, ProviderError> {
    let server = Server::start(vec![script]).await;
    ask(&one("openai", &server.url, &extra), call).await
}

#[tokio::test]
async fn a_whole_answer_is_passed_through_byte_for_byte() {
    let server = Server::start(vec![answer(200, "", ANSWER)]).await;
    let mut call = chat(Delivery::Whole);
    call.body.set("unknown", &json!({"kept": [1]}));
    call.max_output_tokens = Some(12);
    let whole = whole(ask(&one("openai", &server.url, &json!({})), call).await.unwrap());
    assert_eq!((whole.status, &whole.body[..]), (200, ANSWER.as_bytes()));
    assert_eq!(whole.usage, Reported::Tokens(Tokens { input: 9, output: 2, ..Tokens::default() }));
    assert_eq!(whole.text(), "Hello");
    let seen = &server.seen()[0];
    assert!(seen.head.starts_with("post /v1/chat/completions "), "{}", seen.head);
    assert!(seen.head.contains("authorization: bearer sk-operator\r\n"), "{}", seen.head);
    assert!(!seen.head.contains("accept-encoding"), "{}", seen.head);
    let sent = json!({"model": "up", "messages": [{"role": "user", "content": "Hi"}], "unknown": {"kept": [1]}, "max_tokens": 12});
    assert_eq!(seen.body, sent);
}

#[tokio::test]
async fn the_callers_own_key_is_used_instead_and_its_troubles_are_its_own() {
    let refusal = r#"{"error":{"message":"bad key","type":"invalid_request_error","code":"invalid_api_key"}}"#;
    let limit = r#"{"error":{"message":"slow down","type":"rate_limit_error"}}"#;
    let server = Server::start(vec![
        answer(401, "", refusal),
        answer(429, "retry-after: 60\r\n", limit),
        answer(200, "", ANSWER),
    ])
    .await;
    let providers = one("openai", &server.url, &json!({}));
    for (status, body) in [(401, refusal), (429, limit)] {
        let mut call = chat(Delivery::Whole);
        call.key = Some(Secret::new("sk-own"));
        let error = ask(&providers, call).await.unwrap_err();
        assert_eq!(error, ProviderError::Refused { status, body: body.to_owned().into() });
    }
    assert!(server.seen()[0].head.contains("authorization: bearer sk-own\r\n"));
    assert!(ask(&providers, chat(Delivery::Whole)).await.is_ok(), "nobody else is turned away for it");
}

#[tokio::test]
async fn every_status_has_its_meaning() {
    let body = r#"{"error":{"message":"x","type":"t"}}"#;
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    let table = [
        (400, "", ProviderError::Refused { status: 400, body: body.into() }),
        (404, "", ProviderError::Refused { status: 404, body: body.into() }),
        (401, "", ProviderError::KeyRefused { status: 401 }),
        (403, "", ProviderError::KeyRefused { status: 403 }),
        (408, "", ProviderError::TimedOut(Stage::FirstByte)),
        (429, "retry-after: 7\r\n", ProviderError::RateLimited { retry_after: seconds(7) }),
        (429, "retry-after-ms: 2000\r\nretry-after: 7\r\n", ProviderError::RateLimited { retry_after: seconds(2) }),
        (429, "retry-after: Fri, 31 Dec 1999 23:59:59 GMT\r\n", ProviderError::RateLimited { retry_after: None }),
        (500, "", ProviderError::Failed { status: 500 }),
        (529, "", ProviderError::Failed { status: 529 }),
        (
            503,
            "retry-after: 3\r\n",
            ProviderError::Unavailable { reason: "it answers with status 503".into(), retry_after: seconds(3) },
        ),
    ];
    for (status, headers, expected) in table {
        for delivery in [Delivery::Whole, Delivery::Stream] {
            let error = answered(answer(status, headers, body), json!({}), chat(delivery)).await.unwrap_err();
            assert_eq!(error, expected, "{status}");
        }
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let elsewhere = Server::start(vec![answer(200, "", ANSWER)]).await;
    let location = format!("location: {}/chat/completions\r\n", elsewhere.url);
    for status in [301, 302, 307, 308] {
        let error = answered(answer(status, &location, ""), json!({}), chat(Delivery::Whole)).await.unwrap_err();
        assert!(matches!(error, ProviderError::Unreadable { .. }), "{error:?}");
    }
    assert_eq!(elsewhere.seen().len(), 0, "the key went nowhere else");
}

#[tokio::test]
async fn what_is_no_answer_is_unreadable() {
    let long = format!("{{\"x\":\"{}\"}}", "y".repeat(5_000));
    let events =
        format!("{STREAM}{}{END}", chunk(&format!("data: {{\"choices\":[],\"x\":\"{}\"}}\n\n", "y".repeat(5_000))));
    let table = [
        (answer(200, "", "<html>"), Delivery::Whole),
        (answer(200, "", "{\"usage\":"), Delivery::Whole),
        (answer(200, "", &long), Delivery::Whole),
        (answer(200, "", ANSWER), Delivery::Stream),
        (vec![Act::Send(events)], Delivery::Stream),
        (vec![Act::Send(format!("{STREAM}{}", chunk("data: {bad}\n\n")))], Delivery::Stream),
    ];
    for (script, delivery) in table {
        let error = answered(script, json!({"max_reply_bytes": 4_000}), chat(delivery)).await.unwrap_err();
        assert!(matches!(error, ProviderError::Unreadable { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn usage_that_is_missing_or_nonsense_is_told_as_such() {
    let with = |usage: &str| format!("{{\"choices\":[{{\"message\":{{\"content\":\"Hello\"}}}}]{usage}}}");
    let missing = whole(answered(answer(200, "", &with("")), json!({}), chat(Delivery::Whole)).await.unwrap());
    assert_eq!((missing.usage.clone(), missing.text().as_str()), (Reported::Missing, "Hello"));
    let odd = with(",\"usage\":{\"prompt_tokens\":-9,\"completion_tokens\":2}");
    let odd = whole(answered(answer(200, "", &odd), json!({}), chat(Delivery::Whole)).await.unwrap());
    assert_eq!(odd.usage, Reported::Nonsense("prompt_tokens is -9".to_owned()));
}

#[tokio::test]
async fn waiting_is_bounded_at_every_stage() {
    let silent = || vec![Act::AwaitClose(Default::default())];
    let begun = || {
        vec![
            Act::Send(format!("{STREAM}{}", chunk("data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n"))),
            Act::AwaitClose(Default::default()),
        ]
    };
    let quick = json!({"first_byte_timeout_ms": 60, "whole_timeout_ms": 60, "idle_timeout_ms": 60});
    for delivery in [Delivery::Whole, Delivery::Stream] {
        let error = answered(silent(), quick.clone(), chat(delivery)).await.unwrap_err();
        assert_eq!(error, ProviderError::TimedOut(Stage::FirstByte));
        let mut call = chat(delivery);
        call.deadline = Some(Instant::now() + Duration::from_millis(60));
        let error = answered(silent(), json!({}), call).await.unwrap_err();
        assert_eq!(error, ProviderError::TimedOut(Stage::Deadline));
    }
    let stream = stream(answered(begun(), quick, chat(Delivery::Stream)).await.unwrap());
    let (pieces, error) = drained(stream).await;
    assert_eq!((text(&pieces).as_str(), error), ("a", Some(ProviderError::TimedOut(Stage::Idle))));
}

#[tokio::test]
async fn anthropic_is_asked_in_its_own_words() {
    let message = r#"{"id":"msg_1","type":"message","role":"assistant","model":"claude","content":[{"type":"text","text":"Hello"}],"stop_reason":"end_turn","usage":{"input_tokens":9,"output_tokens":2}}"#;
    let server = Server::start(vec![answer(200, "", message)]).await;
    let url = server.url.strip_suffix("/v1").unwrap();
    let providers = one("anthropic", url, &json!({}));
    let mut native = call(
        Dialect::Messages,
        Delivery::Whole,
        &json!({"model": "x", "max_tokens": 5, "messages": [], "thinking": {"type": "enabled"}}),
    );
    native.headers = Headers { anthropic_version: None, anthropic_beta: Some("a-1,b-2".to_owned()) };
    assert_eq!(whole(ask(&providers, native).await.unwrap()).body, message.as_bytes());
    let answer = whole(ask(&providers, chat(Delivery::Whole)).await.unwrap());
    let body: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(body["choices"][0]["message"]["content"], "Hello");
    assert_eq!(answer.usage, Reported::Tokens(Tokens { input: 9, output: 2, ..Tokens::default() }));
    let [first, second] = &server.seen()[..] else { panic!("two requests") };
    for header in ["x-api-key: sk-operator\r\n", "anthropic-version: 2023-06-01\r\n", "anthropic-beta: a-1,b-2\r\n"] {
        assert!(first.head.contains(header), "{}", first.head);
    }
    assert!(first.head.starts_with("post /v1/messages ") && !first.head.contains("authorization"), "{}", first.head);
    assert_eq!(first.body["thinking"]["type"], "enabled");
    assert_eq!(second.body["messages"][0]["content"][0]["text"], "Hi");
    let embeddings = call(Dialect::Embeddings, Delivery::Whole, &json!({"input": "x"}));
    assert!(matches!(ask(&providers, embeddings).await, Err(ProviderError::Untranslatable(_))));
}

#[tokio::test]
async fn a_refusal_of_another_dialect_is_translated() {
    let server = Server::start(vec![answer(
        400,
        "",
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"too long"}}"#,
    )])
    .await;
    let providers = one("anthropic", &server.url, &json!({}));
    let error = ask(&providers, chat(Delivery::Whole)).await.unwrap_err();
    let body: Value = serde_json::from_slice(&error.body(Dialect::ChatCompletions)).unwrap();
    assert_eq!((error.status(), &body["error"]["message"]), (400, &json!("too long")));
}
