//! The journal's files, read as they lie: for printing, exporting and looking up, beside a writer or without one.
//!
//! # Invariants
//! - Nothing is skipped: a frame that does not count on from the one before it is named as corruption.
//! - Beside a writer nothing is read beyond what was durable when the reading began.

use holdfast_engine::Record;
use holdfast_engine::recovery::StartError;
use holdfast_journal::{
    Cut, Disk, DiskFile, FRAME_HEADER_BYTES, Frames, Hash, JournalId, LocalDisk, Location, OpenError, ReadError,
    SEGMENT_HEADER_BYTES, open_segment, u32_at, u64_at,
};

const DIRECTORY: &str = "journal";
const ZEROS_PIECE: usize = 64 * 1_024;

/// One segment file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) number: u32,
    pub(crate) first_offset: u64,
    pub(crate) bytes: u64,
}

/// The segments of a journal at one moment.
pub(crate) struct JournalFiles {
    disk: LocalDisk,
    id: JournalId,
    segments: Vec<Segment>,
    /// Up to where it may be read; all there is if not said.
    until: Option<Location>,
}

/// A frame with its entries and its notes.
pub(crate) struct ReadFrame {
    pub(crate) location: Location,
    pub(crate) hash: Hash,
    pub(crate) bytes: u64,
    pub(crate) records: Vec<Record>,
    /// The entry after them.
    pub(crate) next_offset: u64,
    /// What others wrote beside the entries, as it stands.
    pub(crate) notes: Vec<Box<[u8]>>,
}

impl JournalFiles {
    /// The journal below `disk`. `until` is where it is durable up to, if somebody is writing.
    pub(crate) fn open(disk: &LocalDisk, until: Option<Location>) -> Result<Self, StartError> {
        let mut numbers: Vec<u32> = disk.list(DIRECTORY)?.iter().filter_map(|name| number_of(name)).collect();
        numbers.sort_unstable();
        let mut segments = Vec::with_capacity(numbers.len());
        let mut id = None;
        for (expected, number) in (1..).zip(numbers) {
            if number != expected {
                return Err(OpenError::Missing { segment: expected }.into());
            }
            if until.is_some_and(|until| number > until.segment) {
                break;
            }
            let (segment, journal) = header(disk, number)?;
            if *id.get_or_insert(journal) != journal {
                return Err(OpenError::Foreign { segment: number }.into());
            }
            segments.push(segment);
        }
        let id = id.ok_or(OpenError::Missing { segment: 1 })?;
        Ok(Self { disk: disk.clone(), id, segments, until })
    }

    /// Which journal it is.
    pub(crate) const fn id(&self) -> JournalId {
        self.id
    }

    /// Its segments, in order.
    pub(crate) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// All frames from the segment on that entry `from` is in.
    pub(crate) fn walk(&self, from: u64) -> Walk<'_> {
        let start = self.segments.iter().rev().find(|segment| segment.first_offset <= from).or(self.segments.first());
        let (number, next_offset) = start.map_or((1, 1), |segment| (segment.number, segment.first_offset));
        let at = Location { segment: number, byte: SEGMENT_HEADER_BYTES };
        Walk { files: self, frames: Frames::starting(self.disk.clone(), at), next_offset, torn: None }
    }

    /// One entry, the place of its frame, and that frame's hash.
    pub(crate) fn entry(&self, offset: u64) -> Result<(Record, Location, Hash), StartError> {
        let mut walk = self.walk(offset);
        while let Some(ReadFrame { location, hash, records, .. }) = walk.next()? {
            if let Some(record) = records.into_iter().find(|record| record.offset == offset) {
                return Ok((record, location, hash));
            }
        }
        Err(ReadError::Damaged { location: walk.frames.position() }.into())
    }

    fn last(&self) -> Segment {
        self.segments.last().copied().unwrap_or(Segment { number: 1, first_offset: 1, bytes: 0 })
    }
}

/// Frames in order.
pub(crate) struct Walk<'a> {
    files: &'a JournalFiles,
    frames: Frames<LocalDisk>,
    next_offset: u64,
    torn: Option<Cut>,
}

