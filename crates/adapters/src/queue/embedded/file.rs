//! The file `DATA/queue.db`: every item, derived from the steps in the journal. Those that have ended are read from here.
//!
//! # Invariants
//! - It is as the steps up to `filed` left it, all of it or nothing: items, that number and the place in the journal are written
//!   together. No frame before that place has a later step.
//! - It is never ahead of what is durable, and never asked while it is made anew.
//! - A row whose checksum does not hold is damage, not an item.

use super::record::{Step, decode_item, encode_item};
use crate::sqlite;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use holdfast_domain::queue::{Item, Stage, State};
use holdfast_domain::{EscrowId, ItemId, PayeeId, Timestamp};
use holdfast_engine::Corrupt;
use holdfast_journal::{End, GENESIS, Hash, JournalId, Location, failpoint};
use rusqlite::types::Type;
use rusqlite::{Connection, ErrorCode, OptionalExtension, Row, Transaction, params};
use std::path::{Path, PathBuf};

const SCHEMA: &str = include_str!("schema.sql");
/// What `PRAGMA user_version` must say; another number means another schema.
const SCHEMA_VERSION: i64 = 4;
/// The memory of so many items is kept from one filing to the next: more than a busy queue has in one.
const TAKEN_KEPT: usize = 8_192;
/// The bytes of a row's checksum.
const CHECKSUM_BYTES: usize = 8;

/// The file of the items, below the data directory.
#[must_use]
pub fn path(data: &Path) -> PathBuf {
    data.join("queue.db")
}

/// Deletes the file. It is made anew from the journal.
pub(super) fn remove(data: &Path) -> std::io::Result<()> {
    sqlite::remove(&path(data))
}

/// How far the file has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Filed {
    /// The last step that is in it; 0 if none.
    pub(super) through: u64,
    /// Where later ones are looked for.
    pub(super) location: Location,
    /// The hash of the frame before that place.
    pub(super) chain: Hash,
}

impl Filed {
    const NOTHING: Self = Self { through: 0, location: Location::START, chain: GENESIS };

    /// All steps up to `through`, which is the last before the place `end`.
    pub(super) const fn to(through: u64, end: End) -> Self {
        Self { through, location: end.location, chain: end.chain }
    }
}

/// Why steps could not be filed.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotApplied {
    /// The file could not be written or read.
    #[error("queue.db: {0}")]
    File(#[from] rusqlite::Error),
    /// A step does not follow from those before it.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
}

/// The writing end.
pub(super) struct Writer {
    connection: Connection,
    pub(super) filed: Filed,
    /// Items as they are after the steps that were taken since, each with the step that put it. The memory is kept from one
    /// filing to the next: some megabytes that the system gives and takes back each time are cleared each time.
    taken: HashMap<ItemId, (u64, Item)>,
}

impl Writer {
    /// Opens the file of `journal`; makes it anew where it is damaged, or of another version or journal.
    pub(super) fn open(data: &Path, journal: JournalId) -> Result<Self, NotApplied> {
        match existing(data, journal) {
            Ok(Some(writer)) => Ok(writer),
            Ok(None) | Err(_) => {
                let unusable = |error: std::io::Error| rusqlite::Error::ToSqlConversionFailure(Box::new(error));
                remove(data).map_err(unusable)?;
                Ok(create(data, journal)?)
            }
        }
    }

    /// Takes a step, which follows what it has: it is in the file after the next [`Writer::apply`].
    pub(super) fn take(&mut self, number: u64, step: Step) -> Result<(), NotApplied> {
        let corrupt = Corrupt { offset: number, what: "it does not follow from the item as it was" };
        match self.taken.entry(step.id()) {
            Entry::Occupied(mut taken) => {
                let (_, item) = taken.get_mut();
                *item = step.after(Some(item)).ok_or(corrupt)?;
            }
            Entry::Vacant(place) => {
                let (seq, before) = match &step {
                    // Whoever decided it has looked; and an id that is there twice is refused by the file.
                    Step::Put(_) => (number, None),
                    Step::Start { id, .. } | Step::End { id, .. } => {
                        found(&self.connection, *id)?.map_or((number, None), |(seq, item)| (seq, Some(item)))
                    }
                };
                place.insert((seq, step.after(before.as_ref()).ok_or(corrupt)?));
            }
        }
        Ok(())
    }

