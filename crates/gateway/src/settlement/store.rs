//! The store of obligations that was chosen.
//!
//! The embedded engine's journal always knows what is owed. With any other store, what the journal owes is put there
//! ([`forward`]) and delivered from there, and what became of it is written to the journal. So whatever that store loses is
//! put again, and what the journal owes no more is not told, whatever that store still has.

use super::log;
use super::shared::InLedger;
use crate::failure::Failure;
use holdfast_adapters::obligations::{Failover, JournalStore, MemoryStore, PostgresStore, RedisStore};
use holdfast_adapters::postgres::DatabaseError;
use holdfast_domain::delivery::Obligation;
use holdfast_domain::{Label, ObligationId, Reason, Span, Timestamp};
use holdfast_engine::dispatcher::Bell;
use holdfast_engine::obligations::{
    Answered, Claimed, Count, Durable, Lease, LeaseLost, ObligationStore, Outcome, Standing, Stored,
};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// How many are put at once.
const FORWARD_MAX: usize = 500;
/// How long a store that does not take them is left alone.
const FORWARD_PAUSE: Duration = Duration::from_secs(1);
/// How many dead letters are looked for each time.
const DEAD_MAX: usize = 100;
/// How often it is looked whether the store has lost something that the journal still owes.
const COMPARE_EVERY: Duration = Duration::from_secs(2);

/// The store that was chosen.
pub(crate) enum Store {
    Journal(Box<JournalStore>),
    Memory(Box<Elsewhere<MemoryStore>>),
    /// With memory in its place while it is away.
    Redis(Box<Elsewhere<Failover<RedisStore>>>),
    Postgres(Box<Elsewhere<PostgresStore>>),
    /// With the books in the same database.
    InLedger(Box<InLedger>),
}

/// A store beside the journal.
pub(crate) struct Elsewhere<S> {
    store: S,
    owed: JournalStore,
    /// What the journal could not be told when it was done.
    untold: Mutex<Vec<(ObligationId, Option<Reason>)>>,
    /// How often the store was found to have lost what the journal owes.
    losses: AtomicU64,
}

impl<S: ObligationStore> Elsewhere<S> {
    pub(crate) const fn new(store: S, owed: JournalStore) -> Self {
        Self { store, owed, untold: Mutex::new(Vec::new()), losses: AtomicU64::new(0) }
    }

    /// Claims what the journal owes still. What it owes no more was voided after it was put, or told from somewhere else: that
    /// is taken out of the store untold.
    async fn claim_ready(&self, worker: Label, limit: usize, lease: Span) -> Answered<Vec<Claimed>> {
        if !self.owed.is_ready() {
            return Ok(Vec::new());
        }
        let mut claimed = self.store.claim_ready(worker, limit, lease).await?;
        let not_owed = self.owed.not_owed(claimed.iter().map(|claimed| claimed.obligation).collect()).await?;
        let taken_out = claimed.extract_if(.., |claimed| not_owed.contains(&claimed.obligation.id));
        let taken_out: Vec<_> = taken_out.map(|claimed| (claimed.lease, Outcome::Delivered)).collect();
        if !taken_out.is_empty() {
            // What fails to go now is claimed when its lease has run out, and found here again.
            let _gone = self.store.complete(&taken_out).await.is_ok();
        }
        Ok(claimed)
    }

    async fn complete(&self, completed: &[(Lease, Outcome)]) -> Answered<Vec<Result<(), LeaseLost>>> {
        let answers = self.store.complete(completed).await?;
        let mut done = std::mem::take(&mut *self.untold.lock().unwrap_or_else(PoisonError::into_inner));
        for ((lease, outcome), answer) in completed.iter().zip(&answers) {
            match (outcome, answer) {
                (Outcome::Delivered, Ok(())) => done.push((lease.id, None)),
                (Outcome::Dead { reason }, Ok(())) => done.push((lease.id, Some(reason.clone()))),
                (Outcome::Retry { .. } | Outcome::Returned { .. }, Ok(())) | (_, Err(LeaseLost)) => {}
            }
        }
        if !done.is_empty()
            && let Err(failed) = self.owed.settle_elsewhere(done.clone()).await
        {
            log::store_failed(&failed);
            self.untold.lock().unwrap_or_else(PoisonError::into_inner).extend(done);
        }
        Ok(answers)
    }

