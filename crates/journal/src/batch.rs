//! A batch: the frame that the next sync will make durable, while it is being filled.
//!
//! A batch knows where it will stand before it is written, because a record's place is needed while later commands are
//! decided. So whether it opens a new segment is settled when it is begun: it does if little room is left, and it never
//! takes more than the room it has.
//!
//! Whoever else has something to make durable writes it beside the records, as a **note**: it shares the sync, has no offset, and is no
//! entry for anybody who reads those.

use crate::bytes::{narrow, wide};
use crate::frame::{FRAME_ALIGNMENT, FRAME_HEADER_BYTES, RECORD_HEADER_BYTES, narrow_const};
use crate::segment::Location;

/// The longest record body.
pub const RECORD_BYTES_MAX: usize = 2_048;
/// A batch takes no more than this, so that one sync stays short and one read stays small.
const FRAME_BYTES_MAX: u32 = 4 * 1_024 * 1_024;
/// With less room than this left, a batch begins in the next segment.
const ROOM_MIN: u32 = 16 * 1_024;

// One record must fit any batch, or a command could wait for ever.
const _: () = assert!(RECORD_BYTES_MAX < 8 * 1_024 && ROOM_MIN >= 16 * 1_024);

/// Where the next batch will stand, and from which offset it counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    /// The place after the last frame.
    pub location: Location,
    /// The offset of the next record.
    pub next_offset: u64,
    /// The size of a segment.
    pub segment_bytes: u32,
}

/// Records waiting for one sync.
#[derive(Debug)]
pub struct Batch {
    pub(crate) start: Location,
    pub(crate) first_offset: u64,
    pub(crate) count: u32,
    notes: u32,
    pub(crate) frame: Vec<u8>,
    segment_bytes: u32,
    limit: usize,
}

/// A record longer than [`RECORD_BYTES_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordTooLong;

impl Batch {
    /// An empty batch at `cursor`, in the memory of an older one.
    #[must_use]
    pub fn begin(cursor: Cursor, mut memory: Vec<u8>) -> Self {
        let room = cursor.segment_bytes.saturating_sub(cursor.location.byte);
        let start = if room < ROOM_MIN { cursor.location.next_segment() } else { cursor.location };
        let room = cursor.segment_bytes.saturating_sub(start.byte).min(FRAME_BYTES_MAX);
        memory.clear();
        memory.resize(header_bytes(), 0);
        let limit = narrow(u64::from(room));
        let Cursor { next_offset: first_offset, segment_bytes, .. } = cursor;
        Self { start, first_offset, count: 0, notes: 0, frame: memory, segment_bytes, limit }
    }

    /// Whether one more record surely fits.
    #[must_use]
    pub fn has_room(&self) -> bool {
        // The record, its header, and the padding to the next frame.
        const NEED: usize = RECORD_BYTES_MAX + 64;
        self.limit.saturating_sub(self.frame.len()) >= NEED
    }

    /// Whether nothing is in it, neither a record nor a note.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0 && self.notes == 0
    }

    /// How many records are in it.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Where the next record will stand, and its offset.
    #[must_use]
    pub fn next(&self) -> (Location, u64) {
        let within = u32::try_from(self.frame.len()).expect("a frame is at most FRAME_BYTES_MAX");
        let location = Location { byte: self.start.byte.saturating_add(within), ..self.start };
        (location, self.first_offset.saturating_add(u64::from(self.count)))
    }

    /// Adds a record whose body `write` appends to the bytes given to it. Its checksum comes when the frame is written: whoever
    /// decides has more to do than whoever writes.
    pub fn push(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), RecordTooLong> {
        assert!(self.notes == 0, "notes come after all records");
        self.write(write)?;
        self.count = self.count.saturating_add(1);
        Ok(())
    }

    /// Adds a note: bytes, at least one, that are made durable with the records and are none of them. It comes after the last one.
    pub fn push_note(&mut self, note: &[u8]) -> Result<(), RecordTooLong> {
        assert!(!note.is_empty(), "a note says something");
        self.write(|bytes| bytes.extend_from_slice(note))?;
        self.notes = self.notes.saturating_add(1);
        Ok(())
    }

    fn write(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), RecordTooLong> {
        let at = self.frame.len();
        self.frame.extend([0; 6]);
        const { assert!(RECORD_HEADER_BYTES == 6) };
        let body_at = self.frame.len();
        write(&mut self.frame);
        let body = self.frame.get(body_at..).unwrap_or_default();
        let length = u16::try_from(body.len()).ok().filter(|_| body.len() <= RECORD_BYTES_MAX);
        let Some(length) = length else {
            self.frame.truncate(at);
            return Err(RecordTooLong);
        };
        let header = self.frame.get_mut(at..).and_then(|rest| rest.first_chunk_mut()).expect("just added");
        *header = length.to_le_bytes();
        Ok(())
    }

    /// Where the frame will stand.
    #[must_use]
    pub const fn start(&self) -> Location {
        self.start
    }

    /// The frame's bytes so far.
    #[must_use]
    pub fn frame(&self) -> &[u8] {
        &self.frame
    }

    /// Gives the memory back for another batch.
    #[must_use]
    pub fn into_memory(self) -> Vec<u8> {
        self.frame
    }

    /// Gives every record its checksum.
    pub(crate) fn check_records(&mut self) {
        let mut rest = self.frame.get_mut(header_bytes()..).unwrap_or_default();
        while let Some((header, after)) = rest.split_first_chunk_mut::<{ narrow_const(RECORD_HEADER_BYTES) }>() {
            let [low, high, crc @ ..] = header;
            let length = usize::from(u16::from_le_bytes([*low, *high]));
            let Some((body, next)) = after.split_at_mut_checked(length) else { return };
            *crc = crc32c::crc32c(body).to_le_bytes();
            rest = next;
        }
    }

    /// Fills the frame up to where the next one may start.
    pub(crate) fn pad(&mut self) {
        self.frame.resize(narrow(self.stored_bytes()), 0);
    }

    fn stored_bytes(&self) -> u64 {
        wide(self.frame.len()).next_multiple_of(u64::from(FRAME_ALIGNMENT))
    }

    /// Where the batch after this one will stand.
    #[must_use]
    pub fn end(&self) -> Cursor {
        let stored = u32::try_from(self.stored_bytes()).expect("a frame is at most FRAME_BYTES_MAX");
        Cursor {
            location: Location { byte: self.start.byte.saturating_add(stored), ..self.start },
            next_offset: self.first_offset.saturating_add(u64::from(self.count)),
            segment_bytes: self.segment_bytes,
        }
    }
}

fn header_bytes() -> usize {
    narrow(u64::from(FRAME_HEADER_BYTES))
}
