//! The commands on the wire, and how each becomes the engine's request.

use super::error::{Problem, WireError};
use super::object::Object;
use super::{ids, parse};
use crate::rates::RateTable;
use holdfast_domain::charge::{self, Actual, Finality, OnExpiry, Overrun, Reserve, Terms};
use holdfast_domain::{
    Budgets, ChargeId, CreditUnit, CreditsPerUsd, EscrowId, Id, IdKind, Key, Label, Rates, Timestamp, Tokens, Usage,
    escrow,
};
use holdfast_engine::{Command, Request, TTL_DEFAULT};
use serde::Deserialize;
use serde_json::Value;
use std::io;

/// Everything that changes the books. Amounts come in as any JSON so that a number gets the error that explains it.
#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum CommandBody {
    Mint {
        #[serde(alias = "account_id")]
        account: String,
        amount_cu: Value,
        reason: String,
        key: Option<String>,
    },
    /// Of an amount, or of what a model can cost at the most: `model`, `input_tokens` and `max_tokens`.
    Reserve {
        #[serde(alias = "account_id")]
        account: String,
        amount_cu: Option<Value>,
        model: Option<String>,
        input_tokens: Option<Tokens>,
        max_tokens: Option<Tokens>,
        request_id: Option<String>,
        ttl_s: Option<Value>,
        overrun: Option<OverrunBody>,
        on_expiry: Option<OnExpiryBody>,
        rates: Option<Object<RatesBody>>,
        key: Option<String>,
    },
    Start {
        id: String,
    },
    Increase {
        id: String,
        amount_cu: Value,
        key: Option<String>,
    },
    Extend {
        id: String,
        ttl_s: Value,
        key: Option<String>,
    },
    Commit {
        id: String,
        actual_cu: Option<Value>,
        usage: Option<Object<UsageBody>>,
        #[serde(rename = "final")]
        is_final: Option<bool>,
        key: Option<String>,
    },
    Release {
        id: String,
    },
    Void {
        id: String,
        reason: String,
    },
    Ack {
        id: String,
    },
    Fail {
        id: String,
        reason: String,
    },
    EscrowHold {
        account: String,
        amount_cu: Value,
        feature: String,
        escrow_id: Option<String>,
        key: Option<String>,
    },
    EscrowSettle {
        escrow_id: String,
        payee: String,
        key: Option<String>,
    },
    EscrowRefund {
        escrow_id: String,
        key: Option<String>,
    },
    EscrowPartial {
        escrow_id: String,
        payee: String,
        settle_cu: Value,
        refund_cu: Value,
        key: Option<String>,
    },
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OverrunBody {
    Cap,
    Available,
    Refuse,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OnExpiryBody {
    Release,
    ChargeEstimate,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RatesBody {
    input_usd_per_mtok: Value,
    output_usd_per_mtok: Value,
    cached_input_usd_per_mtok: Option<Value>,
    cache_write_usd_per_mtok: Option<Value>,
    reasoning_usd_per_mtok: Option<Value>,
    per_request_usd: Option<Value>,
}

/// The counts are disjoint: a cached token is in `cached_input_tokens` and not in `input_tokens`.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct UsageBody {
    input_tokens: u64,
    output_tokens: u64,
    cached_input_tokens: Option<u64>,
    cache_write_tokens: Option<u64>,
    reasoning_tokens: Option<u64>,
}

/// What a command needs besides its own words.
#[derive(Clone, Copy)]
pub(crate) struct Given<'a> {
    /// Who gives it.
    pub(crate) actor: Label,
    /// For ids that are made here.
    pub(crate) now: Timestamp,
    /// What models cost.
    pub(crate) rates: &'a dyn RateTable,
}

impl CommandBody {
    /// What a reservation is estimated from, if it is by model.
    pub(crate) fn estimated(&self) -> Option<(Tokens, Tokens)> {
        let Self::Reserve { model: Some(_), input_tokens, max_tokens, .. } = self else { return None };
        input_tokens.zip(*max_tokens)
    }

