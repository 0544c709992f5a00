//! Translation between dialects. The chat is the pivot: every other dialect is translated to it and from it, and so
//! `responses` over Anthropic's messages is two steps.
//!
//! # Invariants
//! - A request's field that has no counterpart is refused by name, never dropped; `null` and the value that means the
//!   default count as absent.
//! - What a hint only would lose is left out: `cache_control` and thinking of earlier turns, which no other provider can read.

mod chat_to_messages;
mod chat_to_messages_request;
mod chat_to_responses;
mod fields;
mod messages_to_chat;
mod messages_to_chat_request;
mod responses_to_chat_request;

use super::call::{Call, Delivery, Dialect};
use super::decode::write_event;
use super::error::{ProviderError, error_body};
use super::reader;
use bytes::{Bytes, BytesMut};
use chat_to_messages::ChatToMessages;
use chat_to_responses::ChatToResponses;
use messages_to_chat::MessagesToChat;
use serde_json::{Map, Value, json};

/// A request that has no words in the other dialect, and what it is.
pub(crate) type Untranslatable = String;

/// A step of a chat's stream.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ChatStep {
    /// A chunk.
    Chunk(Value),
    /// `[DONE]`.
    Done,
}

/// What an answer needs to know of the call.
#[derive(Debug, Clone)]
pub(crate) struct About {
    /// The request's id, from which the answer's is made.
    pub(crate) id: String,
    /// The model that the caller named.
    pub(crate) model: String,
    /// Wall time in seconds.
    pub(crate) created: u64,
    /// Fields that a `response` object repeats from its request.
    pub(crate) repeated: Map<String, Value>,
}

/// The fields of a request that its `response` object shows again, with what it shows if they were left out.
fn repeated() -> [(&'static str, Value); 11] {
    [
        ("instructions", Value::Null),
        ("max_output_tokens", Value::Null),
        ("metadata", json!({})),
        ("parallel_tool_calls", json!(true)),
        ("reasoning", json!({"effort": null, "summary": null})),
        ("temperature", json!(1.0)),
        ("text", json!({"format": {"type": "text"}})),
        ("tool_choice", json!("auto")),
        ("tools", json!([])),
        ("top_p", json!(1.0)),
        ("truncation", json!("disabled")),
    ]
}

impl About {
    pub(crate) fn of(call: &Call, model: &str) -> Self {
        let repeated = match call.dialect {
            Dialect::Responses => {
                let shown = |(name, otherwise): (&str, Value)| {
                    (name.to_owned(), call.body.read(name).ok().flatten().unwrap_or(otherwise))
                };
                repeated().into_iter().map(shown).collect()
            }
            Dialect::ChatCompletions | Dialect::Messages | Dialect::Embeddings => Map::new(),
        };
        Self { id: call.request_id.clone(), model: model.to_owned(), created: call.at.millis() / 1_000, repeated }
    }
}

/// The call's body in the upstream's dialect.
pub(crate) fn request(call: &Call, upstream: Dialect, model: &str) -> Result<Bytes, ProviderError> {
    if call.dialect == upstream {
        return Ok(call.body.with(&call.changes(model)));
    }
    let translated = match (call.dialect, upstream) {
        (Dialect::ChatCompletions, Dialect::Messages) => object(call).and_then(chat_to_messages_request::request),
        (Dialect::Messages, Dialect::ChatCompletions) => object(call).and_then(messages_to_chat_request::request),
        (Dialect::Responses, Dialect::ChatCompletions) => object(call).and_then(responses_to_chat_request::request),
        (Dialect::Responses, Dialect::Messages) => {
            object(call).and_then(responses_to_chat_request::request).and_then(chat_to_messages_request::request)
        }
        _ => Err(format!("it has no {} of its own", name(call.dialect))),
    };
    let mut body = translated.map_err(ProviderError::Untranslatable)?;
    rewrite(&mut body, call, upstream, model);
    Ok(Value::Object(body).to_string().into())
}

fn name(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::ChatCompletions => "chat completions",
        Dialect::Responses => "responses",
        Dialect::Messages => "messages",
        Dialect::Embeddings => "embeddings",
    }
}

fn object(call: &Call) -> Result<Map<String, Value>, Untranslatable> {
    serde_json::from_slice(&call.body.to_bytes()).map_err(|error| error.to_string())
}

