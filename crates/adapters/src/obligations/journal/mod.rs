//! Obligations derived from the journal: what was committed is owed, so there is no second write that could be lost.
//!
//! ```text
//!  journal ─▶ Follower ─▶ DATA/obligations.db ─▶ claim ─▶ peer ─▶ complete ─▶ journal (ack, fail) ─▶ file
//! ```
//!
//! The file is thrown away and made anew when it is damaged, of another version, or of another journal. Leases, attempts and
//! due times are in memory: after a restart all is due again, which a peer that knows each id by then bears.
//!
//! # Invariants
//! - What the journal owes is in the file, once the follower has come to it; nothing but the journal's word takes it out.
//! - Nothing is claimed before the follower has come to where the journal ended at the start.
//! - A charge is acknowledged when nothing of it is left to tell, and only for as much as was told.

mod desk;
mod file;
mod follow;
mod settle;

pub use file::{path, remove};
pub use follow::{Follower, OBLIGATIONS};

use desk::Desk;
use file::{Dead, Kept};
use holdfast_domain::delivery::{Left, Obligation, Word};
use holdfast_domain::{ChargeId, Label, ObligationId, Reason, Span, Timestamp, charge};
use holdfast_engine::dispatcher::Bell;
use holdfast_engine::obligations::{
    Answered, Claimed, Count, Durable, Lease, LeaseLost, ObligationStore, Outcome, Standing, StoreFailed, Stored,
};
use holdfast_engine::{Action, Answer, Clock, Command, Engine, ProjectionFailed, Refusal, Request};
use holdfast_journal::{Disk, JournalId};
use rusqlite::Connection;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The journal, as far as this store writes to it.
pub trait Entries: Send + Sync + 'static {
    /// Has these decided, in order.
    fn submit(&self, requests: Vec<Request>) -> Eventually<'_, Result<Vec<Answer>, Refusal>>;
    /// Whether there is a charge of this name.
    fn knows(&self, charge: ChargeId) -> Eventually<'_, Result<bool, Refusal>>;
}

/// Something that comes in time.
pub type Eventually<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

impl<D: Disk> Entries for Engine<D> {
    fn submit(&self, requests: Vec<Request>) -> Eventually<'_, Result<Vec<Answer>, Refusal>> {
        Box::pin(self.submit_batch(requests))
    }

    fn knows(&self, charge: ChargeId) -> Eventually<'_, Result<bool, Refusal>> {
        Box::pin(async move { Ok(self.ask(move |view| view.charge(charge)).await??.is_some()) })
    }
}

/// Obligations derived from the journal.
pub struct JournalStore {
    shared: Arc<Shared>,
    entries: Arc<dyn Entries>,
    clock: Arc<dyn Clock>,
    /// Whose turn it is to complete.
    turn: tokio::sync::Mutex<()>,
    dispatcher: Label,
    operator: Label,
}

/// What the store and its follower share. Who needs both locks takes the writer first.
struct Shared {
    writer: Mutex<Writer>,
    desk: Mutex<Desk>,
    bell: Arc<Bell>,
    /// The count, for those who must not wait.
    pending: AtomicU64,
    dead: AtomicU64,
}

struct Writer {
    connection: Connection,
    count: Count,
}

impl Shared {
    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, count: Count) {
        self.pending.store(count.pending, Ordering::Relaxed);
        self.dead.store(count.dead, Ordering::Relaxed);
    }
}

impl JournalStore {
    /// Opens the obligations of `journal`, whose last entry is `last`, and what is to follow it. The file is made anew where
    /// it does not fit.
    pub fn open(
        data: &Path,
        (journal, last): (JournalId, u64),
        entries: Arc<dyn Entries>,
        clock: Arc<dyn Clock>,
        bell: Arc<Bell>,
    ) -> Result<(Self, Follower), ProjectionFailed> {
        let file::Opened { writer, reader, applied, count, sums } = file::Opened::open(data, journal, last)?;
        let desk = Desk::new(reader, applied.through >= last);
        let (pending, dead) = (AtomicU64::new(count.pending), AtomicU64::new(count.dead));
        let writer = Mutex::new(Writer { connection: writer, count });
        let shared = Arc::new(Shared { writer, desk: Mutex::new(desk), bell, pending, dead });
        let follower = Follower { shared: Arc::clone(&shared), journal, applied, last, sums };
        let named = |name: &str| name.parse().expect("a plain word");
        let (dispatcher, operator) = (named("dispatcher"), named("operator"));
        Ok((Self { shared, entries, clock, turn: tokio::sync::Mutex::default(), dispatcher, operator }, follower))
    }

