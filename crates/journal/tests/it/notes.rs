//! Notes: what another writes beside the records shares their frame, their sync and their checksums, and is none of them.

use super::{World, append};
use holdfast_journal::{Batch, Frames, GENESIS, Journal, LocalDisk, Location, OpenError, verify};

fn note(journal: &mut Journal<LocalDisk>, records: &[&[u8]], notes: &[&[u8]]) {
    let mut batch = Batch::begin(journal.cursor(), Vec::new());
    for record in records {
        batch.push(|bytes| bytes.extend(*record)).unwrap();
    }
    for note in notes {
        batch.push_note(note).unwrap();
    }
    journal.append(&mut batch).unwrap();
}

/// Every note that can be read back, frame by frame.
fn notes(world: &World) -> Vec<Vec<Vec<u8>>> {
    let end = verify(&world.disk(), 1, &|_, _| {}).unwrap().unwrap().end;
    let mut frames = Frames::starting(world.disk(), Location::START);
    let (mut all, mut chain) = (Vec::new(), GENESIS);
    while let Some(frame) = frames.next(end.location).unwrap() {
        assert!(frame.follows(&chain));
        chain = frame.header.hash;
        assert!(!frame.follows(&chain), "no frame follows itself");
        all.push(frame.notes().map(|note| note.unwrap().to_vec()).collect());
    }
    assert_eq!(chain, end.chain);
    all
}

#[test]
fn notes_are_there_beside_the_records_whatever_their_lengths() {
    let world = World::new();
    let (mut journal, _) = world.open().unwrap();
    let mut expected: Vec<Vec<Vec<u8>>> = Vec::new();
    for length in 1..40 {
        let (record, long) = (vec![7; length % 9], vec![0; length]);
        note(&mut journal, &[&record], &[&long, b"x"]);
        note(&mut journal, &[], &[&long]);
        append(&mut journal, &[&record]);
        expected.extend([vec![long.clone(), b"x".to_vec()], vec![long], vec![]]);
    }
    assert_eq!(notes(&world), expected);
    assert_eq!(world.bodies().len(), 2 * 39, "a note is no record");
    assert_eq!(journal.end().next_offset, 2 * 39 + 1, "and has no offset");
    drop(journal);
    let (journal, recovered) = world.open().unwrap();
    assert_eq!((journal.end(), recovered.verified.frames), (recovered.verified.end, 3 * 39));
}

#[test]
fn a_batch_with_a_note_alone_is_not_empty_and_no_record_comes_after_a_note() {
    let world = World::new();
    let (journal, _) = world.open().unwrap();
    let mut batch = Batch::begin(journal.cursor(), Vec::new());
    assert!(batch.is_empty());
    batch.push_note(b"x").unwrap();
    assert!(!batch.is_empty() && batch.count() == 0);
    assert!(batch.push_note(&[0; 3_000]).is_err(), "as long as a record at most");
    let late = std::panic::catch_unwind(move || batch.push(|bytes| bytes.push(1)).is_ok());
    assert!(late.is_err());
}

#[test]
fn a_flipped_bit_of_a_note_is_named() {
    let world = World::new();
    let (mut journal, _) = world.open().unwrap();
    append(&mut journal, &[b"one"]);
    let place = usize::try_from(journal.end().location.byte).unwrap();
    note(&mut journal, &[], &[b"beside"]);
    let end = usize::try_from(journal.end().location.byte).unwrap();
    append(&mut journal, &[b"two"]);
    drop(journal);
    let segment = world.segment(1);
    let sound = std::fs::read(&segment).unwrap();
    for at in place..end {
        let mut bytes = sound.clone();
        bytes[at] ^= 4;
        std::fs::write(&segment, bytes).unwrap();
        let Err(OpenError::Corrupt { offset, .. }) = world.open() else { panic!("byte {at} was not missed") };
        assert_eq!(offset, 2);
    }
}
