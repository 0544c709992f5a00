//! Opening and verifying a journal: every frame of every segment, before anything is served.
//!
//! # Invariants
//! - Damage with a sound frame after it, or in any segment but the last, stops the start and is named.
//! - Damage at the very end was never acknowledged: it is cut, and the cut is reported.
//! - Nothing is skipped, and a journal never starts empty where there was one.

use crate::bytes::{narrow, wide};
use crate::disk::{Disk, DiskFile};
use crate::frame::{FRAME_ALIGNMENT, GENESIS, Hash};
use crate::journal::{Config, End, Journal, SEGMENT_BYTES_MIN, begin_segment, write_zeros};
use crate::reader::{Look, SegmentReader};
use crate::segment::{
    DIRECTORY, FORMAT_VERSION, HeaderError, JournalId, Location, SEGMENT_HEADER_BYTES, SegmentHeader, file_name,
    segment_of,
};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Why a journal cannot be opened. Nothing has been changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A frame or header is not what was written.
    #[error("the journal is corrupt at offset {offset} ({location}): {what}; restore that segment from a copy")]
    Corrupt {
        /// The first entry that cannot be trusted.
        offset: u64,
        /// Where it stands.
        location: Location,
        /// What is wrong there.
        what: &'static str,
    },
    /// A segment is not there.
    #[error("segment {segment} of the journal is missing; restore {} from a copy", file_name(*segment))]
    Missing {
        /// Which.
        segment: u32,
    },
    /// The file holds a segment of another journal, or another segment.
    #[error("{} does not belong here: it is another segment or another journal's; restore the right file", file_name(*segment))]
    Foreign {
        /// Under whose name it stands.
        segment: u32,
    },
    /// A newer program wrote it.
    #[error("the journal has format {found} and this program reads up to {FORMAT_VERSION}; use a newer holdfast")]
    Newer {
        /// Its format.
        found: u32,
    },
    /// The files could not be read or written.
    #[error("the journal cannot be opened: {0}")]
    Io(#[from] io::Error),
}

impl OpenError {
    /// The stable code of this error.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Corrupt { .. } => "JOURNAL_CORRUPT",
            Self::Missing { .. } => "JOURNAL_SEGMENT_MISSING",
            Self::Foreign { .. } => "JOURNAL_SEGMENT_FOREIGN",
            Self::Newer { .. } => "JOURNAL_FORMAT_NEWER",
            Self::Io(_) => "JOURNAL_UNREADABLE",
        }
    }
}

/// A torn tail that was cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// Where the journal now ends.
    pub location: Location,
    /// How many bytes beyond were not zero-filled room.
    pub bytes: u64,
}

/// What verification found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verified {
    /// Which journal it is.
    pub id: JournalId,
    /// Where it ends.
    pub end: End,
    /// How many segments it has.
    pub segments: u32,
    /// How many frames it has, seals included.
    pub frames: u64,
    /// What is written after its end and never was a whole frame.
    pub tail: Option<Cut>,
    /// Where the last frame of the last segment stands.
    pub(crate) last_frame: Option<Location>,
}

/// What recovery did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recovered {
    /// What was found.
    pub verified: Verified,
    /// Whether there was no journal, and one was begun.
    pub created: bool,
}

