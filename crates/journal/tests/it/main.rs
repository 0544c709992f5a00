//! The journal against a damaged disk: every prefix, every hole, every flipped bit, every missing file.
//!
//! Ids such as `s1` name the line of the fault catalogue that a test stands for.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod notes;

use holdfast_journal::{
    Batch, Config, Disk, DiskFile, Frames, Journal, JournalId, LocalDisk, Location, OpenError, Recovered, read_record,
    verify,
};
use std::fs;
use std::path::PathBuf;

const SEGMENT_BYTES: u32 = 64 * 1_024;

struct World {
    directory: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn disk(&self) -> LocalDisk {
        LocalDisk::at(self.directory.path()).unwrap()
    }

    fn open(&self) -> Result<(Journal<LocalDisk>, Recovered), OpenError> {
        let config = Config { segment_bytes: SEGMENT_BYTES, id: JournalId([9; 16]), verify_threads: 2 };
        Journal::open(self.disk(), config)
    }

    fn segment(&self, segment: u32) -> PathBuf {
        self.directory.path().join(format!("journal/{segment:010}.seg"))
    }

    /// Every record body that can be read back, in order.
    fn bodies(&self) -> Vec<Vec<u8>> {
        let end = verify(&self.disk(), 1, &|_, _| {}).unwrap().unwrap().end.location;
        let mut frames = Frames::starting(self.disk(), Location::START);
        let mut bodies = Vec::new();
        while let Some(frame) = frames.next(end).unwrap() {
            bodies.extend(frame.records().map(|record| record.unwrap().body.to_vec()));
        }
        bodies
    }
}

fn append(journal: &mut Journal<LocalDisk>, bodies: &[&[u8]]) -> Vec<Location> {
    let mut batch = Batch::begin(journal.cursor(), Vec::new());
    let places = bodies.iter().map(|body| {
        let place = batch.next().0;
        batch.push(|bytes| bytes.extend(*body)).unwrap();
        place
    });
    let places = places.collect();
    journal.append(&mut batch).unwrap();
    places
}

fn body(number: usize) -> Vec<u8> {
    format!("record {number} {}", "x".repeat(number % 90)).into_bytes()
}

/// A journal of `count` single-record frames.
fn filled(count: usize) -> World {
    let world = World::new();
    let (mut journal, _) = world.open().unwrap();
    for number in 0..count {
        append(&mut journal, &[&body(number)]);
    }
    world
}

#[test]
fn what_was_appended_is_read_back_in_order_across_segments() {
    let world = filled(1_500);
    let (journal, recovered) = world.open().unwrap();
    assert!(recovered.verified.segments > 2, "{recovered:?}");
    assert_eq!(journal.end().next_offset, 1_501);
    assert_eq!(world.bodies(), (0..1_500).map(body).collect::<Vec<_>>());
}

#[test]
fn a_record_is_found_by_its_place() {
    let world = World::new();
    let (mut journal, _) = world.open().unwrap();
    let places = append(&mut journal, &[b"one", b"", b"three", &[7; 2_000]]);
    let file = world.disk().open("journal/0000000001.seg").unwrap();
    assert_eq!(read_record(&file, places[2]).unwrap(), b"three");
    assert_eq!(read_record(&file, places[3]).unwrap(), [7; 2_000]);
    assert!(read_record(&file, Location { segment: 1, byte: places[3].byte + 1 }).is_err());
}

#[test]
fn s1_every_prefix_of_the_last_frame_is_cut_and_counted() {
    let world = filled(3);
    let start = world.open().unwrap().0.end().location.byte as usize;
    let (mut journal, _) = world.open().unwrap();
    append(&mut journal, &[b"the last frame", b"of two records"]);
    let whole = fs::read(world.segment(1)).unwrap();
    let end = journal.end().location.byte as usize;
    drop(journal);
    for kept in start..end - 10 {
        let mut torn = whole.clone();
        torn[kept..].fill(0);
        fs::write(world.segment(1), &torn).unwrap();
        let (journal, recovered) = world.open().unwrap();
        assert_eq!(journal.end().next_offset, 4, "prefix of {} bytes", kept - start);
        let expected = (kept > start).then_some(recovered.verified.end.location);
        assert_eq!(recovered.verified.tail.map(|cut| cut.location), expected);
        assert!(world.open().unwrap().1.verified.tail.is_none(), "the cut is made once");
    }
}

