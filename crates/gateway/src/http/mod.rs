//! The HTTP server: billing for other services, operation for admins, and the pages about itself.
//!
//! ```text
//!  connection ─▶ outer (request id, address limit, metrics, errors) ─▶ route ─▶ credential ─▶ body ─▶ service ─▶ engine
//! ```
//!
//! Other routers are merged with [`router`]'s in [`app`], behind the same outer layer.
//!
//! # Invariants
//! - Every answer has a request id; every refusal has a code, in the shape that callers of its path expect.
//! - No handler blocks a thread of the runtime, and none reads a body without a limit.

mod accounts;
mod admin;
mod auth;
mod batch;
mod billing;
mod chat_socket;
mod console;
mod docs;
mod error;
mod escrows;
mod inference;
mod invoke;
mod json;
mod lanes;
mod limits;
mod mail;
mod metrics;
mod models;
mod obligations;
mod openapi;
mod operations;
mod outer;
mod own_key;
mod queue;
mod read;
mod server;
mod settings;
mod status;
mod unread;

pub(crate) use error::ApiError;
pub(crate) use lanes::Lanes;
pub(crate) use mail::mailed;
pub(crate) use server::{Gate, Listener};
pub(crate) use settings::HttpSettings;

use crate::failure::Failure;
use crate::identity::{Identity, Verifier};
use crate::inference::{Caller, Inference};
use crate::role::Role;
use crate::service::Service;
use crate::wallet::Wallet;
use axum::Router;
use axum::body::Bytes;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{delete, get, post};
use chat_socket::{ChatSettings, Places};
use console::Console;
use limits::RateLimits;
use metrics::Metrics;
use openapi::Operation;
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use tokio::sync::watch;

/// What every handler can reach.
#[derive(Clone)]
pub(crate) struct AppState(Arc<Parts>);

/// The parts of the state.
pub(crate) struct Parts {
    pub(crate) service: Arc<Service>,
    pub(crate) identity: Arc<Identity>,
    pub(crate) verifier: Verifier,
    pub(crate) limits: RateLimits,
    pub(crate) metrics: Metrics,
    pub(crate) inference: Arc<Inference>,
    pub(crate) wallet: Arc<Wallet>,
    pub(crate) chat: ChatSettings,
    pub(crate) places: Places,
    console: Console,
    started: Instant,
    stopping: watch::Receiver<bool>,
}

