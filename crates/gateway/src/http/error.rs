//! Every refusal over HTTP: one type, one mapping to a status, and the shapes in which callers expect to read it.
//!
//! A handler answers with an [`ApiError`]; the outermost layer renders it, because only it knows the request's id.

use super::limits::Limited;
use crate::books::NoAnswer;
use crate::identity::{AuthError, IdentityError};
use crate::inference::NoQuote;
use crate::queue::{PurseFailed, QueueError};
use crate::wallet::WalletFailed;
use crate::wire::Shown;
use crate::wire::error::{DeliveryError, ErrorBody, Problem, WireError};
use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, HeaderName, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use holdfast_adapters::providers::{Dialect, ProviderError};
use holdfast_domain::{ChargeId, CreditUnit, queue};
use holdfast_engine::Refusal;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Why a request over HTTP is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    #[error(transparent)]
    Problem(#[from] Problem),
    #[error(transparent)]
    Auth(#[from] AuthError),
    #[error("there is nothing at this path; /docs says what there is")]
    NoRoute,
    #[error("this path does not take that method; the header `allow` says which it takes")]
    Method,
    #[error("send the body as `content-type: application/json`")]
    MediaType,
    #[error("the body did not arrive whole")]
    BrokenBody,
    #[error("too many requests: try again in {} s", .0.retry_after_s)]
    RateLimited(Limited),
    #[error("the request took too long; whether it was done is not known: ask again with the same key")]
    TimedOut,
    #[error("the server is still starting; try again in a moment")]
    Starting,
    #[error("{0}")]
    Provider(ProviderError, Dialect),
    #[error(
        "the account has {available} to spend and the request can cost {required}; {}",
        what_fits(*affordable)
    )]
    TooDear { available: CreditUnit, required: CreditUnit, affordable: Option<u64> },
    #[error(transparent)]
    NoQuote(#[from] NoQuote),
    #[error(
        "this idempotency key was used for a request that has been charged as {charge}, and its answer is no longer kept; \
         use another key to ask again"
    )]
    AlreadyAnswered { charge: ChargeId },
    #[error("an account may make {per_day} requests a day with its own provider key; try again tomorrow (UTC)")]
    OwnKeyLimit { per_day: u32 },
}

fn what_fits(affordable: Option<u64>) -> String {
    match affordable {
        Some(tokens) if tokens > 0 => {
            format!(
                "it covers an answer of {tokens} tokens: ask for that with `max_tokens`, or send `x-holdfast-fit: true`"
            )
        }
        Some(_) | None => "credit the account, or send less input".to_owned(),
    }
}

/// How an error is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// `{"error":{"code","message","details","request_id"}}`
    Holdfast,
    /// `{"error":{"message","type","code","param"}}`
    OpenAi,
    /// `{"type":"error","error":{"type","message"}}`
    Anthropic,
}

impl Shape {
    /// The shape that callers of a path expect.
    pub(crate) fn of_path(path: &str) -> Self {
        if path == "/v1/messages" || path.starts_with("/v1/messages/") {
            Self::Anthropic
        } else if path == "/v1" || path.starts_with("/v1/") {
            Self::OpenAi
        } else {
            Self::Holdfast
        }
    }
}

/// An error as it is sent.
#[derive(Debug)]
pub(crate) struct Rendered {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

impl ApiError {
    /// The stable code of this error.
    pub(crate) const fn code(&self) -> &'static str {
        match self {
            Self::Problem(problem) => problem.code(),
            Self::Auth(error) => error.code(),
            Self::NoRoute => "NOT_FOUND",
            Self::Method => "METHOD_NOT_ALLOWED",
            Self::MediaType => "UNSUPPORTED_MEDIA_TYPE",
            Self::BrokenBody => "INVALID_BODY",
            Self::RateLimited(_) => "RATE_LIMITED",
            Self::TimedOut => "SERVICE_TIMEOUT",
            Self::Starting => "SERVICE_STARTING",
            Self::Provider(error, _) => error.code(),
            Self::TooDear { .. } => "INSUFFICIENT_BALANCE",
            Self::NoQuote(NoQuote::Hidden(_)) => "INVALID_REQUEST",
            Self::NoQuote(NoQuote::OutOfRange) => "INVALID_AMOUNT",
            Self::AlreadyAnswered { .. } => "ALREADY_ANSWERED",
            Self::OwnKeyLimit { .. } => "RATE_LIMITED",
        }
    }

