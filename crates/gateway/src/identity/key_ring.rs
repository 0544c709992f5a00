//! API keys as they are checked: in memory, by hash, in nanoseconds. Every change goes to the store first.
//!
//! # Invariants
//! - What is in memory is what is durable: a key works only after it is stored, and a revoked one stops at once.
//! - A key that was seen revoked is never good again, in whatever order news of it comes; unless the store itself went back.
//! - Where others change the store too, nothing is good that was not compared with it for too long.

use super::api_key::{self, KeyHash};
use super::freshness::Freshness;
use super::key_store::{KeyRecord, KeyStore, Scope, Scopes};
use super::sqlite_store::SqliteStore;
use super::{AuthError, IdentityError, now};
use crate::wire::ids;
use holdfast_domain::{CreditUnit, Label, OwnerId, Reason, Span};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// A key that is asked for.
pub(crate) struct NewKey {
    pub(crate) account: OwnerId,
    pub(crate) name: Option<Reason>,
    pub(crate) scopes: Scopes,
    pub(crate) daily_limit: Option<CreditUnit>,
    pub(crate) total_limit: Option<CreditUnit>,
    /// How long it lives; for ever if not said.
    pub(crate) life: Option<Span>,
}

/// Who holds an admin's key, where nobody is named.
pub(crate) fn operator() -> OwnerId {
    "operator".parse().expect("a plain word")
}

/// The keys of a store.
pub(crate) struct KeyRing {
    store: Arc<dyn KeyStore>,
    keys: RwLock<HashMap<KeyHash, Arc<KeyRecord>>>,
    /// How fresh what is in memory is, if others change the store too.
    freshness: Option<Arc<Freshness>>,
    /// Held while a change is on its way to the store and into memory.
    changing: Mutex<()>,
}

impl KeyRing {
    /// The keys of a data directory.
    pub(super) fn open(store: Arc<SqliteStore>) -> Result<Self, IdentityError> {
        let records = store.keys()?;
        let ring = Self::new(store, None);
        ring.take(records);
        Ok(ring)
    }

    /// The keys of a store, which others may change too: none, until what is there is taken over.
    pub(super) fn new(store: Arc<dyn KeyStore>, freshness: Option<Arc<Freshness>>) -> Self {
        Self { store, keys: RwLock::default(), freshness, changing: Mutex::new(()) }
    }

    /// Takes records over from the store.
    pub(super) fn take(&self, records: Vec<KeyRecord>) {
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        for record in records {
            keep(&mut keys, Arc::new(record));
        }
    }

    /// Takes over the records of a store that has gone back to an earlier state: what is not among them is gone.
    pub(super) fn take_back(&self, records: Vec<KeyRecord>) {
        let records = records.into_iter().map(|record| (record.hash, Arc::new(record))).collect();
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = records;
    }

    /// Stores a record of another ring as it is; `false` if it is known.
    pub(super) fn adopt(&self, record: KeyRecord) -> Result<bool, IdentityError> {
        if self.find(record.id).is_ok() {
            return Ok(false);
        }
        self.store.add(&record)?;
        self.take(vec![record]);
        Ok(true)
    }

    /// What a key's text stands for, if it is good now.
    pub(crate) fn verify(&self, text: &str) -> Result<Arc<KeyRecord>, AuthError> {
        let hash = api_key::hash(text).ok_or(AuthError::UnknownKey)?;
        self.good(&hash)
    }

    /// A key's record as it is now, if the key is still good: for those who verified it some time ago.
    pub(crate) fn still_good(&self, record: &KeyRecord) -> Result<Arc<KeyRecord>, AuthError> {
        self.good(&record.hash)
    }

    fn good(&self, hash: &KeyHash) -> Result<Arc<KeyRecord>, AuthError> {
        if self.freshness.as_ref().is_some_and(|freshness| freshness.is_stale()) {
            return Err(AuthError::Stale);
        }
        let found = self.keys.read().unwrap_or_else(PoisonError::into_inner).get(hash).map(Arc::clone);
        let record = found.ok_or(AuthError::UnknownKey)?;
        if record.revoked_at.is_some() {
            return Err(AuthError::KeyRevoked);
        }
        if record.expires_at.is_some_and(|at| at <= now()) {
            return Err(AuthError::KeyExpired);
        }
        Ok(record)
    }

