//! Every planted bug is caught, and it is said by which check.

use holdfast_simulator::{Planted, Violation, run};

/// So many seeds at most until a bug is caught.
const SEEDS_MAX: u64 = 1_000;

fn caught(bug: Planted) -> Option<(u64, Violation)> {
    (0..SEEDS_MAX).find_map(|seed| run(seed, Some(bug)).err().map(|violation| (seed, violation)))
}

#[test]
fn every_planted_bug_is_caught() {
    let missed: Vec<Planted> = Planted::ALL
        .into_iter()
        .filter(|bug| {
            let caught = caught(*bug);
            let by = caught.as_ref().map(|(seed, violation)| format!("{} at seed {seed}", violation.check));
            println!("{:<20} {}", format!("{bug:?}"), by.unwrap_or_else(|| "MISSED".to_owned()));
            caught.is_none()
        })
        .collect();
    assert!(missed.is_empty(), "the auditor missed {missed:?}");
}
