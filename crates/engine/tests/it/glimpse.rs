//! Escrows that are told without waiting for the disk: only what is durable, and never what has been decided to end.

use crate::hanging::{Gate, HangingDisk, start};
use crate::world::{cu, mint, owner, request};
use holdfast_domain::escrow::{self, Escrow, Hold};
use holdfast_domain::{EscrowId, OwnerId};
use holdfast_engine::{Command, Engine, Refusal, Request};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

fn escrow(name: &str) -> EscrowId {
    name.parse().unwrap()
}

fn hold(name: &str) -> Request {
    let hold = Hold { owner: owner("alice"), amount: cu("5"), feature: "chat".parse().unwrap() };
    request(Some(name), Command::Hold { escrow: escrow(name), hold })
}

fn refund(name: &str) -> Request {
    let command = escrow::Command::Refund;
    request(Some("refund"), Command::Escrow { escrow: escrow(name), command, ruling: None })
}

type Told = Result<Option<(Escrow, OwnerId)>, Refusal>;

/// What is told at once, if anything is.
fn at_once(engine: &Engine<HangingDisk>, name: &str) -> Option<Told> {
    let asked = pin!(engine.escrow(escrow(name)));
    match asked.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(told) => Some(told),
        Poll::Pending => None,
    }
}

fn state(told: Told) -> Option<escrow::State> {
    told.unwrap().map(|(escrow, _)| escrow.state())
}

/// Opens a gate when it is dropped.
struct Opens<'a>(&'a Gate);

impl Drop for Opens<'_> {
    fn drop(&mut self) {
        self.0.open();
    }
}

const HELD: Option<Option<escrow::State>> = Some(Some(escrow::State::Held));

/// Waits until it is so, for a while.
fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(10);
    while !is_so() {
        assert!(Instant::now() < until, "not in ten seconds: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_durable_escrow_is_told_at_once_and_what_is_not_durable_is_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let gate = Arc::new(Gate::default());
    let engine = start(directory.path(), &gate);
    let _credited = engine.submit_blocking(mint("m", "alice", "100")).unwrap();
    let _held = engine.submit_blocking(hold("old")).unwrap();
    gate.rest();
    gate.shut();
    std::thread::scope(|scope| {
        // A test that fails ends: nobody waits behind the gate.
        let _opens_at_the_end = Opens(&gate);
        let held = scope.spawn(|| engine.submit_blocking(hold("new")));
        eventually("the sync hangs", || gate.hanging.load(Ordering::SeqCst) > 0);
        eventually("what is durable is told", || at_once(&engine, "old").map(state) == HELD);

        // A batch, which its caller decides at once if nobody waits: a single one may wait for the sync before it is looked at.
        let refunded = scope.spawn(|| engine.submit_batch_blocking([refund("old")]));
        eventually("what is to end is not told", || at_once(&engine, "old").is_none());
        assert_eq!(at_once(&engine, "new"), None, "it is decided and not durable");
        gate.open();
        let _held = held.join().unwrap().unwrap();
        assert!(refunded.join().unwrap().unwrap()[0].is_ok());
    });
    eventually("what has become durable is told", || at_once(&engine, "new").map(state) == HELD);
    let asked = engine.ask_blocking(|view| view.escrow(escrow("old"))).unwrap();
    assert_eq!(state(asked), Some(escrow::State::Refunded));
}
