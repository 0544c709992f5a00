//! How much may be spent in whose name: a tree of accounts, teams and organisations, each with a limit a day and in all.
//!
//! A reservation counts against its key, its account, the account's team and the team's organisation, in one decision with
//! the balance. What is kept here are the limits alone: what has been used of them is in the books, and the record of each
//! reservation says under which limits it was made.
//!
//! # Invariants
//! - What is in memory is what is durable: a limit counts after it is stored, for every reservation from then on.
//! - An account is in at most one team, a team in at most one organisation, so a reservation has at most four budgets.

use super::IdentityError;
use super::freshness::Version;
use super::sqlite_store::SqliteStore;
use crate::wire::ids;
use holdfast_domain::budget::BUDGETS_MAX;
use holdfast_domain::{Budget, BudgetId, Budgets, CreditUnit, Label, OwnerId, Timestamp};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// Whose limit it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Account,
    Team,
    Organisation,
}

// A key, and one of each level.
const _: () = assert!(1 + Level::ALL.len() == BUDGETS_MAX);

impl Level {
    pub(crate) const ALL: [Self; 3] = [Self::Account, Self::Team, Self::Organisation];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Account => "account",
            Self::Team => "team",
            Self::Organisation => "organisation",
        }
    }

    /// What one of this level can be in.
    pub(crate) const fn above(self) -> Option<Self> {
        match self {
            Self::Account => Some(Self::Team),
            Self::Team => Some(Self::Organisation),
            Self::Organisation => None,
        }
    }
}

/// Somebody who can have a limit, written `team:red`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Spender {
    pub(crate) level: Level,
    pub(crate) name: Label,
}

impl Spender {
    pub(crate) fn account(owner: OwnerId) -> Self {
        Self { level: Level::Account, name: owner.as_str().parse().expect("all ids have one alphabet") }
    }

    /// The name of the budget: readable, unless it would be too long for one.
    pub(crate) fn budget_id(self) -> BudgetId {
        let long = || {
            let hash = blake3::derive_key("holdfast 2026-11 name of a long budget", self.name.as_bytes());
            ids::of_hash(&format!("long-{}-", self.level.name()), &hash)
        };
        format!("{}-{}", self.level.name(), self.name).parse().unwrap_or_else(|_| long())
    }
}

impl fmt::Display for Spender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.level.name(), self.name)
    }
}

/// Not `account:`, `team:` or `organisation:` and a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NotASpender;

impl FromStr for Spender {
    type Err = NotASpender;

    fn from_str(text: &str) -> Result<Self, NotASpender> {
        let (level, name) = text.split_once(':').ok_or(NotASpender)?;
        let level = Level::ALL.into_iter().find(|known| known.name() == level).ok_or(NotASpender)?;
        Ok(Self { level, name: name.parse().map_err(|_| NotASpender)? })
    }
}

/// What somebody may spend, and whom they belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LimitRecord {
    pub(crate) per_day: Option<CreditUnit>,
    pub(crate) in_total: Option<CreditUnit>,
    /// The team of an account, the organisation of a team.
    pub(crate) within: Option<Label>,
    pub(crate) set_at: Timestamp,
}

/// What is to become of one part of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change<T> {
    Keep,
    Remove,
    Set(T),
}

impl<T> Change<T> {
    fn of(self, now: Option<T>) -> Option<T> {
        match self {
            Self::Keep => now,
            Self::Remove => None,
            Self::Set(new) => Some(new),
        }
    }

    pub(crate) const fn is_keep(&self) -> bool {
        matches!(self, Self::Keep)
    }
}

/// What is asked to change.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewLimit {
    pub(crate) per_day: Change<CreditUnit>,
    pub(crate) in_total: Change<CreditUnit>,
    pub(crate) within: Change<Label>,
}

