//! From a bearer token to who it is. What has been verified once is remembered for as long as it is good.
//!
//! # Invariants
//! - Our own keys vouch for our own issuer only, a peer's keys for the peer's only.
//! - When the peer's keys change, everything remembered is forgotten.

use super::token::{self, LEEWAY_S, NAME, Role};
use super::{AuthError, Identity, PeerKeys, SigningKeys, now};
use holdfast_domain::Label;
use jsonwebtoken::DecodingKey;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The most tokens that are remembered.
const REMEMBERED_MAX: usize = 4_096;

/// Who a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verified {
    pub(crate) subject: Label,
    pub(crate) role: Role,
    nbf_s: u64,
    exp_s: u64,
}

/// Verifies tokens.
pub(crate) struct Verifier {
    identity: Arc<Identity>,
    peer: Option<PeerKeys>,
    remembered: Mutex<Remembered>,
}

struct Remembered {
    /// Which state of the peer's keys the tokens were verified with.
    generation: u64,
    tokens: HashMap<[u8; 32], Verified>,
}

impl Verifier {
    /// A verifier with our own keys, and a peer's if there is one.
    pub(crate) fn new(identity: Arc<Identity>, peer: Option<PeerKeys>) -> Self {
        let remembered = Mutex::new(Remembered { generation: 0, tokens: HashMap::new() });
        Self { identity, peer, remembered }
    }

    /// Who a token is.
    pub(crate) async fn verify(&self, token: &str) -> Result<Verified, AuthError> {
        let name = *blake3::hash(token.as_bytes()).as_bytes();
        if let Some(verified) = self.recall(&name) {
            return verified.if_now();
        }
        let kid = token::key_name(token)?;
        let (verified, generation) = match (self.own_key(&kid).await, &self.peer) {
            (Some(key), _) => (who(token, &key, NAME)?, None),
            (None, Some(peer)) => {
                let (key, generation) = peer.find(&kid).await.ok_or(UNKNOWN_KEY)?;
                (who(token, &key, peer.issuer())?, Some(generation))
            }
            (None, None) => return Err(UNKNOWN_KEY),
        };
        self.remember(name, verified, generation);
        Ok(verified)
    }

    /// A key of ours. One that is not known may have been made on another node just now.
    async fn own_key(&self, kid: &str) -> Option<DecodingKey> {
        let known = self.identity.signing.find(kid);
        if known.is_none() && SigningKeys::is_like_ours(kid) {
            self.identity.look_again().await;
            return self.identity.signing.find(kid);
        }
        known
    }

    fn recall(&self, name: &[u8; 32]) -> Option<Verified> {
        let generation = self.peer.as_ref().map_or(0, PeerKeys::generation);
        let mut remembered = self.remembered();
        if remembered.generation != generation {
            *remembered = Remembered { generation, tokens: HashMap::new() };
        }
        remembered.tokens.get(name).copied()
    }

    fn remember(&self, name: [u8; 32], verified: Verified, generation: Option<u64>) {
        let mut remembered = self.remembered();
        if generation.is_some_and(|generation| generation != remembered.generation) {
            return;
        }
        if remembered.tokens.len() >= REMEMBERED_MAX {
            remembered.tokens.retain(|_, verified| verified.if_now().is_ok());
        }
        if remembered.tokens.len() < REMEMBERED_MAX {
            remembered.tokens.insert(name, verified);
        }
    }

    fn remembered(&self) -> MutexGuard<'_, Remembered> {
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const UNKNOWN_KEY: AuthError = AuthError::Token("the key that it names (`kid`) is not known");

impl Verified {
    fn if_now(self) -> Result<Self, AuthError> {
        let now_s = now().millis() / 1_000;
        if now_s.saturating_sub(LEEWAY_S) >= self.exp_s {
            return Err(AuthError::TokenExpired);
        }
        if now_s + LEEWAY_S < self.nbf_s { Err(AuthError::Token("its time has not come (`nbf`)")) } else { Ok(self) }
    }
}

fn who(token: &str, key: &DecodingKey, issuer: &str) -> Result<Verified, AuthError> {
    let claims = token::claims(token, key, issuer)?;
    let subject = claims.sub.parse();
    let subject = subject.map_err(|_| AuthError::Token("its `sub` must be 1 to 64 characters of A-Z a-z 0-9 _ -"))?;
    Ok(Verified { subject, role: claims.role, nbf_s: claims.nbf, exp_s: claims.exp })
}
