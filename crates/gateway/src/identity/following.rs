//! What one node changes, the others know: they hear of it, and look every second whether they have missed something.
//!
//! # Invariants
//! - One look at a time, and a look that began after somebody asked for one is theirs: however many ask, the database is asked
//!   at most once for each [`GAP`].
//! - A look that fails changes nothing in memory. What was not compared with the database for too long is not trusted
//!   ([`Freshness`]), whatever the reason: no answer, or one that is not understood.

use super::freshness::{Freshness, Version};
use super::postgres_store::{self, PostgresStore};
use super::{AuthError, Identity, IdentityError, KeyRecord, KeyRing, SigningKeys, api_key};
use crate::identity::limits::SpendingLimits;
use crate::terminal;
use holdfast_adapters::postgres::Database;
use holdfast_adapters::postgres::access::{AccessTables, Changes};
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, Notify};
use tokio::time::{sleep, timeout};

/// How often a node looks though nobody told it to.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long at least between the beginnings of two looks.
const GAP: Duration = Duration::from_millis(10);
/// How long a request waits for a look.
const LOOK_WITHIN: Duration = Duration::from_secs(1);
/// How long before a broken connection for notifications is opened anew.
const HEAR_AGAIN: Duration = Duration::from_secs(1);

/// The way to what all nodes share.
pub(super) struct Following {
    tables: Arc<AccessTables>,
    freshness: Arc<Freshness>,
    /// Rung when something has changed.
    bell: Notify,
    /// How many looks have begun.
    begun: AtomicU64,
    /// Held by whoever looks.
    last: Mutex<Last>,
}

/// The last look.
#[derive(Default)]
struct Last {
    version: Option<i64>,
    began: Option<Instant>,
    /// The number of the last one that was answered: one may be given up.
    answered: u64,
}

/// How the way to the shared keys and limits is.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct IdentityHealth {
    /// Whether the last look at them was answered.
    pub(crate) reached: bool,
    /// Whether API keys are let in: not, if they were not seen for too long.
    pub(crate) trusted: bool,
    /// How long ago the last look began that was answered.
    pub(crate) seen_ms_ago: u64,
    /// The version of what is known: the same on all nodes, but for a moment.
    pub(crate) version: i64,
}

impl Identity {
    /// The identity that all nodes on a database share; if it has no signing key yet, one is made. API keys are trusted for
    /// `stale_after` without having been compared. Called where waiting is allowed, and not on a thread of `runtime` itself.
    pub(crate) fn join(database: Database, runtime: &Handle, stale_after: Duration) -> Result<Self, IdentityError> {
        let tables = Arc::new(AccessTables::new(database));
        runtime.block_on(tables.check()).map_err(IdentityError::Database)?;
        let store = Arc::new(PostgresStore { tables: Arc::clone(&tables), runtime: runtime.clone() });
        let freshness = Arc::new(Freshness::new(stale_after));
        let (bell, begun, last) = (Notify::new(), AtomicU64::new(0), Mutex::default());
        let joined = Self {
            signing: SigningKeys::found_or_made(Arc::clone(&store) as _)?,
            keys: KeyRing::new(Arc::clone(&store) as _, Some(Arc::clone(&freshness))),
            limits: SpendingLimits::new(store),
            following: Some(Following { tables, freshness, bell, begun, last }),
        };
        runtime.block_on(joined.look())?;
        Ok(joined)
    }

    /// Takes over what other nodes change, for ever. May safely die: then nothing is seen, and soon nothing trusted.
    pub(crate) async fn follow(self: Arc<Self>) {
        let Some(following) = &self.following else { return };
        let hearing = async {
            loop {
                // Why it broke, the next look finds out too, and says so.
                let _broken = following.tables.hear(&following.bell).await.is_err();
                sleep(HEAR_AGAIN).await;
            }
        };
        let looking = async {
            loop {
                let _rung = timeout(LOOK_EVERY, following.bell.notified()).await.is_ok();
                // It was told, and is tried again.
                let _failed = self.look().await.is_err();
            }
        };
        tokio::join!(hearing, looking);
    }

    /// What a key's text stands for, if it is good now. One that is not known may have been made on another node just now.
    pub(crate) async fn verify_key(&self, text: &str) -> Result<Arc<KeyRecord>, AuthError> {
        let known = self.keys.verify(text);
        if known == Err(AuthError::UnknownKey) && api_key::hash(text).is_some() {
            self.look_again().await;
            return self.keys.verify(text);
        }
        known
    }

    /// Learns what other nodes have changed until now, if they can be asked: for who is about to say that there is no such
    /// thing. Without other nodes there is nothing to learn, and nothing is waited for.
    pub(crate) async fn look_again(&self) {
        if self.following.as_ref().is_some_and(|following| following.freshness.is_reached()) {
            let _in_time = timeout(LOOK_WITHIN, self.look()).await.is_ok();
        }
    }

    /// How the way to what all nodes share is; `None` if it is in the data directory.
    pub(crate) fn health(&self) -> Option<IdentityHealth> {
        let Following { freshness, .. } = self.following.as_ref()?;
        Some(IdentityHealth {
            reached: freshness.is_reached(),
            trusted: !freshness.is_stale(),
            seen_ms_ago: u64::try_from(freshness.age().as_millis()).unwrap_or(u64::MAX),
            version: freshness.version(),
        })
    }

    /// Compares what is in memory with the database.
    async fn look(&self) -> Result<(), IdentityError> {
        let Some(following) = &self.following else { return Ok(()) };
        let begun = following.begun.load(Ordering::SeqCst);
        let mut last = following.last.lock().await;
        if last.answered > begun {
            // Somebody else's look began after we came.
            return Ok(());
        }
        if let Some(rest) = last.began.and_then(|began| GAP.checked_sub(began.elapsed())) {
            sleep(rest).await;
        }
        let number = following.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let began = Instant::now();
        last.began = Some(began);
        match self.compare(following, last.version).await {
            Ok(version) => {
                (last.version, last.answered) = (Some(version), number);
                if following.freshness.saw(Version(version), began) {
                    terminal::note("the database with the keys answers again");
                }
                Ok(())
            }
            Err(error) => {
                if following.freshness.failed() {
                    let why =
                        if let IdentityError::Database(said) = &error { said.to_string() } else { error.to_string() };
                    terminal::note(&format!("the keys in the database cannot be looked at: {why}; it is tried again"));
                }
                Err(error)
            }
        }
    }

    /// Takes over what has changed since a version; the version that is known then.
    async fn compare(&self, following: &Following, seen: Option<i64>) -> Result<i64, IdentityError> {
        let changes = following.tables.changes(seen).await.map_err(IdentityError::Database)?;
        let Some(Changes { version, is_whole, keys, limits, signing }) = changes else {
            return Ok(seen.unwrap_or_default());
        };
        // All of it is understood before any of it is taken over.
        let keys = keys.into_iter().map(postgres_store::record).collect::<Result<_, _>>()?;
        let limits = limits.into_iter().map(postgres_store::limit).collect::<Result<_, _>>()?;
        let signing = signing.into_iter().map(postgres_store::signing_key).collect();
        if is_whole {
            self.signing.take_back(Version(version), signing)?;
            self.keys.take_back(keys);
            self.limits.take_back(limits);
        } else {
            self.signing.take(Version(version), signing)?;
            self.keys.take(keys);
            self.limits.take(limits);
        }
        Ok(version)
    }
}
