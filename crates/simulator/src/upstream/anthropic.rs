//! Anthropic's messages on the wire.

use super::answer::{Ending, Said, Usage};
use super::chat::halves;
use super::wire::{Carries, Event, Reply, with};
use serde_json::{Value, json};

/// Anthropic counts cached tokens apart from the input, not within it.
fn usage(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.input - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.output,
    })
}

const fn stop_reason(reply: &Reply<'_>) -> &'static str {
    match (&reply.answer.said, reply.answer.ending) {
        (Said::Tool { .. }, _) => "tool_use",
        (Said::Text(_), Ending::Cut) => "max_tokens",
        (Said::Text(_), Ending::Complete) => "end_turn",
    }
}

fn message(reply: &Reply<'_>, content: Value, stop_reason: Option<&str>) -> Value {
    json!({
        "id": format!("msg_{}", reply.number),
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": null,
    })
}

pub(super) fn whole(reply: &Reply<'_>) -> Value {
    let block = match &reply.answer.said {
        Said::Text(pieces) => json!({"type": "text", "text": pieces.concat()}),
        Said::Tool { name, arguments } => {
            let input: Value = serde_json::from_str(arguments).unwrap_or_default();
            json!({"type": "tool_use", "id": format!("toolu_{}", reply.number), "name": name, "input": input})
        }
    };
    with(message(reply, json!([block]), Some(stop_reason(reply))), "usage", reply.usage(usage))
}

pub(super) fn events(reply: &Reply<'_>) -> Vec<Event> {
    let event = |value: Value, carries| Event::named(&value, carries);
    // At the start the input is known, and one token of the output.
    let first_usage = reply.usage(|truth| usage(Usage { output: truth.output.min(1), ..truth }));
    let start = with(message(reply, json!([]), None), "usage", first_usage);
    let block = match &reply.answer.said {
        Said::Text(_) => json!({"type": "text", "text": ""}),
        Said::Tool { name, .. } => {
            json!({"type": "tool_use", "id": format!("toolu_{}", reply.number), "name": name, "input": {}})
        }
    };
    let begun = json!({"type": "content_block_start", "index": 0, "content_block": block});
    let mut events = vec![
        event(json!({"type": "message_start", "message": start}), Carries::Nothing),
        event(begun, Carries::Nothing),
        event(json!({"type": "ping"}), Carries::Nothing),
    ];
    let delta =
        |delta: Value| event(json!({"type": "content_block_delta", "index": 0, "delta": delta}), Carries::Piece);
    match &reply.answer.said {
        Said::Text(pieces) => {
            events.extend(pieces.iter().map(|piece| delta(json!({"type": "text_delta", "text": piece}))));
        }
        Said::Tool { arguments, .. } => {
            let parts = halves(arguments);
            events.extend(parts.map(|part| delta(json!({"type": "input_json_delta", "partial_json": part}))));
        }
    }
    events.push(event(json!({"type": "content_block_stop", "index": 0}), Carries::Nothing));
    let end = json!({"type": "message_delta", "delta": {"stop_reason": stop_reason(reply), "stop_sequence": null}});
    events.push(event(with(end, "usage", reply.usage(usage)), Carries::Usage));
    events.push(event(json!({"type": "message_stop"}), Carries::Nothing));
    events
}
