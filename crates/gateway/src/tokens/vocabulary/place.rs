//! Where a token's entry is in a vocabulary's table. The build script places the entries with it, and the program finds them.
//!
//! A token's hash names a bucket; the bucket's displacement, which the build script chose, sends each of its tokens to a place
//! of its own. So to find a token, or to find that there is none, is one look, and no text can make it more.

/// Odd, with its bits well spread.
const MIXER: u64 = 0x9E37_79B9_7F4A_7C15;
const LENGTH_MIXER: u64 = 0xA24B_AED4_963E_E407;
const DISPLACEMENT_MIXER: u64 = 0xD6E8_FEB8_6659_FD93;

/// How many bits of a hash name the bucket: tokens come four to a bucket or fewer.
pub(crate) const BUCKET_BITS: u32 = 16;

/// How many bits of the hash an entry keeps.
pub(crate) const TAG_BITS: u32 = 17;

/// The hash of a token.
#[inline]
pub(crate) fn hash(token: &[u8]) -> u64 {
    let mut state = (token.len() as u64).wrapping_mul(LENGTH_MIXER);
    let mut words = token.chunks_exact(8);
    for word in &mut words {
        state = mix(state ^ word.try_into().map_or(0, u64::from_le_bytes));
    }
    mix(state ^ short(words.remainder()))
}

/// At most eight bytes as a number; with their length, no two are the same.
#[inline]
fn short(bytes: &[u8]) -> u64 {
    if let (Some(first), Some(last)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        return u64::from(u32::from_le_bytes(*first)) | u64::from(u32::from_le_bytes(*last)) << 32;
    }
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[inline]
fn mix(word: u64) -> u64 {
    let wide = u128::from(word ^ MIXER) * u128::from(LENGTH_MIXER);
    (wide as u64) ^ ((wide >> 64) as u64)
}

/// The bucket of a token with this hash.
#[inline]
pub(crate) const fn bucket(hash: u64) -> usize {
    (hash >> (u64::BITS - BUCKET_BITS)) as usize
}

/// The place of a token with this hash, among two to the power of `bits`.
#[inline]
pub(crate) const fn place(hash: u64, displacement: u16, bits: u32) -> usize {
    let moved = hash ^ (displacement as u64).wrapping_mul(DISPLACEMENT_MIXER);
    (moved.wrapping_mul(MIXER) >> (u64::BITS - bits)) as usize
}

/// What tells most of the tokens that could be at one place apart.
#[inline]
pub(crate) const fn tag(hash: u64) -> u64 {
    hash & ((1 << TAG_BITS) - 1)
}

/// An entry of the table, as eight bytes: a token's rank, and where its bytes are. One of length 0 is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Of the token: pairs of a lower rank are merged first.
    pub(crate) rank: u32,
    /// Where its bytes begin.
    pub(crate) start: usize,
    /// How many bytes it has.
    pub(crate) length: usize,
    /// Of its hash.
    pub(crate) tag: u64,
}

/// How an entry is packed, from its lowest bits on: the rank, the start, the length, the tag.
pub(crate) const RANK_BITS: u32 = 18;
/// No token is longer than 255 bytes.
pub(crate) const LENGTH_BITS: u32 = 8;
/// All tokens together are less than two megabytes.
pub(crate) const START_BITS: u32 = 21;
const _: () = assert!(RANK_BITS + LENGTH_BITS + START_BITS + TAG_BITS == u64::BITS);

impl Entry {
    /// Reads it.
    #[inline]
    pub(crate) const fn unpack(packed: u64) -> Self {
        Self {
            rank: (packed & ((1 << RANK_BITS) - 1)) as u32,
            start: ((packed >> RANK_BITS) & ((1 << START_BITS) - 1)) as usize,
            length: ((packed >> (RANK_BITS + START_BITS)) & ((1 << LENGTH_BITS) - 1)) as usize,
            tag: packed >> (RANK_BITS + START_BITS + LENGTH_BITS),
        }
    }
}
