//! A blocked Bloom filter: one cache line says "surely not here" for all but a few keys in a thousand.

use super::KeyHash;

/// The bytes of a block: one cache line.
pub(super) const BLOCK_BYTES: usize = 64;
/// Bits of filter a key: about four false answers in a thousand.
const BITS_PER_KEY: u64 = 12;
/// Bits set for a key, each in the same block.
const PROBES: u32 = 6;

/// How many blocks `keys` need.
pub(super) fn blocks_for(keys: u64) -> u64 {
    (keys * BITS_PER_KEY).div_ceil(BLOCK_BYTES as u64 * 8).max(1)
}

/// Which of `blocks` a key belongs to.
pub(super) fn block_of(key: KeyHash, blocks: u64) -> u64 {
    // The high half orders the run, so the low half is taken here: the two stay independent.
    let low = u128::from(key.0 as u64);
    ((low * u128::from(blocks)) >> 64) as u64
}

/// The bits of a key in its block: nine bits of the hash each.
fn bits(key: KeyHash) -> impl Iterator<Item = (usize, u8)> {
    let source = (key.0 >> 64) as u64;
    (0..PROBES).map(move |probe| {
        let bit = (source >> (probe * 9)) & 511;
        ((bit / 8) as usize, 1 << (bit % 8))
    })
}

/// Marks a key in its block.
pub(super) fn insert(block: &mut [u8], key: KeyHash) {
    for (byte, bit) in bits(key) {
        block[byte] |= bit;
    }
}

/// Whether a key may be in the run that this block belongs to.
pub(super) fn may_contain(block: &[u8], key: KeyHash) -> bool {
    bits(key).all(|(byte, bit)| block[byte] & bit != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> KeyHash {
        KeyHash::of(b't', &number.to_le_bytes())
    }

    #[test]
    fn no_key_is_missed_and_few_are_mistaken() {
        let blocks = blocks_for(10_000);
        let mut filter = vec![0; blocks as usize * BLOCK_BYTES];
        fn block(filter: &mut [u8], blocks: u64, key: KeyHash) -> &mut [u8] {
            let at = block_of(key, blocks) as usize * BLOCK_BYTES;
            &mut filter[at..at + BLOCK_BYTES]
        }
        for number in 0..10_000 {
            insert(block(&mut filter, blocks, key(number)), key(number));
        }
        assert!((0..10_000).all(|number| may_contain(block(&mut filter, blocks, key(number)), key(number))));
        let mistaken = (10_000..110_000)
            .filter(|number| may_contain(block(&mut filter, blocks, key(*number)), key(*number)))
            .count();
        assert!(mistaken < 1_000, "{mistaken} of 100,000");
    }
}
