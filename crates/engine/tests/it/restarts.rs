//! Stops, crashes and starts: everything acknowledged is there again, however old.

use crate::world::{commit, mint, open, reserve, try_open};
use holdfast_engine::Outcome;
use holdfast_engine::recovery::StartError;
use std::fs;
use std::path::Path;

/// Two thousand settled reservations, most of whose keys are on the disk by then.
fn busy(directory: &Path) -> Vec<Outcome> {
    let world = open(directory);
    let _credited = world.submit(mint("m", "alice", "100000")).unwrap();
    let reserves = (0..2_000).map(|number| reserve(&format!("r{number}"), "alice", "10"));
    let answers = world.engine.submit_batch_blocking(reserves).unwrap();
    let commits = (0..1_990).map(|number| commit(&format!("r{number}"), "4"));
    let committed = world.engine.submit_batch_blocking(commits).unwrap();
    assert!(committed.iter().all(Result::is_ok));
    world.engine.stop().unwrap();
    answers.into_iter().map(Result::unwrap).collect()
}

fn check_books(directory: &Path, answers: &[Outcome]) {
    let world = open(directory);
    assert_eq!(world.balance("alice"), ("91940".into(), "100".into()));
    for (number, answer) in answers.iter().enumerate() {
        let again = world.submit(reserve(&format!("r{number}"), "alice", "10")).unwrap();
        assert_eq!(again, Outcome::Replayed(answer.receipt().clone()), "reservation {number}");
    }
    let other = world.submit(reserve("r3", "alice", "11")).unwrap_err();
    assert_eq!(other.code(), "ALREADY_USED_KEY");
}

#[test]
fn every_key_is_remembered_after_a_stop_and_a_start() {
    let directory = tempfile::tempdir().unwrap();
    let answers = busy(directory.path());
    assert!(fs::read_dir(directory.path().join("keys")).unwrap().count() > 0, "the keys are on the disk");
    check_books(directory.path(), &answers);
    let report = open(directory.path()).report;
    assert!(report.snapshot.is_some() && report.replayed < 100, "{report:?}");
}

#[test]
fn without_its_derived_files_it_starts_from_the_journal_alone() {
    let directory = tempfile::tempdir().unwrap();
    let answers = busy(directory.path());
    fs::remove_dir_all(directory.path().join("keys")).unwrap();
    check_books(directory.path(), &answers);
    fs::remove_dir_all(directory.path().join("snapshots")).unwrap();
    check_books(directory.path(), &answers);
    fs::remove_dir_all(directory.path().join("keys")).unwrap();
    fs::remove_dir_all(directory.path().join("snapshots")).unwrap();
    check_books(directory.path(), &answers);
}

#[test]
fn s19_damaged_snapshots_and_runs_are_passed_over() {
    let directory = tempfile::tempdir().unwrap();
    let answers = busy(directory.path());
    for kind in ["snapshots", "keys"] {
        for file in fs::read_dir(directory.path().join(kind)).unwrap() {
            let path = file.unwrap().path();
            let mut bytes = fs::read(&path).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 0x10;
            fs::write(&path, bytes).unwrap();
        }
        check_books(directory.path(), &answers);
    }
    check_books(directory.path(), &answers);
}

#[test]
fn a_journal_that_lost_its_newest_segment_does_not_start() {
    let directory = tempfile::tempdir().unwrap();
    busy(directory.path());
    let journal = directory.path().join("journal");
    let mut segments: Vec<_> = fs::read_dir(&journal).unwrap().map(|file| file.unwrap().path()).collect();
    segments.retain(|path| path.extension().is_some_and(|extension| extension == "seg"));
    segments.sort();
    assert!(segments.len() > 1);
    fs::remove_file(segments.pop().unwrap()).unwrap();
    assert!(matches!(try_open(directory.path()), Err(StartError::JournalBehind { .. })));
}

/// What the disk holds at this moment, as a crash would leave it.
fn crash_image(of: &Path) -> tempfile::TempDir {
    let image = tempfile::tempdir().unwrap();
    for folder in ["journal", "keys", "snapshots"] {
        fs::create_dir(image.path().join(folder)).unwrap();
        for file in fs::read_dir(of.join(folder)).unwrap() {
            let path = file.unwrap().path();
            // A file that upkeep renames or removes meanwhile is one that a crash might not have left either.
            let _gone = fs::copy(&path, image.path().join(folder).join(path.file_name().unwrap()));
        }
    }
    image
}

#[test]
fn what_was_answered_is_on_the_disk_at_that_moment() {
    let directory = tempfile::tempdir().unwrap();
    let world = open(directory.path());
    for round in 1..=20 {
        let _credited = world.submit(mint(&format!("m{round}"), "alice", "10")).unwrap();
        let _held = world.submit(reserve(&format!("r{round}"), "alice", "1")).unwrap();
        let image = crash_image(directory.path());
        let restarted = open(image.path());
        assert_eq!(restarted.balance("alice"), ((round * 9).to_string(), round.to_string()));
    }
}

#[test]
fn an_idle_engine_seals_its_last_frame() {
    let directory = tempfile::tempdir().unwrap();
    let world = open(directory.path());
    let _credited = world.submit(mint("m", "alice", "10")).unwrap();
    let sealed = || holdfast_journal::verify(&world.disk, 1, &|_, _| {}).unwrap().unwrap().frames == 2;
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while !sealed() {
        assert!(std::time::Instant::now() < deadline, "the last frame was not sealed");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}
