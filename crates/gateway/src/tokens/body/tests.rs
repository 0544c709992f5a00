//! Requests beside the prompt tokens that OpenAI's API has told for them, and what is not text.

use super::*;
use serde_json::json;

/// The example of OpenAI's cookbook: its API counted 129 tokens for GPT-4 and 124 for GPT-4o.
fn jargon() -> Value {
    let example = |name: &str, content: &str| json!({ "role": "system", "name": name, "content": content });
    json!({ "messages": [
        { "role": "system", "content": "You are a helpful, pattern-following assistant that translates corporate jargon into plain English." },
        example("example_user", "New synergies will help drive top-line growth."),
        example("example_assistant", "Things working well together will increase revenue."),
        example("example_user", "Let's circle back when we have more bandwidth to touch base on opportunities for increased leverage."),
        example("example_assistant", "Let's talk later when we're less busy about how to do better."),
        { "role": "user", "content": "This late pivot means we don't have time to boil the ocean for the client deliverable." },
    ] })
}

/// The other example: 105 tokens for GPT-4 and 101 for GPT-4o, with a tool.
fn weather() -> Value {
    json!({
        "tools": [{ "type": "function", "function": {
            "name": "get_current_weather",
            "description": "Get the current weather in a given location",
            "parameters": { "type": "object", "required": ["location"], "properties": {
                "location": { "type": "string", "description": "The city and state, e.g. San Francisco, CA" },
                "unit": { "type": "string", "description": "The unit of temperature to return", "enum": ["celsius", "fahrenheit"] },
            } },
        } }],
        "messages": [
            { "role": "system", "content": "You are a helpful assistant that can answer to questions about the weather." },
            { "role": "user", "content": "What's the weather like in Pittsburgh?" },
        ],
    })
}

fn chat(model: &str, body: &Value) -> InputTokens {
    count(Shape::Chat, Family::of_model(model), body)
}

/// The tokens of a chat with one message of this content.
fn content(model: &str, content: Value) -> InputTokens {
    chat(model, &json!({ "messages": [{ "role": "user", "content": content }] }))
}

#[test]
fn a_chat_has_the_tokens_that_the_api_counts() {
    assert_eq!(chat("gpt-4", &jargon()).counted, 129);
    assert_eq!(chat("gpt-4o", &jargon()).counted, 124);
    assert_eq!(chat("gpt-4o", &jargon()).bound, 124 + 16);
}

#[test]
fn tools_are_bounded_closely() {
    for (model, told) in [("gpt-4", 105), ("gpt-4o", 101)] {
        let tokens = chat(model, &weather());
        assert!(tokens.bound >= told && tokens.bound <= told * 2, "{model}: {tokens:?}");
        assert_eq!(tokens.hidden, None);
    }
}

#[test]
fn the_same_words_count_alike_in_every_shape() {
    let words = "Write a poem about the sea, in three lines.";
    let family = Family::O200k;
    let of_chat = content("gpt-4o", json!(words));
    assert_eq!(content("gpt-4o", json!([{ "type": "text", "text": words }])), of_chat);
    let input = json!({ "input": words });
    assert_eq!(count(Shape::Responses, family, &input), of_chat);
    let parts = json!({ "input": [{ "role": "user", "content": [{ "type": "input_text", "text": words }] }] });
    assert_eq!(count(Shape::Responses, family, &parts), of_chat);
    let messages = json!({ "messages": [{ "role": "user", "content": words }] });
    assert_eq!(count(Shape::Messages, family, &messages), of_chat);
    let system = json!({ "system": words, "messages": [] });
    assert_eq!(count(Shape::Messages, family, &system), of_chat);
}

#[test]
fn claude_is_bounded_with_room_for_its_own_tokenizer() {
    let body = json!({
        "system": [{ "type": "text", "text": "Answer in one word.", "cache_control": { "type": "ephemeral" } }],
        "messages": [
            { "role": "user", "content": "What is the weather in Paris?" },
            { "role": "assistant", "content": [{ "type": "tool_use", "id": "toolu_1", "name": "weather", "input": { "city": "Paris" } }] },
            { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "toolu_1", "content": [{ "type": "text", "text": "Sunny" }] }] },
        ],
        "tools": [{ "name": "weather", "description": "The weather of a city", "input_schema": { "type": "object" } }],
    });
    let tokens = count(Shape::Messages, Family::Claude, &body);
    // Claude is told how to use tools in up to 530 tokens that nobody sees.
    assert!(tokens.counted > 50 && tokens.counted < 130, "{tokens:?}");
    assert!(tokens.bound > tokens.counted + 530 && tokens.bound < tokens.counted * 3 + 800, "{tokens:?}");
    assert_eq!(tokens.hidden, None);
}

