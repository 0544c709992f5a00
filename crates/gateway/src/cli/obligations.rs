//! `holdfast obligations`: what the peer is still to be told. Asked of the server that delivers it.

use super::door::IfMissing;
use super::output::{Field, Output};
use super::{Complaint, Ended, Session, requests};
use crate::failure::Failure;
use clap::{Args, Subcommand};
use holdfast_adapters::obligations::line::{decode_line, encode};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// How many are put by one request.
const PUT_AT_ONCE: usize = 500;

/// The fields of an obligation, in the order in which people see them.
const OBLIGATION: [Field; 9] = [
    ("obligation", "reservation_id"),
    ("account", "tenant_id"),
    ("amount", "amount_cu"),
    ("state", "state"),
    ("attempts", "attempt_count"),
    ("made", "created_at"),
    ("next attempt", "next_attempt_at"),
    ("in hand until", "leased_until"),
    ("last word", "reason"),
];
/// The columns of a list.
const COLUMNS: [Field; 7] = [
    ("obligation", "reservation_id"),
    ("account", "tenant_id"),
    ("amount", "amount_cu"),
    ("attempts", "attempt_count"),
    ("made", "created_at"),
    ("next attempt", "next_attempt_at"),
    ("last word", "reason"),
];

const EXAMPLES: &str = "\
Examples:
  holdfast obligations list                     what the peer is still to be told, the oldest first
  holdfast obligations list --dead              what was given up, and why
  holdfast obligations replay chg_1             tell the peer now
  holdfast obligations replay --all-since 2026-01-31T09:30:00Z   bring every dead letter since then back
  holdfast obligations resolve chg_1 --note 'credited by hand, ticket 12'
  holdfast obligations import server.log        put back what the log says could not be stored

A charge is told to the peer until the peer knows it. After the last attempt of its schedule, or an answer that no
attempt can better, it is a dead letter: kept for ever, until somebody replays or resolves it.";

#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(super) enum Obligations {
    /// What the peer is still to be told, the oldest first
    List {
        /// Those that were given up instead
        #[arg(long)]
        dead: bool,
        /// Those after this one
        #[arg(long, value_name = "ID")]
        after: Option<String>,
        /// At most so many
        #[arg(long)]
        limit: Option<u64>,
    },
    /// One of them
    Show { id: String },
    /// Tell the peer now, with all attempts before it
    Replay(Replay),
    /// Take a dead letter out for good, because it was settled by hand
    Resolve {
        id: String,
        /// How, for the record
        #[arg(long, value_name = "TEXT")]
        note: String,
    },
    /// Put back what the log says could not be stored (lines with `obligation_not_stored`); others are passed over
    Import {
        /// The log; - for standard input
        #[arg(default_value = "-")]
        file: PathBuf,
    },
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(super) struct Replay {
    /// This one, dead or waiting
    id: Option<String>,
    /// Every dead letter of a charge that was made since then, such as 2026-01-31T09:30:00Z
    #[arg(long, value_name = "TIME")]
    all_since: Option<String>,
}

/// Runs the command.
pub(super) fn run(session: &Session<'_>, command: &Obligations) -> Result<(), Ended> {
    let ask = |request: &Value, show| session.show(request, IfMissing::Refuse, show);
    match command {
        Obligations::List { dead, after, limit } => {
            let list = if *dead { "dead" } else { "pending" };
            let fields = [("list", json!(list)), ("after", json!(after)), ("limit", json!(limit))];
            ask(&requests::request("obligations", fields), rows)
        }
        Obligations::Show { id } => ask(&requests::request("obligation", [("id", json!(id))]), one),
        Obligations::Replay(Replay { id: Some(id), .. }) => {
            ask(&requests::request("obligation_replay", [("id", json!(id))]), replayed)
        }
        Obligations::Replay(Replay { id: None, all_since }) => replay_all(session, all_since.as_deref()),
        Obligations::Resolve { id, note } => {
            let fields = [("id", json!(id)), ("note", json!(note))];
            ask(&requests::request("obligation_resolve", fields), resolved)
        }
        Obligations::Import { file } => import(session, file),
    }
}

