//! Budgets in the engine: what they have used is the same after every kind of start, and so is what they still admit.

use crate::world::{World, commit, cu, mint, on, open, reserve};
use holdfast_domain::charge::{Command as OnCharge, Reserve};
use holdfast_domain::{Budget, Budgets};
use holdfast_engine::{Command, Request};
use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering;

const DAY_MS: u64 = 24 * 60 * 60 * 1_000;

/// A reservation that counts against a key of ten credits a day and a team of 25 in all.
fn budgeted(charge: &str, amount: &str) -> Request {
    let key = Budget { id: "key".parse().unwrap(), per_day: Some(cu("10")), in_total: None };
    let team = Budget { id: "team".parse().unwrap(), per_day: None, in_total: Some(cu("25")) };
    let request = reserve(charge, "alice", amount);
    let Command::Reserve { charge, reserve } = request.command else { unreachable!("it is one") };
    let reserve = Reserve { budgets: Budgets::new(&[key, team]).unwrap(), ..reserve };
    Request { command: Command::Reserve { charge, reserve }, ..request }
}

/// What a budget has used today and in all.
fn used(world: &World, budget: &str) -> (String, String) {
    let budget = budget.parse().unwrap();
    let used = world.engine.ask_blocking(move |view| (view.used(budget), view.now().day())).unwrap();
    (used.0.on(used.1).to_string(), used.0.total.to_string())
}

/// The start of a journal's second day, with budgets used on both, and charges open and closed.
fn two_days(directory: &Path) -> World {
    let world = open(directory);
    let submit = |request| {
        let _done = world.submit(request).unwrap();
    };
    submit(mint("m", "alice", "100"));
    submit(budgeted("first", "9"));
    submit(commit("first", "8"));
    world.clock.0.store(DAY_MS, Ordering::Relaxed);
    submit(budgeted("second", "4"));
    submit(commit("second", "3"));
    submit(budgeted("open", "5"));
    check(&world);
    world
}

fn check(world: &World) {
    assert_eq!(used(world, "key"), ("8".into(), "16".into()));
    assert_eq!(used(world, "team"), ("8".into(), "16".into()));
    assert_eq!(used(world, "nobody"), ("0".into(), "0".into()));
}

/// Stops, starts as `prepare` leaves the directory, and checks the same books.
fn restart(world: World, directory: &Path, prepare: fn(&Path)) -> World {
    world.engine.stop().unwrap();
    prepare(directory);
    let world = open(directory);
    world.clock.0.store(DAY_MS, Ordering::Relaxed);
    check(&world);
    world
}

fn from_the_snapshot(_: &Path) {}

fn from_the_journal_alone(directory: &Path) {
    for derived in ["keys", "snapshots"] {
        fs::remove_dir_all(directory.join(derived)).unwrap();
    }
}

/// What is left of the budgets is admitted, a unit more is not, and what comes back can be used again.
fn check_limits(world: &World) {
    let code = |request| world.submit(request).map_or_else(|refusal| refusal.code(), |_| "applied");
    assert_eq!(code(budgeted("over", "2.000001")), "INSUFFICIENT_BUDGET", "of the day");
    assert_eq!(code(budgeted("fits", "2")), "applied");
    assert_eq!(code(on("open", OnCharge::Release)), "applied");
    assert_eq!((used(world, "key"), used(world, "team")), (("5".into(), "13".into()), ("5".into(), "13".into())));
    assert_eq!(code(commit("fits", "2")), "applied");
    world.clock.0.store(2 * DAY_MS, Ordering::Relaxed);
    assert_eq!(code(budgeted("third", "10")), "applied");
    assert_eq!(code(commit("third", "10")), "applied");
    world.clock.0.store(3 * DAY_MS, Ordering::Relaxed);
    assert_eq!(code(budgeted("over-in-all", "2.000001")), "INSUFFICIENT_BUDGET", "in all");
    assert_eq!(code(budgeted("last", "2")), "applied");
}

#[test]
fn what_budgets_have_used_survives_a_start_from_a_snapshot() {
    let directory = tempfile::tempdir().unwrap();
    let world = two_days(directory.path());
    let world = restart(world, directory.path(), from_the_snapshot);
    assert!(world.report.snapshot.is_some() && world.report.replayed == 0, "{:?}", world.report);
    check_limits(&world);
}

#[test]
fn what_budgets_have_used_is_replayed_from_the_journal_alone() {
    let directory = tempfile::tempdir().unwrap();
    let world = two_days(directory.path());
    let world = restart(world, directory.path(), from_the_journal_alone);
    assert_eq!((world.report.snapshot, world.report.replayed), (None, 6));
    check_limits(&world);
}

#[test]
fn budgets_survive_one_start_after_another_of_both_kinds() {
    let directory = tempfile::tempdir().unwrap();
    let mut world = two_days(directory.path());
    for prepare in [from_the_snapshot, from_the_journal_alone, from_the_snapshot, from_the_journal_alone] {
        world = restart(world, directory.path(), prepare);
    }
    check_limits(&world);
}
