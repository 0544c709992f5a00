//! What operators do over HTTP: mint credits, make, list and revoke API keys, and set limits.

use super::AppState;
use super::auth::Admin;
use super::billing::{Said, change};
use super::error::ApiError;
use super::read::{IdempotencyKey, InPath, InQuery, Text};
use super::settings::BODY_BYTES_MAX;
use crate::wire::error::WireError;
use crate::wire::keys::KeysBody;
use crate::wire::limits::{LevelBody, LimitsBody};
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

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Page {
    after: Option<String>,
    limit: Option<u64>,
}

/// Every limit, with what is used of it.
pub(crate) async fn list_limits(
    State(state): State<AppState>,
    _: Admin,
    InQuery(Page { after, limit }): InQuery<Page>,
) -> Answer {
    Ok(Json(state.service.limits(LimitsBody::Limits { after, limit }).await?).into_response())
}

macro_rules! limits_of {
    ($($level:ident, $word:literal, $show:ident, $set:ident;)*) => {$(
        /// A limit, with what is used of it.
        pub(crate) async fn $show(State(state): State<AppState>, _: Admin, InPath(id): InPath) -> Answer {
            Ok(Json(state.service.limits(LimitsBody::Limit { of: LevelBody::$level, id }).await?).into_response())
        }

        /// Changes a limit, for every reservation from now on.
        pub(crate) async fn $set(
            State(state): State<AppState>,
            _: Admin,
            InPath(id): InPath,
            Text(text): Text<BODY_BYTES_MAX>,
        ) -> Answer {
            let said = [("op", "limit_set"), ("of", $word), ("id", id.as_str())];
            let body = with_fields(&text, &said).map_err(|error| WireError::Malformed(error.to_string()))?;
            Ok(Json(state.service.limits(body).await?).into_response())
        }
    )*};
}

limits_of! {
    Account, "account", account_limit, limit_account;
    Team, "team", team_limit, limit_team;
    Organisation, "organisation", organisation_limit, limit_organisation;
}
