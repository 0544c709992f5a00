//! The outermost layer: every request gets an id and is counted, every error its shape, every answer its headers.

use super::AppState;
use super::error::{ApiError, Shape};
use super::settings::REQUEST_MAX;
use crate::identity::now;
use crate::wire::ids;
use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use holdfast_domain::Label;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

/// The address that a request came from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) IpAddr);

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// What every answer says, unless its handler has said otherwise.
const HEADERS: [(HeaderName, HeaderValue); 5] = [
    (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'")),
    (CACHE_CONTROL, HeaderValue::from_static("no-store")),
];

/// Wraps every route.
pub(crate) async fn outer(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let began = Instant::now();
    let id = fresh_id();
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let shape = Shape::of_path(request.uri().path());
    // Whether the server is alive is told to everybody at any time.
    let counted = !matches!(request.uri().path(), "/health" | "/ready");
    let peer = request.extensions().get::<Peer>().filter(|_| counted);
    let limited = peer.map_or(Ok(()), |Peer(address)| state.limits.address(*address));
    let response = match limited {
        Ok(()) => next.run(request).await,
        Err(limited) => ApiError::RateLimited(limited).into_response(),
    };
    let response = finish(response, shape, id);
    let route = route.as_ref().map_or("unmatched", MatchedPath::as_str);
    state.metrics.answered(known(&method), route, response.status(), began.elapsed());
    response
}

/// Renders an error, and adds what every answer has.
pub(super) fn finish(mut response: Response, shape: Shape, id: Label) -> Response {
    if let Some(error) = response.extensions_mut().remove::<Arc<ApiError>>() {
        let rendered = error.render(shape, id.as_str()).into_response();
        let (parts, body) = rendered.into_parts();
        *response.status_mut() = parts.status;
        response.headers_mut().extend(parts.headers);
        *response.body_mut() = body;
    }
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(id.as_str()) {
        headers.insert(REQUEST_ID, id);
    }
    for (name, value) in HEADERS {
        headers.entry(name).or_insert(value);
    }
    response
}

/// A ULID. If the system has no randomness, an id that is at least no lie.
pub(super) fn fresh_id() -> Label {
    ids::fresh("", now()).unwrap_or_else(|_| "unknown".parse().expect("a plain word"))
}

/// A method as a label: callers can invent methods, and labels must stay few.
const fn known(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::DELETE => "DELETE",
        Method::HEAD => "HEAD",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

/// Bounds how long a request may take, its body included.
pub(crate) async fn timed(request: Request, next: Next) -> Response {
    let answer = tokio::time::timeout(REQUEST_MAX, next.run(request)).await;
    answer.unwrap_or_else(|_| ApiError::TimedOut.into_response())
}