    /// Makes a key: its text, which is not kept, and its record.
    pub(crate) fn make(&self, new: NewKey) -> Result<(String, Arc<KeyRecord>), IdentityError> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let made_at = now();
        let text = api_key::generate(new.scopes.kind()).map_err(IdentityError::io("make a key"))?;
        let hash = api_key::hash(&text).ok_or_else(|| IdentityError::Store("a new key is not sound".to_owned()))?;
        let NewKey { account, name, scopes, daily_limit, total_limit, life } = new;
        let record = Arc::new(KeyRecord {
            id: ids::fresh("key_", made_at).map_err(IdentityError::io("make a key's id"))?,
            hash,
            hint: api_key::hint(&text),
            account,
            name,
            scopes,
            daily_limit,
            total_limit,
            made_at,
            expires_at: life.map(|life| made_at.after(life)),
            revoked_at: None,
        });
        self.store.add(&record)?;
        keep(&mut self.keys.write().unwrap_or_else(PoisonError::into_inner), Arc::clone(&record));
        Ok((text, record))
    }

    /// The first admin key of a store, until somebody was told one: whoever dies between making and telling it has the next
    /// start make another.
    pub(crate) fn first_admin_key(&self) -> Result<Option<String>, IdentityError> {
        if !self.store.claim_first_key()? {
            return Ok(None);
        }
        let name = "first start".parse().ok();
        let scopes = Scopes::of(&[Scope::Admin.to_string()])?;
        let new = NewKey { account: operator(), name, scopes, daily_limit: None, total_limit: None, life: None };
        self.make(new).map(|(text, _)| Some(text))
    }

    /// Remembers that the first admin key was told: no other is made.
    pub(crate) fn tell_first_key(&self) -> Result<(), IdentityError> {
        self.store.tell_first_key()
    }

    /// Revokes a key, at once and for ever. Again is no error.
    pub(crate) fn revoke(&self, id: Label) -> Result<Arc<KeyRecord>, IdentityError> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let revoked = self.store.revoke(id)?.ok_or_else(|| IdentityError::UnknownKey(id.to_string()))?;
        let revoked = Arc::new(revoked);
        keep(&mut self.keys.write().unwrap_or_else(PoisonError::into_inner), Arc::clone(&revoked));
        Ok(revoked)
    }

    /// One key's record.
    pub(crate) fn find(&self, id: Label) -> Result<Arc<KeyRecord>, IdentityError> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let found = keys.values().find(|record| record.id == id).map(Arc::clone);
        found.ok_or_else(|| IdentityError::UnknownKey(id.to_string()))
    }

    /// Keys in the order in which they were made, after a given one.
    pub(crate) fn list(&self, account: Option<OwnerId>, after: Option<Label>, at_most: usize) -> Vec<Arc<KeyRecord>> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let wanted = |record: &&Arc<KeyRecord>| {
            account.is_none_or(|account| record.account == account) && after.is_none_or(|after| record.id > after)
        };
        let mut found: Vec<_> = keys.values().filter(wanted).map(Arc::clone).collect();
        drop(keys);
        // Ids begin with their time.
        found.sort_unstable_by_key(|record| record.id);
        found.truncate(at_most);
        found
    }
}

