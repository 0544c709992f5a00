//! The server's own signing keys: one file per key in `DATA/identity`, the newest signs.
//!
//! A file's name says when the key was made and what it is called: `MILLISECONDS-KID.p8`, PKCS#8. A key that has a successor
//! verifies for an hour more, which is longer than any token lives, and is then forgotten.
//!
//! # Invariants
//! - A key is durable before anything is signed with it, and only its owner may read it.

use super::token::{self, Role};
use super::{IdentityError, durable, now};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use holdfast_domain::{Label, Span, Timestamp};
use jsonwebtoken::{DecodingKey, EncodingKey};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

/// How long a key verifies after its successor was made.
const GRACE: Span = Span::from_secs(60 * 60);
const EXTENSION: &str = "p8";

// A token that was signed just before a rotation must stay good for its whole life.
const _: () = assert!(token::LIFE_MAX_S * 1_000 < GRACE.millis());

/// One key pair.
struct SigningKey {
    kid: String,
    made_at: Timestamp,
    path: PathBuf,
    encoding: EncodingKey,
    decoding: DecodingKey,
    x: String,
    y: String,
}

/// The keys of a data directory, newest first.
pub(crate) struct SigningKeys {
    dir: PathBuf,
    keys: RwLock<Arc<Vec<SigningKey>>>,
}

impl SigningKeys {
    /// The keys that are there; `None` if none is.
    pub(crate) fn open(data: &Path) -> Result<Option<Self>, IdentityError> {
        let dir = data.join("identity");
        let keys = load(&dir)?;
        let found = (!keys.is_empty()).then(|| RwLock::new(Arc::new(keys)));
        Ok(found.map(|keys| Self { dir, keys }))
    }

    /// The keys that are there, or a first one. The caller holds the data directory's lock.
    pub(crate) fn open_or_make(data: &Path) -> Result<Self, IdentityError> {
        if let Some(found) = Self::open(data)? {
            return Ok(found);
        }
        let dir = data.join("identity");
        durable::make_dir(&dir)?;
        make(&dir, now())?;
        let keys = RwLock::new(Arc::new(load(&dir)?));
        Ok(Self { dir, keys })
    }

    /// Makes a key that signs from now on, and removes those that verify no more. The new key's name.
    pub(crate) fn rotate(&self) -> Result<String, IdentityError> {
        // Also when the clock has gone back, the new key is the newest.
        let kid = make(&self.dir, now().max(self.newest_at().after(Span::from_millis(1))))?;
        let keys = load(&self.dir)?;
        for old in keys.iter().skip(valid(&keys, now())) {
            fs::remove_file(&old.path).map_err(IdentityError::io(format!("remove {}", old.path.display())))?;
        }
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(keys);
        Ok(kid)
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
        let newest = keys.first().ok_or_else(|| IdentityError::NotAKey(self.dir.clone()))?;
        token::sign(&newest.encoding, &newest.kid, claims).map_err(|_| IdentityError::NotAKey(newest.path.clone()))
    }

    /// When the key that signs was made.
    pub(crate) fn newest_at(&self) -> Timestamp {
        self.keys().first().map_or(Timestamp::EPOCH, |key| key.made_at)
    }

    /// The key to verify with that has this name.
    pub(crate) fn find(&self, kid: &str) -> Option<DecodingKey> {
        let keys = self.keys();
        keys.iter().take(valid(&keys, now())).find(|key| key.kid == kid).map(|key| key.decoding.clone())
    }

    /// The public keys as a JSON Web Key Set.
    pub(crate) fn published(&self) -> Value {
        let keys = self.keys();
        let shown = keys.iter().take(valid(&keys, now())).map(|SigningKey { kid, x, y, .. }| {
            json!({ "kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": kid, "x": x, "y": y })
        });
        json!({ "keys": shown.collect::<Vec<_>>() })
    }

    fn keys(&self) -> Arc<Vec<SigningKey>> {
        Arc::clone(&self.keys.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// How many of the keys, newest first, verify: those whose successor is younger than the grace.
fn valid(keys: &[SigningKey], now: Timestamp) -> usize {
    let successors = keys.iter().take_while(|successor| successor.made_at.after(GRACE) > now).count();
    keys.len().min(successors + 1)
}

fn make(dir: &Path, at: Timestamp) -> Result<String, IdentityError> {
    let random = SystemRandom::new();
    let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random)
        .map_err(|_| IdentityError::Store("a signing key cannot be made".to_owned()))?;
    let draft = dir.join("new");
    let kid = read_pair(&draft, document.as_ref())?.1;
    durable::write(&dir.join(format!("{:013}-{kid}.{EXTENSION}", at.millis())), document.as_ref())?;
    Ok(kid)
}

fn load(dir: &Path) -> Result<Vec<SigningKey>, IdentityError> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(IdentityError::io(format!("read {}", dir.display())))?,
    };
    let paths = entries.flatten().map(|entry| entry.path());
    let paths = paths.filter(|path| path.extension().is_some_and(|extension| extension == EXTENSION));
    let mut keys = paths.map(load_one).collect::<Result<Vec<_>, _>>()?;
    keys.sort_by(|a, b| (b.made_at, &b.kid).cmp(&(a.made_at, &a.kid)));
    Ok(keys)
}

fn load_one(path: PathBuf) -> Result<SigningKey, IdentityError> {
    let document = durable::read(&path)?;
    let (pair, kid) = read_pair(&path, &document)?;
    let name = path.file_stem().and_then(|name| name.to_str()).and_then(|name| name.split_once('-'));
    let made_at = name.and_then(|(millis, _)| millis.parse().ok()).map(Timestamp::from_millis);
    let wrong = || IdentityError::NotAKey(path.clone());
    // An uncompressed point: a tag, then both coordinates of 32 bytes.
    let coordinates = pair.public_key().as_ref().get(1..65).ok_or_else(wrong)?;
    let (x, y) = coordinates.split_at(32);
    let (x, y) = (URL_SAFE_NO_PAD.encode(x), URL_SAFE_NO_PAD.encode(y));
    let decoding = DecodingKey::from_ec_components(&x, &y).map_err(|_| wrong())?;
    let made_at = made_at.ok_or_else(wrong)?;
    Ok(SigningKey { kid, made_at, encoding: EncodingKey::from_ec_der(&document), decoding, x, y, path })
}

/// A key pair and its name, which follows from its public half.
fn read_pair(path: &Path, document: &[u8]) -> Result<(EcdsaKeyPair, String), IdentityError> {
    let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, document)
        .map_err(|_| IdentityError::NotAKey(path.to_owned()))?;
    let hash = blake3::hash(pair.public_key().as_ref());
    let name = format!("hf-{}", hash.to_hex().get(..24).unwrap_or_default());
    Ok((pair, name))
}

#[cfg(test)]
mod tests {
    use super::*;

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
            fs::rename(&key.path, key.path.with_file_name(name)).unwrap();
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
        let path = keys.keys()[0].path.clone();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(SigningKeys::open(data.path()), Err(IdentityError::TooOpen(_))));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, b"nothing").unwrap();
        assert!(matches!(SigningKeys::open(data.path()), Err(IdentityError::NotAKey(_))));
    }
}
