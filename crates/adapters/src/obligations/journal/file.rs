//! The file: which obligations there are, by the entry that owes each. Every question is answered by an index.

use crate::obligations::same;
use crate::sqlite;
use holdfast_domain::delivery::{Left, Obligation};
use holdfast_domain::{ChargeId, CreditUnit, ObligationId, Reason, Timestamp};
use holdfast_engine::obligations::Count;
use holdfast_engine::{Applied, ProjectionFailed};
use holdfast_journal::{JournalId, Location};
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::path::{Path, PathBuf};
use std::str::FromStr;

const SCHEMA: &str = include_str!("schema.sql");
/// What `PRAGMA user_version` must say; another number means another schema.
const SCHEMA_VERSION: i64 = 1;

/// The file of the obligations, below the data directory.
#[must_use]
pub fn path(data: &Path) -> PathBuf {
    data.join("obligations.db")
}

/// Deletes the file. It is made anew from the journal.
pub fn remove(data: &Path) -> std::io::Result<()> {
    sqlite::remove(&path(data))
}

/// An opened file, for one who writes and one who reads.
pub(super) struct Opened {
    pub(super) writer: Connection,
    pub(super) reader: Connection,
    pub(super) applied: Applied,
    pub(super) count: Count,
    pub(super) sums: u64,
}

impl Opened {
    /// Opens the file of `journal`, whose last entry is `last`; makes it anew where it does not fit.
    pub(super) fn open(data: &Path, journal: JournalId, last: u64) -> Result<Self, ProjectionFailed> {
        let found = existing(data, journal).ok().flatten().filter(|(_, applied)| applied.through <= last);
        let (writer, applied) = match found {
            Some(found) => found,
            None => {
                remove(data).map_err(|error| ProjectionFailed(error.to_string()))?;
                create(data, journal).map_err(failed)?
            }
        };
        let read = || {
            let reader = connect(data)?;
            reader.pragma_update(None, "query_only", true)?;
            let count = |table| reader.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| number(row, 0));
            let (pending, dead, sums) = (count("pending")?, count("dead")?, count("sums")?);
            Ok((reader, Count { pending, dead }, sums))
        };
        let (reader, count, sums) = read().map_err(failed)?;
        Ok(Self { writer, reader, applied, count, sums })
    }
}

fn existing(data: &Path, journal: JournalId) -> rusqlite::Result<Option<(Connection, Applied)>> {
    if !path(data).exists() {
        return Ok(None);
    }
    let connection = connect(data)?;
    let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let sound: String = connection.pragma_query_value(None, "quick_check", |row| row.get(0))?;
    if version != SCHEMA_VERSION || sound != "ok" {
        return Ok(None);
    }
    let applied =
        connection.query_row("SELECT through, location FROM applied WHERE journal = ?1", [journal.0], |row| {
            Ok(Applied { through: number(row, 0)?, location: Location::unpack(number(row, 1)?) })
        });
    Ok(applied.optional()?.map(|applied| (connection, applied)))
}

fn create(data: &Path, journal: JournalId) -> rusqlite::Result<(Connection, Applied)> {
    let mut connection = connect(data)?;
    let applied = Applied::NOTHING;
    let transaction = connection.transaction()?;
    transaction.execute_batch(SCHEMA)?;
    let row = params![journal.0, 0, applied.location.pack().cast_signed()];
    transaction.execute("INSERT INTO applied VALUES (1, ?1, ?2, ?3)", row)?;
    transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
    transaction.commit()?;
    Ok((connection, applied))
}

fn connect(data: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path(data))?;
    // NORMAL cannot corrupt a write-ahead log, and may lose the newest transactions: they are read again from the journal.
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.pragma_update(None, "wal_autocheckpoint", 4_096)?;
    connection.pragma_update(None, "cache_size", -8_192)?;
    connection.busy_timeout(std::time::Duration::from_secs(5))?;
    connection.set_prepared_statement_cache_capacity(32);
    Ok(connection)
}

pub(super) fn failed(error: rusqlite::Error) -> ProjectionFailed {
    ProjectionFailed(error.to_string())
}

pub(super) fn number(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    row.get::<_, i64>(column).map(i64::cast_unsigned)
}

pub(super) fn amount(row: &Row<'_>, column: usize) -> rusqlite::Result<CreditUnit> {
    CreditUnit::new(number(row, column)?).map_err(|error| unreadable(column, Type::Integer, error))
}

fn text<T: FromStr<Err: std::error::Error + Send + Sync + 'static>>(
    row: &Row<'_>,
    column: usize,
) -> rusqlite::Result<T> {
    row.get_ref(column)?.as_str()?.parse().map_err(|error| unreadable(column, Type::Text, error))
}