/// Brings dead letters back, so many at a time, until there are no more.
fn replay_all(session: &Session<'_>, since: Option<&str>) -> Result<(), Ended> {
    let request = requests::request("obligations_replay", [("since", json!(since))]);
    let mut replayed = 0;
    loop {
        let (_, answer) = session.ask(&request, IfMissing::Refuse)?;
        replayed += answer.get("replayed").and_then(Value::as_u64).unwrap_or(0);
        if answer.get("more") != Some(&Value::Bool(true)) {
            break;
        }
    }
    told(session, "replayed", replayed, "brought back")
}

/// Puts back what lines of a log say.
fn import(session: &Session<'_>, file: &Path) -> Result<(), Ended> {
    let reading = || Failure::io(format!("read {}", file.display()));
    let log: Box<dyn Read> = match file.to_str() {
        Some("-") => Box::new(io::stdin()),
        Some(_) | None => Box::new(File::open(file).map_err(reading())?),
    };
    let mut found = Vec::new();
    for (line, number) in BufReader::new(log).lines().zip(1_u64..) {
        found.extend(obligation_in(&line.map_err(reading())?, number)?);
    }
    for obligations in found.chunks(PUT_AT_ONCE) {
        session.ask(&json!({ "op": "obligations_put", "obligations": obligations }), IfMissing::Refuse)?;
    }
    told(session, "imported", found.len().try_into().unwrap_or(u64::MAX), "put back")
}

/// The obligation in a line of a log, if there is one.
fn obligation_in(line: &str, number: u64) -> Result<Option<Value>, Ended> {
    let found = decode_line(line).map_err(|error| {
        Ended::Refused(Complaint {
            code: "INVALID_REQUEST".to_owned(),
            message: format!("line {number} is about an obligation and cannot be read: {error}; nothing was imported"),
            hint: "mend that line: it is an obligation that must not be lost".to_owned(),
        })
    })?;
    Ok(found.and_then(|obligation| serde_json::from_str(&encode(&obligation)).ok()))
}

fn told(session: &Session<'_>, field: &str, count: u64, done: &str) -> Result<(), Ended> {
    let line = match (session.output.is_json(), count) {
        (true, count) => json!({ "ok": true, field: count }).to_string(),
        (false, 1) => format!("1 obligation {done}"),
        (false, count) => format!("{count} obligations {done}"),
    };
    Ok(session.output.line(&line)?)
}

fn one(output: &Output, answer: &Value) -> io::Result<()> {
    output.object(answer, &OBLIGATION)
}

fn replayed(output: &Output, answer: &Value) -> io::Result<()> {
    output.object(answer, &[("replayed", "reservation_id")])
}

fn resolved(output: &Output, answer: &Value) -> io::Result<()> {
    output.object(answer, &[("resolved", "reservation_id"), ("note", "note")])
}

fn rows(output: &Output, answer: &Value) -> io::Result<()> {
    output.rows(answer.get("obligations").and_then(Value::as_array).map_or(&[], Vec::as_slice), &COLUMNS)?;
    let count = |field| answer.get(field).and_then(Value::as_u64).unwrap_or(0);
    output.line(&format!("{} pending, {} dead", count("pending"), count("dead")))?;
    match answer.get("next").and_then(Value::as_str) {
        Some(next) => output.line(&format!("more: --after {next}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn obligations_are_found_in_a_log_and_never_passed_over() {
        let obligation =
            r#"{"reservation_id":"a","charge_id":"a","tenant_id":"b","actual_cost_micro":"7","created_at_ms":1}"#;
        let line = format!(r#"{{"level":"ERROR","event":"obligation_not_stored","obligation":{obligation}}}"#);
        let found = |line: &str| obligation_in(line, 7).ok().flatten();
        assert_eq!(found(&line), serde_json::from_str(obligation).ok());
        assert_eq!(found(&format!("2026-01-01T00:00:00Z server[1]: {line}\r")), found(&line));
        for other in ["", "all is well", r#"{"event":"other","of":"obligation"}"#] {
            assert!(matches!(obligation_in(other, 7), Ok(None)), "{other}");
        }
        for broken in [&line[..line.len() - 3], r#"{"event":"obligation_not_stored"}"#] {
            let Err(Ended::Refused(complaint)) = obligation_in(broken, 7) else {
                unreachable!("{broken} was passed over")
            };
            assert!(complaint.message.starts_with("line 7 "), "{}", complaint.message);
        }
    }
}
