//! Obligations in memory: for development and tests, and where a better store is away. A restart loses them.

use holdfast_domain::delivery::Obligation;
use holdfast_domain::{Label, ObligationId, Reason, Span, Timestamp};
use holdfast_engine::Clock;
use holdfast_engine::obligations::{
    Answered, Claimed, Count, Durable, Lease, LeaseLost, LeaseToken, ObligationStore, Outcome, Standing, Stored,
};
use std::collections::{BTreeSet, HashMap};
use std::future::{Future, ready};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Obligations in memory.
pub struct MemoryStore {
    clock: Arc<dyn Clock>,
    books: Mutex<Books>,
}

#[derive(Default)]
struct Books {
    rows: HashMap<ObligationId, Row>,
    /// What waits, by when it is due.
    due: BTreeSet<(Timestamp, ObligationId)>,
    /// What somebody has, by when the lease runs out.
    leased: BTreeSet<(Timestamp, ObligationId)>,
    /// What waits or is leased, by age.
    pending: BTreeSet<(Timestamp, ObligationId)>,
    /// What is given up, by age.
    dead: BTreeSet<(Timestamp, ObligationId)>,
    tokens: u128,
}

struct Row {
    obligation: Obligation,
    attempts: u32,
    reason: Option<Reason>,
    place: Place,
}

