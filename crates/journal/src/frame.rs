//! The frame: what one sync makes durable, with its checksum and its link in the hash chain.
//!
//! The hash covers the stored bytes, never a re-encoding of them. The crc covers everything else in the frame, the hash
//! included, so a frame can be judged alone, without the one before it.

use crate::bytes::{chunk, narrow, u16_at, u32_at, u64_at, wide};
use crate::segment::Location;
use std::fmt;

/// The bytes before a frame's records.
pub const FRAME_HEADER_BYTES: u32 = 56;
/// The bytes before a record's body: its length and its crc32c.
pub const RECORD_HEADER_BYTES: u32 = 6;
/// Frames are filled up with zeros to a multiple of this, so that a search for one need not try every byte. The zeros are
/// part of the frame: its checksum covers every byte of the file that it takes.
pub(crate) const FRAME_ALIGNMENT: u32 = 8;

const MAGIC: u32 = u32::from_le_bytes(*b"HFr1");
const CRC_AT: usize = 20;
const HASH_AT: usize = 24;
/// The bytes before a record's body.
const HEADER: usize = narrow_const(RECORD_HEADER_BYTES);

/// A blake3 hash in the chain.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Hash(pub [u8; 32]);

/// The hash before the first frame.
pub const GENESIS: Hash = Hash([0; 32]);

/// Bytes in hexadecimal.
pub struct Hex<'a>(pub &'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Hex(&self.0))
    }
}
impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What a frame says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// The bytes of its records, and of the zeros that fill it up to a multiple of eight.
    pub length: u32,
    /// The offset of its first record; of the next one to come, if it has none.
    pub first_offset: u64,
    /// How many records it has; one with neither records nor notes is a seal.
    pub count: u32,
    /// Its link in the chain.
    pub hash: Hash,
}

impl FrameHeader {
    /// Writes the header over the first bytes of `frame`, whose records are already in place, and gives its link.
    pub(crate) fn seal(frame: &mut [u8], first_offset: u64, count: u32, chain: &Hash) -> Hash {
        let (header, records) = frame
            .split_first_chunk_mut::<{ narrow_const(FRAME_HEADER_BYTES) }>()
            .expect("a frame starts with its header");
        let length = u32::try_from(records.len()).expect("a frame fits its segment");
        let mut fields = Vec::with_capacity(header.len());
        Self { length, first_offset, count, hash: GENESIS }.put_fields(&mut fields);
        let hash = link(chain, &fields, records);
        fields.extend(checksum(&fields, &hash, records).to_le_bytes());
        fields.extend(hash.0);
        header.copy_from_slice(&fields);
        hash
    }

    /// Writes what comes before the checksum.
    fn put_fields(&self, fields: &mut Vec<u8>) {
        fields.extend(MAGIC.to_le_bytes());
        fields.extend(self.length.to_le_bytes());
        fields.extend(self.first_offset.to_le_bytes());
        fields.extend(self.count.to_le_bytes());
    }

    /// The header at the start of `bytes`, if they look like one. Whether it is sound is [`FrameHeader::is_sound`]'s to say.
    pub(crate) fn peek(bytes: &[u8]) -> Option<Self> {
        (u32_at(bytes, 0)? == MAGIC).then_some(())?;
        Some(Self {
            length: u32_at(bytes, 4)?,
            first_offset: u64_at(bytes, 8)?,
            count: u32_at(bytes, 16)?,
            hash: Hash(chunk(bytes, HASH_AT)?),
        })
    }

    /// All of the frame's bytes, header included.
    pub(crate) fn stored_bytes(&self) -> u64 {
        u64::from(FRAME_HEADER_BYTES).saturating_add(u64::from(self.length))
    }

    /// Whether the frame's own checksum holds. `frame` is the header and its records.
    pub(crate) fn is_sound(&self, frame: &[u8]) -> bool {
        let parts = frame.get(..CRC_AT).zip(frame.get(narrow(u64::from(FRAME_HEADER_BYTES))..));
        parts.is_some_and(|(fields, records)| {
            wide(records.len()) == u64::from(self.length)
                && u32_at(frame, CRC_AT) == Some(checksum(fields, &self.hash, records))
        })
    }