/// Writes the fields of the target into a translated body.
fn rewrite(body: &mut Map<String, Value>, call: &Call, upstream: Dialect, model: &str) {
    body.insert("model".to_owned(), json!(model));
    body.remove("stream");
    if call.delivery == Delivery::Stream {
        body.insert("stream".to_owned(), json!(true));
        if upstream == Dialect::ChatCompletions {
            body.insert("stream_options".to_owned(), json!({"include_usage": true}));
        }
    }
    let asked = body.remove("max_completion_tokens").or(body.remove("max_tokens"));
    let limit = call.max_output_tokens.map(Value::from).or(asked);
    match upstream {
        Dialect::Messages => {
            // Anthropic needs a limit, a chat does not.
            body.insert("max_tokens".to_owned(), limit.unwrap_or(json!(MAX_TOKENS_DEFAULT)));
        }
        Dialect::ChatCompletions | Dialect::Responses | Dialect::Embeddings => {
            let newer = super::call::takes_max_completion_tokens(model);
            let name = if newer { "max_completion_tokens" } else { "max_tokens" };
            body.extend(limit.map(|limit| (name.to_owned(), limit)));
        }
    }
}

/// The limit of output where neither the caller nor the hold has one.
const MAX_TOKENS_DEFAULT: u64 = 4_096;

/// A whole answer in the caller's dialect.
pub(crate) fn whole(body: &[u8], upstream: Dialect, caller: Dialect, about: &About) -> Result<Bytes, ProviderError> {
    let mut value: Value = reader::parse(body)?;
    let odd = || ProviderError::Unreadable { reason: "it has no message in it".to_owned() };
    if upstream == Dialect::Messages {
        value = messages_to_chat::whole(&value, about).ok_or_else(odd)?;
    }
    let value = match caller {
        Dialect::ChatCompletions | Dialect::Embeddings => value,
        Dialect::Messages => chat_to_messages::whole(&value, about).ok_or_else(odd)?,
        Dialect::Responses => chat_to_responses::whole(&value, about).ok_or_else(odd)?,
    };
    Ok(value.to_string().into())
}

/// A provider's error in the caller's dialect.
pub(crate) fn error(body: &[u8], caller: Dialect) -> Bytes {
    let value: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
    let error = &value["error"];
    let message = error["message"].as_str().or(error.as_str()).unwrap_or("the provider refused the request");
    let kind = error["type"].as_str().unwrap_or("invalid_request_error");
    error_body(caller, kind, error["code"].as_str().unwrap_or(kind), message)
}

/// Translates the events of one stream.
#[derive(Debug)]
pub(crate) struct StreamTranslation {
    from_messages: Option<MessagesToChat>,
    to: ToCaller,
}

/// From chat steps to the caller's dialect.
#[derive(Debug)]
pub(crate) enum ToCaller {
    Chat,
    Messages(Box<ChatToMessages>),
    Responses(Box<ChatToResponses>),
}

impl ToCaller {
    pub(crate) fn new(caller: Dialect, about: About) -> Self {
        match caller {
            Dialect::ChatCompletions | Dialect::Embeddings => Self::Chat,
            Dialect::Messages => Self::Messages(Box::new(ChatToMessages::new(about))),
            Dialect::Responses => Self::Responses(Box::new(ChatToResponses::new(about))),
        }
    }

    /// Writes what a step is in the caller's dialect.
    pub(crate) fn write(&mut self, step: &ChatStep, out: &mut BytesMut) -> Result<(), ProviderError> {
        match self {
            Self::Chat => match step {
                ChatStep::Chunk(chunk) => write_event(out, None, &chunk.to_string()),
                ChatStep::Done => write_event(out, None, "[DONE]"),
            },
            Self::Messages(messages) => messages.step(step, out)?,
            Self::Responses(responses) => responses.step(step, out)?,
        }
        Ok(())
    }
}

impl StreamTranslation {
    /// From an upstream's dialect to the caller's.
    pub(crate) fn new(upstream: Dialect, caller: Dialect, about: About) -> Self {
        let from_messages = (upstream == Dialect::Messages).then(|| MessagesToChat::new(about.clone()));
        Self { from_messages, to: ToCaller::new(caller, about) }
    }

    /// The events for the caller that the data of one upstream event becomes; possibly none.
    pub(crate) fn event(&mut self, data: &[u8]) -> Result<BytesMut, ProviderError> {
        let mut out = BytesMut::new();
        let steps = match &mut self.from_messages {
            _ if data == b"[DONE]" => vec![ChatStep::Done],
            None => vec![ChatStep::Chunk(reader::parse(data)?)],
            Some(messages) => messages.event(&reader::parse(data)?),
        };
        for step in &steps {
            self.to.write(step, &mut out)?;
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests;
