//! The queue's items in PostgreSQL, for several nodes that share a database: `crates/adapters/sql/0014_queue.sql`. The user
//! needs to act as `symphony_ledger`.
//!
//! Every call is one way there and back: a function takes the step if the item's state allows it, under the row's lock, and
//! gives the item as it is afterwards. What that means is said here by the rules of the domain.
//!
//! # Invariants
//! - A call whose answer was lost is made again, once, with the same token: by it a put or a start that was done is known again.
//!   An end is known by its verdict.
//! - Nodes that take the next item do not wait for one another.

mod rows;

use crate::postgres::{self, Database, DatabaseError, Lent, Limits, Parameters, Pool};
use holdfast_domain::queue::{Item, Refusal, Stage, State, Verdict};
use holdfast_domain::{EscrowId, ItemId, PayeeId, Timestamp};
use holdfast_engine::queue::{Answered, Counts, Filter, METADATA_BYTES_MAX, Put, QueueFailed, QueueStore};
use rows::{COLUMNS, Ended, Seen, bounded, column, millis};
use std::sync::atomic::{AtomicBool, Ordering};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

/// The queue's items in PostgreSQL.
pub struct PostgresQueue {
    pool: Pool,
    /// Whether the schema has been found to be ours.
    is_checked: AtomicBool,
}

impl PostgresQueue {
    /// A store in `database`. Nothing is asked yet: connections open when they are needed.
    #[must_use]
    pub fn new(database: Database, limits: Limits) -> Self {
        Self { pool: Pool::new(database, limits), is_checked: AtomicBool::new(false) }
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
            postgres::check(&mut lent, &postgres::DECIDES).await?;
            self.is_checked.store(true, Ordering::Release);
        }
        Ok(lent)
    }

    async fn ask(&self, sql: &str, parameters: Parameters<'_>) -> Answered<Vec<Row>> {
        let mut lent = self.lend().await.map_err(|error| failed(&error))?;
        let mut answer = lent.query(sql, parameters).await;
        if answer.is_err() && lent.is_cut() {
            // The connection broke, perhaps long ago while nobody used it.
            drop(lent);
            lent = self.lend().await.map_err(|error| failed(&error))?;
            answer = lent.query(sql, parameters).await;
        }
        answer.map_err(|error| failed(&error))
    }

    async fn items(&self, sql: &str, parameters: Parameters<'_>) -> Answered<Vec<Item>> {
        self.ask(sql, parameters).await?.iter().map(|row| Ok(Seen::read(row)?.item)).collect()
    }

    /// The item after a step, if there is one.
    async fn seen(&self, call: &str, parameters: Parameters<'_>) -> Answered<Option<Seen>> {
        let rows = self.ask(&format!("SELECT {COLUMNS} FROM holdfast.{call}"), parameters).await?;
        rows.first().map(Seen::read).transpose()
    }
}

/// The error for people: what it is, and under which name more is written about it.
fn failed(error: &DatabaseError) -> QueueFailed {
    QueueFailed::Unavailable(format!("{error} ({})", error.code()))
}

/// What nobody else calls a step of theirs.
fn token() -> Answered<String> {
    let mut chance = [0; 16];
    let none = |_| QueueFailed::Unavailable("the system has no randomness to give".to_owned());
    aws_lc_rs::rand::fill(&mut chance).map_err(none)?;
    Ok(format!("{:032x}", u128::from_be_bytes(chance)))
}

