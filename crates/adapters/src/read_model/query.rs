//! Questions to the read model: an entry, a history by pages, a balance as of an entry or a moment.

use super::path;
use holdfast_domain::{Account, Change, Timestamp};
use rusqlite::{Connection, OpenFlags, OptionalExtension, Row, params};
use std::path::Path;

/// A reading connection. It sees whole batches only.
pub struct Lookup {
    pub(super) connection: Connection,
}

/// A moment in the order of entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AsOf {
    /// After this entry.
    Offset(u64),
    /// After the last entry of this moment or before.
    Time(Timestamp),
}

/// An outer end of the books.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum System {
    Revenue,
    Treasury,
}

/// One entry of a history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryRow {
    /// The entry.
    pub offset: u64,
    /// When.
    pub at: Timestamp,
    /// Its kind.
    pub kind: String,
    /// The reservation, the escrow, or the key of a mint.
    pub correlation: String,
    /// What it left the reservation or escrow in.
    pub state: String,
    /// What it changed of what can be spent (of a payee: of the payee's balance).
    pub change: Change,
    /// What it changed of what is held.
    pub held_change: Change,
    /// What could be spent after it (of a payee: the payee's balance).
    pub balance: Change,
    /// What was held after it.
    pub held: Change,
    /// The entry before it in the same history; 0 if none.
    pub previous: u64,
}

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// The account has no history of its own.
    #[error(
        "{0} has no balance of its own as of a moment; ask for its user, payee, system:revenue or treasury:usdc_received"
    )]
    NoHistory(Account),
    /// The read model cannot be read.
    #[error("the read model cannot be read: {0}; run `holdfast rebuild`")]
    Unreadable(#[from] rusqlite::Error),
}

const COLUMNS: &str = r#"e."offset", e.at, k.name, e.correlation, s.name"#;

