//! The secrets that queue and wallet share. The first signs; all of them are good, so that one can follow another.
//!
//! # Invariants
//! - No secret is ever shown: not by `Debug`, not in an error, not in a log.
//! - A secret that could be guessed refuses the start.

use super::authorization::head_for;
use crate::failure::Failure;
use crate::settings::{HIDDEN, Said};
use crate::wire::ids;
use aws_lc_rs::hmac;
use holdfast_domain::Label;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// The setting that has them.
pub(crate) const VARIABLE: &str = "HOLDFAST_QUEUE_SECRET";

/// What a secret is called that has no name of its own.
const ONLY: &str = "queue";
/// The shortest secret, in bytes: as long as what HMAC-SHA256 makes of it.
const BYTES_MIN: usize = 32;
/// The fewest different bytes. Of 32 random hexadecimal digits about 14 differ.
const DISTINCT_MIN: usize = 8;
/// The most secrets at once: one that signs, those before it, and those to come.
const COUNT_MAX: usize = 8;

const ALLOWED: &str = "a secret of at least 32 random bytes (as from `openssl rand -base64 48`), or up to 8 of them as NAME:SECRET apart by \
                       commas, of which the first signs; a name has 1 to 64 characters of A-Z a-z 0-9 _ -";

/// What tokens of the queue are signed and verified with.
pub(crate) struct Secrets {
    /// By their names, which are only ever looked up here.
    known: BTreeMap<Label, Secret>,
    /// The name and the secret that sign.
    signs: (Label, Secret),
    /// What the names of tokens are made from: no two processes make the same.
    nonce: [u8; 32],
    signed: AtomicU64,
}

/// One of them, ready for use.
pub(super) struct Secret {
    pub(super) key: hmac::Key,
    /// The head of the tokens that it signs, as it stands in them.
    pub(super) head: String,
}

impl Secret {
    fn new(name: Label, secret: &[u8]) -> Self {
        Self { key: hmac::Key::new(hmac::HMAC_SHA256, secret), head: head_for(name) }
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.known.keys().map(Label::as_str).collect();
        f.debug_struct("Secrets").field("names", &names).finish_non_exhaustive()
    }
}

impl Secrets {
    /// A secret of this process alone, for a queue and a wallet that are both in it.
    pub(crate) fn random() -> Result<Self, Failure> {
        let secret = ids::random::<48>().map_err(Failure::io("get random bytes"))?;
        Self::of(&[(only(), &secret)])
    }

    /// Those that are said; `None` if none is.
    pub(crate) fn read(said: &Said) -> Result<Option<Self>, Failure> {
        let Some((name, text)) = said.secret(VARIABLE)? else { return Ok(None) };
        let refused = |why: &str| Failure::Setting {
            name: name.clone(),
            value: HIDDEN.to_owned(),
            allowed: format!("{ALLOWED}; {why}"),
        };
        let mut pairs: Vec<(Label, &[u8])> = Vec::new();
        for part in text.split(',').map(str::trim) {
            let (name, secret) = match part.split_once(':') {
                Some((name, secret)) => (name.parse().map_err(|_| refused("a name is none"))?, secret),
                None if text.contains(',') => return Err(refused("one of several has no name")),
                None => (only(), part),
            };
            weakness(secret.as_bytes()).map_or(Ok(()), |why| Err(refused(why)))?;
            if pairs.iter().any(|(other, _)| *other == name) {
                return Err(refused("two have the same name"));
            }
            pairs.push((name, secret.as_bytes()));
        }
        if pairs.len() > COUNT_MAX {
            return Err(refused("these are more"));
        }
        Self::of(&pairs).map(Some)
    }

    fn of(pairs: &[(Label, &[u8])]) -> Result<Self, Failure> {
        let nonce = ids::random().map_err(Failure::io("get random bytes"))?;
        let (name, secret) = *pairs.first().ok_or(Failure::Stuck("there is no secret to sign with"))?;
        Ok(Self {
            known: pairs.iter().map(|(name, secret)| (*name, Secret::new(*name, secret))).collect(),
            signs: (name, Secret::new(name, secret)),
            nonce,
            signed: AtomicU64::new(0),
        })
    }

    /// The secret of this name.
    pub(super) fn find(&self, name: &str) -> Option<&Secret> {
        self.known.get(&name.parse().ok()?)
    }

    /// The secret whose tokens have this head, letter for letter. Another spelling of it may name one of them too.
    pub(super) fn find_by_head(&self, head: &str) -> Option<&Secret> {
        self.known.values().find(|secret| secret.head == head)
    }

