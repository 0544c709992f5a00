//! A peer's public keys: a JSON Web Key Set in a file or at a URL, read anew when a token names a key that is not in it.
//!
//! # Invariants
//! - Only P-256 keys with a name, meant for signatures, are taken.
//! - However many unknown names come, the set is read at most once in ten seconds, by one caller at a time.

use super::IdentityError;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::DecodingKey;
use serde::Deserialize;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// The set is not read more often than this.
const READ_EVERY_MIN: Duration = Duration::from_secs(10);
/// A set that is older than this is read anew when it is next used: a key that the peer took back must stop working.
const STALE_AFTER: Duration = Duration::from_secs(300);
const FETCH_MAX: Duration = Duration::from_secs(5);
const BYTES_MAX: usize = 1_048_576;

/// Where the set is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    File(PathBuf),
    Url(String),
}

impl Source {
    /// A URL if it looks like one, else a file.
    pub(crate) fn of(text: &str) -> Self {
        if text.contains("://") { Self::Url(text.to_owned()) } else { Self::File(text.into()) }
    }
}

/// The peer's keys.
pub(crate) struct PeerKeys {
    source: Source,
    issuer: String,
    client: reqwest::Client,
    keys: RwLock<Arc<HashMap<String, DecodingKey>>>,
    generation: AtomicU64,
    /// When the set was last read, or tried to be.
    tried: Mutex<Option<Instant>>,
    read_at: RwLock<Option<Instant>>,
}

impl PeerKeys {
    /// The set at `source`, whose tokens come from `issuer`. A file must be there and sound; a URL is asked when it is needed.
    pub(crate) fn open(source: Source, issuer: String) -> Result<Self, IdentityError> {
        let wrong = |why: &str| IdentityError::PeerKeys { place: format!("{source:?}"), why: why.to_owned() };
        if let Source::Url(url) = &source {
            let local = ["http://127.0.0.1", "http://localhost", "http://[::1]"];
            if !url.starts_with("https://") && !local.iter().any(|start| url.starts_with(start)) {
                return Err(wrong("a URL must begin with https://, or be on this machine"));
            }
        }
        let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).timeout(FETCH_MAX);
        let client = client.build().map_err(|error| wrong(&error.to_string()))?;
        let keys = match &source {
            Source::File(path) => {
                let bytes = std::fs::read(path).map_err(|error| wrong(&error.to_string()))?;
                parse(&bytes).map_err(|why| wrong(&why))?
            }
            Source::Url(_) => HashMap::new(),
        };
        let read_at = matches!(source, Source::File(_)).then(Instant::now);
        Ok(Self {
            source,
            issuer,
            client,
            keys: RwLock::new(Arc::new(keys)),
            generation: AtomicU64::new(0),
            tried: Mutex::new(None),
            read_at: RwLock::new(read_at),
        })
    }

    /// Whose tokens the keys are for.
    pub(crate) fn issuer(&self) -> &str {
        &self.issuer
    }

    /// A number that changes when the keys do.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The key of this name, and the generation that it is from.
    pub(crate) async fn find(&self, kid: &str) -> Option<(DecodingKey, u64)> {
        let stale =
            self.read_at.read().unwrap_or_else(PoisonError::into_inner).is_none_or(|at| at.elapsed() > STALE_AFTER);
        if stale || self.known(kid).is_none() {
            self.read_again().await;
        }
        self.known(kid)
    }

    fn known(&self, kid: &str) -> Option<(DecodingKey, u64)> {
        let generation = self.generation();
        let keys = Arc::clone(&self.keys.read().unwrap_or_else(PoisonError::into_inner));
        keys.get(kid).map(|key| (key.clone(), generation))
    }

    /// Reads the set, unless that was done just now. If it cannot be read, the old one stays.
    async fn read_again(&self) {
        let mut tried = self.tried.lock().await;
        if tried.is_some_and(|at| at.elapsed() < READ_EVERY_MIN) {
            return;
        }
        *tried = Some(Instant::now());
        let bytes = match &self.source {
            Source::File(path) => {
                let path = path.clone();
                let read = tokio::task::spawn_blocking(move || std::fs::read(path)).await;
                read.map_err(std::io::Error::other).flatten().map_err(|error| error.to_string())
            }
            Source::Url(url) => self.fetch(url).await,
        };
        match bytes.and_then(|bytes| parse(&bytes)) {
            Ok(keys) => {
                *self.keys.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(keys);
                *self.read_at.write().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
                self.generation.fetch_add(1, Ordering::Release);
            }
            Err(why) => crate::terminal::note(&format!("the peer keys cannot be read, the old ones stay: {why}")),
        }
    }

    async fn fetch(&self, url: &str) -> Result<Vec<u8>, String> {
        let said = |error: reqwest::Error| error.without_url().to_string();
        let mut answer =
            self.client.get(url).send().await.and_then(reqwest::Response::error_for_status).map_err(said)?;
        let mut bytes = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(said)? {
            if bytes.len() + chunk.len() > BYTES_MAX {
                return Err("it is longer than a mebibyte".to_owned());
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }
}

#[derive(Deserialize)]
struct KeySet {
    keys: Vec<serde_json::Value>,
}

#[derive(Deserialize)]
struct PublicKey {
    kty: String,
    crv: String,
    kid: String,
    x: String,
    y: String,
    #[serde(rename = "use")]
    purpose: Option<String>,
    alg: Option<String>,
}

/// The keys of a set that we can use; the others are passed over, as a set may hold keys for other readers.
fn parse(bytes: &[u8]) -> Result<HashMap<String, DecodingKey>, String> {
    let set: KeySet = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let usable = set.keys.into_iter().filter_map(|key| serde_json::from_value::<PublicKey>(key).ok()).filter(|key| {
        key.kty == "EC"
            && key.crv == "P-256"
            && !key.kid.is_empty()
            && key.purpose.as_ref().is_none_or(|purpose| purpose == "sig")
            && key.alg.as_ref().is_none_or(|algorithm| algorithm == "ES256")
            && [&key.x, &key.y].iter().all(|text| URL_SAFE_NO_PAD.decode(text).is_ok_and(|bytes| bytes.len() == 32))
    });
    let mut keys = HashMap::new();
    for PublicKey { kid, x, y, .. } in usable {
        let key = DecodingKey::from_ec_components(&x, &y).map_err(|error| error.to_string())?;
        if keys.insert(kid, key).is_some() {
            return Err("two keys have one name".to_owned());
        }
    }
    if keys.is_empty() { Err("it has no named P-256 key for signatures".to_owned()) } else { Ok(keys) }
}
