//! The other end of the page's forms: read whole, and only if a page of ours has sent them.

use super::sign_in::{FORM_BYTES_MAX, from_our_page};
use crate::http::error::ApiError;
use crate::http::read::read;
use crate::wire::error::{Problem, WireError};
use axum::Form;
use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

/// What an operator does about one thing.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Act {
    pub(super) id: String,
    pub(super) note: Option<String>,
}

/// Reads a form, if one of our own pages has sent it.
pub(super) async fn act(request: Request) -> Result<Act, ApiError> {
    let (parts, body) = request.into_parts();
    from_our_page(&parts.headers)?;
    let bytes = read(body, FORM_BYTES_MAX).await?;
    let whole = Request::from_parts(parts, Body::from(bytes));
    let Form(act) = Form::<Act>::from_request(whole, &())
        .await
        .map_err(|rejection| Problem::from(WireError::Malformed(rejection.body_text())))?;
    Ok(act)
}

/// Sends the browser back to where the form was.
pub(super) fn back(to: &'static str) -> Response {
    (StatusCode::SEE_OTHER, [(LOCATION, to)]).into_response()
}