    /// The secret that signs, and its name.
    pub(super) const fn signer(&self) -> &(Label, Secret) {
        &self.signs
    }

    /// A name that no other token has.
    pub(super) fn next_token_name(&self) -> String {
        let number = self.signed.fetch_add(1, Ordering::Relaxed);
        let hash = blake3::keyed_hash(&self.nonce, &number.to_le_bytes()).to_hex();
        hash.as_str().split_at(32).0.to_owned()
    }
}

fn only() -> Label {
    ONLY.parse().expect("a plain word")
}

/// Why a secret is too easily guessed.
fn weakness(secret: &[u8]) -> Option<&'static str> {
    let mut distinct = secret.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    let repeats = |period: &usize| secret.iter().zip(secret.iter().skip(*period)).all(|(a, b)| a == b);
    let steps = secret.iter().zip(secret.iter().skip(1)).filter(|(a, b)| a.abs_diff(**b) <= 1).count();
    match secret {
        _ if secret.len() < BYTES_MIN => Some("this one is shorter"),
        _ if distinct.len() < DISTINCT_MIN => Some("this one has too few different characters"),
        _ if (1..=secret.len() / 2).any(|period| repeats(&period)) => Some("this one repeats itself"),
        // A row such as abcdef or 012345.
        _ if steps > secret.len() / 2 => Some("this one counts up or down"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Table;

    const GOOD: &str = "q9Zt3vKx7Lw2Rm8Yb5Nc1Hd6Jf4Gs0Pa-one";
    const OTHER: &str = "U2hvcnQgYnV0IHJhbmRvbSBlbm91Z2ghIS0t-two";

    fn read(text: &str) -> Result<Option<Secrets>, Failure> {
        let table: Table = [("secret".to_owned(), toml::Value::String(text.to_owned()))].into();
        Secrets::read(&Said::in_file(BTreeMap::from([("queue", table)])).unwrap())
    }

    #[test]
    fn one_alone_or_several_by_name_are_taken_and_the_first_signs() {
        assert!(read("").unwrap().is_none());
        assert_eq!(read(GOOD).unwrap().unwrap().signer().0.as_str(), "queue");
        let both = read(&format!("new:{GOOD}, old:{OTHER}")).unwrap().unwrap();
        assert_eq!(both.signer().0.as_str(), "new");
        assert!(both.find("old").is_some() && both.find("queue").is_none() && both.find("../old").is_none());
        assert_eq!(format!("{both:?}"), r#"Secrets { names: ["new", "old"], .. }"#);
    }

    #[test]
    fn weak_secrets_are_refused_without_being_shown() {
        for (text, why) in [
            ("short-Secret-1".to_owned(), "shorter"),
            (GOOD[..31].to_owned(), "shorter"),
            ("k:".to_owned(), "shorter"),
            ("a".repeat(64), "too few different"),
            ("abababab".repeat(8), "too few different"),
            ("changeme-changeme-changeme-changeme".to_owned(), "repeats itself"),
            ("0123456789abcdef0123456789abcdef".to_owned(), "repeats itself"),
            ("abcdefghijklmnopqrstuvwxyz0123456789".to_owned(), "counts up"),
            (format!("{GOOD},{OTHER}"), "has no name"),
            (format!("a:{GOOD},{OTHER}"), "has no name"),
            (format!("a:{GOOD},a:{OTHER}"), "the same name"),
            (format!("a b:{GOOD}"), "a name is none"),
            (format!("a:{GOOD},b:weak-weak"), "shorter"),
            ((0..9).map(|n| format!("k{n}:{GOOD}")).collect::<Vec<_>>().join(","), "these are more"),
        ] {
            let refused = read(&text).unwrap_err();
            let said = format!("{refused} {refused:?} {}", refused.hint());
            assert_eq!(refused.code(), "INVALID_SETTING", "{said}");
            assert!(said.contains("queue.secret is") && said.contains(why), "{why}: {said}");
            assert!(!said.contains(GOOD) && !said.contains(OTHER) && !said.contains("changeme"), "{said}");
        }
    }

    #[test]
    fn no_two_tokens_have_one_name() {
        let (one, two) = (Secrets::random().unwrap(), Secrets::random().unwrap());
        let names = [one.next_token_name(), one.next_token_name(), two.next_token_name()];
        assert!(names[0] != names[1] && names[0] != names[2] && names.iter().all(|name| name.len() == 32));
    }
}
