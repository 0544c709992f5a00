//! From the words of a command to a line of the wire.

use super::args::{Commit, Create, Escrows, LookAtAccounts, Mint, OnExpiry, Once, Overrun, Refund, Reservations};
use crate::failure::Failure;
use crate::wire::ids;
use holdfast_adapters::SystemClock;
use holdfast_domain::Key;
use holdfast_engine::Clock;
use serde_json::{Value, json};

/// What a command asks for.
pub(super) enum Asking {
    /// A change.
    Change(Value),
    /// No change.
    Look(Value),
}

/// A request of the fields that are there.
pub(super) fn request<const N: usize>(op: &str, fields: [(&str, Value); N]) -> Value {
    object([("op", Value::from(op))].into_iter().chain(fields))
}

/// An object of the fields that are there.
fn object<'a>(fields: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    let there = fields.into_iter().filter(|(_, value)| !value.is_null());
    Value::Object(there.map(|(name, value)| (name.to_owned(), value)).collect())
}

/// The caller's key, or a new one where the command can be meant twice.
fn key(once: &Once) -> Result<Value, Failure> {
    if let Some(key) = &once.key {
        return Ok(json!(key));
    }
    let key: Key = ids::fresh("key_", SystemClock::start().now()).map_err(Failure::io("make a key"))?;
    Ok(json!(key.as_str()))
}

pub(super) fn mint(mint: &Mint) -> Result<Value, Failure> {
    let Mint { account, amount_cu, reason, once } = mint;
    let fields =
        [("account", json!(account)), ("amount_cu", json!(amount_cu)), ("reason", json!(reason)), ("key", key(once)?)];
    Ok(request("mint", fields))
}

pub(super) fn accounts(accounts: &LookAtAccounts) -> Value {
    match accounts {
        LookAtAccounts::List { after, limit } => {
            request("accounts", [("after", json!(after)), ("limit", json!(limit))])
        }
        LookAtAccounts::Show { account, as_of: None } => request("balance", [("account", json!(account))]),
        LookAtAccounts::Show { account, as_of: Some(as_of) } => {
            let moment = match as_of.parse::<u64>() {
                Ok(offset) => ("offset", json!(offset)),
                Err(_) => ("at", json!(as_of)),
            };
            request("balance_as_of", [("account", json!(account)), moment])
        }
        LookAtAccounts::History { account, before, limit } => {
            request("history", [("account", json!(account)), ("before", json!(before)), ("limit", json!(limit))])
        }
    }
}

pub(super) fn reservations(reservations: &Reservations) -> Result<Asking, Failure> {
    let of = |op: &str, id: &str| Asking::Change(request(op, [("id", json!(id))]));
    let because =
        |op: &str, id: &str, reason: &str| Asking::Change(request(op, [("id", json!(id)), ("reason", json!(reason))]));
    Ok(match reservations {
        Reservations::Create(create) => Asking::Change(reserve(create)),
        Reservations::Start { id } => of("start", id),
        Reservations::Commit(words) => Asking::Change(commit(words)?),
        Reservations::Release { id } => of("release", id),
        Reservations::Increase { id, amount_cu, once } => {
            let fields = [("id", json!(id)), ("amount_cu", json!(amount_cu)), ("key", key(once)?)];
            Asking::Change(request("increase", fields))
        }
        Reservations::Extend { id, ttl, once } => {
            Asking::Change(request("extend", [("id", json!(id)), ("ttl_s", json!(ttl)), ("key", key(once)?)]))
        }
        Reservations::Void { id, reason } => because("void", id, reason),
        Reservations::Ack { id } => of("ack", id),
        Reservations::Fail { id, reason } => because("fail", id, reason),
        Reservations::Show { id } => Asking::Look(request("reservation", [("id", json!(id))])),
        Reservations::List { account, limit } => {
            Asking::Look(request("reservations", [("account", json!(account)), ("limit", json!(limit))]))
        }
    })
}

fn reserve(create: &Create) -> Value {
    let overrun = create.overrun.map(|overrun| match overrun {
        Overrun::Cap => "cap",
        Overrun::Available => "available",
        Overrun::Refuse => "refuse",
    });
    let on_expiry = create.on_expiry.map(|on_expiry| match on_expiry {
        OnExpiry::Release => "release",
        OnExpiry::ChargeEstimate => "charge_estimate",
    });
    let rates = create.input_price.as_ref().map(|_| {
        object([
            ("input_usd_per_mtok", json!(create.input_price)),
            ("output_usd_per_mtok", json!(create.output_price)),
            ("cached_input_usd_per_mtok", json!(create.cached_input_price)),
            ("cache_write_usd_per_mtok", json!(create.cache_write_price)),
            ("reasoning_usd_per_mtok", json!(create.reasoning_price)),
            ("per_request_usd", json!(create.request_price)),
        ])
    });
    let fields = [
        ("account", json!(create.account)),
        ("amount_cu", json!(create.amount_cu)),
        ("request_id", json!(create.id)),
        ("ttl_s", json!(create.ttl)),
        ("overrun", json!(overrun)),
        ("on_expiry", json!(on_expiry)),
        ("rates", json!(rates)),
        ("key", json!(create.once.key)),
    ];
    request("reserve", fields)
}

fn commit(words: &Commit) -> Result<Value, Failure> {
    let usage = words.input_tokens.map(|_| {
        object([
            ("input_tokens", json!(words.input_tokens)),
            ("output_tokens", json!(words.output_tokens)),
            ("cached_input_tokens", json!(words.cached_input_tokens)),
            ("cache_write_tokens", json!(words.cache_write_tokens)),
            ("reasoning_tokens", json!(words.reasoning_tokens)),
        ])
    });
    // A final commit is known by its reservation; a part can be meant twice.
    let key = if words.partial { key(&words.once)? } else { json!(words.once.key) };
    let fields = [
        ("id", json!(words.id)),
        ("actual_cu", json!(words.amount_cu)),
        ("usage", json!(usage)),
        ("final", json!(!words.partial)),
        ("key", key),
    ];
    Ok(request("commit", fields))
}

pub(super) fn escrows(escrows: &Escrows) -> Result<Asking, Failure> {
    Ok(match escrows {
        Escrows::Hold { account, amount_cu, feature, id, once } => Asking::Change(request(
            "escrow_hold",
            [
                ("account", json!(account)),
                ("amount_cu", json!(amount_cu)),
                ("feature", json!(feature)),
                ("escrow_id", json!(id)),
                ("key", key(once)?),
            ],
        )),
        Escrows::Settle { id, payee, once } => {
            let fields = [("escrow_id", json!(id)), ("payee", json!(payee)), ("key", json!(once.key))];
            Asking::Change(request("escrow_settle", fields))
        }
        Escrows::Refund(Refund { id, key, .. }) => {
            Asking::Change(request("escrow_refund", [("escrow_id", json!(id)), ("key", json!(key))]))
        }
        Escrows::Partial { id, payee, settle_cu, refund_cu, once } => Asking::Change(request(
            "escrow_partial",
            [
                ("escrow_id", json!(id)),
                ("payee", json!(payee)),
                ("settle_cu", json!(settle_cu)),
                ("refund_cu", json!(refund_cu)),
                ("key", json!(once.key)),
            ],
        )),
        Escrows::Show { id } => Asking::Look(request("escrow", [("escrow_id", json!(id))])),
        Escrows::Orphans { after, limit } => {
            Asking::Look(request("escrow_orphans", [("after", json!(after)), ("limit", json!(limit))]))
        }
    })
}