    /// The status that says the same to a program that reads no bodies.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Provider(error, _) => StatusCode::from_u16(error.status()).unwrap_or(StatusCode::BAD_GATEWAY),
            Self::TooDear { .. } => StatusCode::PAYMENT_REQUIRED,
            Self::NoQuote(_) => StatusCode::BAD_REQUEST,
            Self::AlreadyAnswered { .. } => StatusCode::CONFLICT,
            Self::OwnKeyLimit { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::Problem(problem) => status_of(problem),
            Self::Auth(error) if error.is_about_access() => StatusCode::FORBIDDEN,
            Self::Auth(error) if error.is_ours() => StatusCode::SERVICE_UNAVAILABLE,
            Self::Auth(_) => StatusCode::UNAUTHORIZED,
            Self::NoRoute => StatusCode::NOT_FOUND,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::MediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::BrokenBody => StatusCode::BAD_REQUEST,
            Self::RateLimited(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::TimedOut | Self::Starting => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// The figures that a program needs besides the code.
    fn details(&self) -> Map<String, Value> {
        let body = match self {
            Self::Problem(problem) => serde_json::to_value(ErrorBody::from(problem)).unwrap_or_default(),
            Self::RateLimited(limited) => json!({ "retry_after_s": limited.retry_after_s }),
            Self::TooDear { available, required, affordable } => json!({
                "action": "pay",
                "available_cu": Shown(available),
                "required_cu": Shown(required),
                "deficit_cu": Shown(available.shortfall(*required)),
                "max_affordable_output_tokens": affordable,
            }),
            Self::AlreadyAnswered { charge } => json!({ "billing_entry_id": Shown(charge) }),
            Self::Auth(_)
            | Self::Provider(..)
            | Self::NoQuote(_)
            | Self::OwnKeyLimit { .. }
            | Self::NoRoute
            | Self::Method
            | Self::MediaType
            | Self::BrokenBody
            | Self::TimedOut
            | Self::Starting => json!({}),
        };
        let Value::Object(mut details) = body else { return Map::new() };
        details.retain(|name, _| name != "code" && name != "message");
        details
    }

    /// The error as callers of a shape expect it.
    pub(crate) fn render(&self, shape: Shape, request_id: &str) -> Rendered {
        let body = match shape {
            // A provider's own words are passed on to those who speak its dialect.
            Shape::OpenAi | Shape::Anthropic if matches!(self, Self::Provider(..)) => self.provider_body(),
            Shape::Holdfast => self.body(request_id),
            Shape::OpenAi => self.open_ai(request_id),
            Shape::Anthropic => self.anthropic(request_id),
        };
        Rendered { status: self.status(), headers: self.headers(), body }
    }

    fn body(&self, request_id: &str) -> Value {
        json!({ "error": {
            "code": self.code(), "message": self.to_string(), "details": self.details(), "request_id": request_id,
        }})
    }

    fn provider_body(&self) -> Value {
        let Self::Provider(error, dialect) = self else { return Value::Null };
        let text = error.body(*dialect);
        serde_json::from_slice(&text).unwrap_or_else(|_| json!({ "error": { "message": error.to_string() } }))
    }

    fn open_ai(&self, request_id: &str) -> Value {
        let status = self.status();
        let code = match self {
            Self::Auth(AuthError::UnknownKey) => "invalid_api_key".to_owned(),
            Self::RateLimited(_) => "rate_limit_exceeded".to_owned(),
            Self::Problem(Problem::Wire(WireError::Model(_))) => "model_not_found".to_owned(),
            Self::Problem(_)
            | Self::Auth(_)
            | Self::NoRoute
            | Self::Method
            | Self::MediaType
            | Self::BrokenBody
            | Self::TimedOut
            | Self::Starting
            | Self::Provider(..)
            | Self::TooDear { .. }
            | Self::NoQuote(_)
            | Self::AlreadyAnswered { .. }
            | Self::OwnKeyLimit { .. } => self.code().to_lowercase(),
        };
        let kind = match status {
            StatusCode::PAYMENT_REQUIRED => "insufficient_quota",
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "server_error",
            _ => "invalid_request_error",
        };
        let mut error = self.figures();
        error.extend([
            ("message".to_owned(), json!(self.to_string())),
            ("type".to_owned(), json!(kind)),
            ("code".to_owned(), json!(code)),
            ("param".to_owned(), Value::Null),
            ("request_id".to_owned(), json!(request_id)),
        ]);
        json!({ "error": error })
    }

    fn anthropic(&self, request_id: &str) -> Value {
        let kind = match self.status() {
            StatusCode::PAYMENT_REQUIRED => "billing_error",
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            _ => "invalid_request_error",
        };
        let mut error = self.figures();
        error.extend([
            ("type".to_owned(), json!(kind)),
            ("code".to_owned(), json!(self.code().to_lowercase())),
            ("message".to_owned(), json!(self.to_string())),
        ]);
        json!({ "type": "error", "error": error, "request_id": request_id })
    }

    /// What is missing, under the names that callers of the models' APIs know.
    fn figures(&self) -> Map<String, Value> {
        let details = self.details();
        let known = [
            ("required_cu", "required"),
            ("available_cu", "available"),
            ("deficit_cu", "deficit"),
            ("max_affordable_output_tokens", "max_affordable_output_tokens"),
        ];
        known.iter().filter_map(|(ours, theirs)| Some(((*theirs).to_owned(), details.get(*ours)?.clone()))).collect()
    }

    fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        match self.status() {
            // The stock clients try again after 409 as well; it would be the same answer.
            StatusCode::PAYMENT_REQUIRED | StatusCode::CONFLICT => {
                headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
            }
            StatusCode::UNAUTHORIZED => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        // Unlike any other conflict it is over in a moment.
        if let Self::Problem(Problem::Refused(Refusal::Overtaken)) = self {
            headers.insert(SHOULD_RETRY, HeaderValue::from_static("true"));
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if let Self::Provider(error, _) = self
            && let Some(wait) = error.retry_after()
        {
            headers.insert(RETRY_AFTER, HeaderValue::from(wait.as_secs().max(1)));
        }
        if let Self::RateLimited(limited) = self {
            limited.write(&mut headers);
        }
        headers
    }
}

/// The one mapping from what the engine and the wire refuse to a status.
const fn status_of(problem: &Problem) -> StatusCode {
    match problem {
        Problem::Wire(WireError::TooLong { .. }) => StatusCode::PAYLOAD_TOO_LARGE,
        Problem::Wire(_) => StatusCode::BAD_REQUEST,
        Problem::Refused(refusal) => status_of_refusal(refusal),
        Problem::Books(error) => status_of_no_answer(error),
        Problem::Queue(error) => status_of_queue(error),
        Problem::Delivery(DeliveryError::Unknown(_)) | Problem::Identity(IdentityError::UnknownKey(_)) => {
            StatusCode::NOT_FOUND
        }
        Problem::Identity(IdentityError::BadKey(_)) => StatusCode::BAD_REQUEST,
        Problem::NotAuthorized(_) => StatusCode::FORBIDDEN,
        Problem::Delivery(DeliveryError::Off | DeliveryError::InDelivery(_) | DeliveryError::NotDead(_)) => {
            StatusCode::CONFLICT
        }
        Problem::Delivery(DeliveryError::Store(_))
        | Problem::NoRandomness(_)
        | Problem::PeerAway
        | Problem::Metadata(_)
        | Problem::Identity(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

const fn status_of_queue(error: &QueueError) -> StatusCode {
    match error {
        QueueError::Unknown(_) => StatusCode::NOT_FOUND,
        QueueError::Refused { refusal: queue::Refusal::InvalidState { .. }, .. }
        | QueueError::Off
        | QueueError::Linkage { .. }
        | QueueError::Reused => StatusCode::CONFLICT,
        QueueError::Refused {
            refusal: queue::Refusal::InvalidSplit { .. } | queue::Refusal::InvalidCause(_), ..
        }
        | QueueError::OtherPayee(_) => StatusCode::BAD_REQUEST,
        QueueError::Purse(PurseFailed::NotAuthorized(_)) => StatusCode::FORBIDDEN,
        QueueError::Purse(PurseFailed::Away(_) | PurseFailed::Wallet(_)) | QueueError::Store(_) => {
            StatusCode::SERVICE_UNAVAILABLE
        }
    }
}

const fn status_of_no_answer(error: &NoAnswer) -> StatusCode {
    match error {
        NoAnswer::Refused(refusal) => status_of_refusal(refusal),
        NoAnswer::NoSuchEntry { .. } | NoAnswer::NoHistory(_) => StatusCode::NOT_FOUND,
        NoAnswer::Behind { .. } | NoAnswer::Failed(_) | NoAnswer::Unreadable(_) | NoAnswer::Journal(_) => {
            StatusCode::SERVICE_UNAVAILABLE
        }
    }
}

const fn status_of_refusal(refusal: &Refusal) -> StatusCode {
    match refusal {
        Refusal::UnknownAccount | Refusal::UnknownCharge | Refusal::UnknownEscrow => StatusCode::NOT_FOUND,
        Refusal::InsufficientBalance { .. } | Refusal::BudgetExceeded { .. } => StatusCode::PAYMENT_REQUIRED,
        Refusal::TooManyOpenHolds { .. } => StatusCode::TOO_MANY_REQUESTS,
        Refusal::KeyReused
        | Refusal::InvalidState(_)
        | Refusal::ExceedsHold { .. }
        | Refusal::EscrowAlreadyProcessed(_)
        | Refusal::Overtaken
        | Refusal::NoFrozenRates => StatusCode::CONFLICT,
        Refusal::KeyRequired | Refusal::InvalidSplit { .. } | Refusal::InvalidAmount(_) | Refusal::InvalidTtl => {
            StatusCode::BAD_REQUEST
        }
        Refusal::BatchTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Refusal::Overloaded
        | Refusal::JournalFailed
        | Refusal::Stopping
        | Refusal::DatabaseUnavailable
        | Refusal::Unreadable(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        Self::Problem(refusal.into())
    }
}

impl From<WalletFailed> for ApiError {
    fn from(failed: WalletFailed) -> Self {
        Self::Problem(failed.into())
    }
}

impl From<WireError> for ApiError {
    fn from(error: WireError) -> Self {
        Self::Problem(error.into())
    }
}

/// The error on its way to the outermost layer.
impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = self.status();
        response.extensions_mut().insert(Arc::new(self));
        response
    }
}

impl IntoResponse for Rendered {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.body.to_string()));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poor() -> ApiError {
        let (available, required) = ("1.5".parse().unwrap(), "4".parse().unwrap());
        Refusal::InsufficientBalance { available, required }.into()
    }

    #[test]
    fn our_own_shape_has_code_message_details_and_request() {
        let Rendered { status, headers, body } = poor().render(Shape::Holdfast, "R1");
        assert_eq!(status, StatusCode::PAYMENT_REQUIRED);
        assert_eq!(headers["x-should-retry"], "false");
        assert_eq!(body["error"]["code"], "INSUFFICIENT_BALANCE");
        assert_eq!(body["error"]["request_id"], "R1");
        let details = json!({ "action": "pay", "available_cu": "1.5", "required_cu": "4", "deficit_cu": "2.5" });
        assert_eq!(body["error"]["details"], details);
        assert_eq!(body["error"].as_object().unwrap().len(), 4);
    }

    #[test]
    fn open_ai_callers_read_insufficient_quota() {
        let Rendered { status, headers, body } = poor().render(Shape::OpenAi, "R1");
        assert_eq!((status.as_u16(), &headers["x-should-retry"]), (402, &HeaderValue::from_static("false")));
        let error = &body["error"];
        assert_eq!((&error["type"], &error["code"]), (&json!("insufficient_quota"), &json!("insufficient_balance")));
        assert_eq!((&error["required"], &error["available"]), (&json!("4"), &json!("1.5")));
        assert!(error["message"].as_str().is_some_and(|text| !text.is_empty()) && error["param"].is_null());
    }

    #[test]
    fn anthropic_callers_read_billing_error() {
        let Rendered { status, headers, body } = poor().render(Shape::Anthropic, "R1");
        assert_eq!((status.as_u16(), &headers["x-should-retry"]), (402, &HeaderValue::from_static("false")));
        assert_eq!((&body["type"], &body["error"]["type"]), (&json!("error"), &json!("billing_error")));
        assert!(body["error"]["message"].as_str().is_some_and(|text| !text.is_empty()));
        assert_eq!(body["request_id"], "R1");
    }

    #[test]
    fn every_kind_of_refusal_has_its_type_in_every_shape() {
        let limited = Limited { limit: 10, retry_after_s: 3 };
        let check = |error: ApiError, status: u16, code: &str, open_ai: &str, anthropic: &str| {
            let render = |shape| error.render(shape, "R");
            assert_eq!(render(Shape::Holdfast).status.as_u16(), status, "{error}");
            assert_eq!(render(Shape::Holdfast).body["error"]["code"], code);
            assert_eq!(render(Shape::OpenAi).body["error"]["type"], open_ai, "{error}");
            assert_eq!(render(Shape::Anthropic).body["error"]["type"], anthropic, "{error}");
        };
        let invalid = "invalid_request_error";
        check(AuthError::Missing.into(), 401, "AUTH_MISSING", "authentication_error", "authentication_error");
        check(AuthError::Stale.into(), 503, "SERVICE_KEYS_STALE", "server_error", "overloaded_error");
        check(AuthError::Role("admin").into(), 403, "ACCESS_ROLE", "permission_error", "permission_error");
        check(ApiError::NoRoute, 404, "NOT_FOUND", invalid, "not_found_error");
        check(ApiError::Method, 405, "METHOD_NOT_ALLOWED", invalid, invalid);
        check(ApiError::MediaType, 415, "UNSUPPORTED_MEDIA_TYPE", invalid, invalid);
        check(WireError::TooLong { max: 1 }.into(), 413, "REQUEST_TOO_LARGE", invalid, "request_too_large");
        check(WireError::Ttl.into(), 400, "INVALID_TTL", invalid, invalid);
        check(Refusal::KeyReused.into(), 409, "ALREADY_USED_KEY", invalid, invalid);
        check(Refusal::UnknownAccount.into(), 404, "ACCOUNT_NOT_FOUND", invalid, "not_found_error");
        check(Refusal::Overtaken.into(), 409, "OPTIMISTIC_LOCK", invalid, invalid);
        let headers = ApiError::from(Refusal::Overtaken).headers();
        assert_eq!(
            (&headers["retry-after"], &headers["x-should-retry"]),
            (&"1".parse().unwrap(), &"true".parse().unwrap())
        );
        check(Refusal::Overloaded.into(), 503, "SERVICE_OVERLOADED", "server_error", "overloaded_error");
        check(ApiError::RateLimited(limited), 429, "RATE_LIMITED", "rate_limit_error", "rate_limit_error");
        let headers = ApiError::RateLimited(limited).headers();
        assert_eq!(
            (&headers["retry-after"], &headers["ratelimit-limit"]),
            (&"3".parse().unwrap(), &"10".parse().unwrap())
        );
    }

    #[test]
    fn the_path_says_the_shape() {
        for (path, shape) in [
            ("/v1/messages", Shape::Anthropic),
            ("/v1/messages/count_tokens", Shape::Anthropic),
            ("/v1/chat/completions", Shape::OpenAi),
            ("/v1/messagesx", Shape::OpenAi),
            ("/api/v1/batch", Shape::Holdfast),
            ("/", Shape::Holdfast),
        ] {
            assert_eq!(Shape::of_path(path), shape, "{path}");
        }
    }
}