    async fn resolve(&self, id: ObligationId, note: &Reason) -> Answered<bool> {
        let found = self.store.resolve(id, note).await?;
        // What died before this process began is known to the journal alone, if the store forgets.
        Ok(self.owed.resolve(id, note).await? || found)
    }

    /// Puts what the journal owes from entry `after` on. The last entry that was put.
    async fn forward(&self, mut after: u64, bell: &Bell) -> Answered<u64> {
        loop {
            let owed = self.owed.owed_after(after, FORWARD_MAX).await?;
            let Some((last, _)) = owed.last() else { return Ok(after) };
            let obligations: Vec<Obligation> = owed.iter().map(|(_, obligation)| *obligation).collect();
            if let Err(failed) = self.store.put(&obligations).await {
                log::not_stored(&obligations, &failed);
                return Err(failed);
            }
            after = *last;
            bell.ring();
        }
    }

    async fn forward_all(&self, owed: &Bell, due: &Bell, mut stopping: watch::Receiver<bool>) {
        let (mut after, mut dead_after) = (0, None);
        let mut compare = tokio::time::interval_at(Instant::now() + COMPARE_EVERY, COMPARE_EVERY);
        loop {
            let forwarded = self.forward(after, due).await;
            after = forwarded.as_ref().map_or(after, |after| *after);
            let pause = async {
                match forwarded {
                    Ok(_) => owed.rung().await,
                    Err(_) => tokio::time::sleep(FORWARD_PAUSE).await,
                }
            };
            tokio::select! {
                () = pause => {}
                _ = compare.tick() => {
                    if self.has_lost_some().await {
                        after = 0;
                    }
                    dead_after = self.restore_dead(dead_after, due).await;
                }
                () = told(&mut stopping) => return,
            }
        }
    }

    /// Holds what the journal has owed the longest against the store, and writes to the journal if it was given up there by
    /// a process that ended before it could. Says whether the store has lost it: it was emptied, or went back in time.
    async fn has_lost_some(&self) -> bool {
        let Some(seen) = self.difference().await else { return false };
        // What was completed a moment ago is still owed for as long as the journal takes to say so, and is not meant.
        tokio::time::sleep(FORWARD_PAUSE).await;
        match self.difference().await {
            Some(again) if again == seen => {}
            Some(_) | None => return false,
        }
        let (id, Difference::Dead(reason)) = seen else {
            self.losses.fetch_add(1, Ordering::Relaxed);
            log::lost(seen.0, self.store.name(), self.owed.counted().pending);
            return true;
        };
        if let Err(failed) = self.owed.settle_elsewhere(vec![(id, Some(reason))]).await {
            log::store_failed(&failed);
        }
        false
    }

    /// Puts dead letters again that the store has lost: those that died in the memory of a process that ended, or in a store that
    /// was emptied. They are tried once more, and then are where an operator finds them. Looks at a few from `after` on, and says
    /// where to go on the next time.
    async fn restore_dead(&self, after: Option<ObligationId>, due: &Bell) -> Option<ObligationId> {
        let dead = self.owed.list_dead(after, DEAD_MAX).await.unwrap_or_default();
        let next = dead.last().map(|last| last.obligation.id);
        let suspected = self.unknown(dead.into_iter().map(|dead| dead.obligation).collect()).await;
        if suspected.is_empty() {
            return next;
        }
        // One that was just told or resolved is still dead to the journal for a moment, and is not meant: its claim finds that out,
        // but it would be called a loss.
        tokio::time::sleep(FORWARD_PAUSE).await;
        let mut lost = self.unknown(suspected).await;
        let not_owed = self.owed.not_owed(lost.clone()).await.unwrap_or_default();
        lost.retain(|obligation| !not_owed.contains(&obligation.id));
        let Some(first) = lost.first() else { return next };
        self.losses.fetch_add(1, Ordering::Relaxed);
        log::lost_dead(first.id, self.store.name(), lost.len());
        match self.store.put(&lost).await {
            Ok(()) => due.ring(),
            Err(failed) => log::store_failed(&failed),
        }
        next
    }

    /// Those that the store says it does not know.
    async fn unknown(&self, obligations: Vec<Obligation>) -> Vec<Obligation> {
        let mut unknown = Vec::new();
        for obligation in obligations {
            if matches!(self.store.get(obligation.id).await, Ok(None)) {
                unknown.push(obligation);
            }
        }
        unknown
    }

