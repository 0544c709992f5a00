//! The load: so many connections, each doing cycle after cycle, and looking at every answer.
//!
//! Of an answer only what is looked at is read, and bodies are put together as text: the driver has the same processors, and what
//! it does for a call must not depend on how much that call says.
//!
//! # Invariants
//! - An answer that is not the right one fails the measurement: a wrong figure is worse than none.
//! - No key is ever used twice: nothing that is measured is a repetition.

use super::Subject;
use crate::error::BenchError;
use crate::latency::Latencies;
use crate::plan::Stop;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// No answer takes as long, even from a busy machine.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
const USERS: usize = 16;
/// Two calls or four.
pub const CALLS_MAX: usize = 4;

/// Whom to ask, and for what.
#[derive(Debug, Clone)]
pub struct Load {
    /// `http://ADDRESS`.
    pub url: String,
    /// The bearer.
    pub token: String,
    /// Which cycle.
    pub subject: Subject,
    /// How many ask at the same time.
    pub connections: usize,
    /// Which turn of these.
    pub turn: u32,
}

/// What came of it.
#[derive(Debug)]
pub struct Taken {
    /// How many cycles were done.
    pub cycles: usize,
    /// How long each of their calls took, in the order of [`Subject::calls`].
    pub calls: [Latencies; CALLS_MAX],
    /// From the first request to the last answer.
    pub elapsed: Duration,
}

/// Whose money is spent.
pub fn users() -> impl Iterator<Item = String> {
    (0..USERS).map(|number| format!("user-{number}"))
}

/// Does cycles for so long, on connections opened for it.
///
/// # Errors
/// If anything but right answers comes.
pub async fn run(load: &Load, duration: Duration, stop: &Stop) -> Result<Taken, BenchError> {
    let mut tasks = JoinSet::new();
    let began = Instant::now();
    for number in 0..load.connections {
        tasks.spawn(work(load.clone(), number, began + duration, stop.clone()));
    }
    let mut taken = Taken { cycles: 0, calls: Default::default(), elapsed: Duration::ZERO };
    while let Some(ended) = tasks.join_next().await {
        let (cycles, calls) = ended.map_err(|error| BenchError::NotApplied(error.to_string()))??;
        taken.cycles += cycles;
        taken.calls.iter_mut().zip(calls).for_each(|(all, of_one)| all.merge(of_one));
    }
    taken.elapsed = began.elapsed();
    Ok(taken)
}

async fn work(
    load: Load,
    number: usize,
    until: Instant,
    stop: Stop,
) -> Result<(usize, [Latencies; CALLS_MAX]), BenchError> {
    let mut caller = Caller::connect(&load).await?;
    let user = format!("user-{}", number % USERS);
    let mut cycles = 0;
    while Instant::now() < until {
        stop.check()?;
        let key = format!("{}-{}-{}-{number}-{cycles}", load.subject.name(), load.connections, load.turn);
        match load.subject {
            Subject::Escrow => caller.escrow(&user, &key).await?,
            Subject::Reservation => caller.reservation(&user, &key).await?,
        }
        cycles += 1;
    }
    Ok((cycles, caller.calls))
}

/// What an answer must say.
#[derive(Clone, Copy)]
enum Expected {
    /// Of an escrow or an item: its state.
    Status(&'static str),
    /// Of a reservation: what was done.
    Kind(&'static str),
}

impl Expected {
    fn is_met_by(self, seen: &Seen<'_>) -> bool {
        match self {
            Self::Status(status) => seen.status == Some(status),
            Self::Kind(kind) => seen.kind == Some(kind),
        }
    }
}

/// What is looked at in an answer.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Seen<'a> {
    status: Option<&'a str>,
    kind: Option<&'a str>,
    escrow_id: Option<&'a str>,
    queue_item_id: Option<&'a str>,
}

impl<'a> Seen<'a> {
    /// What is no such answer says nothing.
    fn in_answer(answer: &'a [u8]) -> Self {
        serde_json::from_slice(answer).unwrap_or_default()
    }
}

/// One connection, and how long its calls took.
struct Caller {
    sender: SendRequest<Full<Bytes>>,
    address: String,
    authorization: String,
    calls: [Latencies; CALLS_MAX],
}

impl Caller {
    async fn connect(load: &Load) -> Result<Self, BenchError> {
        let address = load.url.trim_start_matches("http://").to_owned();
        let stream = TcpStream::connect(&address).await.map_err(BenchError::io(format!("connect to {address}")))?;
        stream.set_nodelay(true).map_err(BenchError::io("set TCP_NODELAY"))?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(failed)?;
        // May safely die: it ends with its sender.
        tokio::spawn(connection);
        Ok(Self { sender, address, authorization: format!("Bearer {}", load.token), calls: Default::default() })
    }