/// Verifies every frame without changing anything. `None` if there is no journal.
pub fn verify<D: Disk>(
    disk: &D,
    threads: usize,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Option<Verified>, OpenError> {
    let segments = segments(disk)?;
    let Some(&last) = segments.last() else { return Ok(None) };
    let scans = scan_all(disk, &segments, threads, progress)?;
    link(&scans, last).map(Some)
}

impl<D: Disk> Journal<D> {
    /// Verifies the journal, cuts a torn tail, and gives its writing end. Begins a new journal where there is none.
    pub fn open(disk: D, config: Config) -> Result<(Self, Recovered), OpenError> {
        disk.create_directory(DIRECTORY)?;
        if segments(&disk)?.is_empty() {
            let header = SegmentHeader { journal: config.id, segment: 1, first_offset: 1, chain: GENESIS };
            begin_segment(&disk, &header, u64::from(config.segment_bytes.max(SEGMENT_BYTES_MIN)))?;
            let created = Self::open_existing(disk, config)?;
            return Ok((created.0, Recovered { created: true, ..created.1 }));
        }
        Self::open_existing(disk, config)
    }

    fn open_existing(disk: D, config: Config) -> Result<(Self, Recovered), OpenError> {
        let verified = verify(&disk, config.verify_threads, &|_, _| {})?.ok_or(OpenError::Missing { segment: 1 })?;
        write_again(&disk, &verified)?;
        if let Some(cut) = &verified.tail {
            let file = disk.open(&file_name(cut.location.segment))?;
            write_zeros(&file, u64::from(cut.location.byte), file.length()?)?;
        }
        // A spare that was renamed just before a crash may have a name that is not durable yet.
        disk.sync_directory(DIRECTORY)?;
        let journal = Self::resume(disk, config, verified.id, verified.end)?;
        Ok((journal, Recovered { verified, created: false }))
    }
}

/// Writes the last frame once more, durably. It may have been read from the kernel's cache alone: of a process that was
/// killed before its sync, or after one that failed, since when the kernel takes the frame for written. Nobody may be
/// told of it, and nothing may be built on it, before it is on the disk. Every frame before it has been synced, or it
/// would not be there.
fn write_again<D: Disk>(disk: &D, verified: &Verified) -> io::Result<()> {
    let Some(start) = verified.last_frame else { return Ok(()) };
    let file = disk.open(&file_name(start.segment))?;
    let mut frame = vec![0; narrow(u64::from(verified.end.location.byte.saturating_sub(start.byte)))];
    let read = file.read_at(&mut frame, u64::from(start.byte))?;
    frame.truncate(read);
    file.write_at(&frame, u64::from(start.byte))?;
    file.sync()
}

/// The numbers of the segments, in order and without a gap.
fn segments<D: Disk>(disk: &D) -> Result<Vec<u32>, OpenError> {
    let mut segments: Vec<u32> = disk.list(DIRECTORY)?.iter().filter_map(|name| segment_of(name)).collect();
    segments.sort_unstable();
    match (1..).zip(&segments).find(|(expected, found)| expected != *found) {
        Some((segment, _)) => Err(OpenError::Missing { segment }),
        None => Ok(segments),
    }
}

/// What one segment holds.
struct Scan {
    header: SegmentHeader,
    end: End,
    last_frame: Option<Location>,
    frames: u64,
    tail: Tail,
}

/// What stands after a segment's last sound frame.
enum Tail {
    /// Only zeros.
    Zeros,
    /// Something that was never a whole frame, with no sound frame after it.
    Torn { bytes: u64 },
}

fn scan_all<D: Disk>(
    disk: &D,
    segments: &[u32],
    threads: usize,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Vec<Scan>, OpenError> {
    let next = AtomicUsize::new(0);
    let done = AtomicUsize::new(0);
    let work = || {
        let mut scans = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(&segment) = segments.get(index) else { return scans };
            scans.push((index, scan(disk, segment)));
            progress(done.fetch_add(1, Ordering::Relaxed).saturating_add(1), segments.len());
        }
    };
    let mut scans = if threads <= 1 {
        work()
    } else {
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            workers.into_iter().flat_map(|worker| worker.join().expect("a scan does not panic")).collect()
        })
    };
    // In order, so that the first bad place is the one that is named.
    scans.sort_unstable_by_key(|(index, _)| *index);
    scans.into_iter().map(|(_, scan)| scan).collect()
}

/// Reads and checks all of one segment.
fn scan<D: Disk>(disk: &D, segment: u32) -> Result<Scan, OpenError> {
    let mut reader = SegmentReader::open(disk, segment)?;
    let header_bytes = narrow(u64::from(SEGMENT_HEADER_BYTES));
    let header = SegmentHeader::decode(reader.bytes(0, header_bytes)?).map_err(|error| match error {
        HeaderError::Newer { version } => OpenError::Newer { found: version },
        HeaderError::Damaged => OpenError::Corrupt {
            offset: 0,
            location: Location { segment, byte: 0 },
            what: "the segment's header is damaged",
        },
    })?;
    if header.segment != segment {
        return Err(OpenError::Foreign { segment });
    }
    let mut end = End {
        location: Location { segment, byte: SEGMENT_HEADER_BYTES },
        next_offset: header.first_offset,
        chain: header.chain,
    };
    let mut frames = 0_u64;
    let mut last_frame = None;
    while let Some(next) = step(&mut reader, &end)? {
        last_frame = Some(end.location);
        end = next;
        frames = frames.saturating_add(1);
    }
    let tail = tail(&mut reader, &end)?;
    Ok(Scan { header, end, last_frame, frames, tail })
}

