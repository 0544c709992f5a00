//! `/ws/{session_id}`: a conversation with a model over a WebSocket, paid by the account of an API key.
//!
//! ```text
//!  in   {"type":"prompt","text":…,"model"?:…}
//!  out  text_delta {delta} …  turn_end {request_id, cost_cu, balance_cu, usage}
//!       credit_warning {balance_cu, threshold_cu}   billing_blocked {reason, …}   error {code, message}
//! ```
//!
//! A program sends its key in a header. A browser cannot, so it offers two subprotocols: `holdfast`, which is chosen, and
//! `holdfast.key.<API key>`, which is never sent back.
//!
//! # Invariants
//! - A prompt is asked as any other request is: held for, answered and charged by a task that outlives the connection.
//! - One prompt at a time; what is remembered, read and waited for is bounded, and so are the connections of one key.

mod conversation;
mod message;
mod places;
mod session;
mod turn;

pub(super) use places::Places;

use super::AppState;
use super::auth::SocketKey;
use super::error::ApiError;
use super::read::InPath;
use crate::identity::Scope;
use crate::wire::error::WireError;
use crate::wire::parse;
use axum::extract::State;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::response::Response;
use holdfast_domain::Label;
use message::{FRAME_BYTES_MAX, WAITING_BYTES_MAX};
use session::Session;
use std::num::NonZeroU32;

/// The subprotocol that is spoken.
pub(super) const PROTOCOL: &str = "holdfast";

/// What can be said about conversations.
#[derive(Debug, Clone)]
pub(crate) struct ChatSettings {
    /// The model of a prompt that names none.
    pub(crate) model: String,
    /// Messages a second on one connection.
    pub(crate) rate: NonZeroU32,
    /// Connections at once, and how many of them may be one key's.
    pub(crate) connections_max: usize,
}

pub(super) async fn open(
    State(state): State<AppState>,
    key: SocketKey,
    InPath(session_id): InPath,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, ApiError> {
    let SocketKey { record, from_protocol } = key;
    if !record.scopes.allow(Scope::Inference) {
        return Err(crate::identity::AuthError::Scope(Scope::Inference).into());
    }
    let _name: Label = parse::id("session_id", &session_id)?;
    let upgrade = upgrade.map_err(|rejection| {
        WireError::Malformed(format!("this path speaks WebSocket: {}", rejection.body_text().trim_end()))
    })?;
    let upgrade = upgrade
        .protocols([PROTOCOL])
        .max_message_size(FRAME_BYTES_MAX)
        .max_frame_size(FRAME_BYTES_MAX)
        .max_write_buffer_size(WAITING_BYTES_MAX);
    if from_protocol && upgrade.selected_protocol().is_none() {
        let why = format!("offer the subprotocol `{PROTOCOL}` beside the one with the key: the key is never sent back");
        return Err(WireError::Malformed(why).into());
    }
    let place = state.places.take(record.id)?;
    let session = Session::new(state.clone(), record);
    // The server waits for these when it stops.
    let tasks = state.places.tasks.clone();
    Ok(upgrade.on_upgrade(move |socket| {
        tasks.track_future(async move {
            session.run(socket).await;
            drop(place);
        })
    }))
}
