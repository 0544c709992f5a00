//! From a field's text to the domain's type, with an error that names the field.

use super::error::WireError;
use super::time::Moment;
use holdfast_domain::charge::TTL_MAX;
use holdfast_domain::{
    Account, CreditUnit, Id, IdKind, NotARequestPrice, OwnerId, Price, Reason, RequestPrice, Span, Timestamp,
};
use serde_json::Value;

/// An amount of credits: a canonical decimal string.
pub(crate) fn amount(field: &'static str, value: &Value) -> Result<CreditUnit, WireError> {
    let why = match value {
        Value::String(text) => match text.parse() {
            Ok(amount) => return Ok(amount),
            Err(error) => format!("{error}"),
        },
        Value::Number(_) => "write the amount as a string, such as \"12.5\": a JSON number can lose digits".to_owned(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => {
            "write the amount as a string of digits, such as \"12.5\"".to_owned()
        }
    };
    Err(WireError::Amount { field, why })
}

/// An amount of credits: a canonical decimal string, or a whole number of JSON, which loses no digits.
pub(crate) fn amount_or_integer(field: &'static str, value: &Value) -> Result<CreditUnit, WireError> {
    match value.as_u64() {
        Some(whole) => amount(field, &Value::String(whole.to_string())),
        None => amount(field, value),
    }
}

/// A price in dollars per million tokens: a canonical decimal string.
pub(crate) fn price(field: &'static str, value: &Value) -> Result<Price, WireError> {
    let why = match value.as_str().map(str::parse) {
        Some(Ok(price)) => return Ok(price),
        Some(Err(error)) => format!("{error}"),
        None => "write the price as a string, such as \"2.5\"".to_owned(),
    };
    Err(WireError::Price { field, why })
}

/// A price per request in dollars: a canonical decimal string.
pub(crate) fn request_price(value: &Value) -> Result<RequestPrice, WireError> {
    let price = value.as_str().map_or(Err(NotARequestPrice), str::parse);
    price.map_err(|error| WireError::Price { field: "per_request_usd", why: format!("{error}") })
}

/// An id of any kind.
pub(crate) fn id<K: IdKind>(field: &'static str, text: &str) -> Result<Id<K>, WireError> {
    text.parse().map_err(|error| WireError::Id { field, why: format!("{error}") })
}

/// An id that may be missing.
pub(crate) fn id_if_any<K: IdKind>(field: &'static str, text: Option<&str>) -> Result<Option<Id<K>>, WireError> {
    text.map(|text| id(field, text)).transpose()
}

/// Why a person did something.
pub(crate) fn reason(text: &str) -> Result<Reason, WireError> {
    text.parse().map_err(|error| WireError::Reason(format!("{error}")))
}

/// The life of a hold: whole seconds.
pub(crate) fn ttl(value: &Value) -> Result<Span, WireError> {
    let seconds = value.as_u64().and_then(|seconds| u32::try_from(seconds).ok()).filter(|seconds| *seconds > 0);
    seconds.map(Span::from_secs).filter(|span| *span <= TTL_MAX).ok_or(WireError::Ttl)
}

/// A moment.
pub(crate) fn moment(text: &str) -> Result<Timestamp, WireError> {
    text.parse().map(|Moment(at)| at).map_err(|_| WireError::Moment(text.to_owned()))
}

/// Whom a question is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whom {
    /// An owner with all balances: `alice`.
    Owner(OwnerId),
    /// One account by its full name: `user:alice:held`, `system:revenue`.
    Account(Account),
}

/// Whom a text names: full account names have a colon, owners never do.
pub(crate) fn whom(text: &str) -> Result<Whom, WireError> {
    if text.contains(':') { Ok(Whom::Account(text.parse()?)) } else { id("account", text).map(Whom::Owner) }
}
