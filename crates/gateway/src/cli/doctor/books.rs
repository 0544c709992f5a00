//! The books and the keys, asked of the server if one runs, and else of the directory itself.

use super::Finding;
use crate::cli::door::{Door, IfMissing};
use crate::failure::Failure;
use crate::identity::{SigningKeys, now};
use crate::node;
use crate::settings::Settings;
use crate::wire::time::Moment;
use holdfast_adapters::postgres::Database;
use holdfast_domain::Timestamp;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// A key that is older should have a successor.
const KEY_AGE_MAX_DAYS: u64 = 90;
/// Two clocks that differ by more refuse each other's tokens.
const CLOCK_OFF_MAX_MS: u64 = 5_000;
const SIGNING_KEY: &str = "signing key";
const DAY_MS: u64 = 24 * 60 * 60 * 1_000;
/// The first of January 2025: a clock before it has never been set.
const CLOCK_MIN_MS: u64 = 1_735_689_600_000;

/// What was found, and whether a server runs.
pub(super) struct Books {
    pub(super) findings: Vec<Finding>,
    pub(super) is_served: bool,
}

/// Checks the journal, the clock and the keys.
pub(super) fn check(data: &Path, settings: &Settings) -> Books {
    let mut door = match Door::open(data, settings, IfMissing::Refuse) {
        Ok(door) => door,
        Err(Failure::NoData(_)) => {
            let journal = Finding::pass("journal", "none yet; the first start begins one");
            return Books { findings: vec![journal, clock(None)], is_served: false };
        }
        Err(failure) => return Books { findings: vec![Finding::failed("journal", &failure)], is_served: false },
    };
    let is_served = matches!(door, Door::Server(_));
    let mut findings = looked_at(&mut door, is_served);
    findings.push(match &settings.database {
        Some(database) => shared_signing_key(database),
        None => signing_keys(data),
    });
    if let Err(failure) = door.close() {
        findings.push(Finding::failed("journal", &failure));
    }
    Books { findings, is_served }
}

fn looked_at(door: &mut Door, is_served: bool) -> Vec<Finding> {
    let mut findings = match about_journal(door, is_served) {
        Ok(findings) => findings,
        Err(finding) => vec![finding],
    };
    let keys = ask(door, "API keys", &json!({ "op": "keys", "limit": 1_000 }));
    findings.push(keys.map_or_else(|finding| finding, |keys| callers_keys(&keys)));
    findings
}

fn about_journal(door: &mut Door, is_served: bool) -> Result<Vec<Finding>, Finding> {
    const CHECK: &str = "journal";
    let health = ask(door, CHECK, &json!({ "op": "health" }))?;
    let totals = ask(door, CHECK, &json!({ "op": "totals" }))?;
    let last = match health["durable"].as_u64() {
        Some(offset) if offset > 0 => Some(ask(door, CHECK, &json!({ "op": "entry", "offset": offset }))?),
        Some(_) | None => None,
    };
    Ok(vec![server(&health, is_served), journal(&health, &totals), clock(last.as_ref())])
}

/// Asks one thing; if it is refused, that is what the check has found.
fn ask(door: &mut Door, check: &str, request: &Value) -> Result<Value, Finding> {
    let line = door.ask(request).map_err(|failure| Finding::failed(check, &failure))?;
    let answer: Value = serde_json::from_str(&line)
        .map_err(|error| Finding::failed(check, &Failure::ServerStrange(error.to_string())))?;
    if answer["ok"] == Value::Bool(true) {
        return Ok(answer);
    }
    let text = |field: &str| answer["error"][field].as_str().unwrap_or_default().to_owned();
    let (code, message) = (text("code"), text("message"));
    Err(Finding::fail(check, format!("{code}: {message}"), format!("docs/errors/{code}.md says more")))
}

fn server(health: &Value, is_served: bool) -> Finding {
    const CHECK: &str = "server";
    if !is_served {
        return Finding::pass(CHECK, "none runs; the directory was opened as one would");
    }
    let (pid, version) = (&health["pid"], health["version"].as_str().unwrap_or_default());
    if version == env!("CARGO_PKG_VERSION") {
        return Finding::pass(CHECK, format!("process {pid} serves it, version {version}"));
    }
    let found = format!("process {pid} is version {version}, and this program is {}", env!("CARGO_PKG_VERSION"));
    Finding::warn(CHECK, found, "restart the server with the program that its commands are given with")
}

