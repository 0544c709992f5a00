//! What callers say about their escrows: a JSON object each, beside the books, because no rule looks at it.
//!
//! # Invariants
//! - What was kept is durable: it is written before its escrow is held.
//! - Nothing that waits for a disk does so on a thread that others need.

use crate::postgres::{Database, DatabaseError, Limits, Pool};
use holdfast_domain::EscrowId;
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::HashMap;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio_postgres::types::Type;

/// The longest that is kept, in bytes.
pub const METADATA_BYTES_MAX: usize = 4_096;

/// The file in a data directory.
const FILE: &str = "wallet.db";

const SCHEMA: &str = "
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = FULL;
    CREATE TABLE IF NOT EXISTS escrow_metadata (escrow TEXT PRIMARY KEY, metadata TEXT NOT NULL) STRICT, WITHOUT ROWID;
";

/// Why what is said about an escrow cannot be kept or found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("what callers say about their escrows cannot be kept or read: {0}")]
pub struct MetadataFailed(String);

impl MetadataFailed {
    /// The stable code of this error.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        "SERVICE_METADATA_FAILED"
    }
}

impl From<rusqlite::Error> for MetadataFailed {
    fn from(error: rusqlite::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<DatabaseError> for MetadataFailed {
    fn from(error: DatabaseError) -> Self {
        Self(error.to_string())
    }
}

/// What becomes of what is kept already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfThere {
    /// It stays.
    Stays,
    /// The new one takes its place.
    IsReplaced,
}

/// Whether something was written.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// It was.
    Written,
    /// Something was there, and stays.
    WasThere,
}

/// Where it is kept.
#[derive(Clone)]
pub enum EscrowMetadata {
    /// In a file of the data directory.
    File(Arc<InFile>),
    /// In the database that has the books.
    Postgres(Arc<Pool>),
}

/// A file of SQLite.
pub struct InFile {
    connection: Mutex<Connection>,
    /// Whether anything was ever kept: most programs say nothing about their escrows, and then no file is asked.
    has_any: AtomicBool,
}

impl EscrowMetadata {
    /// The file in a data directory, which is made if it is not there, for its owner alone.
    ///
    /// # Errors
    /// If it cannot be made or read.
    pub fn in_directory(data: &Path) -> Result<Self, MetadataFailed> {
        let path = data.join(FILE);
        let made = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        made.map_err(|error| MetadataFailed(format!("{}: {error}", path.display())))?;
        let connection = Connection::open(path)?;
        connection.execute_batch(SCHEMA)?;
        let has_any: bool =
            connection.query_row("SELECT EXISTS (SELECT 1 FROM escrow_metadata)", [], |row| row.get(0))?;
        Ok(Self::File(Arc::new(InFile { connection: Mutex::new(connection), has_any: AtomicBool::new(has_any) })))
    }

    /// The table beside the books in a database.
    #[must_use]
    pub fn in_database(database: Database) -> Self {
        Self::Postgres(Arc::new(Pool::new(database, Limits::USUAL)))
    }

    /// Keeps what is said of an escrow. It is durable when this answers.
    ///
    /// # Errors
    /// If it cannot be kept, or nobody knows.
    pub async fn put(&self, escrow: EscrowId, metadata: Box<str>, if_there: IfThere) -> Result<Kept, MetadataFailed> {
        let written = match self {
            Self::File(file) => {
                let file = Arc::clone(file);
                blocking(move || file.put(escrow, &metadata, if_there)).await?
            }
            // In a box, so that what is asked of a file need not keep room for it.
            Self::Postgres(pool) => Box::pin(put_in_database(pool, escrow, &metadata, if_there)).await?,
        };
        Ok(if written { Kept::Written } else { Kept::WasThere })
    }

    /// What is kept of each of these, if anything.
    ///
    /// # Errors
    /// If it cannot be read.
    pub async fn find(&self, escrows: Vec<EscrowId>) -> Result<HashMap<EscrowId, Box<str>>, MetadataFailed> {
        match self {
            Self::File(file) if !file.has_any.load(Ordering::Acquire) => Ok(HashMap::new()),
            Self::File(file) => {
                let file = Arc::clone(file);
                blocking(move || file.find(&escrows)).await
            }
            Self::Postgres(pool) => Box::pin(find_in_database(pool, &escrows)).await,
        }
    }
}

