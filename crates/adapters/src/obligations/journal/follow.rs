//! The writing end: follows the journal, and keeps in the file what it owes the peer.

use super::Shared;
use super::desk::Desk;
use super::file::{Opened, amount, failed, number};
use crate::obligations::{late_id, same};
use holdfast_domain::delivery::{Duty, Part, Sum, owed};
use holdfast_domain::{ChargeId, CreditUnit, Event, ObligationId, charge};
use holdfast_engine::obligations::Count;
use holdfast_engine::{Applied, LifeState, Located, Projection, ProjectionFailed, Record};
use holdfast_journal::{JournalId, failpoint};
use rusqlite::types::Type;
use rusqlite::{OptionalExtension, Row, Transaction, params};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The name of the obligations among those who follow the journal.
pub const OBLIGATIONS: &str = "obligations";

/// How long it is waited before a file that failed is opened again.
const RECOVER_PAUSE: Duration = Duration::from_secs(1);

/// Follows the journal.
pub struct Follower {
    pub(super) data: PathBuf,
    pub(super) shared: Arc<Shared>,
    pub(super) journal: JournalId,
    pub(super) applied: Applied,
    /// The last entry of the journal at the start: until it is applied, nothing is claimed.
    pub(super) last: u64,
    /// How many charges may be charged again.
    pub(super) sums: u64,
}

impl Projection for Follower {
    fn name(&self) -> &'static str {
        OBLIGATIONS
    }

    fn applied(&self) -> Applied {
        self.applied
    }

    fn apply(&mut self, records: &[Located], applied: Applied) -> Result<(), ProjectionFailed> {
        let shared = Arc::clone(&self.shared);
        let mut writer = shared.writer();
        let changes = self.write(&mut writer.connection, records, applied).map_err(failed)?;
        (self.applied, self.sums) = (applied, changes.sums);
        writer.count = changes.counted(writer.count);
        shared.publish(writer.count);
        drop(writer);
        let is_ready = applied.through >= self.last;
        let mut desk = shared.desk();
        for (seq, id) in &changes.gone {
            desk.forget(*seq, *id);
        }
        let rings = is_ready && (changes.added > 0 || !desk.is_ready);
        desk.is_ready |= is_ready;
        drop(desk);
        if rings {
            shared.bell.ring();
        }
        Ok(())
    }

    fn recover(&mut self) -> bool {
        std::thread::sleep(RECOVER_PAUSE);
        // A disk that takes nothing now may do so later: the next attempt comes after the next pause.
        let _next_time = self.reopen();
        true
    }
}

impl Follower {
    /// Opens the file anew, and makes it anew if it is damaged. What was leased is forgotten, and told again.
    fn reopen(&mut self) -> Result<(), ProjectionFailed> {
        // Until it is where it was, what the journal acknowledges later would be told again.
        self.last = self.last.max(self.applied.through);
        let opened = Opened::open(&self.data, self.journal, self.last)?;
        (self.applied, self.sums) = (opened.applied, opened.sums);
        let is_ready = self.applied.through >= self.last;
        let mut writer = self.shared.writer();
        *self.shared.desk() = Desk::new(opened.reader, is_ready);
        (writer.connection, writer.count) = (opened.writer, opened.count);
        self.shared.publish(opened.count);
        Ok(())
    }
}

/// What a batch of entries changed.
#[derive(Default)]
struct Changes {
    added: u64,
    /// Pending ones that are pending no more.
    gone: Vec<(u64, ObligationId)>,
    died: u64,
    undied: u64,
    sums: u64,
}

impl Changes {
    fn counted(&self, before: Count) -> Count {
        let gone = u64::try_from(self.gone.len()).unwrap_or(u64::MAX);
        Count {
            pending: before.pending.saturating_add(self.added).saturating_sub(gone),
            dead: before.dead.saturating_add(self.died).saturating_sub(self.undied),
        }
    }
}

impl Follower {
    fn write(
        &self,
        connection: &mut rusqlite::Connection,
        records: &[Located],
        applied: Applied,
    ) -> rusqlite::Result<Changes> {
        let transaction = connection.transaction()?;
        let mut changes = Changes { sums: self.sums, ..Changes::default() };
        for Located { record, .. } in records {
            self.follow(&transaction, record, &mut changes)?;
        }
        let location = applied.location.pack().cast_signed();
        let row = params![applied.through.cast_signed(), location];
        transaction.prepare_cached("UPDATE applied SET through = ?1, location = ?2")?.execute(row)?;
        failpoint::pass("obligations.before_commit");
        transaction.commit()?;
        failpoint::pass("obligations.after_commit");
        Ok(changes)
    }

