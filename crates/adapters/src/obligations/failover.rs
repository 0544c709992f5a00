//! A durable store that may go away, with memory in its place meanwhile: no charge waits for Redis.
//!
//! What happens, exactly:
//! - **The durable store answers**: it alone is used.
//! - **It fails to take a `put`**: the obligations are put into memory, each is written whole to the log in one line
//!   (`line.rs`), and the caller is told that it went well. From then on the store is *degraded*: `durable` is no, and at most
//!   one call in `LOOK_EVERY` asks the durable store; the others go to memory at once.
//! - **While degraded**, `claim_ready`, `repair_expired` and `next_due` are about what is in memory, so that it is delivered;
//!   `next_due` is never further away than the next look at the durable store.
//!   `complete` completes a lease where it was given; if the durable store takes none of its part, that does not keep memory's from
//!   being done. `get`, `replay` and `resolve` look into memory first. All that cannot be
//!   known from memory alone (`count`, `oldest`, the lists, an id that is not in memory) fails instead of telling half of it.
//! - **It answers again**: what this process put into memory is put into the durable store, which is an upsert: if the record
//!   is there already, it stays as it is, so that nobody else's is changed; then it is taken out of memory. No other record
//!   is merged, as no other is in memory. What is leased at that moment stays in memory until it is completed, and is moved
//!   after that if it is not delivered. A moved one begins with no attempts counted, and one that died in memory is tried
//!   again: rather once more than never.
//! - **The process ends while degraded**: what is in memory is lost with it. The log has it: `holdfast obligations import`.
//!
//! An obligation may be in both stores for a while, after a `put` whose answer was lost. It is then told twice, which the
//! peer takes for once.

use super::memory::MemoryStore;
use super::notices::{Notice, Notices};
use holdfast_domain::delivery::Obligation;
use holdfast_domain::{Label, ObligationId, Reason, Span, Timestamp};
use holdfast_engine::Clock;
use holdfast_engine::obligations::{
    Answered, Claimed, Count, Durable, Lease, LeaseLost, ObligationStore, Outcome, StoreFailed, Stored,
};
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often a store that is away is looked for.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How many are moved at once.
const MOVED_AT_ONCE: usize = 500;

/// A durable store, and memory for the time that it is away.
pub struct Failover<P> {
    durable: P,
    memory: MemoryStore,
    clock: Arc<dyn Clock>,
    notices: Arc<dyn Notices>,
    state: Mutex<State>,
    /// Held by whoever moves what is in memory; free again even if its call is dropped half way.
    moving: tokio::sync::Mutex<()>,
}

#[derive(Debug, Clone)]
enum State {
    Whole,
    Degraded {
        /// When somebody last asked the durable store.
        looked: Instant,
        why: String,
    },
}

impl<P: ObligationStore> Failover<P> {
    /// `durable`, with memory behind it.
    pub fn new(durable: P, clock: Arc<dyn Clock>, notices: Arc<dyn Notices>) -> Self {
        let memory = MemoryStore::new(Arc::clone(&clock));
        let (state, moving) = (Mutex::new(State::Whole), tokio::sync::Mutex::new(()));
        Self { durable, memory, clock, notices, state, moving }
    }

    /// The durable store itself.
    pub const fn durable_store(&self) -> &P {
        &self.durable
    }

    /// Whether memory stands in for the durable store now.
    pub fn is_degraded(&self) -> bool {
        matches!(*self.state(), State::Degraded { .. })
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this call may ask the durable store; else what it said last.
    fn may_ask(&self) -> Answered<()> {
        match &mut *self.state() {
            State::Whole => Ok(()),
            State::Degraded { looked, .. } if looked.elapsed() >= LOOK_EVERY => {
                *looked = Instant::now();
                Ok(())
            }
            State::Degraded { why, .. } => Err(StoreFailed(why.clone())),
        }
    }

    /// Notes what the durable store answered, and moves what is in memory if it is back.
    async fn heard<T>(&self, answer: Answered<T>) -> Answered<T> {
        match &answer {
            Ok(_) => self.recover().await,
            Err(StoreFailed(why)) => self.degrade(why),
        }
        answer
    }

    fn degrade(&self, why: &str) {
        let mut state = self.state();
        let was_whole = matches!(*state, State::Whole);
        *state = State::Degraded { looked: Instant::now(), why: why.to_owned() };
        drop(state);
        if was_whole {
            self.notices.tell(&Notice::Degraded { why: why.to_owned() });
        }
    }

    /// Moves what waits in memory, if anything does. One call does it for all.
    async fn recover(&self) {
        if self.memory.is_empty() && !self.is_degraded() {
            return;
        }
        let Ok(_moving) = self.moving.try_lock() else { return };
        match self.move_all().await {
            Err(StoreFailed(why)) => self.degrade(&why),
            Ok(moved) => {
                let before = std::mem::replace(&mut *self.state(), State::Whole);
                if moved > 0 || matches!(before, State::Degraded { .. }) {
                    self.notices.tell(&Notice::Recovered { moved });
                }
            }
        }
    }

    async fn move_all(&self) -> Answered<usize> {
        let mut moved = 0;
        loop {
            let waiting = self.memory.unleased(MOVED_AT_ONCE);
            if waiting.is_empty() {
                return Ok(moved);
            }
            self.durable.put(&waiting).await?;
            moved += self.memory.forget_unleased(&waiting);
        }
    }

    /// Asks the durable store, if that may help.
    async fn ask<T>(&self, question: impl Future<Output = Answered<T>>) -> Answered<T> {
        self.may_ask()?;
        let answer = question.await;
        self.heard(answer).await
    }

    async fn is_in_memory(&self, id: ObligationId) -> Answered<bool> {
        Ok(self.memory.get(id).await?.is_some())
    }
}

impl<P: ObligationStore> ObligationStore for Failover<P> {
    fn name(&self) -> &'static str {
        self.durable.name()
    }

