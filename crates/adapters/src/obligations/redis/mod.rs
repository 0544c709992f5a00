//! Obligations in Redis, for several nodes that share one: every operation is one Lua script, so that it happens whole or not
//! at all. What the keys are is said in `lua/common.lua`. Needs Redis 5 or newer.
//!
//! # Invariants
//! - Nothing expires: an obligation is there until it is delivered or resolved.
//! - The server's clock alone says what is due and which lease has run out. A caller's moment is passed on as the pause until
//!   it, and comes back by the caller's clock: one that is wrong changes nothing.
//! - The cost of an operation grows with the logarithm of how many are pending, and with how many it is about.
//! - Costs are inside of entries, which are opaque to Redis.

mod address;
mod failure;
mod link;
mod persistence;
mod reply;
mod scripts;

pub use address::{Address, NotAnAddress};
pub use link::Limits;
pub use persistence::Persistence;

use super::line;
use super::notices::{Notice, Notices};
use holdfast_domain::delivery::Obligation;
use holdfast_domain::{Label, ObligationId, Reason, Span, Timestamp};
use holdfast_engine::Clock;
use holdfast_engine::obligations::{
    Answered, Claimed, Count, Durable, Lease, LeaseLost, LeaseToken, ObligationStore, Outcome, StoreFailed, Stored,
};
use link::{Again, Link};
use reply::{Clocks, Described, millis, number};
use scripts::{Keys, Scripts};
use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What all keys begin with, if nothing else is said.
pub const PREFIX: &str = "finn:hounfour:dlq";
/// How many are claimed, repaired or listed at once at most: while a script runs, the server does nothing else.
const BATCH_MAX: usize = 1_000;
/// The longest pause or lease: some 140,000 years, so that every moment is a whole number in a float.
const SPAN_MAX_MS: u64 = 1 << 52;

/// Obligations in Redis.
pub struct RedisStore {
    link: Link,
    keys: Keys,
    scripts: Scripts,
    clock: Arc<dyn Clock>,
    notices: Arc<dyn Notices>,
    orphans: AtomicU64,
}

/// What the server says of all of them.
struct Stats {
    clocks: Clocks,
    count: Count,
    oldest: Option<Timestamp>,
    next: Option<u64>,
}

impl RedisStore {
    /// A store at `address`, whose keys begin with `prefix`. Nothing is asked yet: the connection opens with the first call.
    #[must_use]
    pub fn new(
        address: Address,
        prefix: &str,
        limits: Limits,
        clock: Arc<dyn Clock>,
        notices: Arc<dyn Notices>,
    ) -> Self {
        let keys = Keys::new(&address.prefix(prefix));
        Self {
            link: Link::new(address, limits),
            keys,
            scripts: Scripts::new(),
            clock,
            notices,
            orphans: AtomicU64::new(0),
        }
    }

    /// Whether the server keeps what it is given: for the start, and for `/health`.
    ///
    /// # Errors
    /// If it does not answer.
    pub async fn persistence(&self) -> Answered<Persistence> {
        persistence::ask(&self.link, self.keys.any()).await
    }

    /// How many members without a record were taken out of the orders since the start.
    #[must_use]
    pub fn orphans_removed(&self) -> u64 {
        self.orphans.load(Ordering::Relaxed)
    }

    fn note_orphans(&self, ids: Vec<String>) {
        if !ids.is_empty() {
            self.orphans.fetch_add(u64::try_from(ids.len()).unwrap_or(u64::MAX), Ordering::Relaxed);
            self.notices.tell(&Notice::Orphans { ids });
        }
    }

    /// How long from now until then, by the caller's clock.
    fn pause(&self, at: Timestamp) -> u64 {
        at.millis().saturating_sub(self.clock.now().millis()).min(SPAN_MAX_MS)
    }

    fn clocks(&self, theirs: &str) -> Answered<Clocks> {
        Ok(Clocks { ours: self.clock.now(), theirs: millis(theirs)? })
    }

    async fn stats(&self) -> Answered<Stats> {
        let answer: Vec<String> = self.link.run(&self.scripts.stats, &self.keys.arguments(), Again::Yes).await?;
        let [now, pending, dead, oldest, next] = answer.as_slice() else {
            return Err(reply::strange("the statistics"));
        };
        let moment = |text: &str| if text.is_empty() { Ok(None) } else { millis(text).map(Some) };
        Ok(Stats {
            clocks: self.clocks(now)?,
            count: Count { pending: number(pending)?, dead: number(dead)? },
            oldest: moment(oldest)?.map(Timestamp::from_millis),
            next: moment(next)?,
        })
    }

