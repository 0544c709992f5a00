//! What is said on a WebSocket, both ways, and how long it may be.

use crate::http::error::{ApiError, Shape};
use crate::http::invoke::told;
use crate::inference::Money;
use crate::wire::Shown;
use crate::wire::error::WireError;
use crate::wire::object::Object;
use axum::http::StatusCode;
use holdfast_domain::{ChargeId, CreditUnit};
use serde::Deserialize;
use serde_json::{Value, json};

/// The longest message that is read. A longer one is refused, and the connection goes on.
pub(super) const MESSAGE_BYTES_MAX: usize = 256 * 1_024;
/// The longest message that is taken from the network. A longer one ends the connection.
pub(super) const FRAME_BYTES_MAX: usize = 1_024 * 1_024;
/// What may wait to be sent.
pub(super) const WAITING_BYTES_MAX: usize = 4 * 1_024 * 1_024;

// A message that is too long to be read must still be short enough to be answered.
const _: () = assert!(MESSAGE_BYTES_MAX < FRAME_BYTES_MAX);

/// What a caller asks.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Incoming {
    Prompt { text: String, model: Option<String>, nft_id: Option<String> },
}

/// A prompt.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Prompt {
    pub(super) text: String,
    pub(super) model: Option<String>,
}

/// Why a message is not done.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    #[error("a prompt is being answered; send the next one after its `turn_end`")]
    Answering,
    #[error(transparent)]
    Api(#[from] ApiError),
}

impl Refused {
    /// The stable code of this refusal.
    pub(super) const fn code(&self) -> &'static str {
        match self {
            Self::Answering => "ALREADY_ANSWERING",
            Self::Api(error) => error.code(),
        }
    }
}

impl Prompt {
    /// Understands a message.
    pub(super) fn read(text: &str) -> Result<Self, ApiError> {
        if text.len() > MESSAGE_BYTES_MAX {
            return Err(WireError::TooLong { max: MESSAGE_BYTES_MAX }.into());
        }
        let malformed = |error: serde_json::Error| WireError::Malformed(error.to_string());
        let Object(Incoming::Prompt { text, model, nft_id }) = serde_json::from_str(text).map_err(malformed)?;
        if nft_id.is_some() {
            let why = "`nft_id` names an agent, and this server has none";
            return Err(WireError::Malformed(why.to_owned()).into());
        }
        if text.is_empty() {
            return Err(WireError::Malformed("`text` is empty".to_owned()).into());
        }
        Ok(Self { text, model })
    }
}

pub(super) fn text_delta(delta: &str) -> Value {
    json!({ "type": "text_delta", "delta": delta })
}

pub(super) fn turn_end(charge: ChargeId, money: Option<Money>) -> Value {
    with_type("turn_end", told(charge, None, money))
}

pub(super) fn credit_warning(balance: CreditUnit, threshold: CreditUnit) -> Value {
    json!({ "type": "credit_warning", "balance_cu": Shown(balance), "threshold_cu": Shown(threshold) })
}

pub(super) fn error(code: &str, message: &str) -> Value {
    json!({ "type": "error", "code": code, "message": message })
}

/// A refusal as it is told: `billing_blocked` with the figures if it is about money, `error` if not.
pub(super) fn refusal(refused: &Refused) -> Value {
    let (code, message) = (refused.code(), refused.to_string());
    match refused {
        Refused::Api(error) => api_refusal(error),
        Refused::Answering => error(code, &message),
    }
}

/// The same of a refusal that others may be told too.
pub(super) fn api_refusal(refused: &ApiError) -> Value {
    let (code, message) = (refused.code(), refused.to_string());
    if refused.status() != StatusCode::PAYMENT_REQUIRED {
        return error(code, &message);
    }
    let details = refused.render(Shape::Holdfast, "").body["error"]["details"].take();
    let mut event = with_type("billing_blocked", details);
    event["reason"] = json!(code);
    event["message"] = json!(message);
    event
}

fn with_type(name: &str, mut event: Value) -> Value {
    event["type"] = json!(name);
    event
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_read_strictly() {
        let prompt = Prompt::read(r#"{"type":"prompt","text":"hello","model":"echo"}"#).unwrap();
        assert_eq!(prompt, Prompt { text: "hello".to_owned(), model: Some("echo".to_owned()) });
        for (text, code) in [
            ("", "INVALID_REQUEST"),
            ("hello", "INVALID_REQUEST"),
            ("[]", "INVALID_REQUEST"),
            (r#"["prompt","hello"]"#, "INVALID_REQUEST"),
            (r#"{"type":"prompt"}"#, "INVALID_REQUEST"),
            (r#"{"type":"prompt","text":""}"#, "INVALID_REQUEST"),
            (r#"{"type":"prompt","text":"a","text":"b"}"#, "INVALID_REQUEST"),
            (r#"{"type":"prompt","text":"a","more":1}"#, "INVALID_REQUEST"),
            (r#"{"type":"prompt","text":"a","nft_id":"1"}"#, "INVALID_REQUEST"),
            (r#"{"type":"other","text":"a"}"#, "INVALID_REQUEST"),
            (&"x".repeat(MESSAGE_BYTES_MAX + 1), "REQUEST_TOO_LARGE"),
        ] {
            assert_eq!(Prompt::read(text).unwrap_err().code(), code, "{text:.60}");
        }
    }
}