    /// The engine's request, if every word of this is well formed.
    pub(crate) fn into_request(self, given: Given<'_>) -> Result<Request, Problem> {
        let (key, command) = match self {
            Self::Mint { account, amount_cu, reason, key } => {
                let owner = parse::id("account", &account)?;
                let amount = parse::amount("amount_cu", &amount_cu)?;
                (key, Command::Mint { owner, amount, reason: parse::reason(&reason)? })
            }
            Self::Reserve {
                account,
                amount_cu,
                model,
                input_tokens,
                max_tokens,
                request_id,
                ttl_s,
                overrun,
                on_expiry,
                rates,
                key,
            } => {
                let estimate = Estimate { model, input_tokens, max_tokens };
                let (amount, rates) = estimate.or_amount(amount_cu, rates, given.rates)?;
                let reserve = Reserve {
                    owner: parse::id("account", &account)?,
                    amount,
                    terms: terms(overrun, on_expiry, rates),
                    ttl: ttl_s.map_or(Ok(TTL_DEFAULT), |ttl| parse::ttl(&ttl))?,
                    budgets: Budgets::NONE,
                };
                let charge = reservation_id(request_id.as_deref(), key.as_deref(), given.now)?;
                (key, Command::Reserve { charge, reserve })
            }
            Self::Start { id } => (None, on_charge(&id, charge::Command::Start)?),
            Self::Increase { id, amount_cu, key } => {
                let amount = parse::amount("amount_cu", &amount_cu)?;
                (key, on_charge(&id, charge::Command::Increase { amount })?)
            }
            Self::Extend { id, ttl_s, key } => {
                (key, on_charge(&id, charge::Command::Extend { ttl: parse::ttl(&ttl_s)? })?)
            }
            Self::Commit { id, actual_cu, usage, is_final, key } => {
                let actual = actual(actual_cu, usage)?;
                let finality = if is_final.unwrap_or(true) { Finality::Final } else { Finality::Partial };
                (key, on_charge(&id, charge::Command::Commit { actual, finality })?)
            }
            Self::Release { id } => (None, on_charge(&id, charge::Command::Release)?),
            Self::Void { id, reason } => {
                (None, on_charge(&id, charge::Command::Void { reason: parse::reason(&reason)? })?)
            }
            Self::Ack { id } => (None, on_charge(&id, charge::Command::Ack)?),
            Self::Fail { id, reason } => {
                (None, on_charge(&id, charge::Command::Fail { reason: parse::reason(&reason)? })?)
            }
            Self::EscrowHold { account, amount_cu, feature, escrow_id, key } => {
                let hold = escrow::Hold {
                    owner: parse::id("account", &account)?,
                    amount: parse::amount("amount_cu", &amount_cu)?,
                    feature: parse::id("feature", &feature)?,
                };
                let escrow: Option<EscrowId> = parse::id_if_any("escrow_id", escrow_id.as_deref())?;
                (key, Command::Hold { escrow: escrow.map_or_else(|| fresh("esc_", given.now), Ok)?, hold })
            }
            Self::EscrowSettle { escrow_id, payee, key } => {
                let payee = parse::id("payee", &payee)?;
                (key, on_escrow(&escrow_id, escrow::Command::Settle { payee })?)
            }
            Self::EscrowRefund { escrow_id, key } => (key, on_escrow(&escrow_id, escrow::Command::Refund)?),
            Self::EscrowPartial { escrow_id, payee, settle_cu, refund_cu, key } => {
                let payee = parse::id("payee", &payee)?;
                let settle = parse::amount("settle_cu", &settle_cu)?;
                let refund = parse::amount("refund_cu", &refund_cu)?;
                (key, on_escrow(&escrow_id, escrow::Command::PartialSettle { payee, settle, refund })?)
            }
        };
        let key: Option<Key> = parse::id_if_any("key", key.as_deref())?;
        Ok(Request { key, actor: given.actor, command })
    }
}

fn on_charge(id: &str, command: charge::Command) -> Result<Command, WireError> {
    Ok(Command::Charge { charge: parse::id("id", id)?, command })
}

fn on_escrow(id: &str, command: escrow::Command) -> Result<Command, WireError> {
    Ok(Command::Escrow { escrow: parse::id("escrow_id", id)?, command })
}

/// The caller's id, else the one that belongs to the caller's key, else a new one.
fn reservation_id(request_id: Option<&str>, key: Option<&str>, now: Timestamp) -> Result<ChargeId, Problem> {
    const PREFIX: &str = "req_";
    match (request_id, key) {
        (Some(id), _) => Ok(parse::id("request_id", id)?),
        (None, Some(key)) => Ok(ids::of_key(PREFIX, parse::id("key", key)?)),
        (None, None) => fresh(PREFIX, now),
    }
}

