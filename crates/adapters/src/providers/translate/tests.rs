//! Requests and whole answers, shaped like the providers' own examples.

use super::*;
use crate::providers::body::Body;
use crate::providers::call::{Headers, Pieces};
use holdfast_domain::Timestamp;

fn call(dialect: Dialect, body: &Value) -> Call {
    Call {
        dialect,
        body: Body::parse(body.to_string().as_bytes()).unwrap(),
        delivery: Delivery::Whole,
        pieces: Pieces::Together,
        max_output_tokens: None,
        key: None,
        headers: Headers::default(),
        request_id: "r1".to_owned(),
        at: Timestamp::from_millis(7_000),
        deadline: None,
    }
}

fn translated(dialect: Dialect, upstream: Dialect, body: &Value) -> Result<Value, ProviderError> {
    request(&call(dialect, body), upstream, "up").map(|bytes| serde_json::from_slice(&bytes).unwrap())
}

fn check(dialect: Dialect, upstream: Dialect, body: Value, expected: Value) {
    assert_eq!(translated(dialect, upstream, &body).unwrap(), expected);
}

fn refused(dialect: Dialect, upstream: Dialect, body: Value, named: &str) {
    match translated(dialect, upstream, &body) {
        Err(ProviderError::Untranslatable(message)) => assert!(message.contains(named), "{message}"),
        other => panic!("{body} gave {other:?}"),
    }
}

use Dialect::{ChatCompletions, Messages, Responses};

#[test]
fn a_chat_becomes_messages() {
    check(
        ChatCompletions,
        Messages,
        json!({
            "model": "x", "max_completion_tokens": 100, "temperature": 0.5, "stop": "END", "user": "u1", "n": 1,
            "stream_options": {"include_usage": true}, "parallel_tool_calls": false, "tool_choice": "required", "seed": null,
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": [
                    {"type": "text", "text": "What is this?"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBOR", "detail": "low"}},
                    {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]},
                {"role": "assistant", "content": null, "tool_calls": [
                    {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{\"at\": 1}"}},
                    {"id": "call_2", "type": "function", "function": {"name": "look", "arguments": ""}}]},
                {"role": "tool", "tool_call_id": "call_1", "content": "a cat"},
                {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "a dog"}]},
                {"role": "user", "content": "And?"}],
            "tools": [{"type": "function", "function": {"name": "look", "description": "Looks", "parameters": {"type": "object"}}}],
        }),
        json!({
            "model": "up", "max_tokens": 100, "temperature": 0.5, "stop_sequences": ["END"], "metadata": {"user_id": "u1"},
            "system": [{"type": "text", "text": "Be brief."}],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
            "messages": [
                {"role": "user", "content": [
                    {"type": "text", "text": "What is this?"},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBOR"}},
                    {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}]},
                {"role": "assistant", "content": [
                    {"type": "tool_use", "id": "call_1", "name": "look", "input": {"at": 1}},
                    {"type": "tool_use", "id": "call_2", "name": "look", "input": {}}]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "a cat"}]},
                    {"type": "tool_result", "tool_use_id": "call_2", "content": [{"type": "text", "text": "a dog"}]}]},
                {"role": "user", "content": [{"type": "text", "text": "And?"}]}],
            "tools": [{"name": "look", "description": "Looks", "input_schema": {"type": "object"}}],
        }),
    );
}

#[test]
fn messages_become_a_chat() {
    check(
        Messages,
        ChatCompletions,
        json!({
            "model": "claude", "max_tokens": 64, "stop_sequences": ["END"], "top_p": 0.9, "metadata": {"user_id": "u1"},
            "system": [{"type": "text", "text": "Be", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "brief."}],
            "tool_choice": {"type": "tool", "name": "look", "disable_parallel_tool_use": true},
            "tools": [{"name": "look", "input_schema": {"type": "object"}}],
            "messages": [
                {"role": "user", "content": [
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBOR"}},
                    {"type": "text", "text": "What is this?"}]},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "Hm", "signature": "EqQ"},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": 1}}]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": true, "content": "too dark"},
                    {"type": "text", "text": "And?"}]}],
        }),
        json!({
            "model": "up", "max_tokens": 64, "stop": ["END"], "top_p": 0.9, "user": "u1", "parallel_tool_calls": false,
            "tool_choice": {"type": "function", "function": {"name": "look"}},
            "tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}],
            "messages": [
                {"role": "system", "content": "Be\nbrief."},
                {"role": "user", "content": [
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBOR"}},
                    {"type": "text", "text": "What is this?"}]},
                {"role": "assistant", "content": "I look.", "tool_calls": [
                    {"id": "toolu_1", "type": "function", "function": {"name": "look", "arguments": "{\"at\":1}"}}]},
                {"role": "tool", "tool_call_id": "toolu_1", "content": "Error: too dark"},
                {"role": "user", "content": "And?"}],
        }),
    );
}

