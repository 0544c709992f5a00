//! One connection: lines in, answers out, in order. Commands are handed to the engine as they come and wait side by side.
//!
//! # Invariants
//! - What waits is bounded, in lines and in bytes: a caller who does not read is not read from.
//! - A question sees every command before it on its connection, and none after it.

use super::lines::{Line, Lines};
use crate::service::{Asked, LINE_BYTES_MAX, Service, refuse};
use crate::wire::error::WireError;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use tokio::io::{AsyncWriteExt, BufReader, BufWriter};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

/// The most lines of one connection that wait for their answers.
const LINES_WAITING_MAX: usize = 1_024;
/// The most bytes of one connection's lines that wait for their answers.
const BYTES_WAITING_MAX: usize = 4 * LINE_BYTES_MAX;
const BUFFER_BYTES: usize = 64 * 1_024;

// One line must always fit, or a connection could wait for itself.
const _: () = assert!(LINE_BYTES_MAX < BYTES_WAITING_MAX && BYTES_WAITING_MAX <= u32::MAX as usize);

type Answering = Pin<Box<dyn Future<Output = String> + Send>>;

/// A line that has been taken, on the way to its answer.
struct Waiting {
    answering: Answering,
    _bytes: OwnedSemaphorePermit,
}

/// Serves one connection until its end, or until `stopping` says so and everything taken is answered.
pub(super) async fn serve(stream: UnixStream, service: Arc<Service>, stopping: watch::Receiver<bool>) {
    let (from, to) = stream.into_split();
    let (taken, waiting) = mpsc::channel(LINES_WAITING_MAX);
    // A caller that has gone away changes nothing of what was done: both ends just stop.
    let (_read, _written) = tokio::join!(take_lines(from, service, stopping, taken), write_answers(to, waiting));
}

async fn take_lines(
    from: OwnedReadHalf,
    service: Arc<Service>,
    mut stopping: watch::Receiver<bool>,
    taken: mpsc::Sender<Waiting>,
) -> io::Result<()> {
    let mut lines = Lines::new(BufReader::with_capacity(BUFFER_BYTES, from), LINE_BYTES_MAX);
    let room = Arc::new(Semaphore::new(BYTES_WAITING_MAX));
    loop {
        let line = tokio::select! {
            biased;
            _ = stopping.wait_for(|stopping| *stopping) => return Ok(()),
            line = lines.next() => line?,
        };
        let Some(line) = line else { return Ok(()) };
        let bytes = match &line {
            Line::Whole(bytes) => bytes.len(),
            Line::TooLong => 0,
        };
        let permits = u32::try_from(bytes).expect("a line is at most LINE_BYTES_MAX");
        let room = Arc::clone(&room).acquire_many_owned(permits).await.map_err(io::Error::other)?;
        let answering = begin(&service, line).await;
        if taken.send(Waiting { answering, _bytes: room }).await.is_err() {
            return Ok(());
        }
    }
}

/// Begins to answer a line: a command is with the engine when this returns, a question is answered.
async fn begin(service: &Arc<Service>, line: Line) -> Answering {
    let asked = match line {
        Line::Whole(bytes) => Asked::read(&bytes),
        Line::TooLong => Err(WireError::TooLong { max: LINE_BYTES_MAX }),
    };
    match asked {
        Err(error) => ready(refuse(error)),
        Ok(
            question @ (Asked::Question(_)
            | Asked::Keys(_)
            | Asked::Limits(_)
            | Asked::Obligations(_)
            | Asked::Queue(_)),
        ) => ready(service.answer(question).await),
        Ok(command @ (Asked::Command(_) | Asked::Batch(_))) => {
            let service = Arc::clone(service);
            let mut answering: Answering = Box::pin(async move { service.answer(command).await });
            match poll_once(&mut answering).await {
                Poll::Ready(answer) => ready(answer),
                Poll::Pending => answering,
            }
        }
    }
}

fn ready(answer: String) -> Answering {
    Box::pin(std::future::ready(answer))
}

async fn poll_once(answering: &mut Answering) -> Poll<String> {
    poll_fn(|context| Poll::Ready(answering.as_mut().poll(context))).await
}

async fn write_answers(to: OwnedWriteHalf, mut waiting: mpsc::Receiver<Waiting>) -> io::Result<()> {
    let mut to = BufWriter::with_capacity(BUFFER_BYTES, to);
    while let Some(Waiting { mut answering, _bytes }) = waiting.recv().await {
        let answer = match poll_once(&mut answering).await {
            Poll::Ready(answer) => answer,
            Poll::Pending => {
                to.flush().await?;
                answering.await
            }
        };
        to.write_all(answer.as_bytes()).await?;
        to.write_all(b"\n").await?;
        if waiting.is_empty() {
            to.flush().await?;
        }
    }
    to.shutdown().await
}
