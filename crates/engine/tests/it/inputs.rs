//! Bad input and lost races: a typed refusal with a stable code, and nothing written.

use crate::world::{World, commit, mint, on, open, request, reserve};
use holdfast_domain::charge::{Actual, Command as OnCharge, Finality};
use holdfast_domain::{Span, Usage, escrow};
use holdfast_engine::{Command, Outcome, Request};

/// What a request is answered with, and that a refusal writes nothing.
fn check(world: &World, request: Request, expected: &str) {
    let before = world.engine.health().durable;
    let answer = world.submit(request.clone());
    let code = match &answer {
        Ok(Outcome::Applied(_)) => "applied",
        Ok(Outcome::Replayed(_)) => "replayed",
        Err(refusal) => refusal.code(),
    };
    assert_eq!(code, expected, "{request:?} gave {answer:?}");
    if code != "applied" {
        assert_eq!(world.engine.health().durable, before, "{expected} must write nothing");
    }
}

fn void(charge: &str) -> Request {
    on(charge, OnCharge::Void { reason: "by hand".parse().unwrap() })
}

#[test]
fn every_refusal_has_its_code_and_writes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let world = open(directory.path());
    let w = &world;
    check(w, reserve("r", "nobody", "1"), "ACCOUNT_NOT_FOUND");
    check(w, mint("zero", "alice", "0"), "INVALID_AMOUNT");
    check(w, Request { key: None, ..mint("x", "alice", "1") }, "KEY_REQUIRED");
    check(w, mint("m", "alice", "100"), "applied");
    check(w, mint("m", "alice", "100"), "replayed");
    check(w, mint("m", "alice", "101"), "ALREADY_USED_KEY");
    check(w, mint("max", "alice", "1000000000000"), "INVALID_AMOUNT");
    check(w, reserve("zero", "alice", "0"), "INVALID_AMOUNT");
    check(w, reserve("big", "alice", "100.000001"), "INSUFFICIENT_BALANCE");
    check(w, reserve("r", "alice", "60"), "applied");
    check(w, reserve("r", "alice", "60"), "replayed");
    check(w, reserve("r", "alice", "61"), "ALREADY_USED_KEY");
    check(w, reserve("s", "alice", "41"), "INSUFFICIENT_BALANCE");
    check(w, commit("nothing", "1"), "RESERVATION_NOT_FOUND");
    check(w, void("r"), "INVALID_STATE");
    check(w, on("r", OnCharge::Increase { amount: crate::world::cu("1") }), "KEY_REQUIRED");
    check(w, on("r", OnCharge::Extend { ttl: Span::from_secs(1) }), "KEY_REQUIRED");
    let usage = Actual::Usage(Usage { input: 1, output: 1, ..Usage::NONE });
    check(w, on("r", OnCharge::Commit { actual: usage, finality: Finality::Final }), "NO_FROZEN_RATES");
    let extend = |secs| Command::Charge {
        charge: "r".parse().unwrap(),
        command: OnCharge::Extend { ttl: Span::from_secs(secs) },
    };
    check(w, request(Some("e0"), extend(0)), "INVALID_TTL");
    check(w, request(Some("e1"), extend(u32::MAX)), "INVALID_TTL");
    check(w, commit("r", "20"), "applied");
    check(w, commit("r", "20"), "replayed");
    check(w, commit("r", "21"), "INVALID_STATE");
    check(w, on("r", OnCharge::Release), "INVALID_STATE");
    check(w, void("r"), "applied");
    check(w, void("r"), "replayed");
    check(w, commit("r", "20"), "replayed");
    assert_eq!(world.balance("alice"), ("100".into(), "0".into()));
}

#[test]
fn a_fresh_key_is_another_request_even_with_a_body_that_was_done_before() {
    let directory = tempfile::tempdir().unwrap();
    let world = open(directory.path());
    let w = &world;
    let keyed = |key: &str, request: Request| Request { key: Some(key.parse().unwrap()), ..request };
    check(w, mint("m", "alice", "100"), "applied");
    check(w, keyed("k1", reserve("r", "alice", "10")), "applied");
    check(w, keyed("k2", reserve("r", "alice", "10")), "ALREADY_USED_KEY");
    check(w, keyed("k3", commit("r", "3")), "applied");
    check(w, keyed("k3", commit("r", "3")), "replayed");
    check(w, keyed("k4", commit("r", "3")), "INVALID_STATE");
    // A refused request uses no key up.
    check(w, mint("k4", "alice", "1"), "applied");
    check(w, commit("r", "3"), "replayed");
    assert_eq!(world.balance("alice"), ("98".into(), "0".into()));
}

#[test]
fn escrows_are_settled_once_and_another_key_is_told_so() {
    let directory = tempfile::tempdir().unwrap();
    let world = open(directory.path());
    let w = &world;
    let hold = |key: &str, id: &str, amount: &str| {
        let hold = escrow::Hold {
            owner: "alice".parse().unwrap(),
            amount: amount.parse().unwrap(),
            feature: "chat".parse().unwrap(),
        };
        request(Some(key), Command::Hold { escrow: id.parse().unwrap(), hold })
    };
    let act = |key: &str, id: &str, command| {
        request(Some(key), Command::Escrow { escrow: id.parse().unwrap(), command, ruling: None })
    };
    let settle = escrow::Command::Settle { payee: "bob".parse().unwrap() };
    let split = |settle: &str, refund: &str| escrow::Command::PartialSettle {
        payee: "bob".parse().unwrap(),
        settle: settle.parse().unwrap(),
        refund: refund.parse().unwrap(),
    };
    check(w, mint("m", "alice", "100"), "applied");
    check(w, hold("h1", "e1", "101"), "INSUFFICIENT_BALANCE");
    check(w, hold("h1", "e1", "40"), "applied");
    check(w, hold("h1", "another-id", "40"), "replayed");
    check(w, hold("h2", "e1", "40"), "ALREADY_USED_KEY");
    check(w, act("s0", "none", settle), "ESCROW_NOT_FOUND");
    check(w, act("p0", "e1", split("10", "10")), "INVALID_SPLIT");
    check(w, act("s1", "e1", settle), "applied");
    check(w, act("s1", "e1", settle), "replayed");
    check(w, act("s2", "e1", settle), "ESCROW_ALREADY_PROCESSED");
    check(w, act("s1", "e1", escrow::Command::Refund), "ALREADY_USED_KEY");
    check(w, hold("h3", "e3", "10"), "applied");
    check(w, act("p3", "e3", split("0", "10")), "applied");
    let bob = "payee:bob:available".parse().unwrap();
    let earned = world.engine.ask_blocking(move |view| view.account(&bob)).unwrap().unwrap();
    assert_eq!(earned.to_string(), "40");
    assert_eq!(world.balance("alice"), ("60".into(), "0".into()));
}

#[test]
fn expiry_is_an_entry_and_a_late_result_is_still_charged() {
    let directory = tempfile::tempdir().unwrap();
    let world = open(directory.path());
    check(&world, mint("m", "alice", "100"), "applied");
    check(&world, reserve("r", "alice", "60"), "applied");
    world.clock.0.store(70_000, std::sync::atomic::Ordering::Relaxed);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while world.balance("alice").1 != "0" {
        assert!(std::time::Instant::now() < deadline, "the hold was not given back");
        std::thread::yield_now();
    }
    assert_eq!(world.balance("alice"), ("100".into(), "0".into()));
    check(&world, commit("r", "25"), "applied");
    check(&world, commit("r", "25"), "replayed");
    assert_eq!(world.balance("alice"), ("75".into(), "0".into()));
}
