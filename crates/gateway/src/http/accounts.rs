//! Balances, histories and entries over HTTP.

use super::AppState;
use super::auth::Service;
use super::error::ApiError;
use super::read::{InPath, InQuery};
use crate::wire::Shown;
use crate::wire::answer::HistoryEntryBody;
use crate::wire::error::WireError;
use crate::wire::parse;
use crate::wire::time::Moment;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use holdfast_domain::{Change, CreditUnit, OwnerId};
use serde::{Deserialize, Serialize};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AsOf {
    as_of: Option<String>,
}

/// What an account has now.
#[derive(Serialize)]
struct Balance {
    account_id: Shown<OwnerId>,
    /// What can be spent: the same as `available_cu`.
    balance_cu: Shown<CreditUnit>,
    available_cu: Shown<CreditUnit>,
    held_cu: Shown<CreditUnit>,
    open_holds: u32,
    entries: u64,
    /// The last entry of its history.
    offset: u64,
}

/// What an account had then.
#[derive(Serialize)]
struct BalanceThen {
    account_id: Shown<OwnerId>,
    balance_cu: Option<Shown<Change>>,
    available_cu: Option<Shown<Change>>,
    held_cu: Option<Shown<Change>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<Moment>,
}

/// The balance of an account: now, or as of an entry or a moment.
pub(crate) async fn balance(
    State(state): State<AppState>,
    _: Service,
    InPath(account): InPath,
    InQuery(AsOf { as_of }): InQuery<AsOf>,
) -> Result<Response, ApiError> {
    let owner: OwnerId = parse::id("account", &account)?;
    let Some(as_of) = as_of else {
        let balance = state.service.owner_balance(owner).await?;
        return Ok(Json(Balance {
            account_id: Shown(owner),
            balance_cu: Shown(balance.available),
            available_cu: Shown(balance.available),
            held_cu: Shown(balance.held),
            open_holds: balance.open_holds,
            entries: balance.entries,
            offset: balance.last,
        })
        .into_response());
    };
    let (offset, at) = match as_of.parse() {
        Ok(offset) => (Some(offset), None),
        Err(_) => (None, Some(as_of)),
    };
    let then = state.service.balance_as_of(&account, offset, at).await?;
    let body = BalanceThen {
        account_id: Shown(owner),
        balance_cu: then.available_cu,
        available_cu: then.available_cu,
        held_cu: then.held_cu,
        offset: then.offset,
        at: then.at,
    };
    Ok(Json(body).into_response())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Page {
    cursor: Option<String>,
    limit: Option<u64>,
}

#[derive(Serialize)]
struct History {
    account_id: Shown<OwnerId>,
    entries: Vec<HistoryEntryBody>,
    /// What to give as `cursor` to get the next page; null on the last.
    next_cursor: Option<String>,
}

/// What happened to an account, newest first.
pub(crate) async fn history(
    State(state): State<AppState>,
    _: Service,
    InPath(account): InPath,
    InQuery(Page { cursor, limit }): InQuery<Page>,
) -> Result<Response, ApiError> {
    let owner: OwnerId = parse::id("account", &account)?;
    let wrong = || WireError::Malformed("`cursor` must be the `next_cursor` of the page before".to_owned());
    let before = cursor.map(|cursor| cursor.parse().map_err(|_| wrong())).transpose()?;
    let page = state.service.history(&account, before, limit).await?;
    let next_cursor = page.next.map(|offset| offset.to_string());
    Ok(Json(History { account_id: Shown(owner), entries: page.entries, next_cursor }).into_response())
}

/// One entry of the journal.
pub(crate) async fn entry(
    State(state): State<AppState>,
    _: Service,
    InPath(offset): InPath,
) -> Result<Response, ApiError> {
    let offset = offset.parse().map_err(|_| WireError::Malformed("an entry's offset is a whole number".to_owned()))?;
    Ok(Json(state.service.entry(offset).await?).into_response())
}
