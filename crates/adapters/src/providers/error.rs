//! Why a call got no answer, or no whole one: what the caller is told, and whether another target may be tried.

use super::call::Dialect;
use bytes::Bytes;
use serde_json::json;
use std::time::Duration;

/// A call that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProviderError {
    /// The provider refused the request itself.
    #[error("the provider refused the request with status {status}; its answer says why")]
    Refused {
        /// The provider's status, 4xx.
        status: u16,
        /// The provider's answer, in the caller's dialect.
        body: Bytes,
    },
    /// The request has something that the chosen model's provider has no words for.
    #[error("the model's provider cannot take this request: {0}")]
    Untranslatable(String),
    /// The provider takes no more requests from us for now.
    #[error("the provider limits our rate; try again later")]
    RateLimited {
        /// When it may take some again.
        retry_after: Option<Duration>,
    },
    /// As many calls as are allowed are running and waiting.
    #[error("too many calls to this provider are under way; try again in a moment")]
    Overloaded,
    /// It cannot be reached, or failed so often that it is left alone for a while.
    #[error("the provider cannot be reached: {reason}; try again later")]
    Unavailable {
        /// Why.
        reason: String,
        /// When it is tried again.
        retry_after: Option<Duration>,
    },
    /// It took too long.
    #[error("the provider took too long {0}; try again later")]
    TimedOut(Stage),
    /// It failed.
    #[error("the provider failed with status {status}; try again later")]
    Failed {
        /// Its status.
        status: u16,
    },
    /// It answered with something that is no answer.
    #[error("the provider's answer cannot be read: {reason}")]
    Unreadable {
        /// What is wrong with it.
        reason: String,
    },
    /// Its stream ended before its end.
    #[error("the provider broke off in the middle of its answer: {reason}")]
    BrokeOff {
        /// What was seen.
        reason: String,
    },
    /// It does not accept the operator's key.
    #[error("the provider does not accept this server's key (status {status}); the operator must change it")]
    KeyRefused {
        /// Its status: 401, 402 or 403.
        status: u16,
    },
    /// There is no key for it.
    #[error("this server has no key for the provider; set {variable}, or bring your own key")]
    KeyMissing {
        /// The environment's variable that would have it.
        variable: String,
    },
}

/// What took too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// From the request to the first byte of the answer.
    FirstByte,
    /// From one byte to the next.
    Idle,
    /// The whole of it: the caller's deadline passed.
    Deadline,
}

impl std::fmt::Display for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::FirstByte => "to begin its answer",
            Self::Idle => "to go on with its answer",
            Self::Deadline => "for the time that was left",
        })
    }
}

/// What an outcome says about the health of the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Health {
    /// It works, even if it refused.
    Well,
    /// It does not work; if it said until when, not before.
    Ill(Option<Duration>),
    /// Nothing: it was not asked.
    Unknown,
}

