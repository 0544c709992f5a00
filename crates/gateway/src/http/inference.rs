//! The models' APIs as OpenAI's and Anthropic's clients speak them: `/v1/*`, paid by the key's account.

use super::AppState;
use super::auth::ApiKey;
use super::error::ApiError;
use super::read::read;
use super::settings::INFERENCE_BYTES_MAX;
use crate::identity::{KeyRecord, Scope};
use crate::inference::{Ask, Caller, Head, IfGone, Money, Reader, Wish, charge_of};
use crate::wire::Shown;
use crate::wire::error::{Problem, WireError};
use crate::wire::parse;
use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::header::{CONTENT_TYPE, HeaderName};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use holdfast_adapters::providers::{Delivery, Dialect, Headers, Secret};
use holdfast_domain::{Budget, BudgetId, Budgets, ChargeId, CreditUnit, Key};
use holdfast_engine::Refusal;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-holdfast-request-id");
const COST: HeaderName = HeaderName::from_static("x-holdfast-cost-cu");
const BALANCE: HeaderName = HeaderName::from_static("x-holdfast-balance-cu");
const CREDITS_LOW: HeaderName = HeaderName::from_static("x-holdfast-credits-low");
const FIT: &str = "x-holdfast-fit";
const ON_DISCONNECT: &str = "x-holdfast-on-disconnect";
/// A stream that has nothing to say says this, so that nobody on the way takes it for dead.
const KEEP_ALIVE: Bytes = Bytes::from_static(b": keep-alive\n\n");
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(15);

type Asked = (State<AppState>, ApiKey, HeaderMap);

pub(super) async fn chat_completions(asked: Asked, body: Body) -> Result<Response, ApiError> {
    infer(asked, body, Dialect::ChatCompletions).await
}

pub(super) async fn responses(asked: Asked, body: Body) -> Result<Response, ApiError> {
    infer(asked, body, Dialect::Responses).await
}

pub(super) async fn messages(asked: Asked, body: Body) -> Result<Response, ApiError> {
    infer(asked, body, Dialect::Messages).await
}

pub(super) async fn embeddings(asked: Asked, body: Body) -> Result<Response, ApiError> {
    infer(asked, body, Dialect::Embeddings).await
}

async fn infer((State(state), key, headers): Asked, body: Body, dialect: Dialect) -> Result<Response, ApiError> {
    let record = key.to(Scope::Inference)?;
    let bytes: Bytes = read(body, INFERENCE_BYTES_MAX).await?.into();
    let at = state.inference.now();
    let ask = Ask::read(state.limited(caller(&record))?, wish(&headers)?, dialect, &bytes, at)?;
    let delivery = ask.delivery;
    let reader = state.inference.answer(ask, &bytes)?;
    Ok(answer(reader, delivery).await)
}

/// Who pays for a key's requests, and the key's own limits.
pub(super) fn caller(record: &KeyRecord) -> Caller {
    let KeyRecord { id, account, daily_limit: per_day, total_limit: in_total, .. } = *record;
    let limit = || {
        let id = BudgetId::from_bytes(id.as_bytes()).expect("a key's id is short and plain");
        Budget { id, per_day, in_total }
    };
    let limits = (per_day.is_some() || in_total.is_some()).then(limit);
    let budgets = Budgets::new(limits.as_slice()).expect("one limit is no crowd");
    Caller { account, credential: id, budgets }
}

/// What a caller says in headers.
pub(super) fn wish(headers: &HeaderMap) -> Result<Wish, ApiError> {
    let text = |name: &str| -> Result<Option<&str>, ApiError> {
        let bad = |_| WireError::Malformed(format!("the header `{name}` is not plain text"));
        Ok(headers.get(name).map(HeaderValue::to_str).transpose().map_err(bad)?)
    };
    let key = match (text("idempotency-key")?, text("x-idempotency-key")?) {
        (Some(one), Some(two)) if one != two => {
            return Err(WireError::Malformed("two idempotency keys that differ; send one".to_owned()).into());
        }
        (Some(key), _) | (None, Some(key)) => Some(key),
        (None, None) => None,
    };
    let key: Option<Key> = key.map(|key| parse::id("idempotency-key", key)).transpose()?;
    let if_gone = text(ON_DISCONNECT)?.map_or(Ok(IfGone::Drain), if_gone)?;
    Ok(Wish {
        key,
        is_retry: text("x-stainless-retry-count")?.is_some_and(|count| count != "0"),
        fit: text(FIT)?.map_or(Ok(false), fit)?,
        if_gone,
        provider_key: text("x-holdfast-provider-key")?.map(Secret::new),
        headers: Headers {
            anthropic_version: text("anthropic-version")?.map(str::to_owned),
            anthropic_beta: text("anthropic-beta")?.map(str::to_owned),
        },
    })
}

/// Whether a shorter answer is wanted rather than none.
fn fit(text: &str) -> Result<bool, WireError> {
    match text {
        "true" => Ok(true),
        "false" => Ok(false),
        other => Err(WireError::Malformed(format!("{FIT} is {other:?}; it can be `true` or `false`"))),
    }
}

