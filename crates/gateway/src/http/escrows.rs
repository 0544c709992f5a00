//! Escrows and wallets over HTTP, under the names of the queue's guide. Money leaves an escrow only with the queue's token.

use super::AppState;
use super::auth::Service;
use super::billing::REPLAYED;
use super::error::ApiError;
use super::json::json;
use super::openapi::{Access, Field, Kind, Operation, Place};
use super::operations::{field, look};
use super::read::{IdempotencyKey, InPath, InQuery, Text};
use super::settings::BODY_BYTES_MAX;
use crate::service::shape;
use crate::wallet::{EscrowSeen, Replayed};
use crate::wire::Shown;
use crate::wire::error::WireError;
use crate::wire::escrows::{self, EscrowBody, HoldAsked, HoldBody, OrderBody};
use crate::wire::parse;
use crate::wire::question::page;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use holdfast_domain::{Change, CreditUnit, EscrowId, Label, OwnerId};
use holdfast_engine::Refusal;
use serde::{Deserialize, Serialize};

type Answer = Result<Response, ApiError>;
type Body = Text<BODY_BYTES_MAX>;

/// Sets money aside.
pub(crate) async fn hold(
    State(state): State<AppState>,
    caller: Service,
    header: IdempotencyKey,
    Text(text): Body,
) -> Answer {
    let HoldAsked { hold, key, metadata } = shape::<HoldBody<'_>>(&text)?.into_asked(header.0.as_deref())?;
    let held = state.wallet.hold(hold, key, metadata, caller.subject).await?;
    Ok(answer(StatusCode::CREATED, held))
}

/// Pays an escrow out.
pub(crate) async fn settle(
    State(state): State<AppState>,
    caller: Service,
    InPath(id): InPath,
    header: IdempotencyKey,
    Text(text): Body,
) -> Answer {
    carry_out(&state, caller.subject, (escrows::Operation::Settle, &id), &header, &text).await
}

/// Gives an escrow back.
pub(crate) async fn refund(
    State(state): State<AppState>,
    caller: Service,
    InPath(id): InPath,
    header: IdempotencyKey,
    Text(text): Body,
) -> Answer {
    carry_out(&state, caller.subject, (escrows::Operation::Refund, &id), &header, &text).await
}

/// Divides an escrow.
pub(crate) async fn partial_settle(
    State(state): State<AppState>,
    caller: Service,
    InPath(id): InPath,
    header: IdempotencyKey,
    Text(text): Body,
) -> Answer {
    carry_out(&state, caller.subject, (escrows::Operation::Partial, &id), &header, &text).await
}

async fn carry_out(
    state: &AppState,
    actor: Label,
    (operation, id): (escrows::Operation, &str),
    header: &IdempotencyKey,
    text: &str,
) -> Answer {
    let escrow: EscrowId = parse::id("escrowId", id)?;
    let asked = OrderBody::read(text)?.into_asked(operation, escrow, header.0.as_deref())?;
    let user = match asked.user {
        Some(user) => user,
        // Who settles need not say who pays; the token does not say it either.
        None => seen(state, escrow).await?.owner,
    };
    let done = state.wallet.carry_out(&asked.about(user), actor).await?;
    Ok(answer(StatusCode::OK, done))
}

fn answer(status: StatusCode, (seen, replayed): (EscrowSeen, Replayed)) -> Response {
    let mut response = json(status, &EscrowBody::from(seen));
    if replayed == Replayed::Yes {
        let (name, value) = REPLAYED;
        response.headers_mut().insert(name, value);
    }
    response
}

async fn seen(state: &AppState, escrow: EscrowId) -> Result<EscrowSeen, ApiError> {
    Ok(state.wallet.escrow(escrow).await?.ok_or(Refusal::UnknownEscrow)?)
}