    /// Writes what it has taken, and remembers that it has come to `filed`: all of it, or nothing.
    pub(super) fn apply(&mut self, filed: Filed) -> Result<(), NotApplied> {
        let transaction = self.connection.transaction()?;
        let mut changed: Vec<(u64, &Item)> = self.taken.values().map(|(seq, item)| (*seq, item)).collect();
        changed.sort_unstable_by_key(|(seq, _)| *seq);
        let (known, new) = changed.split_at(changed.partition_point(|(seq, _)| *seq <= self.filed.through));
        change(&transaction, known)?;
        add(&transaction, new)?;
        let Filed { through, location, chain } = filed;
        let progress = "UPDATE filed SET through = ?1, location = ?2, chain = ?3";
        let packed = location.pack().cast_signed();
        transaction.prepare_cached(progress)?.execute(params![through.cast_signed(), packed, chain.0])?;
        failpoint::pass("queue.before_file");
        transaction.commit()?;
        self.taken.clear();
        self.taken.shrink_to(TAKEN_KEPT);
        self.filed = filed;
        Ok(())
    }

    /// Forgets what it has taken: it is read again.
    pub(super) fn forget(&mut self) {
        self.taken.clear();
    }

    /// Shows every id that there is. What is none has been damaged, and nobody would find it by its id either.
    pub(super) fn each_id(&self, mut show: impl FnMut(ItemId)) -> rusqlite::Result<()> {
        let mut ids = self.connection.prepare("SELECT id FROM items")?;
        let mut rows = ids.query([])?;
        while let Some(row) = rows.next()? {
            row.get_ref(0)?.as_str()?.parse().ok().into_iter().for_each(&mut show);
        }
        Ok(())
    }

    /// Every item that has not ended.
    pub(super) fn open_items(&self) -> rusqlite::Result<Vec<Item>> {
        let query = "SELECT item FROM items WHERE ended_at IS NULL ORDER BY seq";
        self.connection.prepare(query)?.query_map([], |row| item(row, 0))?.collect()
    }
}

/// Adds items that the file has not got.
fn add(transaction: &Transaction<'_>, items: &[(u64, &Item)]) -> rusqlite::Result<()> {
    let insert =
        "INSERT INTO items (seq, id, escrow, payee, state, ended_at, item) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
    let mut insert = transaction.prepare_cached(insert)?;
    for (seq, item) in items {
        let intake = &item.intake;
        insert.execute(params![
            seq.cast_signed(),
            intake.id.as_str(),
            hash_of(intake.escrow),
            intake.payee.as_str(),
            item.state().name(),
            ended_at(item).map(|at| at.millis().cast_signed()),
            sealed(item)
        ])?;
    }
    Ok(())
}

/// Writes items that it has as they are now.
fn change(transaction: &Transaction<'_>, items: &[(u64, &Item)]) -> rusqlite::Result<()> {
    let update = "UPDATE items SET state = ?2, ended_at = ?3, item = ?4 WHERE seq = ?1";
    let mut update = transaction.prepare_cached(update)?;
    for (seq, item) in items {
        let ended_at = ended_at(item).map(|at| at.millis().cast_signed());
        update.execute(params![seq.cast_signed(), item.state().name(), ended_at, sealed(item)])?;
    }
    Ok(())
}

/// What an escrow is looked for by.
fn hash_of(escrow: EscrowId) -> i64 {
    let hash = blake3::hash(escrow.as_bytes());
    i64::from_le_bytes(*hash.as_bytes().first_chunk().expect("a hash has 32 bytes"))
}

/// When an item ended, if it has.
pub(super) const fn ended_at(item: &Item) -> Option<Timestamp> {
    match item.stage {
        Stage::Queued { .. } | Stage::InProgress { .. } => None,
        Stage::Ended(end) => Some(end.ended_at),
    }
}

fn sealed(item: &Item) -> Vec<u8> {
    let mut bytes = encode_item(item);
    let checksum = checksum(&bytes);
    bytes.extend(checksum);
    bytes
}

fn checksum(bytes: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let hash = blake3::hash(bytes);
    *hash.as_bytes().first_chunk().expect("a hash has 32 bytes")
}

fn item(row: &Row<'_>, column: usize) -> rusqlite::Result<Item> {
    let damaged = || {
        let error = "a row's checksum does not hold".into();
        rusqlite::Error::FromSqlConversionFailure(column, Type::Blob, error)
    };
    let stored = row.get_ref(column)?.as_blob()?;
    let (bytes, sum) = stored.split_last_chunk::<CHECKSUM_BYTES>().ok_or_else(damaged)?;
    decode_item(bytes).filter(|_| checksum(bytes) == *sum).ok_or_else(damaged)
}

