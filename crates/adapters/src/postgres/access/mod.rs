//! Who may do what, in a database that several nodes share: API keys, limits and signing keys (`sql/0015_access.sql`).
//!
//! What is in memory follows from what is here: [`AccessTables::changes`] says what has changed since a version, and
//! [`AccessTables::hear`] when to look.
//!
//! # Invariants
//! - Whoever has taken over the changes up to a version has missed nothing that was committed under it: changes come one after
//!   the other, and the version is read before what has changed.
//! - A version that went back is that of another state of the database, such as a backup: everything is read anew.

mod rows;

pub use rows::{StoredKey, StoredLimit, StoredSigningKey};

use super::{DECIDES, Database, DatabaseError, Driver, Limits, Pool};
use holdfast_domain::{CreditUnit, Label, Span, Timestamp};
use rows::{KEY, LIMIT, units};
use std::future::{pending, poll_fn};
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Row};

/// The tables, and a few connections to them.
pub struct AccessTables {
    pool: Pool,
}

/// What is different from what was seen.
pub struct Changes {
    /// The version that is seen with these.
    pub version: i64,
    /// Whether this is all there is, and nothing that was seen before counts any more.
    pub is_whole: bool,
    /// Keys that were added or revoked.
    pub keys: Vec<StoredKey>,
    /// Limits that were set.
    pub limits: Vec<StoredLimit>,
    /// Every signing key, newest first.
    pub signing: Vec<StoredSigningKey>,
}

/// The parts of a limit that are to change, and what to; the others stay.
pub struct LimitChange {
    /// The limit a day.
    pub per_day: Option<Option<CreditUnit>>,
    /// The limit in all.
    pub in_total: Option<Option<CreditUnit>>,
    /// What it belongs to.
    pub within: Option<Option<Label>>,
}

/// Whether a signing key is made because somebody wants another, or because there may be none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Making {
    /// It is made, whatever there is.
    Another,
    /// It is made if there is none.
    First,
}

impl AccessTables {
    /// The tables of `database`.
    #[must_use]
    pub fn new(database: Database) -> Self {
        Self { pool: Pool::new(database, Limits::USUAL) }
    }

    /// Checks that the schema is the one of this program, and that the user may act as a node.
    ///
    /// # Errors
    /// As [`super::check`].
    pub async fn check(&self) -> Result<(), DatabaseError> {
        super::check(&mut self.pool.lend().await?, &DECIDES).await
    }

    /// What has changed since version `seen`; `None` if nothing has. Everything, if nothing was seen.
    ///
    /// # Errors
    /// If the database does not answer, or not as it should.
    pub async fn changes(&self, seen: Option<i64>) -> Result<Option<Changes>, DatabaseError> {
        let version = self.version().await?;
        if seen == Some(version) {
            return Ok(None);
        }
        let since = seen.filter(|seen| *seen < version);
        let after = since.unwrap_or(-1);
        let keys = format!("SELECT {KEY} FROM holdfast.access_keys WHERE version > $1");
        let keys = self.ask(&keys, &[(&after, Type::INT8)]).await?;
        let keys = keys.iter().map(StoredKey::read).collect::<Result<_, _>>()?;
        let limits = format!("SELECT {LIMIT} FROM holdfast.access_limits WHERE version > $1");
        let limits = self.ask(&limits, &[(&after, Type::INT8)]).await?;
        let limits = limits.iter().map(StoredLimit::read).collect::<Result<_, _>>()?;
        let (_, signing) = self.signing_keys().await?;
        Ok(Some(Changes { version, is_whole: since.is_none(), keys, limits, signing }))
    }

    async fn version(&self) -> Result<i64, DatabaseError> {
        let rows = self.ask("SELECT version FROM holdfast.access_state", &[]).await?;
        Ok(one(&rows)?.try_get(0)?)
    }

    /// Every signing key, newest first, and the version that they are of.
    ///
    /// # Errors
    /// If the database does not answer.
    pub async fn signing_keys(&self) -> Result<(i64, Vec<StoredSigningKey>), DatabaseError> {
        let all = "SELECT state.version, known.kid, known.made_at, known.document FROM holdfast.access_state AS state \
                   LEFT JOIN holdfast.access_signing_keys AS known ON true ORDER BY known.made_at DESC";
        let rows = self.ask(all, &[]).await?;
        let version = one(&rows)?.try_get(0)?;
        let keys = rows.iter().filter_map(|row| StoredSigningKey::read(row).transpose());
        Ok((version, keys.collect::<Result<_, _>>()?))
    }

    /// Adds a key; `false` if there is one of that id, which then stays as it is.
    ///
    /// # Errors
    /// If the database does not answer: then it may or may not have been added.
    pub async fn add_key(&self, key: &StoredKey) -> Result<bool, DatabaseError> {
        let millis = |at: Option<Timestamp>| at.map(|at| at.millis().cast_signed());
        let name = key.name.as_ref().map(|name| name.as_str().to_owned());
        let (daily, total) = (key.daily_limit.map(units), key.total_limit.map(units));
        let (made, expires, revoked) = (millis(Some(key.made_at)), millis(key.expires_at), millis(key.revoked_at));
        let rows = self
            .ask(
                "SELECT holdfast.access_add_key($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
                &[
                    (&key.id.as_str(), Type::TEXT),
                    (&key.hash.as_slice(), Type::BYTEA),
                    (&key.hint, Type::TEXT),
                    (&key.account.as_str(), Type::TEXT),
                    (&name, Type::TEXT),
                    (&key.scopes, Type::TEXT),
                    (&daily, Type::INT8),
                    (&total, Type::INT8),
                    (&made, Type::INT8),
                    (&expires, Type::INT8),
                    (&revoked, Type::INT8),
                ],
            )
            .await?;
        Ok(one(&rows)?.try_get(0)?)
    }