/// One escrow.
pub(crate) async fn show(State(state): State<AppState>, _: Service, InPath(id): InPath) -> Answer {
    let seen = seen(&state, parse::id("escrowId", &id)?).await?;
    Ok(json(StatusCode::OK, &EscrowBody::from(seen)))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Page {
    status: Option<String>,
    after: Option<String>,
    limit: Option<u64>,
}

#[derive(Serialize)]
struct Escrows {
    escrows: Vec<EscrowBody>,
    /// What to give as `after` to get the next page; null on the last.
    next: Option<Shown<EscrowId>>,
}

/// Escrows that hold money, in the order of their ids.
pub(crate) async fn list(State(state): State<AppState>, _: Service, InQuery(query): InQuery<Page>) -> Answer {
    if query.status.as_deref().is_some_and(|status| status != "held") {
        return Err(WireError::Malformed("only escrows whose `status` is held are listed".to_owned()).into());
    }
    let (after, limit) = (parse::id_if_any("after", query.after.as_deref())?, page(query.limit)?);
    let mut held = state.wallet.held(after, limit + 1).await?;
    let more = held.len() > limit;
    held.truncate(limit);
    let next = held.last().filter(|_| more).map(|seen| Shown(seen.id));
    Ok(Json(Escrows { escrows: held.into_iter().map(EscrowBody::from).collect(), next }).into_response())
}

/// What somebody has. What was never there is null.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Wallet {
    user_id: Shown<OwnerId>,
    available: Option<Shown<CreditUnit>>,
    held: Option<Shown<CreditUnit>>,
    earned: Option<Shown<Change>>,
}

/// What somebody has to spend, and what somebody has earned.
pub(crate) async fn wallet(State(state): State<AppState>, _: Service, InPath(id): InPath) -> Answer {
    let (owner, payee) = (parse::id("userId", &id)?, parse::id("userId", &id)?);
    let found = state.wallet.balances(owner, payee).await?.ok_or(Refusal::UnknownAccount)?;
    let body = Wallet {
        user_id: Shown(owner),
        available: found.owner.map(|balance| Shown(balance.available)),
        held: found.owner.map(|balance| Shown(balance.held)),
        earned: found.earned.map(Shown),
    };
    Ok(Json(body).into_response())
}

const ID: Field = field("id", Kind::Text, Place::InPath, "the escrow's escrowId");
const KEY: Field = field(
    "idempotency-key",
    Kind::Text,
    Place::InHeader,
    "1 to 64 of A-Z a-z 0-9 _ -, instead of idempotencyKey in the body; the same request with the same key is done once, for ever",
);
const BODY_KEY: Field = field("idempotencyKey", Kind::Text, Place::Optional, "needed here or as a header");
const AMOUNT: Field =
    field("amount", Kind::Amount, Place::Required, "what the escrow holds; whole numbers are taken too");
const MODEL: Field = field("modelId", Kind::Text, Place::Required, "who is paid");
const USER: Field = field("userId", Kind::Text, Place::Required, "whose escrow it is");
const ITEM: Field = field("queueItemId", Kind::Text, Place::Required, "the queue item that the escrow pays for");
const REASON: Field = field(
    "reason",
    Kind::Text,
    Place::Required,
    "performance_completed, user_disconnected, performer_declined, rope_drop_timeout, admin_cancelled, partial_delivery or \
     quality_issue",
);
const TOKEN: Field = field(
    "authorizationToken",
    Kind::Text,
    Place::Required,
    "the queue's token for just this; it lives five minutes (403 INVALID_AUTHORIZATION says what is wrong with it)",
);

/// An escrow as it stands.
const ESCROW: &[Field] = &[
    field("escrowId", Kind::Text, Place::Required, "the escrow"),
    field("userId", Kind::Text, Place::Required, "who pays"),
    field("amount", Kind::Amount, Place::Required, "what was set aside"),
    field("featureType", Kind::Text, Place::Required, "what for"),
    field("status", Kind::Text, Place::Required, "held, settled, refunded or partial"),
    field("createdAt", Kind::Moment, Place::Required, "since when"),
    field("modelId", Kind::Text, Place::Optional, "who was paid"),
    field("settleAmount", Kind::Amount, Place::Optional, "what the payee got"),
    field("refundAmount", Kind::Amount, Place::Optional, "what the user got back"),
    field("queueItemId", Kind::Text, Place::Optional, "the queue item that ended it; none if an operator did"),
    field("reason", Kind::Text, Place::Optional, "why it ended"),
    field("processedAt", Kind::Moment, Place::Optional, "when it ended"),
    field("metadata", Kind::Object, Place::Optional, "what was said when it was held"),
];

