//! Questions for an overview of the books: the newest entries, what was earned by day and by account, how old holds are.
//!
//! # Invariants
//! - The work is bounded whatever the size of the journal: days are found by bisection between noted balances, and what has
//!   no index is looked for only in a window of the newest entries.

use super::query::System;
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
        self.system_at(self.offset_at(Timestamp::from_millis(last_moment))?, System::Revenue)
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

#[cfg(test)]
mod tests {
    use super::super::ReadModel;
    use super::*;
    use holdfast_journal::JournalId;
    use rusqlite::params;
    use std::path::Path;

    /// A read model with these commits: the day, the owner, and what was earned.
    fn model(data: &Path, commits: &[(u64, &str, i64)]) -> Lookup {
        let model = ReadModel::create(data, JournalId([7; 16])).unwrap();
        let insert = r#"INSERT INTO entries VALUES (?1, ?2, ?3, ?4, ?5, 2, 'actor', 0, 0, ?6, 0, 0, 0)"#;
        for (offset, (day, owner, earned)) in (1_i64..).zip(commits) {
            let at = (day * Span::DAY.millis()).cast_signed() + offset;
            let (kind, charge) = (number_of(Kind::BillingReserve), format!("charge-{offset}"));
            model.connection.execute(insert, params![offset, at, kind, owner, charge, earned]).unwrap();
        }
        // Noted in the middle, as after a batch.
        let noted: i64 = commits.iter().take(2).map(|(_, _, earned)| earned).sum();
        model.connection.execute("INSERT INTO system_balances VALUES (2, ?1, 0)", [noted]).unwrap();
        model.connection.execute("UPDATE applied SET through = ?1", [commits.len()]).unwrap();
        Lookup::open(data).unwrap()
    }

    #[test]
    fn what_was_earned_is_added_up_by_day_and_by_owner() {
        let data = tempfile::tempdir().unwrap();
        let commits = [(10, "a", 1), (11, "b", 20), (11, "a", 300), (13, "b", 4_000), (13, "c", 0)];
        let lookup = model(data.path(), &commits);
        let day = |number, units| (Day::from_number(number), Change::from_units(units));
        let by_day = lookup.revenue_by_day(Day::from_number(14), 4).unwrap();
        assert_eq!(by_day, [day(11, 320), day(12, 0), day(13, 4_000), day(14, 0)]);
        assert_eq!(lookup.revenue_by_day(Day::from_number(1), 3).unwrap().len(), 2, "no day before the first");

        let all = lookup.window(100).unwrap();
        assert!(all.is_whole && all.began.is_some());
        let earned = |owner: &str, units| (owner.to_owned(), Change::from_units(units));
        assert_eq!(lookup.revenue_by_owner(all, 9).unwrap(), [earned("b", 4_020), earned("a", 301)]);
        let newest = lookup.window(3).unwrap();
        assert!(!newest.is_whole);
        assert_eq!(lookup.revenue_by_owner(newest, 1).unwrap(), [earned("b", 4_000)]);
        let ids: Vec<ChargeId> = ["charge-1", "charge-4"].map(|id| id.parse().unwrap()).to_vec();
        let made = lookup.reserved_at(&ids, newest).unwrap();
        assert_eq!((made.len(), made.contains_key(&ids[1])), (1, true), "the first is outside the window");
    }

    #[test]
    fn the_tail_is_the_newest_in_order() {
        let data = tempfile::tempdir().unwrap();
        let lookup = model(data.path(), &[(1, "a", 0), (1, "b", 0), (2, "c", 0)]);
        let offsets = |after, at_most| -> Vec<u64> {
            lookup.tail(after, at_most).unwrap().iter().map(|row| row.offset).collect()
        };
        assert_eq!(
            (offsets(0, 9), offsets(0, 2), offsets(2, 9), offsets(3, 9)),
            (vec![1, 2, 3], vec![2, 3], vec![3], vec![])
        );
        assert_eq!(lookup.tail(2, 1).unwrap()[0].owner, "c");
    }

    #[test]
    fn an_empty_journal_has_nothing_to_tell() {
        let data = tempfile::tempdir().unwrap();
        let lookup = model(data.path(), &[]);
        assert_eq!(lookup.window(5).unwrap().began, None);
        assert_eq!(lookup.revenue_by_day(Day::from_number(3), 2).unwrap().len(), 2);
        assert!(lookup.tail(0, 5).unwrap().is_empty());
    }
}