    /// What the journal owes by the entries after `after`, in their order, with the entry of each. For whoever delivers from
    /// another store.
    pub async fn owed_after(&self, after: u64, limit: usize) -> Answered<Vec<(u64, Obligation)>> {
        self.look(move |desk| {
            if !desk.is_ready {
                return Ok(Vec::new());
            }
            let owed = file::pending_after(&desk.reader, after, limit)?;
            Ok(owed.into_iter().map(|kept| (kept.seq, kept.obligation)).collect())
        })
        .await
    }

    /// Has the journal say what became of obligations that were delivered from another store: each with why it was given up,
    /// or none if the peer knows it.
    pub async fn settle_elsewhere(&self, done: Vec<(ObligationId, Option<Reason>)>) -> Answered<()> {
        let _turn = self.turn.lock().await;
        let found = self.look(move |desk| {
            let find = |(id, dead): (ObligationId, Option<Reason>)| {
                let kept = match file::pending_by(&desk.reader, id)? {
                    Some(kept) => Some(kept),
                    // It was given up, and then replayed there.
                    None => file::dead_by(&desk.reader, id)?.map(|dead| dead.kept),
                };
                Ok(kept.map(|kept| settle::Done { kept, tried: desk::Tried::default(), dead }))
            };
            done.into_iter().filter_map(|done| find(done).transpose()).collect()
        });
        self.settle(found.await?, self.dispatcher).await
    }

    /// Looks at the desk, on a thread that may wait for the disk.
    async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&mut Desk) -> rusqlite::Result<T> + Send + 'static,
    ) -> Answered<T> {
        let shared = Arc::clone(&self.shared);
        blocking(move || look(&mut shared.desk()).map_err(unreadable)).await
    }

    async fn resolve_dead(&self, id: ObligationId) -> Answered<bool> {
        let _turn = self.turn.lock().await;
        let found = self.look(move |desk| {
            let Some(Dead { kept, .. }) = file::dead_by(&desk.reader, id)? else { return Ok(None) };
            Ok(Some((kept, file::siblings(&desk.reader, &kept)?)))
        });
        let Some((kept, (left, total))) = found.await? else { return Ok(false) };
        if let Left { pending: 0, dead: 0 } = left {
            debug_assert_eq!(left.word(), Word::Acked);
            let command = charge::Command::Ack { charged: Some(total) };
            let command = Command::Charge { charge: kept.obligation.charge, command };
            let request = Request { key: None, actor: self.operator, command };
            let answers = self.entries.submit(vec![request]).await.map_err(|refusal| refused(&refusal))?;
            if let Some(Err(refusal)) = answers.first()
                && refusal.action() == Action::RetryLater
            {
                return Err(refused(refusal));
            }
        }
        let shared = Arc::clone(&self.shared);
        blocking(move || settle::bury(&shared, &kept, total)).await?;
        Ok(true)
    }
}

fn refused(refusal: &Refusal) -> StoreFailed {
    StoreFailed(refusal.to_string())
}

fn unreadable(error: rusqlite::Error) -> StoreFailed {
    StoreFailed(format!("DATA/obligations.db: {error}"))
}

/// Does something that waits for the disk, on a thread for that.
async fn blocking<T: Send + 'static>(act: impl FnOnce() -> Answered<T> + Send + 'static) -> Answered<T> {
    let done = tokio::task::spawn_blocking(act).await;
    done.unwrap_or_else(|error| Err(StoreFailed(error.to_string())))
}

fn stored(desk: &Desk, kept: &Kept) -> Stored {
    let (standing, tried) = desk.standing(kept);
    let reason = tried.reason.map(|reason| (*reason).clone());
    Stored { obligation: kept.obligation, attempts: tried.attempts, reason, standing }
}

fn stored_dead(dead: Dead) -> Stored {
    let Dead { kept, attempts, reason } = dead;
    Stored { obligation: kept.obligation, attempts, reason: Some(reason), standing: Standing::Dead }
}

