//! How the server is, for load balancers, collectors and peers.

use super::AppState;
use crate::books::DatabaseHealth;
use crate::identity::IdentityHealth;
use crate::settlement::BillingHealth;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::{Json, body::Body};
use serde::Serialize;
use std::time::Duration;

/// How long a scrape waits for the books' sums.
const SUMS_MAX: Duration = Duration::from_millis(500);

/// The health of the server. Why something failed is for the log, not for everybody.
#[derive(Serialize)]
struct HealthBody {
    status: &'static str,
    /// What holds the books: `embedded`, or the database.
    engine: &'static str,
    version: &'static str,
    uptime_s: u64,
    /// The last durable entry.
    durable: u64,
    /// The last entry that the read model has applied.
    applied: u64,
    /// How many entries the read model is behind.
    read_model_lag: u64,
    read_model: &'static str,
    waiting: usize,
    /// The way to the database; null if the books are in the data directory.
    database: Option<DatabaseHealth>,
    /// The way to the keys and limits that all nodes share; null if they are in the data directory.
    identity: Option<IdentityHealth>,
    /// How charges are settled with the peer; null without one.
    billing: Option<BillingHealth>,
}

/// Always answers, within a tenth of a second.
pub(crate) async fn health(State(state): State<AppState>) -> Response {
    let health = state.service.health().await;
    let identity = state.identity.health();
    let status = match (&health.failed, *state.stopping.borrow()) {
        (Some(_), _) => "failed",
        (None, true) => "stopping",
        (None, false) if health.database.is_some_and(|database| !database.reached) => "degraded",
        (None, false) if identity.is_some_and(|identity| !identity.reached) => "degraded",
        (None, false) => "ok",
    };
    let billing = match state.service.settlement() {
        Some(settlement) => Some(settlement.health().await),
        None => None,
    };
    let body = HealthBody {
        status,
        engine: health.engine,
        version: env!("CARGO_PKG_VERSION"),
        uptime_s: state.started.elapsed().as_secs(),
        durable: health.durable,
        applied: health.applied,
        read_model_lag: health.durable.saturating_sub(health.applied),
        read_model: if health.read_model_failed.is_some() { "failed" } else { "ok" },
        waiting: health.waiting,
        database: health.database,
        identity,
        billing,
    };
    Json(body).into_response()
}

#[derive(Serialize)]
struct ReadyBody {
    ready: bool,
    reason: Option<&'static str>,
}

/// Whether work should be sent here.
pub(crate) async fn ready(State(state): State<AppState>) -> Response {
    let health = state.service.health().await;
    let reason = if health.failed.is_some() {
        Some("the journal has failed")
    } else if *state.stopping.borrow() {
        Some("the server is stopping")
    } else if health.read_model_failed.is_some() {
        Some("the read model has failed")
    } else if health.database.is_some_and(|database| !database.reached) {
        Some("the database does not answer")
    } else if state.identity.health().is_some_and(|identity| !identity.trusted) {
        Some("the keys in the database were not seen for too long")
    } else {
        None
    };
    readiness(reason)
}

/// The answer to whether work should be sent here.
pub(super) fn readiness(reason: Option<&'static str>) -> Response {
    let status = if reason.is_none() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(ReadyBody { ready: reason.is_none(), reason })).into_response()
}

/// The numbers for Prometheus.
pub(crate) async fn metrics(State(state): State<AppState>) -> Response {
    let totals = tokio::time::timeout(SUMS_MAX, state.service.totals()).await;
    let totals = totals.ok().and_then(Result::ok);
    if let Some(settlement) = state.service.settlement() {
        // It notes what it finds among the numbers.
        settlement.health().await;
    }
    let text = state.metrics.text(&state.service.health().await, totals, state.started.elapsed());
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(CONTENT_TYPE, kind)], Body::from(text)).into_response()
}

/// The public halves of our signing keys.
pub(crate) async fn jwks(State(state): State<AppState>) -> Response {
    ([(CACHE_CONTROL, "public, max-age=60")], Json(state.identity.signing.published())).into_response()
}
