//! A chat's answer as one of Anthropic's messages: whole, and step by step.

use super::{About, ChatStep};
use crate::providers::decode::write_event;
use crate::providers::error::ProviderError;
use crate::providers::usage::{Reported, of_openai};
use bytes::BytesMut;
use serde_json::{Value, json};

/// A whole answer.
pub(super) fn whole(chat: &Value, about: &About) -> Option<Value> {
    let choice = chat["choices"].as_array()?.first()?;
    let message = &choice["message"];
    let mut content = Vec::new();
    let text = |name: &str| message[name].as_str().filter(|text| !text.is_empty());
    if let Some(thinking) = text("reasoning_content").or(text("reasoning")) {
        content.push(json!({"type": "thinking", "thinking": thinking, "signature": ""}));
    }
    content.extend(
        [text("content"), text("refusal")].into_iter().flatten().map(|text| json!({"type": "text", "text": text})),
    );
    for call in message["tool_calls"].as_array().into_iter().flatten() {
        let function = &call["function"];
        let input: Value = match function["arguments"].as_str()?.trim() {
            "" => json!({}),
            arguments => serde_json::from_str(arguments).ok()?,
        };
        content.push(json!({"type": "tool_use", "id": call["id"], "name": function["name"], "input": input}));
    }
    Some(json!({
        "id": id(about), "type": "message", "role": "assistant", "model": about.model, "content": content,
        "stop_reason": stop_reason(choice["finish_reason"].as_str()), "stop_sequence": null,
        "usage": usage(&chat["usage"]),
    }))
}

fn id(about: &About) -> String {
    format!("msg_{}", about.id)
}

fn stop_reason(finish_reason: Option<&str>) -> &'static str {
    match finish_reason {
        Some("length") => "max_tokens",
        Some("tool_calls" | "function_call") => "tool_use",
        Some("content_filter") => "refusal",
        Some(_) | None => "end_turn",
    }
}

/// Usage with Anthropic's disjoint input. What is no plain count is shown as it came: whoever charges reads the original.
fn usage(usage: &Value) -> Value {
    let written = usage["prompt_tokens_details"]["cache_creation_tokens"].as_u64().unwrap_or(0);
    match of_openai(usage) {
        Reported::Tokens(tokens) => json!({
            "input_tokens": tokens.input.saturating_sub(written), "cache_creation_input_tokens": written,
            "cache_read_input_tokens": tokens.cached_input, "output_tokens": tokens.all_output(),
        }),
        Reported::Nonsense(_) => {
            json!({"input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"]})
        }
        Reported::Missing => json!({"input_tokens": 0, "output_tokens": 0}),
    }
}

/// The content block that is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    Nothing,
    Text,
    Thinking,
    /// The tool call of this index.
    Tool(u64),
}

/// The state of one stream.
#[derive(Debug)]
pub(crate) struct ChatToMessages {
    about: About,
    started: bool,
    open: Open,
    /// The index of the block that is open or comes next.
    block: u64,
    stop_reason: Option<&'static str>,
    usage: Value,
}

impl ChatToMessages {
    pub(super) fn new(about: About) -> Self {
        Self { about, started: false, open: Open::Nothing, block: 0, stop_reason: None, usage: Value::Null }
    }

    /// Writes the events that this step is.
    pub(super) fn step(&mut self, step: &ChatStep, out: &mut BytesMut) -> Result<(), ProviderError> {
        self.start(out);
        match step {
            ChatStep::Chunk(chunk) => self.chunk(chunk, out),
            ChatStep::Done => {
                self.close(out);
                let stop = json!({"stop_reason": self.stop_reason.unwrap_or("end_turn"), "stop_sequence": null});
                write(out, "message_delta", json!({"delta": stop, "usage": usage(&self.usage)}));
                write(out, "message_stop", json!({}));
                Ok(())
            }
        }
    }

    fn start(&mut self, out: &mut BytesMut) {
        if !std::mem::replace(&mut self.started, true) {
            let message = json!({
                "id": id(&self.about), "type": "message", "role": "assistant", "model": self.about.model, "content": [],
                "stop_reason": null, "stop_sequence": null, "usage": usage(&Value::Null),
            });
            write(out, "message_start", json!({"message": message}));
        }
    }

    fn chunk(&mut self, chunk: &Value, out: &mut BytesMut) -> Result<(), ProviderError> {
        if chunk["usage"].is_object() {
            self.usage = chunk["usage"].clone();
        }
        let Some(choice) = chunk["choices"].as_array().and_then(|choices| choices.first()) else { return Ok(()) };
        let delta = &choice["delta"];
        let text = |name: &str| delta[name].as_str().filter(|text| !text.is_empty());
        if let Some(thinking) = text("reasoning_content").or(text("reasoning")) {
            self.open(Open::Thinking, &json!({"type": "thinking", "thinking": "", "signature": ""}), out);
            self.delta(json!({"type": "thinking_delta", "thinking": thinking}), out);
        }
        for text in [text("content"), text("refusal")].into_iter().flatten() {
            self.open(Open::Text, &json!({"type": "text", "text": ""}), out);
            self.delta(json!({"type": "text_delta", "text": text}), out);
        }
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            self.tool_call(call, out)?;
        }
        if let Some(reason) = choice["finish_reason"].as_str() {
            self.stop_reason = Some(stop_reason(Some(reason)));
        }
        Ok(())
    }

    fn tool_call(&mut self, call: &Value, out: &mut BytesMut) -> Result<(), ProviderError> {
        let index = call["index"].as_u64().unwrap_or(0);
        if self.open != Open::Tool(index) {
            let (Some(id), Some(name)) = (call["id"].as_str(), call["function"]["name"].as_str()) else {
                // Blocks follow one another here; a call that goes on after another began has no place.
                let reason = "it mixes the parts of several tool calls".to_owned();
                return Err(ProviderError::Unreadable { reason });
            };
            self.open(Open::Tool(index), &json!({"type": "tool_use", "id": id, "name": name, "input": {}}), out);
        }
        if let Some(arguments) = call["function"]["arguments"].as_str().filter(|arguments| !arguments.is_empty()) {
            self.delta(json!({"type": "input_json_delta", "partial_json": arguments}), out);
        }
        Ok(())
    }

    fn open(&mut self, open: Open, block: &Value, out: &mut BytesMut) {
        if self.open != open {
            self.close(out);
            self.open = open;
            write(out, "content_block_start", json!({"index": self.block, "content_block": block}));
        }
    }

    fn close(&mut self, out: &mut BytesMut) {
        if std::mem::replace(&mut self.open, Open::Nothing) != Open::Nothing {
            write(out, "content_block_stop", json!({"index": self.block}));
            self.block += 1;
        }
    }

    fn delta(&self, delta: Value, out: &mut BytesMut) {
        write(out, "content_block_delta", json!({"index": self.block, "delta": delta}));
    }
}

/// An event names its type twice: on its line and in its data.
fn write(out: &mut BytesMut, kind: &'static str, mut data: Value) {
    data["type"] = json!(kind);
    write_event(out, Some(kind), &data.to_string());
}
