//! API keys, limits and signing keys in a database that several nodes share.
//!
//! The ports are synchronous, because a change waits for the disk or the network in any case and is made where waiting is
//! allowed: on a thread for blocking work. Nothing here is on a request's way.

use super::IdentityError;
use super::api_key::KeyHash;
use super::freshness::Version;
use super::key_store::{KeyRecord, KeyStore, Scopes};
use super::limits::{Change, Kept, LimitRecord, LimitStore, NewLimit, Spender};
use super::signing_keys::{NewKey, SigningStore, Stored};
use holdfast_adapters::postgres::DatabaseError;
use holdfast_adapters::postgres::access::{
    AccessTables, LimitChange, Making, StoredKey, StoredLimit, StoredSigningKey,
};
use holdfast_domain::{Label, Span};
use std::sync::Arc;
use tokio::runtime::Handle;

/// The store in a database.
pub(super) struct PostgresStore {
    pub(super) tables: Arc<AccessTables>,
    /// Drives the connections. Never called on one of its own threads.
    pub(super) runtime: Handle,
}

impl PostgresStore {
    fn wait<T>(&self, asked: impl Future<Output = Result<T, DatabaseError>>) -> Result<T, IdentityError> {
        self.runtime.block_on(asked).map_err(IdentityError::Database)
    }
}

impl KeyStore for PostgresStore {
    fn add(&self, record: &KeyRecord) -> Result<(), IdentityError> {
        self.wait(self.tables.add_key(&stored(record))).map(drop)
    }

    fn revoke(&self, id: Label) -> Result<Option<KeyRecord>, IdentityError> {
        self.wait(self.tables.revoke_key(id))?.map(record).transpose()
    }

    fn claim_first_key(&self) -> Result<bool, IdentityError> {
        self.wait(self.tables.claim_first_key())
    }

    fn tell_first_key(&self) -> Result<(), IdentityError> {
        self.wait(self.tables.tell_first_key())
    }
}

impl LimitStore for PostgresStore {
    fn change(&self, spender: Spender, new: &NewLimit) -> Result<Kept, IdentityError> {
        fn part<T>(change: Change<T>) -> Option<Option<T>> {
            match change {
                Change::Keep => None,
                Change::Remove => Some(None),
                Change::Set(value) => Some(Some(value)),
            }
        }
        let NewLimit { per_day, in_total, within } = *new;
        let change = LimitChange { per_day: part(per_day), in_total: part(in_total), within: part(within) };
        let stored = self.wait(self.tables.set_limit(&spender.to_string(), &change))?;
        limit(stored).map(|(_, kept)| kept)
    }
}

impl SigningStore for PostgresStore {
    fn load(&self) -> Result<(Version, Vec<Stored>), IdentityError> {
        let (version, keys) = self.wait(self.tables.signing_keys())?;
        Ok((Version(version), keys.into_iter().map(signing_key).collect()))
    }

    fn add(&self, new: &NewKey, grace: Span) -> Result<(), IdentityError> {
        self.wait(self.tables.add_signing_key((&new.kid, &new.document), grace, Making::Another)).map(drop)
    }

    fn add_first(&self, new: &NewKey, grace: Span) -> Result<(), IdentityError> {
        self.wait(self.tables.add_signing_key((&new.kid, &new.document), grace, Making::First)).map(drop)
    }
}

fn stored(record: &KeyRecord) -> StoredKey {
    StoredKey {
        id: record.id,
        hash: record.hash.0,
        hint: record.hint.clone(),
        account: record.account,
        name: record.name.clone(),
        scopes: record.scopes.names().join(" "),
        daily_limit: record.daily_limit,
        total_limit: record.total_limit,
        made_at: record.made_at,
        expires_at: record.expires_at,
        revoked_at: record.revoked_at,
    }
}

/// What a stored key says.
pub(super) fn record(key: StoredKey) -> Result<KeyRecord, IdentityError> {
    Ok(KeyRecord {
        id: key.id,
        hash: KeyHash(key.hash),
        hint: key.hint,
        account: key.account,
        name: key.name,
        scopes: Scopes::of(&key.scopes.split(' ').collect::<Vec<_>>())?,
        daily_limit: key.daily_limit,
        total_limit: key.total_limit,
        made_at: key.made_at,
        expires_at: key.expires_at,
        revoked_at: key.revoked_at,
    })
}

/// What a stored limit says.
pub(super) fn limit(stored: StoredLimit) -> Result<(Spender, Kept), IdentityError> {
    let strange = |_| IdentityError::Store("a limit of the database has a strange spender".to_owned());
    let spender = stored.spender.parse().map_err(strange)?;
    let StoredLimit { per_day, in_total, within, set_at, version, .. } = stored;
    Ok((spender, Kept { record: LimitRecord { per_day, in_total, within, set_at }, version: Version(version) }))
}

/// What a stored signing key is to those who read it.
pub(super) fn signing_key(key: StoredSigningKey) -> Stored {
    Stored { place: format!("the key {} of the database", key.kid), made_at: key.made_at, document: key.document }
}
