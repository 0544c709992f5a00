//! A chat's answer as a `response`: whole, and step by step. Reasoning that a chat shows has no item here; it is counted.

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
    let mut output = Vec::new();
    let text: String = ["content", "refusal"].iter().filter_map(|name| message[*name].as_str()).collect();
    let calls = message["tool_calls"].as_array();
    if !text.is_empty() || calls.is_none_or(Vec::is_empty) {
        output.push(message_item(about, 0, &text, "completed"));
    }
    for call in calls.into_iter().flatten() {
        let (name, arguments) = (&call["function"]["name"], call["function"]["arguments"].as_str()?);
        output.push(call_item(about, output.len(), &call["id"], name, arguments, "completed"));
    }
    Some(response(about, &ending(choice["finish_reason"].as_str()), output, &chat["usage"]))
}

/// How a response ends: its status, and why it is incomplete.
struct Ending {
    status: &'static str,
    reason: Option<&'static str>,
}

fn ending(finish_reason: Option<&str>) -> Ending {
    match finish_reason {
        Some("length") => Ending { status: "incomplete", reason: Some("max_output_tokens") },
        Some("content_filter") => Ending { status: "incomplete", reason: Some("content_filter") },
        Some(_) | None => Ending { status: "completed", reason: None },
    }
}

fn message_item(about: &About, index: usize, text: &str, status: &str) -> Value {
    let content = match status {
        "in_progress" => json!([]),
        _ => json!([text_part(text)]),
    };
    json!({"type": "message", "id": format!("msg_{}_{index}", about.id), "status": status, "role": "assistant", "content": content})
}

fn text_part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

fn call_item(about: &About, index: usize, call_id: &Value, name: &Value, arguments: &str, status: &str) -> Value {
    json!({
        "type": "function_call", "id": format!("fc_{}_{index}", about.id), "call_id": call_id,
        "name": name, "arguments": arguments, "status": status,
    })
}

/// The response object, which shows the request's settings again.
fn response(about: &About, ending: &Ending, output: Vec<Value>, usage: &Value) -> Value {
    let mut response = about.repeated.clone();
    let mut put = |name: &str, value: Value| drop(response.insert(name.to_owned(), value));
    put("id", json!(format!("resp_{}", about.id)));
    put("object", json!("response"));
    put("created_at", json!(about.created));
    put("model", json!(about.model));
    put("status", json!(ending.status));
    put("error", Value::Null);
    put("incomplete_details", ending.reason.map_or(Value::Null, |reason| json!({"reason": reason})));
    put("output", json!(output));
    put("previous_response_id", Value::Null);
    put("store", json!(false));
    put("usage", self::usage(usage));
    Value::Object(response)
}