    /// Whether the frame follows the one whose hash is `chain`.
    pub(crate) fn follows(&self, chain: &Hash, frame: &[u8]) -> bool {
        let parts = frame.get(..CRC_AT).zip(frame.get(narrow(u64::from(FRAME_HEADER_BYTES))..));
        parts.is_some_and(|(fields, records)| link(chain, fields, records) == self.hash)
    }
}

pub(crate) const fn narrow_const(bytes: u32) -> usize {
    #[expect(clippy::as_conversions, reason = "u32 fits usize on every target; try_from is not const")]
    let bytes = bytes as usize;
    bytes
}

fn checksum(fields: &[u8], hash: &Hash, records: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(fields), &hash.0), records)
}

fn link(chain: &Hash, fields: &[u8], records: &[u8]) -> Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&chain.0).update(fields).update(records);
    Hash(*hasher.finalize().as_bytes())
}

/// A sound frame, borrowed from where it was read.
#[derive(Debug, Clone, Copy)]
pub struct Frame<'a> {
    /// Where it stands.
    pub location: Location,
    /// What it says of itself.
    pub header: FrameHeader,
    pub(crate) records: &'a [u8],
}

/// One record of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// Where it stands.
    pub location: Location,
    /// Its place in the order of all entries, from 1.
    pub offset: u64,
    /// Its bytes.
    pub body: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Each record. A record that does not add up ends the iteration with an error: the frame's checksum held, so it was
    /// written wrong.
    pub fn records(&self) -> impl Iterator<Item = Result<Record<'a>, MalformedRecord>> + use<'a> {
        let Self { location, header, records } = *self;
        let mut at = 0_usize;
        (0..header.count).map(move |index| {
            let start = FRAME_HEADER_BYTES
                .checked_add(u32::try_from(at).ok().ok_or(MalformedRecord)?)
                .ok_or(MalformedRecord)?;
            let body = parse_record(records.get(at..).unwrap_or_default()).ok_or(MalformedRecord)?;
            at = at.saturating_add(body.len()).saturating_add(narrow_const(RECORD_HEADER_BYTES));
            Ok(Record {
                location: Location { byte: location.byte.saturating_add(start), ..location },
                offset: header.first_offset.saturating_add(u64::from(index)),
                body,
            })
        })
    }

    /// Each note, in the order in which they were written. What does not add up ends the iteration with an error, as with records.
    pub fn notes(&self) -> impl Iterator<Item = Result<&'a [u8], MalformedRecord>> + use<'a> {
        let Self { header, records, .. } = *self;
        let after = |bytes: &'a [u8], body: &[u8]| bytes.get(HEADER.saturating_add(body.len())..);
        // Whether the records themselves add up is for whoever reads those.
        let notes = (0..header.count).try_fold(records, |bytes, _| after(bytes, record_body(bytes)?));
        let mut rest = Some(notes.ok_or(MalformedRecord));
        std::iter::from_fn(move || {
            let bytes = match rest.take()? {
                Ok(bytes) if is_filling(bytes) => return None,
                Ok(bytes) => bytes,
                Err(malformed) => return Some(Err(malformed)),
            };
            let note = parse_record(bytes).ok_or(MalformedRecord);
            rest = note.ok().map(|note| Ok(after(bytes, note).unwrap_or_default()));
            Some(note)
        })
    }

    /// Whether it comes after the frame whose hash this is.
    #[must_use]
    pub fn follows(&self, chain: &Hash) -> bool {
        let mut fields = Vec::with_capacity(CRC_AT);
        self.header.put_fields(&mut fields);
        link(chain, &fields, self.records) == self.header.hash
    }
}

/// Whether these are the zeros at the end of a frame: fewer than a record's header, or a length that no note has.
fn is_filling(bytes: &[u8]) -> bool {
    bytes.len() < HEADER || u16_at(bytes, 0) == Some(0)
}

/// A record whose length or checksum does not hold inside a frame whose checksum does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MalformedRecord;

/// The body of the record at the start of `bytes`, if its length and checksum hold.
pub(crate) fn parse_record(bytes: &[u8]) -> Option<&[u8]> {
    let body = record_body(bytes)?;
    (u32_at(bytes, 2)? == crc32c::crc32c(body)).then_some(body)
}

/// The body of the record at the start of `bytes`, which have not left the memory and may have no checksum yet.
pub(crate) fn record_body(bytes: &[u8]) -> Option<&[u8]> {
    bytes.get(narrow_const(RECORD_HEADER_BYTES)..)?.get(..usize::from(u16_at(bytes, 0)?))
}
