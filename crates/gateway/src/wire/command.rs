//! The commands on the wire, and how each becomes the engine's request.

use super::error::{Problem, WireError};
use super::object::Object;
use super::{ids, parse};
use crate::inference::CHARGE_PREFIX;
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
        #[serde(rename = "account_id", alias = "account")]
        account: String,
        amount_cu: Value,
        reason: String,
        key: Option<String>,
    },
    Reserve(Box<ReserveBody>),
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

/// A reservation of an amount, or of what a model can cost at the most: `model`, `input_tokens` and `max_tokens`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReserveBody {
    #[serde(rename = "account_id", alias = "account")]
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
        let Self::Reserve(body) = self else { return None };
        body.model.as_ref()?;
        body.input_tokens.zip(body.max_tokens)
    }

    /// The engine's request, if every word of this is well formed.
    pub(crate) fn into_request(self, given: Given<'_>) -> Result<Request, Problem> {
        let (key, command) = match self {
            Self::Mint { account, amount_cu, reason, key } => {
                let owner = parse::id("account", &account)?;
                let amount = parse::amount("amount_cu", &amount_cu)?;
                (key, Command::Mint { owner, amount, reason: parse::reason(&reason)? })
            }
            Self::Reserve(body) => body.into_command(given)?,
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
            Self::Ack { id } => (None, on_charge(&id, charge::Command::Ack { charged: None })?),
            Self::Fail { id, reason } => {
                (None, on_charge(&id, charge::Command::Fail { reason: parse::reason(&reason)?, charged: None })?)
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

impl ReserveBody {
    /// The caller's key, and the command.
    fn into_command(self, given: Given<'_>) -> Result<(Option<String>, Command), Problem> {
        let (amount, rates) =
            hold(self.amount_cu, (self.model, self.input_tokens, self.max_tokens), self.rates, given)?;
        let reserve = Reserve {
            owner: parse::id("account_id", &self.account)?,
            amount,
            terms: terms(self.overrun, self.on_expiry, rates),
            ttl: self.ttl_s.map_or(Ok(TTL_DEFAULT), |ttl| parse::ttl(&ttl))?,
            budgets: Budgets::NONE,
        };
        let charge = reservation_id(self.request_id.as_deref(), self.key.as_deref(), given.now)?;
        Ok((self.key, Command::Reserve { charge, reserve }))
    }
}

fn on_charge(id: &str, command: charge::Command) -> Result<Command, WireError> {
    Ok(Command::Charge { charge: parse::id("id", id)?, command })
}

fn on_escrow(id: &str, command: escrow::Command) -> Result<Command, WireError> {
    Ok(Command::Escrow { escrow: parse::id("escrow_id", id)?, command, ruling: None })
}

/// The caller's id, else the one that belongs to the caller's key, else a new one.
fn reservation_id(request_id: Option<&str>, key: Option<&str>, now: Timestamp) -> Result<ChargeId, Problem> {
    const PREFIX: &str = "req_";
    match (request_id, key) {
        (Some(id), _) if id.starts_with(CHARGE_PREFIX) => {
            let why = format!("ids that begin with `{CHARGE_PREFIX}` are the gateway's own; choose another");
            Err(WireError::Id { field: "request_id", why }.into())
        }
        (Some(id), _) => Ok(parse::id("request_id", id)?),
        (None, Some(key)) => Ok(ids::of_key(PREFIX, parse::id("key", key)?)),
        (None, None) => fresh(PREFIX, now),
    }
}

fn fresh<K: IdKind>(prefix: &str, now: Timestamp) -> Result<Id<K>, Problem> {
    ids::fresh(prefix, now).map_err(|error: io::Error| Problem::NoRandomness(error.to_string()))
}

/// How much to hold, and the rates to freeze: as the caller says, or as the table prices the model's tokens.
fn hold(
    amount_cu: Option<Value>,
    estimate: (Option<String>, Option<Tokens>, Option<Tokens>),
    rates: Option<Object<RatesBody>>,
    given: Given<'_>,
) -> Result<(CreditUnit, Option<Rates>), WireError> {
    match (amount_cu, estimate, rates) {
        (Some(amount), (None, None, None), rates) => {
            let rates = rates.map(|Object(rates)| frozen(rates)).transpose()?;
            Ok((parse::amount("amount_cu", &amount)?, rates))
        }
        (None, (Some(model), Some(input), Some(output)), None) => {
            let bound = given.rates.bound(&model, input, output).ok_or(WireError::Model(model))?;
            let why = || "the tokens at the model's prices come to a sum out of range".to_owned();
            let (amount, rates) = bound.map_err(|_| WireError::Amount { field: "max_tokens", why: why() })?;
            Ok((amount, Some(rates)))
        }
        (Some(_) | None, (_, _, _), Some(_) | None) => Err(WireError::Malformed(
            "give `amount_cu` (and `rates` if it is to be settled by usage), or `model`, `input_tokens` and `max_tokens`"
                .to_owned(),
        )),
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