async fn put_in_database(
    pool: &Pool,
    escrow: EscrowId,
    metadata: &str,
    if_there: IfThere,
) -> Result<bool, MetadataFailed> {
    let instead = if_there == IfThere::IsReplaced;
    let put = "SELECT holdfast.ledger_put_metadata($1, $2, $3)";
    let values: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 3] =
        [(&escrow.as_str(), Type::TEXT), (&metadata, Type::TEXT), (&instead, Type::BOOL)];
    let rows = pool.lend().await?.query(put, &values).await?;
    Ok(rows.first().is_some_and(|row| row.try_get(0).unwrap_or(false)))
}

async fn find_in_database(pool: &Pool, escrows: &[EscrowId]) -> Result<HashMap<EscrowId, Box<str>>, MetadataFailed> {
    let names: Vec<&str> = escrows.iter().map(EscrowId::as_str).collect();
    let find = "SELECT escrow, metadata FROM holdfast.ledger_escrow_metadata WHERE escrow = ANY ($1)";
    let rows = pool.lend().await?.query(find, &[(&names, Type::TEXT_ARRAY)]).await?;
    let strange = || MetadataFailed("its rows are not understood".to_owned());
    let one = |row: &tokio_postgres::Row| {
        let (escrow, metadata): (&str, &str) = (row.try_get(0).ok()?, row.try_get(1).ok()?);
        Some((escrow.parse().ok()?, Box::from(metadata)))
    };
    rows.iter().map(|row| one(row).ok_or_else(strange)).collect()
}

impl InFile {
    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, escrow: EscrowId, metadata: &str, if_there: IfThere) -> Result<bool, MetadataFailed> {
        let put = match if_there {
            IfThere::Stays => "INSERT OR IGNORE INTO escrow_metadata VALUES (?1, ?2)",
            IfThere::IsReplaced => "INSERT OR REPLACE INTO escrow_metadata VALUES (?1, ?2)",
        };
        self.has_any.store(true, Ordering::Release);
        let connection = self.connection();
        let written = connection.prepare_cached(put)?.execute(params![escrow.as_str(), metadata])?;
        Ok(written > 0)
    }

    fn find(&self, escrows: &[EscrowId]) -> Result<HashMap<EscrowId, Box<str>>, MetadataFailed> {
        let connection = self.connection();
        let mut statement = connection.prepare_cached("SELECT metadata FROM escrow_metadata WHERE escrow = ?1")?;
        let mut found = HashMap::new();
        for escrow in escrows {
            let metadata = statement.query_row([escrow.as_str()], |row| row.get::<_, String>(0)).optional()?;
            found.extend(metadata.map(|metadata| (*escrow, metadata.into_boxed_str())));
        }
        Ok(found)
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, MetadataFailed> + Send + 'static,
) -> Result<T, MetadataFailed> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(MetadataFailed("the program is ending".to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn escrow(name: &str) -> EscrowId {
        name.parse().unwrap()
    }

    #[tokio::test]
    async fn the_first_stays_until_it_is_replaced_and_a_new_process_finds_it() {
        let data = tempfile::tempdir().unwrap();
        let kept = EscrowMetadata::in_directory(data.path()).unwrap();
        assert_eq!(kept.find(vec![escrow("a")]).await.unwrap(), HashMap::new());
        let put = async |text: &str, if_there| kept.put(escrow("a"), text.into(), if_there).await.unwrap();
        assert_eq!(put("{}", IfThere::Stays).await, Kept::Written);
        assert_eq!(put("{\"b\":1}", IfThere::Stays).await, Kept::WasThere);
        assert_eq!(
            kept.find(vec![escrow("a"), escrow("b")]).await.unwrap(),
            HashMap::from([(escrow("a"), "{}".into())])
        );
        assert_eq!(put("{\"b\":1}", IfThere::IsReplaced).await, Kept::Written);
        drop(kept);
        let again = EscrowMetadata::in_directory(data.path()).unwrap();
        assert_eq!(&*again.find(vec![escrow("a")]).await.unwrap()[&escrow("a")], "{\"b\":1}");
    }
}
