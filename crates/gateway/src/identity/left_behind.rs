//! What a data directory knows of callers and the database that its node shares does not: it is not used, until it is copied.

use super::limits::{Change, Kept, LimitRecord, NewLimit, Spender};
use super::sqlite_store::SqliteStore;
use super::{Identity, IdentityError, KeyRecord};
use std::path::Path;

/// Keys and limits that were made before the node shared a database.
pub(crate) struct LeftBehind {
    keys: Vec<KeyRecord>,
    limits: Vec<(Spender, LimitRecord)>,
}

impl LeftBehind {
    /// What is in `data` and not in `shared`. Signing keys are not looked for: the tokens of all nodes are signed with the
    /// database's, and a token lives for minutes.
    pub(crate) fn find(data: &Path, shared: &Identity) -> Result<Self, IdentityError> {
        let Some(store) = SqliteStore::found(data)? else { return Ok(Self { keys: Vec::new(), limits: Vec::new() }) };
        let mut keys = store.keys()?;
        keys.retain(|key| shared.keys.find(key.id).is_err());
        let is_new = |(spender, _): &(Spender, Kept)| shared.limits.find(*spender).is_none();
        let limits = store.limits()?.into_iter().filter(is_new);
        Ok(Self { keys, limits: limits.map(|(spender, kept)| (spender, kept.record)).collect() })
    }

    /// How many keys that are still good, and how many limits; `None` if none.
    pub(crate) fn counts(&self) -> Option<(usize, usize)> {
        let good = self.keys.iter().filter(|key| key.revoked_at.is_none()).count();
        (good + self.limits.len() > 0).then_some((good, self.limits.len()))
    }

    /// Copies all of it, revoked keys too, so that they can be looked up. How many keys and limits were not there.
    pub(crate) fn copy_to(self, shared: &Identity) -> Result<(usize, usize), IdentityError> {
        let (mut keys, limits) = (0, self.limits.len());
        for key in self.keys {
            keys += usize::from(shared.keys.adopt(key)?);
        }
        for (spender, record) in self.limits {
            let set = |limit: Option<_>| limit.map_or(Change::Keep, Change::Set);
            let within = record.within.map_or(Change::Keep, Change::Set);
            shared
                .limits
                .change(spender, NewLimit { per_day: set(record.per_day), in_total: set(record.in_total), within })?;
        }
        Ok((keys, limits))
    }
}
