//! Obligations in PostgreSQL, for several nodes that share a database: the payment outbox of `crates/adapters/sql`, whose
//! functions are all that is called. The user needs to act as `symphony_ingest`, `symphony_executor` and `symphony_admin`.
//!
//! ```text
//!  put ─▶ owe_payment_outbox_batch ─▶ claim_outbox_batch ─▶ complete_outbox_batch ─▶ attempts (DISPATCHED, FAILED)
//!  └─▶ a NOTIFY after the commit, at most one for each 20 ms ─▶ the other nodes' bells
//! ```
//!
//! An obligation's owner is the participant, its id the idempotency key, its charge the instruction, its rail is `peer`, and its
//! payload is the JSON of [`line`].
//!
//! # Invariants
//! - The server's clock alone says what is due and which lease has run out. A caller's moment is passed on as the pause until
//!   it, and comes back by the caller's clock.
//! - A lease that ran out completes nothing, even if nobody has given the obligation back yet: the database is stricter than the
//!   port asks.
//! - After twenty attempts it is dead, whatever was asked for, and so it is after four leases in a row that ran out. What came
//!   back by such a lease is claimed alone.
//! - A completion whose answer was lost is asked for again, and is good if the database has it already.

mod complete;
mod counting;
mod held;
mod rows;
mod wake;

pub use wake::{CHANNEL, DEBOUNCE};

use super::notices::{Notice, Notices};
use crate::postgres::{self, Database, DatabaseError, Lent, Limits, Parameters, Pool};
use counting::Counting;
use held::{Held, Hold};
use holdfast_domain::delivery::Obligation;
use holdfast_domain::{Label, ObligationId, Reason, Span, Timestamp};
use holdfast_engine::Clock;
use holdfast_engine::obligations::{
    Answered, Claimed, Count, Durable, Lease, LeaseLost, ObligationStore, Outcome, StoreFailed, Stored,
};
use rows::{Columns, Leased, RAIL, column, moment};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use wake::News;

/// The most attempts on one obligation: the database makes a dead letter of what failed so often.
pub const ATTEMPTS_MAX: usize = 20;
/// How many are claimed, repaired or listed at once at most.
const BATCH_MAX: usize = 1_000;
/// The longest lease that the database takes.
const LEASE_MAX_MS: u64 = 24 * 60 * 60 * 1_000;
/// How far before the last batch a claim begins to look, in microseconds: what was committed a little late is found too.
const LOW_WATER_MARGIN_US: i64 = 500_000;
/// How often a claim looks at all that is due, for what was committed much later than it was made.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

const PUT: &str =
    "SELECT holdfast.owe_payment_outbox_batch($1, $2, $3, array_fill($4, ARRAY[cardinality($1)]), $5::jsonb[], $6)";
const CLAIM: &str = "SELECT outbox_id::text, idempotency_key, payload::text, attempt_count, lease_token::text, \
     (EXTRACT(epoch FROM next_attempt_at) * 1000000)::bigint FROM holdfast.claim_outbox_batch($1, $2, $3, \
     coalesce(timestamptz 'epoch' + $4 * interval '1 microsecond', '-infinity'))";
const SET_LEASE: &str = "SELECT FROM holdfast.set_outbox_lease($1::uuid[], $2::uuid, $3)";
const REPAIR: &str = "SELECT outbox_id::text, state FROM holdfast.repair_expired_leases($1, $2)";
const RESCHEDULE: &str = "SELECT FROM holdfast.reschedule_outbox($1::uuid[], $2)";
const NEXT_DUE: &str = "SELECT holdfast.next_outbox_due()";
const FIND: &str = "SELECT idempotency_key, payload::text, attempt_count, error_text, standing, in_ms, claimed_by \
     FROM holdfast.find_outbox($1)";
const LIST: &str = "SELECT idempotency_key, payload::text, attempt_count, error_text, standing, in_ms, claimed_by \
     FROM holdfast.list_outbox($1, $2, $3)";
