//! The service behind every door: one line in, one line out. It reads, has the engine decide, and shows the answer.

mod query;

use crate::node::Node;
use crate::wire::answer::{ReceiptBody, line};
use crate::wire::command::{CommandBody, Given};
use crate::wire::error::{Problem, WireError};
use crate::wire::object::Object;
use crate::wire::question::{BatchBody, QuestionBody};
use holdfast_adapters::SystemClock;
use holdfast_domain::{Label, Timestamp};
use holdfast_engine::recovery::Report;
use holdfast_engine::{BATCH_MAX, Clock, Engine, Outcome, Refusal};
use holdfast_journal::LocalDisk;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::sync::Arc;

/// The longest line that is read.
pub(crate) const LINE_BYTES_MAX: usize = 4 * 1_024 * 1_024;

const COMMANDS: [&str; 14] = [
    "mint",
    "reserve",
    "start",
    "increase",
    "extend",
    "commit",
    "release",
    "void",
    "ack",
    "fail",
    "escrow_hold",
    "escrow_settle",
    "escrow_refund",
    "escrow_partial",
];
const QUESTIONS: [&str; 10] = [
    "balance",
    "balance_as_of",
    "accounts",
    "history",
    "reservation",
    "reservations",
    "escrow",
    "entry",
    "totals",
    "health",
];

/// The books, and how to speak of them.
pub(crate) struct Service {
    engine: Arc<Engine<LocalDisk>>,
    disk: LocalDisk,
    clock: Arc<SystemClock>,
    report: Report,
    actor: Label,
}

/// A line that has been understood.
#[derive(Debug)]
pub(crate) enum Asked {
    /// One change.
    Command(CommandBody),
    /// Many changes: each is a command, or the reason why it is none.
    Batch(Vec<Result<CommandBody, WireError>>),
    /// No change.
    Question(QuestionBody),
}

impl Service {
    /// The service of a running node.
    pub(crate) fn of(node: &Node) -> Self {
        Self {
            engine: Arc::clone(&node.engine),
            disk: node.disk.clone(),
            clock: Arc::clone(&node.clock),
            report: node.report,
            // Whoever reaches the socket or the directory is the operator.
            actor: "operator".parse().expect("a plain word"),
        }
    }

    /// Answers one line. The first poll hands a command to the engine, so lines polled in order are decided in order.
    pub(crate) async fn answer(&self, asked: Asked) -> String {
        match asked {
            Asked::Command(body) => line(self.command(body).await),
            Asked::Batch(bodies) => self.batch(bodies).await,
            Asked::Question(question) => self.question(question).await,
        }
    }

    /// Whether the journal has failed, and why.
    pub(crate) fn failed(&self) -> Option<String> {
        self.engine.health().failed
    }

    fn given(&self) -> Given {
        Given { actor: self.actor, now: self.clock.now() }
    }

    async fn command(&self, body: CommandBody) -> Result<ReceiptBody, Problem> {
        let request = body.into_request(self.given())?;
        let outcome = self.engine.submit(request).await?;
        Ok(ReceiptBody::from(&outcome))
    }

    async fn batch(&self, bodies: Vec<Result<CommandBody, WireError>>) -> String {
        if bodies.len() > BATCH_MAX {
            return refuse(Refusal::BatchTooLarge);
        }
        let given = self.given();
        let understood = |body: Result<CommandBody, WireError>| body?.into_request(given);
        let mut requests = Vec::with_capacity(bodies.len());
        // What each answer will be: known already, or the next of the engine's.
        let mut answers = Vec::with_capacity(bodies.len());
        for body in bodies {
            answers.push(understood(body).map(|request| requests.push(request)));
        }
        let decided = match self.engine.submit_batch(requests).await {
            Ok(decided) => decided,
            Err(refusal) => return refuse(refusal),
        };
        let mut decided = decided.into_iter();
        let mut next = || decided.next().unwrap_or(Err(Refusal::JournalFailed));
        let lines = answers.into_iter().map(|known| {
            let answer = known.and_then(|()| Ok(next()?));
            line(answer.map(|outcome: Outcome| ReceiptBody::from(&outcome)))
        });
        let lines: Vec<String> = lines.collect();
        format!(r#"{{"ok":true,"answers":[{}]}}"#, lines.join(","))
    }
}

/// The line that refuses.
pub(crate) fn refuse(problem: impl Into<Problem>) -> String {
    line::<()>(Err(problem.into()))
}

/// The refusal of a line that is badly said, whatever the books are.
pub(crate) fn refused_unasked(line: &str) -> Option<String> {
    let given = Given { actor: "nobody".parse().expect("a plain word"), now: Timestamp::EPOCH };
    match Asked::read(line.as_bytes()) {
        Ok(Asked::Command(body)) => body.into_request(given).err().map(refuse),
        Ok(Asked::Batch(_) | Asked::Question(_)) => None,
        Err(error) => Some(refuse(error)),
    }
}

impl Asked {
    /// Understands a line.
    pub(crate) fn read(line: &[u8]) -> Result<Self, WireError> {
        let text = std::str::from_utf8(line).map_err(|error| WireError::Malformed(format!("not UTF-8: {error}")))?;
        let op = op(text)?;
        if op == "batch" {
            let BatchBody { requests, .. } = shape(text)?;
            return Ok(Self::Batch(requests.into_iter().map(command).collect()));
        }
        if QUESTIONS.contains(&op.as_ref()) {
            return shape(text).map(Self::Question);
        }
        if COMMANDS.contains(&op.as_ref()) {
            return shape(text).map(Self::Command);
        }
        Err(unknown(&op))
    }
}

/// A line's `op`, whatever else it says.
fn op(text: &str) -> Result<Cow<'_, str>, WireError> {
    #[derive(Deserialize)]
    struct Head<'a> {
        #[serde(borrow)]
        op: Cow<'a, str>,
    }
    shape::<Head<'_>>(text).map(|head| head.op)
}

fn command(text: &RawValue) -> Result<CommandBody, WireError> {
    let op = op(text.get())?;
    if COMMANDS.contains(&op.as_ref()) { shape(text.get()) } else { Err(unknown(&op)) }
}

fn unknown(op: &str) -> WireError {
    let (commands, questions) = (COMMANDS.join(", "), QUESTIONS.join(", "));
    WireError::Malformed(format!(
        "there is no op {op:?}; the commands are {commands}; the questions are {questions}; batch takes commands only"
    ))
}

fn shape<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, WireError> {
    let Object(read) = serde_json::from_str(text).map_err(|error| WireError::Malformed(error.to_string()))?;
    Ok(read)
}
