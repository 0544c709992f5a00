//! The server's own signing keys: the newest signs. A key that has a successor verifies for an hour more, which is longer than
//! any token lives, and is then forgotten.
//!
//! # Invariants
//! - A key is durable before anything is signed with it.
//! - What is in memory is what some state of the store was, and never goes back to an earlier one.

use super::freshness::Version;
use super::signing_files::SigningFiles;
use super::token::{self, Role};
use super::{IdentityError, now};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use holdfast_domain::{Label, Span, Timestamp};
use jsonwebtoken::{DecodingKey, EncodingKey};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

/// How long a key verifies after its successor was made.
const GRACE: Span = Span::from_secs(60 * 60);
/// What the name of each of our keys begins with.
const KID_PREFIX: &str = "hf-";

// A token that was signed just before a rotation must stay good for its whole life.
const _: () = assert!(token::LIFE_MAX_S * 1_000 < GRACE.millis());

/// A key pair as it is stored.
pub(super) struct Stored {
    /// Where it is, for people.
    pub(super) place: String,
    pub(super) made_at: Timestamp,
    /// PKCS#8, with the private key.
    pub(super) document: Vec<u8>,
}

/// A key pair that was just made.
pub(super) struct NewKey {
    pub(super) kid: String,
    pub(super) document: Vec<u8>,
}

/// A durable store of signing keys.
pub(super) trait SigningStore: Send + Sync {
    /// Every key, newest first, and the state of the store that they are of.
    fn load(&self) -> Result<(Version, Vec<Stored>), IdentityError>;
    /// Adds a key, which is the newest, and forgets those that verify no more. It is durable when this returns.
    fn add(&self, new: &NewKey, grace: Span) -> Result<(), IdentityError>;
    /// Adds a key unless there is one. It is durable when this returns.
    fn add_first(&self, new: &NewKey, grace: Span) -> Result<(), IdentityError>;
}

/// One key pair.
struct SigningKey {
    kid: String,
    made_at: Timestamp,
    place: String,
    encoding: EncodingKey,
    decoding: DecodingKey,
    x: String,
    y: String,
}

/// The keys of a store, newest first.
pub(crate) struct SigningKeys {
    store: Arc<dyn SigningStore>,
    keys: RwLock<(Version, Arc<Vec<SigningKey>>)>,
}

impl SigningKeys {
    /// The keys that are there; `None` if none is.
    pub(crate) fn open(data: &Path) -> Result<Option<Self>, IdentityError> {
        Self::found(Arc::new(SigningFiles::of(data)))
    }

    /// The keys that are there, or a first one. The caller holds the data directory's lock.
    pub(crate) fn open_or_make(data: &Path) -> Result<Self, IdentityError> {
        Self::found_or_made(Arc::new(SigningFiles::of(data)))
    }

    fn found(store: Arc<dyn SigningStore>) -> Result<Option<Self>, IdentityError> {
        let (version, stored) = store.load()?;
        let keys = read_all(stored)?;
        Ok((!keys.is_empty()).then(|| Self { store, keys: RwLock::new((version, Arc::new(keys))) }))
    }

    /// The keys of a store, or a first one, which is one though several ask at once.
    pub(super) fn found_or_made(store: Arc<dyn SigningStore>) -> Result<Self, IdentityError> {
        if let Some(found) = Self::found(Arc::clone(&store))? {
            return Ok(found);
        }
        store.add_first(&generate()?, GRACE)?;
        let missing = || IdentityError::Store("the first signing key is not there".to_owned());
        Self::found(store)?.ok_or_else(missing)
    }

    /// Makes a key that signs from now on, and removes those that verify no more. The new key's name.
    pub(crate) fn rotate(&self) -> Result<String, IdentityError> {
        let new = generate()?;
        self.store.add(&new, GRACE)?;
        let (version, stored) = self.store.load()?;
        self.take(version, stored)?;
        Ok(new.kid)
    }

    /// Takes over a state of the store, unless a later one is known.
    pub(super) fn take(&self, version: Version, stored: Vec<Stored>) -> Result<(), IdentityError> {
        let keys = Arc::new(read_all(stored)?);
        let mut known = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        if known.0 <= version {
            *known = (version, keys);
        }
        Ok(())
    }

    /// Takes over the state of a store that has gone back to an earlier one.
    pub(super) fn take_back(&self, version: Version, stored: Vec<Stored>) -> Result<(), IdentityError> {
        let keys = Arc::new(read_all(stored)?);
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = (version, keys);
        Ok(())
    }

    /// A bearer token, signed with the newest key.
    pub(crate) fn sign(&self, subject: Label, role: Role, life_s: u64) -> Result<String, IdentityError> {
        self.sign_claims(token::Claims::of(subject, role, life_s))
    }

    /// A bearer token of a service for somebody else, who finds our public keys at `/.well-known/jwks.json`.
    pub(crate) fn sign_for(&self, audience: &str, subject: Label, life_s: u64) -> Result<String, IdentityError> {
        self.sign_claims(token::Claims::to(audience, subject, Role::Service, life_s))
    }

    fn sign_claims(&self, claims: token::Claims) -> Result<String, IdentityError> {
        let keys = self.keys();
        let newest = keys.first().ok_or_else(|| IdentityError::NotAKey("what there is".to_owned()))?;
        token::sign(&newest.encoding, &newest.kid, claims).map_err(|_| IdentityError::NotAKey(newest.place.clone()))
    }

    /// When the key that signs was made.
    pub(crate) fn newest_at(&self) -> Timestamp {
        self.keys().first().map_or(Timestamp::EPOCH, |key| key.made_at)
    }

