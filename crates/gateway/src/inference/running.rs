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

/// How often the memory is summed up: once in so many answers.
const BYTES_EVERY: u64 = 256;

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
    /// In the order in which they are looked at.
    order: VecDeque<(Name, Instant)>,
    bytes_max: usize,
    /// How many were put here, ever.
    puts: u64,
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
        let shelf =
            |bytes_max| Mutex::new(Shelf { answers: HashMap::new(), order: VecDeque::new(), bytes_max, puts: 0 });
        Self { keyed: shelf(KEYED_BYTES_MAX), unkeyed: shelf(UNKEYED_BYTES_MAX) }
    }

    /// What is there for a request. A key with another body is refused.
    pub(crate) fn find(&self, ask: &Ask, now: Instant) -> Result<Found, ApiError> {
        let name = name(ask);
        let mut shelf = lock(if ask.wish.key.is_some() { &self.keyed } else { &self.unkeyed });
        let known = shelf.answers.get(&name).filter(|shelved| !shelved.live.never_began());
        let joins = |shelved: &Shelved| (ask.wish.key.is_some() || ask.wish.is_retry) && !shelved.live.was_refused();
        match known {
            Some(shelved) if ask.wish.key.is_some() && shelved.fingerprint != ask.fingerprint => {
                Err(Refusal::KeyReused.into())
            }
            Some(shelved) if joins(shelved) => Ok(Found::Known(Arc::clone(&shelved.live))),
            Some(_) | None => {
                let live = Live::new(ask.charge);
                let shelved = Shelved { fingerprint: ask.fingerprint, live: Arc::clone(&live), put_at: now };
                shelf.put(name, shelved, now);
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
    fn put(&mut self, name: Name, shelved: Shelved, now: Instant) {
        // The sum is taken only now and then: it costs as much as there are answers.
        let bytes = if self.puts.is_multiple_of(BYTES_EVERY) { self.bytes() } else { 0 };
        self.tidy(now, bytes);
        self.puts += 1;
        self.order.push_back((name, shelved.put_at));
        self.answers.insert(name, shelved);
    }

    /// Lets go of what is too old, and of the oldest while there is too much. One that is still coming is passed over: it
    /// must not keep those behind it.
    fn tidy(&mut self, now: Instant, mut bytes: usize) {
        for _ in 0..self.order.len() {
            let Some((name, put_at)) = self.order.pop_front() else { return };
            let current = self.answers.get(&name).filter(|shelved| shelved.put_at == put_at);
            // Another has taken its place, and its own in the order.
            let Some(shelved) = current else { continue };
            let old = now.saturating_duration_since(put_at) >= KEPT;
            if !(old || bytes > self.bytes_max) {
                self.order.push_front((name, put_at));
                return;
            }
            if shelved.live.has_ended() {
                bytes = bytes.saturating_sub(shelved.live.bytes() + ANSWER_BYTES);
                self.answers.remove(&name);
            } else {
                self.order.push_back((name, put_at));
            }
        }
    }

    fn bytes(&self) -> usize {
        self.answers.values().map(|shelved| shelved.live.bytes() + ANSWER_BYTES).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    const FULL: usize = 8 << 10;

    struct World {
        shelf: Shelf,
        start: Instant,
    }

    impl World {
        fn new() -> Self {
            let (answers, order) = (HashMap::new(), VecDeque::new());
            Self { shelf: Shelf { answers, order, bytes_max: FULL, puts: 0 }, start: Instant::now() }
        }

        fn put(&mut self, number: u32, at_s: u64) -> Arc<Live> {
            let live = Live::new("inf_1".parse().unwrap());
            let now = self.start + Duration::from_secs(at_s);
            let shelved = Shelved { fingerprint: [0; 32], live: Arc::clone(&live), put_at: now };
            self.shelf.put(named(number), shelved, now);
            live
        }

        fn finished(&mut self, number: u32, at_s: u64) {
            self.put(number, at_s).whole(200, Bytes::from_static(b"{}"), None);
        }

        fn has(&self, number: u32) -> bool {
            self.shelf.answers.contains_key(&named(number))
        }
    }

    fn named(number: u32) -> Name {
        let mut name = [0; 32];
        name[..4].copy_from_slice(&number.to_le_bytes());
        name
    }

    #[test]
    fn an_answer_that_is_long_in_coming_keeps_nothing_behind_it() {
        let mut world = World::new();
        let long = world.put(0, 0);
        world.finished(1, 1);
        world.finished(2, 1_000);
        assert!(world.has(0) && !world.has(1) && world.has(2));
        long.whole(200, Bytes::from_static(b"{}"), None);
        world.finished(3, 2_000);
        world.finished(4, 2_001);
        assert!(!world.has(0) && !world.has(2) && world.has(3) && world.has(4));
    }

    #[test]
    fn memory_is_bounded_however_many_come_at_once() {
        let mut world = World::new();
        let long = world.put(0, 0);
        for number in 1..=10_000 {
            world.finished(number, 1);
        }
        let most = FULL / ANSWER_BYTES + usize::try_from(BYTES_EVERY).unwrap();
        assert!(world.shelf.answers.len() <= most && world.shelf.order.len() <= most, "{}", world.shelf.order.len());
        assert!(world.has(10_000) && world.has(0), "the newest, and one that is still coming");
        assert!(!long.has_ended());
    }

    #[test]
    fn one_that_takes_the_place_of_another_is_kept_for_its_own_time() {
        let mut world = World::new();
        world.put(1, 0).refuse(ApiError::AlreadyAnswered { charge: "inf_1".parse().unwrap() });
        world.finished(1, 200);
        world.finished(2, 400);
        assert!(world.has(1) && world.has(2));
        world.finished(3, 501);
        assert!(!world.has(1) && world.has(2) && world.has(3));
    }
}
