//! Where the text of a request is: the bodies of OpenAI's and Anthropic's APIs, and what in them is not text.

use super::text::Counter;
use super::{Family, InputTokens};
use serde_json::{Map, Value};

/// Which API a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/responses`.
    Responses,
    /// `/v1/messages`.
    Messages,
    /// `/v1/embeddings`.
    Embeddings,
}

/// The tokens of the input of `body`, for a model of `family`. What is not of the shape is counted as text, not refused:
/// the provider may know fields that nobody here does.
pub(crate) fn count(shape: Shape, family: Family, body: &Value) -> InputTokens {
    let tokens = InputTokens { counted: 0, bound: 0, hidden: None };
    let mut walk = Walk { family, counter: Counter::new(family.tokenizer()), tokens };
    match shape {
        Shape::Chat => walk.chat(body),
        Shape::Responses => walk.responses(body),
        Shape::Messages => walk.messages(body),
        Shape::Embeddings => walk.embeddings(body),
    }
    walk.tokens
}

const PER_MESSAGE: u64 = 3;
const PER_ROLE: u64 = 1;
const PER_NAME: u64 = 1;
/// The answer's first words, which the provider writes.
const PER_ANSWER: u64 = 3;
const PER_FIELD: u64 = 3;
const PER_TOOL: u64 = 16;
/// Anthropic's own tools bring their own descriptions.
const PER_BUILT_IN_TOOL: u64 = 1_500;
/// OpenAI counts ten tokens a second, and no sound that it takes is less than 500 bytes a second.
const BYTES_PER_SOUND_TOKEN: u64 = 50;

struct Walk {
    family: Family,
    counter: Counter,
    tokens: InputTokens,
}

impl Walk {
    fn chat(&mut self, body: &Value) {
        self.each_message(body.get("messages"));
        self.fixed(PER_ANSWER);
        self.bound_only(self.family.per_request());
        self.tools(body.get("tools"));
        self.tools(body.get("functions"));
        for field in ["response_format", "tool_choice", "function_call"] {
            self.structured_if_any(body.get(field));
        }
        self.hidden_if_any(body, &["web_search_options"]);
    }

    fn responses(&mut self, body: &Value) {
        if let Some(instructions) = body.get("instructions").filter(|value| !value.is_null()) {
            self.one_message(instructions);
        }
        match body.get("input") {
            Some(Value::Array(items)) => items.iter().for_each(|item| self.item(item)),
            Some(input) => self.one_message(input),
            None => {}
        }
        self.fixed(PER_ANSWER);
        self.bound_only(self.family.per_request());
        self.tools(body.get("tools"));
        for field in ["text", "tool_choice"] {
            self.structured_if_any(body.get(field));
        }
        self.hidden_if_any(body, &["previous_response_id", "conversation", "prompt"]);
    }

    fn messages(&mut self, body: &Value) {
        if let Some(system) = body.get("system").filter(|value| !value.is_null()) {
            self.one_message(system);
        }
        self.each_message(body.get("messages"));
        self.fixed(PER_ANSWER);
        self.bound_only(self.family.per_request());
        self.tools(body.get("tools"));
        for field in ["tool_choice", "output_format", "output_config"] {
            self.structured_if_any(body.get(field));
        }
        self.hidden_if_any(body, &["mcp_servers", "container"]);
    }

    fn embeddings(&mut self, body: &Value) {
        let Some(input) = body.get("input") else { return };
        let several = input.as_array().filter(|items| !items.iter().all(Value::is_number));
        for item in several.map_or(std::slice::from_ref(input), Vec::as_slice) {
            match item.as_array().filter(|items| items.iter().all(Value::is_number)) {
                Some(tokens) => self.ready_tokens(tokens),
                None => self.content(item),
            }
            self.bound_only(self.family.per_message());
        }
    }

    /// Tokens that the caller has made already.
    fn ready_tokens(&mut self, tokens: &[Value]) {
        self.fixed(u64::try_from(tokens.len()).unwrap_or(u64::MAX));
    }

    fn each_message(&mut self, messages: Option<&Value>) {
        match messages {
            Some(Value::Array(messages)) => messages.iter().for_each(|message| self.message(message)),
            Some(other) => self.structured(other),
            None => {}
        }
    }

    fn message(&mut self, message: &Value) {
        let Value::Object(fields) = message else { return self.one_message(message) };
        self.fixed(PER_MESSAGE);
        self.bound_only(self.family.per_message());
        for (field, value) in fields {
            match (field.as_str(), value) {
                ("role", _) => self.fixed(PER_ROLE),
                ("content", value) => self.content(value),
                ("name", value) => {
                    self.content(value);
                    self.fixed(PER_NAME);
                }
                // A sound of an earlier answer, that only the provider has.
                ("audio", Value::Object(_)) => self.hide("audio"),
                ("type" | "cache_control" | "status", _) | (_, Value::Null) => {}
                (_, value) => self.structured(value),
            }
        }
    }

    /// A text or parts that stand for a message.
    fn one_message(&mut self, content: &Value) {
        self.fixed(PER_MESSAGE + PER_ROLE);
        self.bound_only(self.family.per_message());
        self.content(content);
    }

    /// An item of the input of a response.
    fn item(&mut self, item: &Value) {
        match item.get("type").and_then(Value::as_str) {
            Some("item_reference") => self.hide("item_reference"),
            Some("message") | None => self.message(item),
            Some(_) => {
                self.fixed(PER_MESSAGE);
                self.structured(item);
            }
        }
    }