    /// Whether a key of this name could be one of ours.
    pub(super) fn is_like_ours(kid: &str) -> bool {
        kid.starts_with(KID_PREFIX)
    }

    /// The key to verify with that has this name.
    pub(crate) fn find(&self, kid: &str) -> Option<DecodingKey> {
        let keys = self.keys();
        keys.iter().take(verifying(&keys)).find(|key| key.kid == kid).map(|key| key.decoding.clone())
    }

    /// The public keys as a JSON Web Key Set.
    pub(crate) fn published(&self) -> Value {
        let keys = self.keys();
        let shown = keys.iter().take(verifying(&keys)).map(|SigningKey { kid, x, y, .. }| {
            json!({ "kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": kid, "x": x, "y": y })
        });
        json!({ "keys": shown.collect::<Vec<_>>() })
    }

    fn keys(&self) -> Arc<Vec<SigningKey>> {
        Arc::clone(&self.keys.read().unwrap_or_else(PoisonError::into_inner).1)
    }
}

/// How many of the keys, newest first, verify now.
fn verifying(keys: &[SigningKey]) -> usize {
    let made: Vec<Timestamp> = keys.iter().map(|key| key.made_at).collect();
    valid(&made, GRACE, now())
}

/// How many of the keys that were made then, newest first, verify: those whose successor is younger than the grace.
pub(super) fn valid(made: &[Timestamp], grace: Span, now: Timestamp) -> usize {
    let successors = made.iter().take_while(|successor| successor.after(grace) > now).count();
    made.len().min(successors + 1)
}

fn generate() -> Result<NewKey, IdentityError> {
    let random = SystemRandom::new();
    let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random)
        .map_err(|_| IdentityError::Store("a signing key cannot be made".to_owned()))?;
    let kid = read_pair("a new key", document.as_ref())?.1;
    Ok(NewKey { kid, document: document.as_ref().to_vec() })
}

fn read_all(stored: Vec<Stored>) -> Result<Vec<SigningKey>, IdentityError> {
    stored.into_iter().map(read).collect()
}

fn read(stored: Stored) -> Result<SigningKey, IdentityError> {
    let Stored { place, made_at, document } = stored;
    let (pair, kid) = read_pair(&place, &document)?;
    let wrong = || IdentityError::NotAKey(place.clone());
    // An uncompressed point: a tag, then both coordinates of 32 bytes.
    let coordinates = pair.public_key().as_ref().get(1..65).ok_or_else(wrong)?;
    let (x, y) = coordinates.split_at(32);
    let (x, y) = (URL_SAFE_NO_PAD.encode(x), URL_SAFE_NO_PAD.encode(y));
    let decoding = DecodingKey::from_ec_components(&x, &y).map_err(|_| wrong())?;
    Ok(SigningKey { kid, made_at, encoding: EncodingKey::from_ec_der(&document), decoding, x, y, place })
}

/// A key pair and its name, which follows from its public half.
fn read_pair(place: &str, document: &[u8]) -> Result<(EcdsaKeyPair, String), IdentityError> {
    let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, document)
        .map_err(|_| IdentityError::NotAKey(place.to_owned()))?;
    let hash = blake3::hash(pair.public_key().as_ref());
    let name = format!("{KID_PREFIX}{}", hash.to_hex().get(..24).unwrap_or_default());
    Ok((pair, name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::PathBuf;

    #[test]
    fn the_newest_key_signs_and_the_one_before_still_verifies() {
        let data = tempfile::tempdir().unwrap();
        assert!(SigningKeys::open(data.path()).unwrap().is_none());
        let made = SigningKeys::open_or_make(data.path()).unwrap();
        let first = made.published()["keys"][0]["kid"].as_str().unwrap().to_owned();
        let second = made.rotate().unwrap();
        let found = SigningKeys::open(data.path()).unwrap().unwrap();
        for keys in [&made, &found] {
            assert_eq!(keys.published()["keys"].as_array().unwrap().len(), 2);
            assert!(keys.find(&first).is_some() && keys.find(&second).is_some() && keys.find("other").is_none());
            assert_eq!(keys.published()["keys"][0]["kid"], json!(second));
        }
    }

    #[test]
    fn a_key_is_forgotten_an_hour_after_its_successor_was_made() {
        let data = tempfile::tempdir().unwrap();
        let keys = SigningKeys::open_or_make(data.path()).unwrap();
        // Both files become two hours old.
        keys.rotate().unwrap();
        let past = now().millis() - 2 * GRACE.millis();
        for (place, key) in keys.keys().iter().enumerate() {
            let name = format!("{:013}-{}.p8", past - place as u64, key.kid);
            let path = PathBuf::from(&key.place);
            fs::rename(&path, path.with_file_name(name)).unwrap();
        }
        let keys = SigningKeys::open(data.path()).unwrap().unwrap();
        assert_eq!(keys.published()["keys"].as_array().unwrap().len(), 1);
        let old: Vec<String> = keys.keys().iter().map(|key| key.kid.clone()).collect();
        let newest = keys.rotate().unwrap();
        assert!(keys.find(&newest).is_some() && keys.find(&old[0]).is_some() && keys.find(&old[1]).is_none());
        assert_eq!(fs::read_dir(data.path().join("identity")).unwrap().count(), 2);
    }

    #[test]
    fn a_key_that_others_may_read_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let data = tempfile::tempdir().unwrap();
        let keys = SigningKeys::open_or_make(data.path()).unwrap();
        let path = PathBuf::from(&keys.keys()[0].place);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(SigningKeys::open(data.path()), Err(IdentityError::TooOpen(_))));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, b"nothing").unwrap();
        assert!(matches!(SigningKeys::open(data.path()), Err(IdentityError::NotAKey(_))));
    }
}
