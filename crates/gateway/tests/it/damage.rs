//! Damage: a flipped bit is named and refused, a torn tail is cut, said and counted.

use crate::world::{World, mint};
use serde_json::{Value, json};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A stopped world with several segments.
fn with_segments() -> World {
    let world = World::with_alice();
    let server = world.serve();
    let mut client = server.client();
    for round in 0..60 {
        let mints: Vec<_> = (0..40).map(|number| mint("bob", &format!("m{round}-{number}"))).collect();
        client.ok(json!({ "op": "batch", "requests": mints }));
    }
    server.stop();
    world
}

fn flip(file: &Path, byte: u64) {
    let file = OpenOptions::new().read(true).write(true).open(file).unwrap();
    let mut held = [0];
    file.read_exact_at(&mut held, byte).unwrap();
    file.write_all_at(&[held[0] ^ 0x10], byte).unwrap();
}

/// The first entry of each frame in a segment, and the byte where the frame stands.
fn frames(journal: &[Value], segment: u64) -> Vec<(u64, u64)> {
    let mut frames: Vec<(u64, u64)> = Vec::new();
    for entry in journal.iter().filter(|entry| entry["frame"]["segment"] == json!(segment)) {
        let byte = entry["frame"]["byte"].as_u64().unwrap();
        if frames.last().is_none_or(|(_, last)| *last != byte) {
            frames.push((entry["offset"].as_u64().unwrap(), byte));
        }
    }
    frames
}

#[test]
fn a_flipped_bit_in_a_finished_segment_is_named_and_nothing_is_served() {
    let world = with_segments();
    let journal = world.journal();
    assert!(journal.last().unwrap()["frame"]["segment"].as_u64().unwrap() >= 3);
    for (offset, byte) in [frames(&journal, 1)[3], frames(&journal, 2)[1]] {
        let segment = journal[usize::try_from(offset).unwrap() - 1]["frame"]["segment"].as_u64().unwrap();
        let file = world.segment(u32::try_from(segment).unwrap());
        flip(&file, byte + 100);
        let place = format!("corrupt at offset {offset} (segment {segment} byte {byte})");
        for words in [&["journal", "verify"][..], &["serve"], &["accounts", "list"], &["rebuild"]] {
            let run = world.run(words);
            assert_eq!(run.code, Some(1), "{words:?} {run:?}");
            assert!(run.stderr.starts_with("error[JOURNAL_CORRUPT]: "), "{words:?} {run:?}");
            assert!(run.stderr.contains(&place), "{words:?} {run:?}");
        }
        assert_eq!(world.refused(&["journal", "cat"]), "JOURNAL_CORRUPT");
        assert_eq!(world.refused(&["journal", "stat"]), "JOURNAL_CORRUPT");
        assert_eq!(world.refused(&["journal", "export", "-"]), "JOURNAL_CORRUPT");
        assert!(world.data().join("snapshots").read_dir().unwrap().next().is_some(), "rebuild removed nothing");
        assert!(!world.data().join("holdfast.sock").exists());
        flip(&file, byte + 100);
    }
    world.ok(&["journal", "verify"]);
    assert_eq!(world.json(&["accounts", "show", "bob"])["available_cu"], json!("2400"));
}

#[test]
fn a_lost_or_foreign_segment_is_named() {
    let world = with_segments();
    let other = with_segments();
    let (kept, foreign) = (std::fs::read(world.segment(2)).unwrap(), std::fs::read(other.segment(2)).unwrap());
    std::fs::write(world.segment(2), foreign).unwrap();
    assert_eq!(world.refused(&["serve"]), "JOURNAL_SEGMENT_FOREIGN");
    std::fs::remove_file(world.segment(2)).unwrap();
    assert_eq!(world.refused(&["serve"]), "JOURNAL_SEGMENT_MISSING");
    assert_eq!(world.refused(&["journal", "verify"]), "JOURNAL_SEGMENT_MISSING");
    std::fs::write(world.segment(2), kept).unwrap();
    world.ok(&["journal", "verify"]);
}

#[test]
fn a_journal_that_lost_its_newest_segments_is_not_served_and_not_rebuilt() {
    let world = with_segments();
    let segments = world.json(&["journal", "stat"])["segments"].as_u64().unwrap();
    for segment in 2..=segments {
        std::fs::remove_file(world.segment(u32::try_from(segment).unwrap())).unwrap();
    }
    for words in [&["serve"][..], &["rebuild"], &["journal", "verify"]] {
        assert_eq!(world.refused(words), "JOURNAL_BEHIND");
    }
}

#[test]
fn a_torn_tail_is_cut_said_and_counted() {
    let world = World::with_alice();
    let mut torn = world.command(&["serve"]);
    // Killed in the middle of writing a frame: half of it is in the file.
    torn.env("HOLDFAST_FAILPOINT", "journal.mid_write:9");
    let server = world.serve_with(torn);
    let mut client = server.client();
    let answered = (0..100).take_while(|number| client.try_ask(&mint("bob", &format!("b{number}"))).is_some()).count();
    assert!((1..100).contains(&answered), "{answered}");
    server.wait();
    let verified = world.json(&["journal", "verify"]);
    let torn_bytes = verified["torn_bytes"].as_u64().unwrap();
    assert!(torn_bytes > 0, "{verified}");
    assert_eq!(world.json(&["journal", "stat"])["torn_bytes"], json!(torn_bytes));
    let server = world.serve();
    let health = server.client().ok(json!({ "op": "health" }));
    assert_eq!(
        (&health["recovered"]["torn_tails_cut"], &health["recovered"]["torn_bytes_cut"]),
        (&json!(1), &json!(torn_bytes))
    );
    let said = server.stop();
    assert!(said.contains(&format!("torn tail of {torn_bytes} bytes cut at segment 1 byte ")), "{said}");
    assert_eq!(world.entries(), 1 + answered as u64, "the torn entry was never acknowledged");
    assert_eq!(world.json(&["journal", "verify"])["torn_bytes"], json!(0));
    let server = world.serve();
    assert_eq!(server.client().ok(json!({ "op": "health" }))["recovered"]["torn_tails_cut"], json!(0));
    server.stop();
}

#[test]
fn garbage_after_the_last_frame_is_cut_and_damage_before_it_is_not() {
    let world = World::with_alice();
    let server = world.serve();
    let mut client = server.client();
    for number in 0..5 {
        client.ok(mint("bob", &format!("b{number}")));
    }
    server.crash();
    let stat = world.json(&["journal", "stat"]);
    let end = 128 + stat["used_bytes"].as_u64().unwrap();
    let file = OpenOptions::new().write(true).open(world.segment(1)).unwrap();
    file.write_all_at(&[0xa5; 77], end).unwrap();
    assert_eq!(world.json(&["journal", "verify"])["torn_bytes"], json!(77));
    let said = world.run(&["accounts", "show", "bob"]);
    assert_eq!(said.code, Some(0));
    assert!(said.stderr.contains("torn tail of 77 bytes cut"), "{said:?}");
    assert_eq!(world.json(&["accounts", "show", "bob"])["available_cu"], json!("5"));
    let (offset, byte) = frames(&world.journal(), 1)[2];
    flip(&world.segment(1), byte + 60);
    let run = world.run(&["journal", "verify"]);
    assert_eq!(run.code, Some(1));
    assert!(run.stderr.contains(&format!("corrupt at offset {offset} (segment 1 byte {byte})")), "{run:?}");
}
