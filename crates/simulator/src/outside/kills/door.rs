//! The ways to ask over HTTP: what is said at each, and how its answers end.

use super::ask::{Kind, Plan};
use crate::upstream::Usage;
use serde_json::{Value, json};
use std::fmt;

/// The model behind an upstream that speaks as OpenAI does.
pub(super) const MODEL: &str = "mock";
/// The same behind one that speaks as Anthropic does.
pub(super) const CLAUDE: &str = "mock-claude";

/// Where a request is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Door {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/responses`.
    Responses,
    /// `/v1/messages`.
    Messages,
}

impl fmt::Display for Door {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Chat => "chat",
            Self::Responses => "responses",
            Self::Messages => "messages",
        })
    }
}

impl Door {
    pub(super) const ALL: [Self; 3] = [Self::Chat, Self::Responses, Self::Messages];

    pub(super) const fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Responses => "/v1/responses",
            Self::Messages => "/v1/messages",
        }
    }

    pub(super) fn body(self, plan: &Plan) -> String {
        let text = words(plan.words);
        let messages = json!([{"role": "user", "content": text}]);
        let mut body = match self {
            Self::Chat => json!({"model": MODEL, "messages": messages, "max_tokens": 64, "user": plan.key}),
            Self::Responses => json!({"model": MODEL, "input": text, "max_output_tokens": 64, "user": plan.key}),
            Self::Messages => {
                json!({"model": CLAUDE, "messages": messages, "max_tokens": 64, "metadata": {"user_id": plan.key}})
            }
        };
        match plan.kind {
            Kind::Whole | Kind::Failing => {}
            Kind::Stream | Kind::StreamWithUsage | Kind::Breaking | Kind::Slow => body["stream"] = true.into(),
        }
        if plan.kind == Kind::StreamWithUsage && self == Self::Chat {
            body["stream_options"] = json!({"include_usage": true});
        }
        body.to_string()
    }

    /// Whether a stream has come to what its clients take for the end.
    pub(super) fn is_ended(self, text: &str) -> bool {
        let end = match self {
            Self::Chat => return text.contains("data: [DONE]\n\n"),
            Self::Responses => "event: response.completed\n",
            Self::Messages => "event: message_stop\n",
        };
        text.find(end).is_some_and(|at| text.get(at..).is_some_and(|rest| rest.contains("\n\n")))
    }

    /// The usage that a stream told last, if it did.
    pub(super) fn usage_in_stream(self, text: &str) -> Option<Usage> {
        let events = text.lines().rev().filter_map(|line| line.strip_prefix("data: "));
        let mut told = events.filter_map(|event| serde_json::from_str::<Value>(event).ok());
        told.find_map(|event| match self {
            Self::Chat | Self::Messages => self.usage(&event["usage"]),
            Self::Responses => self.usage(&event["response"]["usage"]),
        })
    }

    /// The usage in an answer's own words.
    pub(super) fn usage(self, told: &Value) -> Option<Usage> {
        let [input, output] = match self {
            Self::Chat => ["prompt_tokens", "completion_tokens"],
            Self::Responses | Self::Messages => ["input_tokens", "output_tokens"],
        };
        let (input, output) = (told[input].as_u64()?, told[output].as_u64()?);
        Some(Usage { input, cached: 0, output, reasoning: 0 })
    }
}

/// So many words, which the upstream says again.
pub(super) fn words(count: u64) -> String {
    (1..=count).map(|number| format!("word{number}")).collect::<Vec<_>>().join(" ")
}
