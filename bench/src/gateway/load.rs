//! The load: so many connections, each asking again as soon as it has its answer, and looking at every answer.
//!
//! One thread, so that the driver takes at most one core from those whom it measures; its own processor time is reported.
//!
//! # Invariants
//! - An answer that is not the whole right answer fails the measurement: a wrong figure is worse than none.

use super::Shape;
use crate::error::BenchError;
use crate::latency::Latencies;
use crate::plan::Stop;
use crate::servers::upstream::{CHUNKS, MODEL};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// No answer takes as long, even from a busy machine.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// Whom to ask, and for what.
#[derive(Debug, Clone)]
pub struct Load {
    /// `http://ADDRESS`.
    pub url: String,
    /// The bearer.
    pub key: String,
    /// Whole or streamed.
    pub shape: Shape,
    /// How many ask at the same time.
    pub connections: usize,
}

impl Load {
    fn address(&self) -> &str {
        self.url.trim_start_matches("http://")
    }
}

/// A connection on which one asks at a time.
pub type Line = SendRequest<Full<Bytes>>;

/// Opens the connections of a load.
///
/// # Errors
/// If nobody listens there.
pub async fn open(load: &Load) -> Result<Vec<Line>, BenchError> {
    let address = load.address();
    let mut lines = Vec::new();
    for _ in 0..load.connections {
        let stream = TcpStream::connect(address).await.map_err(BenchError::io(format!("connect to {address}")))?;
        stream.set_nodelay(true).map_err(BenchError::io("set TCP_NODELAY"))?;
        let (line, connection) = handshake(TokioIo::new(stream)).await.map_err(failed)?;
        // May safely die: it ends with its line.
        tokio::spawn(connection);
        lines.push(line);
    }
    Ok(lines)
}

/// Asks for so long on all lines, and leaves them open; at half-time calls `look`.
///
/// # Errors
/// If anything but right answers comes.
pub async fn run(
    load: &Load,
    lines: &mut Vec<Line>,
    duration: Duration,
    stop: &Stop,
    look: impl FnOnce(),
) -> Result<(Latencies, Duration), BenchError> {
    let mut tasks = JoinSet::new();
    let began = Instant::now();
    for line in lines.drain(..) {
        tasks.spawn(ask_until(line, load.clone(), began + duration, stop.clone()));
    }
    tokio::time::sleep(duration / 2).await;
    look();
    let mut all = Latencies::default();
    while let Some(ended) = tasks.join_next().await {
        let (line, latencies) = ended.map_err(|error| BenchError::NotApplied(error.to_string()))??;
        lines.push(line);
        all.merge(latencies);
    }
    Ok((all, began.elapsed()))
}

async fn ask_until(mut line: Line, load: Load, until: Instant, stop: Stop) -> Result<(Line, Latencies), BenchError> {
    let body = body(load.shape);
    let mut latencies = Latencies::default();
    while Instant::now() < until {
        stop.check()?;
        let asked = Instant::now();
        let answer = tokio::time::timeout(ANSWER_WITHIN, ask(&mut line, &load, body.clone()));
        let answer = answer.await.map_err(|_| BenchError::Hung { after: ANSWER_WITHIN })??;
        latencies.record(asked.elapsed());
        verify(load.shape, &answer)?;
    }
    Ok((line, latencies))
}

fn failed(error: hyper::Error) -> BenchError {
    BenchError::NotApplied(error.to_string())
}

async fn ask(line: &mut Line, load: &Load, body: Bytes) -> Result<Bytes, BenchError> {
    let request = Request::post("/v1/chat/completions")
        .header("host", load.address())
        .header("authorization", format!("Bearer {}", load.key))
        .header("content-type", "application/json")
        .body(Full::new(body))
        .map_err(|error| BenchError::NotApplied(error.to_string()))?;
    line.ready().await.map_err(failed)?;
    let response = line.send_request(request).await.map_err(failed)?;
    let status = response.status();
    let answer = response.into_body().collect().await.map_err(failed)?.to_bytes();
    if status.is_success() {
        return Ok(answer);
    }
    Err(BenchError::NotApplied(format!("{status}: {}", String::from_utf8_lossy(&answer))))
}

fn body(shape: Shape) -> Bytes {
    let stream = match shape {
        Shape::Whole => "",
        Shape::Stream => r#","stream":true,"stream_options":{"include_usage":true}"#,
    };
    let message = r#"{"role":"user","content":"Say twenty words, one after the other, and nothing else."}"#;
    format!(r#"{{"model":"{MODEL}","max_tokens":64,"messages":[{message}]{stream}}}"#).into()
}

/// Every word is there, in order, and the end.
fn verify(shape: Shape, answer: &[u8]) -> Result<(), BenchError> {
    let wrong = |what: &str| {
        let text = String::from_utf8_lossy(answer);
        BenchError::NotApplied(format!("{what}: {}", text.chars().take(300).collect::<String>()))
    };
    let mut rest = std::str::from_utf8(answer).map_err(|_| wrong("not text"))?;
    for number in 1..=CHUNKS {
        let word = format!("word-{number:02}");
        let at = rest.find(&word).ok_or_else(|| wrong("a word is missing"))?;
        rest = rest.get(at + word.len()..).unwrap_or_default();
    }
    if !rest.contains("\"usage\"") && !std::str::from_utf8(answer).is_ok_and(|text| text.contains("\"usage\"")) {
        return Err(wrong("no usage"));
    }
    let has_end = rest.trim_end().ends_with("data: [DONE]");
    match shape {
        Shape::Stream if !has_end => Err(wrong("a stream without its end")),
        Shape::Stream | Shape::Whole => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_answer_is_right() {
        let words: String = (1..=CHUNKS).map(|number| format!("data: word-{number:02}\n\n")).collect();
        let check = |text: String, is_right: bool| {
            assert_eq!(verify(Shape::Stream, text.as_bytes()).is_ok(), is_right, "{text}");
        };
        check(format!("{words}data: \"usage\"\n\ndata: [DONE]\n\n"), true);
        check(format!("{words}data: \"usage\"\n\n"), false);
        check(format!("{words}data: [DONE]\n\n"), false);
        check(format!("{}data: \"usage\"\n\ndata: [DONE]\n\n", words.replace("word-07", "")), false);
    }
}
