//! Clients of the server: one connection each, bursts of requests without waiting, and a record of every one.

use super::history::{Answer, Fate, History, JOURNAL_FAILED, Outcome, Receipt, Sent};
use super::mix::{ACCOUNTS, Mix};
use super::order::{Body, Order};
use holdfast_simulator::rng::Rng;
use serde_json::Value;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// A server that does not answer for so long is hung.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);
/// How often a client still asks a server whose journal has failed, to see that nothing is acknowledged.
const BURSTS_AFTER_FAILURE: usize = 2;
/// Long enough for the server to be idle and seal the journal.
const SEAL_PAUSE: Duration = Duration::from_millis(8);
/// How long a client waits when the server cannot serve.
const BACK_OFF: Duration = Duration::from_millis(50);
/// The most requests that one client has under way.
const BURST_MAX: u64 = 24;

/// A connection to the server.
pub(crate) struct Connection {
    writer: UnixStream,
    reader: BufReader<UnixStream>,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoAnswer {
    /// The server is gone.
    Gone,
    /// The server is there and says nothing.
    Hung,
    /// What came back is not of the protocol.
    Garbled(String),
}

impl std::fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Gone => f.write_str("the server closed the connection"),
            Self::Hung => write!(f, "the server did not answer within {ANSWER_WITHIN:?}"),
            Self::Garbled(line) => write!(f, "the server answered {line}"),
        }
    }
}

impl From<io::Error> for NoAnswer {
    fn from(error: io::Error) -> Self {
        let hung = [io::ErrorKind::WouldBlock, io::ErrorKind::TimedOut].contains(&error.kind());
        if hung { Self::Hung } else { Self::Gone }
    }
}

impl Connection {
    pub(crate) fn open(socket: &Path) -> Result<Self, NoAnswer> {
        let writer = UnixStream::connect(socket)?;
        writer.set_read_timeout(Some(ANSWER_WITHIN))?;
        writer.set_write_timeout(Some(ANSWER_WITHIN))?;
        let reader = BufReader::new(writer.try_clone()?);
        Ok(Self { writer, reader })
    }

    /// Sends whole lines.
    pub(crate) fn send(&mut self, lines: &str) -> Result<(), NoAnswer> {
        Ok(self.writer.write_all(lines.as_bytes())?)
    }

    /// The next answer.
    pub(crate) fn receive(&mut self) -> Result<Value, NoAnswer> {
        let mut line = String::new();
        self.reader.read_line(&mut line)?;
        // A line without its end was cut off by the server's death, and says nothing.
        let line = line.strip_suffix('\n').ok_or(NoAnswer::Gone)?;
        serde_json::from_str(line).map_err(|_| NoAnswer::Garbled(line.to_owned()))
    }

    /// Asks one thing and waits for the answer.
    pub(crate) fn ask(&mut self, line: &str) -> Result<Value, NoAnswer> {
        self.send(&format!("{line}\n"))?;
        self.receive()
    }
}

/// How a client behaves between bursts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    /// The next burst follows at once.
    Busy,
    /// After a pause in which the server seals its journal.
    WithPauses,
}

/// What one client does.
pub(crate) struct Client<'a> {
    pub(crate) socket: &'a Path,
    pub(crate) mix: &'a Mix,
    /// What was sent before: some of it is sent again, and must be answered as before.
    pub(crate) history: &'a History,
    pub(crate) pace: Pace,
    pub(crate) stop: &'a AtomicBool,
}

/// What one client has to tell.
#[derive(Default)]
pub(crate) struct Haul {
    pub(crate) sent: Vec<Sent>,
    /// The greatest offset in any answer.
    pub(crate) seen: u64,
    /// Answers that may not be.
    pub(crate) complaints: Vec<String>,
    /// How many acknowledged requests were repeated and answered as before.
    pub(crate) repeated: u64,
    /// Whether the server has said that its journal failed: nothing may be acknowledged after that.
    journal_failed: bool,
    /// Whether the server has asked to be left alone for a while.
    back_off: bool,
}

/// One line of a burst.
enum Item {
    /// A new request, by its index in the haul.
    New(usize),
    /// Several new requests in one line.
    Batch(std::ops::Range<usize>),
    /// A request that was acknowledged before.
    Again(Receipt),
    Query,
}

