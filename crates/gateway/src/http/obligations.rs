//! What operators do about charges that the peer does not know of yet.

use super::AppState;
use super::auth::Admin;
use super::error::ApiError;
use super::openapi::{Access, Field, Kind, Operation, Place};
use super::operations::{field, look};
use super::read::{InPath, InQuery, Text};
use super::settings::BODY_BYTES_MAX;
use crate::wire::error::WireError;
use crate::wire::object::with_fields;
use crate::wire::obligations::{ListBody, ObligationsBody};
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

type Answer = Result<Response, ApiError>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Page {
    after: Option<String>,
    limit: Option<u64>,
}

/// Charges that the peer does not know of yet, the oldest first.
pub(crate) async fn pending(state: State<AppState>, admin: Admin, InQuery(page): InQuery<Page>) -> Answer {
    list(state, admin, ListBody::Pending, page).await
}

/// Charges that are given up, the oldest first.
pub(crate) async fn dead(state: State<AppState>, admin: Admin, InQuery(page): InQuery<Page>) -> Answer {
    list(state, admin, ListBody::Dead, page).await
}

async fn list(State(state): State<AppState>, admin: Admin, list: ListBody, page: Page) -> Answer {
    let Page { after, limit } = page;
    let body = ObligationsBody::Obligations { list, after, limit };
    Ok(Json(state.service.obligations(body, admin.subject).await?).into_response())
}

/// Has the peer told now, with all attempts before it.
pub(crate) async fn reconcile(
    State(state): State<AppState>,
    admin: Admin,
    InPath(id): InPath,
    Text(text): Text<BODY_BYTES_MAX>,
) -> Answer {
    said(&state, admin, &text, &[("op", "obligation_replay"), ("id", &id)]).await
}

/// Takes a dead letter out for good.
pub(crate) async fn resolve(
    State(state): State<AppState>,
    admin: Admin,
    InPath(id): InPath,
    Text(text): Text<BODY_BYTES_MAX>,
) -> Answer {
    said(&state, admin, &text, &[("op", "obligation_resolve"), ("id", &id)]).await
}

async fn said(state: &AppState, admin: Admin, text: &str, fields: &[(&'static str, &str)]) -> Answer {
    let body: ObligationsBody = with_fields(text, fields).map_err(|error| WireError::Malformed(error.to_string()))?;
    Ok(Json(state.service.obligations(body, admin.subject).await?).into_response())
}

const ID: Field = field("id", Kind::Text, Place::InPath, "the obligation's id: the charge's, or that of a late part");

const PAGE: &[Field] = &[
    field("after", Kind::Text, Place::InQuery, "the next of the page before"),
    field("limit", Kind::Count, Place::InQuery, "rows of a page, 100 if not said, at most 1,000"),
];

const LIST: &[Field] = &[
    field(
        "obligations",
        Kind::Objects,
        Place::Required,
        "the oldest first: reservation_id, billing_entry_id, tenant_id, amount_cu, actual_cost_micro, state (due, in_delivery \
         or dead), attempt_count, created_at, next_attempt_at, reason",
    ),
    field("next", Kind::Text, Place::Optional, "what to give as `after`; null on the last page"),
    field("pending", Kind::Count, Place::Required, "how many the peer is still to be told of"),
    field("dead", Kind::Count, Place::Required, "how many are given up"),
];

const REPLAYED: &[Field] = &[
    field("reservation_id", Kind::Text, Place::Required, "which"),
    field("replayed", Kind::Flag, Place::Required, "true: it is due, with all attempts before it"),
];

/// The operations of this module.
pub(crate) const OPERATIONS: &[Operation] = &[
    list_of("/api/v1/admin/pending-reconciliations", "Charges that the peer does not know of yet"),
    list_of("/api/v1/admin/dead-letters", "Charges that are given up until somebody acts"),
    Operation {
        method: "POST",
        access: Access::Admin,
        parameters: &[ID],
        refusals: &[404, 409, 413, 415],
        ..look("Settlement", "/api/v1/admin/reconcile/{id}", "Have the peer told now, dead or waiting", REPLAYED)
    },
    Operation {
        method: "POST",
        access: Access::Admin,
        parameters: &[ID],
        body: &[field("note", Kind::Text, Place::Required, "how it was settled, for the record")],
        refusals: &[404, 409, 413, 415],
        ..look(
            "Settlement",
            "/api/v1/admin/dead-letters/{id}/resolve",
            "Take a dead letter out for good, because it was settled by hand",
            &[
                field("reservation_id", Kind::Text, Place::Required, "which"),
                field("resolved", Kind::Flag, Place::Required, "true"),
                field("note", Kind::Text, Place::Required, "how"),
            ],
        )
    },
];

const fn list_of(path: &'static str, summary: &'static str) -> Operation {
    Operation { access: Access::Admin, parameters: PAGE, refusals: &[409], ..look("Settlement", path, summary, LIST) }
}