/// Usage under its names here. What is no plain count is shown as it came: whoever charges reads the original.
fn usage(usage: &Value) -> Value {
    match of_openai(usage) {
        Reported::Tokens(tokens) => json!({
            "input_tokens": tokens.all_input(), "input_tokens_details": {"cached_tokens": tokens.cached_input},
            "output_tokens": tokens.all_output(), "output_tokens_details": {"reasoning_tokens": tokens.reasoning},
            "total_tokens": tokens.all_input().saturating_add(tokens.all_output()),
        }),
        Reported::Nonsense(_) => json!({
            "input_tokens": usage["prompt_tokens"], "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": usage["completion_tokens"], "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        }),
        Reported::Missing => Value::Null,
    }
}

/// The item that is open.
#[derive(Debug)]
enum Open {
    Nothing,
    Text(String),
    Call { index: u64, id: Value, name: Value, arguments: String },
}

/// The state of one stream.
#[derive(Debug)]
pub(crate) struct ChatToResponses {
    about: About,
    sequence: u64,
    open: Open,
    output: Vec<Value>,
    finish_reason: Option<String>,
    usage: Value,
}

impl ChatToResponses {
    pub(super) fn new(about: About) -> Self {
        Self { about, sequence: 0, open: Open::Nothing, output: Vec::new(), finish_reason: None, usage: Value::Null }
    }

    /// Writes the events that this step is.
    pub(super) fn step(&mut self, step: &ChatStep, out: &mut BytesMut) -> Result<(), ProviderError> {
        if self.sequence == 0 {
            let ending = Ending { status: "in_progress", reason: None };
            let begun = response(&self.about, &ending, Vec::new(), &Value::Null);
            self.write(out, "response.created", json!({"response": begun}));
            self.write(out, "response.in_progress", json!({"response": begun}));
        }
        match step {
            ChatStep::Chunk(chunk) => self.chunk(chunk, out)?,
            ChatStep::Done => {
                if self.output.is_empty() && matches!(self.open, Open::Nothing) {
                    self.text("", out);
                }
                self.close(out);
                let ending = ending(self.finish_reason.as_deref());
                let done = response(&self.about, &ending, std::mem::take(&mut self.output), &self.usage);
                let kind = if ending.reason.is_some() { "response.incomplete" } else { "response.completed" };
                self.write(out, kind, json!({"response": done}));
            }
        }
        Ok(())
    }

    fn chunk(&mut self, chunk: &Value, out: &mut BytesMut) -> Result<(), ProviderError> {
        if chunk["usage"].is_object() {
            self.usage = chunk["usage"].clone();
        }
        let Some(choice) = chunk["choices"].as_array().and_then(|choices| choices.first()) else { return Ok(()) };
        let delta = &choice["delta"];
        for name in ["content", "refusal"] {
            if let Some(text) = delta[name].as_str().filter(|text| !text.is_empty()) {
                self.text(text, out);
            }
        }
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            self.call(call, out)?;
        }
        if let Some(reason) = choice["finish_reason"].as_str() {
            self.finish_reason = Some(reason.to_owned());
        }
        Ok(())
    }

    fn text(&mut self, text: &str, out: &mut BytesMut) {
        if !matches!(self.open, Open::Text(_)) {
            self.close(out);
            let index = self.output.len();
            self.open = Open::Text(String::new());
            let item = message_item(&self.about, index, "", "in_progress");
            self.write(out, "response.output_item.added", json!({"output_index": index, "item": item}));
            let added =
                json!({"item_id": item["id"], "output_index": index, "content_index": 0, "part": text_part("")});
            self.write(out, "response.content_part.added", added);
        }
        let index = self.output.len();
        if let Open::Text(whole) = &mut self.open {
            whole.push_str(text);
        }
        if !text.is_empty() {
            let id = format!("msg_{}_{index}", self.about.id);
            let delta =
                json!({"item_id": id, "output_index": index, "content_index": 0, "delta": text, "logprobs": []});
            self.write(out, "response.output_text.delta", delta);
        }
    }

    fn call(&mut self, call: &Value, out: &mut BytesMut) -> Result<(), ProviderError> {
        let wanted = call["index"].as_u64().unwrap_or(0);
        if !matches!(&self.open, Open::Call { index, .. } if *index == wanted) {
            self.close(out);
            let (id, name) = (call["id"].clone(), call["function"]["name"].clone());
            if !id.is_string() || !name.is_string() {
                // Items follow one another here; a call that goes on after another began has no place.
                let reason = "it mixes the parts of several tool calls".to_owned();
                return Err(ProviderError::Unreadable { reason });
            }
            let item = call_item(&self.about, self.output.len(), &id, &name, "", "in_progress");
            self.open = Open::Call { index: wanted, id, name, arguments: String::new() };
            self.write(out, "response.output_item.added", json!({"output_index": self.output.len(), "item": item}));
        }
        if let Some(part) = call["function"]["arguments"].as_str().filter(|part| !part.is_empty()) {
            if let Open::Call { arguments, .. } = &mut self.open {
                arguments.push_str(part);
            }
            let index = self.output.len();
            let id = format!("fc_{}_{index}", self.about.id);
            let delta = json!({"item_id": id, "output_index": index, "delta": part});
            self.write(out, "response.function_call_arguments.delta", delta);
        }
        Ok(())
    }

    /// Ends the open item.
    fn close(&mut self, out: &mut BytesMut) {
        let index = self.output.len();
        let item = match std::mem::replace(&mut self.open, Open::Nothing) {
            Open::Nothing => return,
            Open::Text(text) => {
                let item = message_item(&self.about, index, &text, "completed");
                let place = json!({"item_id": item["id"], "output_index": index, "content_index": 0});
                let mut done = place.clone();
                done["text"] = json!(text);
                done["logprobs"] = json!([]);
                self.write(out, "response.output_text.done", done);
                let mut done = place;
                done["part"] = text_part(&text);
                self.write(out, "response.content_part.done", done);
                item
            }
            Open::Call { id, name, arguments, .. } => {
                let item = call_item(&self.about, index, &id, &name, &arguments, "completed");
                let done = json!({"item_id": item["id"], "output_index": index, "name": name, "arguments": arguments});
                self.write(out, "response.function_call_arguments.done", done);
                item
            }
        };
        self.write(out, "response.output_item.done", json!({"output_index": index, "item": item}));
        self.output.push(item);
    }

    fn write(&mut self, out: &mut BytesMut, kind: &'static str, mut data: Value) {
        data["type"] = json!(kind);
        data["sequence_number"] = json!(self.sequence);
        self.sequence += 1;
        write_event(out, Some(kind), &data.to_string());
    }
}
