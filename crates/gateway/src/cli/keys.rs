//! `holdfast keys`: asked of the server if one runs, so that a change counts at once.

use super::args::{Keys, NewKey};
use super::door::IfMissing;
use super::output::{Field, Output};
use super::{Ended, Session, requests};
use crate::failure::Failure;
use crate::identity::LeftBehind;
use crate::node;
use serde_json::{Value, json};
use std::io;

const KEY: [Field; 9] = [
    ("id", "id"),
    ("account", "account_id"),
    ("name", "name"),
    ("key", "hint"),
    ("scopes", "scopes"),
    ("daily limit", "daily_limit_cu"),
    ("total limit", "total_limit_cu"),
    ("expires", "expires_at"),
    ("revoked", "revoked_at"),
];

/// Runs the command.
pub(super) fn run(session: &Session<'_>, command: &Keys) -> Result<(), Ended> {
    match command {
        Keys::New(new) => session.show(&make(new), IfMissing::Make, made),
        Keys::List { account, after, limit } => {
            let fields = [("account", json!(account)), ("after", json!(after)), ("limit", json!(limit))];
            session.show(&requests::request("keys", fields), IfMissing::Refuse, list)
        }
        Keys::Show { id } => session.show(&requests::request("key", [("id", json!(id))]), IfMissing::Refuse, one),
        Keys::Revoke { id } => {
            session.show(&requests::request("key_revoke", [("id", json!(id))]), IfMissing::Refuse, one)
        }
        Keys::Import => import(session),
        Keys::Rotate => session.show(&json!({ "op": "signing_key_rotate" }), IfMissing::Refuse, rotated),
    }
}

/// Copies what the data directory has and the database does not.
fn import(session: &Session<'_>) -> Result<(), Ended> {
    let Some(database) = &session.settings.database else {
        let allowed = "the database to copy the keys to, as postgres://USER:PASSWORD@HOST:PORT/DATABASE".to_owned();
        let name = "HOLDFAST_DATABASE_URL".to_owned();
        return Err(Failure::Setting { name, value: String::new(), allowed }.into());
    };
    let data = session.cli.global.data.clone();
    let copied = node::with_shared_identity(database, move |shared| LeftBehind::find(&data, &shared)?.copy_to(&shared));
    let (keys, limits) = copied?;
    let answer = json!({ "ok": true, "keys": keys, "limits": limits });
    if session.output.is_json() {
        return Ok(session.output.line(&answer.to_string())?);
    }
    Ok(session.output.object(&answer, &[("keys copied", "keys"), ("limits copied", "limits")])?)
}

fn make(new: &NewKey) -> Value {
    let fields = [
        ("account", json!(new.account)),
        ("name", json!(new.name)),
        ("expires_s", json!(new.expires)),
        ("daily_limit_cu", json!(new.daily_limit_cu)),
        ("total_limit_cu", json!(new.total_limit_cu)),
        ("scopes", if new.admin { json!(["admin"]) } else { json!(new.scope) }),
    ];
    requests::request("key_new", fields)
}

fn made(output: &Output, answer: &Value) -> io::Result<()> {
    output.line(answer.get("api_key").and_then(Value::as_str).unwrap_or_default())?;
    output.line("")?;
    output.line("This is the only time that the key is shown: it is stored as a hash.")?;
    one(output, answer)
}

fn one(output: &Output, answer: &Value) -> io::Result<()> {
    output.object(answer, &KEY)
}

fn list(output: &Output, answer: &Value) -> io::Result<()> {
    output.rows(answer.get("keys").and_then(Value::as_array).map_or(&[], Vec::as_slice), &KEY)?;
    match answer.get("next").and_then(Value::as_str) {
        Some(next) => output.line(&format!("more: --after {next}")),
        None => Ok(()),
    }
}

fn rotated(output: &Output, answer: &Value) -> io::Result<()> {
    output.object(answer, &[("new signing key", "kid")])
}
