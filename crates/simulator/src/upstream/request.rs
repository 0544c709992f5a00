//! Reads what was asked out of the bodies of the APIs: only what the answer depends on, all else is accepted.

use super::answer::words;
use serde::Deserialize;
use serde_json::Value;

/// What the last message is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Last {
    User(String),
    ToolResult(String),
}

/// What any of the APIs was asked.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) model: String,
    pub(crate) is_stream: bool,
    /// Whether a stream ends with the usage.
    pub(crate) wants_usage: bool,
    pub(crate) max_tokens: Option<u64>,
    pub(crate) has_tools: bool,
    pub(crate) last: Last,
    /// Of all messages.
    pub(crate) words: u64,
    pub(crate) tag: Option<String>,
}

#[derive(Deserialize)]
struct Body {
    model: String,
    #[serde(default)]
    stream: bool,
    #[serde(default)]
    stream_options: Option<StreamOptions>,
    #[serde(default, alias = "max_completion_tokens", alias = "max_output_tokens")]
    max_tokens: Option<u64>,
    #[serde(default)]
    tools: Vec<Value>,
    #[serde(default, alias = "input")]
    messages: Value,
    /// Anthropic's system prompt and the Responses API's instructions stand beside the messages.
    #[serde(default, alias = "instructions")]
    system: Value,
    #[serde(default)]
    user: Option<String>,
    #[serde(default)]
    metadata: Option<Metadata>,
}

#[derive(Deserialize)]
struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(default)]
    user_id: Option<String>,
}

impl Asked {
    /// From a body of chat completions, responses or messages.
    pub(crate) fn read(body: &[u8]) -> Result<Self, serde_json::Error> {
        let body: Body = serde_json::from_slice(body)?;
        let messages = match body.messages {
            Value::Array(messages) => messages,
            // The Responses API takes a bare text for one message.
            text @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_)) => {
                vec![serde_json::json!({"role": "user", "content": text})]
            }
        };
        let count: u64 = messages.iter().map(|message| words(&text_of(message))).sum();
        Ok(Self {
            model: body.model,
            is_stream: body.stream,
            wants_usage: body.stream_options.is_some_and(|options| options.include_usage),
            max_tokens: body.max_tokens,
            has_tools: !body.tools.is_empty(),
            last: last(&messages),
            words: count + words(&text_of(&body.system)),
            tag: body.user.or_else(|| body.metadata.and_then(|metadata| metadata.user_id)),
        })
    }
}

fn last(messages: &[Value]) -> Last {
    let result = messages.last().filter(|message| is_tool_result(message));
    if let Some(message) = result {
        return Last::ToolResult(text_of(message));
    }
    let user = messages.iter().rev().find(|message| message["role"] == "user");
    Last::User(user.map(text_of).unwrap_or_default())
}

/// A message with a tool's result and nothing else.
fn is_tool_result(message: &Value) -> bool {
    let is_part = |part: &Value| part["type"] == "tool_result";
    message["role"] == "tool"
        || message["type"] == "function_call_output"
        || message["content"].as_array().is_some_and(|parts| !parts.is_empty() && parts.iter().all(is_part))
}

/// The text of a message, of its parts, or of itself. A tool's result beside other text does not count as text.
fn text_of(value: &Value) -> String {
    let parts = |parts: &[Value]| parts.iter().map(text_of).collect::<Vec<_>>().concat();
    match value {
        Value::String(text) => text.clone(),
        Value::Array(list) if list.iter().any(|part| part["type"] == "text") => {
            let texts = list.iter().filter(|part| part["type"] != "tool_result");
            texts.map(text_of).collect::<Vec<_>>().concat()
        }
        Value::Array(list) => parts(list),
        Value::Object(object) => {
            ["text", "content", "output"].iter().find_map(|field| object.get(*field)).map(text_of).unwrap_or_default()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => String::new(),
    }
}

/// What the embeddings API was asked.
#[derive(Debug)]
pub(crate) struct Embed {
    pub(crate) model: String,
    pub(crate) texts: Vec<String>,
    pub(crate) is_base64: bool,
    pub(crate) tag: Option<String>,
}

#[derive(Deserialize)]
struct EmbedBody {
    model: String,
    input: Value,
    #[serde(default)]
    encoding_format: Option<String>,
    #[serde(default)]
    user: Option<String>,
}

impl Embed {
    pub(crate) fn read(body: &[u8]) -> Result<Self, serde_json::Error> {
        let body: EmbedBody = serde_json::from_slice(body)?;
        let texts =
            body.input.as_array().map_or_else(|| vec![text_of(&body.input)], |list| list.iter().map(text_of).collect());
        let is_base64 = body.encoding_format.as_deref() == Some("base64");
        Ok(Self { model: body.model, texts, is_base64, tag: body.user })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(body: &str, last: Last, count: u64) {
        let asked = Asked::read(body.as_bytes()).unwrap();
        assert_eq!((asked.last, asked.words), (last, count), "{body}");
    }

    #[test]
    fn the_last_message_is_found_in_every_api() {
        let user = |text: &str| Last::User(text.to_owned());
        check(
            r#"{"model":"m","messages":[{"role":"system","content":"be brief"},{"role":"user","content":"a b"}]}"#,
            user("a b"),
            4,
        );
        check(r#"{"model":"m","input":"a b c"}"#, user("a b c"), 3);
        check(
            r#"{"model":"m","instructions":"x","input":[{"role":"user","content":[{"type":"input_text","text":"hi"}]}]}"#,
            user("hi"),
            2,
        );
        check(
            r#"{"model":"m","system":"s","messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}]}"#,
            user("hi"),
            2,
        );
    }

    #[test]
    fn a_tools_result_is_told_from_what_the_user_says_after_it() {
        let result = Last::ToolResult("12".to_owned());
        let before = r#"{"role":"user","content":"ask"}"#;
        check(&format!(r#"{{"model":"m","messages":[{before},{{"role":"tool","content":"12"}}]}}"#), result.clone(), 2);
        check(
            &format!(r#"{{"model":"m","input":[{before},{{"type":"function_call_output","output":"12"}}]}}"#),
            result.clone(),
            2,
        );
        let part = r#"{"type":"tool_result","tool_use_id":"t","content":"12"}"#;
        check(&format!(r#"{{"model":"m","messages":[{before},{{"role":"user","content":[{part}]}}]}}"#), result, 2);
        let text = r#"{"type":"text","text":"thanks"}"#;
        let both = format!(r#"{{"model":"m","messages":[{{"role":"user","content":[{part},{text}]}}]}}"#);
        check(&both, Last::User("thanks".to_owned()), 1);
    }

    #[test]
    fn the_limit_the_tools_and_the_tag_are_read_under_each_of_their_names() {
        for name in ["max_tokens", "max_completion_tokens", "max_output_tokens"] {
            let asked = Asked::read(format!(r#"{{"model":"m","messages":[],"{name}":7}}"#).as_bytes()).unwrap();
            assert_eq!((asked.max_tokens, asked.has_tools), (Some(7), false));
        }
        let asked = Asked::read(br#"{"model":"m","messages":[],"metadata":{"user_id":"t"},"tools":[{}]}"#).unwrap();
        assert_eq!((asked.tag.as_deref(), asked.has_tools), (Some("t"), true));
    }
}
