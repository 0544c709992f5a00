//! The load: so many connections, each doing cycle after cycle, and looking at every answer.
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
use serde_json::{Value, json};
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
        let hold = json!({ "userId": user, "amount": "1", "featureType": "solo", "idempotencyKey": key });
        let held = self.call(0, "/api/v1/escrows", None, &hold, ("status", "held")).await?;
        let intake = json!({
            "userId": user, "modelId": "payee", "escrowId": held["escrowId"], "amount": "1", "featureType": "solo",
        });
        let put = self.call(1, "/api/v1/queue/items", Some(key), &intake, ("status", "queued")).await?;
        let item = put["queueItemId"].as_str().unwrap_or_default();
        let path = |word: &str| format!("/api/v1/queue/items/{item}/{word}");
        self.call(2, &path("start"), None, &json!({}), ("status", "in_progress")).await?;
        self.call(3, &path("finish"), None, &json!({}), ("status", "finished")).await.map(drop)
    }

    async fn reservation(&mut self, user: &str, key: &str) -> Result<(), BenchError> {
        let reserve = json!({ "account_id": user, "request_id": key, "amount_cu": "1" });
        self.call(0, "/api/v1/reservations", Some(key), &reserve, ("kind", "billing_reserve")).await?;
        let path = format!("/api/v1/reservations/{key}/commit");
        self.call(1, &path, None, &json!({ "actual_cu": "1" }), ("kind", "billing_commit")).await.map(drop)
    }

    /// One call, timed; its answer must have this text in this field.
    async fn call(
        &mut self,
        place: usize,
        path: &str,
        key: Option<&str>,
        body: &Value,
        expected: (&str, &str),
    ) -> Result<Value, BenchError> {
        let body = Bytes::from(body.to_string());
        let asked = Instant::now();
        let answer = tokio::time::timeout(ANSWER_WITHIN, self.ask(path, key, body));
        let (status, answer) = answer.await.map_err(|_| BenchError::Hung { after: ANSWER_WITHIN })??;
        self.calls[place].record(asked.elapsed());
        let value: Value = serde_json::from_slice(&answer).unwrap_or_default();
        let (field, text) = expected;
        if matches!(status, 200 | 201) && value[field] == text {
            return Ok(value);
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