    /// Revokes a key, for ever; again changes nothing. What it is then; `None` if there is none.
    ///
    /// # Errors
    /// If the database does not answer: then it may or may not have been revoked.
    pub async fn revoke_key(&self, id: Label) -> Result<Option<StoredKey>, DatabaseError> {
        let sql = format!("SELECT {KEY} FROM holdfast.access_revoke_key($1)");
        let rows = self.ask(&sql, &[(&id.as_str(), Type::TEXT)]).await?;
        rows.first().map(StoredKey::read).transpose()
    }

    /// Changes parts of a limit; what it is then.
    ///
    /// # Errors
    /// If the database does not answer: then it may or may not have been changed.
    pub async fn set_limit(&self, spender: &str, change: &LimitChange) -> Result<StoredLimit, DatabaseError> {
        let LimitChange { per_day, in_total, within } = change;
        let named = [("per_day", per_day.is_some()), ("in_total", in_total.is_some()), ("within", within.is_some())];
        let parts: Vec<&str> = named.into_iter().filter(|(_, is_set)| *is_set).map(|(part, _)| part).collect();
        let (per_day, in_total) = (per_day.flatten().map(units), in_total.flatten().map(units));
        let within = within.flatten().map(|name| name.to_string());
        let sql = format!("SELECT {LIMIT} FROM holdfast.access_set_limit($1, $2, $3, $4, $5)");
        let rows = self
            .ask(
                &sql,
                &[
                    (&spender, Type::TEXT),
                    (&parts, Type::TEXT_ARRAY),
                    (&per_day, Type::INT8),
                    (&in_total, Type::INT8),
                    (&within, Type::TEXT),
                ],
            )
            .await?;
        StoredLimit::read(one(&rows)?)
    }

    /// Adds a signing key, and forgets those that had a successor longer ago than `grace`; `false` if a first one was to be made
    /// and one is there.
    ///
    /// # Errors
    /// If the database does not answer: then it may or may not have been added.
    pub async fn add_signing_key(
        &self,
        (kid, document): (&str, &[u8]),
        grace: Span,
        making: Making,
    ) -> Result<bool, DatabaseError> {
        let (grace, only_first) = (grace.millis().cast_signed(), making == Making::First);
        let rows = self
            .ask(
                "SELECT holdfast.access_add_signing_key($1, $2, $3, $4)",
                &[(&kid, Type::TEXT), (&document, Type::BYTEA), (&grace, Type::INT8), (&only_first, Type::BOOL)],
            )
            .await?;
        Ok(one(&rows)?.try_get(0)?)
    }

    /// Whether the caller is to tell the first admin key: one of all who ask, until it was told.
    ///
    /// # Errors
    /// If the database does not answer.
    pub async fn claim_first_key(&self) -> Result<bool, DatabaseError> {
        let rows = self.ask("SELECT holdfast.access_claim_first_key()", &[]).await?;
        Ok(one(&rows)?.try_get(0)?)
    }

    /// Remembers that the first admin key was told.
    ///
    /// # Errors
    /// If the database does not answer.
    pub async fn tell_first_key(&self) -> Result<(), DatabaseError> {
        self.ask("SELECT holdfast.access_tell_first_key()", &[]).await.map(drop)
    }

    /// Rings `bell` whenever something has changed, and once at the beginning, until the connection breaks.
    ///
    /// # Errors
    /// If it could not be opened.
    pub async fn hear(&self, bell: &Notify) -> Result<(), DatabaseError> {
        let within = self.pool.limits().answer_within;
        let late = |_| DatabaseError::Unreachable(format!("no answer came within {} ms", within.as_millis()));
        let (client, driver) = timeout(within, self.pool.database().open()).await.map_err(late)??;
        let listening = async {
            timeout(within, client.batch_execute("LISTEN holdfast_access")).await.map_err(late)??;
            // Nobody knows what was said before.
            bell.notify_one();
            pending::<Result<(), DatabaseError>>().await
        };
        tokio::select! {
            () = ring(driver, bell) => Ok(()),
            failed = listening => failed,
        }
    }

    async fn ask(&self, sql: &str, parameters: &[(&(dyn ToSql + Sync), Type)]) -> Result<Vec<Row>, DatabaseError> {
        self.pool.lend().await?.query(sql, parameters).await
    }
}

/// Moves the bytes of a connection, and rings for what is said on it.
async fn ring(mut driver: Driver, bell: &Notify) {
    while let Some(Ok(message)) = poll_fn(|context| driver.poll_message(context)).await {
        if matches!(message, AsyncMessage::Notification(_)) {
            bell.notify_one();
        }
    }
}

fn one(rows: &[Row]) -> Result<&Row, DatabaseError> {
    rows.first().ok_or_else(|| DatabaseError::Failed("it answered with nothing".to_owned()))
}