const RESOLVE: &str = "SELECT holdfast.resolve_outbox_key($1, $2)";
const REPLAY: &str = "SELECT holdfast.replay_outbox_key($1)";
const DURABLE: &str = "SELECT current_setting('fsync') = 'on' AND current_setting('synchronous_commit') <> 'off'";

/// Obligations in PostgreSQL.
pub struct PostgresStore {
    pool: Arc<Pool>,
    clock: Arc<dyn Clock>,
    notices: Arc<dyn Notices>,
    held: Held,
    low_water: Mutex<LowWater>,
    counting: Counting,
    news: News,
    /// Whether the schema has been found to be ours.
    is_checked: AtomicBool,
    /// In whose name leases that ran out are repaired.
    repairer: Label,
}

/// Where a claim begins to look.
struct LowWater {
    due_us: Option<i64>,
    swept_at: Option<Instant>,
}

/// Whether a call that was cut off may be made again at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Again {
    Yes,
    No,
}

impl PostgresStore {
    /// A store in `database`. Nothing is asked yet: connections open when they are needed.
    #[must_use]
    pub fn new(database: Database, limits: Limits, clock: Arc<dyn Clock>, notices: Arc<dyn Notices>) -> Self {
        Self {
            pool: Arc::new(Pool::new(database, limits)),
            clock,
            notices,
            held: Held::default(),
            low_water: Mutex::new(LowWater { due_us: None, swept_at: None }),
            counting: Counting::default(),
            news: News::new(),
            is_checked: AtomicBool::new(false),
            repairer: "repair".parse().expect("a plain word"),
        }
    }

    /// Looks whether the database can be used: its schema is the one of this program, and the user may do what is done.
    ///
    /// # Errors
    /// If not; or if it does not answer.
    pub async fn check(&self) -> Result<(), DatabaseError> {
        self.lend().await.map(drop)
    }

