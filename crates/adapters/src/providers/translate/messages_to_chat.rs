//! Anthropic's answer as a chat's: whole, and event by event.

use super::{About, ChatStep};
use serde_json::{Map, Value, json};

/// A whole answer.
pub(super) fn whole(message: &Value, about: &About) -> Option<Value> {
    let blocks = message["content"].as_array()?;
    let joined = |kind: &str, field: &str| {
        let of_kind = blocks.iter().filter(|block| block["type"] == kind);
        of_kind.filter_map(|block| block[field].as_str()).collect::<String>()
    };
    let (text, thinking) = (joined("text", "text"), joined("thinking", "thinking"));
    let calls: Vec<Value> = blocks.iter().filter(|block| block["type"] == "tool_use").map(tool_call).collect();
    let content = if text.is_empty() && !calls.is_empty() { Value::Null } else { json!(text) };
    let mut answer = json!({"role": "assistant", "content": content, "refusal": null});
    if !thinking.is_empty() {
        answer["reasoning_content"] = json!(thinking);
    }
    if !calls.is_empty() {
        answer["tool_calls"] = json!(calls);
    }
    let finish = finish_reason(message["stop_reason"].as_str());
    Some(json!({
        "id": id(about), "object": "chat.completion", "created": about.created, "model": about.model,
        "choices": [{"index": 0, "message": answer, "logprobs": null, "finish_reason": finish}],
        "usage": usage(&message["usage"]),
    }))
}

fn id(about: &About) -> String {
    format!("chatcmpl-{}", about.id)
}

fn tool_call(block: &Value) -> Value {
    let function = json!({"name": block["name"], "arguments": block["input"].to_string()});
    json!({"id": block["id"], "type": "function", "function": function})
}

fn finish_reason(stop_reason: Option<&str>) -> &'static str {
    match stop_reason {
        Some("max_tokens" | "model_context_window_exceeded") => "length",
        Some("tool_use") => "tool_calls",
        Some("refusal") => "content_filter",
        Some(_) | None => "stop",
    }
}

/// Usage with a chat's totals. What is no plain count is shown as it came: whoever charges reads the original.
fn usage(usage: &Value) -> Value {
    let count = |name: &str| usage[name].as_u64().unwrap_or(0);
    let (cached, written) = (count("cache_read_input_tokens"), count("cache_creation_input_tokens"));
    match (usage["input_tokens"].as_u64(), usage["output_tokens"].as_u64()) {
        (Some(input), Some(output)) => {
            let prompt = input.saturating_add(cached).saturating_add(written);
            json!({
                "prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt.saturating_add(output),
                "prompt_tokens_details": {"cached_tokens": cached, "cache_creation_tokens": written},
                "completion_tokens_details": {"reasoning_tokens": 0},
            })
        }
        _ => json!({"prompt_tokens": usage["input_tokens"], "completion_tokens": usage["output_tokens"]}),
    }
}

/// The state of one stream.
#[derive(Debug)]
pub(super) struct MessagesToChat {
    about: About,
    usage: Map<String, Value>,
    tool_calls: u64,
}

impl MessagesToChat {
    pub(super) fn new(about: About) -> Self {
        Self { about, usage: Map::new(), tool_calls: 0 }
    }

    /// The steps of a chat that this event is.
    pub(super) fn event(&mut self, event: &Value) -> Vec<ChatStep> {
        self.keep_usage(&event["message"]["usage"]);
        self.keep_usage(&event["usage"]);
        match event["type"].as_str() {
            Some("message_start") => self.delta(json!({"role": "assistant", "content": "", "refusal": null})),
            Some("content_block_start") => self.start(&event["content_block"]),
            Some("content_block_delta") => self.part(&event["delta"]),
            Some("message_delta") => {
                let finish = finish_reason(event["delta"]["stop_reason"].as_str());
                vec![self.chunk(json!([{"index": 0, "delta": {}, "logprobs": null, "finish_reason": finish}]), None)]
            }
            Some("message_stop") => {
                let usage = (!self.usage.is_empty()).then(|| usage(&Value::Object(self.usage.clone())));
                usage.map(|usage| self.chunk(json!([]), Some(usage))).into_iter().chain([ChatStep::Done]).collect()
            }
            // Pings, ends of blocks, and what is new to us and says nothing in a chat.
            Some(_) | None => Vec::new(),
        }
    }

    fn keep_usage(&mut self, usage: &Value) {
        let told = usage.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
        self.usage.extend(told.map(|(name, value)| (name.clone(), value.clone())));
    }

    fn start(&mut self, block: &Value) -> Vec<ChatStep> {
        match block["type"].as_str() {
            Some("tool_use") => {
                let index = self.tool_calls;
                self.tool_calls += 1;
                let function = json!({"name": block["name"], "arguments": ""});
                let call = json!({"index": index, "id": block["id"], "type": "function", "function": function});
                self.delta(json!({"tool_calls": [call]}))
            }
            Some(_) | None => match block["text"].as_str() {
                Some("") | None => Vec::new(),
                Some(text) => self.delta(json!({"content": text})),
            },
        }
    }

    fn part(&self, delta: &Value) -> Vec<ChatStep> {
        match delta["type"].as_str() {
            Some("text_delta") => self.delta(json!({"content": delta["text"]})),
            Some("thinking_delta") => self.delta(json!({"reasoning_content": delta["thinking"]})),
            Some("input_json_delta") => {
                let call = json!({"index": self.tool_calls.saturating_sub(1), "function": {"arguments": delta["partial_json"]}});
                self.delta(json!({"tool_calls": [call]}))
            }
            Some(_) | None => Vec::new(),
        }
    }

    fn delta(&self, delta: Value) -> Vec<ChatStep> {
        vec![self.chunk(json!([{"index": 0, "delta": delta, "logprobs": null, "finish_reason": null}]), None)]
    }

    fn chunk(&self, choices: Value, usage: Option<Value>) -> ChatStep {
        let About { model, created, .. } = &self.about;
        let mut chunk = json!({"id": id(&self.about), "object": "chat.completion.chunk", "created": created, "model": model, "choices": choices});
        if let Some(usage) = usage {
            chunk["usage"] = usage;
        }
        ChatStep::Chunk(chunk)
    }
}
