//! Batches, which their caller decides on its own thread: told when durable, in order, beside everybody else.

use crate::hanging::{Gate, start};
use crate::world::{commit, mint, open, reserve};
use holdfast_engine::{Outcome, Refusal, Request};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

fn reserves(of: &str, count: usize) -> Vec<Request> {
    (0..count).map(|number| reserve(&format!("{of}-{number}"), "alice", "1")).collect()
}

fn commits(of: &str, count: usize) -> Vec<Request> {
    (0..count).map(|number| commit(&format!("{of}-{number}"), "1")).collect()
}

#[test]
fn a_batch_is_told_when_all_of_it_is_durable() {
    let directory = tempfile::tempdir().unwrap();
    let gate = Arc::new(Gate::default());
    let engine = start(directory.path(), &gate);
    let _credited = engine.submit_blocking(mint("m", "alice", "10000")).unwrap();
    // Longer than a frame, so that a part of it is at the disk while the rest is decided.
    for count in [1, 300, 5_000] {
        gate.shut();
        std::thread::scope(|scope| {
            let batch = scope.spawn(|| engine.submit_batch_blocking(reserves(&format!("r{count}"), count)).unwrap());
            while gate.hanging.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            assert!(!batch.is_finished(), "nothing of it is on the disk");
            gate.open();
            let answers = batch.join().unwrap();
            assert_eq!(answers.len(), count);
            assert!(answers.iter().all(|answer| matches!(answer, Ok(Outcome::Applied(_)))));
        });
    }
    engine.stop().unwrap();
}

/// Says that more will come than does.
struct Boast(std::vec::IntoIter<Request>, usize);

impl Iterator for Boast {
    type Item = Request;
    fn next(&mut self) -> Option<Request> {
        self.0.next()
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.1, Some(self.1))
    }
}

impl ExactSizeIterator for Boast {}

#[test]
fn a_batch_that_is_shorter_than_it_said_is_durable_and_keeps_nobody_waiting() {
    let directory = tempfile::tempdir().unwrap();
    let gate = Arc::new(Gate::default());
    let engine = start(directory.path(), &gate);
    let _credited = engine.submit_blocking(mint("m", "alice", "10000")).unwrap();
    for (given, said) in [(0, 10), (3, 10), (256, 5_000), (2_500, 8_190)] {
        gate.shut();
        std::thread::scope(|scope| {
            let boast = Boast(reserves(&format!("r{given}"), given).into_iter(), said);
            let batch = scope.spawn(|| engine.submit_batch_blocking(boast).unwrap());
            while given > 0 && gate.hanging.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            assert!(given == 0 || !batch.is_finished(), "nothing of it is on the disk");
            gate.open();
            assert_eq!(batch.join().unwrap().len(), given);
        });
        // Nothing is left in the count of those who wait, or a batch would sooner or later be refused.
        assert_eq!(engine.submit_batch_blocking(commits(&format!("r{given}"), given)).unwrap().len(), given);
    }
    engine.stop().unwrap();
}

#[test]
fn a_batch_of_which_most_is_refused_is_answered_whole() {
    let directory = tempfile::tempdir().unwrap();
    let world = open(directory.path());
    let _credited = world.submit(mint("m", "alice", "1000")).unwrap();
    for round in 0..20 {
        let answers = world.engine.submit_batch_blocking(reserves(&format!("r{round}"), 8_190)).unwrap();
        let admitted = answers.iter().filter(|answer| answer.is_ok()).count();
        assert_eq!((answers.len(), admitted), (8_190, if round == 0 { 1_000 } else { 0 }));
    }
}

#[test]
fn a_batch_that_fills_a_segment_before_its_first_turn_is_over_is_answered_whole() {
    let directory = tempfile::tempdir().unwrap();
    let world = open(directory.path());
    let _credited = world.submit(mint("m", "alice", "100000")).unwrap();
    let long = "x".repeat(50);
    for round in 0..10 {
        let answers = world.engine.submit_batch_blocking(reserves(&format!("{long}{round}"), 4_000)).unwrap();
        assert!(answers.len() == 4_000 && answers.iter().all(Result::is_ok), "round {round}");
    }
}

