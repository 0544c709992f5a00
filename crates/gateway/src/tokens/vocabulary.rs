//! The tokens of a tokenizer, and how many of them a piece of text is.
//!
//! The tables are made by the build script and lie in the program's file, so they cost nothing at the start, and of memory only
//! the pages that are looked at, which the system can take back. A table has a place for each token, found by [`place`].

pub(super) mod place;

use place::Entry;

/// The tokens, by their bytes.
pub(super) struct Vocabulary {
    /// One for each bucket, of two bytes.
    displacements: &'static [u8],
    /// One for each place, of eight bytes.
    entries: &'static [u8],
    place_bits: u32,
    /// Of all tokens, one after the other.
    bytes: &'static [u8],
}

/// The tables that the build script made under this name.
macro_rules! tables {
    ($name:literal, $place_bits:literal) => {
        Vocabulary {
            displacements: include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".displacements")),
            entries: include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".entries")),
            place_bits: $place_bits,
            bytes: include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".bytes")),
        }
    };
}

pub(super) static O200K: Vocabulary = tables!("o200k_base", 18);
pub(super) static CL100K: Vocabulary = tables!("cl100k_base", 17);

/// No two bytes of the piece are merged here.
const NONE: u32 = u32::MAX;

/// Room to merge a piece in, kept from one to the next.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Where the parts begin, and at last where the piece ends.
    starts: Vec<u32>,
    /// The rank of each part together with the one after it.
    ranks: Vec<u32>,
}

impl Vocabulary {
    /// Whether it is a token.
    pub(super) fn contains(&self, piece: &[u8]) -> bool {
        self.rank(piece) != NONE
    }

    /// How many tokens the piece is: the two neighbours whose token has the lowest rank become one, for as long as there are
    /// any. That takes at most as many steps as the square of its length.
    pub(super) fn count(&self, piece: &[u8], scratch: &mut Scratch) -> usize {
        let Scratch { starts, ranks } = scratch;
        starts.clear();
        starts.extend((0..=piece.len()).map(|at| u32::try_from(at).unwrap_or(NONE)));
        ranks.clear();
        ranks.extend(piece.windows(2).map(|pair| self.rank(pair)));
        let rank_of = |starts: &[u32], part: usize| match (starts.get(part), starts.get(part + 2)) {
            (Some(start), Some(end)) => piece.get(*start as usize..*end as usize).map_or(NONE, |both| self.rank(both)),
            _ => NONE,
        };
        // A minimum alone is found four at a time; with its place, one by one.
        while let Some(lowest) = ranks.iter().copied().min().filter(|rank| *rank != NONE) {
            let Some(part) = ranks.iter().position(|rank| *rank == lowest) else { break };
            starts.remove(part + 1);
            ranks.remove(part);
            if let Some(rank) = ranks.get_mut(part) {
                *rank = rank_of(starts, part);
            }
            if let Some(before) = part.checked_sub(1) {
                ranks[before] = rank_of(starts, before);
            }
        }
        starts.len() - 1
    }

    /// The rank of a token, or [`NONE`].
    #[inline]
    fn rank(&self, token: &[u8]) -> u32 {
        let hash = place::hash(token);
        let displacement = number(self.displacements, place::bucket(hash)).map_or(0, u16::from_le_bytes);
        let place = place::place(hash, displacement, self.place_bits);
        let entry = Entry::unpack(number(self.entries, place).map_or(0, u64::from_le_bytes));
        let is_it = entry.tag == place::tag(hash)
            && entry.length == token.len()
            && self.bytes.get(entry.start..entry.start + entry.length) == Some(token);
        if is_it { entry.rank } else { NONE }
    }
}

/// The number of `SIZE` bytes at `index`.
#[inline]
fn number<const SIZE: usize>(numbers: &[u8], index: usize) -> Option<[u8; SIZE]> {
    numbers.get(index * SIZE..)?.first_chunk().copied()
}