/// What becomes of the answer if its caller goes away.
fn if_gone(text: &str) -> Result<IfGone, WireError> {
    let limit =
        text.strip_prefix("drain=").and_then(|units| units.parse().ok()).filter(|units: &CreditUnit| !units.is_zero());
    match (text, limit) {
        ("drain", _) => Ok(IfGone::Drain),
        ("cancel", _) => Ok(IfGone::Cancel),
        (_, Some(limit)) => Ok(IfGone::DrainUpTo(limit)),
        (other, None) => {
            let can_be = "it can be `drain`, `cancel`, or `drain=CU` with the most credits to be charged";
            Err(WireError::Malformed(format!("{ON_DISCONNECT} is {other:?}; {can_be}")))
        }
    }
}

async fn answer(reader: Reader, delivery: Delivery) -> Response {
    let head = reader.head().await;
    let charge = reader.charge();
    let mut response = match head {
        Head::Refused(error) => {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = error.status();
            response.extensions_mut().insert(error);
            return with_id(response, charge);
        }
        Head::Whole { status, body } => {
            let mut response = Response::new(Body::from(body));
            *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            if let Some(Money { cost, balance, credits_low, .. }) = reader.money() {
                amount(&mut response, COST, cost);
                amount(&mut response, BALANCE, balance);
                if credits_low {
                    response.headers_mut().insert(CREDITS_LOW, HeaderValue::from_static("true"));
                }
            }
            response
        }
        Head::Stream => {
            let mut response = Response::new(Body::from_stream(events(reader)));
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
            response
        }
    };
    if delivery == Delivery::Stream {
        response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    }
    with_id(response, charge)
}

fn with_id(mut response: Response, charge: ChargeId) -> Response {
    if let Ok(id) = HeaderValue::from_str(charge.as_str()) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

fn amount(response: &mut Response, name: HeaderName, amount: CreditUnit) {
    if let Ok(text) = HeaderValue::from_str(&amount.to_string()) {
        response.headers_mut().insert(name, text);
    }
}

/// The parts of an answer as they come.
fn events(reader: Reader) -> impl futures_util::Stream<Item = Result<Bytes, Infallible>> {
    stream::unfold(reader, async |mut reader| {
        let part = match reader.next_now() {
            Some(part) => part,
            None => match tokio::time::timeout(KEEP_ALIVE_EVERY, reader.next()).await {
                Err(_quiet) => return Some((Ok(KEEP_ALIVE), reader)),
                Ok(part) => part,
            },
        };
        part.map(|part| (Ok(part.bytes), reader))
    })
}

/// The models that can be asked for and have a price.
pub(super) async fn models(State(state): State<AppState>, key: ApiKey) -> Result<Response, ApiError> {
    key.to(Scope::Inference)?;
    let data: Vec<Value> = listed(&state).collect();
    Ok(Json(json!({ "object": "list", "data": data, "has_more": false })).into_response())
}

pub(super) async fn model(
    State(state): State<AppState>,
    key: ApiKey,
    Path(name): Path<String>,
) -> Result<Response, ApiError> {
    key.to(Scope::Inference)?;
    let found = listed(&state).find(|model| model["id"] == name.as_str());
    found.map(|model| Json(model).into_response()).ok_or_else(|| WireError::Model(name).into())
}

fn listed(state: &AppState) -> impl Iterator<Item = Value> {
    let inference = Arc::clone(&state.inference);
    let models = inference.providers.models().into_iter();
    models.map(|model| {
        json!({ "id": model.name, "object": "model", "type": "model", "created": 0, "owned_by": model.owned_by,
                "display_name": model.name })
    })
}

/// What became of the request with an idempotency key, for a caller that lost the answer.
pub(super) async fn request(
    State(state): State<AppState>,
    key: ApiKey,
    Path(idempotency_key): Path<String>,
) -> Result<Response, ApiError> {
    let record = key.to(Scope::Read)?;
    let asked: Key = parse::id("idempotency-key", &idempotency_key)?;
    let charge = state.inference.last_attempt(charge_of(record.account, asked)).await?;
    Ok(Json(state.service.reservation(charge.as_str()).await?).into_response())
}

/// What the key's account can spend.
pub(super) async fn credits(State(state): State<AppState>, key: ApiKey) -> Result<Response, ApiError> {
    let record = key.to(Scope::Read)?;
    let (available, held) = match state.service.owner_balance(record.account).await {
        Ok(balance) => (balance.available, balance.held),
        // A key may be made before its account is credited.
        Err(Problem::Refused(Refusal::UnknownAccount)) => (CreditUnit::ZERO, CreditUnit::ZERO),
        Err(problem) => return Err(problem.into()),
    };
    let body = json!({ "account_id": Shown(record.account), "balance_cu": Shown(available), "held_cu": Shown(held) });
    Ok(Json(body).into_response())
}
