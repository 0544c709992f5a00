//! Who is logged in: in memory, by the hash of a random cookie, for a working day.

use crate::http::AppState;
use crate::http::auth::Admin;
use crate::http::limits::Credential;
use crate::identity::{KeyRecord, Role};
use crate::wire::ids;
use axum::extract::FromRequestParts;
use axum::http::header::{AUTHORIZATION, COOKIE, LOCATION};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use holdfast_domain::Label;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The cookie's name.
pub(super) const COOKIE_NAME: &str = "holdfast_console";
/// How long a session lives.
pub(super) const SESSION_MAX: Duration = Duration::from_secs(8 * 60 * 60);
/// The most sessions at once; the one that ends first makes room.
const SESSIONS_MAX: usize = 256;

type Name = [u8; 32];

/// Everybody who is logged in.
pub(super) struct Sessions {
    /// By the hash of the cookie: what is in memory opens nothing.
    open: Mutex<HashMap<Name, Session>>,
}

/// One login.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Session {
    pub(super) subject: Label,
    /// The admin key that it was begun with, if it was one.
    pub(super) key: Option<Arc<KeyRecord>>,
    pub(super) ends_at: Instant,
}

fn name_of(cookie: &str) -> Name {
    *blake3::hash(cookie.as_bytes()).as_bytes()
}

impl Sessions {
    pub(super) fn new() -> Self {
        Self { open: Mutex::default() }
    }

    fn open(&self) -> MutexGuard<'_, HashMap<Name, Session>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a session: the cookie's value.
    pub(super) fn begin(&self, admin: Admin, now: Instant) -> io::Result<String> {
        let cookie = URL_SAFE_NO_PAD.encode(ids::random::<32>()?);
        let mut open = self.open();
        open.retain(|_, session| now < session.ends_at);
        if open.len() >= SESSIONS_MAX
            && let Some(first) = open.iter().min_by_key(|(_, session)| session.ends_at).map(|(name, _)| *name)
        {
            open.remove(&first);
        }
        let Admin { subject, key } = admin;
        open.insert(name_of(&cookie), Session { subject, key, ends_at: now + SESSION_MAX });
        Ok(cookie)
    }

    /// Whose session a cookie is, if it has not ended.
    pub(super) fn find(&self, cookie: &str, now: Instant) -> Option<Session> {
        self.open().get(&name_of(cookie)).cloned().filter(|session| now < session.ends_at)
    }

    /// Ends a session.
    pub(super) fn end(&self, cookie: &str) {
        self.open().remove(&name_of(cookie));
    }
}

/// The session's cookie, if one was sent.
pub(super) fn cookie(headers: &HeaderMap) -> Option<&str> {
    let lines = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find_map(|(name, value)| (name == COOKIE_NAME).then_some(value))
}

/// An operator who is logged in, or a program that sends an admin token or key with the request.
#[derive(Debug, Clone)]
pub(crate) struct Operator {
    pub(super) subject: Label,
    key: Option<Arc<KeyRecord>>,
    /// When the session ends; a token's request ends by itself.
    ends_at: Instant,
}

impl Operator {
    /// Whether the operator may still look: the session has not ended, nor was its key revoked.
    pub(super) fn is_still_in(&self, state: &AppState, now: Instant) -> bool {
        now < self.ends_at && self.key.as_ref().is_none_or(|key| state.identity.keys.still_good(key).is_ok())
    }
}

impl FromRequestParts<AppState> for Operator {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, Response> {
        let now = Instant::now();
        if parts.headers.contains_key(AUTHORIZATION) {
            let admin = Admin::from_request_parts(parts, state).await.map_err(IntoResponse::into_response)?;
            return Ok(Self { subject: admin.subject, key: admin.key, ends_at: now + SESSION_MAX });
        }
        let found = cookie(&parts.headers).and_then(|cookie| state.console.sessions.find(cookie, now));
        let operator = found.map(|Session { subject, key, ends_at }| Self { subject, key, ends_at });
        let Some(operator) = operator.filter(|operator| operator.is_still_in(state, now)) else {
            return Err((StatusCode::SEE_OTHER, [(LOCATION, "/console/login")]).into_response());
        };
        let allowed = state.limits.credential(Credential::Subject(operator.subject, Role::Admin));
        allowed.map_err(|limited| crate::http::ApiError::RateLimited(limited).into_response())?;
        Ok(operator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admin(subject: &str) -> Admin {
        Admin { subject: subject.parse().unwrap(), key: None }
    }

    #[test]
    fn a_session_is_good_until_it_ends_and_only_for_its_cookie() {
        let (sessions, now) = (Sessions::new(), Instant::now());
        let cookie = sessions.begin(admin("ops"), now).unwrap();
        let other = sessions.begin(admin("eve"), now).unwrap();
        assert_ne!(cookie, other);
        let last = now + SESSION_MAX - Duration::from_millis(1);
        assert_eq!(sessions.find(&cookie, last).unwrap().subject.as_str(), "ops");
        assert_eq!(sessions.find(&cookie, now + SESSION_MAX), None);
        assert_eq!(sessions.find("", now), None);
        assert_eq!(sessions.find(&cookie[1..], now), None);
        sessions.end(&cookie);
        assert_eq!(sessions.find(&cookie, now), None);
        assert!(sessions.find(&other, now).is_some());
    }

    #[test]
    fn sessions_are_few_and_the_oldest_makes_room() {
        let (sessions, now) = (Sessions::new(), Instant::now());
        let first = sessions.begin(admin("ops"), now).unwrap();
        let later = now + Duration::from_secs(1);
        let second = sessions.begin(admin("ops"), later).unwrap();
        for _ in 2..=SESSIONS_MAX {
            sessions.begin(admin("ops"), later + Duration::from_secs(1)).unwrap();
        }
        assert_eq!(sessions.open().len(), SESSIONS_MAX);
        assert_eq!(sessions.find(&first, later), None);
        assert!(sessions.find(&second, later).is_some());
        sessions.begin(admin("ops"), later + SESSION_MAX + SESSION_MAX).unwrap();
        assert_eq!(sessions.open().len(), 1, "those that have ended are forgotten");
    }

    #[test]
    fn the_cookie_is_found_among_others() {
        let mut headers = HeaderMap::new();
        assert_eq!(cookie(&headers), None);
        headers.append(COOKIE, "a=b; xholdfast_console=no".parse().unwrap());
        assert_eq!(cookie(&headers), None);
        headers.append(COOKIE, "c=d; holdfast_console=yes; e".parse().unwrap());
        assert_eq!(cookie(&headers), Some("yes"));
    }
}