    fn follow(&self, transaction: &Transaction<'_>, record: &Record, changes: &mut Changes) -> rusqlite::Result<()> {
        let (Event::Charge { id, event, .. }, LifeState::Charge(state)) = (&record.event, record.state) else {
            return Ok(());
        };
        let before = if changes.sums > 0 { sum(transaction, *id)? } else { None };
        let (duty, after) = owed(before, event, state)
            .map_err(|error| rusqlite::Error::FromSqlConversionFailure(0, Type::Integer, Box::new(error)))?;
        if before != after {
            remember(transaction, *id, after)?;
            changes.sums =
                changes.sums.saturating_add(u64::from(after.is_some())).saturating_sub(u64::from(before.is_some()));
        }
        match duty {
            Duty::Nothing => {}
            Duty::Tell { part, cost, total } => {
                self.add(transaction, record, *id, Told { part, cost, total }, changes)?
            }
            Duty::Settled | Duty::Cancelled => remove(transaction, *id, changes)?,
            Duty::GivenUp => give_up(transaction, record, *id, event, changes)?,
        }
        Ok(())
    }

    fn add(
        &self,
        transaction: &Transaction<'_>,
        record: &Record,
        charge: ChargeId,
        told: Told,
        changes: &mut Changes,
    ) -> rusqlite::Result<()> {
        let (id, apart): (ObligationId, _) = match told.part {
            Part::First => (same(charge), None),
            Part::Late => (late_id(self.journal, charge, record.offset), Some(charge)),
        };
        let insert = "INSERT OR IGNORE INTO pending (seq, id, charge, owner, cost, total, created_at) \
                      VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
        let added = transaction.prepare_cached(insert)?.execute(params![
            record.offset.cast_signed(),
            id.as_str(),
            apart.as_ref().map(|charge| charge.as_str()),
            record.event.owner().as_str(),
            told.cost.units().cast_signed(),
            told.total.units().cast_signed(),
            record.at.millis().cast_signed(),
        ])?;
        changes.added += u64::try_from(added).unwrap_or(0);
        Ok(())
    }
}

struct Told {
    part: Part,
    cost: CreditUnit,
    total: CreditUnit,
}

fn sum(transaction: &Transaction<'_>, charge: ChargeId) -> rusqlite::Result<Option<Sum>> {
    let read = |row: &Row<'_>| {
        let parts = u32::try_from(number(row, 2)?).unwrap_or(u32::MAX);
        Ok(Sum { charged: amount(row, 0)?, told: amount(row, 1)?, parts })
    };
    let query = "SELECT charged, told, parts FROM sums WHERE charge = ?1";
    transaction.prepare_cached(query)?.query_row([charge.as_str()], read).optional()
}

fn remember(transaction: &Transaction<'_>, charge: ChargeId, sum: Option<Sum>) -> rusqlite::Result<()> {
    match sum {
        None => transaction.prepare_cached("DELETE FROM sums WHERE charge = ?1")?.execute([charge.as_str()])?,
        Some(Sum { charged, told, parts }) => transaction
            .prepare_cached("INSERT OR REPLACE INTO sums VALUES (?1, ?2, ?3, ?4)")?
            .execute(params![charge.as_str(), charged.units().cast_signed(), told.units().cast_signed(), parts])?,
    };
    Ok(())
}

/// Removes all that a charge owes: the peer knows it, or never has to.
fn remove(transaction: &Transaction<'_>, charge: ChargeId, changes: &mut Changes) -> rusqlite::Result<()> {
    for of_charge in ["id = ?1 AND charge IS NULL", "charge = ?1"] {
        let delete = format!("DELETE FROM pending WHERE {of_charge} RETURNING seq, id");
        let mut delete = transaction.prepare_cached(&delete)?;
        for gone in delete.query_map([charge.as_str()], seq_and_id)? {
            changes.gone.push(gone?);
        }
        let delete = format!("DELETE FROM dead WHERE {of_charge}");
        let undied = transaction.prepare_cached(&delete)?.execute([charge.as_str()])?;
        changes.undied += u64::try_from(undied).unwrap_or(0);
    }
    Ok(())
}

/// Moves all that a charge owes to the dead, but for what somebody replayed since.
fn give_up(
    transaction: &Transaction<'_>,
    record: &Record,
    charge: ChargeId,
    event: &charge::Event,
    changes: &mut Changes,
) -> rusqlite::Result<()> {
    let charge::Event::Failed { reason } = event else { return Ok(()) };
    for of_charge in ["id = ?1 AND charge IS NULL", "charge = ?1"] {
        let copy = format!(
            "INSERT OR IGNORE INTO dead SELECT seq, id, charge, owner, cost, total, created_at, ?2, 0, ?3 FROM pending \
             WHERE {of_charge} AND failed_at < ?2"
        );
        let offset = record.offset.cast_signed();
        let died = transaction.prepare_cached(&copy)?.execute(params![charge.as_str(), offset, reason.as_str()])?;
        changes.died += u64::try_from(died).unwrap_or(0);
        let delete = format!("DELETE FROM pending WHERE {of_charge} AND failed_at < ?2 RETURNING seq, id");
        let mut delete = transaction.prepare_cached(&delete)?;
        for gone in delete.query_map(params![charge.as_str(), offset], seq_and_id)? {
            changes.gone.push(gone?);
        }
    }
    Ok(())
}

fn seq_and_id(row: &Row<'_>) -> rusqlite::Result<(u64, ObligationId)> {
    let id = row.get_ref(1)?.as_str()?.parse();
    let id = id.map_err(|error| rusqlite::Error::FromSqlConversionFailure(1, Type::Text, Box::new(error)))?;
    Ok((number(row, 0)?, id))
}