impl std::ops::Deref for AppState {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

impl AppState {
    /// The state of a server over `service`, until `stopping`.
    pub(crate) fn new(
        service: Arc<Service>,
        inference: Arc<Inference>,
        wallet: Arc<Wallet>,
        (settings, stopping): (&HttpSettings, watch::Receiver<bool>),
    ) -> Result<Self, Failure> {
        let identity = service.identity()?;
        Ok(Self(Arc::new(Parts {
            verifier: Verifier::new(Arc::clone(&identity), settings.peer_keys()?),
            metrics: Metrics::new(&service, wallet.checks()),
            service,
            wallet,
            identity,
            limits: RateLimits::new(&settings.rates),
            inference,
            chat: settings.chat.clone(),
            places: Places::new(settings.chat.connections_max),
            console: Console::new(),
            started: Instant::now(),
            stopping,
        })))
    }
}

impl Parts {
    /// Who pays, under the limits of the account too.
    pub(crate) fn limited(&self, caller: Caller) -> Result<Caller, ApiError> {
        let budgets = self.service.budgets(caller.account, &caller.budgets)?;
        Ok(Caller { budgets, ..caller })
    }
}

/// The whole application of a role. Further routers are merged here, and their operations documented with ours.
pub(crate) fn app(state: &AppState, role: Role) -> Router {
    let (mut routes, mut operations) = (Router::new(), Vec::new());
    if role.has_books() {
        routes = routes.merge(router()).merge(models()).merge(console());
        operations.extend([operations::OPERATIONS, escrows::OPERATIONS, obligations::OPERATIONS, models::OPERATIONS]);
    }
    if role.has_queue() {
        routes = routes.merge(queue());
        if !role.has_books() {
            routes = routes.merge(console_of_queue());
        }
        operations.push(queue::OPERATIONS);
    }
    finish(state, routes.merge(about(&operations)))
}

/// The routes of the performance queue.
fn queue() -> Router<AppState> {
    Router::new()
        .route("/api/v1/queue/items", post(queue::enqueue).get(queue::list))
        .route("/api/v1/queue/items/next", post(queue::next))
        .route("/api/v1/queue/next", post(queue::next))
        .route("/api/v1/queue/items/{id}", get(queue::show))
        .route("/api/v1/queue/items/{id}/start", post(queue::start))
        .route("/api/v1/queue/items/{id}/finish", post(queue::finish))
        .route("/api/v1/queue/items/{id}/abandon", post(queue::abandon))
        .route("/api/v1/queue/items/{id}/partial", post(queue::partial))
        .layer(from_fn(outer::timed))
}

/// The routes of this module that need a credential.
fn router() -> Router<AppState> {
    let billing = Router::new()
        .route("/api/v1/reservations", post(billing::reserve))
        .route("/api/v1/reservations/{id}", get(billing::show))
        .route("/api/v1/reservations/{id}/commit", post(billing::commit))
        .route("/api/v1/reservations/{id}/increase", post(billing::increase))
        .route("/api/v1/reservations/{id}/extend", post(billing::extend))
        .route("/api/v1/reservations/{id}/start", post(billing::start))
        .route("/api/v1/reservations/{id}/release", post(billing::release))
        .route("/api/v1/reservations/{id}/void", post(billing::void))
        .route("/api/v1/batch", post(batch::batch))
        .route("/api/v1/accounts/{id}/balance", get(accounts::balance))
        .route("/api/v1/accounts/{id}/history", get(accounts::history))
        .route("/api/v1/entries/{offset}", get(accounts::entry));
    let admin = Router::new()
        .route("/api/v1/admin/mint", post(admin::mint))
        .route("/api/v1/admin/limits", get(admin::list_limits))
        .route("/api/v1/admin/accounts/{id}/limits", get(admin::account_limit).patch(admin::limit_account))
        .route("/api/v1/admin/teams/{id}/limits", get(admin::team_limit).patch(admin::limit_team))
        .route(
            "/api/v1/admin/organisations/{id}/limits",
            get(admin::organisation_limit).patch(admin::limit_organisation),
        )
        .route("/api/v1/admin/pending-reconciliations", get(obligations::pending))
        .route("/api/v1/admin/dead-letters", get(obligations::dead))
        .route("/api/v1/admin/dead-letters/{id}/resolve", post(obligations::resolve))
        .route("/api/v1/admin/reconcile/{id}", post(obligations::reconcile))
        .route("/api/v1/admin/keys", post(admin::make_key).get(admin::list_keys))
        .route("/api/v1/admin/keys/{id}", get(admin::show_key))
        .route("/api/v1/admin/keys/{id}", delete(admin::revoke_key));
    let escrows = Router::new()
        .route("/api/v1/escrows", post(escrows::hold).get(escrows::list))
        .route("/api/v1/escrows/{id}", get(escrows::show))
        .route("/api/v1/escrows/{id}/settle", post(escrows::settle))
        .route("/api/v1/escrows/{id}/refund", post(escrows::refund))
        .route("/api/v1/escrows/{id}/partial-settle", post(escrows::partial_settle))
        .route("/api/v1/wallets/{id}", get(escrows::wallet));
    let own_key = Router::new().route("/v1/key", get(own_key::show));
    billing.merge(admin).merge(escrows).merge(own_key).layer(from_fn(outer::timed))
}

/// The models' routes. An answer may take as long as a model does, so their time is not bounded here.
fn models() -> Router<AppState> {
    Router::new()
        .route("/v1/chat/completions", post(inference::chat_completions))
        .route("/v1/responses", post(inference::responses))
        .route("/v1/messages", post(inference::messages))
        .route("/v1/embeddings", post(inference::embeddings))
        .route("/v1/models", get(inference::models))
        .route("/v1/models/{model}", get(inference::model))
        .route("/v1/credits", get(inference::credits))
        .route("/v1/requests/{key}", get(inference::request))
        .route("/api/v1/invoke", post(invoke::invoke))
        .route("/ws/{session_id}", get(chat_socket::open))
}

/// The operator's page. Whoever has not logged in is sent to do so.
fn console() -> Router<AppState> {
    Router::new()
        .route("/console", get(console::show))
        .route("/console/events", get(console::events))
        .route("/console/obligations/replay", post(console::replay))
        .route("/console/obligations/resolve", post(console::resolve))
        .merge(console_of_all())
}

/// The operator's page of a process that has the queue only.
fn console_of_queue() -> Router<AppState> {
    Router::new().route("/console", get(console::show_queue)).merge(console_of_all())
}

/// What both have.
fn console_of_all() -> Router<AppState> {
    Router::new()
        .route("/console/login", get(console::login_form).post(console::login))
        .route("/console/logout", post(console::logout))
        .route("/console/escrows/refund", post(console::refund))
}

/// The pages about the server, which anybody may read.
fn about(operations: &[&'static [Operation]]) -> Router<AppState> {
    let description = made_once(operations, openapi::describe);
    let page = made_once(operations, docs::page);
    Router::new()
        .route("/health", get(status::health))
        .route("/ready", get(status::ready))
        .route("/metrics", get(status::metrics))
        .route("/.well-known/jwks.json", get(status::jwks))
        .route("/openapi.json", get(move || docs::serve_json(description())))
        .route("/docs", get(move || docs::serve_page(page())))
}

/// A page about these operations, made when it is first read: to describe all takes some megabytes, which a server that is
/// never asked for it need not have.
fn made_once(
    operations: &[&'static [Operation]],
    make: fn(&[&[Operation]]) -> Bytes,
) -> impl Fn() -> Bytes + Clone + Send + Sync + use<> {
    let (operations, made) = (operations.to_vec(), Arc::new(OnceLock::new()));
    move || made.get_or_init(|| make(&operations)).clone()
}

/// Routes behind the outer layer, with our own answers where there is none.
fn finish(state: &AppState, routes: Router<AppState>) -> Router {
    routes
        .method_not_allowed_fallback(|| async { ApiError::Method })
        .fallback(|| async { ApiError::NoRoute })
        .layer(from_fn_with_state(state.clone(), outer::outer))
        .with_state(state.clone())
}