#[test]
fn s2_a_hole_in_the_last_frame_cuts_all_of_it() {
    let world = filled(3);
    let (mut journal, _) = world.open().unwrap();
    let start = journal.end().location.byte as usize;
    append(&mut journal, &[&[1; 1_500], &[2; 1_500], &[3; 1_500]]);
    let whole = fs::read(world.segment(1)).unwrap();
    drop(journal);
    for sector in start.div_ceil(512)..(start + 4_500) / 512 {
        let mut holed = whole.clone();
        holed[sector * 512..(sector + 1) * 512].fill(0);
        fs::write(world.segment(1), &holed).unwrap();
        assert_eq!(world.open().unwrap().0.end().next_offset, 4, "sector {sector}");
    }
}

#[test]
fn s3_every_flipped_bit_of_a_finished_segment_is_named_and_stops_the_start() {
    let world = filled(620);
    let whole = fs::read(world.segment(1)).unwrap();
    // Each byte, one bit of it each: the bit changes with the byte, so that all eight are tried.
    for at in (0..whole.len()).step_by(13) {
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (at % 8);
        fs::write(world.segment(1), &flipped).unwrap();
        let found = verify(&world.disk(), 2, &|_, _| {});
        assert!(matches!(found, Err(OpenError::Corrupt { .. } | OpenError::Newer { .. })), "byte {at}: {found:?}");
        if at % 1_300 == 0 {
            assert!(world.open().is_err(), "byte {at}");
        }
    }
    fs::write(world.segment(1), &whole).unwrap();
    world.open().unwrap();
}

#[test]
fn s3_the_named_offset_is_the_damaged_frames() {
    let world = filled(50);
    let mut bytes = fs::read(world.segment(1)).unwrap();
    let at = bytes.windows(9).position(|window| window == b"record 30").unwrap();
    bytes[at] ^= 1;
    fs::write(world.segment(1), &bytes).unwrap();
    match world.open().map(|_| ()) {
        Err(OpenError::Corrupt { offset, .. }) => assert_eq!(offset, 31),
        other => panic!("{other:?}"),
    }
}

#[test]
fn s4_a_sealed_last_frame_is_corruption_not_a_torn_tail() {
    let world = filled(3);
    let (mut journal, _) = world.open().unwrap();
    let mut seal = Batch::begin(journal.cursor(), Vec::new());
    journal.append(&mut seal).unwrap();
    drop(journal);
    let mut bytes = fs::read(world.segment(1)).unwrap();
    let at = bytes.windows(8).position(|window| window == b"record 2").unwrap();
    bytes[at] ^= 1;
    fs::write(world.segment(1), &bytes).unwrap();
    assert!(matches!(world.open(), Err(OpenError::Corrupt { offset: 3, .. })));
}

#[test]
fn s12_a_segment_under_another_name_or_of_another_journal_is_refused() {
    let world = filled(1_500);
    fs::copy(world.segment(1), world.segment(2)).unwrap();
    assert!(matches!(world.open(), Err(OpenError::Foreign { segment: 2 })));

    let (ours, theirs) = (filled(1_500), World::new());
    let config = Config { segment_bytes: SEGMENT_BYTES, id: JournalId([8; 16]), verify_threads: 1 };
    let (mut journal, _) = Journal::open(theirs.disk(), config).unwrap();
    for number in 0..1_500 {
        append(&mut journal, &[&body(number)]);
    }
    fs::copy(theirs.segment(2), ours.segment(2)).unwrap();
    assert!(matches!(ours.open(), Err(OpenError::Foreign { segment: 2 })));
}

