//! What is asked of a provider: one call in the caller's dialect.

use super::body::{Body, Instead};
use holdfast_domain::Timestamp;
use serde_json::{Value, json};
use std::fmt;
use tokio::time::Instant;

/// A wire dialect: the shape of requests and answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// OpenAI's `POST /v1/chat/completions`.
    ChatCompletions,
    /// OpenAI's `POST /v1/responses`.
    Responses,
    /// Anthropic's `POST /v1/messages`.
    Messages,
    /// OpenAI's `POST /v1/embeddings`.
    Embeddings,
}

/// How the answer is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// As one body.
    Whole,
    /// As server-sent events.
    Stream,
}

/// In how many pieces a stream is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pieces {
    /// Each event by itself, for whoever may stop after any of them.
    Single,
    /// Events with text that have come together are given together: each piece costs about as much as all of an event does.
    Together,
}

/// One call. It is shared by all attempts, so nothing in it is about a target.
#[derive(Debug, Clone)]
pub struct Call {
    /// The caller's dialect, in which it is also answered.
    pub dialect: Dialect,
    /// The body as the caller wrote it. `model`, `stream`, the limit of output and `stream_options.include_usage` are
    /// written anew for each target; everything else goes upstream untouched where the dialect is the same.
    pub body: Body,
    /// Whole or streamed.
    pub delivery: Delivery,
    /// How a stream is given.
    pub pieces: Pieces,
    /// The most output tokens that were paid for; `None` leaves the body's own limit.
    pub max_output_tokens: Option<u64>,
    /// The caller's own key for the provider, instead of the operator's.
    pub key: Option<Secret>,
    /// Headers of the caller's that a provider understands.
    pub headers: Headers,
    /// The request's id: sent along, and used where an answer of ours needs an id.
    pub request_id: String,
    /// The wall time of the call, for answers that name it.
    pub at: Timestamp,
    /// When the caller no longer waits. It bounds the whole answer, a stream's last piece included.
    pub deadline: Option<Instant>,
}

/// Headers that are passed on to Anthropic.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Headers {
    /// `anthropic-version`.
    pub anthropic_version: Option<String>,
    /// `anthropic-beta`.
    pub anthropic_beta: Option<String>,
}

/// A key. It never prints itself.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Takes a key in.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The key itself, for the one header that carries it.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Call {
    /// The changes to the body for a target that speaks the caller's dialect.
    pub(crate) fn changes(&self, model: &str) -> Vec<(&'static str, Instead)> {
        let text = |value: Value| Instead::Text(value.to_string());
        let mut changes = vec![("model", text(json!(model)))];
        if self.dialect == Dialect::Embeddings {
            return changes;
        }
        match self.delivery {
            Delivery::Stream => changes.push(("stream", Instead::Text("true".to_owned()))),
            Delivery::Whole => changes.push(("stream", Instead::Nothing)),
        }
        if self.dialect == Dialect::ChatCompletions {
            changes.push(match self.delivery {
                Delivery::Stream => ("stream_options", text(self.stream_options())),
                // Providers refuse the options of a stream that is none.
                Delivery::Whole => ("stream_options", Instead::Nothing),
            });
        }
        if let Some(limit) = self.max_output_tokens {
            changes.extend(self.limit_fields(model).map(|(name, keep)| match keep {
                true => (name, text(json!(limit))),
                false => (name, Instead::Nothing),
            }));
        }
        changes
    }

    /// The options of the stream as the caller has them, with usage asked for: no usage, no exact charge.
    fn stream_options(&self) -> Value {
        let mut options: Value = self.body.read("stream_options").ok().flatten().unwrap_or_else(|| json!({}));
        match options.as_object_mut() {
            Some(options) => drop(options.insert("include_usage".to_owned(), json!(true))),
            None => options = json!({"include_usage": true}),
        }
        options
    }

    /// The names that the limit of output has in this dialect, and which of them to write.
    fn limit_fields(&self, model: &str) -> impl Iterator<Item = (&'static str, bool)> {
        let has = |name| self.body.get(name).is_some_and(|raw| raw.get() != "null");
        let newer = has("max_completion_tokens") || (!has("max_tokens") && takes_max_completion_tokens(model));
        let fields: &[(&str, bool)] = match self.dialect {
            Dialect::ChatCompletions if newer => &[("max_completion_tokens", true), ("max_tokens", false)],
            Dialect::ChatCompletions => &[("max_tokens", true)],
            Dialect::Responses => &[("max_output_tokens", true)],
            Dialect::Messages => &[("max_tokens", true)],
            Dialect::Embeddings => &[],
        };
        fields.iter().copied()
    }

    /// Whether the caller itself asked for the last chunk with usage, which has no choices.
    #[must_use]
    pub fn asks_for_usage(&self) -> bool {
        let options: Option<Value> = self.body.read("stream_options").ok().flatten();
        options.is_some_and(|options| options["include_usage"] == true)
    }
}

/// OpenAI's reasoning models refuse `max_tokens`; compatible servers may know no other name.
pub(crate) fn takes_max_completion_tokens(model: &str) -> bool {
    ["o1", "o3", "o4", "gpt-5"].iter().any(|family| model.starts_with(family))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(dialect: Dialect, delivery: Delivery, body: &str) -> Call {
        Call {
            dialect,
            body: Body::parse(body.as_bytes()).unwrap(),
            delivery,
            pieces: Pieces::Together,
            max_output_tokens: Some(9),
            key: Some(Secret::new("sk-very-secret")),
            headers: Headers::default(),
            request_id: "r1".to_owned(),
            at: Timestamp::EPOCH,
            deadline: None,
        }
    }

    fn check(dialect: Dialect, delivery: Delivery, body: &str, model: &str, expected: &str) {
        let call = call(dialect, delivery, body);
        assert_eq!(call.body.with(&call.changes(model)), expected.as_bytes());
    }

    #[test]
    fn the_fields_of_the_target_are_written_anew() {
        use Delivery::{Stream, Whole};
        use Dialect::{ChatCompletions, Embeddings, Messages, Responses};
        check(
            ChatCompletions,
            Whole,
            r#"{"model":"x","max_tokens":5,"stream":false,"a":1.0}"#,
            "m",
            r#"{"model":"m","max_tokens":9,"a":1.0}"#,
        );
        check(
            ChatCompletions,
            Stream,
            r#"{"model":"x","stream_options":{"b":1}}"#,
            "m",
            r#"{"model":"m","stream_options":{"b":1,"include_usage":true},"stream":true,"max_tokens":9}"#,
        );
        check(
            ChatCompletions,
            Whole,
            r#"{"max_completion_tokens":5,"max_tokens":99}"#,
            "m",
            r#"{"max_completion_tokens":9,"model":"m"}"#,
        );
        check(ChatCompletions, Whole, "{}", "o3-mini", r#"{"model":"o3-mini","max_completion_tokens":9}"#);
        check(Responses, Stream, "{}", "m", r#"{"model":"m","stream":true,"max_output_tokens":9}"#);
        check(Messages, Whole, r#"{"max_tokens":1}"#, "m", r#"{"max_tokens":9,"model":"m"}"#);
        check(Embeddings, Whole, r#"{"input":"x","model":"y"}"#, "m", r#"{"input":"x","model":"m"}"#);
    }

    #[test]
    fn a_secret_never_prints_itself() {
        let printed = format!("{:?}", call(Dialect::Messages, Delivery::Whole, "{}"));
        assert!(!printed.contains("sk-"), "{printed}");
    }
}
