//! The journal's writing end: append a batch, sync it, say where it ended.

use crate::batch::{Batch, Cursor};
use crate::bytes::{narrow, wide};
use crate::disk::{Disk, DiskFile};
use crate::failpoint;
use crate::frame::{FrameHeader, Hash};
use crate::segment::{DIRECTORY, JournalId, Location, NEXT, SPARE, SegmentHeader, file_name};
use std::io;

/// The size of a segment file.
pub const SEGMENT_BYTES: u32 = 64 * 1_024 * 1_024;
/// The least that a segment may be.
pub(crate) const SEGMENT_BYTES_MIN: u32 = 64 * 1_024;
/// Zeros are written and synced in pieces of this size, so that filling a file ahead does not hold up a commit.
const ZEROS_BYTES: usize = 256 * 1_024;

/// How a journal is laid out.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// The size of new segments, at least 64 KiB.
    pub segment_bytes: u32,
    /// The identity of a journal that does not exist yet.
    pub id: JournalId,
    /// How many threads verify segments at the start.
    pub verify_threads: usize,
}

/// Where a journal ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// The place after the last frame.
    pub location: Location,
    /// The offset of the next record; so one less is the last record's.
    pub next_offset: u64,
    /// The hash of the last frame.
    pub chain: Hash,
}

/// A write or sync failed. It is final: what is on the disk is known only after a restart.
#[derive(Debug, thiserror::Error)]
#[error("the journal failed and accepts nothing more until a restart: {0}")]
pub struct Failed(String);

impl Failed {
    /// The stable code of this error.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        "SERVICE_JOURNAL_FAILED"
    }
}

/// The writing end of a journal. There is one per journal.
pub struct Journal<D: Disk> {
    disk: D,
    config: Config,
    id: JournalId,
    file: D::File,
    end: End,
    failure: Option<String>,
}

impl<D: Disk> Journal<D> {
    /// The writing end at `end`, which recovery has found sound.
    pub(crate) fn resume(disk: D, config: Config, id: JournalId, end: End) -> io::Result<Self> {
        let file = disk.open(&file_name(end.location.segment))?;
        Ok(Self { disk, config, id, file, end, failure: None })
    }

    /// Where the journal ends: everything before is durable.
    #[must_use]
    pub const fn end(&self) -> End {
        self.end
    }

    /// The identity of the journal.
    #[must_use]
    pub const fn id(&self) -> JournalId {
        self.id
    }

    /// Where the next batch will stand.
    #[must_use]
    pub fn cursor(&self) -> Cursor {
        Cursor {
            location: self.end.location,
            next_offset: self.end.next_offset,
            segment_bytes: self.config.segment_bytes.max(SEGMENT_BYTES_MIN),
        }
    }

    /// Makes a batch durable. An empty batch is a seal: it proves that the frame before it was synced.
    ///
    /// After a failure every later call fails too, without touching the file: a second sync would lie.
    pub fn append(&mut self, batch: &mut Batch) -> Result<End, Failed> {
        if let Some(failure) = &self.failure {
            return Err(Failed(failure.clone()));
        }
        self.try_append(batch).map_err(|error| {
            let failure = error.to_string();
            self.failure = Some(failure.clone());
            Failed(failure)
        })
    }

    fn try_append(&mut self, batch: &mut Batch) -> io::Result<End> {
        assert!(batch.first_offset == self.end.next_offset, "batches are appended in the order they were begun");
        if batch.start == self.end.location.next_segment() {
            self.roll()?;
        }
        assert!(batch.start == self.end.location, "a batch stands where it was begun");
        if batch.is_empty() {
            failpoint::pass("journal.before_seal");
        }
        batch.check_records();
        batch.pad();
        let chain = FrameHeader::seal(&mut batch.frame, batch.first_offset, batch.count, &self.end.chain);
        failpoint::pass("journal.before_write");
        self.write(&batch.frame, u64::from(batch.start.byte))?;
        failpoint::pass("journal.after_sync");
        let Cursor { location, next_offset, .. } = batch.end();
        self.end = End { location, next_offset, chain };
        Ok(self.end)
    }