impl ObligationStore for JournalStore {
    fn name(&self) -> &'static str {
        "journal"
    }

    /// Nothing is put: the journal owes it already, or nobody does.
    async fn put(&self, obligations: &[Obligation]) -> Answered<()> {
        for obligation in obligations {
            let charge = obligation.charge;
            if !self.entries.knows(charge).await.map_err(|refusal| refused(&refusal))? {
                return Err(StoreFailed(format!("the journal has no charge {charge}, and only it can owe one")));
            }
        }
        Ok(())
    }

    async fn claim_ready(&self, worker: Label, limit: usize, lease: Span) -> Answered<Vec<Claimed>> {
        let now = self.clock.now();
        self.look(move |desk| desk.claim(worker, limit, lease, now)).await
    }

    async fn complete(&self, completed: &[(Lease, Outcome)]) -> Answered<Vec<Result<(), LeaseLost>>> {
        self.complete_all(completed).await
    }

    async fn repair_expired(&self, limit: usize) -> Answered<usize> {
        let now = self.clock.now();
        self.look(move |desk| Ok(desk.repair(limit, now))).await
    }

    async fn next_due(&self) -> Answered<Option<Timestamp>> {
        self.look(|desk| desk.next_due()).await
    }

    async fn get(&self, id: ObligationId) -> Answered<Option<Stored>> {
        self.look(move |desk| {
            if let Some(kept) = file::pending_by(&desk.reader, id)? {
                return Ok(Some(stored(desk, &kept)));
            }
            Ok(file::dead_by(&desk.reader, id)?.map(stored_dead))
        })
        .await
    }

    async fn count(&self) -> Answered<Count> {
        let Shared { pending, dead, .. } = &*self.shared;
        Ok(Count { pending: pending.load(Ordering::Relaxed), dead: dead.load(Ordering::Relaxed) })
    }

    async fn oldest(&self) -> Answered<Option<Timestamp>> {
        self.look(|desk| Ok(file::pending_after(&desk.reader, 0, 1)?.first().map(|kept| kept.obligation.created_at)))
            .await
    }

    async fn list_pending(&self, after: Option<ObligationId>, limit: usize) -> Answered<Vec<Stored>> {
        self.look(move |desk| {
            let after = place(desk, after)?;
            Ok(file::pending_after(&desk.reader, after, limit)?.iter().map(|kept| stored(desk, kept)).collect())
        })
        .await
    }

    async fn list_dead(&self, after: Option<ObligationId>, limit: usize) -> Answered<Vec<Stored>> {
        self.look(move |desk| {
            let after = place(desk, after)?;
            Ok(file::dead_after(&desk.reader, after, limit)?.into_iter().map(stored_dead).collect())
        })
        .await
    }

    /// The journal has no place for the note: whoever resolves logs it.
    async fn resolve(&self, id: ObligationId, _note: &Reason) -> Answered<bool> {
        self.resolve_dead(id).await
    }

    async fn replay(&self, id: ObligationId) -> Answered<bool> {
        let (shared, now) = (Arc::clone(&self.shared), self.clock.now());
        blocking(move || {
            let mut desk = shared.desk();
            if let Some(Dead { kept, .. }) = file::dead_by(&desk.reader, id).map_err(unreadable)? {
                drop(desk);
                return settle::revive(&shared, &kept, now).map(|()| true);
            }
            let waiting = file::pending_by(&desk.reader, id).map_err(unreadable)?;
            let Some(kept) = waiting.filter(|_| desk.is_free(id)) else { return Ok(false) };
            desk.put(kept.seq, id, now, desk::Tried::default());
            drop(desk);
            shared.bell.ring();
            Ok(true)
        })
        .await
    }

    async fn durable(&self) -> Durable {
        Durable::Yes
    }
}

/// The entry that owes an obligation; the beginning, if there is none.
fn place(desk: &Desk, id: Option<ObligationId>) -> rusqlite::Result<u64> {
    let Some(id) = id else { return Ok(0) };
    let pending = file::pending_by(&desk.reader, id)?.map(|kept| kept.seq);
    let dead = file::dead_by(&desk.reader, id)?.map(|dead| dead.kept.seq);
    Ok(pending.or(dead).unwrap_or(0))
}
