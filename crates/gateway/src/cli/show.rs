//! Which fields of an answer people see, in which order.

use super::args::{LookAtAccounts, Reservations};
use super::limits::LIMIT;
use super::output::{Field, Output};
use serde_json::Value;
use std::io;

/// How one kind of answer is shown.
pub(super) type Show = fn(&Output, &Value) -> io::Result<()>;

const RECEIPT: [Field; 21] = [
    ("outcome", "outcome"),
    ("entry", "offset"),
    ("kind", "kind"),
    ("id", "id"),
    ("account", "account"),
    ("state", "state"),
    ("amount", "amount_cu"),
    ("charged", "charged_cu"),
    ("returned", "returned_cu"),
    ("uncollected", "uncollected_cu"),
    ("settled", "settled_cu"),
    ("payee", "payee"),
    ("feature", "feature"),
    ("expires", "expires_at"),
    ("queue item", "queue_item_id"),
    ("reason", "reason"),
    ("available", "available_cu"),
    ("held", "held_cu"),
    ("final", "final"),
    ("at", "at"),
    ("key", "key"),
];

/// What a command did.
pub(super) fn receipt(output: &Output, answer: &Value) -> io::Result<()> {
    output.object(answer, &RECEIPT)
}

/// How the answers of `accounts` are shown.
pub(super) fn for_accounts(accounts: &LookAtAccounts) -> Show {
    match accounts {
        LookAtAccounts::List { .. } => account_list,
        LookAtAccounts::Show { .. } => balance,
        LookAtAccounts::History { .. } => history,
    }
}

/// How the answers of `reservations` are shown.
pub(super) fn for_reservations(reservations: &Reservations) -> Show {
    match reservations {
        Reservations::Show { .. } => reservation,
        Reservations::List { .. } => reservation_list,
        Reservations::Create(_)
        | Reservations::Start { .. }
        | Reservations::Commit(_)
        | Reservations::Release { .. }
        | Reservations::Increase { .. }
        | Reservations::Extend { .. }
        | Reservations::Void { .. }
        | Reservations::Ack { .. }
        | Reservations::Fail { .. } => receipt,
    }
}

pub(super) fn list<'a>(answer: &'a Value, field: &str) -> &'a [Value] {
    answer.get(field).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

pub(super) fn more(output: &Output, answer: &Value, option: &str) -> io::Result<()> {
    match answer.get("next") {
        Some(Value::String(next)) => output.line(&format!("more: --{option} {next}")),
        Some(Value::Number(next)) => output.line(&format!("more: --{option} {next}")),
        Some(Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_)) | None => Ok(()),
    }
}

fn account_list(output: &Output, answer: &Value) -> io::Result<()> {
    let fields = [
        ("account", "account"),
        ("available", "available_cu"),
        ("held", "held_cu"),
        ("open holds", "open_holds"),
        ("entries", "entries"),
    ];
    output.rows(list(answer, "accounts"), &fields)?;
    more(output, answer, "after")
}

fn balance(output: &Output, answer: &Value) -> io::Result<()> {
    let fields = [
        ("account", "account"),
        ("as of entry", "offset"),
        ("as of", "at"),
        ("available", "available_cu"),
        ("held", "held_cu"),
        ("balance", "balance_cu"),
        ("open holds", "open_holds"),
        ("entries", "entries"),
        ("last entry", "last_offset"),
    ];
    output.object(answer, &fields)?;
    match list(answer, "limits") {
        [] => Ok(()),
        limits => {
            output.line("")?;
            output.rows(limits, &LIMIT)
        }
    }
}

fn history(output: &Output, answer: &Value) -> io::Result<()> {
    let fields = [
        ("entry", "offset"),
        ("at", "at"),
        ("kind", "kind"),
        ("about", "correlation_id"),
        ("state", "state"),
        ("change", "change_cu"),
        ("available", "available_cu"),
        ("held", "held_cu"),
    ];
    output.rows(list(answer, "entries"), &fields)?;
    more(output, answer, "before")
}

fn reservation(output: &Output, answer: &Value) -> io::Result<()> {
    let fields = [
        ("id", "id"),
        ("account", "account"),
        ("state", "state"),
        ("stage", "stage"),
        ("held", "held_cu"),
        ("charged", "charged_cu"),
        ("uncollected", "uncollected_cu"),
        ("expires", "expires_at"),
        ("overrun", "overrun"),
        ("on expiry", "on_expiry"),
        ("rates", "rates"),
    ];
    output.object(answer, &fields)?;
    output.line("")?;
    let life = [
        ("entry", "offset"),
        ("at", "at"),
        ("kind", "kind"),
        ("amount", "amount_cu"),
        ("charged", "charged_cu"),
        ("returned", "returned_cu"),
        ("uncollected", "uncollected_cu"),
        ("state", "state"),
        ("reason", "reason"),
    ];
    output.rows(list(answer, "life"), &life)
}

fn reservation_list(output: &Output, answer: &Value) -> io::Result<()> {
    let fields = [
        ("id", "id"),
        ("account", "account"),
        ("held", "held_cu"),
        ("charged", "charged_cu"),
        ("stage", "stage"),
        ("expires", "expires_at"),
    ];
    output.rows(list(answer, "reservations"), &fields)
}

/// An escrow as it stands.
pub(super) fn escrow(output: &Output, answer: &Value) -> io::Result<()> {
    let fields = [
        ("id", "escrow_id"),
        ("account", "account"),
        ("state", "state"),
        ("amount", "amount_cu"),
        ("feature", "feature"),
        ("held", "held_at"),
        ("ended", "ended_at"),
        ("payee", "payee"),
        ("settled", "settled_cu"),
        ("returned", "returned_cu"),
        ("queue item", "queue_item_id"),
        ("reason", "reason"),
    ];
    output.object(answer, &fields)
}

/// Escrows that no queue item has, and what to do about them.
pub(super) fn orphans(output: &Output, answer: &Value) -> io::Result<()> {
    let fields = [
        ("escrow", "escrowId"),
        ("user", "userId"),
        ("amount", "amount"),
        ("feature", "featureType"),
        ("held", "createdAt"),
    ];
    let orphans = list(answer, "orphans");
    if orphans.is_empty() && answer.get("next").is_none_or(Value::is_null) {
        return output.line("none: every escrow that is held for longer has its queue item");
    }
    output.rows(orphans, &fields)?;
    more(output, answer, "after")?;
    output.line("take each into the queue (POST /api/v1/queue/items), or give it back: holdfast escrows refund ID")
}