    async fn list(&self, which: &str, after: Option<ObligationId>, limit: usize) -> Answered<Vec<Stored>> {
        let after = after.as_ref().map_or("", ObligationId::as_str);
        let arguments = self.keys.arguments().with(which).with(after).with(limit.min(BATCH_MAX));
        let (now, found): (String, Vec<Described>) = self.link.run(&self.scripts.list, &arguments, Again::Yes).await?;
        let clocks = self.clocks(&now)?;
        // One record that cannot be read must not hide the others.
        Ok(found.iter().filter_map(|described| self.readable(described, clocks)).collect())
    }

    fn readable(&self, described: &Described, clocks: Clocks) -> Option<Stored> {
        let stored = reply::stored(described, clocks).ok();
        let id = described.first().and_then(|id| id.parse().ok());
        if let (None, Some(id)) = (&stored, id) {
            self.notices.tell(&Notice::Unreadable { id });
        }
        stored
    }

    /// What cannot be read is not delivered, and not tried for ever: it is given up, and so stays for somebody to look at.
    async fn bury(&self, unreadable: Vec<Lease>) -> Answered<()> {
        if unreadable.is_empty() {
            return Ok(());
        }
        for lease in &unreadable {
            self.notices.tell(&Notice::Unreadable { id: lease.id });
        }
        let reason: Reason = "the record cannot be read".parse().map_err(|_| reply::strange("a reason"))?;
        let dead: Vec<_> =
            unreadable.into_iter().map(|lease| (lease, Outcome::Dead { reason: reason.clone() })).collect();
        self.complete(&dead).await.map(drop)
    }
}

/// What proves a claim to Redis: 96 bits of chance, as a counter in Redis would begin anew with an emptied one. The leases of
/// one claim share it, and are told apart by a number above it.
#[derive(Clone, Copy)]
struct Token(u128);

const TOKEN_BITS: u32 = 96;

impl Token {
    fn random() -> Answered<Self> {
        let mut bytes = [0; 16];
        let (_, chance) = bytes.split_at_mut(4);
        aws_lc_rs::rand::fill(chance).map_err(|_| StoreFailed("the system has no randomness to give".to_owned()))?;
        Ok(Self(u128::from_be_bytes(bytes)))
    }

    const fn of(lease: LeaseToken) -> Self {
        Self(lease.0 & ((1 << TOKEN_BITS) - 1))
    }

    fn lease(self, number: u32) -> LeaseToken {
        LeaseToken(u128::from(number) << TOKEN_BITS | self.0)
    }

    fn digits(self) -> String {
        format!("{:024x}", self.0)
    }
}