#[test]
fn a_batch_that_the_key_index_falls_behind_of_is_answered_whole() {
    let directory = tempfile::tempdir().unwrap();
    let gate = Arc::new(Gate::default());
    let engine = start(directory.path(), &gate);
    let _credited = engine.submit_blocking(mint("m", "alice", "100000")).unwrap();
    let _held = engine.submit_batch_blocking(reserves("k", 3_000)).unwrap();
    // Nothing is left to seal, so nobody writes the batch before its caller calls.
    gate.rest();
    // Half-way its caller rests for longer than the upkeep does, which then finds more keys than it can write before the batch is.
    let slow = commits("k", 3_000).into_iter().enumerate().map(|(number, request)| {
        if number == 1_500 {
            std::thread::sleep(Duration::from_millis(300));
        }
        request
    });
    let answers = engine.submit_batch_blocking(slow).unwrap();
    assert!(answers.len() == 3_000 && answers.iter().all(Result::is_ok));
    engine.stop().unwrap();
}

#[test]
fn a_batch_whose_sync_fails_has_no_answers_and_none_comes_after_it() {
    let directory = tempfile::tempdir().unwrap();
    let gate = Arc::new(Gate::default());
    let engine = start(directory.path(), &gate);
    let _credited = engine.submit_blocking(mint("m", "alice", "10000")).unwrap();
    gate.fails.store(true, Ordering::SeqCst);
    assert_eq!(engine.submit_batch_blocking(reserves("lost", 5_000)), Err(Refusal::JournalFailed));
    assert_eq!(engine.submit_batch_blocking(reserves("after", 10)), Err(Refusal::JournalFailed));
    assert_eq!(engine.submit_blocking(reserve("single", "alice", "1")), Err(Refusal::JournalFailed));
    assert!(engine.stop().is_err());
}

#[test]
fn batches_and_single_callers_at_once_are_each_answered_in_order_and_survive_a_crash() {
    const ROUNDS: usize = 6;
    let directory = tempfile::tempdir().unwrap();
    let world = open(directory.path());
    let _credited = world.submit(mint("m", "alice", "1000000")).unwrap();
    let spent = std::thread::scope(|scope| {
        let batches = (0..3).map(|caller| {
            let engine = &world.engine;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    // Some fit one part, some are left to the workers half-way.
                    let (name, count) = (format!("b{caller}-{round}"), [1, 257, 2_600][(caller + round) % 3]);
                    for requests in [reserves(&name, count), commits(&name, count)] {
                        let answers = engine.submit_batch_blocking(requests).unwrap();
                        let offsets = answers.iter().map(|answer| answer.as_ref().unwrap().receipt().offset);
                        assert!(offsets.is_sorted_by(|before, after| before < after), "{name}");
                    }
                }
                (0..ROUNDS).map(|round| [1, 257, 2_600][(caller + round) % 3]).sum::<usize>()
            })
        });
        let singles = (0..3).map(|caller| {
            let world = &world;
            scope.spawn(move || {
                for number in 0..200 {
                    let name = format!("s{caller}-{number}");
                    let _held = world.submit(reserve(&name, "alice", "1")).unwrap();
                    let _charged = world.submit(commit(&name, "1")).unwrap();
                }
                200
            })
        });
        let all: Vec<_> = batches.chain(singles).collect();
        all.into_iter().map(|caller| caller.join().unwrap()).sum::<usize>()
    });
    let left = (1_000_000 - spent).to_string();
    assert_eq!(world.balance("alice"), (left.clone(), "0".into()));
    // Not stopped: what was told must be on the disk as it is.
    let crashed = directory.path().join("crashed");
    copy(directory.path(), &crashed);
    assert_eq!(open(&crashed).balance("alice"), (left, "0".into()));
}

/// Copies the journal alone: all else is derived from it.
fn copy(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to.join("journal")).unwrap();
    for file in std::fs::read_dir(from.join("journal")).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), to.join("journal").join(file.file_name())).unwrap();
    }
}