impl Client<'_> {
    /// Sends bursts until it is told to stop or the server is gone.
    pub(crate) fn run(&self, mut rng: Rng, first: Vec<Order>) -> Haul {
        let mut haul = Haul::default();
        let ended = self.try_run(&mut rng, first, &mut haul);
        match ended {
            Ok(()) | Err(NoAnswer::Gone) => {}
            Err(broken @ (NoAnswer::Hung | NoAnswer::Garbled(_))) => haul.complaints.push(broken.to_string()),
        }
        haul
    }

    fn try_run(&self, rng: &mut Rng, first: Vec<Order>, haul: &mut Haul) -> Result<(), NoAnswer> {
        let mut connection = Connection::open(self.socket)?;
        let mut orders = first;
        let mut bursts_after_failure = 0;
        while !self.stop.load(Ordering::Relaxed) && bursts_after_failure <= BURSTS_AFTER_FAILURE {
            bursts_after_failure += usize::from(haul.journal_failed);
            for _ in 0..rng.between(1, BURST_MAX) {
                let order = self.mix.next(rng);
                orders.push(order);
                if rng.one_in(4) {
                    orders.extend(self.mix.follow_up(&order));
                }
            }
            self.burst(&mut connection, std::mem::take(&mut orders), rng, haul)?;
            if self.pace == Pace::WithPauses {
                thread::sleep(SEAL_PAUSE);
            }
            if std::mem::take(&mut haul.back_off) {
                thread::sleep(BACK_OFF);
            }
        }
        Ok(())
    }

    /// Sends all of `orders`, with some repetitions and queries between them, and reads all answers.
    fn burst(
        &self,
        connection: &mut Connection,
        orders: Vec<Order>,
        rng: &mut Rng,
        haul: &mut Haul,
    ) -> Result<(), NoAnswer> {
        let (mut lines, mut items) = (String::new(), Vec::new());
        let batch = orders.len() > 2 && rng.one_in(6);
        let start = haul.sent.len();
        if batch {
            let requests: Vec<String> = orders.iter().map(Order::line).collect();
            lines += &format!("{{\"op\":\"batch\",\"requests\":[{}]}}\n", requests.join(","));
            items.push(Item::Batch(start..start + orders.len()));
        }
        for (index, order) in (start..).zip(&orders) {
            if !batch {
                lines += &(order.line() + "\n");
                items.push(Item::New(index));
            }
            if rng.one_in(12)
                && let Some(again) = self.history.sent.get(rng.index(self.history.sent.len()))
                && let Fate::Done { receipt, .. } = &again.fate
            {
                lines += &(again.order.line() + "\n");
                items.push(Item::Again(receipt.clone()));
            }
            if rng.one_in(16) {
                lines += &query(rng, order);
                items.push(Item::Query);
            }
        }
        haul.sent.extend(orders.into_iter().map(Sent::new));
        connection.send(&lines)?;
        for item in items {
            let answer = connection.receive()?;
            haul.note(&item, answer, self.mix)?;
        }
        Ok(())
    }
}

fn query(rng: &mut Rng, order: &Order) -> String {
    match (rng.below(3), order.body) {
        (0, Body::Reserve { .. }) => format!("{{\"op\":\"reservation\",\"id\":\"r{}\"}}\n", order.number),
        (1, _) => "{\"op\":\"totals\"}\n".to_owned(),
        (_, _) => format!("{{\"op\":\"balance\",\"account\":\"a{}\"}}\n", rng.below(ACCOUNTS)),
    }
}

impl Haul {
    fn note(&mut self, item: &Item, answer: Value, mix: &Mix) -> Result<(), NoAnswer> {
        match item {
            Item::New(index) => self.note_one(*index, answer, mix),
            Item::Batch(range) => {
                let Some(answers) = batch_answers(&answer) else {
                    return self.note_failed_batch(range.clone(), answer);
                };
                if answers.len() != range.len() {
                    return Err(NoAnswer::Garbled(format!("{} answers to {} requests", answers.len(), range.len())));
                }
                range.clone().zip(answers).try_for_each(|(index, answer)| self.note_one(index, answer.clone(), mix))
            }
            Item::Again(before) => {
                match Answer::read(answer).map_err(NoAnswer::Garbled)? {
                    Answer::Done { outcome: Outcome::Replayed, receipt } if receipt == *before => self.repeated += 1,
                    Answer::Refused { code } if code.starts_with("SERVICE_") => {}
                    other @ (Answer::Done { .. } | Answer::Refused { .. }) => {
                        self.complaints.push(format!("acknowledged as {before:?}, and repeated as {other:?}"))
                    }
                }
                Ok(())
            }
            Item::Query => {
                self.seen = self.seen.max(told_offset(&answer));
                Ok(())
            }
        }
    }

    fn note_one(&mut self, index: usize, answer: Value, mix: &Mix) -> Result<(), NoAnswer> {
        let answer = Answer::read(answer).map_err(NoAnswer::Garbled)?;
        let sent = &mut self.sent[index];
        let line = sent.order.line();
        match &answer {
            Answer::Done { .. } if self.journal_failed => {
                self.complaints.push(format!("acknowledged after the journal had failed: {line}"));
            }
            Answer::Done { outcome: Outcome::Replayed, .. } => {
                self.complaints.push(format!("sent for the first time and answered as a repetition: {line}"));
            }
            Answer::Done { receipt, .. } => self.seen = self.seen.max(receipt.offset),
            Answer::Refused { code } if code == "INVALID_REQUEST" => {
                self.complaints.push(format!("the server does not understand {line}"));
            }
            Answer::Refused { code } => {
                self.journal_failed |= code == JOURNAL_FAILED;
                self.back_off |= code.starts_with("SERVICE_");
            }
        }
        sent.fate = answer.fate();
        mix.learn(sent);
        Ok(())
    }

    /// A batch that was refused as a whole: by overload nothing was done, by the journal's failure nobody knows.
    fn note_failed_batch(&mut self, range: std::ops::Range<usize>, answer: Value) -> Result<(), NoAnswer> {
        let fate = Answer::read(answer).map_err(NoAnswer::Garbled)?.fate();
        self.journal_failed |= fate == Fate::Unknown;
        self.sent[range].iter_mut().for_each(|sent| sent.fate = fate.clone());
        Ok(())
    }
}

/// The answers to the requests of a batch.
fn batch_answers(answer: &Value) -> Option<&Vec<Value>> {
    answer.get("answers")?.as_array()
}

/// The last entry that the answer to a query speaks of: an account's newest, or the newest in a reservation's life.
fn told_offset(answer: &Value) -> u64 {
    let life = answer.get("life").and_then(Value::as_array).into_iter().flatten();
    let entries = life.filter_map(|entry| entry.get("offset").and_then(Value::as_u64));
    entries.chain(answer.get("last_offset").and_then(Value::as_u64)).max().unwrap_or(0)
}
