//! What the APIs have in common on the wire: whole answers, streams of events, usage, errors.

use super::answer::{Answer, Usage};
use super::script::Nonsense;
use super::{anthropic, chat, responses};
use bytes::Bytes;
use serde_json::{Value, json};

/// The APIs that models are called by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Api {
    Chat,
    Responses,
    Messages,
}

/// What an event of a stream carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carries {
    /// Text or a part of a tool's arguments.
    Piece,
    /// The final usage.
    Usage,
    Nothing,
}

/// One event of a stream, as it is sent.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    pub(crate) bytes: Bytes,
    pub(crate) carries: Carries,
}

impl Event {
    /// `data: {…}`, as OpenAI's chat sends it.
    pub(crate) fn data(value: &Value, carries: Carries) -> Self {
        Self { bytes: format!("data: {value}\n\n").into(), carries }
    }

    /// `event: TYPE` before the data, as the others do; the type also stands within.
    pub(crate) fn named(value: &Value, carries: Carries) -> Self {
        let name = value["type"].as_str().unwrap_or_default();
        Self { bytes: format!("event: {name}\ndata: {value}\n\n").into(), carries }
    }
}

/// What is said of the usage.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Told {
    Truth,
    Nothing,
    Instead(Value),
    Spoilt(Nonsense),
}

/// All that a wire format is made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reply<'a> {
    pub(crate) number: u64,
    pub(crate) model: &'a str,
    pub(crate) answer: &'a Answer,
    pub(crate) told: &'a Told,
    /// Whether a chat's stream ends with the usage.
    pub(crate) wants_usage: bool,
}

impl Reply<'_> {
    /// The usage as it is told, made from the truth in an API's own words.
    pub(crate) fn usage(&self, truth: impl FnOnce(Usage) -> Value) -> Option<Value> {
        match self.told {
            Told::Truth => Some(truth(self.answer.usage)),
            Told::Nothing => None,
            Told::Instead(value) => Some(value.clone()),
            Told::Spoilt(kind) => Some(spoilt(truth(self.answer.usage), *kind)),
        }
    }
}

/// Sets a field, if there is something to set it to.
pub(crate) fn with(mut value: Value, field: &str, part: Option<Value>) -> Value {
    if let Some(part) = part {
        value[field] = part;
    }
    value
}

fn spoilt(value: Value, kind: Nonsense) -> Value {
    match value {
        Value::Number(number) => {
            let count = number.as_i64().unwrap_or(0);
            match kind {
                Nonsense::Negative => json!(-count.max(1)),
                Nonsense::TenTimes => json!(count * 10),
                Nonsense::Strings => json!(format!("{count} tokens")),
            }
        }
        Value::Object(fields) => {
            Value::Object(fields.into_iter().map(|(name, value)| (name, spoilt(value, kind))).collect())
        }
        other @ (Value::Null | Value::Bool(_) | Value::String(_) | Value::Array(_)) => other,
    }
}

impl Api {
    pub(crate) fn of(path: &str) -> Option<Self> {
        match path {
            "/v1/chat/completions" => Some(Self::Chat),
            "/v1/responses" => Some(Self::Responses),
            "/v1/messages" => Some(Self::Messages),
            _ => None,
        }
    }

    pub(crate) fn whole(self, reply: &Reply<'_>) -> Bytes {
        let value = match self {
            Self::Chat => chat::whole(reply),
            Self::Responses => responses::whole(reply),
            Self::Messages => anthropic::whole(reply),
        };
        value.to_string().into()
    }

    pub(crate) fn events(self, reply: &Reply<'_>) -> Vec<Event> {
        match self {
            Self::Chat => chat::events(reply),
            Self::Responses => responses::events(reply),
            Self::Messages => anthropic::events(reply),
        }
    }
}

/// Whose manner an error is told in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    OpenAi,
    Anthropic,
}

/// An error in that manner.
pub(crate) fn error(manner: Manner, status: u16, message: &str) -> Value {
    let (openai_type, code, anthropic_type) = match status {
        401 => ("invalid_request_error", "invalid_api_key", "authentication_error"),
        404 => ("invalid_request_error", "model_not_found", "not_found_error"),
        400 => ("invalid_request_error", "invalid_request", "invalid_request_error"),
        429 => ("rate_limit_error", "rate_limit_exceeded", "rate_limit_error"),
        503 | 529 => ("server_error", "overloaded", "overloaded_error"),
        _ => ("server_error", "server_error", "api_error"),
    };
    match manner {
        Manner::OpenAi => json!({"error": {"message": message, "type": openai_type, "param": null, "code": code}}),
        Manner::Anthropic => json!({"type": "error", "error": {"type": anthropic_type, "message": message}}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::answer::{Extra, words};
    use crate::upstream::request::{Asked, Last};

    fn asked(text: &str) -> Asked {
        Asked {
            model: "mock".to_owned(),
            is_stream: true,
            wants_usage: true,
            max_tokens: None,
            has_tools: true,
            last: Last::User(text.to_owned()),
            words: words(text),
            tag: None,
        }
    }

    fn stream(api: Api, text: &str, told: &Told) -> Vec<Value> {
        let answer = Answer::to(&asked(text), Extra::default());
        let events = api.events(&Reply { number: 1, model: "mock", answer: &answer, told, wants_usage: true });
        let text: String = events.iter().map(|event| String::from_utf8(event.bytes.to_vec()).unwrap()).collect();
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
    }

    #[test]
    fn the_pieces_of_every_stream_join_to_the_answer() {
        let paths =
            [(Api::Chat, "/choices/0/delta/content"), (Api::Responses, "/delta"), (Api::Messages, "/delta/text")];
        for (api, path) in paths {
            let values = stream(api, "one two three", &Told::Truth);
            let text: String = values.iter().filter_map(|value| value.pointer(path)?.as_str()).collect();
            assert_eq!(text, "one two three", "{api:?}");
        }
    }

    #[test]
    fn the_arguments_of_a_tool_arrive_in_parts_in_every_stream() {
        let arguments = r#"{"city":"Oslo"}"#;
        let paths = [
            (Api::Chat, "/choices/0/delta/tool_calls/0/function/arguments"),
            (Api::Responses, "/delta"),
            (Api::Messages, "/delta/partial_json"),
        ];
        for (api, path) in paths {
            let values = stream(api, &format!("call weather {arguments}"), &Told::Truth);
            let text: String = values.iter().filter_map(|value| value.pointer(path)?.as_str()).collect();
            assert_eq!(text, arguments, "{api:?}");
        }
    }

    #[test]
    fn a_usage_can_be_left_out_replaced_or_spoilt_everywhere() {
        for (api, path) in [
            (Api::Chat, "/usage/prompt_tokens"),
            (Api::Responses, "/response/usage/input_tokens"),
            (Api::Messages, "/usage/output_tokens"),
        ] {
            let last =
                |told: &Told| stream(api, "a b", told).iter().rev().find_map(|value| value.pointer(path).cloned());
            assert_eq!(last(&Told::Truth), Some(json!(2)), "{api:?}");
            assert_eq!(last(&Told::Nothing), None, "{api:?}");
            assert_eq!(last(&Told::Spoilt(Nonsense::Negative)), Some(json!(-2)), "{api:?}");
            assert_eq!(last(&Told::Spoilt(Nonsense::TenTimes)), Some(json!(20)), "{api:?}");
            assert_eq!(last(&Told::Spoilt(Nonsense::Strings)), Some(json!("2 tokens")), "{api:?}");
        }
    }
}
