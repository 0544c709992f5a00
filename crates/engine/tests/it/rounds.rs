//! A log that takes turns with the journal: whoever waits for either is told, whatever comes at the same time.

use crate::world::{mint, open};
use holdfast_engine::{Companion, Rounds};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

/// A log that writes nothing, and counts how often it is to.
#[derive(Default)]
struct Counted {
    waiting: Mutex<Vec<Sender<()>>>,
    writes: AtomicUsize,
}

impl Counted {
    /// Waits for a round. Only the first who waits rings: the round is for all of them.
    fn wait(&self, rounds: &Rounds) {
        let (teller, told) = channel();
        let is_first = {
            let mut waiting = self.waiting.lock().unwrap();
            waiting.push(teller);
            waiting.len() == 1
        };
        assert!(!is_first || rounds.ring());
        told.recv().unwrap();
    }
}

impl Companion for Counted {
    fn is_waited_for(&self) -> bool {
        !self.waiting.lock().unwrap().is_empty()
    }

    fn write(&self) -> Box<dyn FnOnce() + Send> {
        self.writes.fetch_add(1, Ordering::SeqCst);
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap());
        Box::new(move || waiting.into_iter().for_each(|told| told.send(()).unwrap()))
    }
}

#[test]
fn all_who_wait_for_either_log_are_told() {
    const EACH: usize = 200;
    let directory = tempfile::tempdir().unwrap();
    let world = open(directory.path());
    let (rounds, companion) = (world.engine.rounds(), Arc::new(Counted::default()));
    rounds.join(Arc::clone(&companion) as Arc<dyn Companion>);
    thread::scope(|scope| {
        for number in 0..4 {
            let (world, rounds, companion) = (&world, &rounds, &companion);
            scope.spawn(move || (0..EACH).for_each(|_| companion.wait(rounds)));
            scope.spawn(move || {
                for count in 0..EACH {
                    let _credited = world.submit(mint(&format!("{number}-{count}"), "alice", "1")).unwrap();
                }
            });
        }
    });
    assert_eq!(world.balance("alice").0, (4 * EACH).to_string());
    let writes = companion.writes.load(Ordering::SeqCst);
    assert!((1..=4 * EACH).contains(&writes), "{writes} writes for {} who waited", 4 * EACH);
    // Nobody waits: the journal's rounds leave it alone.
    let _credited = world.submit(mint("last", "alice", "1")).unwrap();
    assert_eq!(companion.writes.load(Ordering::SeqCst), writes);
    rounds.leave();
    assert_eq!(Arc::strong_count(&companion), 1, "who has left is let go");
    world.engine.stop().unwrap();
}

#[test]
fn a_ring_that_comes_with_a_request_is_not_lost_to_the_journal() {
    let directory = tempfile::tempdir().unwrap();
    let world = open(directory.path());
    let (rounds, companion) = (world.engine.rounds(), Arc::new(Counted::default()));
    rounds.join(Arc::clone(&companion) as Arc<dyn Companion>);
    for count in 0..500 {
        // Nothing comes after these two that could wake anybody for the other.
        thread::scope(|scope| {
            scope.spawn(|| companion.wait(&rounds));
            scope.spawn(|| world.submit(mint(&format!("with-{count}"), "alice", "1")).unwrap());
        });
    }
    assert_eq!(world.balance("alice").0, "500");
    world.engine.stop().unwrap();
}

#[test]
fn an_engine_that_has_stopped_says_that_no_round_will_come() {
    let directory = tempfile::tempdir().unwrap();
    let world = open(directory.path());
    let (rounds, companion) = (world.engine.rounds(), Arc::new(Counted::default()));
    rounds.join(Arc::clone(&companion) as Arc<dyn Companion>);
    companion.wait(&rounds);
    world.engine.stop().unwrap();
    assert!(!rounds.ring());
}
