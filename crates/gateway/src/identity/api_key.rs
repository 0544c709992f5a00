//! The text of an API key: `hf_live_`, 43 characters that say 32 random bytes, and 6 that say whether it was copied whole.

use crate::wire::ids;
use std::io;

const PREFIX: &str = "hf_live_";
const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/// 62^43 is the first power above 2^256.
const SECRET_DIGITS: usize = 43;
/// 62^6 is the first power above 2^32.
const CHECK_DIGITS: usize = 6;
/// How much of a key is kept to know it by: the prefix and four characters.
const HINT_BYTES: usize = PREFIX.len() + 4;

/// What a key is stored and found by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct KeyHash(pub(crate) [u8; 32]);

/// Whether a credential is meant to be an API key.
pub(crate) fn looks_like_one(text: &str) -> bool {
    text.starts_with(PREFIX)
}

/// A new key. It cannot be had again.
pub(crate) fn generate() -> io::Result<String> {
    let secret = digits(ids::random::<32>()?, SECRET_DIGITS);
    let check = check_digits(&secret);
    Ok(format!("{PREFIX}{secret}{check}"))
}

/// The hash of a key; `None` if the text cannot be one, so that typing errors cost no look-up.
pub(crate) fn hash(text: &str) -> Option<KeyHash> {
    let body = text.strip_prefix(PREFIX)?;
    let (secret, check) = body.split_at_checked(SECRET_DIGITS)?;
    let sound = body.bytes().all(|byte| byte.is_ascii_alphanumeric()) && check == check_digits(secret);
    sound.then(|| KeyHash(blake3::derive_key("holdfast 2026-11 hash of an API key", text.as_bytes())))
}

/// The part of a key that may be shown.
pub(crate) fn hint(text: &str) -> String {
    text.get(..HINT_BYTES).unwrap_or_default().to_owned()
}

fn check_digits(secret: &str) -> String {
    let hash = blake3::derive_key("holdfast 2026-11 check digits of an API key", secret.as_bytes());
    let [a, b, c, d, ..] = hash;
    digits([a, b, c, d], CHECK_DIGITS)
}

/// A number in base 62, most significant digit first, always of `length` digits.
fn digits<const N: usize>(mut number: [u8; N], length: usize) -> String {
    let mut found = vec![0; length];
    for digit in found.iter_mut().rev() {
        let mut rest = 0_usize;
        for byte in &mut number {
            let value = (rest << 8) | usize::from(*byte);
            *byte = u8::try_from(value / DIGITS.len()).expect("a remainder below 62 keeps the quotient in a byte");
            rest = value % DIGITS.len();
        }
        *digit = DIGITS[rest];
    }
    found.into_iter().map(char::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_in_base_62() {
        assert_eq!(digits([0, 0, 0, 61], 6), "00000z");
        assert_eq!(digits([0, 0, 0, 62], 6), "000010");
        assert_eq!(digits([255; 4], 6), "4gfFC3");
        assert!(digits([255; 32], SECRET_DIGITS).bytes().next().unwrap() > b'0');
    }

    #[test]
    fn a_key_is_whole_or_refused_and_keys_differ() {
        let (key, other) = (generate().unwrap(), generate().unwrap());
        assert_eq!(key.len(), PREFIX.len() + SECRET_DIGITS + CHECK_DIGITS);
        assert!(looks_like_one(&key) && hash(&key).is_some() && hash(&key) != hash(&other));
        assert_eq!(hint(&key), key[..12]);
        let mut wrong =
            vec![String::new(), PREFIX.to_owned(), format!("{key}0"), key.to_lowercase(), key.replace("live", "test")];
        for place in PREFIX.len()..key.len() {
            let mut bytes = key.clone().into_bytes();
            bytes[place] = if bytes[place] == b'7' { b'8' } else { b'7' };
            wrong.push(String::from_utf8(bytes).unwrap());
            wrong.push(key[..place].to_owned());
        }
        for text in wrong {
            assert_eq!(hash(&text), None, "{text}");
        }
    }
}
