//! The kinds of callers as extractors. A handler that takes one of them cannot be reached without it.
//!
//! # Invariants
//! - A request has at most one credential, and a credential of one kind is worth nothing where another is wanted.

use super::AppState;
use super::error::ApiError;
use super::limits::Credential;
use super::outer::Peer;
use crate::identity::api_key::Kind;
use crate::identity::{AuthError, KeyRecord, Role, Scope, Verified};
use axum::extract::FromRequestParts;
use axum::http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue};
use holdfast_domain::Label;
use std::sync::Arc;

const BEARER: &str = "Bearer ";
const TOKENS: &str = "a signed service token";
const KEYS: &str = "an API key";
const ADMIN: &str = "an admin token or an admin key";
/// A subprotocol of this beginning is an API key: a browser can send no header with a WebSocket.
const KEY_PROTOCOL: &str = "holdfast.key.";

/// Another service of ours, with a token of the role `service`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Service {
    pub(crate) subject: Label,
}

/// An operator, with a token of the role `admin` or an admin key.
#[derive(Debug, Clone)]
pub(crate) struct Admin {
    /// The token's subject, or the key's id.
    pub(crate) subject: Label,
    /// The key, if it is one: what is begun with it ends when it is revoked.
    pub(crate) key: Option<Arc<KeyRecord>>,
}

/// A customer's program, with an API key. Its record can be had only by saying what for.
#[derive(Debug, Clone)]
pub(crate) struct ApiKey(Arc<KeyRecord>);

impl ApiKey {
    /// The key's record, if its scopes allow this.
    pub(crate) fn to(self, scope: Scope) -> Result<Arc<KeyRecord>, ApiError> {
        if self.0.scopes.allow(scope) { Ok(self.0) } else { Err(AuthError::Scope(scope).into()) }
    }
}

/// The API key of a conversation: in a header, or, from a browser, in a subprotocol.
#[derive(Debug, Clone)]
pub(crate) struct SocketKey {
    pub(crate) record: Arc<KeyRecord>,
    pub(crate) from_protocol: bool,
}

/// A credential as it came, of a kind that is known by its looks.
enum Sent<'a> {
    Token(&'a str),
    ApiKey(&'a str),
    AdminKey(&'a str),
}

/// The one credential of a request.
fn sent(headers: &HeaderMap) -> Result<Sent<'_>, AuthError> {
    let mut found =
        headers.get_all(AUTHORIZATION).iter().map(bearer).chain(headers.get_all("x-api-key").iter().map(key));
    let first = found.next().ok_or(AuthError::Missing)?;
    if found.next().is_some() {
        return Err(AuthError::Several);
    }
    first
}

fn bearer(value: &HeaderValue) -> Result<Sent<'_>, AuthError> {
    let text = value.to_str().ok().and_then(|text| text.strip_prefix(BEARER)).ok_or(AuthError::Malformed)?;
    if text.is_empty() || text.bytes().any(|byte| matches!(byte, b' ' | b'\t' | b',')) {
        return Err(AuthError::Malformed);
    }
    Ok(match Kind::of(text) {
        Some(Kind::Live) => Sent::ApiKey(text),
        Some(Kind::Admin) => Sent::AdminKey(text),
        None => Sent::Token(text),
    })
}

fn key(value: &HeaderValue) -> Result<Sent<'_>, AuthError> {
    let text = value.to_str().map_err(|_| AuthError::Malformed)?;
    Ok(if Kind::of(text) == Some(Kind::Admin) { Sent::AdminKey(text) } else { Sent::ApiKey(text) })
}

async fn token(state: &AppState, headers: &HeaderMap) -> Result<Verified, AuthError> {
    match sent(headers)? {
        Sent::Token(text) => state.verifier.verify(text).await,
        Sent::ApiKey(_) | Sent::AdminKey(_) => Err(AuthError::WrongKind(TOKENS)),
    }
}

async fn api_key(state: &AppState, headers: &HeaderMap) -> Result<Arc<KeyRecord>, AuthError> {
    match sent(headers)? {
        Sent::ApiKey(text) => state.identity.verify_key(text).await,
        Sent::Token(_) | Sent::AdminKey(_) => Err(AuthError::WrongKind(KEYS)),
    }
}

