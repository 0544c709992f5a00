//! Answers as JSON that is written in one go: most of them fit into the memory that is taken for them at first.

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// More than an item and its escrow take, without what callers say about them.
const BYTES_USUAL: usize = 1_024;

/// An answer that says this.
pub(super) fn json(status: StatusCode, body: &impl Serialize) -> Response {
    let mut text = Vec::with_capacity(BYTES_USUAL);
    match serde_json::to_writer(&mut text, body) {
        Ok(()) => {
            let mut response = Response::new(Body::from(text));
            *response.status_mut() = status;
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            response
        }
        // Only what is no JSON at all, such as a map whose keys are no texts.
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