fn fresh<K: IdKind>(prefix: &str, now: Timestamp) -> Result<Id<K>, Problem> {
    ids::fresh(prefix, now).map_err(|error: io::Error| Problem::NoRandomness(error.to_string()))
}

/// What a reservation by model is estimated from.
struct Estimate {
    model: Option<String>,
    input_tokens: Option<Tokens>,
    max_tokens: Option<Tokens>,
}

impl Estimate {
    /// How much to hold, and the rates to freeze: as the caller says, or as the table prices the model.
    fn or_amount(
        self,
        amount_cu: Option<Value>,
        rates: Option<Object<RatesBody>>,
        table: &dyn RateTable,
    ) -> Result<(CreditUnit, Option<Rates>), WireError> {
        match (amount_cu, self, rates) {
            (Some(amount), Self { model: None, input_tokens: None, max_tokens: None }, rates) => {
                let rates = rates.map(|Object(rates)| frozen(rates)).transpose()?;
                Ok((parse::amount("amount_cu", &amount)?, rates))
            }
            (None, Self { model: Some(model), input_tokens: Some(input), max_tokens: Some(output) }, None) => {
                let rates = table.rates(&model).ok_or(WireError::Model(model))?;
                let amount = rates.bound(input, output);
                let why = "the tokens at the model's prices come to a sum out of range".to_owned();
                Ok((amount.map_err(|_| WireError::Amount { field: "max_tokens", why })?, Some(rates)))
            }
            (Some(_) | None, Self { .. }, Some(_) | None) => Err(WireError::Malformed(
                "give `amount_cu` (and `rates` if it is to be settled by usage), or `model`, `input_tokens` and `max_tokens`"
                    .to_owned(),
            )),
        }
    }
}

fn terms(overrun: Option<OverrunBody>, on_expiry: Option<OnExpiryBody>, rates: Option<Rates>) -> Terms {
    let overrun = match overrun {
        None | Some(OverrunBody::Cap) => Overrun::Cap,
        Some(OverrunBody::Available) => Overrun::Available,
        Some(OverrunBody::Refuse) => Overrun::Refuse,
    };
    let on_expiry = match on_expiry {
        None | Some(OnExpiryBody::Release) => OnExpiry::Release,
        Some(OnExpiryBody::ChargeEstimate) => OnExpiry::ChargeEstimate,
    };
    Terms { rates, overrun, on_expiry }
}

fn frozen(rates: RatesBody) -> Result<Rates, WireError> {
    let may_have = |field, price: &Option<Value>| price.as_ref().map(|price| parse::price(field, price)).transpose();
    Ok(Rates {
        input: parse::price("input_usd_per_mtok", &rates.input_usd_per_mtok)?,
        output: parse::price("output_usd_per_mtok", &rates.output_usd_per_mtok)?,
        cached_input: may_have("cached_input_usd_per_mtok", &rates.cached_input_usd_per_mtok)?,
        cache_write: may_have("cache_write_usd_per_mtok", &rates.cache_write_usd_per_mtok)?,
        reasoning: may_have("reasoning_usd_per_mtok", &rates.reasoning_usd_per_mtok)?,
        per_request: rates.per_request_usd.as_ref().map(parse::request_price).transpose()?,
        credits_per_usd: CreditsPerUsd::DEFAULT,
    })
}

fn actual(actual_cu: Option<Value>, usage: Option<Object<UsageBody>>) -> Result<Actual, WireError> {
    match (actual_cu, usage) {
        (Some(amount), None) => Ok(Actual::Credits(parse::amount("actual_cu", &amount)?)),
        (None, Some(Object(usage))) => Ok(Actual::Usage(Usage {
            input: usage.input_tokens,
            cached_input: usage.cached_input_tokens.unwrap_or(0),
            cache_write: usage.cache_write_tokens.unwrap_or(0),
            output: usage.output_tokens,
            reasoning: usage.reasoning_tokens.unwrap_or(0),
        })),
        (Some(_), Some(_)) | (None, None) => {
            Err(WireError::Malformed("give exactly one of `actual_cu` and `usage`".to_owned()))
        }
    }
}
