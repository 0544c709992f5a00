//! Answers that are coming or have just come, so that the same request joins them instead of being answered again.
//!
//! Requests with a key are kept for [`KEPT`]. Those without one are kept too, as far as there is room: SDKs send none, but
//! say when they repeat themselves.
//!
//! # Invariants
//! - Memory is bounded: the oldest finished answers are let go. A key whose answer was let go is still never charged
//!   again, because the journal knows its charge.

use super::ask::Ask;
use super::live::Live;
use crate::http::ApiError;
use holdfast_engine::Refusal;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a finished answer is kept.
pub(crate) const KEPT: Duration = Duration::from_secs(5 * 60);
/// The memory for answers to requests with a key.
const KEYED_BYTES_MAX: usize = 16 << 20;
/// The memory for answers to requests without one.
const UNKEYED_BYTES_MAX: usize = 4 << 20;
/// What one answer takes beside its text.
const ANSWER_BYTES: usize = 512;

type Name = [u8; 32];

/// All of them.
pub(crate) struct Running {
    keyed: Mutex<Shelf>,
    unkeyed: Mutex<Shelf>,
}

/// What a request finds.
pub(crate) enum Found {
    /// Nobody has asked this: it is to be answered, for all who read here.
    New(Arc<Live>),
    /// It is being answered, or just was.
    Known(Arc<Live>),
}

struct Shelf {
    answers: HashMap<Name, Shelved>,
    /// In the order in which they were put here.
    order: VecDeque<(Name, Instant)>,
    bytes_max: usize,
}

struct Shelved {
    fingerprint: [u8; 32],
    live: Arc<Live>,
    put_at: Instant,
}

fn lock(shelf: &Mutex<Shelf>) -> MutexGuard<'_, Shelf> {
    shelf.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Running {
    pub(crate) fn new() -> Self {
        let shelf = |bytes_max| Mutex::new(Shelf { answers: HashMap::new(), order: VecDeque::new(), bytes_max });
        Self { keyed: shelf(KEYED_BYTES_MAX), unkeyed: shelf(UNKEYED_BYTES_MAX) }
    }

    /// What is there for a request. A key with another body is refused.
    pub(crate) fn find(&self, ask: &Ask, now: Instant) -> Result<Found, ApiError> {
        let name = name(ask);
        let mut shelf = lock(if ask.wish.key.is_some() { &self.keyed } else { &self.unkeyed });
        shelf.tidy(now);
        let known = shelf.answers.get(&name).filter(|shelved| !shelved.live.was_refused());
        match known {
            Some(shelved) if ask.wish.key.is_some() && shelved.fingerprint != ask.fingerprint => {
                Err(Refusal::KeyReused.into())
            }
            Some(shelved) if ask.wish.key.is_some() || ask.wish.is_retry => Ok(Found::Known(Arc::clone(&shelved.live))),
            Some(_) | None => {
                let live = Live::new();
                let shelved = Shelved { fingerprint: ask.fingerprint, live: Arc::clone(&live), put_at: now };
                shelf.answers.insert(name, shelved);
                shelf.order.push_back((name, now));
                Ok(Found::New(live))
            }
        }
    }
}

/// What a request is known by: its account and key, or its credential and body.
fn name(ask: &Ask) -> Name {
    let mut hasher = blake3::Hasher::new();
    match ask.wish.key {
        Some(_) => hasher.update(ask.charge.as_bytes()),
        None => hasher.update(ask.caller.credential.as_bytes()).update(b"\0").update(&ask.fingerprint),
    };
    *hasher.finalize().as_bytes()
}

impl Shelf {
    /// Lets go of what is too old, and of the oldest while there is too much.
    fn tidy(&mut self, now: Instant) {
        // The sum is taken only now and then: it costs as much as there are answers.
        let mut bytes = if self.order.len().is_multiple_of(256) { self.bytes() } else { 0 };
        while let Some((name, put_at)) = self.order.front().copied() {
            let current = self.answers.get(&name).filter(|shelved| shelved.put_at == put_at);
            let Some(shelved) = current else {
                self.order.pop_front();
                continue;
            };
            let old = now.saturating_duration_since(put_at) >= KEPT;
            if !shelved.live.has_ended() || !(old || bytes > self.bytes_max) {
                return;
            }
            bytes = bytes.saturating_sub(shelved.live.bytes() + ANSWER_BYTES);
            self.answers.remove(&name);
            self.order.pop_front();
        }
    }

    fn bytes(&self) -> usize {
        self.answers.values().map(|shelved| shelved.live.bytes() + ANSWER_BYTES).sum()
    }
}