    /// What the store says otherwise of the one that the journal has owed the longest.
    async fn difference(&self) -> Option<(ObligationId, Difference)> {
        if self.owed.counted().pending == 0 {
            return None;
        }
        let (_, Obligation { id, .. }) = self.owed.owed_after(0, 1).await.ok()?.first().copied()?;
        match self.store.get(id).await.ok()? {
            None => Some((id, Difference::Lost)),
            Some(Stored { standing: Standing::Dead, reason, .. }) => {
                let unsaid = || "it was given up".parse().expect("a short text");
                Some((id, Difference::Dead(reason.unwrap_or_else(unsaid))))
            }
            Some(Stored { standing: Standing::Due { .. } | Standing::Leased { .. }, .. }) => None,
        }
    }
}

/// What a store says of an obligation that the journal owes.
#[derive(PartialEq, Eq)]
enum Difference {
    /// It does not know it.
    Lost,
    /// It was given up.
    Dead(Reason),
}

/// Puts what the journal owes into the store that is delivered from, until `stopping`. Nothing is to be done where that is the
/// journal's own.
pub(super) async fn forward(store: Arc<Store>, owed: Arc<Bell>, due: Arc<Bell>, stopping: watch::Receiver<bool>) {
    match &*store {
        Store::Journal(_) => {}
        Store::Memory(elsewhere) => elsewhere.forward_all(&owed, &due, stopping).await,
        Store::Redis(elsewhere) => {
            match elsewhere.store.durable_store().persistence().await {
                Ok(said) => log::persistence(&said),
                Err(failed) => log::store_failed(&failed),
            }
            elsewhere.forward_all(&owed, &due, stopping).await;
        }
        Store::Postgres(elsewhere) => {
            let waking = elsewhere.store.wake(&due, stopping.clone());
            tokio::join!(waking, elsewhere.forward_all(&owed, &due, stopping));
        }
        Store::InLedger(shared) => {
            let waking = shared.store.wake(&due, stopping.clone());
            tokio::join!(waking, shared.run(&due, stopping));
        }
    }
}

/// Waits until the server is told to stop.
pub(super) async fn told(stopping: &mut watch::Receiver<bool>) {
    // If nobody can tell any more, the server is going down too.
    let _told = stopping.wait_for(|stopping| *stopping).await.is_ok();
}

macro_rules! delegate {
    ($self:ident, $store:ident => $act:expr) => {
        match $self {
            Store::Journal($store) => $act,
            Store::Memory(elsewhere) => {
                let $store = &elsewhere.store;
                $act
            }
            Store::Redis(elsewhere) => {
                let $store = &elsewhere.store;
                $act
            }
            Store::Postgres(elsewhere) => {
                let $store = &elsewhere.store;
                $act
            }
            Store::InLedger(shared) => {
                let $store = &shared.store;
                $act
            }
        }
    };
}

