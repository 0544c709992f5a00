//! OpenAI's chat completions on the wire.

use super::CREATED;
use super::answer::{Ending, Said, Usage};
use super::wire::{Carries, Event, Reply, with};
use bytes::Bytes;
use serde_json::{Value, json};

fn usage(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning, "audio_tokens": 0},
    })
}

const fn finish_reason(reply: &Reply<'_>) -> &'static str {
    match (&reply.answer.said, reply.answer.ending) {
        (Said::Tool { .. }, _) => "tool_calls",
        (Said::Text(_), Ending::Cut) => "length",
        (Said::Text(_), Ending::Complete) => "stop",
    }
}

pub(super) fn whole(reply: &Reply<'_>) -> Value {
    let message = match &reply.answer.said {
        Said::Text(pieces) => json!({"role": "assistant", "content": pieces.concat(), "refusal": null}),
        Said::Tool { name, arguments } => json!({
            "role": "assistant",
            "content": null,
            "refusal": null,
            "tool_calls": [{
                "id": format!("call_{}", reply.number),
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }],
        }),
    };
    let value = json!({
        "id": format!("chatcmpl-{}", reply.number),
        "object": "chat.completion",
        "created": CREATED,
        "model": reply.model,
        "choices": [{"index": 0, "message": message, "logprobs": null, "finish_reason": finish_reason(reply)}],
    });
    with(value, "usage", reply.usage(usage))
}

pub(super) fn events(reply: &Reply<'_>) -> Vec<Event> {
    let chunk = |choices: Value| {
        json!({
            "id": format!("chatcmpl-{}", reply.number),
            "object": "chat.completion.chunk",
            "created": CREATED,
            "model": reply.model,
            "choices": choices,
        })
    };
    let delta = |delta: Value, carries| {
        Event::data(&chunk(json!([{"index": 0, "delta": delta, "finish_reason": null}])), carries)
    };
    let call = |function: Value| json!({"index": 0, "function": function});
    let mut events = vec![delta(json!({"role": "assistant", "content": ""}), Carries::Nothing)];
    match &reply.answer.said {
        Said::Text(pieces) => {
            events.extend(pieces.iter().map(|piece| delta(json!({"content": piece}), Carries::Piece)));
        }
        Said::Tool { name, arguments } => {
            let mut first = call(json!({"name": name, "arguments": ""}));
            first["id"] = json!(format!("call_{}", reply.number));
            first["type"] = json!("function");
            events.push(delta(json!({"tool_calls": [first]}), Carries::Nothing));
            let parts = halves(arguments).map(|part| json!({"tool_calls": [call(json!({"arguments": part}))]}));
            events.extend(parts.map(|part| delta(part, Carries::Piece)));
        }
    }
    let end = json!([{"index": 0, "delta": {}, "finish_reason": finish_reason(reply)}]);
    events.push(Event::data(&chunk(end), Carries::Nothing));
    if let Some(usage) = reply.usage(usage).filter(|_| reply.wants_usage) {
        events.push(Event::data(&with(chunk(json!([])), "usage", Some(usage)), Carries::Usage));
    }
    events.push(Event { bytes: Bytes::from_static(b"data: [DONE]\n\n"), carries: Carries::Nothing });
    events
}

/// A tool's arguments in two parts, so that a client must join them.
pub(super) fn halves(text: &str) -> impl Iterator<Item = &str> {
    let middle = text.char_indices().nth(text.chars().count() / 2).map_or(text.len(), |(index, _)| index);
    let (first, second) = text.split_at(middle);
    [first, second].into_iter()
}
