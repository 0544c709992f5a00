//! What operators do over HTTP: mint credits, and make, list and revoke API keys.

use super::AppState;
use super::auth::Admin;
use super::billing::{Said, change};
use super::error::ApiError;
use super::read::{IdempotencyKey, InPath, InQuery, Text};
use super::settings::BODY_BYTES_MAX;
use crate::wire::error::WireError;
use crate::wire::keys::KeysBody;
use crate::wire::object::with_fields;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

type Answer = Result<Response, ApiError>;

/// Credits an account, once for each key.
pub(crate) async fn mint(
    State(state): State<AppState>,
    caller: Admin,
    key: IdempotencyKey,
    Text(text): Text<BODY_BYTES_MAX>,
) -> Answer {
    change(&state, caller.subject, Said { op: "mint", id: None, key }, &text).await
}

/// Makes an API key, and shows it this once.
pub(crate) async fn make_key(State(state): State<AppState>, _: Admin, Text(text): Text<BODY_BYTES_MAX>) -> Answer {
    let body = with_fields(&text, &[("op", "key_new")]).map_err(|error| WireError::Malformed(error.to_string()))?;
    Ok((StatusCode::CREATED, Json(state.service.keys(body).await?)).into_response())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wanted {
    account_id: Option<String>,
    after: Option<String>,
    limit: Option<u64>,
}

/// API keys in the order in which they were made.
pub(crate) async fn list_keys(
    State(state): State<AppState>,
    _: Admin,
    InQuery(Wanted { account_id, after, limit }): InQuery<Wanted>,
) -> Answer {
    Ok(Json(state.service.keys(KeysBody::Keys { account: account_id, after, limit }).await?).into_response())
}

/// One API key.
pub(crate) async fn show_key(State(state): State<AppState>, _: Admin, InPath(id): InPath) -> Answer {
    Ok(Json(state.service.keys(KeysBody::Key { id }).await?).into_response())
}

/// Revokes an API key at once.
pub(crate) async fn revoke_key(State(state): State<AppState>, _: Admin, InPath(id): InPath) -> Answer {
    Ok(Json(state.service.keys(KeysBody::KeyRevoke { id }).await?).into_response())
}