impl ObligationStore for RedisStore {
    fn name(&self) -> &'static str {
        "redis"
    }

    async fn put(&self, obligations: &[Obligation]) -> Answered<()> {
        if obligations.is_empty() {
            return Ok(());
        }
        let mut arguments = self.keys.arguments();
        for obligation in obligations {
            arguments.push(obligation.id.as_str());
            arguments.push(obligation.created_at.millis().min(SPAN_MAX_MS));
            arguments.push(line::encode(obligation));
        }
        self.link.run::<u64>(&self.scripts.put, &arguments, Again::Yes).await.map(drop)
    }

    async fn claim_ready(&self, worker: Label, limit: usize, lease: Span) -> Answered<Vec<Claimed>> {
        let lease_ms = lease.millis().min(SPAN_MAX_MS);
        let arguments = self.keys.arguments().with(worker.as_str()).with(limit.min(BATCH_MAX));
        let token = Token::random()?;
        let arguments = arguments.with(lease_ms).with(token.digits());
        let (orphans, ids, bodies, attempts): (Vec<String>, Vec<String>, Vec<String>, Vec<String>) =
            self.link.run(&self.scripts.claim, &arguments, Again::No).await?;
        self.note_orphans(orphans);
        if bodies.len() != ids.len() || !(attempts.is_empty() || attempts.len() == ids.len()) {
            return Err(reply::strange("the answer to a claim"));
        }
        let (mut all, mut unreadable) = (Vec::with_capacity(ids.len()), Vec::new());
        // Where nobody has tried anything, nothing is said of attempts.
        let attempts = attempts.iter().map(String::as_str).chain(iter::repeat("0"));
        for (number, ((id, body), attempts)) in (0..).zip(ids.iter().zip(&bodies).zip(attempts)) {
            match reply::claimed(id, body, attempts, token.lease(number))? {
                Ok(claimed) => all.push(claimed),
                Err(lease) => unreadable.push(lease),
            }
        }
        self.bury(unreadable).await?;
        Ok(all)
    }

    async fn complete(&self, completed: &[(Lease, Outcome)]) -> Answered<Vec<Result<(), LeaseLost>>> {
        if completed.is_empty() {
            return Ok(Vec::new());
        }
        let mut arguments = self.keys.arguments();
        // Those of one claim mostly come to the same, and are said once.
        let alike = |one: &(Lease, Outcome), other: &(Lease, Outcome)| {
            Token::of(one.0.token).0 == Token::of(other.0.token).0 && one.1 == other.1
        };
        for group in completed.chunk_by(alike).flat_map(|group| group.chunks(BATCH_MAX)) {
            let Some((lease, outcome)) = group.first() else { continue };
            let (name, pause, reason) = match outcome {
                Outcome::Delivered => ("delivered", 0, ""),
                Outcome::Retry { at, reason } => ("retry", self.pause(*at), reason.as_str()),
                Outcome::Returned { at } => ("returned", self.pause(*at), ""),
                Outcome::Dead { reason } => ("dead", 0, reason.as_str()),
            };
            arguments.push(Token::of(lease.token).digits());
            arguments.push(name);
            arguments.push(pause);
            arguments.push(reason);
            arguments.push(group.len());
            for (lease, _) in group {
                arguments.push(lease.id.as_str());
            }
        }
        let lost: Vec<usize> = self.link.run(&self.scripts.complete, &arguments, Again::No).await?;
        let mut answers = vec![Ok(()); completed.len()];
        for place in lost {
            let answer = place.checked_sub(1).and_then(|at| answers.get_mut(at));
            *answer.ok_or_else(|| reply::strange("the answer to a completion"))? = Err(LeaseLost);
        }
        Ok(answers)
    }

    async fn repair_expired(&self, limit: usize) -> Answered<usize> {
        let arguments = self.keys.arguments().with(limit.min(BATCH_MAX));
        let (orphans, repaired) = self.link.run(&self.scripts.repair, &arguments, Again::Yes).await?;
        self.note_orphans(orphans);
        Ok(repaired)
    }

    async fn next_due(&self) -> Answered<Option<Timestamp>> {
        let stats = self.stats().await?;
        Ok(stats.next.map(|next| stats.clocks.ours(next)))
    }

    async fn get(&self, id: ObligationId) -> Answered<Option<Stored>> {
        let arguments = self.keys.arguments().with(id.as_str());
        let (now, found): (String, Described) = self.link.run(&self.scripts.get, &arguments, Again::Yes).await?;
        if found.is_empty() { Ok(None) } else { reply::stored(&found, self.clocks(&now)?).map(Some) }
    }

    async fn count(&self) -> Answered<Count> {
        Ok(self.stats().await?.count)
    }

    async fn oldest(&self) -> Answered<Option<Timestamp>> {
        Ok(self.stats().await?.oldest)
    }

    async fn list_pending(&self, after: Option<ObligationId>, limit: usize) -> Answered<Vec<Stored>> {
        self.list("pending", after, limit).await
    }

    async fn list_dead(&self, after: Option<ObligationId>, limit: usize) -> Answered<Vec<Stored>> {
        self.list("dead", after, limit).await
    }

    async fn resolve(&self, id: ObligationId, note: &Reason) -> Answered<bool> {
        let arguments = self.keys.arguments().with(id.as_str()).with(note.as_str());
        self.link.run(&self.scripts.resolve, &arguments, Again::No).await
    }

    async fn replay(&self, id: ObligationId) -> Answered<bool> {
        let arguments = self.keys.arguments().with(id.as_str());
        self.link.run(&self.scripts.replay, &arguments, Again::Yes).await
    }

    async fn durable(&self) -> Durable {
        self.persistence().await.map_or(Durable::Unknown, |persistence| persistence.durable())
    }
}