    fn content(&mut self, content: &Value) {
        match content {
            Value::String(text) => self.text(text),
            Value::Array(parts) => parts.iter().for_each(|part| self.content(part)),
            Value::Object(part) => self.part(part),
            Value::Null => {}
            Value::Number(_) | Value::Bool(_) => self.structured(content),
        }
    }

    fn part(&mut self, part: &Map<String, Value>) {
        if self.medium(part) {
            return;
        }
        match part.get("type").and_then(Value::as_str) {
            Some("text" | "input_text" | "output_text") => {
                self.bound_only(self.family.per_message());
                self.content(part.get("text").unwrap_or(&Value::Null));
            }
            Some("tool_result") => {
                self.fixed(PER_FIELD);
                self.content(part.get("content").unwrap_or(&Value::Null));
                self.structured_if_any(part.get("tool_use_id"));
            }
            Some(_) | None => self.fields(part),
        }
    }

    /// Counts a part that is not text. Its bytes are not tokens, and are not looked at.
    fn medium(&mut self, part: &Map<String, Value>) -> bool {
        match part.get("type").and_then(Value::as_str) {
            Some("image_url") => {
                let detail = part.get("image_url").and_then(|image| image.get("detail")).and_then(Value::as_str);
                self.image(detail);
            }
            Some("input_image") => self.image(part.get("detail").and_then(Value::as_str)),
            Some("image") => self.image(None),
            Some("input_audio") => {
                let data = part.get("input_audio").and_then(|sound| sound.get("data")).and_then(Value::as_str);
                let bytes = u64::try_from(data.map_or(0, str::len)).unwrap_or(u64::MAX);
                self.fixed((bytes / BYTES_PER_SOUND_TOKEN).saturating_add(PER_ANSWER));
            }
            Some("document") => {
                match part.get("source").and_then(|source| source.get("type")).and_then(Value::as_str) {
                    Some("text" | "content") => return false,
                    Some(_) | None => self.hide("document"),
                }
            }
            Some("file" | "input_file") => self.hide("file"),
            Some("container_upload") => self.hide("container_upload"),
            Some("video_url" | "input_video" | "video") => self.hide("video"),
            Some(_) | None => return false,
        }
        true
    }

    fn image(&mut self, detail: Option<&str>) {
        let (counted, most) = self.family.image(detail);
        self.fixed(counted);
        self.bound_only(most.saturating_sub(counted));
    }

    fn tools(&mut self, tools: Option<&Value>) {
        let Some(tools) = tools.and_then(Value::as_array).filter(|tools| !tools.is_empty()) else { return };
        self.bound_only(self.family.for_tools());
        for tool in tools {
            self.bound_only(PER_TOOL);
            let kind = tool.get("type").and_then(Value::as_str).unwrap_or("custom");
            let runs_here = ["bash_", "text_editor_", "computer_", "memory_"];
            if runs_here.iter().any(|prefix| kind.starts_with(prefix)) {
                self.bound_only(PER_BUILT_IN_TOOL);
            } else if !["function", "custom"].contains(&kind) {
                // The provider runs it, and what it finds is read by the model.
                self.hide("tools");
            }
            self.structured(tool);
        }
    }

    fn structured_if_any(&mut self, value: Option<&Value>) {
        if let Some(value) = value {
            self.structured(value);
        }
    }

    /// A value that a provider writes out in some form of its own: names, texts, and signs around them.
    fn structured(&mut self, value: &Value) {
        match value {
            Value::String(text) => self.text(text),
            Value::Number(number) => {
                let digits = u64::try_from(number.to_string().len()).unwrap_or(u64::MAX);
                self.fixed(digits.div_ceil(3));
                self.bound_only(digits - digits.div_ceil(3));
            }
            Value::Bool(_) | Value::Null => self.fixed(1),
            Value::Array(values) => {
                for value in values {
                    self.fixed(1);
                    self.structured(value);
                }
            }
            Value::Object(fields) => {
                if !self.medium(fields) {
                    self.fields(fields);
                }
            }
        }
    }

    fn fields(&mut self, fields: &Map<String, Value>) {
        for (name, value) in fields {
            if name != "cache_control" {
                self.text(name);
                self.fixed(PER_FIELD - 1);
                self.bound_only(1);
                self.structured(value);
            }
        }
    }

    fn text(&mut self, text: &str) {
        let tokens = self.counter.count(text);
        self.tokens.counted = self.tokens.counted.saturating_add(tokens.counted);
        self.bound_only(self.family.bound(tokens));
    }

    /// Tokens that are surely there.
    const fn fixed(&mut self, tokens: u64) {
        self.tokens.counted = self.tokens.counted.saturating_add(tokens);
        self.bound_only(tokens);
    }

    /// Tokens that may be there.
    const fn bound_only(&mut self, tokens: u64) {
        self.tokens.bound = self.tokens.bound.saturating_add(tokens);
    }

    fn hidden_if_any(&mut self, body: &Value, fields: &[&'static str]) {
        let is_there = |value: &Value| !value.is_null() && value.as_array().is_none_or(|values| !values.is_empty());
        for field in fields {
            if body.get(field).is_some_and(is_there) {
                self.hide(field);
            }
        }
    }

    fn hide(&mut self, field: &'static str) {
        self.tokens.hidden.get_or_insert(field);
    }
}

#[cfg(test)]
mod tests;
