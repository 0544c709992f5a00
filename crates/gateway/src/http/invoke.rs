//! `POST /api/v1/invoke`: inference for other services, billed to any account.

use super::AppState;
use super::auth::Service;
use super::error::ApiError;
use super::inference::wish;
use super::read::Text;
use super::settings::INFERENCE_BYTES_MAX;
use crate::inference::{Ask, Caller, Head, Money, Reader};
use crate::wire::Shown;
use crate::wire::error::WireError;
use crate::wire::object::Object;
use crate::wire::parse;
use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use holdfast_adapters::providers::Dialect;
use holdfast_domain::{Budgets, ChargeId, Usage};
use serde::Deserialize;
use serde_json::{Value, json};
use std::convert::Infallible;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InvokeBody {
    account_id: String,
    model: String,
    messages: Value,
    max_tokens: Option<u64>,
    stream: Option<bool>,
    nft_id: Option<String>,
}

pub(super) async fn invoke(
    State(state): State<AppState>,
    service: Service,
    headers: HeaderMap,
    Text(text): Text<INFERENCE_BYTES_MAX>,
) -> Result<Response, ApiError> {
    let Object(body): Object<InvokeBody> =
        serde_json::from_str(&text).map_err(|error| WireError::Malformed(error.to_string()))?;
    if body.nft_id.is_some() {
        let why = "`nft_id` names an agent, and this server has none";
        return Err(WireError::Malformed(why.to_owned()).into());
    }
    let account = parse::id("account_id", &body.account_id)?;
    let caller = state.limited(Caller { account, credential: service.subject, budgets: Budgets::NONE })?;
    let streamed = body.stream.unwrap_or(false);
    let mut chat = json!({ "model": body.model, "messages": body.messages, "stream": streamed });
    if let (Some(most), Some(fields)) = (body.max_tokens, chat.as_object_mut()) {
        fields.insert("max_tokens".to_owned(), json!(most));
    }
    let bytes = Bytes::from(chat.to_string());
    let at = state.inference.now();
    let ask = Ask::read(caller, wish(&headers)?, Dialect::ChatCompletions, &bytes, at)?;
    let reader = state.inference.answer(ask, &bytes)?;
    let head = reader.head().await;
    let charge = reader.charge();
    match head {
        Head::Refused(error) => {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = error.status();
            response.extensions_mut().insert(error);
            Ok(response)
        }
        Head::Whole { body, .. } => {
            let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
            let output = answer["choices"][0]["message"]["content"].clone();
            Ok(Json(told(charge, Some(&output), reader.money())).into_response())
        }
        Head::Stream => {
            let mut response = Response::new(Body::from_stream(events(reader)));
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
            Ok(response)
        }
    }
}

/// What a request came to.
pub(super) fn told(charge: ChargeId, output: Option<&Value>, money: Option<Money>) -> Value {
    let Usage { input, cached_input, cache_write, output: said, reasoning } =
        money.map_or(Usage::NONE, |money| money.usage);
    let mut body = json!({
        "request_id": Shown(charge),
        "usage": {
            "input_tokens": input, "cached_input_tokens": cached_input, "cache_write_tokens": cache_write,
            "output_tokens": said, "reasoning_tokens": reasoning,
        },
        "cost_cu": money.map(|money| Shown(money.cost)),
        "balance_cu": money.map(|money| Shown(money.balance)),
        "credits_low": money.is_some_and(|money| money.credits_low),
    });
    if let (Some(output), Some(fields)) = (output, body.as_object_mut()) {
        fields.insert("output".to_owned(), output.clone());
    }
    body
}

/// `text_delta` for each part, `error` if it broke off, and `turn_end` with the cost.
fn events(reader: Reader) -> impl futures_util::Stream<Item = Result<Bytes, Infallible>> {
    stream::unfold(Some(reader), async |reader| {
        let mut reader = reader?;
        while let Some(part) = reader.next().await {
            if !part.text.is_empty() {
                return Some((Ok(event("text_delta", &json!({ "delta": part.text }))), Some(reader)));
            }
        }
        let mut last = event("turn_end", &told(reader.charge(), None, reader.money()));
        if let Some(error) = reader.broke() {
            let broke = event("error", &json!({ "code": error.code(), "message": error.to_string() }));
            last = [broke, last].concat().into();
        }
        Some((Ok(last), None))
    })
}

fn event(name: &str, data: &Value) -> Bytes {
    Bytes::from(format!("event: {name}\ndata: {data}\n\n"))
}
