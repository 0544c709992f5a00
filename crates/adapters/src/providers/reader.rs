//! Reads beside the stream what must be known of it: the text, the usage, its end, an error. It changes no byte.

use super::call::Dialect;
use super::error::ProviderError;
use super::usage::{self, Reported, Running};
use serde::Deserialize;
use serde_json::Value;
use std::borrow::Cow;

/// What an event says beside its text.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(crate) only_usage: bool,
    pub(crate) last: bool,
}

/// Reads the events of one stream.
#[derive(Debug)]
pub(crate) struct Reader {
    dialect: Dialect,
    usage: Reported,
    running: Running,
    /// The model said that it is finished; only the formal end is missing.
    finished: bool,
}

impl Reader {
    pub(crate) fn new(dialect: Dialect) -> Self {
        Self { dialect, usage: Reported::Missing, running: Running::default(), finished: false }
    }

    /// The usage as known so far.
    pub(crate) fn usage(&self) -> &Reported {
        &self.usage
    }

    /// Whether the model has said all, even if the stream has no formal end.
    pub(crate) fn finished(&self) -> bool {
        self.finished
    }

    /// Reads the data of one event, and writes its text behind `text`.
    pub(crate) fn read(&mut self, data: &[u8], text: &mut String) -> Result<Reading, ProviderError> {
        match self.dialect {
            Dialect::ChatCompletions | Dialect::Embeddings => self.chat(data, text),
            Dialect::Messages => self.messages(data, text),
            Dialect::Responses => self.responses(data, text),
        }
    }

    fn chat(&mut self, data: &[u8], text: &mut String) -> Result<Reading, ProviderError> {
        if data == b"[DONE]" {
            return Ok(Reading { last: true, ..Reading::default() });
        }
        let chunk: ChatChunk<'_> = parse(data)?;
        if let Some(error) = &chunk.error {
            return Err(failed(error));
        }
        let told = chunk.usage.is_some();
        if let Some(usage) = &chunk.usage {
            self.usage = usage::of_openai(usage);
        }
        self.finished |= chunk.choices.iter().any(|choice| choice.finish_reason.is_some());
        for delta in chunk.choices.iter().filter_map(|choice| choice.delta.as_ref()) {
            delta.write(text);
        }
        Ok(Reading { only_usage: told && chunk.choices.is_empty(), last: false })
    }

    fn messages(&mut self, data: &[u8], text: &mut String) -> Result<Reading, ProviderError> {
        let event: MessagesEvent<'_> = parse(data)?;
        if let Some(error) = event.error.as_ref().filter(|_| event.kind == "error") {
            return Err(failed(error));
        }
        let usage = event.usage.as_ref().or(event.message.as_ref().and_then(|message| message.usage.as_ref()));
        if let Some(usage) = usage {
            self.running.add(usage);
            self.usage = self.running.reported();
        }
        for part in [&event.delta, &event.content_block].into_iter().flatten() {
            part.write(text);
        }
        let last = event.kind == "message_stop";
        self.finished |= last;
        Ok(Reading { only_usage: false, last })
    }

    fn responses(&mut self, data: &[u8], text: &mut String) -> Result<Reading, ProviderError> {
        // Some servers of this dialect end their streams like chats.
        if data == b"[DONE]" {
            return Ok(Reading { last: true, ..Reading::default() });
        }
        let event: ResponsesEvent<'_> = parse(data)?;
        let outcome = event.response.as_ref();
        match &*event.kind {
            "error" => return Err(failed(&parse(data)?)),
            "response.failed" => {
                return Err(failed(outcome.and_then(|response| response.error.as_ref()).unwrap_or(&Value::Null)));
            }
            _ => {}
        }
        let last = matches!(&*event.kind, "response.completed" | "response.incomplete");
        self.finished |= last;
        if let Some(usage) = outcome.and_then(|response| response.usage.as_ref()) {
            self.usage = usage::of_openai(usage);
        }
        let delta = event.delta.as_ref().and_then(Value::as_str).filter(|_| event.kind.ends_with(".delta"));
        text.push_str(delta.unwrap_or(""));
        Ok(Reading { only_usage: false, last })
    }
}

/// Parses an answer's JSON, or says that it is none.
pub(crate) fn parse<'a, T: Deserialize<'a>>(data: &'a [u8]) -> Result<T, ProviderError> {
    serde_json::from_slice(data)
        .map_err(|error| ProviderError::Unreadable { reason: format!("it is not the JSON that it should be: {error}") })
}

/// An error that came inside a stream. Its words may quote the request, so only its kind is told.
fn failed(error: &Value) -> ProviderError {
    let words = ["type", "code"].iter().filter_map(|name| error[*name].as_str()).find(|word| *word != "error");
    let reason = usage::shortened(words.unwrap_or("it sent an error"));
    match &*reason {
        "rate_limit_error" | "rate_limit_exceeded" => ProviderError::RateLimited { retry_after: None },
        _ => ProviderError::BrokeOff { reason },
    }
}

