//! The performance queue over HTTP, for the services that take work in and have it done.

use super::AppState;
use super::auth::Service;
use super::billing::REPLAYED;
use super::error::ApiError;
use super::json::json;
use super::openapi::{Field, Kind, Operation, Place};
use super::operations::{field, look};
use super::read::{IdempotencyKey, InPath, InQuery, Text};
use super::settings::BODY_BYTES_MAX;
use crate::queue::{Enqueued, QueueError};
use crate::service::shape;
use crate::wallet::Replayed;
use crate::wire::error::WireError;
use crate::wire::ids;
use crate::wire::parse;
use crate::wire::question::page;
use crate::wire::queue::{ItemBody, QueueAnswer, QueueTask, cause, filter, item};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use holdfast_domain::Key;
use holdfast_domain::queue::{Intake, Verdict};
use holdfast_engine::queue::METADATA_BYTES_MAX;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;

type Answer = Result<Response, ApiError>;
type Body = Text<BODY_BYTES_MAX>;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct IntakeBody<'a> {
    #[serde(borrow)]
    user_id: Cow<'a, str>,
    #[serde(borrow)]
    model_id: Cow<'a, str>,
    #[serde(borrow)]
    escrow_id: Cow<'a, str>,
    amount: Value,
    #[serde(borrow)]
    feature_type: Cow<'a, str>,
    priority: Option<i32>,
    #[serde(borrow)]
    metadata: Option<&'a RawValue>,
    idempotency_key: Option<String>,
}

/// Takes an item in.
pub(crate) async fn enqueue(
    State(state): State<AppState>,
    _: Service,
    IdempotencyKey(key): IdempotencyKey,
    Text(text): Body,
) -> Answer {
    let intake = intake(&text, key)?;
    let queue = state.service.queue().ok_or(QueueError::Off)?;
    let Enqueued { item, replayed } = queue.enqueue(intake).await?;
    Ok(marked(json(StatusCode::CREATED, &ItemBody::from(&item)), replayed))
}

/// An answer that says if an earlier request gave it already.
fn marked(mut response: Response, replayed: Replayed) -> Response {
    if replayed == Replayed::Yes {
        let (name, value) = REPLAYED;
        response.headers_mut().insert(name, value);
    }
    response
}

fn intake(text: &str, header: Option<String>) -> Result<Intake, ApiError> {
    let body: IntakeBody<'_> = shape(text)?;
    let key: Option<Key> = match (body.idempotency_key, header) {
        (Some(said), Some(header)) if said != header => {
            let why = "the header `idempotency-key` and the field `idempotencyKey` differ".to_owned();
            return Err(WireError::Malformed(why).into());
        }
        (said, header) => parse::id_if_any("idempotencyKey", said.or(header).as_deref())?,
    };
    let id = match key {
        Some(key) => ids::of_key("qi_", key),
        None => ids::fresh("qi_", crate::identity::now()).map_err(|error| no_randomness(&error))?,
    };
    Ok(Intake {
        id,
        user: parse::id("userId", &body.user_id)?,
        payee: parse::id("modelId", &body.model_id)?,
        escrow: parse::id("escrowId", &body.escrow_id)?,
        amount: parse::amount_or_integer("amount", &body.amount)?,
        feature: parse::id("featureType", &body.feature_type)?,
        priority: body.priority.unwrap_or(0),
        metadata: body.metadata.map(metadata).transpose()?,
    })
}

fn no_randomness(error: &std::io::Error) -> ApiError {
    crate::wire::error::Problem::NoRandomness(error.to_string()).into()
}