impl ProviderError {
    /// The stable code of this error: API, unlike its message.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Refused { .. } => "PROVIDER_REFUSED",
            Self::Untranslatable(_) => "INVALID_FOR_PROVIDER",
            Self::RateLimited { .. } => "PROVIDER_RATE_LIMITED",
            Self::Overloaded => "SERVICE_PROVIDER_OVERLOADED",
            Self::Unavailable { .. } => "SERVICE_PROVIDER_UNAVAILABLE",
            Self::TimedOut(_) => "PROVIDER_TIMED_OUT",
            Self::Failed { .. } => "PROVIDER_FAILED",
            Self::Unreadable { .. } => "PROVIDER_UNREADABLE",
            Self::BrokeOff { .. } => "PROVIDER_BROKE_OFF",
            Self::KeyRefused { .. } => "PROVIDER_KEY_REFUSED",
            Self::KeyMissing { .. } => "PROVIDER_KEY_MISSING",
        }
    }

    /// The HTTP status for the caller.
    #[must_use]
    pub const fn status(&self) -> u16 {
        match self {
            Self::Refused { status, .. } => *status,
            Self::Untranslatable(_) => 400,
            Self::RateLimited { .. } => 429,
            Self::Overloaded | Self::Unavailable { .. } | Self::KeyMissing { .. } => 503,
            Self::TimedOut(_) => 504,
            Self::Failed { .. } | Self::Unreadable { .. } | Self::BrokeOff { .. } | Self::KeyRefused { .. } => 502,
        }
    }

    /// When the caller may try again, where that is known.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::RateLimited { retry_after } | Self::Unavailable { retry_after, .. } => *retry_after,
            Self::Overloaded => Some(Duration::from_secs(1)),
            Self::Refused { .. }
            | Self::Untranslatable(_)
            | Self::TimedOut(_)
            | Self::Failed { .. }
            | Self::Unreadable { .. }
            | Self::BrokeOff { .. }
            | Self::KeyRefused { .. }
            | Self::KeyMissing { .. } => None,
        }
    }

    /// Whether another target may do better. What the caller did wrong is wrong everywhere, and time that ran out is gone.
    #[must_use]
    pub const fn another_target_may_answer(&self) -> bool {
        !matches!(self, Self::Refused { .. } | Self::TimedOut(Stage::Deadline))
    }

    pub(crate) const fn health(&self) -> Health {
        match self {
            Self::Refused { .. } => Health::Well,
            Self::RateLimited { retry_after } => Health::Ill(*retry_after),
            Self::Unavailable { retry_after, .. } => Health::Ill(*retry_after),
            Self::TimedOut(Stage::FirstByte | Stage::Idle)
            | Self::Failed { .. }
            | Self::Unreadable { .. }
            | Self::BrokeOff { .. }
            | Self::KeyRefused { .. } => Health::Ill(None),
            Self::Untranslatable(_) | Self::Overloaded | Self::KeyMissing { .. } | Self::TimedOut(Stage::Deadline) => {
                Health::Unknown
            }
        }
    }

    /// The body for the caller, in the error shape of its dialect. A provider's own refusal is passed on as it is.
    #[must_use]
    pub fn body(&self, dialect: Dialect) -> Bytes {
        if let Self::Refused { body, .. } = self {
            return body.clone();
        }
        error_body(dialect, self.kind(dialect), self.code(), &self.to_string())
    }

    /// The event that tells a caller of a failure in the middle of a stream, in its dialect.
    #[must_use]
    pub fn event(&self, dialect: Dialect) -> Bytes {
        let body = self.body(dialect);
        let body = String::from_utf8_lossy(&body);
        match dialect {
            Dialect::ChatCompletions | Dialect::Embeddings => format!("data: {body}\n\n"),
            Dialect::Messages => format!("event: error\ndata: {body}\n\n"),
            Dialect::Responses => {
                let data = json!({"type": "error", "code": self.code(), "message": self.to_string(), "param": null});
                format!("event: error\ndata: {data}\n\n")
            }
        }
        .into()
    }

    const fn kind(&self, dialect: Dialect) -> &'static str {
        match (dialect, self.status()) {
            (_, 400) => "invalid_request_error",
            (_, 429) => "rate_limit_error",
            (Dialect::Messages, 503) => "overloaded_error",
            (Dialect::Messages, 504) => "timeout_error",
            (Dialect::Messages, _) => "api_error",
            (Dialect::ChatCompletions | Dialect::Responses | Dialect::Embeddings, _) => "server_error",
        }
    }
}

/// An error in the shape of a dialect.
pub(crate) fn error_body(dialect: Dialect, kind: &str, code: &str, message: &str) -> Bytes {
    let value = match dialect {
        Dialect::Messages => json!({"type": "error", "error": {"type": kind, "message": message}}),
        Dialect::ChatCompletions | Dialect::Responses | Dialect::Embeddings => {
            json!({"error": {"message": message, "type": kind, "param": null, "code": code}})
        }
    };
    value.to_string().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_speaks_the_callers_dialect() {
        let error = ProviderError::RateLimited { retry_after: None };
        assert_eq!(
            error.body(Dialect::ChatCompletions),
            r#"{"error":{"code":"PROVIDER_RATE_LIMITED","message":"the provider limits our rate; try again later","param":null,"type":"rate_limit_error"}}"#
        );
        assert_eq!(
            error.body(Dialect::Messages),
            r#"{"error":{"message":"the provider limits our rate; try again later","type":"rate_limit_error"},"type":"error"}"#
        );
        let event = error.event(Dialect::Responses);
        assert!(event.starts_with(b"event: error\ndata: {") && event.ends_with(b"}\n\n"), "{event:?}");
    }

    #[test]
    fn a_refusal_is_passed_on_as_it_is_and_tried_nowhere_else() {
        let refused = ProviderError::Refused { status: 422, body: Bytes::from_static(b"{\"x\":1}") };
        assert_eq!((refused.status(), refused.body(Dialect::Messages)), (422, Bytes::from_static(b"{\"x\":1}")));
        assert!(!refused.another_target_may_answer());
        assert!(ProviderError::Failed { status: 500 }.another_target_may_answer());
    }
}
