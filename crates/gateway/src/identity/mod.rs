//! Who may do what: the server's own signing keys, tokens signed with them or by a trusted peer, and API keys.
//!
//! ```text
//!  DATA/identity/*.p8  ──▶ signing keys ──▶ `holdfast token`, /.well-known/jwks.json
//!  HOLDFAST_JWKS       ──▶ peer keys    ──┐
//!  bearer token        ───────────────────┴▶ Verifier ──▶ subject and role
//!  DATA/identity.db    ──▶ limits       ──▶ what an account, a team, an organisation may spend
//!                      ──▶ key ring     ──▶ `hf_live_…` ──▶ account, limits, scopes; `hf_admin_…` ──▶ an operator
//! ```
//!
//! With the books in a database, signing keys, limits and key ring are there too, and the same on every node
//! ([`Identity::join`]).
//!
//! # Invariants
//! - No secret is ever shown twice, logged, or put into an error: an API key is stored as its hash only.
//! - A credential is refused unless everything about it was checked; there is no static back door.
//! - A request is let in or refused by what is in memory: only one with a key or token that is not known waits for the database.

pub(crate) mod api_key;
mod durable;
mod error;
mod following;
mod freshness;
mod key_ring;
mod key_store;
mod left_behind;
pub(crate) mod limits;
mod peer_keys;
mod postgres_store;
mod refusal;
mod signing_files;
mod signing_keys;
mod sqlite_store;
mod token;
mod verifier;

pub(crate) use error::IdentityError;
pub(crate) use following::IdentityHealth;
pub(crate) use key_ring::{KeyRing, NewKey, operator};
pub(crate) use key_store::{KeyRecord, Scope, Scopes};
pub(crate) use left_behind::LeftBehind;
pub(crate) use peer_keys::{PeerKeys, Source};
pub(crate) use refusal::AuthError;
pub(crate) use signing_keys::SigningKeys;
pub(crate) use token::{LIFE_MAX_S, Role, head_of};
pub(crate) use verifier::{Verified, Verifier};

use following::Following;
use holdfast_adapters::SystemClock;
use holdfast_domain::Timestamp;
use holdfast_engine::Clock;
use limits::SpendingLimits;
use sqlite_store::SqliteStore;
use std::path::Path;
use std::sync::Arc;

/// The wall clock: other machines read it too, so it is looked at anew each time.
pub(crate) fn now() -> Timestamp {
    SystemClock::start().now()
}

/// What is known about callers.
pub(crate) struct Identity {
    pub(crate) signing: SigningKeys,
    pub(crate) keys: KeyRing,
    pub(crate) limits: SpendingLimits,
    /// The way to the database that has all of it; `None` if it is in the data directory.
    following: Option<Following>,
}

impl Identity {
    /// Opens a data directory's identity, whose lock the caller holds. What is missing is made.
    pub(crate) fn open(data: &Path) -> Result<Self, IdentityError> {
        let signing = SigningKeys::open_or_make(data)?;
        let store = Arc::new(SqliteStore::open(data)?);
        let limits = SpendingLimits::open(Arc::clone(&store))?;
        Ok(Self { signing, keys: KeyRing::open(store)?, limits, following: None })
    }
}
