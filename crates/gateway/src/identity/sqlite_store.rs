//! API keys and limits in `DATA/identity.db`: not derived from anything, so written with full syncs.

use super::api_key::KeyHash;
use super::freshness::Version;
use super::key_store::{KeyRecord, KeyStore, Scopes};
use super::limits::{Kept, LimitRecord, LimitStore, NewLimit, Spender};

use super::{IdentityError, durable, now};
use holdfast_domain::{CreditUnit, Label, Timestamp};
use rusqlite::{Connection, Row, params};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What stands in `told` when the first admin key was shown.
const FIRST_KEY: &str = "first admin key";

const SCHEMA: &str = "
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = FULL;
    BEGIN;
    CREATE TABLE IF NOT EXISTS api_keys (
        id TEXT PRIMARY KEY,
        hash BLOB NOT NULL UNIQUE,
        hint TEXT NOT NULL,
        account TEXT NOT NULL,
        name TEXT,
        scopes TEXT NOT NULL,
        daily_limit_units INTEGER,
        total_limit_units INTEGER,
        made_at INTEGER NOT NULL,
        expires_at INTEGER,
        revoked_at INTEGER
    ) STRICT;
    CREATE TABLE IF NOT EXISTS limits (
        spender TEXT PRIMARY KEY,
        daily_limit_units INTEGER,
        total_limit_units INTEGER,
        within TEXT,
        set_at INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE IF NOT EXISTS told (what TEXT PRIMARY KEY) STRICT;
    COMMIT;
";

/// The store in a data directory.
pub(super) struct SqliteStore {
    connection: Mutex<Connection>,
}

impl SqliteStore {
    pub(super) fn open(data: &Path) -> Result<Self, IdentityError> {
        let path = data.join("identity.db");
        if !path.exists() {
            // Made by us first, so that it never has more rights than it is to have.
            durable::write(&path, b"")?;
        }
        let connection = Connection::open(path)?;
        connection.execute_batch(SCHEMA)?;
        Ok(Self { connection: Mutex::new(connection) })
    }

    /// The store of a data directory that has one.
    pub(super) fn found(data: &Path) -> Result<Option<Self>, IdentityError> {
        if data.join("identity.db").exists() { Self::open(data).map(Some) } else { Ok(None) }
    }

    /// Every key, in the order in which they were made.
    pub(super) fn keys(&self) -> Result<Vec<KeyRecord>, IdentityError> {
        let connection = self.connection();
        let mut statement = connection.prepare(
            "SELECT id, hash, hint, account, name, scopes, daily_limit_units, total_limit_units,
                    made_at, expires_at, revoked_at FROM api_keys ORDER BY made_at, id",
        )?;
        let mut rows = statement.query([])?;
        let mut records = Vec::new();
        while let Some(row) = rows.next()? {
            records.push(record(row)?);
        }
        Ok(records)
    }

    /// Every limit.
    pub(super) fn limits(&self) -> Result<Vec<(Spender, Kept)>, IdentityError> {
        let connection = self.connection();
        let mut statement = connection.prepare("SELECT * FROM limits")?;
        let mut rows = statement.query([])?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            let spender = row.get::<_, String>("spender")?.parse().map_err(|_| strange("spender"))?;
            found.push((spender, Kept { record: limit_record(row)?, version: Version::ONLY }));
        }
        Ok(found)
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KeyStore for SqliteStore {
    fn add(&self, record: &KeyRecord) -> Result<(), IdentityError> {
        let millis = |at: Option<Timestamp>| at.map(|at| at.millis().cast_signed());
        self.connection().execute(
            "INSERT INTO api_keys VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
            params![
                record.id.as_str(),
                record.hash.0,
                record.hint,
                record.account.as_str(),
                record.name.as_ref().map(|name| name.as_str().to_owned()),
                record.scopes.names().join(" "),
                units(record.daily_limit),
                units(record.total_limit),
                record.made_at.millis().cast_signed(),
                millis(record.expires_at),
                millis(record.revoked_at),
            ],
        )?;
        Ok(())
    }

    fn revoke(&self, id: Label) -> Result<Option<KeyRecord>, IdentityError> {
        let connection = self.connection();
        connection.execute(
            "UPDATE api_keys SET revoked_at = ?2 WHERE id = ?1 AND revoked_at IS NULL",
            params![id.as_str(), now().millis().cast_signed()],
        )?;
        let mut statement = connection.prepare("SELECT * FROM api_keys WHERE id = ?1")?;
        let mut rows = statement.query([id.as_str()])?;
        rows.next()?.map(record).transpose()
    }

    /// Only the server of the data directory asks.
    fn claim_first_key(&self) -> Result<bool, IdentityError> {
        let count = "SELECT count(*) FROM told WHERE what = ?1";
        Ok(self.connection().query_row(count, [FIRST_KEY], |row| row.get::<_, i64>(0))? == 0)
    }

    fn tell_first_key(&self) -> Result<(), IdentityError> {
        self.connection().execute("INSERT OR IGNORE INTO told VALUES (?1)", [FIRST_KEY])?;
        Ok(())
    }
}

impl LimitStore for SqliteStore {
    fn change(&self, spender: Spender, new: &NewLimit) -> Result<Kept, IdentityError> {
        let connection = self.connection();
        let mut statement = connection.prepare("SELECT * FROM limits WHERE spender = ?1")?;
        let mut rows = statement.query([spender.to_string()])?;
        let known = rows.next()?.map(limit_record).transpose()?;
        let record = new.applied_to(known, now());
        connection.execute(
            "INSERT OR REPLACE INTO limits VALUES (?1, ?2, ?3, ?4, ?5)",
            params![
                spender.to_string(),
                units(record.per_day),
                units(record.in_total),
                record.within.map(|name| name.to_string()),
                record.set_at.millis().cast_signed(),
            ],
        )?;
        Ok(Kept { record, version: Version::ONLY })
    }
}

fn limit_record(row: &Row<'_>) -> Result<LimitRecord, IdentityError> {
    let within = row.get::<_, Option<String>>("within")?;
    Ok(LimitRecord {
        per_day: limit(row, "daily_limit_units")?,
        in_total: limit(row, "total_limit_units")?,
        within: within.map(|name| name.parse()).transpose().map_err(|_| strange("within"))?,
        set_at: Timestamp::from_millis(row.get::<_, i64>("set_at")?.cast_unsigned()),
    })
}

fn units(limit: Option<CreditUnit>) -> Option<i64> {
    limit.map(|limit| limit.units().cast_signed())
}

fn limit(row: &Row<'_>, column: &str) -> Result<Option<CreditUnit>, IdentityError> {
    let units = row.get::<_, Option<i64>>(column)?;
    units.map(|units| CreditUnit::new(units.cast_unsigned()).map_err(|_| strange(column))).transpose()
}

fn strange(column: &str) -> IdentityError {
    IdentityError::Store(format!("something stored has a strange {column}"))
}

fn record(row: &Row<'_>) -> Result<KeyRecord, IdentityError> {
    let text = |column: &str| row.get::<_, String>(column);
    let moment = |column: &str| -> Result<Option<Timestamp>, IdentityError> {
        Ok(row.get::<_, Option<i64>>(column)?.map(|millis| Timestamp::from_millis(millis.cast_unsigned())))
    };
    let name = row.get::<_, Option<String>>("name")?;
    let scopes = text("scopes")?;
    Ok(KeyRecord {
        id: text("id")?.parse().map_err(|_| strange("id"))?,
        hash: KeyHash(row.get("hash")?),
        hint: text("hint")?,
        account: text("account")?.parse().map_err(|_| strange("account"))?,
        name: name.map(|name| name.parse()).transpose().map_err(|_| strange("name"))?,
        scopes: Scopes::of(&scopes.split(' ').collect::<Vec<_>>())?,
        daily_limit: limit(row, "daily_limit_units")?,
        total_limit: limit(row, "total_limit_units")?,
        made_at: moment("made_at")?.ok_or_else(|| strange("made_at"))?,
        expires_at: moment("expires_at")?,
        revoked_at: moment("revoked_at")?,
    })
}
