//! Reservations over HTTP. The body of a route is a command of the wire without its `op` and id, which the path says, and
//! without its key, which a header says.

use super::AppState;
use super::auth::Service;
use super::error::ApiError;
use super::read::{IdempotencyKey, InPath, Text};
use super::settings::BODY_BYTES_MAX;
use crate::wire::Shown;
use crate::wire::answer::{ReservationBody, TermsBody};
use crate::wire::command::CommandBody;
use crate::wire::entry::{Details, EntryBody};
use crate::wire::error::WireError;
use crate::wire::object::with_fields;
use crate::wire::time::Moment;
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use holdfast_domain::charge;
use holdfast_domain::{ChargeId, CreditUnit, Event, Label, OwnerId};
use holdfast_engine::{Outcome, Receipt};
use serde::Serialize;
use serde_json::Value;

type Body = Text<BODY_BYTES_MAX>;

/// What an answer has that an earlier request gave already.
pub(super) const REPLAYED: (HeaderName, HeaderValue) =
    (HeaderName::from_static("idempotent-replayed"), HeaderValue::from_static("true"));

pub(crate) async fn reserve(state: State<AppState>, caller: Service, key: IdempotencyKey, body: Body) -> Answer {
    change(&state, caller.subject, Said { op: "reserve", id: None, key }, &body.0).await
}

macro_rules! on_reservation {
    ($($(#[$doc:meta])* $name:ident),*) => {$(
        $(#[$doc])*
        pub(crate) async fn $name(
            state: State<AppState>,
            caller: Service,
            InPath(id): InPath,
            key: IdempotencyKey,
            body: Body,
        ) -> Answer {
            change(&state, caller.subject, Said { op: stringify!($name), id: Some(id), key }, &body.0).await
        }
    )*};
}

on_reservation! {
    /// Charges what the work cost.
    commit,
    /// Holds more.
    increase,
    /// Holds for longer.
    extend,
    /// Says that the work has begun.
    start,
    /// Gives the hold back.
    release,
    /// Takes a charge back.
    void
}

type Answer = Result<Response, ApiError>;

/// The fields of a command that its body does not say.
pub(super) struct Said {
    pub(super) op: &'static str,
    pub(super) id: Option<String>,
    pub(super) key: IdempotencyKey,
}

/// Has one command done, and answers with its receipt.
pub(super) async fn change(state: &AppState, actor: Label, said: Said, text: &str) -> Answer {
    let mut fields = vec![("op", said.op)];
    fields.extend(said.id.as_deref().map(|id| ("id", id)));
    // Commands that can be meant only once are known by their reservation, and take no key on the wire.
    let takes_key = !matches!(said.op, "start" | "release" | "void");
    fields.extend(said.key.0.as_deref().filter(|_| takes_key).map(|key| ("key", key)));
    let body: CommandBody = with_fields(text, &fields).map_err(|error| WireError::Malformed(error.to_string()))?;
    let outcome = state.service.command(body, actor).await?;
    let mut response = (status(&outcome), Json(receipt(&outcome))).into_response();
    if let Outcome::Replayed(_) = outcome {
        let (name, value) = REPLAYED;
        response.headers_mut().insert(name, value);
    }
    Ok(response)
}

/// The status of a done command: something new is there, or something has changed.
pub(super) fn status(outcome: &Outcome) -> StatusCode {
    match &*outcome.receipt().event {
        Event::Minted(_) | Event::Charge { event: charge::Event::Reserved { .. }, .. } => StatusCode::CREATED,
        Event::Charge { .. } | Event::Escrow { .. } => StatusCode::OK,
    }
}

/// What a command did. The same for the request that did it and for every repetition.
#[derive(Serialize)]
pub(super) struct ReceiptBody {
    #[serde(skip_serializing_if = "Option::is_none")]
    billing_entry_id: Option<Shown<ChargeId>>,
    account_id: Shown<OwnerId>,
    kind: &'static str,
    state: &'static str,
    /// What this reservation holds, where the entry itself tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    held_cu: Option<Shown<CreditUnit>>,
    /// What the account can spend after it.
    balance_cu: Shown<CreditUnit>,
    /// What all reservations of the account hold after it.
    account_held_cu: Shown<CreditUnit>,
    offset: u64,
    at: Moment,
    #[serde(flatten)]
    details: Details,
}

/// The body that answers a done command.
pub(super) fn receipt(outcome: &Outcome) -> ReceiptBody {
    let Receipt { offset, at, event, state, available, held } = outcome.receipt();
    let (id, held_now) = match &**event {
        Event::Charge { id, event: charge::Event::Reserved { amount, .. }, .. } => (Some(*id), Some(*amount)),
        Event::Charge { id, .. } => (Some(*id), state.is_closed().then_some(CreditUnit::ZERO)),
        Event::Minted(_) | Event::Escrow { .. } => (None, None),
    };
    ReceiptBody {
        billing_entry_id: id.map(Shown),
        account_id: Shown(event.owner()),
        kind: event.kind().name(),
        state: state.name(),
        held_cu: held_now.map(Shown),
        balance_cu: Shown(*available),
        account_held_cu: Shown(*held),
        offset: *offset,
        at: Moment(*at),
        details: Details::of(event),
    }
}

/// A reservation as it stands.
#[derive(Serialize)]
struct Shows {
    billing_entry_id: Shown<ChargeId>,
    account_id: Shown<OwnerId>,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    stage: Option<&'static str>,
    held_cu: Shown<CreditUnit>,
    charged_cu: Shown<CreditUnit>,
    uncollected_cu: Shown<CreditUnit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<Moment>,
    /// The last entry of its life.
    offset: Option<u64>,
    #[serde(flatten)]
    terms: TermsBody,
    life: Vec<EntryBody>,
}

/// A reservation and its whole life.
pub(crate) async fn show(State(state): State<AppState>, _: Service, InPath(id): InPath) -> Answer {
    let ReservationBody { id, account, state, stage, held_cu, charged_cu, uncollected_cu, expires_at, terms, life } =
        state.service.reservation(&id).await?;
    let shows = Shows {
        billing_entry_id: id,
        account_id: account,
        state,
        stage,
        held_cu,
        charged_cu,
        uncollected_cu,
        expires_at,
        offset: life.last().map(|entry| entry.offset),
        terms,
        life,
    };
    Ok(Json(shows).into_response())
}

/// A body as JSON, for an answer that holds several.
pub(super) fn receipt_value(outcome: &Outcome) -> Value {
    serde_json::to_value(receipt(outcome)).unwrap_or_default()
}
