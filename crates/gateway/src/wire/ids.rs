//! Ids that the caller did not choose: 26 characters that sort by time, or that follow from the caller's key.

use holdfast_domain::{ID_BYTES_MAX, Id, IdKind, Key, Timestamp};
use std::cell::RefCell;
use std::io;

/// Crockford's base 32: no letter that looks like a digit.
const DIGITS: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
/// A ULID is 128 bits in digits of five.
const LENGTH: usize = 26;

/// So many random bytes from the system.
pub(crate) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| io::Error::other("the system has no randomness to give"))?;
    Ok(bytes)
}

/// The chance of one id.
type Chance = [u8; 10];
/// So many ids are made of what the system is asked for at once: to ask takes longer than all else about an id.
const CHANCES: usize = 32;

thread_local! {
    /// What is left of it. What was used is not there any more.
    static LEFT: RefCell<Vec<Chance>> = const { RefCell::new(Vec::new()) };
}

fn chance() -> io::Result<Chance> {
    LEFT.with_borrow_mut(|left| {
        if let Some(chance) = left.pop() {
            return Ok(chance);
        }
        let asked = random::<{ CHANCES * size_of::<Chance>() }>()?;
        left.extend_from_slice(asked.as_chunks().0);
        left.pop().ok_or_else(|| io::Error::other("the system gave no randomness"))
    })
}

/// A new id: 48 bits of time, 80 of chance.
pub(crate) fn fresh<K: IdKind>(prefix: &str, now: Timestamp) -> io::Result<Id<K>> {
    let [a, b, c, d, e, f, g, h, i, j] = chance()?;
    let chance = u128::from_be_bytes([0, 0, 0, 0, 0, 0, a, b, c, d, e, f, g, h, i, j]);
    Ok(with_digits(prefix, (u128::from(now.millis()) << 80) | chance))
}

/// The id that belongs to a key: the same request again, which has the same key, is about the same reservation.
pub(crate) fn of_key<K: IdKind>(prefix: &str, key: Key) -> Id<K> {
    of_hash(prefix, &blake3::derive_key("holdfast 2026-01 id of an idempotency key", key.as_bytes()))
}

/// The id that belongs to a hash.
pub(crate) fn of_hash<K: IdKind>(prefix: &str, hash: &[u8; 32]) -> Id<K> {
    let head = *hash.first_chunk().expect("a hash has 32 bytes");
    with_digits(prefix, u128::from_be_bytes(head))
}

fn with_digits<K: IdKind>(prefix: &str, number: u128) -> Id<K> {
    let digit = |place: usize| DIGITS[(number >> (5 * place) & 31) as usize];
    let mut text = [0; ID_BYTES_MAX];
    let length = prefix.len() + LENGTH;
    let (before, digits) = text[..length].split_at_mut(prefix.len());
    before.copy_from_slice(prefix.as_bytes());
    digits.iter_mut().zip((0..LENGTH).rev()).for_each(|(byte, place)| *byte = digit(place));
    Id::from_bytes(&text[..length]).expect("a short prefix and 26 plain characters are an id")
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_domain::ChargeId;

    #[test]
    fn fresh_ids_differ_and_sort_by_time() {
        let id = |millis| -> ChargeId { fresh("req_", Timestamp::from_millis(millis)).unwrap() };
        let (a, b, later) = (id(1_700_000_000_000), id(1_700_000_000_000), id(1_700_000_000_001));
        assert_ne!(a, b);
        assert!(later > a && later > b);
        assert_eq!(a.as_str().len(), 30);
    }

    #[test]
    fn no_chance_is_used_twice_on_any_thread() {
        let ids = || -> Vec<ChargeId> {
            let at = Timestamp::from_millis(1_700_000_000_000);
            (0..5 * CHANCES).map(|_| fresh("", at).unwrap()).collect()
        };
        let mut all = ids();
        all.extend(std::thread::spawn(ids).join().unwrap());
        let distinct: std::collections::HashSet<ChargeId> = all.iter().copied().collect();
        assert_eq!(distinct.len(), 10 * CHANCES);
    }

    #[test]
    fn a_key_has_one_id() {
        let id = |key: &str| -> ChargeId { of_key("req_", key.parse().unwrap()) };
        assert_eq!(id("a"), id("a"));
        assert_ne!(id("a"), id("b"));
    }
}
