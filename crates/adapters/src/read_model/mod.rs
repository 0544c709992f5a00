//! The read model in SQLite: entries and histories for people and for SQL, derived from the journal's tail.
//!
//! It applies entries in batches, stores how far it has come in the same transaction, and is thrown away and made anew when
//! it is damaged, of another version, or of another journal. There is no index by account: each entry points to its
//! owner's entry before it, so a history is a walk, and writing is appending.

mod query;

pub use query::{AsOf, HistoryRow, Lookup, QueryError};

use holdfast_domain::{Account, Change, Event, Kind};
use holdfast_engine::{Applied, Located, Projection, ProjectionFailed, Record};
use holdfast_journal::{JournalId, Location, failpoint};
use rusqlite::{Connection, OptionalExtension, params};
use std::path::{Path, PathBuf};

const SCHEMA: &str = include_str!("schema.sql");
/// What `PRAGMA user_version` must say; another number means another schema.
const SCHEMA_VERSION: i64 = 1;
/// Every so many entries of an account holder get a milestone.
const MILESTONE_EVERY: u64 = 64;

/// The writing end of the read model.
pub struct ReadModel {
    connection: Connection,
    applied: Applied,
    revenue: i64,
    treasury: i64,
}

/// The file of the read model, below the data directory.
#[must_use]
pub fn path(data: &Path) -> PathBuf {
    data.join("read-model.sqlite")
}

