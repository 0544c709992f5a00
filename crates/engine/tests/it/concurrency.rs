//! Many callers at once.

use crate::world::{commit, mint, open, reserve};
use holdfast_engine::{Outcome, Refusal};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn ten_thousand_reserves_on_a_balance_for_a_hundred_admit_exactly_a_hundred() {
    let directory = tempfile::tempdir().unwrap();
    let world = open(directory.path());
    let _credited = world.submit(mint("m", "alice", "100")).unwrap();
    let (admitted, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let start = Barrier::new(100);
    std::thread::scope(|scope| {
        for thread in 0..100 {
            let (world, start, admitted, refused) = (&world, &start, &admitted, &refused);
            scope.spawn(move || {
                start.wait();
                for number in 0..100 {
                    match world.submit(reserve(&format!("r-{thread}-{number}"), "alice", "1")) {
                        Ok(Outcome::Applied(_)) => admitted.fetch_add(1, Ordering::Relaxed),
                        Err(Refusal::InsufficientBalance { .. }) => refused.fetch_add(1, Ordering::Relaxed),
                        other => panic!("{other:?}"),
                    };
                }
            });
        }
    });
    assert_eq!((admitted.into_inner(), refused.into_inner()), (100, 9_900));
    assert_eq!(world.balance("alice"), ("0".into(), "100".into()));
}

#[test]
fn a_key_sent_a_thousand_times_at_once_has_one_effect_and_a_thousand_equal_answers() {
    let directory = tempfile::tempdir().unwrap();
    let world = open(directory.path());
    let _credited = world.submit(mint("m", "alice", "100")).unwrap();
    let start = Barrier::new(100);
    let answers = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..100)
            .map(|_| {
                let (world, start) = (&world, &start);
                scope.spawn(move || {
                    start.wait();
                    (0..10).map(|_| world.submit(reserve("same", "alice", "30")).unwrap()).collect::<Vec<_>>()
                })
            })
            .collect();
        callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(answers.len(), 1_000);
    assert_eq!(answers.iter().filter(|answer| matches!(answer, Outcome::Applied(_))).count(), 1);
    assert!(answers.iter().all(|answer| answer.receipt() == answers[0].receipt()));
    assert_eq!(world.balance("alice"), ("70".into(), "30".into()));
}

#[test]
fn commits_and_releases_of_one_hold_race_and_one_wins() {
    let directory = tempfile::tempdir().unwrap();
    let world = open(directory.path());
    let _credited = world.submit(mint("m", "alice", "1000")).unwrap();
    for round in 0..50 {
        let charge = format!("race-{round}");
        let _held = world.submit(reserve(&charge, "alice", "10")).unwrap();
        let start = Barrier::new(8);
        let applied: usize = std::thread::scope(|scope| {
            let callers: Vec<_> = (0..8)
                .map(|caller| {
                    let (world, start, charge) = (&world, &start, &charge);
                    scope.spawn(move || {
                        start.wait();
                        // Each caller charges another amount, so no two are the same request.
                        let amount = if caller == 0 { "10".to_owned() } else { caller.to_string() };
                        usize::from(matches!(world.submit(commit(charge, &amount)), Ok(Outcome::Applied(_))))
                    })
                })
                .collect();
            callers.into_iter().map(|caller| caller.join().unwrap()).sum()
        });
        assert_eq!(applied, 1, "{charge}");
    }
    assert_eq!(world.balance("alice").1, "0");
    assert_eq!(world.engine.ask_blocking(|view| view.totals().imbalance).unwrap(), 0);
}

#[test]
fn a_batch_is_answered_in_order_and_one_refusal_does_not_stop_the_rest() {
    let directory = tempfile::tempdir().unwrap();
    let world = open(directory.path());
    let requests = vec![
        reserve("early", "alice", "1"),
        mint("m", "alice", "10"),
        reserve("a", "alice", "6"),
        reserve("b", "alice", "6"),
        commit("a", "2"),
        reserve("b", "alice", "6"),
    ];
    let answers = world.engine.submit_batch_blocking(requests).unwrap();
    let codes: Vec<_> = answers.iter().map(|answer| answer.as_ref().err().map_or("ok", Refusal::code)).collect();
    assert_eq!(codes, ["ACCOUNT_NOT_FOUND", "ok", "ok", "INSUFFICIENT_BALANCE", "ok", "ok"]);
    assert_eq!(world.balance("alice"), ("2".into(), "6".into()));
}

#[test]
fn a_batch_larger_than_a_segments_room_is_answered_whole() {
    let directory = tempfile::tempdir().unwrap();
    let world = open(directory.path());
    let _credited = world.submit(mint("m", "alice", "100000")).unwrap();
    let requests: Vec<_> = (0..8_190).map(|number| reserve(&format!("big-{number}"), "alice", "1")).collect();
    let answers = world.engine.submit_batch_blocking(requests).unwrap();
    let offsets: Vec<u64> = answers.iter().map(|answer| answer.as_ref().unwrap().receipt().offset).collect();
    assert_eq!(offsets, (2..8_192).collect::<Vec<_>>());
    let too_many = (0..8_191).map(|number| reserve(&format!("more-{number}"), "alice", "1"));
    assert_eq!(world.engine.submit_batch_blocking(too_many), Err(Refusal::BatchTooLarge));
}