/// Where a row stands, and so in which of the orders it is.
#[derive(Clone, Copy)]
enum Place {
    Due(Timestamp),
    Leased { worker: Label, until: Timestamp, token: LeaseToken },
    Dead,
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, books: Mutex::default() }
    }

    /// Whether nothing is in it.
    pub(super) fn is_empty(&self) -> bool {
        self.books().rows.is_empty()
    }

    /// Up to `limit` that nobody has in hand, the dead included.
    pub(super) fn unleased(&self, limit: usize) -> Vec<Obligation> {
        let books = self.books();
        let ids = books.due.iter().chain(&books.dead).take(limit);
        ids.filter_map(|(_, id)| books.rows.get(id)).map(|row| row.obligation).collect()
    }

    /// Takes out those of `known` that nobody has in hand, and says how many: another store has them now.
    pub(super) fn forget_unleased(&self, known: &[Obligation]) -> usize {
        let mut books = self.books();
        let is_free = |row: &Row| !matches!(row.place, Place::Leased { .. });
        let free = known.iter().filter(|known| books.rows.get(&known.id).is_some_and(is_free));
        let ids: Vec<ObligationId> = free.map(|known| known.id).collect();
        ids.into_iter().filter_map(|id| books.take(id)).count()
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Row {
    fn stored(&self) -> Stored {
        let standing = match self.place {
            Place::Due(at) => Standing::Due { at },
            Place::Leased { worker, until, .. } => Standing::Leased { worker, until },
            Place::Dead => Standing::Dead,
        };
        Stored { obligation: self.obligation, attempts: self.attempts, reason: self.reason.clone(), standing }
    }
}

impl Books {
    /// Takes a row out, and out of every order that it is in.
    fn take(&mut self, id: ObligationId) -> Option<Row> {
        let row = self.rows.remove(&id)?;
        let aged = (row.obligation.created_at, id);
        match row.place {
            Place::Due(at) => self.due.remove(&(at, id)) && self.pending.remove(&aged),
            Place::Leased { until, .. } => self.leased.remove(&(until, id)) && self.pending.remove(&aged),
            Place::Dead => self.dead.remove(&aged),
        };
        Some(row)
    }

    /// Puts a row in, and into the orders that it belongs to.
    fn put(&mut self, row: Row) {
        let id = row.obligation.id;
        let aged = (row.obligation.created_at, id);
        match row.place {
            Place::Due(at) => self.due.insert((at, id)) && self.pending.insert(aged),
            Place::Leased { until, .. } => self.leased.insert((until, id)) && self.pending.insert(aged),
            Place::Dead => self.dead.insert(aged),
        };
        self.rows.insert(id, row);
    }

    fn claim(&mut self, worker: Label, until: Timestamp, now: Timestamp) -> Option<Claimed> {
        let (_, id) = self.due.first().copied().filter(|(at, _)| *at <= now)?;
        self.tokens += 1;
        let token = LeaseToken(self.tokens);
        let row = self.take(id)?;
        let claimed = Claimed { obligation: row.obligation, lease: Lease { id, token }, attempts: row.attempts };
        self.put(Row { place: Place::Leased { worker, until, token }, ..row });
        Some(claimed)
    }

    fn complete(&mut self, lease: Lease, outcome: &Outcome) -> Result<(), LeaseLost> {
        let is_good = |row: &&Row| matches!(row.place, Place::Leased { token, .. } if token == lease.token);
        self.rows.get(&lease.id).filter(is_good).ok_or(LeaseLost)?;
        let row = self.take(lease.id).ok_or(LeaseLost)?;
        let tried = row.attempts.saturating_add(1);
        match outcome {
            Outcome::Delivered => {}
            Outcome::Returned { at } => self.put(Row { place: Place::Due(*at), ..row }),
            Outcome::Retry { at, reason } => {
                self.put(Row { place: Place::Due(*at), attempts: tried, reason: Some(reason.clone()), ..row });
            }
            Outcome::Dead { reason } => {
                self.put(Row { place: Place::Dead, attempts: tried, reason: Some(reason.clone()), ..row });
            }
        }
        Ok(())
    }

    fn repair(&mut self, now: Timestamp) -> Option<()> {
        let (_, id) = self.leased.first().copied().filter(|(until, _)| *until <= now)?;
        let row = self.take(id)?;
        let attempts = row.attempts.saturating_add(1);
        self.put(Row { place: Place::Due(now), attempts, ..row });
        Some(())
    }

    fn list(
        &self,
        order: &BTreeSet<(Timestamp, ObligationId)>,
        after: Option<ObligationId>,
        limit: usize,
    ) -> Vec<Stored> {
        let start = after.and_then(|id| self.rows.get(&id).map(|row| (row.obligation.created_at, id)));
        let beyond = order.range((start.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded));
        beyond.take(limit).filter_map(|(_, id)| self.rows.get(id)).map(Row::stored).collect()
    }
}

impl ObligationStore for MemoryStore {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn put(&self, obligations: &[Obligation]) -> impl Future<Output = Answered<()>> + Send {
        let now = self.clock.now();
        let mut books = self.books();
        for obligation in obligations {
            if !books.rows.contains_key(&obligation.id) {
                books.put(Row { obligation: *obligation, attempts: 0, reason: None, place: Place::Due(now) });
            }
        }
        ready(Ok(()))
    }

    fn claim_ready(
        &self,
        worker: Label,
        limit: usize,
        lease: Span,
    ) -> impl Future<Output = Answered<Vec<Claimed>>> + Send {
        let now = self.clock.now();
        let mut books = self.books();
        ready(Ok((0..limit).map_while(|_| books.claim(worker, now.after(lease), now)).collect()))
    }

    fn complete(
        &self,
        completed: &[(Lease, Outcome)],
    ) -> impl Future<Output = Answered<Vec<Result<(), LeaseLost>>>> + Send {
        let mut books = self.books();
        ready(Ok(completed.iter().map(|(lease, outcome)| books.complete(*lease, outcome)).collect()))
    }

    fn repair_expired(&self, limit: usize) -> impl Future<Output = Answered<usize>> + Send {
        let now = self.clock.now();
        let mut books = self.books();
        ready(Ok((0..limit).map_while(|_| books.repair(now)).count()))
    }

    fn next_due(&self) -> impl Future<Output = Answered<Option<Timestamp>>> + Send {
        let books = self.books();
        let first = [&books.due, &books.leased].into_iter().filter_map(|order| order.first());
        ready(Ok(first.map(|(at, _)| *at).min()))
    }

    fn get(&self, id: ObligationId) -> impl Future<Output = Answered<Option<Stored>>> + Send {
        ready(Ok(self.books().rows.get(&id).map(Row::stored)))
    }

    fn count(&self) -> impl Future<Output = Answered<Count>> + Send {
        let books = self.books();
        let len = |order: &BTreeSet<_>| u64::try_from(order.len()).unwrap_or(u64::MAX);
        ready(Ok(Count { pending: len(&books.pending), dead: len(&books.dead) }))
    }

    fn oldest(&self) -> impl Future<Output = Answered<Option<Timestamp>>> + Send {
        ready(Ok(self.books().pending.first().map(|(at, _)| *at)))
    }

    fn list_pending(
        &self,
        after: Option<ObligationId>,
        limit: usize,
    ) -> impl Future<Output = Answered<Vec<Stored>>> + Send {
        let books = self.books();
        ready(Ok(books.list(&books.pending, after, limit)))
    }

    fn list_dead(
        &self,
        after: Option<ObligationId>,
        limit: usize,
    ) -> impl Future<Output = Answered<Vec<Stored>>> + Send {
        let books = self.books();
        ready(Ok(books.list(&books.dead, after, limit)))
    }

    fn resolve(&self, id: ObligationId, _note: &Reason) -> impl Future<Output = Answered<bool>> + Send {
        let mut books = self.books();
        let is_dead = books.rows.get(&id).is_some_and(|row| matches!(row.place, Place::Dead));
        ready(Ok(is_dead && books.take(id).is_some()))
    }

    fn replay(&self, id: ObligationId) -> impl Future<Output = Answered<bool>> + Send {
        let now = self.clock.now();
        let mut books = self.books();
        let is_free = books.rows.get(&id).is_some_and(|row| !matches!(row.place, Place::Leased { .. }));
        let row = if is_free { books.take(id) } else { None };
        let found = row.is_some();
        if let Some(row) = row {
            books.put(Row { place: Place::Due(now), attempts: 0, ..row });
        }
        ready(Ok(found))
    }

    fn durable(&self) -> impl Future<Output = Durable> + Send {
        ready(Durable::No)
    }
}