    /// A connection to a database that was checked, once.
    async fn lend(&self) -> Result<Lent<'_>, DatabaseError> {
        let mut lent = self.pool.lend().await?;
        if !self.is_checked.load(Ordering::Acquire) {
            postgres::check(&mut lent, &postgres::SETTLES).await?;
            self.is_checked.store(true, Ordering::Release);
        }
        Ok(lent)
    }

    async fn ask(&self, sql: &str, parameters: Parameters<'_>, again: Again) -> Answered<Vec<Row>> {
        let mut lent = self.lend().await.map_err(|error| failed(&error))?;
        let mut answer = lent.query(sql, parameters).await;
        if answer.is_err() && lent.is_cut() && again == Again::Yes {
            // The connection broke, perhaps long ago while nobody used it.
            drop(lent);
            lent = self.lend().await.map_err(|error| failed(&error))?;
            answer = lent.query(sql, parameters).await;
        }
        answer.map_err(|error| failed(&error))
    }

    /// How long from now until then, by the caller's clock.
    fn pause(&self, at: Timestamp) -> i64 {
        i64::try_from(at.millis().saturating_sub(self.clock.now().millis())).unwrap_or(i64::MAX)
    }

    /// Where the next claim begins to look: at what was due when the last batch was, or from the first once in a while.
    fn begin(&self) -> Option<i64> {
        let mut low_water = self.low_water.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if low_water.swept_at.is_some_and(|swept_at| now.duration_since(swept_at) < SWEEP_EVERY) {
            return low_water.due_us;
        }
        low_water.swept_at = Some(now);
        None
    }

    fn claimed_from(&self, due_us: Option<i64>) {
        let mut low_water = self.low_water.lock().unwrap_or_else(PoisonError::into_inner);
        low_water.due_us = due_us.map(|due_us| due_us.saturating_sub(LOW_WATER_MARGIN_US));
    }

    async fn claim(&self, worker: Label, limit: i32, lease: Span, from: Option<i64>) -> Answered<Vec<Leased>> {
        let lease_ms = lease.millis().min(LEASE_MAX_MS);
        let seconds = i32::try_from(lease_ms.div_ceil(1_000).max(1)).unwrap_or(i32::MAX);
        let parameters: Parameters<'_> =
            &[(&limit, Type::INT4), (&worker.as_str(), Type::TEXT), (&seconds, Type::INT4), (&from, Type::INT8)];
        let rows = self.ask(CLAIM, parameters, Again::No).await?;
        let leased: Vec<Leased> = rows.iter().map(Leased::read).collect::<Answered<_>>()?;
        if lease_ms == 0 || !lease_ms.is_multiple_of(1_000) {
            self.set_lease(&leased, lease_ms).await?;
        }
        Ok(leased)
    }

    async fn set_lease(&self, leased: &[Leased], lease_ms: u64) -> Answered<()> {
        let Some(first) = leased.first() else { return Ok(()) };
        let ids: Vec<&str> = leased.iter().map(|leased| leased.outbox_id.as_str()).collect();
        let (token, lease_ms) = (rows::uuid_of(first.token), i64::try_from(lease_ms).unwrap_or(i64::MAX));
        let parameters: Parameters<'_> = &[(&ids, Type::TEXT_ARRAY), (&token, Type::TEXT), (&lease_ms, Type::INT8)];
        self.ask(SET_LEASE, parameters, Again::Yes).await.map(drop)
    }

    /// What nobody has is due after these pauses.
    async fn reschedule(&self, ids: &[String], pauses_ms: &[i64]) -> Answered<()> {
        if ids.is_empty() {
            return Ok(());
        }
        let parameters: Parameters<'_> = &[(&ids, Type::TEXT_ARRAY), (&pauses_ms, Type::INT8_ARRAY)];
        self.ask(RESCHEDULE, parameters, Again::Yes).await.map(drop)
    }

    /// What cannot be read is not delivered, and not tried for ever: it is given up, and so stays for somebody to look at.
    async fn bury(&self, worker: Label, unreadable: &[Leased]) -> Answered<()> {
        for id in unreadable.iter().filter_map(|leased| leased.claimed.as_ref().err()?.parse().ok()) {
            self.notices.tell(&Notice::Unreadable { id });
        }
        self.give_up(worker, unreadable, "the record cannot be read").await
    }

    async fn list(&self, which: &str, after: Option<ObligationId>, limit: usize) -> Answered<Vec<Stored>> {
        let (after, limit) = (after.map(|id| id.to_string()), bounded(limit));
        let parameters: Parameters<'_> = &[(&which, Type::TEXT), (&after, Type::TEXT), (&limit, Type::INT4)];
        let rows = self.ask(LIST, parameters, Again::Yes).await?;
        let now = self.clock.now();
        let mut found = Vec::with_capacity(rows.len());
        for row in &rows {
            match rows::stored(row, now)? {
                Ok(stored) => found.push(stored),
                // One record that cannot be read must not hide the others.
                Err(Some(id)) => self.notices.tell(&Notice::Unreadable { id }),
                Err(None) => {}
            }
        }
        Ok(found)
    }

    async fn flag(&self, sql: &str, parameters: Parameters<'_>, again: Again) -> Answered<bool> {
        let rows = self.ask(sql, parameters, again).await?;
        rows.first().map_or(Ok(false), |row| column(row, 0))
    }
}

/// A number that the functions take.
fn bounded(limit: usize) -> i32 {
    i32::try_from(limit.min(BATCH_MAX)).unwrap_or(i32::MAX)
}

/// The error for people: what it is, and under which name more is written about it.
fn failed(error: &DatabaseError) -> StoreFailed {
    StoreFailed(format!("{error} ({})", error.code()))
}

