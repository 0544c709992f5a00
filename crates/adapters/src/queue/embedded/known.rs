//! Which ids were ever given to an item, as far as memory can tell: an id that is new need not be looked for in the file. No I/O.
//!
//! # Invariants
//! - An id that was given is never taken for a new one. A new one may be taken for one that was given, more often the more there
//!   are, and is then looked for.

use holdfast_domain::ItemId;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Two megabytes: with a million items one new id in five hundred, by the usual formula, is looked for in vain.
const BITS: u64 = 1 << 24;
/// How many of them an id has.
const OF_ONE: u64 = 4;

/// The ids that were given.
pub(super) struct Known(Box<[u64]>);

impl Known {
    pub(super) fn none() -> Self {
        Self(vec![0; (BITS / u64::from(u64::BITS)) as usize].into_boxed_slice())
    }

    pub(super) fn add(&mut self, id: ItemId) {
        for (word, bit) in places(id) {
            self.0[word] |= bit;
        }
    }

    /// Whether the id may have been given.
    pub(super) fn may_have(&self, id: ItemId) -> bool {
        places(id).all(|(word, bit)| self.0[word] & bit != 0)
    }
}

/// The words and the bits in them that stand for an id.
fn places(id: ItemId) -> impl Iterator<Item = (usize, u64)> {
    let mut hasher = DefaultHasher::new();
    id.as_bytes().hash(&mut hasher);
    let hash = hasher.finish();
    let (first, step) = (hash % BITS, hash >> 32 | 1);
    (0..OF_ONE).map(move |number| {
        let place = first.wrapping_add(number.wrapping_mul(step)) % BITS;
        ((place / u64::from(u64::BITS)) as usize, 1 << (place % u64::from(u64::BITS)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_is_known_and_few_others_are() {
        let id = |number: u32| -> ItemId { format!("qi_{number}").parse().unwrap() };
        let mut known = Known::none();
        assert!(!known.may_have(id(0)));
        (0..100_000).for_each(|number| known.add(id(number)));
        assert!((0..100_000).all(|number| known.may_have(id(number))));
        let in_vain = (100_000..200_000).filter(|number| known.may_have(id(*number))).count();
        assert!(in_vain < 100, "{in_vain} of 100,000");
    }
}