#[test]
fn s13_a_missing_segment_is_named() {
    let world = filled(1_500);
    fs::remove_file(world.segment(2)).unwrap();
    assert!(matches!(world.open(), Err(OpenError::Missing { segment: 2 })));
    fs::remove_file(world.segment(1)).unwrap();
    assert!(matches!(world.open(), Err(OpenError::Missing { segment: 1 })));
}

#[test]
fn a_rewritten_frame_breaks_the_chain_even_with_right_checksums() {
    // Two journals that differ in their first record only: their second frames are sound, but do not follow each other.
    let (one, other) = (World::new(), World::new());
    for (world, first) in [(&one, b"aaaa"), (&other, b"bbbb")] {
        let (mut journal, _) = world.open().unwrap();
        append(&mut journal, &[first]);
        append(&mut journal, &[b"same"]);
    }
    let (mut forged, donor) = (fs::read(one.segment(1)).unwrap(), fs::read(other.segment(1)).unwrap());
    let frame = 128 + 72;
    forged[frame..frame + 72].copy_from_slice(&donor[frame..frame + 72]);
    fs::write(one.segment(1), &forged).unwrap();
    assert!(matches!(one.open(), Err(OpenError::Corrupt { offset: 2, what: "the hash chain is broken", .. })));
}

#[test]
fn s5_a_failed_write_is_final() {
    let world = filled(3);
    let (mut journal, _) = world.open().unwrap();
    // A batch begun for a segment whose file cannot be made: the directory is gone from under the journal.
    fs::rename(world.directory.path().join("journal"), world.directory.path().join("elsewhere")).unwrap();
    let mut cursor = journal.cursor();
    cursor.location.byte = SEGMENT_BYTES - 100;
    let mut batch = Batch::begin(cursor, Vec::new());
    batch.push(|bytes| bytes.extend(b"lost")).unwrap();
    assert!(journal.append(&mut batch).is_err());
    fs::rename(world.directory.path().join("elsewhere"), world.directory.path().join("journal")).unwrap();
    let mut batch = Batch::begin(journal.cursor(), Vec::new());
    assert!(journal.append(&mut batch).is_err(), "nothing is written after a failure, even if it would work");
    assert_eq!(world.bodies().len(), 3);
}

#[test]
fn a_crash_at_any_step_of_beginning_a_segment_loses_nothing() {
    let world = filled(1_500);
    // The spare or the segment being made was left half made, or with a header: the next start overwrites it.
    for name in ["journal/spare", "journal/spare.tmp", "journal/next"] {
        let file = world.disk().create(name).unwrap();
        DiskFile::write_at(&file, &[0xAB; 300], 0).unwrap();
    }
    let (mut journal, _) = world.open().unwrap();
    for number in 1_500..3_000 {
        append(&mut journal, &[&body(number)]);
    }
    assert_eq!(world.bodies().len(), 3_000);
}

#[test]
fn a_follower_that_was_at_the_tail_misses_nothing_when_the_next_segment_begins() {
    let world = World::new();
    let (mut journal, _) = world.open().unwrap();
    let mut frames = Frames::starting(world.disk(), Location::START);
    let mut seen = 0;
    for number in 0..1_500 {
        append(&mut journal, &[&body(number)]);
        // It looks now and then, so that it stops in the middle of segments and goes on in the next.
        if number % 37 == 0 || number == 1_499 {
            while let Some(frame) = frames.next(journal.end().location).unwrap() {
                for record in frame.records() {
                    assert_eq!(record.unwrap().body, body(seen));
                    seen += 1;
                }
            }
            assert_eq!(seen, number + 1);
        }
    }
}

#[test]
fn the_writer_and_the_preparation_of_the_next_segment_do_not_meet() {
    let world = World::new();
    let (mut journal, _) = world.open().unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                Journal::prepare_next_segment(&world.disk(), SEGMENT_BYTES).unwrap();
            }
        });
        for number in 0..3_000 {
            append(&mut journal, &[&body(number)]);
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(world.bodies(), (0..3_000).map(body).collect::<Vec<_>>());
}