/// The end after the frame at `end`, if a sound frame is there.
fn step<F: DiskFile>(reader: &mut SegmentReader<F>, end: &End) -> Result<Option<End>, OpenError> {
    let location = end.location;
    let corrupt = |what| OpenError::Corrupt { offset: end.next_offset, location, what };
    let Look::Frame(header, frame) = reader.look(u64::from(location.byte))? else { return Ok(None) };
    if header.first_offset != end.next_offset {
        return Err(corrupt("a frame counts from another offset than the one before it ends at"));
    }
    if !header.follows(&end.chain, frame) {
        return Err(corrupt("the hash chain is broken"));
    }
    let stored = u32::try_from(header.stored_bytes()).map_err(|_| corrupt("a frame is longer than a segment"))?;
    Ok(Some(End {
        location: Location { byte: location.byte.saturating_add(stored), ..location },
        next_offset: header.first_offset.saturating_add(u64::from(header.count)),
        chain: header.hash,
    }))
}

/// Judges what follows the last sound frame of a segment.
fn tail<F: DiskFile>(reader: &mut SegmentReader<F>, end: &End) -> Result<Tail, OpenError> {
    let start = u64::from(end.location.byte);
    let mut written_to = start;
    let mut at = start;
    while at < reader.length() {
        let piece = reader.bytes(at, 64 * 1_024)?;
        if piece.is_empty() {
            break;
        }
        // Nearly all of it is zeros, and a sum over them is many times as fast as a search.
        let is_zero = piece.iter().fold(0, |all, byte| all | byte) == 0;
        if !is_zero && let Some(last) = piece.iter().rposition(|byte| *byte != 0) {
            written_to = at.saturating_add(wide(last)).saturating_add(1);
        }
        at = at.saturating_add(wide(piece.len()));
    }
    if written_to == start {
        return Ok(Tail::Zeros);
    }
    // A sound frame further on was written after a sync of the one that is damaged: that one had been acknowledged.
    let alignment = u64::from(FRAME_ALIGNMENT);
    let mut at = start.saturating_add(alignment);
    while at < written_to {
        if matches!(reader.look(at)?, Look::Frame(header, _) if header.first_offset >= end.next_offset) {
            let what = "a frame is damaged, and a later one is sound";
            return Err(OpenError::Corrupt { offset: end.next_offset, location: end.location, what });
        }
        at = at.saturating_add(alignment);
    }
    Ok(Tail::Torn { bytes: written_to.saturating_sub(start) })
}

/// Checks that each segment begins where the one before it ends, and that only the last has a torn tail.
fn link(scans: &[Scan], last: u32) -> Result<Verified, OpenError> {
    let first = scans.first().ok_or(OpenError::Missing { segment: 1 })?;
    let mut before: (u64, Hash) = (1, GENESIS);
    let mut frames = 0_u64;
    let mut tail = None;
    for scan in scans {
        let Scan { header, end, .. } = scan;
        if header.journal != first.header.journal {
            return Err(OpenError::Foreign { segment: header.segment });
        }
        if (header.first_offset, header.chain) != before {
            let location = Location { segment: header.segment, byte: 0 };
            let what = "a segment does not begin where the one before it ends";
            return Err(OpenError::Corrupt { offset: before.0.min(header.first_offset), location, what });
        }
        before = (end.next_offset, end.chain);
        frames = frames.saturating_add(scan.frames);
        match scan.tail {
            Tail::Zeros => {}
            Tail::Torn { bytes } if header.segment == last => tail = Some(Cut { location: end.location, bytes }),
            Tail::Torn { .. } => {
                let what = "bytes after the last frame of a finished segment are not zero";
                return Err(OpenError::Corrupt { offset: end.next_offset, location: end.location, what });
            }
        }
    }
    let Scan { end, last_frame, .. } = *scans.last().unwrap_or(first);
    Ok(Verified { id: first.header.journal, end, segments: last, frames, tail, last_frame })
}
