//! Whole runs without a violation, and what they did on the way.

use holdfast_simulator::{Count, Tally, run};

#[test]
fn hundreds_of_seeds_pass_and_do_everything_that_can_go_wrong() {
    let mut total = Tally::ZERO;
    for seed in 0..1_000 {
        match run(seed, None) {
            Ok(report) => total.merge(&report.tally),
            Err(violation) => panic!("{violation}"),
        }
    }
    println!("{total}");
    for count in [
        Count::Applied,
        Count::Replayed,
        Count::Expired,
        Count::Seals,
        Count::PowerCuts,
        Count::PowerCutsMidway,
        Count::Kills,
        Count::KillsMidway,
        Count::CleanStops,
        Count::JournalFailures,
        Count::StartsThatFailed,
        Count::TornTails,
        Count::AdoptedEntries,
        Count::Rolls,
        Count::KeyFiles,
        Count::StartsFromSnapshot,
        Count::BadSnapshots,
        Count::Reindexed,
        Count::DamagedSegments,
        Count::ClockBack,
    ] {
        assert!(total.of(count) > 0, "no {count:?} in all of these runs");
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 0..40 {
        assert_eq!(run(seed, None).unwrap(), run(seed, None).unwrap(), "seed {seed}");
    }
    assert_ne!(run(1, None).unwrap().trace, run(2, None).unwrap().trace);
}