    async fn put(&self, obligations: &[Obligation]) -> Answered<()> {
        if self.ask(self.durable.put(obligations)).await.is_ok() {
            return Ok(());
        }
        for obligation in obligations {
            self.notices.tell(&Notice::NotStored(*obligation));
        }
        self.memory.put(obligations).await
    }

    async fn claim_ready(&self, worker: Label, limit: usize, lease: Span) -> Answered<Vec<Claimed>> {
        match self.ask(self.durable.claim_ready(worker, limit, lease)).await {
            Ok(claimed) => Ok(claimed),
            Err(_) => self.memory.claim_ready(worker, limit, lease).await,
        }
    }

    async fn complete(&self, completed: &[(Lease, Outcome)]) -> Answered<Vec<Result<(), LeaseLost>>> {
        // A token of the one is never good in the other: those of memory are small numbers, the others are chance.
        let mut answers = self.memory.complete(completed).await?;
        let elsewhere = || answers.iter().zip(completed).filter(|(answer, _)| answer.is_err());
        let rest: Vec<(Lease, Outcome)> = elsewhere().map(|(_, one)| one.clone()).collect();
        if rest.is_empty() {
            return Ok(answers);
        }
        let mut durable = match self.ask(self.durable.complete(&rest)).await {
            Ok(answers) => answers.into_iter(),
            // What memory has done is done, and the journal must learn of it. The leases of the others run out, and they are told again.
            Err(_) if rest.len() < completed.len() => return Ok(answers),
            Err(failed) => return Err(failed),
        };
        for answer in answers.iter_mut().filter(|answer| answer.is_err()) {
            *answer = durable.next().unwrap_or(Err(LeaseLost));
        }
        Ok(answers)
    }

    async fn repair_expired(&self, limit: usize) -> Answered<usize> {
        let in_memory = self.memory.repair_expired(limit).await?;
        let durable = self.ask(self.durable.repair_expired(limit.saturating_sub(in_memory))).await;
        Ok(in_memory.saturating_add(durable.unwrap_or(0)))
    }

    async fn next_due(&self) -> Answered<Option<Timestamp>> {
        let look_again = Span::from_millis(u64::try_from(LOOK_EVERY.as_millis()).unwrap_or(u64::MAX));
        let durable = self.ask(self.durable.next_due()).await;
        let durable = durable.unwrap_or_else(|_| Some(self.clock.now().after(look_again)));
        Ok([durable, self.memory.next_due().await?].into_iter().flatten().min())
    }

    async fn get(&self, id: ObligationId) -> Answered<Option<Stored>> {
        match self.memory.get(id).await? {
            Some(stored) => Ok(Some(stored)),
            None => self.ask(self.durable.get(id)).await,
        }
    }

    async fn count(&self) -> Answered<Count> {
        let durable = self.ask(self.durable.count()).await?;
        let memory = self.memory.count().await?;
        Ok(Count { pending: durable.pending + memory.pending, dead: durable.dead + memory.dead })
    }

    async fn oldest(&self) -> Answered<Option<Timestamp>> {
        let durable = self.ask(self.durable.oldest()).await?;
        Ok([durable, self.memory.oldest().await?].into_iter().flatten().min())
    }

    async fn list_pending(&self, after: Option<ObligationId>, limit: usize) -> Answered<Vec<Stored>> {
        self.ask(self.durable.list_pending(after, limit)).await
    }

    async fn list_dead(&self, after: Option<ObligationId>, limit: usize) -> Answered<Vec<Stored>> {
        self.ask(self.durable.list_dead(after, limit)).await
    }

    async fn resolve(&self, id: ObligationId, note: &Reason) -> Answered<bool> {
        if self.is_in_memory(id).await? {
            return self.memory.resolve(id, note).await;
        }
        self.ask(self.durable.resolve(id, note)).await
    }

    async fn replay(&self, id: ObligationId) -> Answered<bool> {
        if self.is_in_memory(id).await? {
            return self.memory.replay(id).await;
        }
        self.ask(self.durable.replay(id)).await
    }

    async fn durable(&self) -> Durable {
        // Asked first, so that a store that went away since the last call is not taken for one that only does not say.
        let answers = self.ask(self.durable.count()).await;
        if answers.is_err() || !self.memory.is_empty() {
            return Durable::No;
        }
        self.durable.durable().await
    }
}
