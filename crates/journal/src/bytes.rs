//! Little-endian integers at a place in a slice: `None` where the slice ends first.

/// Two bytes at `at`.
#[must_use]
pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    chunk(bytes, at).map(u16::from_le_bytes)
}

/// Four bytes at `at`.
#[must_use]
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    chunk(bytes, at).map(u32::from_le_bytes)
}

/// Eight bytes at `at`.
#[must_use]
pub fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    chunk(bytes, at).map(u64::from_le_bytes)
}

/// The `N` bytes at `at`.
pub(crate) fn chunk<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk::<N>().copied()
}

/// A length as the file format's 64 bits.
pub(crate) fn wide(len: usize) -> u64 {
    u64::try_from(len).expect("usize is at most 64 bits")
}

/// A file position as a length in memory.
pub(crate) fn narrow(len: u64) -> usize {
    usize::try_from(len).expect("segments are far smaller than the address space")
}