/// The operations of this module.
pub(crate) const OPERATIONS: &[Operation] = &[
    Operation {
        method: "POST",
        parameters: &[KEY],
        body: &[
            field("userId", Kind::Text, Place::Required, "whose credits"),
            field("amount", Kind::Amount, Place::Required, "how many; whole numbers are taken too"),
            field("featureType", Kind::Text, Place::Required, "what for: 1 to 64 of A-Z a-z 0-9 _ -"),
            BODY_KEY,
            field("metadata", Kind::Object, Place::Optional, "your own words about it, up to 4,096 bytes"),
        ],
        status: 201,
        refusals: &[402, 404, 409, 413, 415],
        ..look("Escrows", "/api/v1/escrows", "Set credits aside until the queue decides who gets them", ESCROW)
    },
    Operation {
        parameters: &[
            field("status", Kind::Text, Place::InQuery, "held: no others are listed"),
            field("after", Kind::Text, Place::InQuery, "the next of the page before"),
            field("limit", Kind::Count, Place::InQuery, "rows of a page, 100 if not said, at most 1,000"),
        ],
        refusals: &[],
        ..look(
            "Escrows",
            "/api/v1/escrows",
            "Escrows that hold credits, in the order of their ids",
            &[
                field("escrows", Kind::Objects, Place::Required, "each as above"),
                field("next", Kind::Text, Place::Optional, "what to give as `after`; null on the last page"),
            ],
        )
    },
    Operation {
        parameters: &[ID],
        ..look("Escrows", "/api/v1/escrows/{id}", "One escrow, open or closed, however old", ESCROW)
    },
    order(
        "/api/v1/escrows/{id}/settle",
        "Pay an escrow out, on the queue's word",
        &[MODEL, AMOUNT, ITEM, REASON, TOKEN, BODY_KEY],
    ),
    order(
        "/api/v1/escrows/{id}/refund",
        "Give an escrow back, on the queue's word",
        &[USER, AMOUNT, ITEM, REASON, TOKEN, BODY_KEY],
    ),
    order(
        "/api/v1/escrows/{id}/partial-settle",
        "Divide an escrow, on the queue's word; the parts add up to it",
        &[
            USER,
            MODEL,
            field("settleAmount", Kind::Amount, Place::Required, "what the payee gets"),
            field("refundAmount", Kind::Amount, Place::Required, "what the user gets back"),
            ITEM,
            REASON,
            TOKEN,
            BODY_KEY,
        ],
    ),
    Operation {
        access: Access::Service,
        parameters: &[field("id", Kind::Text, Place::InPath, "the userId or modelId")],
        ..look(
            "Escrows",
            "/api/v1/wallets/{id}",
            "What somebody has to spend, and has earned",
            &[
                field("userId", Kind::Text, Place::Required, "who"),
                field("available", Kind::Amount, Place::Optional, "what can be spent; null if never credited"),
                field("held", Kind::Amount, Place::Optional, "what open reservations hold; null if never credited"),
                field(
                    "earned",
                    Kind::Amount,
                    Place::Optional,
                    "what was paid out of escrows; null if nothing ever was",
                ),
            ],
        )
    },
];

const fn order(path: &'static str, summary: &'static str, body: &'static [Field]) -> Operation {
    Operation {
        method: "POST",
        parameters: &[ID, KEY],
        body,
        refusals: &[404, 409, 413, 415],
        ..look("Escrows", path, summary, ESCROW)
    }
}