    async fn escrow(&mut self, user: &str, key: &str) -> Result<(), BenchError> {
        let hold = format!(r#"{{"userId":"{user}","amount":"1","featureType":"solo","idempotencyKey":"{key}"}}"#);
        let escrow = self.call(0, "/api/v1/escrows", None, hold, Expected::Status("held")).await?;
        let intake = format!(
            r#"{{"userId":"{user}","modelId":"payee","escrowId":"{escrow}","amount":"1","featureType":"solo"}}"#
        );
        let item = self.call(1, "/api/v1/queue/items", Some(key), intake, Expected::Status("queued")).await?;
        let path = |word: &str| format!("/api/v1/queue/items/{item}/{word}");
        self.call(2, &path("start"), None, "{}".to_owned(), Expected::Status("in_progress")).await?;
        self.call(3, &path("finish"), None, "{}".to_owned(), Expected::Status("finished")).await.map(drop)
    }

    async fn reservation(&mut self, user: &str, key: &str) -> Result<(), BenchError> {
        let reserve = format!(r#"{{"account_id":"{user}","request_id":"{key}","amount_cu":"1"}}"#);
        self.call(0, "/api/v1/reservations", Some(key), reserve, Expected::Kind("billing_reserve")).await?;
        let path = format!("/api/v1/reservations/{key}/commit");
        let commit = r#"{"actual_cu":"1"}"#.to_owned();
        self.call(1, &path, None, commit, Expected::Kind("billing_commit")).await.map(drop)
    }

    /// One call, timed; its answer must say what is expected. Gives the id that the answer is about.
    async fn call(
        &mut self,
        place: usize,
        path: &str,
        key: Option<&str>,
        body: String,
        expected: Expected,
    ) -> Result<String, BenchError> {
        let body = Bytes::from(body);
        let asked = Instant::now();
        let answer = tokio::time::timeout(ANSWER_WITHIN, self.ask(path, key, body));
        let (status, answer) = answer.await.map_err(|_| BenchError::Hung { after: ANSWER_WITHIN })??;
        self.calls[place].record(asked.elapsed());
        let seen = Seen::in_answer(&answer);
        if matches!(status, 200 | 201) && expected.is_met_by(&seen) {
            return Ok(seen.queue_item_id.or(seen.escrow_id).unwrap_or_default().to_owned());
        }
        Err(BenchError::NotApplied(format!("{path}: {status} {}", String::from_utf8_lossy(&answer))))
    }

    async fn ask(&mut self, path: &str, key: Option<&str>, body: Bytes) -> Result<(u16, Bytes), BenchError> {
        let mut request = Request::post(path)
            .header("host", &self.address)
            .header("authorization", &self.authorization)
            .header("content-type", "application/json");
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let request = request.body(Full::new(body)).map_err(|error| BenchError::NotApplied(error.to_string()))?;
        self.sender.ready().await.map_err(failed)?;
        let response = self.sender.send_request(request).await.map_err(failed)?;
        let status = response.status().as_u16();
        Ok((status, response.into_body().collect().await.map_err(failed)?.to_bytes()))
    }
}

fn failed(error: hyper::Error) -> BenchError {
    BenchError::NotApplied(error.to_string())
}
