//! Reading frames in order, and single records by their place.

use crate::bytes::{narrow, wide};
use crate::disk::{Disk, DiskFile};
use crate::frame::{FRAME_HEADER_BYTES, Frame, FrameHeader, RECORD_HEADER_BYTES, parse_record, record_body};
use crate::segment::{Location, file_name};
use crate::{RECORD_BYTES_MAX, u16_at};
use std::io;

/// How much is read ahead.
const READ_AHEAD_BYTES: usize = 1_024 * 1_024;

/// Why a frame or record could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// There is no sound frame or record where one must be.
    #[error("the journal is damaged at {location}; run `holdfast journal verify`")]
    Damaged {
        /// Where.
        location: Location,
    },
    /// The file could not be read.
    #[error("the journal cannot be read: {0}")]
    Io(#[from] io::Error),
}

/// What stands at a place.
pub(crate) enum Look<'a> {
    /// A frame whose own checksum holds: its header and all of its bytes.
    Frame(FrameHeader, &'a [u8]),
    /// No sound frame: zeros, damage, or the end of the file.
    Nothing,
}

/// One segment's file, read through a buffer.
pub(crate) struct SegmentReader<F> {
    file: F,
    file_length: u64,
    /// How far it is read: the file's length, or less where the tail is still being written.
    length: u64,
    buffer: Vec<u8>,
    /// How much of the buffer was read.
    filled: usize,
    /// Where in the file the buffer starts.
    base: u64,
}

impl<F: DiskFile> SegmentReader<F> {
    pub(crate) fn open<D: Disk<File = F>>(disk: &D, segment: u32) -> io::Result<Self> {
        let file = disk.open(&file_name(segment))?;
        let file_length = file.length()?;
        Ok(Self { file, file_length, length: file_length, buffer: Vec::new(), filled: 0, base: 0 })
    }

    pub(crate) const fn length(&self) -> u64 {
        self.length
    }

    /// The bytes at `byte`, as many of `length` as the file has.
    pub(crate) fn bytes(&mut self, byte: u64, length: usize) -> io::Result<&[u8]> {
        let buffered = self.base..self.base.saturating_add(wide(self.filled));
        let end = byte.saturating_add(wide(length)).min(self.length);
        if !(buffered.contains(&byte) && end <= buffered.end) {
            let want = length.max(READ_AHEAD_BYTES).min(narrow(self.length.saturating_sub(byte)));
            if self.buffer.len() < want {
                self.buffer.resize(want, 0);
            }
            self.base = byte;
            self.filled = self.file.read_at(self.buffer.get_mut(..want).unwrap_or_default(), byte)?;
        }
        let from = narrow(byte.saturating_sub(self.base)).min(self.filled);
        let rest = self.buffer.get(from..self.filled).unwrap_or_default();
        Ok(rest.get(..length).unwrap_or(rest))
    }

    /// Reads up to `end` from now on if the segment, number `segment`, is the one that is still being written.
    fn limit(&mut self, segment: u32, end: Location) {
        self.length = if segment == end.segment { u64::from(end.byte) } else { self.file_length };
    }

    pub(crate) fn look(&mut self, byte: u64) -> io::Result<Look<'_>> {
        let header = FrameHeader::peek(self.bytes(byte, narrow(u64::from(FRAME_HEADER_BYTES)))?);
        let Some(header) = header else { return Ok(Look::Nothing) };
        if byte.saturating_add(header.stored_bytes()) > self.length {
            return Ok(Look::Nothing);
        }
        let frame = self.bytes(byte, narrow(header.stored_bytes()))?;
        Ok(if header.is_sound(frame) { Look::Frame(header, frame) } else { Look::Nothing })
    }
}

/// The frames of a journal in order, from any frame's place on.
pub struct Frames<D: Disk> {
    disk: D,
    at: Location,
    reader: Option<SegmentReader<D::File>>,
}

impl<D: Disk> Frames<D> {
    /// Reads from `at`, which must be where a frame starts or will start.
    #[must_use]
    pub const fn starting(disk: D, at: Location) -> Self {
        Self { disk, at, reader: None }
    }

    /// Where the next frame is looked for.
    #[must_use]
    pub const fn position(&self) -> Location {
        self.at
    }

    /// The next frame before `end`, the place up to which the journal is durable.
    pub fn next(&mut self, end: Location) -> Result<Option<Frame<'_>>, ReadError> {
        loop {
            if self.at >= end {
                return Ok(None);
            }
            if self.reader.is_none() {
                self.reader = Some(SegmentReader::open(&self.disk, self.at.segment)?);
            }
            let reader = self.reader.as_mut().expect("opened above");
            reader.limit(self.at.segment, end);
            if matches!(reader.look(u64::from(self.at.byte))?, Look::Frame(..)) {
                break;
            }
            if self.at.segment >= end.segment {
                return Err(ReadError::Damaged { location: self.at });
            }
            self.at = self.at.next_segment();
            self.reader = None;
        }
        self.take()
    }

    /// The frame that was just seen at the present place. Apart, because a borrow cannot outlive the loop that finds it.
    fn take(&mut self) -> Result<Option<Frame<'_>>, ReadError> {
        let location = self.at;
        let reader = self.reader.as_mut().ok_or(ReadError::Damaged { location })?;
        match reader.look(u64::from(location.byte))? {
            Look::Nothing => Err(ReadError::Damaged { location }),
            Look::Frame(header, frame) => {
                let stored = u32::try_from(header.stored_bytes()).map_err(|_| ReadError::Damaged { location })?;
                self.at.byte = location.byte.saturating_add(stored);
                let records = frame.get(narrow(u64::from(FRAME_HEADER_BYTES))..).unwrap_or_default();
                Ok(Some(Frame { location, header, records }))
            }
        }
    }
}

/// Opens a segment's file for [`read_record`].
pub fn open_segment<D: Disk>(disk: &D, segment: u32) -> io::Result<D::File> {
    disk.open(&file_name(segment))
}

/// The body of the record at `location` in the bytes of a frame that stands at `start`.
#[must_use]
pub fn record_in(frame: &[u8], start: Location, location: Location) -> Option<&[u8]> {
    if start.segment != location.segment {
        return None;
    }
    let within = narrow(u64::from(location.byte.checked_sub(start.byte)?));
    record_body(frame.get(within..)?)
}

/// The body of the record at `location` in an open segment file.
pub fn read_record<F: DiskFile>(file: &F, location: Location) -> Result<Vec<u8>, ReadError> {
    const HEADER: usize = 6;
    const { assert!(RECORD_HEADER_BYTES == 6) };
    let damaged = ReadError::Damaged { location };
    // Most records are short: one read gets them, and a second is only for the long ones.
    let mut bytes = vec![0; 512];
    let read = file.read_at(&mut bytes, u64::from(location.byte))?;
    bytes.truncate(read);
    let Some(length) = u16_at(&bytes, 0).map(usize::from) else { return Err(damaged) };
    let whole = length.saturating_add(HEADER);
    if length > RECORD_BYTES_MAX {
        return Err(damaged);
    }
    if whole > bytes.len() {
        bytes.resize(whole, 0);
        let read = file.read_at(&mut bytes, u64::from(location.byte))?;
        bytes.truncate(read);
    }
    parse_record(&bytes).map(<[u8]>::to_vec).ok_or(damaged)
}