#[test]
fn every_word_of_a_tool_call_and_its_result_counts() {
    let long = "a word and ".repeat(100);
    let at_least = |body: Value, shape| {
        let tokens = count(shape, Family::O200k, &body);
        assert!(tokens.counted > 300 && tokens.bound < 400, "{body} {tokens:?}");
    };
    at_least(json!({ "messages": [{ "role": "tool", "tool_call_id": "c", "content": long }] }), Shape::Chat);
    at_least(
        json!({ "messages": [{ "role": "assistant", "content": null, "tool_calls": [
            { "id": "c", "type": "function", "function": { "name": "f", "arguments": long } }] }] }),
        Shape::Chat,
    );
    at_least(
        json!({ "input": [{ "type": "function_call_output", "call_id": "c", "output": long }] }),
        Shape::Responses,
    );
    at_least(json!({ "instructions": long, "input": "hi" }), Shape::Responses);
    at_least(
        json!({ "messages": [{ "role": "user", "content": [
            { "type": "tool_result", "tool_use_id": "t", "content": long }] }] }),
        Shape::Messages,
    );
    at_least(
        json!({ "messages": [{ "role": "user", "content": [
            { "type": "document", "source": { "type": "text", "media_type": "text/plain", "data": long } }] }] }),
        Shape::Messages,
    );
    // Fields that nobody here knows count too.
    at_least(json!({ "messages": [{ "role": "user", "thoughts_of_tomorrow": { "deep": [long] } }] }), Shape::Chat);
}

#[test]
fn an_image_counts_as_an_image_and_not_as_its_bytes() {
    let url = format!("data:image/png;base64,{}", "QUJD".repeat(100_000));
    let image = |model: &str, detail: &str| {
        let without = content(model, json!([]));
        let with = content(model, json!([{ "type": "image_url", "image_url": { "url": url, "detail": detail } }]));
        (with.counted - without.counted, with.bound - without.bound)
    };
    assert_eq!(image("gpt-4o", "high"), (765, 3_779));
    assert_eq!(image("gpt-4o-mini", "high"), (25_501, 48_169));
    assert_eq!(image("gpt-4o-mini", "low"), (2_833, 2_833));
    assert_eq!(image("claude-sonnet-4-5", "auto"), (1_600, 4_800));
    assert_eq!(image("some-model", "auto"), (1_600, 16_384));
    let anthropic = json!({ "messages": [{ "role": "user", "content": [
        { "type": "tool_result", "tool_use_id": "t", "content": [
            { "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": "QUJD".repeat(100_000) } }] }] }] });
    let tokens = count(Shape::Messages, Family::Claude, &anthropic);
    assert!(tokens.bound < 5_100, "{tokens:?}");
}

#[test]
fn a_sound_counts_by_its_length() {
    let sound = json!([{ "type": "input_audio", "input_audio": { "data": "A".repeat(50_000), "format": "mp3" } }]);
    let tokens = content("gpt-4o", sound);
    assert!((1_000..1_050).contains(&tokens.bound), "{tokens:?}");
}

#[test]
fn what_the_request_only_points_to_is_named() {
    let user = |part: Value| json!({ "messages": [{ "role": "user", "content": [part] }] });
    for (shape, body, field) in [
        (Shape::Responses, json!({ "input": "hi", "previous_response_id": "resp_1" }), "previous_response_id"),
        (Shape::Responses, json!({ "input": "hi", "conversation": "conv_1" }), "conversation"),
        (Shape::Responses, json!({ "prompt": { "id": "pmpt_1" } }), "prompt"),
        (Shape::Responses, json!({ "input": [{ "type": "item_reference", "id": "i" }] }), "item_reference"),
        (Shape::Responses, json!({ "input": "hi", "tools": [{ "type": "web_search" }] }), "tools"),
        (Shape::Chat, json!({ "messages": [], "web_search_options": {} }), "web_search_options"),
        (Shape::Chat, user(json!({ "type": "file", "file": { "file_id": "f" } })), "file"),
        (
            Shape::Messages,
            json!({ "messages": [], "tools": [{ "type": "web_search_20250305", "name": "web_search" }] }),
            "tools",
        ),
        (Shape::Messages, json!({ "messages": [], "mcp_servers": [{ "url": "u" }] }), "mcp_servers"),
        (Shape::Messages, user(json!({ "type": "document", "source": { "type": "url", "url": "u" } })), "document"),
    ] {
        assert_eq!(count(shape, Family::O200k, &body).hidden, Some(field), "{body}");
    }
    let nothing_hidden = json!({ "input": "hi", "previous_response_id": null, "tools": [] });
    assert_eq!(count(Shape::Responses, Family::O200k, &nothing_hidden).hidden, None);
    let own_tool = json!({ "messages": [], "tools": [{ "type": "bash_20250124", "name": "bash" }] });
    assert_eq!(count(Shape::Messages, Family::Claude, &own_tool).hidden, None);
}

#[test]
fn the_input_of_an_embedding_is_a_text_texts_or_tokens() {
    let embeddings = |input: Value| count(Shape::Embeddings, Family::Cl100k, &json!({ "input": input })).bound;
    assert_eq!(embeddings(json!("Hello, world!")), 4);
    assert_eq!(embeddings(json!(["Hello, world!", "Hello, world!"])), 8);
    assert_eq!(embeddings(json!([9906, 11, 1917, 0])), 4);
    assert_eq!(embeddings(json!([[9906, 11], [1917, 0, 1]])), 5);
    assert_eq!(embeddings(json!([])), 0);
}

#[test]
fn no_body_is_too_strange_to_count() {
    for body in
        [json!(null), json!([]), json!(7), json!({}), json!({ "messages": 7 }), json!({ "messages": [7, null, [[]]] })]
    {
        for shape in [Shape::Chat, Shape::Responses, Shape::Messages, Shape::Embeddings] {
            let tokens = count(shape, Family::Other, &body);
            assert!(tokens.bound >= tokens.counted && tokens.bound < 200, "{body} {tokens:?}");
        }
    }
}
