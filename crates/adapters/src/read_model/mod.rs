//! The read model in SQLite: entries and histories for people and for SQL, derived from the journal's tail.
//!
//! It applies entries in batches, stores how far it has come in the same transaction, and is thrown away and made anew when
//! it is damaged, of another version, or of another journal. There is no index by account: each entry points to its
//! owner's entry before it, so a history is a walk, and writing is appending.

mod query;
mod summary;

pub use query::{AsOf, HistoryRow, Lookup, QueryError};
pub use summary::{TailRow, Window};

use crate::sqlite;
use holdfast_domain::{Change, Event, Kind, Place, charge, escrow};
use holdfast_engine::{Applied, LifeState, Located, Projection, ProjectionFailed, READ_MODEL, Record};
use holdfast_journal::{JournalId, Location, failpoint};
use rusqlite::{Connection, OptionalExtension, Statement, params};
use std::path::{Path, PathBuf};

const SCHEMA: &str = include_str!("schema.sql");
/// What `PRAGMA user_version` must say; another number means another schema.
const SCHEMA_VERSION: i64 = 2;
/// How much of the file is kept in memory. Writing is appending, and needs little more than what one transaction writes.
const CACHE_KIB: i64 = 2_048;
/// A rebuild has milestones of every account to write, all over the file, and the memory to itself.
const REBUILD_CACHE_KIB: i64 = 16_384;
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
    sqlite::remove(&path(data))
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

    /// A new read model for applying a whole journal at once: nothing of it counts until [`ReadModel::finish`], so nothing
    /// need be kept safe on the way.
    pub fn rebuild(data: &Path, journal: JournalId) -> Result<Self, ProjectionFailed> {
        remove(data).map_err(|error| ProjectionFailed(error.to_string()))?;
        let unsafe_and_fast = || {
            let model = Self::create(data, journal)?;
            model.connection.pragma_update(None, "user_version", 0)?;
            model.connection.pragma_update(None, "journal_mode", "OFF")?;
            model.connection.pragma_update(None, "synchronous", "OFF")?;
            model.connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
            model.connection.pragma_update(None, "cache_size", -REBUILD_CACHE_KIB)?;
            Ok(model)
        };
        unsafe_and_fast().map_err(failed)
    }

    /// Makes a rebuilt read model count.
    pub fn finish(self, data: &Path) -> Result<(), ProjectionFailed> {
        drop(self.connection);
        let file = std::fs::File::open(path(data)).and_then(|file| file.sync_all());
        file.map_err(|error| ProjectionFailed(error.to_string()))?;
        let connection = connect(data).map_err(failed)?;
        connection.pragma_update(None, "user_version", SCHEMA_VERSION).map_err(failed)
    }

    fn create(data: &Path, journal: JournalId) -> rusqlite::Result<Self> {
        let mut connection = connect(data)?;
        let applied = Applied::NOTHING;
        let transaction = connection.transaction()?;
        transaction.execute_batch(SCHEMA)?;
        for kind in KINDS {
            transaction.execute("INSERT INTO kinds VALUES (?1, ?2)", params![number_of(kind), kind.name()])?;
        }
        for state in STATES {
            transaction.execute("INSERT INTO states VALUES (?1, ?2)", params![number_of_state(state), state.name()])?;
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
            let mut insert_many = transaction.prepare_cached(&insert_entries(ROWS_AT_ONCE))?;
            let mut insert_one = transaction.prepare_cached(&insert_entries(1))?;
            let mut milestone = transaction.prepare_cached("INSERT INTO milestones VALUES (?1, ?2)")?;
            for rows in records.chunks(ROWS_AT_ONCE) {
                let insert = if rows.len() == ROWS_AT_ONCE { &mut insert_many } else { &mut insert_one };
                for (row, Located { record, .. }) in rows.iter().enumerate() {
                    let changes = Changes::of(record);
                    revenue += changes.revenue;
                    treasury += changes.treasury;
                    let row = if rows.len() == ROWS_AT_ONCE { row } else { 0 };
                    bind_entry(insert, row, record, &changes)?;
                    if rows.len() < ROWS_AT_ONCE {
                        insert.raw_execute()?;
                    }
                }
                if rows.len() == ROWS_AT_ONCE {
                    insert.raw_execute()?;
                }
            }
            let mut further = transaction.prepare_cached("INSERT INTO further VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)")?;
            for Located { record, .. } in records {
                insert_further(&mut further, record)?;
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
        let (through, location) = (applied.through.cast_signed(), applied.location.pack().cast_signed());
        let balances = "INSERT INTO system_balances VALUES (?1, ?2, ?3)";
        transaction.prepare_cached(balances)?.execute(params![through, revenue, treasury])?;
        let moved_on = "UPDATE applied SET through = ?1, location = ?2";
        transaction.prepare_cached(moved_on)?.execute(params![through, location])?;
        failpoint::pass("read_model.before_commit");
        transaction.commit()?;
        failpoint::pass("read_model.after_commit");
        (self.revenue, self.treasury, self.applied) = (revenue, treasury, applied);
        Ok(())
    }
}

impl Projection for ReadModel {
    fn name(&self) -> &'static str {
        READ_MODEL
    }

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
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    connection.busy_timeout(std::time::Duration::from_secs(5))?;
    Ok(connection)
}

/// How many rows one statement inserts: a statement costs as much as several rows.
const ROWS_AT_ONCE: usize = 16;
const COLUMNS: usize = 13;