fn found(connection: &Connection, id: ItemId) -> rusqlite::Result<Option<(u64, Item)>> {
    let query = "SELECT seq, item FROM items WHERE id = ?1";
    let read = |row: &Row<'_>| Ok((row.get::<_, i64>(0)?.cast_unsigned(), item(row, 1)?));
    connection.prepare_cached(query)?.query_row([id.as_str()], read).optional()
}

fn existing(data: &Path, journal: JournalId) -> rusqlite::Result<Option<Writer>> {
    if !path(data).exists() {
        return Ok(None);
    }
    let connection = connect(data)?;
    let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let sound: String = connection.pragma_query_value(None, "quick_check", |row| row.get(0))?;
    if version != SCHEMA_VERSION || sound != "ok" {
        return Ok(None);
    }
    let read = |row: &Row<'_>| {
        let location = Location::unpack(row.get::<_, i64>(1)?.cast_unsigned());
        Ok(Filed { through: row.get::<_, i64>(0)?.cast_unsigned(), location, chain: Hash(row.get(2)?) })
    };
    let query = "SELECT through, location, chain FROM filed WHERE journal = ?1";
    let filed = connection.query_row(query, [journal.0], read).optional()?;
    Ok(filed.map(|filed| Writer { connection, filed, taken: HashMap::new() }))
}

fn create(data: &Path, journal: JournalId) -> rusqlite::Result<Writer> {
    let mut connection = connect(data)?;
    let filed = Filed::NOTHING;
    let transaction = connection.transaction()?;
    transaction.execute_batch(SCHEMA)?;
    let row = params![journal.0, 0, filed.location.pack().cast_signed(), filed.chain.0];
    transaction.execute("INSERT INTO filed VALUES (1, ?1, ?2, ?3, ?4)", row)?;
    transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
    transaction.commit()?;
    Ok(Writer { connection, filed, taken: HashMap::new() })
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

/// The reading end.
pub(super) struct Reader(Connection);

impl Reader {
    pub(super) fn open(data: &Path) -> rusqlite::Result<Self> {
        let connection = connect(data)?;
        connection.pragma_update(None, "query_only", true)?;
        Ok(Self(connection))
    }

    pub(super) fn item(&self, id: ItemId) -> rusqlite::Result<Option<Item>> {
        Ok(found(&self.0, id)?.map(|(_, item)| item))
    }

    /// Those that ended so, the last first, after the one that ended at that moment with that name.
    pub(super) fn ended(
        &self,
        state: State,
        payee: Option<PayeeId>,
        after: Option<(Timestamp, ItemId)>,
        at_most: usize,
    ) -> rusqlite::Result<Vec<Item>> {
        let of_payee = if payee.is_some() { "payee = ?5 AND" } else { "?5 IS NULL AND" };
        let query = format!(
            "SELECT item FROM items WHERE {of_payee} state = ?1 AND ended_at IS NOT NULL \
             AND ended_at <= ?2 AND (ended_at < ?2 OR id > ?3) ORDER BY ended_at DESC, id LIMIT ?4"
        );
        let (at, id) = after.map_or((i64::MAX, String::new()), |(at, id)| (at.millis().cast_signed(), id.to_string()));
        let limit = i64::try_from(at_most).unwrap_or(i64::MAX);
        let payee = payee.map(|payee| payee.to_string());
        let mut found = self.0.prepare_cached(&query)?;
        found.query_map(params![state.name(), at, id, limit, payee], |row| item(row, 0))?.collect()
    }

    /// Whether an item has or had this escrow.
    pub(super) fn is_linked(&self, escrow: EscrowId) -> rusqlite::Result<bool> {
        let mut with_its_hash = self.0.prepare_cached("SELECT item FROM items WHERE escrow = ?1")?;
        let mut items = with_its_hash.query_map([hash_of(escrow)], |row| item(row, 0))?;
        items.try_fold(false, |is_linked, item| Ok(is_linked || item?.intake.escrow == escrow))
    }
}

/// Whether it is the file that is at fault, and not the moment.
pub(super) fn is_damage(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error_code();
    matches!(code, Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
        || matches!(error, rusqlite::Error::FromSqlConversionFailure(..) | rusqlite::Error::InvalidColumnType(..))
}
