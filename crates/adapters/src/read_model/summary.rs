//! Questions for an overview of the books: the newest entries, what was earned by day and by account, how old holds are.
//!
//! # Invariants
//! - The work is bounded whatever the size of the journal: days are found by bisection between noted balances, and what has
//!   no index is looked for only in a window of the newest entries.

use super::{Lookup, QueryError, number_of};
use holdfast_domain::{Change, ChargeId, Day, Kind, Span, Timestamp};
use rusqlite::{Row, params_from_iter};
use std::collections::HashMap;

/// One of the newest entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TailRow {
    /// The entry.
    pub offset: u64,
    /// When.
    pub at: Timestamp,
    /// Its kind.
    pub kind: String,
    /// Whose account it changed.
    pub owner: String,
    /// The reservation, the escrow, or the key of a mint.
    pub correlation: String,
    /// What it left the reservation or escrow in.
    pub state: String,
    /// Who had it done.
    pub actor: String,
    /// What it changed of what can be spent.
    pub change: Change,
    /// What it changed of what is held.
    pub held_change: Change,
    /// What the owner could spend after it.
    pub balance: Change,
}

/// A number of the newest entries, to look for something in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    after: i64,
    /// When its first entry was made; `None` if there is no entry.
    pub began: Option<Timestamp>,
    /// Whether it is all there is.
    pub is_whole: bool,
}

impl Lookup {
    /// The newest entries after entry `after`, at most so many, oldest first.
    pub fn tail(&self, after: u64, at_most: usize) -> Result<Vec<TailRow>, QueryError> {
        let sql = r#"SELECT e."offset", e.at, k.name, e.owner, e.correlation, s.name, e.actor,
                e.d_available, e.d_held, e.available
            FROM entries e JOIN kinds k USING (kind) JOIN states s USING (state)
            WHERE e."offset" > ?1 ORDER BY e."offset" DESC LIMIT ?2"#;
        let after = i64::try_from(after).unwrap_or(i64::MAX);
        let at_most = i64::try_from(at_most).unwrap_or(i64::MAX);
        let mut find = self.connection.prepare_cached(sql)?;
        let mut rows = find.query_map([after, at_most], tail_row)?.collect::<Result<Vec<_>, _>>()?;
        rows.reverse();
        Ok(rows)
    }

    /// What was earned on each of the `days` days up to `last`, oldest first.
    pub fn revenue_by_day(&self, last: Day, days: u64) -> Result<Vec<(Day, Change)>, QueryError> {
        let first = last.number().saturating_sub(days.saturating_sub(1));
        let mut before = self.revenue_before(first)?;
        let mut earned = Vec::new();
        for day in first..=last.number() {
            let after = self.revenue_before(day + 1)?;
            earned.push((Day::from_number(day), Change::from_units(after.units() - before.units())));
            before = after;
        }
        Ok(earned)
    }

    /// What had been earned when a day began.
    fn revenue_before(&self, day: u64) -> Result<Change, QueryError> {
        let Some(last_moment) = day.saturating_mul(Span::DAY.millis()).checked_sub(1) else { return Ok(Change::ZERO) };
        self.system_at(self.offset_at(Timestamp::from_millis(last_moment))?, "revenue")
    }

    /// The newest `entries` entries.
    pub fn window(&self, entries: u64) -> Result<Window, QueryError> {
        let after = self.through()?.saturating_sub(entries);
        let sql = r#"SELECT at FROM entries WHERE "offset" > ?1 ORDER BY "offset" LIMIT 1"#;
        let mut find = self.connection.prepare_cached(sql)?;
        let mut rows = find.query_map([after.cast_signed()], |row| row.get::<_, i64>(0))?;
        let began = rows.next().transpose()?.map(|millis| Timestamp::from_millis(millis.cast_unsigned()));
        Ok(Window { after: after.cast_signed(), began, is_whole: after == 0 })
    }

    /// The owners of whom most was earned within a window, most first.
    pub fn revenue_by_owner(&self, window: Window, at_most: usize) -> Result<Vec<(String, Change)>, QueryError> {
        let sql = r#"SELECT owner, sum(d_revenue) AS earned FROM entries WHERE "offset" > ?1 AND d_revenue <> 0
            GROUP BY owner ORDER BY earned DESC, owner LIMIT ?2"#;
        let at_most = i64::try_from(at_most).unwrap_or(i64::MAX);
        let row = |row: &Row<'_>| Ok((row.get(0)?, Change::from_units(row.get(1)?)));
        let mut find = self.connection.prepare_cached(sql)?;
        Ok(find.query_map([window.after, at_most], row)?.collect::<Result<_, _>>()?)
    }

    /// When each of these reservations was made, of those that were made within a window.
    pub fn reserved_at(&self, ids: &[ChargeId], window: Window) -> Result<HashMap<ChargeId, Timestamp>, QueryError> {
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        let places = vec!["?"; ids.len()].join(", ");
        let sql = format!(
            r#"SELECT correlation, at FROM entries WHERE "offset" > {} AND kind = {} AND correlation IN ({places})"#,
            window.after,
            number_of(Kind::BillingReserve),
        );
        let mut find = self.connection.prepare(&sql)?;
        let row = |row: &Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?));
        let mut made = HashMap::new();
        for found in find.query_map(params_from_iter(ids.iter().map(|id| id.as_str())), row)? {
            let (id, millis) = found?;
            if let Ok(id) = id.parse() {
                made.insert(id, Timestamp::from_millis(millis.cast_unsigned()));
            }
        }
        Ok(made)
    }
}

fn tail_row(row: &Row<'_>) -> rusqlite::Result<TailRow> {
    let change = |index| row.get(index).map(Change::from_units);
    Ok(TailRow {
        offset: row.get::<_, i64>(0)?.cast_unsigned(),
        at: Timestamp::from_millis(row.get::<_, i64>(1)?.cast_unsigned()),
        kind: row.get(2)?,
        owner: row.get(3)?,
        correlation: row.get(4)?,
        state: row.get(5)?,
        actor: row.get(6)?,
        change: change(7)?,
        held_change: change(8)?,
        balance: change(9)?,
    })
}