fn journal(health: &Value, totals: &Value) -> Finding {
    const CHECK: &str = "journal";
    if let Some(why) = health["failed"].as_str() {
        return Finding::fail(CHECK, why, "check the disk, then restart the server: what was acknowledged is there");
    }
    if totals["imbalance"] != "0" {
        let found = format!("the accounts do not sum to zero but to {}", totals["imbalance"]);
        return Finding::fail(CHECK, found, "stop the server and run `holdfast journal verify`");
    }
    if let Some(why) = health["read_model_failed"].as_str() {
        let found = format!("sound, but its read model is not: {why}");
        return Finding::fail(CHECK, found, "stop the server and run `holdfast rebuild`");
    }
    let found =
        format!("{} entries, durable and balanced; `holdfast journal verify` checks every byte", health["durable"]);
    if health["recovered"]["torn_tails_cut"].as_u64() > Some(0) {
        let advice = "nothing that was acknowledged is lost; find out why the last run did not end in order";
        return Finding::warn(CHECK, format!("{found}; a torn tail was cut at the start"), advice);
    }
    Finding::pass(CHECK, found)
}

/// Whether the clock has been set, and has not gone back behind the last entry.
fn clock(last: Option<&Value>) -> Finding {
    const CHECK: &str = "clock";
    const ADVICE: &str = "have it set by NTP";
    let time = now();
    let found = Moment(time).to_string();
    if time.millis() < CLOCK_MIN_MS {
        return Finding::fail(CHECK, format!("{found}: it has never been set"), ADVICE);
    }
    let entry: Option<Timestamp> =
        last.and_then(|entry| entry["at"].as_str()?.parse().ok()).map(|Moment(entry_at)| entry_at);
    match entry.map(|entry_at| entry_at.millis().saturating_sub(time.millis())) {
        Some(behind) if behind > CLOCK_OFF_MAX_MS => {
            let found = format!("{found}, which is {} s before the last entry of the journal", behind / 1_000);
            Finding::warn(CHECK, found, ADVICE)
        }
        Some(_) | None => Finding::pass(CHECK, found),
    }
}

fn signing_keys(data: &Path) -> Finding {
    let store = data.join("identity.db");
    if fs::metadata(&store).is_ok_and(|found| found.permissions().mode() & 0o077 != 0) {
        let found = format!("others than its owner may read {}", store.display());
        return Finding::fail(SIGNING_KEY, found, format!("chmod 600 {}", store.display()));
    }
    match SigningKeys::open(data) {
        Err(error) => Finding::failed(SIGNING_KEY, &error.into()),
        Ok(None) => Finding::pass(SIGNING_KEY, "none yet; the first start makes one"),
        Ok(Some(keys)) => age(keys.newest_at(), "its owner's only"),
    }
}

/// The key that all nodes of a database sign with.
fn shared_signing_key(database: &Database) -> Finding {
    match node::with_shared_identity(database, |identity| Ok(identity.signing.newest_at())) {
        Err(failure) => Finding::failed(SIGNING_KEY, &failure),
        Ok(made_at) => age(made_at, "in the database, for all nodes"),
    }
}

fn age(made_at: Timestamp, whose: &str) -> Finding {
    let age_days = now().millis().saturating_sub(made_at.millis()) / DAY_MS;
    let found = format!("ES256, {age_days} days old, {whose}");
    if age_days > KEY_AGE_MAX_DAYS {
        Finding::warn(SIGNING_KEY, found, "give it a successor: holdfast keys rotate")
    } else {
        Finding::pass(SIGNING_KEY, found)
    }
}

/// API keys are random and cannot be weak; they can be old, or stay for ever.
fn callers_keys(answer: &Value) -> Finding {
    const CHECK: &str = "API keys";
    let keys = answer["keys"].as_array().map_or(&[][..], Vec::as_slice);
    let good: Vec<&Value> =
        keys.iter().filter(|key| key["revoked_at"].is_null() && !is_past(&key["expires_at"])).collect();
    let is_admin =
        |key: &&&Value| key["scopes"].as_array().is_some_and(|scopes| scopes.iter().any(|scope| scope == "admin"));
    let admins: Vec<&&Value> = good.iter().filter(is_admin).collect();
    let old = |key: &&&&Value| key["expires_at"].is_null() && age_days(&key["made_at"]) > KEY_AGE_MAX_DAYS;
    let found = format!("{} good, {} of them an admin's; all of 256 random bits", good.len(), admins.len());
    match admins.iter().find(old) {
        Some(key) => {
            let id = key["id"].as_str().unwrap_or_default();
            let found = format!("{found}; the admin key {id} is {} days old and never ends", age_days(&key["made_at"]));
            let advice = format!("holdfast keys new --admin --expires 90d, then holdfast keys revoke {id}");
            Finding::warn(CHECK, found, advice)
        }
        None => Finding::pass(CHECK, found),
    }
}

fn moment(value: &Value) -> Option<Timestamp> {
    value.as_str()?.parse().ok().map(|Moment(at)| at)
}

fn is_past(value: &Value) -> bool {
    moment(value).is_some_and(|at| at <= now())
}

fn age_days(value: &Value) -> u64 {
    moment(value).map_or(0, |at| now().millis().saturating_sub(at.millis()) / DAY_MS)
}