impl NewLimit {
    /// What becomes of a limit.
    pub(super) fn applied_to(&self, known: Option<LimitRecord>, now: Timestamp) -> LimitRecord {
        LimitRecord {
            per_day: self.per_day.of(known.and_then(|known| known.per_day)),
            in_total: self.in_total.of(known.and_then(|known| known.in_total)),
            within: self.within.of(known.and_then(|known| known.within)),
            set_at: now,
        }
    }
}

/// A limit, and which state of the store it is of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kept {
    pub(super) record: LimitRecord,
    pub(super) version: Version,
}

/// A durable store of limits.
pub(super) trait LimitStore: Send + Sync {
    /// Changes a limit; what it is then. It is durable when this returns.
    fn change(&self, spender: Spender, new: &NewLimit) -> Result<Kept, IdentityError>;
}

/// The limits of a store.
pub(crate) struct SpendingLimits {
    store: Arc<dyn LimitStore>,
    limits: RwLock<BTreeMap<Spender, Kept>>,
    /// Held while a change is on its way to the store and into memory.
    changing: Mutex<()>,
}

impl SpendingLimits {
    /// The limits of a data directory.
    pub(super) fn open(store: Arc<SqliteStore>) -> Result<Self, IdentityError> {
        let found = store.limits()?;
        let limits = Self::new(store);
        limits.take(found);
        Ok(limits)
    }

    /// The limits of a store: none, until what is there is taken over.
    pub(super) fn new(store: Arc<dyn LimitStore>) -> Self {
        Self { store, limits: RwLock::default(), changing: Mutex::new(()) }
    }

    /// Takes limits over from the store, unless later ones are known.
    pub(super) fn take(&self, changed: Vec<(Spender, Kept)>) {
        let mut limits = self.limits.write().unwrap_or_else(PoisonError::into_inner);
        for (spender, new) in changed {
            if limits.get(&spender).is_none_or(|known| known.version <= new.version) {
                limits.insert(spender, new);
            }
        }
    }

    /// Takes over the limits of a store that has gone back to an earlier state: what is not among them is gone.
    pub(super) fn take_back(&self, limits: Vec<(Spender, Kept)>) {
        *self.limits.write().unwrap_or_else(PoisonError::into_inner) = limits.into_iter().collect();
    }

