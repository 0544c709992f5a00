//! What the peer is still to be told: a port, leased, so that several may deliver from one store.
//!
//! # Invariants, for every adapter
//! - An obligation that was put is there until it is delivered, or resolved by somebody: nothing expires, nothing is dropped.
//! - Putting it again changes neither its cost nor its moment.
//! - At any moment at most one lease on it is good. Only that lease completes it; any other is told [`LeaseLost`].
//! - A lease that runs out gives the obligation back, which counts as an attempt: somebody took it and was not heard of again.
//!   Until it is given back, by [`ObligationStore::repair_expired`], its holder may still complete it: nobody else has it.
//! - Moments that go in and come out are by the caller's clock, even if the store goes by another: what counts is how far off.

use holdfast_domain::delivery::Obligation;
use holdfast_domain::{Label, ObligationId, Reason, Span, Timestamp};
use std::future::Future;

/// Proof of a claim: never the same twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeaseToken(pub u128);

/// A claim on one obligation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lease {
    /// On what.
    pub id: ObligationId,
    /// The proof.
    pub token: LeaseToken,
}

/// An obligation in somebody's hands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimed {
    /// What is to be told.
    pub obligation: Obligation,
    /// With what to complete it.
    pub lease: Lease,
    /// The attempts before this one.
    pub attempts: u32,
}

/// What an attempt came to, for the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The peer knows it: it goes.
    Delivered,
    /// It is tried again then. Counts as an attempt.
    Retry {
        /// When.
        at: Timestamp,
        /// The peer's last word.
        reason: Reason,
    },
    /// Nothing was tried, for instance because the peer is known to be away: it is due then, and no attempt is counted.
    Returned {
        /// When.
        at: Timestamp,
    },
    /// It is given up, until somebody replays it.
    Dead {
        /// The peer's last word.
        reason: Reason,
    },
}

/// The lease is not good any more: it ran out, and the obligation may be in other hands. Nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the lease is not good any more; somebody else may have the obligation")]
pub struct LeaseLost;

/// Where an obligation stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It waits.
    Due {
        /// Until then.
        at: Timestamp,
    },
    /// Somebody has it.
    Leased {
        /// Who.
        worker: Label,
        /// Until then.
        until: Timestamp,
    },
    /// It is given up.
    Dead,
}

/// An obligation as a store knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// What is to be told.
    pub obligation: Obligation,
    /// The attempts so far.
    pub attempts: u32,
    /// The last word about it, if there was one.
    pub reason: Option<Reason>,
    /// Where it stands.
    pub standing: Standing,
}

/// How many there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Count {
    /// Due or leased.
    pub pending: u64,
    /// Given up.
    pub dead: u64,
}

/// Whether what was put survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durable {
    /// A restart of this process and of the store loses nothing.
    Yes,
    /// A restart loses it.
    No,
    /// The store does not say.
    Unknown,
}

/// Why a store does not answer. What was asked may or may not have been done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the store of obligations does not answer: {0}")]
pub struct StoreFailed(pub String);

/// The answer of a store.
pub type Answered<T> = Result<T, StoreFailed>;

/// A store of obligations.
pub trait ObligationStore: Send + Sync + 'static {
    /// What to call it in `/health`: `memory`, `journal`, `redis`, `postgres`.
    fn name(&self) -> &'static str;

    /// Puts these, all or none of them; those that are there already stay as they are.
    fn put(&self, obligations: &[Obligation]) -> impl Future<Output = Answered<()>> + Send;

    /// Leases up to `limit` of those that are due, the longest due first. Fewer may come though more are due: a store bounds how
    /// much it does at once, and [`Self::next_due`] says whether to ask again.
    fn claim_ready(
        &self,
        worker: Label,
        limit: usize,
        lease: Span,
    ) -> impl Future<Output = Answered<Vec<Claimed>>> + Send;

    /// Completes leased ones, each for itself, and answers in order.
    fn complete(
        &self,
        completed: &[(Lease, Outcome)],
    ) -> impl Future<Output = Answered<Vec<Result<(), LeaseLost>>>> + Send;

    /// Gives back up to `limit` whose lease ran out, as due at once, and says how many.
    fn repair_expired(&self, limit: usize) -> impl Future<Output = Answered<usize>> + Send;

    /// When the next one is due or its lease runs out, if there is one.
    fn next_due(&self) -> impl Future<Output = Answered<Option<Timestamp>>> + Send;

    /// One of them.
    fn get(&self, id: ObligationId) -> impl Future<Output = Answered<Option<Stored>>> + Send;

    /// How many there are.
    fn count(&self) -> impl Future<Output = Answered<Count>> + Send;

    /// When the oldest that is pending was made.
    fn oldest(&self) -> impl Future<Output = Answered<Option<Timestamp>>> + Send;

    /// The pending ones by age, after `after`: also if that one has died meanwhile; from the first if it is gone.
    fn list_pending(
        &self,
        after: Option<ObligationId>,
        limit: usize,
    ) -> impl Future<Output = Answered<Vec<Stored>>> + Send;

    /// The dead ones by age, after `after`: also if that one was replayed meanwhile; from the first if it is gone.
    fn list_dead(
        &self,
        after: Option<ObligationId>,
        limit: usize,
    ) -> impl Future<Output = Answered<Vec<Stored>>> + Send;

    /// Takes a dead one out for good, because somebody has settled it by hand. Says whether there was one.
    fn resolve(&self, id: ObligationId, note: &Reason) -> impl Future<Output = Answered<bool>> + Send;

    /// Makes a dead or waiting one due now, with no attempts counted. Says whether there was one that nobody has in hand.
    fn replay(&self, id: ObligationId) -> impl Future<Output = Answered<bool>> + Send;

    /// Whether what was put survives.
    fn durable(&self) -> impl Future<Output = Durable> + Send;
}