impl Store {
    /// Looks whether the store can be used at all, before anything is served. One that is away now may come: what is owed waits
    /// in the journal, and the store is looked at when it is there.
    pub(super) async fn check(&self) -> Result<(), Failure> {
        let store = match self {
            Self::Journal(_) | Self::Memory(_) | Self::Redis(_) => return Ok(()),
            Self::Postgres(elsewhere) => &elsewhere.store,
            Self::InLedger(shared) => &shared.store,
        };
        match store.check().await {
            Ok(()) => log::in_postgres(),
            Err(away @ DatabaseError::Unreachable(_)) => log::away(&away),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// How many the journal owes, whichever store they are told from. Never waits.
    pub(crate) fn owed(&self) -> Count {
        match self {
            Self::Journal(store) => store.counted(),
            Self::Memory(elsewhere) => elsewhere.owed.counted(),
            Self::Redis(elsewhere) => elsewhere.owed.counted(),
            Self::Postgres(elsewhere) => elsewhere.owed.counted(),
            // Asked for where one may wait.
            Self::InLedger(_) => Count::default(),
        }
    }

    /// How often since the start the store had lost what the journal owes, and was given it again; `None` where they are one.
    pub(super) fn losses(&self) -> Option<u64> {
        let losses = match self {
            Self::Journal(_) | Self::InLedger(_) => return None,
            Self::Memory(elsewhere) => &elsewhere.losses,
            Self::Redis(elsewhere) => &elsewhere.losses,
            Self::Postgres(elsewhere) => &elsewhere.losses,
        };
        Some(losses.load(Ordering::Relaxed))
    }

    /// Whether Redis has said that it writes everything to its disk; `None` where there is no Redis, or it does not say.
    pub(crate) async fn aof_verified(&self) -> Option<bool> {
        match self {
            Self::Journal(_) | Self::Memory(_) | Self::Postgres(_) | Self::InLedger(_) => None,
            Self::Redis(elsewhere) if elsewhere.store.is_degraded() => None,
            Self::Redis(elsewhere) => elsewhere.store.durable_store().persistence().await.ok()?.aof_verified(),
        }
    }
}

impl ObligationStore for Store {
    fn name(&self) -> &'static str {
        delegate!(self, store => store.name())
    }

    async fn put(&self, obligations: &[Obligation]) -> Answered<()> {
        delegate!(self, store => store.put(obligations).await)
    }

    async fn claim_ready(&self, worker: Label, limit: usize, lease: Span) -> Answered<Vec<Claimed>> {
        match self {
            Self::Journal(store) => store.claim_ready(worker, limit, lease).await,
            Self::Memory(elsewhere) => elsewhere.claim_ready(worker, limit, lease).await,
            Self::Redis(elsewhere) => elsewhere.claim_ready(worker, limit, lease).await,
            Self::Postgres(elsewhere) => elsewhere.claim_ready(worker, limit, lease).await,
            Self::InLedger(shared) => shared.claim_ready(worker, limit, lease).await,
        }
    }

    async fn complete(&self, completed: &[(Lease, Outcome)]) -> Answered<Vec<Result<(), LeaseLost>>> {
        match self {
            Self::Journal(store) => store.complete(completed).await,
            Self::Memory(elsewhere) => elsewhere.complete(completed).await,
            Self::Redis(elsewhere) => elsewhere.complete(completed).await,
            Self::Postgres(elsewhere) => elsewhere.complete(completed).await,
            Self::InLedger(shared) => shared.complete(completed).await,
        }
    }

    async fn repair_expired(&self, limit: usize) -> Answered<usize> {
        delegate!(self, store => store.repair_expired(limit).await)
    }

    async fn next_due(&self) -> Answered<Option<Timestamp>> {
        delegate!(self, store => store.next_due().await)
    }

    async fn get(&self, id: ObligationId) -> Answered<Option<Stored>> {
        delegate!(self, store => store.get(id).await)
    }

    async fn count(&self) -> Answered<Count> {
        let Count { pending, dead } = delegate!(self, store => store.count().await)?;
        // What the store has lost, or has done with and could not say so, is owed all the same; and one that is replayed is dead
        // to the journal until it has been told.
        let owed = self.owed();
        let pending = pending.max(owed.pending);
        Ok(Count { pending, dead: dead.max((owed.pending + owed.dead).saturating_sub(pending)) })
    }

    async fn oldest(&self) -> Answered<Option<Timestamp>> {
        delegate!(self, store => store.oldest().await)
    }

    async fn list_pending(&self, after: Option<ObligationId>, limit: usize) -> Answered<Vec<Stored>> {
        delegate!(self, store => store.list_pending(after, limit).await)
    }

    async fn list_dead(&self, after: Option<ObligationId>, limit: usize) -> Answered<Vec<Stored>> {
        delegate!(self, store => store.list_dead(after, limit).await)
    }

    async fn resolve(&self, id: ObligationId, note: &Reason) -> Answered<bool> {
        match self {
            Self::Journal(store) => store.resolve(id, note).await,
            Self::Memory(elsewhere) => elsewhere.resolve(id, note).await,
            Self::Redis(elsewhere) => elsewhere.resolve(id, note).await,
            Self::Postgres(elsewhere) => elsewhere.resolve(id, note).await,
            Self::InLedger(shared) => shared.resolve(id, note).await,
        }
    }

    async fn replay(&self, id: ObligationId) -> Answered<bool> {
        delegate!(self, store => store.replay(id).await)
    }

    async fn durable(&self) -> Durable {
        delegate!(self, store => store.durable().await)
    }
}