/// The statement that inserts `rows` entries.
fn insert_entries(rows: usize) -> String {
    let row = format!("({})", vec!["?"; COLUMNS].join(", "));
    format!("INSERT INTO entries VALUES {}", vec![row; rows].join(", "))
}

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
            let column = match posting.place {
                Place::Available => &mut changes.available,
                Place::Held => &mut changes.held,
                Place::Escrow => &mut changes.escrow,
                Place::Payee => &mut changes.payee,
                Place::Revenue => &mut changes.revenue,
                Place::Treasury => &mut changes.treasury,
            };
            *column = Change::units(posting.change);
        }
        changes
    }
}

/// Binds an entry as the statement's row number `row`.
fn bind_entry(insert: &mut Statement<'_>, row: usize, record: &Record, changes: &Changes) -> rusqlite::Result<()> {
    let owner = record.event.owner();
    let key = record.key.as_ref().map_or("", |key| key.as_str());
    let correlation = match &record.event {
        Event::Minted(_) => key,
        Event::Charge { id, .. } => id.as_str(),
        Event::Escrow { id, .. } => id.as_str(),
    };
    let mut column = row * COLUMNS;
    let mut next = || {
        column += 1;
        column
    };
    insert.raw_bind_parameter(next(), record.offset.cast_signed())?;
    insert.raw_bind_parameter(next(), record.at.millis().cast_signed())?;
    insert.raw_bind_parameter(next(), number_of(record.event.kind()))?;
    insert.raw_bind_parameter(next(), owner.as_str())?;
    insert.raw_bind_parameter(next(), correlation)?;
    insert.raw_bind_parameter(next(), number_of_state(record.state))?;
    insert.raw_bind_parameter(next(), record.actor.as_str())?;
    for change in [changes.available, changes.held, changes.revenue] {
        insert.raw_bind_parameter(next(), change)?;
    }
    insert.raw_bind_parameter(next(), record.owner.available.balance.units().cast_signed())?;
    insert.raw_bind_parameter(next(), record.owner.held.units().cast_signed())?;
    insert.raw_bind_parameter(next(), record.owner.available.previous.cast_signed())
}

/// Inserts what only few entries have: a change of an escrow, of a payee's balance, or of the treasury.
fn insert_further(insert: &mut Statement<'_>, record: &Record) -> rusqlite::Result<()> {
    if matches!(record.event, Event::Charge { .. }) {
        return Ok(());
    }
    let Changes { escrow, payee: paid, treasury, .. } = Changes::of(record);
    let payee = record.event.payee();
    insert.execute(params![
        record.offset.cast_signed(),
        escrow,
        paid,
        treasury,
        payee.as_ref().map(|payee| payee.as_str()),
        record.payee.map(|link| link.balance.units().cast_signed()),
        record.payee.map(|link| link.previous.cast_signed()),
    ])?;
    Ok(())
}

fn user(record: &Record) -> String {
    format!("user:{}", record.event.owner())
}

/// Every kind, in the order of the table `kinds`.
const KINDS: [Kind; 16] = [
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
    Kind::BillingProgress,
    Kind::EscrowHold,
    Kind::EscrowSettle,
    Kind::EscrowRefund,
    Kind::EscrowPartialSettle,
];

/// Every state, in the order of the table `states`.
const STATES: [LifeState; 12] = [
    LifeState::None,
    LifeState::Charge(charge::State::Held),
    LifeState::Charge(charge::State::Committed),
    LifeState::Charge(charge::State::Acked),
    LifeState::Charge(charge::State::Failed),
    LifeState::Charge(charge::State::Voided),
    LifeState::Charge(charge::State::Released),
    LifeState::Charge(charge::State::AutoReleased),
    LifeState::Escrow(escrow::State::Held),
    LifeState::Escrow(escrow::State::Settled),
    LifeState::Escrow(escrow::State::Refunded),
    LifeState::Escrow(escrow::State::Partial),
];

/// The number of a state in the table `states`. A match, so that no state is forgotten.
const fn number_of_state(state: LifeState) -> i64 {
    match state {
        LifeState::None => 1,
        LifeState::Charge(charge::State::Held) => 2,
        LifeState::Charge(charge::State::Committed) => 3,
        LifeState::Charge(charge::State::Acked) => 4,
        LifeState::Charge(charge::State::Failed) => 5,
        LifeState::Charge(charge::State::Voided) => 6,
        LifeState::Charge(charge::State::Released) => 7,
        LifeState::Charge(charge::State::AutoReleased) => 8,
        LifeState::Escrow(escrow::State::Held) => 9,
        LifeState::Escrow(escrow::State::Settled) => 10,
        LifeState::Escrow(escrow::State::Refunded) => 11,
        LifeState::Escrow(escrow::State::Partial) => 12,
    }
}

/// The number of a kind in the table `kinds`: an entry whose kind is not in the table is in no history.
const fn number_of(kind: Kind) -> i64 {
    match kind {
        Kind::CreditMint => 1,
        Kind::BillingReserve => 2,
        Kind::BillingStart => 3,
        Kind::BillingIncrease => 4,
        Kind::BillingExtend => 5,
        Kind::BillingCommit => 6,
        Kind::BillingRelease => 7,
        Kind::BillingAutoRelease => 8,
        Kind::BillingVoid => 9,
        Kind::BillingFinalizeAck => 10,
        Kind::BillingFinalizeFail => 11,
        Kind::BillingProgress => 12,
        Kind::EscrowHold => 13,
        Kind::EscrowSettle => 14,
        Kind::EscrowRefund => 15,
        Kind::EscrowPartialSettle => 16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_and_state_has_its_own_place_in_its_table() {
        assert!(KINDS.map(number_of).into_iter().eq(1..=16));
        assert!(STATES.map(number_of_state).into_iter().eq(1..=12));
    }
}
