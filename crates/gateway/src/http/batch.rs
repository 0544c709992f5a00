//! Many commands in one call, answered in order. Each stands for itself: one that is refused does not stop the others.

use super::AppState;
use super::auth::Service;
use super::billing;
use super::error::{ApiError, Shape};
use super::outer::fresh_id;
use super::read::Text;
use super::settings::BATCH_BYTES_MAX;
use crate::service::{op, shape};
use crate::wire::command::CommandBody;
use crate::wire::error::WireError;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use holdfast_engine::Outcome;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

/// What a service may ask for. Money is made elsewhere.
const OPS: [&str; 7] = ["reserve", "start", "increase", "extend", "commit", "release", "void"];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body<'a> {
    #[serde(borrow)]
    requests: Vec<&'a RawValue>,
}

#[derive(Serialize)]
struct Answers {
    answers: Vec<Item>,
}

/// One answer: a status as the command's own route would have, and its body.
#[derive(Serialize)]
struct Item {
    status: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    replayed: Option<bool>,
    #[serde(flatten)]
    body: Value,
}

/// Does up to 8,190 commands.
pub(crate) async fn batch(
    State(state): State<AppState>,
    caller: Service,
    Text(text): Text<BATCH_BYTES_MAX>,
) -> Result<Response, ApiError> {
    let Body { requests } = shape(&text)?;
    let bodies = requests.into_iter().map(command).collect();
    let answers = state.service.commands(bodies, caller.subject).await?;
    let id = fresh_id();
    let item = |answer: Result<Outcome, _>| match answer {
        Ok(outcome) => Item {
            status: billing::status(&outcome).as_u16(),
            replayed: matches!(outcome, Outcome::Replayed(_)).then_some(true),
            body: billing::receipt_value(&outcome),
        },
        Err(problem) => {
            let error = ApiError::Problem(problem);
            Item {
                status: error.status().as_u16(),
                replayed: None,
                body: error.render(Shape::Holdfast, id.as_str()).body,
            }
        }
    };
    Ok(Json(Answers { answers: answers.into_iter().map(item).collect() }).into_response())
}

fn command(text: &RawValue) -> Result<CommandBody, WireError> {
    let op = op(text.get())?;
    if OPS.contains(&op.as_ref()) {
        return shape(text.get());
    }
    Err(WireError::Malformed(format!("a batch has no op {op:?}; it takes {}", OPS.join(", "))))
}