/// The caller's own words: an object, kept as it was written.
fn metadata(said: &RawValue) -> Result<Box<str>, WireError> {
    let text = said.get();
    if !text.starts_with('{') || text.len() > METADATA_BYTES_MAX {
        let why = format!("metadata: a JSON object of at most {METADATA_BYTES_MAX} bytes");
        return Err(WireError::Malformed(why));
    }
    Ok(text.into())
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Page {
    model_id: Option<String>,
    status: Option<String>,
    after: Option<String>,
    limit: Option<u64>,
}

/// Items, the next one first.
pub(crate) async fn list(State(state): State<AppState>, caller: Service, InQuery(asked): InQuery<Page>) -> Answer {
    let filter = filter(asked.model_id.as_deref(), asked.status.as_deref(), asked.after.as_deref())?;
    done(&state, caller, QueueTask::List { filter, at_most: page(asked.limit)? }).await
}

/// One item.
pub(crate) async fn show(State(state): State<AppState>, caller: Service, InPath(id): InPath) -> Answer {
    done(&state, caller, QueueTask::Show(item("id", &id)?)).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NothingBody {}

/// Has an item taken up.
pub(crate) async fn start(
    State(state): State<AppState>,
    caller: Service,
    InPath(id): InPath,
    Text(text): Body,
) -> Answer {
    let NothingBody {} = shape(&text)?;
    done(&state, caller, QueueTask::Start(item("id", &id)?)).await
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NextBody {
    model_id: String,
}

/// Has the next item of a payee taken up; 204 if nobody waits.
pub(crate) async fn next(State(state): State<AppState>, caller: Service, Text(text): Body) -> Answer {
    let NextBody { model_id } = shape(&text)?;
    done(&state, caller, QueueTask::Next(parse::id("modelId", &model_id)?)).await
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FinishBody {
    model_id: Option<String>,
}

/// The work was done: the payee gets all of it.
pub(crate) async fn finish(
    State(state): State<AppState>,
    caller: Service,
    InPath(id): InPath,
    Text(text): Body,
) -> Answer {
    let FinishBody { model_id } = shape(&text)?;
    let payee = parse::id_if_any("modelId", model_id.as_deref())?;
    done(&state, caller, QueueTask::Finish { id: item("id", &id)?, payee }).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AbandonBody {
    reason: String,
}

/// It will not be done: the user gets all of it back.
pub(crate) async fn abandon(
    State(state): State<AppState>,
    caller: Service,
    InPath(id): InPath,
    Text(text): Body,
) -> Answer {
    let AbandonBody { reason } = shape(&text)?;
    let verdict = Verdict::Abandon { cause: cause(&reason)? };
    done(&state, caller, QueueTask::End { id: item("id", &id)?, verdict }).await
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PartialBody {
    refund_amount: Value,
    settle_amount: Value,
    reason: String,
}

/// A part was done: both get their part.
pub(crate) async fn partial(
    State(state): State<AppState>,
    caller: Service,
    InPath(id): InPath,
    Text(text): Body,
) -> Answer {
    let PartialBody { refund_amount, settle_amount, reason } = shape(&text)?;
    let settle = parse::amount_or_integer("settleAmount", &settle_amount)?;
    let refund = parse::amount_or_integer("refundAmount", &refund_amount)?;
    let verdict = Verdict::Partial { settle, refund, cause: cause(&reason)? };
    done(&state, caller, QueueTask::End { id: item("id", &id)?, verdict }).await
}

async fn done(state: &AppState, caller: Service, task: QueueTask) -> Answer {
    Ok(match state.service.queue_task(task, caller.subject).await? {
        QueueAnswer::Nothing { .. } => StatusCode::NO_CONTENT.into_response(),
        QueueAnswer::Ended(ended) => {
            let replayed = ended.replayed;
            marked(json(StatusCode::OK, &ended), replayed)
        }
        answer @ (QueueAnswer::One(_) | QueueAnswer::Many(_) | QueueAnswer::Orphans(_)) => {
            json(StatusCode::OK, &answer)
        }
    })
}

impl From<QueueError> for ApiError {
    fn from(error: QueueError) -> Self {
        Self::Problem(error.into())
    }
}

const ID: Field = field("id", Kind::Text, Place::InPath, "the item's queueItemId");
const KEY: Field = field(
    "idempotency-key",
    Kind::Text,
    Place::InHeader,
    "1 to 64 of A-Z a-z 0-9 _ -; the same intake with the same key is taken in once",
);
const REASON: Field = field(
    "reason",
    Kind::Text,
    Place::Required,
    "user_disconnected, performer_declined, rope_drop_timeout, admin_cancelled, partial_delivery or quality_issue",
);

const ITEM: &[Field] = &[
    field("queueItemId", Kind::Text, Place::Required, "the item"),
    field("userId", Kind::Text, Place::Required, "who pays"),
    field("modelId", Kind::Text, Place::Required, "who does the work, and earns the escrow"),
    field("escrowId", Kind::Text, Place::Required, "what pays for it"),
    field("amount", Kind::Amount, Place::Required, "how much that is"),
    field("featureType", Kind::Text, Place::Required, "what kind of work it is"),
    field("status", Kind::Text, Place::Required, "queued, in_progress, finished, abandoned or partial"),
    field("statusReason", Kind::Text, Place::Optional, "why it ended so"),
    field("priority", Kind::Any, Place::Required, "a whole number; the higher goes first"),
    field("createdAt", Kind::Moment, Place::Required, "when it came"),
    field("startedAt", Kind::Moment, Place::Optional, "when it was taken up"),
    field("completedAt", Kind::Moment, Place::Optional, "when it ended"),
    field("dropAt", Kind::Moment, Place::Optional, "when it is given up, if nobody has taken it up by then"),
    field("settleAmount", Kind::Amount, Place::Optional, "what the payee got, once it has ended"),
    field("refundAmount", Kind::Amount, Place::Optional, "what the user got back, once it has ended"),
    field("metadata", Kind::Object, Place::Optional, "what the caller said of it"),
    field("settlement", Kind::Object, Place::Optional, "its escrow as it now is, in the answer that ended it"),
];

const ITEMS: &[Field] = &[
    field(
        "items",
        Kind::Objects,
        Place::Required,
        "the next one first; of those that have ended, the last to end first",
    ),
    field("next", Kind::Text, Place::Optional, "what to give as `after`; null on the last page"),
];

/// An operation that changes an item.
const fn change(path: &'static str, summary: &'static str, body: &'static [Field]) -> Operation {
    Operation {
        method: "POST",
        parameters: &[ID],
        body,
        refusals: &[404, 409, 413, 415],
        ..look("Queue", path, summary, ITEM)
    }
}

/// The operations of this module.
pub(crate) const OPERATIONS: &[Operation] = &[
    Operation {
        parameters: &[KEY],
        status: 201,
        refusals: &[409, 413, 415],
        ..change(
            "/api/v1/queue/items",
            "Take an item in, with the escrow that pays for it",
            &[
                field("userId", Kind::Text, Place::Required, "who pays: the escrow's user"),
                field("modelId", Kind::Text, Place::Required, "who is to do the work"),
                field("escrowId", Kind::Text, Place::Required, "the escrow: held, and no other item's"),
                field("amount", Kind::Amount, Place::Required, "what the escrow holds"),
                field("featureType", Kind::Text, Place::Required, "what the escrow is held for"),
                field("priority", Kind::Any, Place::Optional, "a whole number; the higher goes first (0)"),
                field("metadata", Kind::Object, Place::Optional, "your own words about it, at most 1,024 bytes"),
                field("idempotencyKey", Kind::Text, Place::Optional, "the same as the header"),
            ],
        )
    },
    Operation {
        parameters: &[
            field("modelId", Kind::Text, Place::InQuery, "of this payee only"),
            field("status", Kind::Text, Place::InQuery, "in this state only; if not said, those that have not ended"),
            field("after", Kind::Text, Place::InQuery, "the next of the page before"),
            field("limit", Kind::Count, Place::InQuery, "rows of a page, 100 if not said, at most 1,000"),
        ],
        refusals: &[],
        ..look("Queue", "/api/v1/queue/items", "Items by priority, then age", ITEMS)
    },
    Operation { parameters: &[ID], ..look("Queue", "/api/v1/queue/items/{id}", "One item", ITEM) },
    change("/api/v1/queue/items/{id}/start", "Have an item taken up", &[]),
    change(
        "/api/v1/queue/items/{id}/finish",
        "The work was done: pay all of it out",
        &[field("modelId", Kind::Text, Place::Optional, "who did it; if it is said it must be the item's")],
    ),
    change("/api/v1/queue/items/{id}/abandon", "It will not be done: give all of it back", &[REASON]),
    change(
        "/api/v1/queue/items/{id}/partial",
        "A part was done: divide it",
        &[
            field("refundAmount", Kind::Amount, Place::Required, "what the user gets back"),
            field("settleAmount", Kind::Amount, Place::Required, "what the payee gets; both add up to the escrow"),
            REASON,
        ],
    ),
    next_at("/api/v1/queue/items/next"),
    next_at("/api/v1/queue/next"),
];

const fn next_at(path: &'static str) -> Operation {
    Operation {
        parameters: &[],
        refusals: &[204, 413, 415],
        ..change(path, "Have the next item of a payee taken up; 204 if nobody waits", NEXT)
    }
}

const NEXT: &[Field] = &[field("modelId", Kind::Text, Place::Required, "whose")];