/// Keeps a record, unless it is older than what is known: a key is made, then perhaps revoked, and changes in nothing else.
fn keep(keys: &mut HashMap<KeyHash, Arc<KeyRecord>>, record: Arc<KeyRecord>) {
    if keys.get(&record.hash).is_none_or(|known| known.revoked_at.is_none()) {
        keys.insert(record.hash, record);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(data: &std::path::Path) -> KeyRing {
        KeyRing::open(Arc::new(SqliteStore::open(data).unwrap())).unwrap()
    }

    fn new(account: &str, life: Option<Span>) -> NewKey {
        let scopes = Scopes::of(&["inference"]).unwrap();
        let limit = Some("12.5".parse().unwrap());
        let name = Some("laptop".parse().unwrap());
        NewKey { account: account.parse().unwrap(), name, scopes, daily_limit: limit, total_limit: None, life }
    }

    #[test]
    fn a_key_works_until_it_is_revoked_and_every_start_knows() {
        let data = tempfile::tempdir().unwrap();
        let ring = open(data.path());
        let (text, record) = ring.make(new("alice", None)).unwrap();
        let (other, _) = ring.make(new("bob", None)).unwrap();
        assert_eq!(ring.verify(&text), Ok(Arc::clone(&record)));
        assert_eq!(open(data.path()).verify(&text), Ok(Arc::clone(&record)));
        assert_eq!(ring.still_good(&record), Ok(Arc::clone(&record)));
        assert!(ring.revoke(record.id).unwrap().revoked_at.is_some());
        assert_eq!(ring.revoke(record.id).unwrap(), ring.find(record.id).unwrap());
        for ring in [&ring, &open(data.path())] {
            assert_eq!(ring.verify(&text), Err(AuthError::KeyRevoked));
            assert_eq!(ring.still_good(&record), Err(AuthError::KeyRevoked));
            assert!(ring.verify(&other).is_ok());
            assert_eq!(ring.list(None, None, 10).len(), 2);
            assert_eq!(ring.list(Some("bob".parse().unwrap()), None, 10).len(), 1);
            assert_eq!(ring.list(None, Some(ring.list(None, None, 1)[0].id), 10).len(), 1);
        }
    }

    #[test]
    fn a_key_ends_with_its_life_and_no_other_text_is_one() {
        let data = tempfile::tempdir().unwrap();
        let ring = open(data.path());
        let (text, _) = ring.make(new("alice", Some(Span::from_millis(0)))).unwrap();
        assert_eq!(ring.verify(&text), Err(AuthError::KeyExpired));
        assert_eq!(ring.verify(&api_key::generate(api_key::Kind::Live).unwrap()), Err(AuthError::UnknownKey));
        assert_eq!(ring.verify("hf_live_"), Err(AuthError::UnknownKey));
        assert!(ring.find("key_none".parse().unwrap()).is_err());
    }

    #[test]
    fn the_first_admin_key_is_made_until_it_is_told() {
        let data = tempfile::tempdir().unwrap();
        let lost = open(data.path()).first_admin_key().unwrap().unwrap();
        let ring = open(data.path());
        let key = ring.first_admin_key().unwrap().unwrap();
        assert_ne!(lost, key);
        let record = ring.verify(&key).unwrap();
        assert!(record.scopes.allow(Scope::Admin) && !record.scopes.allow(Scope::Inference));
        ring.tell_first_key().unwrap();
        for ring in [ring, open(data.path())] {
            assert_eq!(ring.first_admin_key().unwrap(), None);
            assert!(ring.verify(&key).is_ok());
        }
    }

    #[test]
    fn admin_stands_alone_among_the_scopes() {
        assert_eq!(Scopes::of(&[""; 0]).unwrap().names(), ["inference", "read"]);
        assert_eq!(Scopes::of(&["admin", "admin"]).unwrap().names(), ["admin"]);
        assert!(Scopes::of(&["admin", "read"]).is_err());
    }

    #[test]
    fn nothing_of_a_key_but_its_hash_and_hint_is_stored() {
        let data = tempfile::tempdir().unwrap();
        let (text, _) = open(data.path()).make(new("alice", None)).unwrap();
        for name in ["identity.db", "identity.db-wal"] {
            let Ok(bytes) = std::fs::read(data.path().join(name)) else { continue };
            let secret = &text.as_bytes()[12..];
            assert!(!bytes.windows(secret.len()).any(|window| window == secret), "{name}");
        }
    }
}
