//! The text of a key: `hf_live_` (it spends) or `hf_admin_` (it operates), 43 characters that say 32 random bytes, and 6 that
//! say whether it was copied whole.

use crate::wire::ids;
use std::io;

const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/// 62^43 is the first power above 2^256.
const SECRET_DIGITS: usize = 43;
/// 62^6 is the first power above 2^32.
const CHECK_DIGITS: usize = 6;
/// How much of a key is kept to know it by, besides its prefix.
const HINT_DIGITS: usize = 4;

/// What a key is stored and found by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct KeyHash(pub(crate) [u8; 32]);

/// What a key is for. It is seen by its looks, so that nobody gives an admin's key away for a customer's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It spends from an account.
    Live,
    /// It operates the server.
    Admin,
}

impl Kind {
    const ALL: [Self; 2] = [Self::Live, Self::Admin];

    const fn prefix(self) -> &'static str {
        match self {
            Self::Live => "hf_live_",
            Self::Admin => "hf_admin_",
        }
    }

    /// What a credential is meant to be; `None` if it is no key.
    pub(crate) fn of(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| text.starts_with(kind.prefix()))
    }
}

/// A new key. It cannot be had again.
pub(crate) fn generate(kind: Kind) -> io::Result<String> {
    let secret = digits(ids::random::<32>()?, SECRET_DIGITS);
    let check = check_digits(&secret);
    Ok(format!("{}{secret}{check}", kind.prefix()))
}

/// The hash of a key; `None` if the text cannot be one, so that typing errors cost no look-up.
pub(crate) fn hash(text: &str) -> Option<KeyHash> {
    let body = text.strip_prefix(Kind::of(text)?.prefix())?;
    let (secret, check) = body.split_at_checked(SECRET_DIGITS)?;
    let sound = body.bytes().all(|byte| byte.is_ascii_alphanumeric()) && check == check_digits(secret);
    sound.then(|| KeyHash(blake3::derive_key("holdfast 2026-11 hash of an API key", text.as_bytes())))
}

/// The part of a key that may be shown.
pub(crate) fn hint(text: &str) -> String {
    let prefix = Kind::of(text).map_or("", Kind::prefix);
    text.get(..prefix.len() + HINT_DIGITS).unwrap_or_default().to_owned()
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
        for kind in Kind::ALL {
            check_key(kind);
        }
        let key = generate(Kind::Live).unwrap();
        // A key of one kind is none of the other, however it is written.
        assert_ne!(hash(&key), hash(&key.replace("live", "admin")));
    }

    fn check_key(kind: Kind) {
        let (key, other) = (generate(kind).unwrap(), generate(kind).unwrap());
        let prefix = kind.prefix();
        assert_eq!(key.len(), prefix.len() + SECRET_DIGITS + CHECK_DIGITS);
        assert!(Kind::of(&key) == Some(kind) && hash(&key).is_some() && hash(&key) != hash(&other));
        assert_eq!(hint(&key), key[..prefix.len() + 4]);
        let upper = key.to_uppercase();
        let mut wrong = vec![String::new(), prefix.to_owned(), format!("{key}0"), upper, key.replace("hf_", "hg_")];
        for place in prefix.len()..key.len() {
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
