//! `GET /console/events`: entries as they are made, for a page that is open.

use super::page::{signed, time_of};
use super::session::Operator;
use crate::books::{TAIL, TailRow};
use crate::http::AppState;
use crate::http::error::ApiError;
use crate::http::limits::Limited;
use crate::http::read::InQuery;
use crate::http::server::told;
use crate::identity::AuthError;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use futures_util::stream;
use serde::Deserialize;
use serde_json::json;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, watch};

/// How often it is looked whether there is something new.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// A stream that has nothing to say says this, so that nobody on the way takes it for dead.
const KEEP_ALIVE: Bytes = Bytes::from_static(b": keep-alive\n\n");
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(15);
/// When it is worth while to ask again if too many follow.
const ASK_AGAIN_S: u64 = 10;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct From {
    /// The last entry that the page has.
    after: Option<u64>,
}

/// One page that follows the journal.
struct Follower {
    state: AppState,
    after: u64,
    operator: Operator,
    stopping: watch::Receiver<bool>,
    _place: OwnedSemaphorePermit,
}

pub(in crate::http) async fn events(
    State(state): State<AppState>,
    operator: Result<Operator, Response>,
    headers: HeaderMap,
    InQuery(From { after }): InQuery<From>,
) -> Result<Response, ApiError> {
    // A page that is sent elsewhere would try again and again: it is told to stop.
    let Ok(operator) = operator else { return Err(AuthError::Missing.into()) };
    let limit = u32::try_from(super::FOLLOWERS_MAX).unwrap_or(u32::MAX);
    let place = Arc::clone(&state.console.followers).try_acquire_owned();
    let place = place.map_err(|_| ApiError::RateLimited(Limited { limit, retry_after_s: ASK_AGAIN_S }))?;
    // A page that lost its connection says itself how far it had come.
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse().ok());
    let after = match last.or(after) {
        Some(after) => after,
        None => state.service.newest().await,
    };
    let stopping = state.stopping.clone();
    let follower = Follower { state, after, operator, stopping, _place: place };
    let mut response = Response::new(Body::from_stream(follow(follower)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

fn follow(follower: Follower) -> impl futures_util::Stream<Item = Result<Bytes, Infallible>> {
    let begun = Bytes::from_static(b": following\n\n");
    stream::unfold((Some(follower), Some(begun)), async |(follower, begun)| {
        let mut follower = follower?;
        if let Some(begun) = begun {
            return Some((Ok(begun), (Some(follower), None)));
        }
        let next = follower.next().await?;
        Some((Ok(next), (Some(follower), None)))
    })
}

impl Follower {
    /// What there is to say next; nothing more when the session or the server ends, or the entries cannot be read.
    async fn next(&mut self) -> Option<Bytes> {
        let quiet_until = Instant::now() + KEEP_ALIVE_EVERY;
        loop {
            let now = Instant::now();
            if !self.operator.is_still_in(&self.state, now) {
                return None;
            }
            if self.state.service.newest().await > self.after {
                let rows = self.state.service.tail(self.after).await.ok()?;
                let seen = self.after;
                self.after = rows.last()?.offset;
                return Some(told_of(&rows, seen));
            }
            if now >= quiet_until {
                return Some(KEEP_ALIVE);
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = told(&mut self.stopping) => return None,
            }
        }
    }
}

/// Entries as events, and how many were passed over because they came too fast to be read.
fn told_of(rows: &[TailRow], seen: u64) -> Bytes {
    let mut text = String::new();
    let first = rows.first().map_or(seen, |row| row.offset);
    let missed = first.saturating_sub(seen).saturating_sub(1);
    if rows.len() == TAIL && missed > 0 {
        text.push_str(&format!("event: skipped\ndata: {missed}\n\n"));
    }
    for row in rows {
        let data = json!({
            "offset": row.offset.to_string(), "time": time_of(row.at), "kind": row.kind, "account": row.owner,
            "change": signed(row.change), "held": signed(row.held_change), "balance": row.balance.to_string(),
            "about": row.correlation, "actor": row.actor,
        });
        text.push_str(&format!("id: {}\nevent: entry\ndata: {data}\n\n", row.offset));
    }
    Bytes::from(text)
}