impl Walk<'_> {
    /// The next frame.
    pub(crate) fn next(&mut self) -> Result<Option<ReadFrame>, StartError> {
        let last = self.files.last();
        let all = Location { segment: last.number, byte: u32::try_from(last.bytes).unwrap_or(u32::MAX) };
        let end = self.files.until.unwrap_or(all);
        let frame = match self.frames.next(end) {
            Ok(Some(frame)) => frame,
            Ok(None) => return Ok(None),
            Err(ReadError::Damaged { location }) if location.segment == last.number && self.files.until.is_none() => {
                self.torn = written_after(&self.files.disk, location)?;
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        let location = frame.location;
        let corrupt = |offset, what| StartError::from(OpenError::Corrupt { offset, location, what });
        if frame.header.first_offset != self.next_offset {
            return Err(corrupt(self.next_offset, "the frame with this entry is damaged or missing"));
        }
        let mut records = Vec::with_capacity(frame.header.count as usize);
        for stored in frame.records() {
            let record = stored.ok().and_then(|stored| Record::decode(stored.body));
            let offset = self.next_offset + records.len() as u64;
            records.push(
                record
                    .filter(|record| record.offset == offset)
                    .ok_or_else(|| corrupt(offset, "it cannot be decoded"))?,
            );
        }
        self.next_offset += records.len() as u64;
        let notes = frame.notes().map(|note| note.map(Box::from)).collect::<Result<_, _>>();
        let notes = notes.map_err(|_| corrupt(self.next_offset, "a note in the frame before it cannot be read"))?;
        let bytes = u64::from(FRAME_HEADER_BYTES) + u64::from(frame.header.length);
        Ok(Some(ReadFrame { location, hash: frame.header.hash, bytes, records, next_offset: self.next_offset, notes }))
    }

    /// What stands after the last frame and is none: known when [`Walk::next`] has said that there are no more.
    pub(crate) const fn torn(&self) -> Option<Cut> {
        self.torn
    }
}

/// Refuses a journal that ends before a snapshot of it: the newest part of it is gone.
pub(crate) fn check_not_behind(disk: &LocalDisk, last: u64) -> Result<(), StartError> {
    let snapshots = disk.list("snapshots")?;
    let newest: Option<u64> = snapshots.iter().filter_map(|name| name.strip_suffix(".snap")?.parse().ok()).max();
    match newest {
        Some(seen) if seen > last => Err(StartError::JournalBehind { journal: last, seen, what: "snapshot" }),
        Some(_) | None => Ok(()),
    }
}

fn number_of(name: &str) -> Option<u32> {
    let digits = name.strip_suffix(".seg").filter(|digits| digits.len() == 10)?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

/// What a segment's first bytes say: magic, version, number, first offset, journal.
fn header(disk: &LocalDisk, number: u32) -> Result<(Segment, JournalId), StartError> {
    let file = open_segment(disk, number)?;
    let mut bytes = [0; SEGMENT_HEADER_BYTES as usize];
    DiskFile::read_at(&file, &mut bytes, 0)?;
    let journal = bytes.get(24..40).and_then(|id| id.try_into().ok()).map(JournalId);
    let read = || (bytes.starts_with(b"HOLDFAST") && u32_at(&bytes, 12)? == number).then(|| u64_at(&bytes, 16))?;
    let location = Location { segment: number, byte: 0 };
    let what = "the segment's header is damaged";
    let damaged = OpenError::Corrupt { offset: 0, location, what };
    let (first_offset, journal) = read().zip(journal).ok_or(damaged)?;
    Ok((Segment { number, first_offset, bytes: file.length()? }, journal))
}

/// What is not zero from `location` to the end of its segment.
fn written_after(disk: &LocalDisk, location: Location) -> Result<Option<Cut>, StartError> {
    let file = open_segment(disk, location.segment)?;
    let (start, length) = (u64::from(location.byte), file.length()?);
    let (mut at, mut written_to) = (start, start);
    let mut piece = vec![0; ZEROS_PIECE];
    while at < length {
        let read = DiskFile::read_at(&file, &mut piece, at)?;
        if read == 0 {
            break;
        }
        if let Some(last) = piece.iter().take(read).rposition(|byte| *byte != 0) {
            written_to = at + last as u64 + 1;
        }
        at += read as u64;
    }
    Ok((written_to > start).then(|| Cut { location, bytes: written_to - start }))
}
