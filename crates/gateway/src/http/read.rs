//! How requests are read: bodies, queries, paths and the idempotency key, each strictly and with our own errors.

use super::error::ApiError;
use super::settings::JSON_DEPTH_MAX;
use crate::wire::error::WireError;
use axum::body::{Body, HttpBody};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;

/// A JSON text of at most `MAX` bytes and bounded depth. No body at all is an empty object.
pub(crate) struct Text<const MAX: usize>(pub(crate) String);

impl<S: Sync, const MAX: usize> FromRequest<S> for Text<MAX> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _state: &S) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        let bytes = read(body, MAX).await?;
        if bytes.is_empty() {
            return Ok(Self("{}".to_owned()));
        }
        if !is_json(&parts.headers) {
            return Err(ApiError::MediaType);
        }
        let text = String::from_utf8(bytes)
            .map_err(|error| WireError::Malformed(format!("not UTF-8: {}", error.utf8_error())))?;
        if depth(&text) > JSON_DEPTH_MAX {
            return Err(WireError::Malformed(format!("nested deeper than {JSON_DEPTH_MAX}")).into());
        }
        Ok(Self(text))
    }
}

/// A whole body of at most `max` bytes.
pub(crate) async fn read(body: Body, max: usize) -> Result<Vec<u8>, ApiError> {
    let too_long = || ApiError::from(WireError::TooLong { max });
    // A body that says that it is too long is not read at all.
    if body.size_hint().lower() > u64::try_from(max).unwrap_or(u64::MAX) {
        return Err(too_long());
    }
    let whole = Limited::new(body, max).collect().await;
    let whole =
        whole.map_err(|error| if error.is::<LengthLimitError>() { too_long() } else { ApiError::BrokenBody })?;
    Ok(whole.to_bytes().into())
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (kind, parameter) = kind.split_once(';').unwrap_or((kind, ""));
    let parameter = parameter.trim();
    kind.trim().eq_ignore_ascii_case("application/json")
        && (parameter.is_empty() || parameter.eq_ignore_ascii_case("charset=utf-8"))
}

/// How deep arrays and objects are nested. Of a text that is no JSON, whatever: the parser refuses it.
fn depth(text: &str) -> usize {
    let (mut deepest, mut depth, mut in_string, mut escaped) = (0_usize, 0_usize, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// The one parameter of a path.
pub(crate) struct InPath(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for InPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Path(text) = Path::<String>::from_request_parts(parts, state)
            .await
            .map_err(|rejection| WireError::Malformed(rejection.body_text()))?;
        Ok(Self(text))
    }
}

/// The parameters of a query; unknown and doubled ones are refused.
pub(crate) struct InQuery<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for InQuery<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Query(query) = Query::<T>::from_request_parts(parts, state)
            .await
            .map_err(|rejection| WireError::Malformed(rejection.body_text()))?;
        Ok(Self(query))
    }
}

/// The caller's idempotency key, from `Idempotency-Key` or `X-Idempotency-Key`.
pub(crate) struct IdempotencyKey(pub(crate) Option<String>);

impl<S: Sync> FromRequestParts<S> for IdempotencyKey {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        let names = ["idempotency-key", "x-idempotency-key"];
        let mut values = names.iter().flat_map(|name| parts.headers.get_all(*name));
        let (first, second) = (values.next(), values.next());
        if second.is_some() {
            return Err(WireError::Malformed("more than one idempotency key was sent".to_owned()).into());
        }
        let why = || "the idempotency key must be 1 to 64 characters of A-Z a-z 0-9 _ -".to_owned();
        let text = first.map(|value| value.to_str().map(str::to_owned));
        let text = text.transpose().map_err(|_| WireError::Id { field: "idempotency-key", why: why() })?;
        Ok(Self(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_counts_what_is_open_and_nothing_in_strings() {
        for (text, expected) in
            [("", 0), ("{}", 1), (r#"{"a":[{}]}"#, 3), (r#"{"a":"[[[\"[["}"#, 1), ("[[],[]]", 2), ("]]]", 0)]
        {
            assert_eq!(depth(text), expected, "{text}");
        }
    }

    #[test]
    fn only_json_in_utf_8_is_json() {
        let check = |text: &str| is_json(&[(CONTENT_TYPE, text.parse().unwrap())].into_iter().collect());
        assert!(check("application/json") && check("Application/JSON; charset=UTF-8"));
        for other in ["text/plain", "application/json; charset=latin1", "application/jsonx", "application/xml", ""] {
            assert!(!check(other), "{other}");
        }
    }
}