    /// Changes a limit; what it is then.
    pub(crate) fn change(&self, spender: Spender, new: NewLimit) -> Result<LimitRecord, IdentityError> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = self.store.change(spender, &new)?;
        self.take(vec![(spender, kept)]);
        Ok(kept.record)
    }

    /// One limit, if it was ever set.
    pub(crate) fn find(&self, spender: Spender) -> Option<LimitRecord> {
        self.limits.read().unwrap_or_else(PoisonError::into_inner).get(&spender).map(|kept| kept.record)
    }

    /// Limits in the order of their levels and names, after a given one.
    pub(crate) fn list(&self, after: Option<Spender>, at_most: usize) -> Vec<(Spender, LimitRecord)> {
        let limits = self.limits.read().unwrap_or_else(PoisonError::into_inner);
        let wanted = limits.iter().filter(|(spender, _)| after.is_none_or(|after| **spender > after));
        wanted.map(|(spender, kept)| (*spender, kept.record)).take(at_most).collect()
    }

    /// Somebody's limit and those above it.
    pub(crate) fn chain(&self, from: Spender) -> Vec<(Spender, LimitRecord)> {
        let limits = self.limits.read().unwrap_or_else(PoisonError::into_inner);
        let mut chain = Vec::new();
        let mut next = Some(from);
        while let Some(spender) = next
            && let Some(Kept { record, .. }) = limits.get(&spender)
        {
            chain.push((spender, *record));
            next = spender.level.above().zip(record.within).map(|(level, name)| Spender { level, name });
        }
        chain
    }

    /// What a reservation of an account counts against, besides what its key says.
    pub(crate) fn budgets(&self, owner: OwnerId, of_key: &Budgets) -> Budgets {
        let chain = self.chain(Spender::account(owner));
        let limited = chain.iter().filter(|(_, record)| record.per_day.is_some() || record.in_total.is_some());
        let budget = |(spender, record): &(Spender, LimitRecord)| Budget {
            id: spender.budget_id(),
            per_day: record.per_day,
            in_total: record.in_total,
        };
        let all: Vec<Budget> = of_key.as_slice().iter().copied().chain(limited.map(budget)).collect();
        Budgets::new(&all).expect("a key and three levels are four budgets, each with a beginning of its own")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(data: &std::path::Path) -> SpendingLimits {
        SpendingLimits::open(Arc::new(SqliteStore::open(data).unwrap())).unwrap()
    }

    fn spender(text: &str) -> Spender {
        text.parse().unwrap()
    }

    fn set(limits: &SpendingLimits, whose: &str, per_day: Option<&str>, within: Option<&str>) {
        let per_day = per_day.map_or(Change::Keep, |limit| Change::Set(limit.parse().unwrap()));
        let within = within.map_or(Change::Keep, |name| Change::Set(name.parse().unwrap()));
        limits.change(spender(whose), NewLimit { per_day, in_total: Change::Keep, within }).unwrap();
    }

    #[test]
    fn a_reservation_counts_against_everybody_above_it_who_has_a_limit() {
        let data = tempfile::tempdir().unwrap();
        let limits = open(data.path());
        set(&limits, "account:alice", Some("5"), Some("red"));
        set(&limits, "team:red", None, Some("acme"));
        set(&limits, "organisation:acme", Some("100"), None);
        set(&limits, "account:bob", None, Some("blue"));
        let key = Budget { id: "key_1".parse().unwrap(), per_day: None, in_total: Some("1".parse().unwrap()) };
        let key = Budgets::new(&[key]).unwrap();
        for limits in [&limits, &open(data.path())] {
            let ids = |owner: &str| -> Vec<String> {
                let budgets = limits.budgets(owner.parse().unwrap(), &key);
                budgets.as_slice().iter().map(|budget| budget.id.to_string()).collect()
            };
            // The team has no limit of its own, and bob's is not known at all.
            assert_eq!(ids("alice"), ["key_1", "account-alice", "organisation-acme"]);
            assert_eq!(ids("bob"), ["key_1"]);
            assert_eq!(ids("carol"), ["key_1"]);
            assert_eq!(limits.chain(spender("account:alice")).len(), 3);
        }
    }

    #[test]
    fn what_is_not_said_stays_and_what_is_removed_is_gone() {
        let data = tempfile::tempdir().unwrap();
        let limits = open(data.path());
        set(&limits, "account:alice", Some("5"), Some("red"));
        let change =
            NewLimit { per_day: Change::Remove, in_total: Change::Set("9".parse().unwrap()), within: Change::Keep };
        limits.change(spender("account:alice"), change).unwrap();
        let record = open(data.path()).find(spender("account:alice")).unwrap();
        assert_eq!((record.per_day, record.in_total), (None, Some("9".parse().unwrap())));
        assert_eq!(record.within, Some("red".parse().unwrap()));
    }

    #[test]
    fn every_spender_has_a_budget_of_its_own() {
        let long = "x".repeat(64);
        let names = ["account:a", "team:a", "organisation:a", &format!("account:{long}"), &format!("team:{long}")];
        let ids: Vec<BudgetId> = names.iter().map(|name| spender(name).budget_id()).collect();
        for (place, id) in ids.iter().enumerate() {
            assert!(ids.iter().skip(place + 1).all(|other| other != id), "{id}");
            assert!(!id.as_str().starts_with("key_"));
        }
        for bad in ["", "alice", "user:alice", "team:", "team:a b"] {
            assert_eq!(bad.parse::<Spender>(), Err(NotASpender), "{bad}");
        }
    }
}
