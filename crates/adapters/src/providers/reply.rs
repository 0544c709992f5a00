//! What comes back: a whole answer, or pieces of one as they come.

use super::call::Dialect;
use super::error::ProviderError;
use super::pool::Ward;
use super::reader;
use super::usage::Reported;
use super::{echo, http};
use bytes::Bytes;
use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};

/// An answer.
#[derive(Debug)]
pub enum Reply {
    /// All of it.
    Whole(Whole),
    /// Piece by piece.
    Stream(PieceStream),
}

/// An answer in one body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Whole {
    /// The status, 2xx.
    pub status: u16,
    /// The body, in the caller's dialect.
    pub body: Bytes,
    /// The dialect of the body.
    pub dialect: Dialect,
    /// What it used.
    pub usage: Reported,
}

impl Whole {
    /// The text of the answer, tool calls and reasoning included: to count tokens where usage is missing or nonsense.
    #[must_use]
    pub fn text(&self) -> String {
        reader::text_of_whole(self.dialect, &self.body)
    }
}

/// One event of a stream, or the few that it was translated into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Whole events in the caller's dialect: forward them as they are, at once.
    pub bytes: Bytes,
    /// The output in it: text, reasoning, names and arguments of tool calls.
    pub text: String,
    /// The usage as known so far. Before the last piece its input is right where it is there, but its output may lag.
    pub usage: Reported,
    /// Whether it tells usage and nothing else; only a caller that asked for usage expects such a piece.
    pub only_usage: bool,
    /// Whether it is the last one.
    pub last: bool,
}

/// Where pieces come from.
#[derive(Debug)]
pub(crate) enum Source {
    Http(Box<http::Incoming>),
    Echo(Box<echo::Speech>),
}

impl Source {
    async fn next(&mut self) -> Result<Piece, ProviderError> {
        match self {
            Self::Http(incoming) => incoming.next().await,
            Self::Echo(speech) => speech.next().await,
        }
    }
}

/// The pieces of an answer. Dropping it drops the connection to the provider.
pub struct PieceStream {
    ready: VecDeque<Piece>,
    source: Source,
    ended: bool,
    ward: Option<Ward>,
    _permit: Option<OwnedSemaphorePermit>,
}

/// Events that come before the first token are held back for as long as this, so that another target can still be tried.
const HOLD_BACK: Duration = Duration::from_millis(1_000);
/// A provider that sends this much without a token is let through.
const HOLD_BACK_PIECES: usize = 16;

impl PieceStream {
    /// Waits for the first token, so that a stream that fails before it is an error and not a stream.
    pub(crate) async fn begun(mut source: Source, permit: Option<OwnedSemaphorePermit>) -> Result<Self, ProviderError> {
        let first = source.next().await?;
        let until = Instant::now() + HOLD_BACK;
        let mut begun = !first.text.is_empty() || first.last;
        let mut ready = VecDeque::from([first]);
        while !begun && ready.len() < HOLD_BACK_PIECES {
            let Ok(next) = timeout_at(until, source.next()).await else { break };
            let piece = next?;
            begun = !piece.text.is_empty() || piece.last;
            ready.push_back(piece);
        }
        Ok(Self { ready, source, ended: false, ward: None, _permit: permit })
    }

    /// The next piece; none after the last one or after an error. It may be dropped while waiting without losing a piece.
    pub async fn next(&mut self) -> Option<Result<Piece, ProviderError>> {
        if self.ended {
            return None;
        }
        let next = match self.ready.pop_front() {
            Some(piece) => Ok(piece),
            None => self.source.next().await,
        };
        self.ended = next.as_ref().map_or(true, |piece| piece.last);
        if let (Err(error), Some(ward)) = (&next, &self.ward) {
            ward.report(error.health());
        }
        Some(next)
    }

    /// Reports how the stream ends to its target's breaker.
    pub(crate) fn watched(mut self, ward: Ward) -> Self {
        self.ward = Some(ward);
        self
    }
}

impl fmt::Debug for PieceStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PieceStream")
            .field("ready", &self.ready.len())
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}
