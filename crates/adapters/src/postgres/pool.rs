//! A few connections, lent to whoever asks and taken back.
//!
//! # Invariants
//! - There are never more than `Limits::connections`, and every wait is bounded: for one that is free, for a new one to open, for
//!   an answer. The server bounds its own part too: statements, locks and open transactions end by themselves.
//! - A connection is lent again only after its last answer came whole. One that broke, was too late, or whose asker went away in
//!   the middle is closed, and another is opened when somebody needs it: no answer ever reaches the wrong question.

use super::{Database, DatabaseError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_postgres::error::{DbError, Severity};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Row};

/// How many, and how long is waited.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The most connections at once.
    pub connections: usize,
    /// For one that is free, and for a new one to open.
    pub connect_within: Duration,
    /// For an answer, by our clock; the server's own limit on a statement is a second less, or half of it if that is more.
    pub answer_within: Duration,
}

impl Limits {
    /// Four connections, two seconds for one of them, six for an answer.
    pub const USUAL: Self =
        Self { connections: 4, connect_within: Duration::from_secs(2), answer_within: Duration::from_secs(6) };

    /// What a new session is told.
    fn session(&self) -> String {
        let whole = self.answer_within;
        let statement = whole.saturating_sub(Duration::from_secs(1)).max(whole / 2).as_millis();
        let lock = statement / 2;
        format!(
            "SET statement_timeout = {statement}; SET lock_timeout = {lock}; \
             SET idle_in_transaction_session_timeout = {statement}; SET client_min_messages = warning"
        )
    }
}

/// A few connections to one database.
pub struct Pool {
    database: Database,
    limits: Limits,
    room: Semaphore,
    idle: Mutex<Vec<Session>>,
}

/// A connection, and the task that moves its bytes.
struct Session {
    client: Client,
    driver: AbortHandle,
}

impl Drop for Session {
    fn drop(&mut self) {
        // Closes it at once: what hangs is not waited for.
        self.driver.abort();
    }
}

/// Parameters of a statement, with their types.
pub type Parameters<'a> = &'a [(&'a (dyn ToSql + Sync), Type)];

impl Pool {
    /// A pool without connections: they are opened when they are needed.
    #[must_use]
    pub fn new(database: Database, limits: Limits) -> Self {
        Self { database, limits, room: Semaphore::new(limits.connections), idle: Mutex::default() }
    }

    /// The database that they lead to.
    pub(crate) const fn database(&self) -> &Database {
        &self.database
    }

    /// How long is waited.
    pub(crate) const fn limits(&self) -> Limits {
        self.limits
    }

    /// Lends a connection.
    ///
    /// # Errors
    /// If none is free and none can be opened, in time.
    pub async fn lend(&self) -> Result<Lent<'_>, DatabaseError> {
        let within = self.limits.connect_within;
        let room = timeout(within, self.room.acquire()).await.map_err(|_| late("no connection was free", within))?;
        let room = room.map_err(|_| DatabaseError::Unreachable("the pool is closed".to_owned()))?;
        let session = match self.waiting() {
            Some(session) => session,
            None => timeout(within, self.open()).await.map_err(|_| late("no connection could be opened", within))??,
        };
        Ok(Lent { pool: self, session: Some(session), is_whole: true, _room: room })
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Session>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One that waits and is not known to be broken: the last that was used, so that those which are not needed stay unused.
    fn waiting(&self) -> Option<Session> {
        let mut idle = self.idle();
        idle.retain(|session| !session.client.is_closed());
        idle.pop()
    }

    async fn open(&self) -> Result<Session, DatabaseError> {
        let (client, driver) = self.database.open().await?;
        // May safely die: its client is told, and is not lent again.
        let session = Session { client, driver: tokio::spawn(driver).abort_handle() };
        session.client.batch_execute(&self.limits.session()).await?;
        Ok(session)
    }
}

/// A connection in somebody's hands.
pub struct Lent<'a> {
    pool: &'a Pool,
    session: Option<Session>,
    /// Whether every answer came to its end.
    is_whole: bool,
    _room: SemaphorePermit<'a>,
}

impl Lent<'_> {
    /// Asks, and waits for the whole answer. A statement is one transaction.
    ///
    /// # Errors
    /// If the database refuses, or the answer does not come in time: then what was asked may or may not have been done.
    pub async fn query(&mut self, sql: &str, parameters: Parameters<'_>) -> Result<Vec<Row>, DatabaseError> {
        self.query_raw(sql, parameters).await?.map_err(DatabaseError::from)
    }

    /// The same, for who looks at the refusal.
    pub(crate) async fn query_raw(
        &mut self,
        sql: &str,
        parameters: Parameters<'_>,
    ) -> Result<Result<Vec<Row>, Error>, DatabaseError> {
        let within = self.pool.limits.answer_within;
        let session = self.session.as_ref().ok_or_else(|| DatabaseError::Failed("it was given back".to_owned()))?;
        // Dropped from here on, it is not whole.
        self.is_whole = false;
        let asked = timeout(within, session.client.query_typed(sql, parameters)).await;
        let answer = asked.map_err(|_| late("no answer came", within))?;
        // A refusal is an answer as well; the last words of a session that was ended, and anything else, are not.
        let is_refusal =
            |error: &Error| error.as_db_error().and_then(DbError::parsed_severity) == Some(Severity::Error);
        self.is_whole = answer.as_ref().err().is_none_or(is_refusal);
        Ok(answer)
    }

    /// Whether the last answer did not come to its end: what was asked may or may not have been done.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        !self.is_whole
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if let Some(session) = self.session.take().filter(|session| self.is_whole && !session.client.is_closed()) {
            self.pool.idle().push(session);
        }
    }
}

fn late(what: &str, within: Duration) -> DatabaseError {
    DatabaseError::Unreachable(format!("{what} within {} ms", within.as_millis()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_gives_a_statement_up_before_we_do() {
        assert!(Limits::USUAL.session().contains("SET statement_timeout = 5000; SET lock_timeout = 2500;"));
        let short = Limits { answer_within: Duration::from_millis(600), ..Limits::USUAL };
        assert!(short.session().contains("SET statement_timeout = 300; SET lock_timeout = 150;"));
    }
}