    /// Writes a frame durably. Where a test wants the process dead with half of it written, or all of it and nothing synced, it is.
    fn write(&self, frame: &[u8], at: u64) -> io::Result<()> {
        if failpoint::is_due("journal.mid_write") {
            let half = frame.get(..frame.len().div_euclid(2)).unwrap_or_default();
            self.file.write_at(half, at)?;
        }
        failpoint::pass("journal.mid_write");
        if failpoint::is_due("journal.after_write") {
            self.file.write_at(frame, at)?;
        }
        failpoint::pass("journal.after_write");
        self.file.write_durably_at(frame, at)
    }

    /// Begins the next segment. The frame before it is durable, so its header can name that frame's hash.
    fn roll(&mut self) -> io::Result<()> {
        let location = self.end.location.next_segment();
        let bytes = u64::from(self.config.segment_bytes.max(SEGMENT_BYTES_MIN));
        let header = SegmentHeader {
            journal: self.id,
            segment: location.segment,
            first_offset: self.end.next_offset,
            chain: self.end.chain,
        };
        self.file = begin_segment(&self.disk, &header, bytes)?;
        self.end.location = location;
        Ok(())
    }
}

/// Makes the segment that `header` describes, out of the spare if there is one, and gives its file.
///
/// The spare is claimed by a rename to a name that only the writer uses: upkeep may be making the next one at this moment.
pub(crate) fn begin_segment<D: Disk>(disk: &D, header: &SegmentHeader, bytes: u64) -> io::Result<D::File> {
    let claimed = disk.rename(SPARE, NEXT).and_then(|()| disk.open(NEXT));
    let file = match claimed {
        Ok(file) if file.length()? == bytes => file,
        Ok(_) | Err(_) => {
            let file = disk.create(NEXT)?;
            write_zeros(&file, 0, bytes)?;
            file
        }
    };
    failpoint::pass("journal.roll_before_header");
    file.write_at(&header.encode(), 0)?;
    file.sync()?;
    failpoint::pass("journal.roll_before_rename");
    disk.rename(NEXT, &file_name(header.segment))?;
    disk.sync_directory(DIRECTORY)?;
    failpoint::pass("journal.roll_after_rename");
    Ok(file)
}

/// Fills the next segment with zeros ahead of time, if that has not been done: the first write to a block that exists only
/// as a promise costs many times a write to one that is there.
fn prepare_spare<D: Disk>(disk: &D, bytes: u64) -> io::Result<()> {
    if disk.open(SPARE).is_ok_and(|spare| spare.length().is_ok_and(|length| length == bytes)) {
        return Ok(());
    }
    let temporary = format!("{SPARE}.tmp");
    let file = disk.create(&temporary)?;
    write_zeros(&file, 0, bytes)?;
    disk.rename(&temporary, SPARE)?;
    disk.sync_directory(DIRECTORY)
}

/// Writes zeros from `at` up to `end`, durably.
pub(crate) fn write_zeros<F: DiskFile>(file: &F, mut at: u64, end: u64) -> io::Result<()> {
    let zeros = vec![0; narrow(end.saturating_sub(at)).min(ZEROS_BYTES)];
    while at < end {
        let piece = zeros.get(..narrow(end.saturating_sub(at)).min(ZEROS_BYTES)).unwrap_or_default();
        file.write_at(piece, at)?;
        file.sync()?;
        at = at.saturating_add(wide(piece.len()));
    }
    Ok(())
}

impl<D: Disk> Journal<D> {
    /// Fills the next segment with zeros ahead of time. Safe to call beside the writer; does nothing if it is done.
    pub fn prepare_next_segment(disk: &D, segment_bytes: u32) -> io::Result<()> {
        prepare_spare(disk, u64::from(segment_bytes.max(SEGMENT_BYTES_MIN)))
    }
}
