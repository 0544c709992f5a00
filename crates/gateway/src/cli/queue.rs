//! `holdfast queue`: the performance queue, as whoever operates it sees it. Asked of the server that has it.

use super::door::IfMissing;
use super::output::{Field, Output};
use super::show::{list, more};
use super::{Ended, Session, requests};
use clap::Subcommand;
use clap::builder::PossibleValuesParser;
use holdfast_domain::queue::{Cause, State};
use serde_json::{Value, json};
use std::io;

/// The fields of an item, in the order in which people see them.
const ITEM: [Field; 15] = [
    ("item", "queueItemId"),
    ("state", "status"),
    ("reason", "statusReason"),
    ("payee", "modelId"),
    ("user", "userId"),
    ("amount", "amount"),
    ("settled", "settleAmount"),
    ("returned", "refundAmount"),
    ("escrow", "escrowId"),
    ("feature", "featureType"),
    ("priority", "priority"),
    ("came", "createdAt"),
    ("given up at", "dropAt"),
    ("taken up", "startedAt"),
    ("ended", "completedAt"),
];
/// The columns of a list.
const COLUMNS: [Field; 8] = [
    ("item", "queueItemId"),
    ("state", "status"),
    ("payee", "modelId"),
    ("user", "userId"),
    ("amount", "amount"),
    ("priority", "priority"),
    ("came", "createdAt"),
    ("reason", "statusReason"),
];

const EXAMPLES: &str = "\
Examples:
  holdfast queue list                                  what has not ended, the next first
  holdfast queue list --payee mia --state queued       who waits for mia
  holdfast queue list --state abandoned                what was given up, the last first, and why
  holdfast queue next mia                              have mia take up the next one
  holdfast queue finish qi_01K9                        it was done: mia gets all of it
  holdfast queue abandon qi_01K9 --reason user_disconnected   it will not be done: the user gets all of it back
  holdfast queue partial qi_01K9 6 4                   a part was done: mia gets 6, the user gets 4 back

An item is queued, then in progress, then finished, abandoned or partial, once. Its escrow ends with it.
Callers use the API (docs/queue.md); these commands are for whoever operates it, and need the running server.";

#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(super) enum Queue {
    /// Items by priority, then age; those that have ended, the last to end first
    List {
        /// Of this payee only
        #[arg(long)]
        payee: Option<String>,
        /// In this state only; if not said, those that have not ended
        #[arg(long, value_parser = states())]
        state: Option<String>,
        /// Those after this one
        #[arg(long, value_name = "ID")]
        after: Option<String>,
        /// At most so many
        #[arg(long)]
        limit: Option<u64>,
    },
    /// One item, however old
    Show { id: String },
    /// Have an item taken up by its payee
    Start { id: String },
    /// Have the next item of a payee taken up
    Next { payee: String },
    /// The work was done: the payee gets all of it
    Finish { id: String },
    /// It will not be done: the user gets all of it back
    Abandon {
        id: String,
        /// Why, for the record
        #[arg(long, default_value = "admin_cancelled", value_parser = causes())]
        reason: String,
    },
    /// A part was done: both get their part
    Partial {
        id: String,
        /// What the payee gets
        #[arg(allow_hyphen_values = true)]
        settle_cu: String,
        /// What the user gets back; both add up to the escrow
        #[arg(allow_hyphen_values = true)]
        refund_cu: String,
        /// Why, for the record
        #[arg(long, default_value = "partial_delivery", value_parser = causes())]
        reason: String,
    },
}

fn states() -> PossibleValuesParser {
    PossibleValuesParser::new(State::ALL.map(State::name))
}

/// Why an item is not, or not wholly, done.
fn causes() -> PossibleValuesParser {
    let all = Cause::ALL.into_iter().filter(|cause| *cause != Cause::PerformanceCompleted);
    PossibleValuesParser::new(all.map(Cause::name))
}

/// Runs the command.
pub(super) fn run(session: &Session<'_>, command: &Queue) -> Result<(), Ended> {
    let ask = |request: &Value, show| session.show(request, IfMissing::Refuse, show);
    let of = |op: &str, id: &str| requests::request(op, [("id", json!(id))]);
    match command {
        Queue::List { payee, state, after, limit } => {
            let fields =
                [("payee", json!(payee)), ("state", json!(state)), ("after", json!(after)), ("limit", json!(limit))];
            ask(&requests::request("queue_list", fields), rows)
        }
        Queue::Show { id } => ask(&of("queue_item", id), one),
        Queue::Start { id } => ask(&of("queue_start", id), taken_up),
        Queue::Next { payee } => ask(&requests::request("queue_next", [("payee", json!(payee))]), taken_up),
        Queue::Finish { id } => ask(&of("queue_finish", id), ended),
        Queue::Abandon { id, reason } => {
            ask(&requests::request("queue_abandon", [("id", json!(id)), ("reason", json!(reason))]), ended)
        }
        Queue::Partial { id, settle_cu, refund_cu, reason } => {
            let fields = [
                ("id", json!(id)),
                ("settle_cu", json!(settle_cu)),
                ("refund_cu", json!(refund_cu)),
                ("reason", json!(reason)),
            ];
            ask(&requests::request("queue_partial", fields), ended)
        }
    }
}

fn one(output: &Output, answer: &Value) -> io::Result<()> {
    output.object(answer, &ITEM)
}

/// An item that has ended, and its escrow with it.
pub(super) fn ended(output: &Output, answer: &Value) -> io::Result<()> {
    one(output, answer)
}

fn taken_up(output: &Output, answer: &Value) -> io::Result<()> {
    let Some(id) = answer.get("queueItemId").and_then(Value::as_str) else {
        return output.line("nothing waits");
    };
    one(output, answer)?;
    output.line(&format!("when it is done: holdfast queue finish {id} (or partial, or abandon)"))
}

fn rows(output: &Output, answer: &Value) -> io::Result<()> {
    let items = list(answer, "items");
    if items.is_empty() {
        return output.line("no such items");
    }
    output.rows(items, &COLUMNS)?;
    more(output, answer, "after")
}