async fn socket_key(state: &AppState, headers: &HeaderMap) -> Result<SocketKey, AuthError> {
    let offered = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
    let offered = offered.flat_map(|value| value.split(','));
    let mut keys = offered.filter_map(|protocol| protocol.trim().strip_prefix(KEY_PROTOCOL));
    let Some(text) = keys.next() else {
        return Ok(SocketKey { record: api_key(state, headers).await?, from_protocol: false });
    };
    if keys.next().is_some() || headers.contains_key(AUTHORIZATION) || headers.contains_key("x-api-key") {
        return Err(AuthError::Several);
    }
    if Kind::of(text) == Some(Kind::Admin) {
        return Err(AuthError::WrongKind(KEYS));
    }
    Ok(SocketKey { record: state.identity.verify_key(text).await?, from_protocol: true })
}

/// The operator whose token or key was sent in a form.
pub(super) async fn admin_of(text: &str, parts: &Parts, state: &AppState) -> Result<Admin, ApiError> {
    match Kind::of(text) {
        Some(Kind::Admin) => with_admin_key(text, parts, state).await,
        Some(Kind::Live) => Err(refuse(state, parts, AuthError::WrongKind(ADMIN))),
        None => {
            let verified = state.verifier.verify(text).await.map_err(|error| refuse(state, parts, error))?;
            only(verified, Role::Admin, parts, state).map(|subject| Admin { subject, key: None })
        }
    }
}

async fn with_admin_key(text: &str, parts: &Parts, state: &AppState) -> Result<Admin, ApiError> {
    let key = state.identity.verify_key(text).await.map_err(|error| refuse(state, parts, error))?;
    if !key.scopes.allow(Scope::Admin) {
        return Err(refuse(state, parts, AuthError::Scope(Scope::Admin)));
    }
    state.limits.credential(Credential::ApiKey(key.id)).map_err(ApiError::RateLimited)?;
    Ok(Admin { subject: key.id, key: Some(key) })
}

/// What is answered to a bad credential: too many of them from one address are not even refused any more.
fn refuse(state: &AppState, parts: &Parts, error: AuthError) -> ApiError {
    state.metrics.refused(error.code());
    if error.is_ours() {
        return error.into();
    }
    let address = parts.extensions.get::<Peer>().map(|Peer(address)| *address);
    match address.map(|address| state.limits.failure(address)) {
        Some(Err(limited)) => ApiError::RateLimited(limited),
        Some(Ok(())) | None => error.into(),
    }
}

/// The subject of a token of exactly this role.
fn only(verified: Verified, role: Role, parts: &Parts, state: &AppState) -> Result<Label, ApiError> {
    if verified.role != role {
        let needed = match role {
            Role::Service => "`service`",
            Role::Admin => "`admin`",
        };
        return Err(refuse(state, parts, AuthError::Role(needed)));
    }
    state.limits.credential(Credential::Subject(verified.subject, role)).map_err(ApiError::RateLimited)?;
    Ok(verified.subject)
}

impl FromRequestParts<AppState> for Service {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let verified = token(state, &parts.headers).await.map_err(|error| refuse(state, parts, error))?;
        Ok(Self { subject: only(verified, Role::Service, parts, state)? })
    }
}

impl FromRequestParts<AppState> for Admin {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        match sent(&parts.headers).map_err(|error| refuse(state, parts, error))? {
            Sent::Token(text) | Sent::AdminKey(text) => admin_of(text, parts, state).await,
            Sent::ApiKey(_) => Err(refuse(state, parts, AuthError::WrongKind(ADMIN))),
        }
    }
}

impl FromRequestParts<AppState> for ApiKey {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let record = api_key(state, &parts.headers).await.map_err(|error| refuse(state, parts, error))?;
        state.limits.credential(Credential::ApiKey(record.id)).map_err(ApiError::RateLimited)?;
        Ok(Self(record))
    }
}

impl FromRequestParts<AppState> for SocketKey {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let found = socket_key(state, &parts.headers).await.map_err(|error| refuse(state, parts, error))?;
        state.limits.credential(Credential::ApiKey(found.record.id)).map_err(ApiError::RateLimited)?;
        Ok(found)
    }
}