/// What a body says that it used.
pub(crate) fn usage_of_whole(dialect: Dialect, body: &[u8]) -> Result<Reported, ProviderError> {
    #[derive(Deserialize)]
    struct Used {
        usage: Option<Value>,
    }
    let used: Used = parse(body)?;
    Ok(match (dialect, &used.usage) {
        (_, None) => Reported::Missing,
        (Dialect::Messages, Some(usage)) => usage::of_anthropic(usage),
        (Dialect::ChatCompletions | Dialect::Responses | Dialect::Embeddings, Some(usage)) => usage::of_openai(usage),
    })
}

/// The text of a whole answer; what cannot be read has none.
pub(crate) fn text_of_whole(dialect: Dialect, body: &[u8]) -> String {
    let mut text = String::new();
    let value: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
    match dialect {
        Dialect::ChatCompletions => {
            for message in items(&value["choices"]).map(|choice| &choice["message"]) {
                strings(message, &["content", "reasoning_content", "reasoning", "refusal"], &mut text);
                for call in items(&message["tool_calls"]) {
                    strings(&call["function"], &["name", "arguments"], &mut text);
                }
            }
        }
        Dialect::Messages => {
            for block in items(&value["content"]) {
                strings(block, &["text", "thinking", "name"], &mut text);
                if let Some(input) = block.get("input") {
                    text.push_str(&input.to_string());
                }
            }
        }
        Dialect::Responses => {
            for item in items(&value["output"]) {
                strings(item, &["name", "arguments"], &mut text);
                for part in items(&item["content"]).chain(items(&item["summary"])) {
                    strings(part, &["text", "refusal"], &mut text);
                }
            }
        }
        Dialect::Embeddings => {}
    }
    text
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn strings(value: &Value, names: &[&str], text: &mut String) {
    for name in names {
        text.push_str(value[*name].as_str().unwrap_or(""));
    }
}

#[derive(Deserialize)]
struct ChatChunk<'a> {
    #[serde(borrow, default)]
    choices: Vec<ChatChoice<'a>>,
    usage: Option<Value>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct ChatChoice<'a> {
    #[serde(borrow)]
    delta: Option<ChatDelta<'a>>,
    #[serde(borrow)]
    finish_reason: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct ChatDelta<'a> {
    #[serde(borrow)]
    content: Option<Cow<'a, str>>,
    #[serde(borrow)]
    reasoning_content: Option<Cow<'a, str>>,
    #[serde(borrow)]
    reasoning: Option<Cow<'a, str>>,
    #[serde(borrow)]
    refusal: Option<Cow<'a, str>>,
    #[serde(borrow)]
    tool_calls: Option<Vec<ChatTool<'a>>>,
}

#[derive(Deserialize)]
struct ChatTool<'a> {
    #[serde(borrow)]
    function: Option<ChatFunction<'a>>,
}

#[derive(Deserialize)]
struct ChatFunction<'a> {
    #[serde(borrow)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    arguments: Option<Cow<'a, str>>,
}

impl ChatDelta<'_> {
    fn write(&self, text: &mut String) {
        for part in [&self.content, &self.reasoning_content, &self.reasoning, &self.refusal].into_iter().flatten() {
            text.push_str(part);
        }
        for function in self.tool_calls.iter().flatten().filter_map(|call| call.function.as_ref()) {
            for part in [&function.name, &function.arguments].into_iter().flatten() {
                text.push_str(part);
            }
        }
    }
}

#[derive(Deserialize)]
struct MessagesEvent<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    delta: Option<MessagesPart<'a>>,
    #[serde(borrow)]
    content_block: Option<MessagesPart<'a>>,
    usage: Option<Value>,
    message: Option<MessagesStart>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct MessagesStart {
    usage: Option<Value>,
}

#[derive(Deserialize)]
struct MessagesPart<'a> {
    #[serde(borrow)]
    text: Option<Cow<'a, str>>,
    #[serde(borrow)]
    thinking: Option<Cow<'a, str>>,
    #[serde(borrow)]
    partial_json: Option<Cow<'a, str>>,
    #[serde(borrow)]
    name: Option<Cow<'a, str>>,
}

impl MessagesPart<'_> {
    fn write(&self, text: &mut String) {
        for part in [&self.name, &self.text, &self.thinking, &self.partial_json].into_iter().flatten() {
            text.push_str(part);
        }
    }
}

#[derive(Deserialize)]
struct ResponsesEvent<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    delta: Option<Value>,
    response: Option<ResponsesOutcome>,
}

#[derive(Deserialize)]
struct ResponsesOutcome {
    usage: Option<Value>,
    error: Option<Value>,
}