#[test]
fn a_response_becomes_a_chat_and_then_messages() {
    let body = json!({
        "model": "gpt", "instructions": "Be brief.", "max_output_tokens": 50, "store": false, "metadata": {"a": "b"},
        "text": {"format": {"type": "json_schema", "name": "cat", "schema": {"type": "object"}, "strict": true}},
        "reasoning": {"effort": "low", "summary": "auto"},
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Look"}, {"type": "input_image", "image_url": "https://example.com/a.png"}]},
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [{"type": "output_text", "text": "I do.", "annotations": []}]},
            {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look", "arguments": "{}", "status": "completed"},
            {"type": "function_call_output", "call_id": "call_1", "output": "a cat"}],
        "tools": [{"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": false}],
        "tool_choice": {"type": "function", "name": "look"},
    });
    let call = json!({"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}});
    let chat = json!({
        "model": "up", "max_tokens": 50, "reasoning_effort": "low",
        "response_format": {"type": "json_schema", "json_schema": {"name": "cat", "schema": {"type": "object"}, "strict": true}},
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Look"}, {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]},
            {"role": "assistant", "content": "I do.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "a cat"}],
        "tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}, "strict": false}}],
        "tool_choice": {"type": "function", "function": {"name": "look"}},
    });
    check(Responses, ChatCompletions, body, chat);
    check(
        Responses,
        Messages,
        json!({"model": "gpt", "input": "Hi", "instructions": "Be brief."}),
        json!({"model": "up", "max_tokens": 4_096, "system": [{"type": "text", "text": "Be brief."}],
            "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]}),
    );
}

#[test]
fn the_limit_that_was_paid_for_wins() {
    let mut call = call(ChatCompletions, &json!({"messages": [], "max_tokens": 900}));
    call.max_output_tokens = Some(5);
    call.delivery = Delivery::Stream;
    let body: Value = serde_json::from_slice(&request(&call, Messages, "up").unwrap()).unwrap();
    assert_eq!(body, json!({"model": "up", "max_tokens": 5, "stream": true, "messages": []}));
}

#[test]
fn what_has_no_counterpart_is_refused_by_name() {
    let chat = |extra: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "x"}]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        body
    };
    for extra in [
        json!({"n": 2}),
        json!({"seed": 1}),
        json!({"logprobs": true}),
        json!({"response_format": {"type": "json_object"}}),
        json!({"presence_penalty": 0.5}),
        json!({"temperature": 1.5}),
        json!({"audio": {}}),
        json!({"made_up": 1}),
        json!({"reasoning_effort": "low"}),
        json!({"store": true}),
    ] {
        let name = extra.as_object().unwrap().keys().next().unwrap().clone();
        refused(ChatCompletions, Messages, chat(extra), &name);
    }
    let said = |content: Value| json!({"messages": [{"role": "user", "content": content}]});
    refused(ChatCompletions, Messages, said(json!([{"type": "input_audio", "input_audio": {}}])), "input_audio");
    refused(ChatCompletions, Messages, json!({"messages": [{"role": "user", "content": "x", "name": "bob"}]}), "name");
    refused(
        ChatCompletions,
        Messages,
        json!({"messages": [{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "a", "arguments": "[1"}}]}]}),
        "arguments",
    );
    refused(Messages, ChatCompletions, said(json!([{"type": "document", "source": {}}])), "document");
    refused(Messages, ChatCompletions, json!({"messages": [], "top_k": 5}), "top_k");
    refused(
        Messages,
        ChatCompletions,
        json!({"messages": [], "thinking": {"type": "enabled", "budget_tokens": 1024}}),
        "thinking",
    );
    refused(
        Messages,
        ChatCompletions,
        json!({"messages": [], "tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
        "type",
    );
    for extra in ["previous_response_id", "conversation", "prompt"] {
        refused(Responses, ChatCompletions, json!({"input": "x", extra: "y"}), extra);
    }
    refused(Responses, ChatCompletions, json!({"input": "x", "store": true}), "store");
    refused(Responses, ChatCompletions, json!({"input": "x", "tools": [{"type": "web_search"}]}), "web_search");
    refused(Responses, ChatCompletions, json!({"input": [{"type": "item_reference", "id": "x"}]}), "item_reference");
    refused(Dialect::Embeddings, Messages, json!({"input": "x"}), "embeddings");
}

fn whole_of(upstream: Dialect, caller: Dialect, body: Value) -> Value {
    let about = About::of(&call(caller, &json!({"input": "x", "temperature": 0.5})), "up");
    let bytes = whole(body.to_string().as_bytes(), upstream, caller, &about).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

fn message() -> Value {
    json!({
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "stop_reason": "tool_use", "stop_sequence": null,
        "content": [{"type": "text", "text": "I look."}, {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": 1}}],
        "usage": {"input_tokens": 10, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 2, "output_tokens": 7},
    })
}

#[test]
fn a_whole_message_becomes_a_chats_answer_and_back() {
    let chat = whole_of(Messages, ChatCompletions, message());
    let call = json!({"id": "toolu_1", "type": "function", "function": {"name": "look", "arguments": "{\"at\":1}"}});
    assert_eq!(
        chat,
        json!({
            "id": "chatcmpl-r1", "object": "chat.completion", "created": 7, "model": "up",
            "choices": [{"index": 0, "logprobs": null, "finish_reason": "tool_calls",
                "message": {"role": "assistant", "content": "I look.", "refusal": null, "tool_calls": [call]}}],
            "usage": {"prompt_tokens": 15, "completion_tokens": 7, "total_tokens": 22,
                "prompt_tokens_details": {"cached_tokens": 3, "cache_creation_tokens": 2}, "completion_tokens_details": {"reasoning_tokens": 0}},
        })
    );
    let mut back = whole_of(ChatCompletions, Messages, chat);
    assert_eq!((back["id"].take(), back["model"].take()), (json!("msg_r1"), json!("up")));
    let mut expected = message();
    (expected["id"], expected["model"]) = (Value::Null, Value::Null);
    assert_eq!(back, expected);
}

#[test]
fn a_whole_message_becomes_a_response() {
    let response = whole_of(Messages, Responses, message());
    assert_eq!(
        (&response["object"], &response["status"], &response["temperature"]),
        (&json!("response"), &json!("completed"), &json!(0.5))
    );
    assert_eq!(response["output"][0]["content"][0]["text"], "I look.");
    assert_eq!(response["output"][1]["call_id"], "toolu_1");
    assert_eq!(response["usage"]["input_tokens"], 15);
    assert_eq!(response["usage"]["total_tokens"], 22);
}

#[test]
fn an_answer_that_was_cut_says_so_in_every_dialect() {
    let chat = |reason: &str| json!({"choices": [{"message": {"content": "x"}, "finish_reason": reason}]});
    for (reason, stop, status) in [
        ("length", "max_tokens", "incomplete"),
        ("stop", "end_turn", "completed"),
        ("content_filter", "refusal", "incomplete"),
    ] {
        assert_eq!(whole_of(ChatCompletions, Messages, chat(reason))["stop_reason"], stop);
        assert_eq!(whole_of(ChatCompletions, Responses, chat(reason))["status"], status);
    }
    for (stop, reason) in
        [("max_tokens", "length"), ("end_turn", "stop"), ("stop_sequence", "stop"), ("refusal", "content_filter")]
    {
        let mut message = message();
        message["stop_reason"] = json!(stop);
        assert_eq!(whole_of(Messages, ChatCompletions, message)["choices"][0]["finish_reason"], reason);
    }
}

#[test]
fn an_answer_without_a_message_is_unreadable() {
    let about = About::of(&call(ChatCompletions, &json!({})), "up");
    for (upstream, caller, body) in [
        (Messages, ChatCompletions, "{}"),
        (ChatCompletions, Messages, "{\"choices\":[]}"),
        (ChatCompletions, Responses, "[]"),
        (Messages, ChatCompletions, "<html>"),
    ] {
        assert!(
            matches!(whole(body.as_bytes(), upstream, caller, &about), Err(ProviderError::Unreadable { .. })),
            "{body}"
        );
    }
}

#[test]
fn an_error_is_told_in_the_callers_dialect() {
    let anthropic = br#"{"type":"error","error":{"type":"invalid_request_error","message":"max_tokens: too large"}}"#;
    assert_eq!(
        error(anthropic, ChatCompletions),
        r#"{"error":{"code":"invalid_request_error","message":"max_tokens: too large","param":null,"type":"invalid_request_error"}}"#
    );
    let openai = br#"{"error":{"message":"No such model","type":"invalid_request_error","param":null,"code":"model_not_found"}}"#;
    assert_eq!(
        error(openai, Messages),
        r#"{"error":{"message":"No such model","type":"invalid_request_error"},"type":"error"}"#
    );
}
