//! OpenAI's Responses API on the wire.

use super::CREATED;
use super::answer::{Ending, Said, Usage};
use super::chat::halves;
use super::wire::{Carries, Event, Reply, with};
use serde_json::{Value, json};

fn usage(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.input + usage.output,
    })
}

/// The response, with the output so far.
fn response(reply: &Reply<'_>, status: &str, output: Value) -> Value {
    json!({
        "id": format!("resp_{}", reply.number),
        "object": "response",
        "created_at": CREATED,
        "status": status,
        "error": null,
        "incomplete_details": null,
        "instructions": null,
        "metadata": {},
        "model": reply.model,
        "output": output,
        "parallel_tool_calls": true,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
    })
}

fn text_part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": []})
}

/// The one item of the output, with what of it is there.
fn item(reply: &Reply<'_>, status: &str, arguments: &str, content: Value) -> Value {
    match &reply.answer.said {
        Said::Text(_) => json!({
            "id": format!("msg_{}", reply.number),
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        }),
        Said::Tool { name, .. } => json!({
            "id": format!("fc_{}", reply.number),
            "type": "function_call",
            "status": status,
            "call_id": format!("call_{}", reply.number),
            "name": name,
            "arguments": arguments,
        }),
    }
}

fn finished_item(reply: &Reply<'_>) -> Value {
    let arguments = match &reply.answer.said {
        Said::Text(_) => "",
        Said::Tool { arguments, .. } => arguments,
    };
    item(reply, "completed", arguments, json!([text_part(&reply.answer.text())]))
}

pub(super) fn whole(reply: &Reply<'_>) -> Value {
    let output = json!([finished_item(reply)]);
    let value = match reply.answer.ending {
        Ending::Complete => response(reply, "completed", output),
        Ending::Cut => {
            let reason = json!({"reason": "max_output_tokens"});
            with(response(reply, "incomplete", output), "incomplete_details", Some(reason))
        }
    };
    with(value, "usage", reply.usage(usage))
}

pub(super) fn events(reply: &Reply<'_>) -> Vec<Event> {
    let id = match &reply.answer.said {
        Said::Text(_) => format!("msg_{}", reply.number),
        Said::Tool { .. } => format!("fc_{}", reply.number),
    };
    let place = json!({"item_id": id, "output_index": 0, "content_index": 0});
    let mut values: Vec<(Value, Carries)> = Vec::new();
    let mut push = |kind: &str, mut value: Value, carries| {
        value["type"] = json!(kind);
        value["sequence_number"] = json!(values.len());
        values.push((value, carries));
    };
    let begun = response(reply, "in_progress", json!([]));
    push("response.created", json!({"response": begun}), Carries::Nothing);
    push("response.in_progress", json!({"response": begun}), Carries::Nothing);
    let empty = item(reply, "in_progress", "", json!([]));
    push("response.output_item.added", json!({"output_index": 0, "item": empty}), Carries::Nothing);
    match &reply.answer.said {
        Said::Text(pieces) => {
            let with_part = |text: &str| with(place.clone(), "part", Some(text_part(text)));
            push("response.content_part.added", with_part(""), Carries::Nothing);
            for piece in pieces {
                let delta = with(place.clone(), "delta", Some(json!(piece)));
                push("response.output_text.delta", delta, Carries::Piece);
            }
            let text = reply.answer.text();
            push("response.output_text.done", with(place.clone(), "text", Some(json!(text))), Carries::Nothing);
            push("response.content_part.done", with_part(&text), Carries::Nothing);
        }
        Said::Tool { name, arguments } => {
            for part in halves(arguments) {
                let delta = json!({"item_id": id, "output_index": 0, "delta": part});
                push("response.function_call_arguments.delta", delta, Carries::Piece);
            }
            let done = json!({"item_id": id, "output_index": 0, "name": name, "arguments": arguments});
            push("response.function_call_arguments.done", done, Carries::Nothing);
        }
    }
    let finished = json!({"output_index": 0, "item": finished_item(reply)});
    push("response.output_item.done", finished, Carries::Nothing);
    let end = match reply.answer.ending {
        Ending::Complete => "response.completed",
        Ending::Cut => "response.incomplete",
    };
    push(end, json!({"response": whole(reply)}), Carries::Usage);
    values.iter().map(|(value, carries)| Event::named(value, *carries)).collect()
}