impl QueueStore for PostgresQueue {
    fn name(&self) -> &'static str {
        "postgres"
    }

    async fn put(&self, item: Item) -> Answered<Put> {
        let Item { intake, queued_at, stage } = &item;
        let Stage::Queued { drop_at } = *stage else {
            let refusal = Refusal::InvalidState { current: item.state(), expected: &[State::Queued] };
            return Err(QueueFailed::Refused(refusal));
        };
        if intake.metadata.as_ref().is_some_and(|words| words.len() > METADATA_BYTES_MAX) {
            let why = format!("an item's metadata has at most {METADATA_BYTES_MAX} bytes");
            return Err(QueueFailed::Unavailable(why));
        }
        let (token, amount, drop_at) = (token()?, intake.amount.units().cast_signed(), drop_at.map(millis));
        let parameters: Parameters<'_> = &[
            (&intake.id.as_str(), Type::TEXT),
            (&intake.user.as_str(), Type::TEXT),
            (&intake.payee.as_str(), Type::TEXT),
            (&intake.escrow.as_str(), Type::TEXT),
            (&amount, Type::INT8),
            (&intake.feature.as_str(), Type::TEXT),
            (&intake.priority, Type::INT4),
            (&intake.metadata.as_deref(), Type::TEXT),
            (&millis(*queued_at), Type::INT8),
            (&drop_at, Type::INT8),
            (&token, Type::TEXT),
        ];
        let call = "queue_put($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
        let seen = self.seen(call, parameters).await?.ok_or_else(|| rows::strange("no item after a put"))?;
        match seen {
            Seen { item: found, .. } if found.intake.id != intake.id => Err(QueueFailed::Linked),
            Seen { item: found, .. } if found.intake != *intake => Err(QueueFailed::Reused),
            Seen { item: found, token: by } if by == token => Ok(Put::New(found)),
            Seen { item: found, .. } => Ok(Put::Known(found)),
        }
    }

    async fn item(&self, id: ItemId) -> Answered<Option<Item>> {
        let query = format!("SELECT {COLUMNS} FROM holdfast.queue_items WHERE id = $1");
        Ok(self.items(&query, &[(&id.as_str(), Type::TEXT)]).await?.pop())
    }

    async fn start(&self, id: ItemId, now: Timestamp) -> Answered<Item> {
        let token = token()?;
        let parameters: Parameters<'_> =
            &[(&id.as_str(), Type::TEXT), (&millis(now), Type::INT8), (&token, Type::TEXT)];
        let seen = self.seen("queue_start($1, $2, $3)", parameters).await?.ok_or(QueueFailed::Unknown)?;
        if seen.token == token && seen.item.state() == State::InProgress {
            return Ok(seen.item);
        }
        match seen.item.start(now) {
            Err(refusal) => Err(QueueFailed::Refused(refusal)),
            Ok(_) => Err(rows::strange("an item that waits after a start")),
        }
    }

    async fn start_next(&self, payee: PayeeId, now: Timestamp) -> Answered<Option<Item>> {
        let token = token()?;
        let parameters: Parameters<'_> =
            &[(&payee.as_str(), Type::TEXT), (&millis(now), Type::INT8), (&token, Type::TEXT)];
        Ok(self.seen("queue_start_next($1, $2, $3)", parameters).await?.map(|seen| seen.item))
    }

    async fn end(&self, id: ItemId, verdict: Verdict, at: Timestamp) -> Answered<Item> {
        let Ended { state, cause, settled, refunded } = Ended::by(verdict);
        let parameters: Parameters<'_> = &[
            (&id.as_str(), Type::TEXT),
            (&state, Type::TEXT),
            (&cause, Type::TEXT),
            (&settled, Type::INT8),
            (&refunded, Type::INT8),
            (&millis(at), Type::INT8),
        ];
        let seen = self.seen("queue_end($1, $2, $3, $4, $5, $6)", parameters).await?.ok_or(QueueFailed::Unknown)?;
        if matches!(seen.item.stage, Stage::Ended(end) if end.verdict == verdict) {
            return Ok(seen.item);
        }
        match seen.item.end(verdict, at) {
            Err(refusal) => Err(QueueFailed::Refused(refusal)),
            Ok(_) => Err(rows::strange("an item that has not ended after an end")),
        }
    }

    async fn list(&self, filter: Filter, at_most: usize) -> Answered<Vec<Item>> {
        let Filter { payee, state, after } = filter;
        let parameters: Parameters<'_> = &[
            (&payee.as_ref().map(PayeeId::as_str), Type::TEXT),
            (&state.map(State::name), Type::TEXT),
            (&after.as_ref().map(ItemId::as_str), Type::TEXT),
            (&bounded(at_most), Type::INT4),
        ];
        self.items(&format!("SELECT {COLUMNS} FROM holdfast.queue_list($1, $2, $3, $4)"), parameters).await
    }

    async fn overdue(&self, now: Timestamp, at_most: usize) -> Answered<Vec<Item>> {
        let query =
            format!("SELECT {COLUMNS} FROM holdfast.queue_items WHERE drop_at <= $1 ORDER BY drop_at, id LIMIT $2");
        self.items(&query, &[(&millis(now), Type::INT8), (&i64::from(bounded(at_most)), Type::INT8)]).await
    }

    async fn linked(&self, escrows: Vec<EscrowId>) -> Answered<Vec<EscrowId>> {
        let names: Vec<&str> = escrows.iter().map(EscrowId::as_str).collect();
        let query = "SELECT named.escrow FROM unnest($1) WITH ORDINALITY AS named (escrow, place) WHERE EXISTS \
             (SELECT FROM holdfast.queue_items AS item WHERE item.escrow = named.escrow) ORDER BY named.place";
        let rows = self.ask(query, &[(&names, Type::TEXT_ARRAY)]).await?;
        let read = |row: &Row| column::<&str>(row, 0)?.parse().map_err(|_| rows::strange("an escrow's name"));
        rows.iter().map(read).collect()
    }

    async fn counts(&self) -> Answered<Counts> {
        let query = "SELECT count(*) FILTER (WHERE state = 'queued'), count(*) FILTER (WHERE state = 'in_progress'), \
             min(queued_at) FROM holdfast.queue_items WHERE ended_at IS NULL";
        let rows = self.ask(query, &[]).await?;
        let row = rows.first().ok_or_else(|| rows::strange("no counts"))?;
        let oldest = column::<Option<i64>>(row, 2)?.map(rows::moment);
        let count = |index| column::<i64>(row, index).map(i64::cast_unsigned);
        Ok(Counts { queued: count(0)?, in_progress: count(1)?, oldest })
    }
}
