//! Segment files: their names, their header, and the place of a record in them.

use crate::bytes::{chunk, u32_at, u64_at};
use crate::frame::{Hash, Hex};
use std::fmt;

/// The bytes that a segment's header takes.
pub const SEGMENT_HEADER_BYTES: u32 = 128;
/// The directory of the segments, below the data directory.
pub(crate) const DIRECTORY: &str = "journal";
/// The segment that the writer is making.
pub(crate) const NEXT: &str = "journal/next";
/// The file that the next segment will be made of: zero-filled ahead of time.
pub(crate) const SPARE: &str = "journal/spare";

const MAGIC: [u8; 8] = *b"HOLDFAST";
/// The format that this program writes. It reads every older one and refuses a newer one.
pub(crate) const FORMAT_VERSION: u32 = 1;

/// Which journal a segment belongs to, so that files of two cannot be mixed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct JournalId(pub [u8; 16]);

impl fmt::Debug for JournalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
impl fmt::Display for JournalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Hex(&self.0))
    }
}

/// The place of a frame or record: a segment and a byte in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location {
    /// The number of the segment, from 1.
    pub segment: u32,
    /// The byte in the segment's file.
    pub byte: u32,
}

impl Location {
    /// Where the first frame of the first segment stands.
    pub const START: Self = Self { segment: 1, byte: SEGMENT_HEADER_BYTES };

    /// The place as one number, in the journal's order.
    #[must_use]
    pub const fn pack(self) -> u64 {
        let [a, b, c, d] = self.segment.to_be_bytes();
        let [e, f, g, h] = self.byte.to_be_bytes();
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }

    /// The place that [`Location::pack`] made a number of.
    #[must_use]
    pub const fn unpack(packed: u64) -> Self {
        let [a, b, c, d, e, f, g, h] = packed.to_be_bytes();
        Self { segment: u32::from_be_bytes([a, b, c, d]), byte: u32::from_be_bytes([e, f, g, h]) }
    }

    /// The first place of the next segment.
    #[must_use]
    pub const fn next_segment(self) -> Self {
        Self { segment: self.segment.saturating_add(1), byte: SEGMENT_HEADER_BYTES }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "segment {} byte {}", self.segment, self.byte)
    }
}

/// The name of a segment's file.
pub(crate) fn file_name(segment: u32) -> String {
    format!("{DIRECTORY}/{segment:010}.seg")
}

/// The segment that a file name stands for.
pub(crate) fn segment_of(name: &str) -> Option<u32> {
    let segment = name.strip_suffix(".seg")?.parse().ok()?;
    (file_name(segment).strip_prefix(DIRECTORY)?.strip_prefix('/')? == name).then_some(segment)
}

/// What a segment says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) journal: JournalId,
    pub(crate) segment: u32,
    /// The offset of the first entry after it.
    pub(crate) first_offset: u64,
    /// The hash of the last frame before it.
    pub(crate) chain: Hash,
}

/// Why a segment's header cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeaderError {
    Damaged,
    Newer { version: u32 },
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(128);
        bytes.extend(MAGIC);
        bytes.extend(FORMAT_VERSION.to_le_bytes());
        bytes.extend(self.segment.to_le_bytes());
        bytes.extend(self.first_offset.to_le_bytes());
        bytes.extend(self.journal.0);
        bytes.extend(self.chain.0);
        bytes.resize(124, 0);
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, HeaderError> {
        Self::read(bytes).unwrap_or(Err(HeaderError::Damaged))
    }

    fn read(bytes: &[u8]) -> Option<Result<Self, HeaderError>> {
        let sound = crc32c::crc32c(bytes.get(..124)?) == u32_at(bytes, 124)?;
        if chunk::<8>(bytes, 0)? != MAGIC || !sound {
            return None;
        }
        let version = u32_at(bytes, 8)?;
        if version > FORMAT_VERSION {
            return Some(Err(HeaderError::Newer { version }));
        }
        Some(Ok(Self {
            segment: u32_at(bytes, 12)?,
            first_offset: u64_at(bytes, 16)?,
            journal: JournalId(chunk(bytes, 24)?),
            chain: Hash(chunk(bytes, 40)?),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> SegmentHeader {
        SegmentHeader { journal: JournalId([7; 16]), segment: 3, first_offset: 99, chain: Hash([5; 32]) }
    }

    #[test]
    fn a_header_reads_back_and_every_flipped_bit_is_seen() {
        let bytes = header().encode();
        assert_eq!(SegmentHeader::decode(&bytes), Ok(header()));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            *flipped.get_mut(bit / 8).unwrap() ^= 1 << (bit % 8);
            assert!(SegmentHeader::decode(&flipped).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_newer_format_is_refused_by_name() {
        let mut bytes = header().encode();
        *bytes.get_mut(8).unwrap() = 2;
        bytes.truncate(124);
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        assert_eq!(SegmentHeader::decode(&bytes), Err(HeaderError::Newer { version: 2 }));
    }

    #[test]
    fn names_and_numbers_are_one_to_one() {
        assert_eq!(file_name(12), "journal/0000000012.seg");
        assert_eq!(segment_of("0000000012.seg"), Some(12));
        for other in ["12.seg", "+000000012.seg", "0000000012", "spare", "0000000012.seg.tmp"] {
            assert_eq!(segment_of(other), None, "{other}");
        }
    }

    #[test]
    fn packed_places_keep_the_journals_order() {
        let a = Location { segment: 1, byte: u32::MAX };
        let b = Location { segment: 2, byte: 0 };
        assert!(a.pack() < b.pack());
        assert_eq!(Location::unpack(a.pack()), a);
    }
}
