//! The echo model in all dialects.

use super::*;
use holdfast_adapters::providers::{Reported, Tokens};
use std::time::Duration;

fn echo() -> Providers {
    Providers::from_config(Config::default(), |_| None).unwrap()
}

async fn say(call: Call) -> Result<Reply, ProviderError> {
    echo().resolve("echo").unwrap().call(call).await.map(|answered| answered.reply)
}

/// A request that says this to the user's model, in a dialect.
fn said(dialect: Dialect, delivery: Delivery, text: &str) -> Call {
    let body = match dialect {
        Dialect::ChatCompletions => {
            json!({"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]})
        }
        Dialect::Messages => {
            json!({"max_tokens": 100, "system": "Be brief.", "messages": [{"role": "user", "content": [{"type": "text", "text": text}]}]})
        }
        Dialect::Responses => json!({"instructions": "Be brief.", "input": text}),
        Dialect::Embeddings => json!({"input": text}),
    };
    call(dialect, delivery, &body)
}

const DIALECTS: [Dialect; 3] = [Dialect::ChatCompletions, Dialect::Messages, Dialect::Responses];

fn tokens(input: u64, cached_input: u64, output: u64, reasoning: u64) -> Reported {
    Reported::Tokens(Tokens { input, cached_input, cache_write: 0, output, reasoning })
}

#[tokio::test]
async fn it_answers_alike_whole_and_streamed_in_every_dialect() {
    for dialect in DIALECTS {
        let whole = whole(say(said(dialect, Delivery::Whole, "hello  there\nworld")).await.unwrap());
        assert_eq!((whole.status, whole.text().as_str()), (200, "hello  there\nworld"), "{dialect:?}");
        assert_eq!(whole.usage, tokens(5, 0, 3, 0), "words of the system and the user; words of the answer");
        let (pieces, error) =
            drained(stream(say(said(dialect, Delivery::Stream, "hello  there\nworld")).await.unwrap())).await;
        assert_eq!((text(&pieces).as_str(), error), ("hello  there\nworld", None));
        let words: Vec<&str> = pieces.iter().map(|piece| piece.text.as_str()).filter(|text| !text.is_empty()).collect();
        assert_eq!(words, ["hello", "  there", "\nworld"]);
        let last = pieces.last().unwrap();
        assert_eq!((last.last, &last.usage), (true, &whole.usage));
        let again = drained(stream(say(said(dialect, Delivery::Stream, "hello  there\nworld")).await.unwrap())).await;
        assert_eq!(again.0, pieces, "the same call has the same answer");
    }
}

#[tokio::test]
async fn it_stops_at_the_limit_and_says_so() {
    for (dialect, word) in [
        (Dialect::ChatCompletions, "\"length\""),
        (Dialect::Messages, "\"max_tokens\""),
        (Dialect::Responses, "\"incomplete\""),
    ] {
        for delivery in [Delivery::Whole, Delivery::Stream] {
            let mut call = said(dialect, delivery, "one two three");
            call.max_output_tokens = Some(2);
            let (body, text, usage) = match say(call).await.unwrap() {
                Reply::Whole(whole) => (String::from_utf8(whole.body.to_vec()).unwrap(), whole.text(), whole.usage),
                Reply::Stream(stream) => {
                    let (pieces, _) = drained(stream).await;
                    (bytes(&pieces), text(&pieces), pieces.last().unwrap().usage.clone())
                }
            };
            assert_eq!((text.as_str(), usage), ("one two", tokens(5, 0, 2, 0)));
            assert!(body.contains(word), "{body}");
        }
    }
}

#[tokio::test]
async fn it_calls_a_tool_when_told_and_answers_with_the_result() {
    let parameters = json!({"type": "object"});
    for dialect in DIALECTS {
        let tool = match dialect {
            Dialect::ChatCompletions | Dialect::Embeddings => {
                json!({"type": "function", "function": {"name": "look", "parameters": parameters}})
            }
            Dialect::Messages => json!({"name": "look", "input_schema": parameters}),
            Dialect::Responses => json!({"type": "function", "name": "look", "parameters": parameters}),
        };
        let with_tool = |delivery| {
            let mut call = said(dialect, delivery, "please call look {\"at\": \"the cat\"} now");
            call.body.set("tools", &json!([tool]));
            call
        };
        let whole = whole(say(with_tool(Delivery::Whole)).await.unwrap());
        let body: Value = serde_json::from_slice(&whole.body).unwrap();
        let arguments = match dialect {
            Dialect::Messages => body["content"][0]["input"].clone(),
            Dialect::Responses => serde_json::from_str(body["output"][0]["arguments"].as_str().unwrap()).unwrap(),
            Dialect::ChatCompletions | Dialect::Embeddings => {
                let function = &body["choices"][0]["message"]["tool_calls"][0]["function"];
                serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap()
            }
        };
        assert_eq!(arguments, json!({"at": "the cat"}), "{dialect:?}");
        assert_eq!(whole.usage, tokens(9, 0, 3, 0), "the name, and two words of arguments");
        let (pieces, _) = drained(stream(say(with_tool(Delivery::Stream)).await.unwrap())).await;
        assert_eq!(text(&pieces).replace(' ', ""), "look{\"at\":\"thecat\"}");
    }
    let result = json!({"messages": [
        {"role": "user", "content": "call look {}"},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "call look again"}],
        "tools": [{"type": "function", "function": {"name": "look"}}]});
    let answer = whole(say(call(Dialect::ChatCompletions, Delivery::Whole, &result)).await.unwrap());
    assert_eq!(answer.text(), "call look again", "a result is answered with words, or a tool would be called for ever");
}

#[tokio::test]
async fn it_misbehaves_as_told() {
    for delivery in [Delivery::Whole, Delivery::Stream] {
        let told = |text: &str| said(Dialect::ChatCompletions, delivery, text);
        let failure =
            |text: &'static str| async move { say(said(Dialect::ChatCompletions, delivery, text)).await.unwrap_err() };
        assert_eq!(failure("[[echo fail=503]] x").await, ProviderError::Failed { status: 503 });
        let limited = ProviderError::RateLimited { retry_after: Some(Duration::from_secs(9)) };
        assert_eq!(failure("[[echo fail=429 retry_after=9]]").await, limited);
        assert_eq!(failure("[[echo fail=418]]").await.status(), 418);
        assert_eq!(failure("[[echo typo=1]]").await.status(), 400);
        for (control, expected) in [
            ("usage=none", Some(Reported::Missing)),
            ("usage=negative", None),
            ("usage=fraction", None),
            ("usage=absurd", None),
            ("usage=tenfold", Some(tokens(60, 0, 20, 0))),
            ("words=7", Some(tokens(6, 0, 7, 0))),
            ("cached=4", Some(tokens(2, 4, 2, 0))),
            ("reasoning=40", Some(tokens(6, 0, 2, 40))),
        ] {
            let usage = match say(told(&format!("[[echo {control}]] one two"))).await.unwrap() {
                Reply::Whole(whole) => whole.usage,
                Reply::Stream(stream) => drained(stream).await.0.last().unwrap().usage.clone(),
            };
            match expected {
                Some(expected) => assert_eq!(usage, expected, "{control}"),
                None => assert!(matches!(usage, Reported::Nonsense(_)), "{control}: {usage:?}"),
            }
        }
    }
}

#[tokio::test]
async fn it_breaks_off_in_the_middle_as_told_in_every_dialect() {
    for dialect in DIALECTS {
        let (pieces, error) = drained(stream(
            say(said(dialect, Delivery::Stream, "[[echo break_after=2]] one two three")).await.unwrap(),
        ))
        .await;
        assert_eq!(text(&pieces), "one two");
        assert!(matches!(error, Some(ProviderError::BrokeOff { .. })), "{error:?}");
        let before = say(said(dialect, Delivery::Stream, "[[echo break_after=0]] one two")).await;
        assert!(matches!(before, Err(ProviderError::BrokeOff { .. })), "before the first word there is no stream");
    }
}

#[tokio::test(start_paused = true)]
async fn a_target_is_told_by_its_model_name_and_takes_its_time() {
    let providers = providers(json!({
        "providers": {"e": {"kind": "echo"}},
        "models": [{"name": "m", "targets": [
            {"provider": "e", "model": "echo:fail=500"}, {"provider": "e", "model": "echo:words=100,delay_ms=50", "priority": 1}]}],
    }));
    let begin = tokio::time::Instant::now();
    let (pieces, _) = drained(stream(ask(&providers, chat(Delivery::Stream)).await.unwrap())).await;
    assert_eq!(begin.elapsed(), Duration::from_secs(5), "fifty milliseconds for each of a hundred words");
    assert!(text(&pieces).starts_with("word0 word1 "));
}

#[tokio::test]
async fn a_huge_answer_comes_whole() {
    let call = said(Dialect::ChatCompletions, Delivery::Stream, "[[echo words=50000]]");
    let (pieces, error) = drained(stream(say(call).await.unwrap())).await;
    assert_eq!((text(&pieces).split(' ').count(), error), (50_000, None));
}

#[tokio::test]
async fn embeddings_are_the_same_for_the_same_text_in_both_formats() {
    let embed = |body: Value| async move { say(call(Dialect::Embeddings, Delivery::Whole, &body)).await };
    let floats = whole(embed(json!({"input": ["a b", "c"], "dimensions": 8})).await.unwrap());
    assert_eq!(floats.usage, tokens(3, 0, 0, 0));
    let body: Value = serde_json::from_slice(&floats.body).unwrap();
    let vector: Vec<f64> = serde_json::from_value(body["data"][0]["embedding"].clone()).unwrap();
    let length: f64 = vector.iter().map(|number| number * number).sum();
    assert!(vector.len() == 8 && (length - 1.0).abs() < 1e-5, "{vector:?}");
    assert_ne!(body["data"][0]["embedding"], body["data"][1]["embedding"]);
    let coded = whole(embed(json!({"input": "a b", "dimensions": 8, "encoding_format": "base64"})).await.unwrap());
    let coded: Value = serde_json::from_slice(&coded.body).unwrap();
    let coded = coded["data"][0]["embedding"].as_str().unwrap();
    assert_eq!(coded.len(), 44, "eight floats of four bytes in base64");
    let default = whole(embed(json!({"input": [1, 2, 3]})).await.unwrap());
    assert_eq!(default.usage, tokens(3, 0, 0, 0), "tokens count as they are");
    for odd in [
        json!({}),
        json!({"input": []}),
        json!({"input": 5}),
        json!({"input": "a", "dimensions": 0}),
        json!({"input": "a", "encoding_format": "x"}),
    ] {
        assert_eq!(embed(odd.clone()).await.unwrap_err().status(), 400, "{odd}");
    }
}
