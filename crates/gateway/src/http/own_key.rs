//! What the holder of an API key may know of it: the key's record, and what its account can spend.

use super::AppState;
use super::auth::ApiKey;
use super::error::ApiError;
use crate::identity::Scope;
use crate::wire::Shown;
use crate::wire::error::Problem;
use crate::wire::keys::KeyBody;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use holdfast_domain::CreditUnit;
use holdfast_engine::Refusal;
use serde::Serialize;

#[derive(Serialize)]
struct OwnKey {
    #[serde(flatten)]
    record: KeyBody,
    balance_cu: Shown<CreditUnit>,
}

/// The key that asks.
pub(crate) async fn show(State(state): State<AppState>, key: ApiKey) -> Result<Response, ApiError> {
    let record = key.to(Scope::Read)?;
    let balance = match state.service.owner_balance(record.account).await {
        Ok(balance) => balance.available,
        // A key may be made before its account is credited.
        Err(Problem::Refused(Refusal::UnknownAccount)) => CreditUnit::ZERO,
        Err(problem) => return Err(problem.into()),
    };
    Ok(Json(OwnKey { record: KeyBody::from(record.as_ref()), balance_cu: Shown(balance) }).into_response())
}
