//! What the upstream remembers of every call: the provider's own side of the story, to compare a gateway's books with.

use super::answer::Usage;
use super::script::Behaviour;
use serde::{Deserialize, Serialize};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// How far a call has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Progress {
    /// Still being answered.
    Running,
    /// The last byte was handed to the connection.
    Finished,
    /// The client was gone before the last byte.
    HungUp,
    /// The upstream itself broke it off.
    BrokenOff,
}

/// One call, as the upstream saw it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// The number of the call, from 1; the answer's id ends with it.
    pub number: u64,
    /// The path.
    pub route: String,
    /// The model that was asked for.
    pub model: String,
    /// The body's `user`, or Anthropic's `metadata.user_id`.
    #[serde(default)]
    pub tag: Option<String>,
    /// `x-request-id`, `x-holdfast-request-id` or `idempotency-key`, whichever came.
    #[serde(default)]
    pub request_id: Option<String>,
    /// The most tokens that the caller allowed.
    #[serde(default)]
    pub max_tokens: Option<u64>,
    /// Whether a stream was asked for.
    pub stream: bool,
    /// The status of the answer; none if there was no answer.
    pub status: Option<u16>,
    /// What the script said; none if nothing.
    pub behaviour: Option<Behaviour>,
    /// What the call used, in truth.
    pub usage: Option<Usage>,
    /// Whether that usage was handed to the connection, and was not made nonsense of.
    pub usage_sent: bool,
    /// Chunks with text or tool arguments that were sent.
    pub chunks_sent: usize,
    /// How far it has come.
    pub progress: Progress,
}

/// All calls so far.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Calls {
    /// How many there were, remembered or not.
    pub count: u64,
    /// The details, in the order in which they came; none of a server that only counts.
    pub calls: Vec<Call>,
}

/// Whether details are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// Of every call.
    Details,
    /// Only their number: for a benchmark, whose millions of calls would fill the memory.
    Count,
}

/// The calls of a running server.
#[derive(Debug)]
pub(crate) struct Register {
    keep: Keep,
    calls: Mutex<Calls>,
    noted: watch::Sender<()>,
}

impl Register {
    pub(crate) fn new(keep: Keep) -> Self {
        let calls = Mutex::new(Calls { count: 0, calls: Vec::new() });
        Self { keep, calls, noted: watch::Sender::new(()) }
    }

    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call and returns its number.
    pub(crate) fn add(&self, call: impl FnOnce(u64) -> Call) -> u64 {
        let mut calls = self.lock();
        calls.count += 1;
        let number = calls.count;
        if self.keep == Keep::Details {
            calls.calls.push(call(number));
        }
        number
    }

    /// Notes something about a call.
    pub(crate) fn note(&self, number: u64, change: impl FnOnce(&mut Call)) {
        if self.keep == Keep::Count {
            return;
        }
        let mut calls = self.lock();
        // Forgotten calls leave a gap at the front, never in between.
        let forgotten = calls.count - calls.calls.len() as u64;
        let index = number.checked_sub(forgotten + 1).and_then(|index| usize::try_from(index).ok());
        if let Some(call) = index.and_then(|index| calls.calls.get_mut(index)) {
            change(call);
        }
        drop(calls);
        self.noted.send_replace(());
    }

    /// The call of this number once it has ended, which may be never.
    pub(crate) async fn ended(&self, number: u64) -> Call {
        let mut noted = self.noted.subscribe();
        loop {
            // Marked as seen before looking, so that what is noted in between is noticed.
            noted.borrow_and_update();
            let found = self.lock().calls.iter().find(|call| call.number == number).cloned();
            if let Some(call) = found.filter(|call| call.progress != Progress::Running) {
                return call;
            }
            // The sender is our own, so this cannot fail.
            let _noted = noted.changed().await;
        }
    }

    pub(crate) fn all(&self) -> Calls {
        self.lock().clone()
    }

    /// Forgets the details; the count goes on, because ids are made of it.
    pub(crate) fn forget(&self) {
        self.lock().calls.clear();
    }
}