/// Deletes the read model.
pub fn remove(data: &Path) -> std::io::Result<()> {
    for suffix in ["", "-wal", "-shm"] {
        let mut file = path(data).into_os_string();
        file.push(suffix);
        match std::fs::remove_file(file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

impl ReadModel {
    /// Opens the read model of `journal`, whose last entry is `last`; makes it anew where it does not fit.
    pub fn open(data: &Path, journal: JournalId, last: u64) -> Result<Self, ProjectionFailed> {
        match Self::open_existing(data, journal) {
            Ok(Some(model)) if model.applied.through <= last => Ok(model),
            Ok(_) | Err(_) => {
                remove(data).map_err(|error| ProjectionFailed(error.to_string()))?;
                Self::create(data, journal).map_err(failed)
            }
        }
    }

    fn open_existing(data: &Path, journal: JournalId) -> rusqlite::Result<Option<Self>> {
        if !path(data).exists() {
            return Ok(None);
        }
        let connection = connect(data)?;
        let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
        if version != SCHEMA_VERSION {
            return Ok(None);
        }
        let applied = "SELECT through, location FROM applied WHERE journal = ?1";
        let applied = connection
            .query_row(applied, [journal.0], |row| {
                let location = Location::unpack(row.get::<_, i64>(1)?.cast_unsigned());
                Ok(Applied { through: row.get::<_, i64>(0)?.cast_unsigned(), location })
            })
            .optional()?;
        let Some(applied) = applied else { return Ok(None) };
        let sums = r#"SELECT revenue, treasury FROM system_balances ORDER BY "offset" DESC LIMIT 1"#;
        let sums = connection.query_row(sums, [], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
        let (revenue, treasury) = sums.unwrap_or((0, 0));
        Ok(Some(Self { connection, applied, revenue, treasury }))
    }

    fn create(data: &Path, journal: JournalId) -> rusqlite::Result<Self> {
        let mut connection = connect(data)?;
        let applied = Applied::NOTHING;
        let transaction = connection.transaction()?;
        transaction.execute_batch(SCHEMA)?;
        for kind in KINDS {
            transaction.execute("INSERT INTO kinds VALUES (?1, ?2)", params![number_of(kind), kind.name()])?;
        }
        let row = params![journal.0, 0, applied.location.pack().cast_signed()];
        transaction.execute("INSERT INTO applied VALUES (1, ?1, ?2, ?3)", row)?;
        transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
        transaction.commit()?;
        Ok(Self { connection, applied, revenue: 0, treasury: 0 })
    }

    fn insert(&mut self, records: &[Located], applied: Applied) -> rusqlite::Result<()> {
        let (mut revenue, mut treasury) = (self.revenue, self.treasury);
        let transaction = self.connection.transaction()?;
        {
            let mut insert = transaction.prepare_cached(INSERT_ENTRY)?;
            let mut milestone = transaction.prepare_cached("INSERT INTO milestones VALUES (?1, ?2)")?;
            for Located { record, .. } in records {
                let changes = Changes::of(record);
                revenue += changes.revenue;
                treasury += changes.treasury;
                insert_entry(&mut insert, record, &changes)?;
                if record.owner.available.number.is_multiple_of(MILESTONE_EVERY) {
                    milestone.execute(params![user(record), record.offset.cast_signed()])?;
                }
                if let Some(payee) = record.payee.filter(|payee| payee.number.is_multiple_of(MILESTONE_EVERY)) {
                    let holder = record.event.payee().map(|id| format!("payee:{id}"));
                    debug_assert!(payee.number > 0);
                    milestone.execute(params![holder, record.offset.cast_signed()])?;
                }
            }
        }
        let through = applied.through.cast_signed();
        transaction.execute("INSERT INTO system_balances VALUES (?1, ?2, ?3)", params![through, revenue, treasury])?;
        let location = applied.location.pack().cast_signed();
        transaction.execute("UPDATE applied SET through = ?1, location = ?2", params![through, location])?;
        failpoint::pass("read_model.before_commit");
        transaction.commit()?;
        failpoint::pass("read_model.after_commit");
        (self.revenue, self.treasury, self.applied) = (revenue, treasury, applied);
        Ok(())
    }
}

impl Projection for ReadModel {
    fn applied(&self) -> Applied {
        self.applied
    }

    fn apply(&mut self, records: &[Located], applied: Applied) -> Result<(), ProjectionFailed> {
        self.insert(records, applied).map_err(failed)
    }
}

fn failed(error: rusqlite::Error) -> ProjectionFailed {
    ProjectionFailed(error.to_string())
}

fn connect(data: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path(data))?;
    // NORMAL cannot corrupt a write-ahead log, and may lose the newest transactions: they are read again from the journal.
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.pragma_update(None, "wal_autocheckpoint", 8_192)?;
    connection.pragma_update(None, "cache_size", -16_384)?;
    connection.busy_timeout(std::time::Duration::from_secs(5))?;
    Ok(connection)
}

const INSERT_ENTRY: &str =
    "INSERT INTO entries VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)";

/// What an entry changes, by the column that it goes to.
struct Changes {
    available: i64,
    held: i64,
    escrow: i64,
    payee: i64,
    revenue: i64,
    treasury: i64,
}

impl Changes {
    fn of(record: &Record) -> Self {
        let mut changes = Self { available: 0, held: 0, escrow: 0, payee: 0, revenue: 0, treasury: 0 };
        let Ok(postings) = record.event.postings() else { return changes };
        for posting in postings.iter() {
            let column = match posting.account {
                Account::Available(_) => &mut changes.available,
                Account::Held(_) => &mut changes.held,
                Account::Escrow(_) => &mut changes.escrow,
                Account::Payee(_) => &mut changes.payee,
                Account::Revenue => &mut changes.revenue,
                Account::Treasury => &mut changes.treasury,
            };
            *column = Change::units(posting.change);
        }
        changes
    }
}

fn insert_entry(insert: &mut rusqlite::Statement<'_>, record: &Record, changes: &Changes) -> rusqlite::Result<()> {
    let owner = record.event.owner();
    let key = record.key.as_ref().map_or("", |key| key.as_str());
    let correlation = match &record.event {
        Event::Minted(_) => key,
        Event::Charge { id, .. } => id.as_str(),
        Event::Escrow { id, .. } => id.as_str(),
    };
    let payee = record.event.payee();
    insert.execute(params![
        record.offset.cast_signed(),
        record.at.millis().cast_signed(),
        number_of(record.event.kind()),
        owner.as_str(),
        correlation,
        record.state.name(),
        record.actor.as_str(),
        changes.available,
        changes.held,
        changes.escrow,
        changes.payee,
        changes.revenue,
        changes.treasury,
        record.owner.available.balance.units().cast_signed(),
        record.owner.held.units().cast_signed(),
        record.owner.available.previous.cast_signed(),
        payee.as_ref().map(|payee| payee.as_str()),
        record.payee.map(|link| link.balance.units().cast_signed()),
        record.payee.map(|link| link.previous.cast_signed()),
    ])?;
    Ok(())
}

fn user(record: &Record) -> String {
    format!("user:{}", record.event.owner())
}

const KINDS: [Kind; 15] = [
    Kind::CreditMint,
    Kind::BillingReserve,
    Kind::BillingStart,
    Kind::BillingIncrease,
    Kind::BillingExtend,
    Kind::BillingCommit,
    Kind::BillingRelease,
    Kind::BillingAutoRelease,
    Kind::BillingVoid,
    Kind::BillingFinalizeAck,
    Kind::BillingFinalizeFail,
    Kind::EscrowHold,
    Kind::EscrowSettle,
    Kind::EscrowRefund,
    Kind::EscrowPartialSettle,
];

/// The number of a kind in the table `kinds`.
fn number_of(kind: Kind) -> i64 {
    KINDS.iter().zip(1..).find(|(each, _)| **each == kind).map_or(0, |(_, number)| number)
}