fn unreadable(column: usize, kind: Type, error: impl std::error::Error + Send + Sync + 'static) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, kind, Box::new(error))
}

/// An obligation and what the file knows besides.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kept {
    pub(super) seq: u64,
    pub(super) obligation: Obligation,
    /// What the charge comes to in all.
    pub(super) total: CreditUnit,
}

/// A dead one.
pub(super) struct Dead {
    pub(super) kept: Kept,
    pub(super) attempts: u32,
    pub(super) reason: Reason,
}

const COLUMNS: &str = "seq, id, charge, owner, cost, total, created_at";

fn kept(row: &Row<'_>) -> rusqlite::Result<Kept> {
    let id: ObligationId = text(row, 1)?;
    let charge: Option<ChargeId> = row
        .get_ref(2)?
        .as_str_or_null()?
        .map(str::parse)
        .transpose()
        .map_err(|error| unreadable(2, Type::Text, error))?;
    let obligation = Obligation {
        id,
        charge: charge.unwrap_or_else(|| same(id)),
        owner: text(row, 3)?,
        cost: amount(row, 4)?,
        created_at: Timestamp::from_millis(number(row, 6)?),
    };
    Ok(Kept { seq: number(row, 0)?, obligation, total: amount(row, 5)? })
}

fn dead(row: &Row<'_>) -> rusqlite::Result<Dead> {
    let attempts = u32::try_from(number(row, 7)?).unwrap_or(u32::MAX);
    Ok(Dead { kept: kept(row)?, attempts, reason: text(row, 8)? })
}

/// Those after entry `after`, in order.
pub(super) fn pending_after(reader: &Connection, after: u64, limit: usize) -> rusqlite::Result<Vec<Kept>> {
    let query = format!("SELECT {COLUMNS} FROM pending WHERE seq > ?1 ORDER BY seq LIMIT ?2");
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    reader.prepare_cached(&query)?.query_map(params![after.cast_signed(), limit], kept)?.collect()
}

/// The dead after entry `after`, in order.
pub(super) fn dead_after(reader: &Connection, after: u64, limit: usize) -> rusqlite::Result<Vec<Dead>> {
    let query = format!("SELECT {COLUMNS}, attempts, reason FROM dead WHERE seq > ?1 ORDER BY seq LIMIT ?2");
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    reader.prepare_cached(&query)?.query_map(params![after.cast_signed(), limit], dead)?.collect()
}

/// The one that entry `seq` owes.
pub(super) fn pending_at(reader: &Connection, seq: u64) -> rusqlite::Result<Option<Kept>> {
    let query = format!("SELECT {COLUMNS} FROM pending WHERE seq = ?1");
    reader.prepare_cached(&query)?.query_row([seq.cast_signed()], kept).optional()
}

/// The one with this id.
pub(super) fn pending_by(reader: &Connection, id: ObligationId) -> rusqlite::Result<Option<Kept>> {
    let query = format!("SELECT {COLUMNS} FROM pending WHERE id = ?1");
    reader.prepare_cached(&query)?.query_row([id.as_str()], kept).optional()
}

/// The dead one with this id.
pub(super) fn dead_by(reader: &Connection, id: ObligationId) -> rusqlite::Result<Option<Dead>> {
    let query = format!("SELECT {COLUMNS}, attempts, reason FROM dead WHERE id = ?1");
    reader.prepare_cached(&query)?.query_row([id.as_str()], dead).optional()
}

/// What there is of a charge besides this one, and what it comes to in all by the newest of them. The file is asked for this
/// one too: what it was when it was claimed may be less than it is now.
pub(super) fn siblings(reader: &Connection, of: &Kept) -> rusqlite::Result<(Left, CreditUnit)> {
    let mut total = of.total;
    let mut count = |table: &str| {
        // Two indexes: the first obligation of a charge is under the charge's id, those after it under the charge.
        let query = format!(
            "SELECT seq, total FROM {table} WHERE id = ?1 AND charge IS NULL UNION ALL \
             SELECT seq, total FROM {table} WHERE charge = ?1"
        );
        let mut found = reader.prepare_cached(&query)?;
        let parts = found.query_map([of.obligation.charge.as_str()], |row| Ok((number(row, 0)?, amount(row, 1)?)))?;
        let mut others = 0_u64;
        for part in parts {
            let (seq, known) = part?;
            total = total.max(known);
            others += u64::from(seq != of.seq);
        }
        Ok::<_, rusqlite::Error>(others)
    };
    let (pending, dead) = (count("pending")?, count("dead")?);
    Ok((Left { pending, dead }, total))
}