impl Lookup {
    /// Opens the read model for reading.
    pub fn open(data: &Path) -> Result<Self, QueryError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path(data), flags)?;
        connection.busy_timeout(std::time::Duration::from_secs(5))?;
        Ok(Self { connection })
    }

    /// The last entry that it has.
    pub fn through(&self) -> Result<u64, QueryError> {
        let through = self.connection.query_row("SELECT through FROM applied", [], |row| row.get::<_, i64>(0))?;
        Ok(through.cast_unsigned())
    }

    /// Entries of an account holder's history, newest first, from entry `from` back.
    pub fn history(&self, account: &Account, from: u64, at_most: usize) -> Result<Vec<HistoryRow>, QueryError> {
        let (columns, table) = match account {
            Account::Available(_) | Account::Held(_) => {
                ("e.d_available, e.d_held, e.available, e.held, e.previous", "entries e")
            }
            Account::Payee(_) => (
                "f.d_payee, 0, f.payee_balance, 0, f.payee_previous",
                r#"entries e JOIN further f ON f."offset" = e."offset""#,
            ),
            Account::Escrow(_) | Account::Revenue | Account::Treasury => return Err(QueryError::NoHistory(*account)),
        };
        let sql = format!(
            r#"SELECT {COLUMNS}, {columns} FROM {table} JOIN kinds k USING (kind) JOIN states s USING (state) WHERE e."offset" = ?1"#
        );
        let mut find = self.connection.prepare_cached(&sql)?;
        let mut rows = Vec::new();
        let mut next = from;
        while next != 0 && rows.len() < at_most {
            let Some(row) = find.query_row([next.cast_signed()], history_row).optional()? else { break };
            next = row.previous;
            rows.push(row);
        }
        Ok(rows)
    }

    /// The balance of an account as of a moment. `last` is the newest entry of the account holder's history.
    pub fn balance_as_of(&self, account: &Account, last: u64, as_of: AsOf) -> Result<Change, QueryError> {
        let offset = match as_of {
            AsOf::Offset(offset) => offset,
            AsOf::Time(at) => self.offset_at(at)?,
        };
        match account {
            Account::Available(owner) | Account::Held(owner) => {
                let row = self.row_at(account, &format!("user:{owner}"), last, offset)?;
                let held = matches!(account, Account::Held(_));
                Ok(row.map_or(Change::ZERO, |row| if held { row.held } else { row.balance }))
            }
            Account::Payee(payee) => {
                let row = self.row_at(account, &format!("payee:{payee}"), last, offset)?;
                Ok(row.map_or(Change::ZERO, |row| row.balance))
            }
            Account::Revenue => self.system_at(offset, System::Revenue),
            Account::Treasury => self.system_at(offset, System::Treasury),
            Account::Escrow(_) => Err(QueryError::NoHistory(*account)),
        }
    }

    /// The newest entry of a history that is not after `offset`: from the first milestone after it, walk back.
    fn row_at(
        &self,
        account: &Account,
        holder: &str,
        last: u64,
        offset: u64,
    ) -> Result<Option<HistoryRow>, QueryError> {
        let sql = r#"SELECT "offset" FROM milestones WHERE holder = ?1 AND "offset" >= ?2 ORDER BY "offset" LIMIT 1"#;
        let offset_sql = i64::try_from(offset).unwrap_or(i64::MAX);
        let milestone =
            self.connection.prepare_cached(sql)?.query_row(params![holder, offset_sql], |row| row.get::<_, i64>(0));
        let mut from = milestone.optional()?.map_or(last, i64::cast_unsigned);
        loop {
            let Some(row) = self.history(account, from, 1)?.pop() else { return Ok(None) };
            if row.offset <= offset {
                return Ok(Some(row));
            }
            from = row.previous;
        }
    }

    /// A system account's balance: the last one noted before `offset`, and what was posted since.
    pub(super) fn system_at(&self, offset: u64, account: System) -> Result<Change, QueryError> {
        let (column, table) = match account {
            System::Revenue => ("revenue", "entries"),
            System::Treasury => ("treasury", "further"),
        };
        let offset = i64::try_from(offset).unwrap_or(i64::MAX);
        let noted = format!(
            r#"SELECT "offset", {column} FROM system_balances WHERE "offset" <= ?1 ORDER BY "offset" DESC LIMIT 1"#
        );
        let noted = self.connection.query_row(&noted, [offset], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
        let (since, balance): (i64, i64) = noted.unwrap_or((0, 0));
        let sum = format!(r#"SELECT coalesce(sum(d_{column}), 0) FROM {table} WHERE "offset" > ?1 AND "offset" <= ?2"#);
        let change: i64 = self.connection.query_row(&sum, [since, offset], |row| row.get(0))?;
        Ok(Change::from_units(balance + change))
    }

    /// The last entry of this moment or before: time never runs back in a journal, so a bisection finds it.
    pub(super) fn offset_at(&self, at: Timestamp) -> Result<u64, QueryError> {
        let mut find = self.connection.prepare_cached(r#"SELECT at FROM entries WHERE "offset" = ?1"#)?;
        let (mut low, mut high) = (0, self.through()?);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            let moment: i64 = find.query_row([middle.cast_signed()], |row| row.get(0))?;
            if moment.cast_unsigned() <= at.millis() { low = middle } else { high = middle - 1 }
        }
        Ok(low)
    }
}

fn history_row(row: &Row<'_>) -> rusqlite::Result<HistoryRow> {
    let change = |index| row.get(index).map(Change::from_units);
    Ok(HistoryRow {
        offset: row.get::<_, i64>(0)?.cast_unsigned(),
        at: Timestamp::from_millis(row.get::<_, i64>(1)?.cast_unsigned()),
        kind: row.get(2)?,
        correlation: row.get(3)?,
        state: row.get(4)?,
        change: change(5)?,
        held_change: change(6)?,
        balance: change(7)?,
        held: change(8)?,
        previous: row.get::<_, i64>(9)?.cast_unsigned(),
    })
}