impl ObligationStore for PostgresStore {
    fn name(&self) -> &'static str {
        "postgres"
    }

    async fn put(&self, obligations: &[Obligation]) -> Answered<()> {
        if obligations.is_empty() {
            return Ok(());
        }
        let Columns { charges, owners, ids, payloads, made_at_ms } = Columns::of(obligations);
        let parameters: Parameters<'_> = &[
            (&charges, Type::TEXT_ARRAY),
            (&owners, Type::TEXT_ARRAY),
            (&ids, Type::TEXT_ARRAY),
            (&RAIL, Type::TEXT),
            (&payloads, Type::TEXT_ARRAY),
            (&made_at_ms, Type::INT8_ARRAY),
        ];
        self.ask(PUT, parameters, Again::Yes).await?;
        self.news.tell();
        Ok(())
    }

    async fn claim_ready(&self, worker: Label, limit: usize, lease: Span) -> Answered<Vec<Claimed>> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let from = self.begin();
        let mut leased = self.claim(worker, bounded(limit), lease, from).await?;
        if leased.is_empty() && from.is_some() {
            leased = self.claim(worker, bounded(limit), lease, None).await?;
        }
        self.claimed_from(leased.iter().map(|leased| leased.due_us).min());
        let (mut all, mut unreadable) = (Vec::with_capacity(leased.len()), Vec::new());
        for leased in leased {
            if let Ok(claimed) = leased.claimed {
                self.held.add(claimed.lease, Hold { outbox_id: leased.outbox_id, worker });
                all.push(claimed);
            } else {
                unreadable.push(leased);
            }
        }
        if !unreadable.is_empty() {
            self.bury(worker, &unreadable).await?;
        }
        Ok(all)
    }

    async fn complete(&self, completed: &[(Lease, Outcome)]) -> Answered<Vec<Result<(), LeaseLost>>> {
        self.complete_all(completed).await
    }

    async fn repair_expired(&self, limit: usize) -> Answered<usize> {
        if limit == 0 {
            return Ok(0);
        }
        let limit = bounded(limit);
        let parameters: Parameters<'_> = &[(&limit, Type::INT4), (&self.repairer.as_str(), Type::TEXT)];
        let rows = self.ask(REPAIR, parameters, Again::Yes).await?;
        let mut waiting = Vec::new();
        for row in &rows {
            if column::<&str>(row, 1)? == "ZOMBIE_REQUEUE" {
                waiting.push(column(row, 0)?);
            }
        }
        // The outbox lets them wait a second; if it comes to nothing, so they do.
        self.reschedule(&waiting, &vec![0; waiting.len()]).await?;
        Ok(rows.len())
    }

    async fn next_due(&self) -> Answered<Option<Timestamp>> {
        let rows = self.ask(NEXT_DUE, &[], Again::Yes).await?;
        let in_ms: Option<i64> = rows.first().map_or(Ok(None), |row| column(row, 0))?;
        Ok(in_ms.map(|in_ms| moment(self.clock.now(), in_ms)))
    }

    async fn get(&self, id: ObligationId) -> Answered<Option<Stored>> {
        let rows = self.ask(FIND, &[(&id.as_str(), Type::TEXT)], Again::Yes).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let stored = rows::stored(row, self.clock.now())?;
        stored.map(Some).map_err(|_| rows::strange(&format!("the record of {id}")))
    }

    async fn count(&self) -> Answered<Count> {
        self.check().await.map_err(|error| failed(&error))?;
        self.counting.count(&self.pool).await
    }

    async fn oldest(&self) -> Answered<Option<Timestamp>> {
        Ok(self.list("PENDING", None, 1).await?.first().map(|stored| stored.obligation.created_at))
    }

    async fn list_pending(&self, after: Option<ObligationId>, limit: usize) -> Answered<Vec<Stored>> {
        self.list("PENDING", after, limit).await
    }

    async fn list_dead(&self, after: Option<ObligationId>, limit: usize) -> Answered<Vec<Stored>> {
        self.list("DEAD", after, limit).await
    }

    async fn resolve(&self, id: ObligationId, note: &Reason) -> Answered<bool> {
        self.flag(RESOLVE, &[(&id.as_str(), Type::TEXT), (&note.as_str(), Type::TEXT)], Again::No).await
    }

    async fn replay(&self, id: ObligationId) -> Answered<bool> {
        let is_due = self.flag(REPLAY, &[(&id.as_str(), Type::TEXT)], Again::Yes).await?;
        if is_due {
            self.news.tell();
        }
        Ok(is_due)
    }

    async fn durable(&self) -> Durable {
        match self.flag(DURABLE, &[], Again::Yes).await {
            Ok(true) => Durable::Yes,
            Ok(false) => Durable::No,
            Err(_) => Durable::Unknown,
        }
    }
}
