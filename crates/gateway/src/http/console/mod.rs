//! `/console`: one page for an operator, who logs in with an admin token.
//!
//! ```text
//!  GET /console/login ─▶ paste a token ─▶ POST /console/login ─▶ cookie ─▶ GET /console ─▶ GET /console/events (live)
//! ```
//!
//! # Invariants
//! - The page is whole in itself: its style and its script are in it, allowed by their hashes, and nothing else is.
//! - Whatever is shown is escaped where it is written ([`html`]), so nothing in the books can become markup.
//! - The books are looked at once a second at the most, however many pages are open. The queue and what the peer is owed
//!   are looked at for each page: some rows, and no longer than half a second.

mod chart;
mod events;
mod forms;
mod html;
mod page;
mod queue;
mod session;
mod settlement;
mod sign_in;

pub(super) use events::events;
pub(super) use queue::refund;
pub(super) use settlement::{replay, resolve};
pub(super) use sign_in::{login, login_form, logout};

use super::AppState;
use super::error::ApiError;
use crate::books::Overview;
use aws_lc_rs::digest;
use axum::extract::State;
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use holdfast_domain::{CreditUnit, Day};
use session::{Operator, Sessions};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, Semaphore};

const STYLE: &str = include_str!("console.css");
const SCRIPT: &str = include_str!("console.js");
/// How long a look at the books is good enough.
const LOOK_KEPT: Duration = Duration::from_secs(1);
/// Pages that may follow the journal at once.
const FOLLOWERS_MAX: usize = 32;

/// What the console remembers.
pub(crate) struct Console {
    sessions: Sessions,
    followers: Arc<Semaphore>,
    looked: Mutex<Option<(Instant, Arc<Overview>)>>,
}

impl Console {
    pub(crate) fn new() -> Self {
        let followers = Arc::new(Semaphore::new(FOLLOWERS_MAX));
        Self { sessions: Sessions::new(), followers, looked: Mutex::new(None) }
    }
}

pub(super) async fn show(State(state): State<AppState>, operator: Operator) -> Result<Response, ApiError> {
    let overview = look(&state).await?;
    let first = overview.by_day.first().map_or(overview.at.day(), |(day, _)| *day);
    let by_model = state.inference.tally.by_day_and_model(first);
    let beside = Beside { by_model, queue: queue::look(&state).await, settlement: settlement::look(&state).await };
    let health = state.service.health().await;
    Ok(page(page::render(&overview, &beside, operator.subject.as_str(), &health)))
}

/// The page of a process that has the queue only: the books are the wallet's, elsewhere.
pub(super) async fn show_queue(State(state): State<AppState>, operator: Operator) -> Response {
    let queue = queue::look(&state).await;
    page(page::render_queue(&queue, operator.subject.as_str(), crate::identity::now()))
}

/// What the page says beside what the books say.
struct Beside {
    /// What models were charged, by day.
    by_model: Vec<(Day, String, CreditUnit)>,
    queue: queue::Seen,
    settlement: settlement::Seen,
}

/// The books at a glance, as of now or a moment ago.
async fn look(state: &AppState) -> Result<Arc<Overview>, ApiError> {
    // Held while somebody looks, so that the others wait for the same look.
    let mut looked = state.console.looked.lock().await;
    if let Some((at, overview)) = &*looked
        && at.elapsed() < LOOK_KEPT
    {
        return Ok(Arc::clone(overview));
    }
    let overview = Arc::new(state.service.overview().await?);
    *looked = Some((Instant::now(), Arc::clone(&overview)));
    Ok(overview)
}

/// What a browser may do with our pages: use this style and this script, and talk to us.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let hash = |text: &str| STANDARD.encode(digest::digest(&digest::SHA256, text.as_bytes()));
    format!(
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; connect-src 'self'; form-action 'self'; \
         frame-ancestors 'none'; base-uri 'none'",
        hash(STYLE),
        hash(SCRIPT),
    )
});

fn page(html: String) -> Response {
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, POLICY.as_str()),
        // With `no-referrer` a browser sends a form without its origin, and we could not tell whose form it is.
        (REFERRER_POLICY, "same-origin"),
    ];
    (headers, html).into_response()
}
