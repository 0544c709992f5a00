//! Reads beside the stream what must be known of it: the text, the usage, its end, an error. It changes no byte.

use super::call::Dialect;
use super::error::ProviderError;
use super::pattern::Pattern;
use super::usage::{self, Reported, Running};
use serde::Deserialize;
use serde_json::Value;
use std::borrow::Cow;
use std::ops::Deref;

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
    /// Of a chat's events with words.
    pattern: Pattern,
}

impl Reader {
    pub(crate) fn new(dialect: Dialect) -> Self {
        let (usage, running) = (Reported::Missing, Running::default());
        Self { dialect, usage, running, finished: false, pattern: Pattern::default() }
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
        if let Some(words) = self.pattern.words(data) {
            text.push_str(words);
            return Ok(Reading::default());
        }
        let chunk: ChatChunk<'_> = parse(data)?;
        if let Some(error) = &chunk.error {
            return Err(failed(error));
        }
        if let Some(words) = chunk.only_words() {
            self.pattern.learn(data, words);
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

/// Words of an event: its own bytes, unless something in them is escaped.
///
/// A type of its own, because serde copies every `Cow` that is not a field by itself, and in an `Option` it is not.
#[derive(Deserialize)]
#[serde(transparent)]
struct Words<'a>(#[serde(borrow)] Cow<'a, str>);

impl Deref for Words<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

#[derive(Deserialize)]
struct ChatChunk<'a> {
    #[serde(borrow, default)]
    choices: Vec<ChatChoice<'a>>,
    usage: Option<Value>,
    error: Option<Value>,
}

impl ChatChunk<'_> {
    /// Its words, if it says nothing else and they stand in it as they are.
    fn only_words(&self) -> Option<&str> {
        let Self { choices, usage: None, error: None } = self else { return None };
        let [ChatChoice { delta: Some(delta), finish_reason: None }] = &choices[..] else { return None };
        match delta {
            ChatDelta {
                content: Some(Words(Cow::Borrowed(words))),
                reasoning_content: None,
                reasoning: None,
                refusal: None,
                tool_calls: None,
            } => Some(words),
            _ => None,
        }
    }
}

#[derive(Deserialize)]
struct ChatChoice<'a> {
    #[serde(borrow)]
    delta: Option<ChatDelta<'a>>,
    #[serde(borrow)]
    finish_reason: Option<Words<'a>>,
}

#[derive(Deserialize)]
struct ChatDelta<'a> {
    #[serde(borrow)]
    content: Option<Words<'a>>,
    #[serde(borrow)]
    reasoning_content: Option<Words<'a>>,
    #[serde(borrow)]
    reasoning: Option<Words<'a>>,
    #[serde(borrow)]
    refusal: Option<Words<'a>>,
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
    name: Option<Words<'a>>,
    #[serde(borrow)]
    arguments: Option<Words<'a>>,
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
    text: Option<Words<'a>>,
    #[serde(borrow)]
    thinking: Option<Words<'a>>,
    #[serde(borrow)]
    partial_json: Option<Words<'a>>,
    #[serde(borrow)]
    name: Option<Words<'a>>,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn event(words: &str, rest: &str) -> String {
        format!(r#"{{"id":"c","choices":[{{"index":0,"delta":{{"content":"{words}"}}{rest}}}]}}"#)
    }

    /// What a reader of all of them says of each is what one says that sees it alone.
    fn check(events: &[String]) {
        let mut reader = Reader::new(Dialect::ChatCompletions);
        let mut finished = false;
        for event in events {
            let mut alone = Reader::new(Dialect::ChatCompletions);
            let (mut text, mut expected) = (String::new(), String::new());
            let reading = reader.read(event.as_bytes(), &mut text);
            assert_eq!(reading, alone.read(event.as_bytes(), &mut expected), "{event}");
            assert_eq!(text, expected, "{event}");
            finished |= alone.finished();
            assert_eq!(reader.finished(), finished, "{event}");
        }
    }

    #[test]
    fn an_event_like_another_is_read_as_if_it_were_the_first() {
        let open = r#","finish_reason":null"#;
        let words = [
            "Hello",
            " world",
            "",
            "é",
            r"a\nb",
            r#"a\"b"#,
            r#""},"finish_reason":"stop","x":{"y":""#,
            "tab\there",
            "]}",
        ];
        let mut events: Vec<String> = words.iter().map(|words| event(words, open)).collect();
        events.push(event("stop", r#","finish_reason":"stop""#));
        events.push(event("again", open));
        events.push(r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}"#.to_owned());
        events.push(r#"{"id":"c","choices":[{"index":0,"delta":{"content":"#.to_owned());
        events.push(r#"{"error":{"type":"server_error"}}"#.to_owned());
        for first in 0..events.len() {
            events.rotate_left(1);
            check(&events);
            let pairs: Vec<String> = events.iter().flat_map(|event| [event.clone(), events[first].clone()]).collect();
            check(&pairs);
        }
    }

    #[test]
    fn an_event_like_another_is_not_parsed() {
        let mut reader = Reader::new(Dialect::ChatCompletions);
        let open = r#","finish_reason":null"#;
        reader.read(event("Hello", open).as_bytes(), &mut String::new()).unwrap();
        assert_eq!(reader.pattern.words(event(" world", open).as_bytes()), Some(" world"));
    }

    #[test]
    fn bytes_that_are_no_text_are_refused_after_any_event() {
        let mut reader = Reader::new(Dialect::ChatCompletions);
        let mut text = String::new();
        reader.read(event("a", "").as_bytes(), &mut text).unwrap();
        let broken = event("?", "").replace('?', "\u{0}").into_bytes();
        let broken: Vec<u8> = broken.into_iter().map(|byte| if byte == 0 { 0xff } else { byte }).collect();
        assert!(matches!(reader.read(&broken, &mut text), Err(ProviderError::Unreadable { .. })));
        assert_eq!(text, "a");
    }
}
