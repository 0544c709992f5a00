//! What answers came to by day and model, and how often accounts brought their own provider key: counted in memory, and kept in
//! `DATA/usage.db` a moment later.
//!
//! The books know what was charged, and not for which model; the console's chart puts the two together. A crash loses the
//! counts of the last second and nothing of the books: what the chart has no name for it shows as the rest.
//!
//! # Invariants
//! - Nobody waits for it, and no charge depends on it.
//! - Memory and file are bounded: there are as many models as have a price, and days are let go after [`DAYS_KEPT`].

use crate::terminal;
use holdfast_domain::{CreditUnit, Day, OwnerId};
use rusqlite::{Connection, params};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a count is in memory alone.
const KEPT_AFTER: Duration = Duration::from_secs(1);
const DAYS_KEPT: u64 = 31;

// Without a write-ahead log, which is read through memory that a full disk takes away: that would end the process.
const SCHEMA: &str = "
    PRAGMA journal_mode = TRUNCATE;
    PRAGMA synchronous = NORMAL;
    CREATE TABLE IF NOT EXISTS model_days (
        day INTEGER NOT NULL,              -- days since 1970
        model TEXT NOT NULL,
        requests INTEGER NOT NULL,
        charged_units INTEGER NOT NULL,    -- millionths of a credit
        PRIMARY KEY (day, model)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS own_key_days (
        day INTEGER NOT NULL,
        account TEXT NOT NULL,
        requests INTEGER NOT NULL,
        PRIMARY KEY (day, account)
    ) STRICT, WITHOUT ROWID;
";

/// The counts.
pub(crate) struct Tally {
    counts: Mutex<Counts>,
    /// None if there is no file: then they are in memory only.
    file: Mutex<Option<Connection>>,
    /// Whether somebody will soon write what has changed.
    is_due: AtomicBool,
}

#[derive(Default)]
struct Counts {
    models: BTreeMap<Day, HashMap<String, Charged>>,
    own_keys: HashMap<OwnerId, OwnKey>,
}

/// What a model was charged on a day.
#[derive(Clone, Copy, Default)]
struct Charged {
    requests: u64,
    units: u64,
    is_changed: bool,
}

/// What an account asked with its own provider key on its newest day.
#[derive(Clone, Copy)]
struct OwnKey {
    day: Day,
    requests: u32,
    is_changed: bool,
}

/// What is to be written.
struct Rows {
    models: Vec<(Day, String, Charged)>,
    own_keys: Vec<(OwnerId, OwnKey)>,
}

impl Tally {
    /// The counts of a data directory. They are worth less than a start: if the file cannot be read, that is said, and they
    /// begin anew in memory.
    pub(crate) fn open(data: &Path, today: Day) -> Arc<Self> {
        let opened = Connection::open(data.join("usage.db")).and_then(|file| {
            file.execute_batch(SCHEMA)?;
            let counts = Counts::read(&file, today)?;
            Ok((counts, Some(file)))
        });
        let (counts, file) = opened.unwrap_or_else(|error| {
            terminal::note(&format!("usage.db cannot be used, and what it counts is in memory only: {error}"));
            (Counts::default(), None)
        });
        Arc::new(Self { counts: Mutex::new(counts), file: Mutex::new(file), is_due: AtomicBool::new(false) })
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An answer of a model was charged.
    pub(super) fn charged(self: &Arc<Self>, day: Day, model: &str, cost: CreditUnit) {
        self.counts().charge(day, model, cost);
        self.keep_soon();
    }

    /// Counts a request with the caller's own provider key, unless there were `at_most` on this day.
    pub(super) fn count_own_key(self: &Arc<Self>, account: OwnerId, today: Day, at_most: u32) -> bool {
        let is_counted = self.counts().count_own_key(account, today, at_most);
        if is_counted {
            self.keep_soon();
        }
        is_counted
    }

    /// What each model was charged on each day since `first`, in the order of days.
    pub(crate) fn by_day_and_model(&self, first: Day) -> Vec<(Day, String, CreditUnit)> {
        let counts = self.counts();
        let days = counts.models.range(first..);
        let all = days.flat_map(|(day, models)| models.iter().map(|(model, charged)| (*day, model, charged)));
        // What cannot be an amount was not written by us.
        all.filter_map(|(day, model, charged)| Some((day, model.clone(), CreditUnit::new(charged.units).ok()?)))
            .collect()
    }

    fn keep_soon(self: &Arc<Self>) {
        if !self.is_due.swap(true, Ordering::AcqRel) {
            let tally = Arc::clone(self);
            // May safely die: whoever stops the server keeps what is left.
            tokio::spawn(async move {
                tokio::time::sleep(KEPT_AFTER).await;
                let _kept = tokio::task::spawn_blocking(move || tally.keep()).await;
            });
        }
    }

    /// Writes what has changed.
    pub(crate) fn keep(&self) {
        // Before it is looked at: what changes after that is written by the next.
        self.is_due.store(false, Ordering::Release);
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let rows = self.counts().take_changed();
        let Some(connection) = file.as_mut() else { return };
        if let Err(error) = write(connection, &rows) {
            terminal::note(&format!("usage.db cannot be written, and what it counts is in memory only: {error}"));
            *file = None;
        }
    }
}

impl Counts {
    fn read(file: &Connection, today: Day) -> rusqlite::Result<Self> {
        let first = today.number().saturating_sub(DAYS_KEPT).cast_signed();
        file.execute("DELETE FROM model_days WHERE day < ?1", [first])?;
        file.execute("DELETE FROM own_key_days WHERE day < ?1", [first])?;
        let mut counts = Self::default();
        let mut models = file.prepare("SELECT day, model, requests, charged_units FROM model_days")?;
        let mut rows = models.query([])?;
        while let Some(row) = rows.next()? {
            let number = |column| row.get::<_, i64>(column).map(i64::cast_unsigned);
            let charged = Charged { requests: number(2)?, units: number(3)?, is_changed: false };
            counts.models.entry(Day::from_number(number(0)?)).or_default().insert(row.get(1)?, charged);
        }
        let mut own_keys = file.prepare("SELECT account, requests FROM own_key_days WHERE day = ?1")?;
        let mut rows = own_keys.query([today.number().cast_signed()])?;
        while let Some(row) = rows.next()? {
            if let Ok(account) = row.get::<_, String>(0)?.parse() {
                let own_key = OwnKey { day: today, requests: row.get(1)?, is_changed: false };
                counts.own_keys.insert(account, own_key);
            }
        }
        Ok(counts)
    }

    fn charge(&mut self, day: Day, model: &str, cost: CreditUnit) {
        let models = self.models.entry(day).or_default();
        // Not by `entry`, which would need a copy of the name each time.
        if !models.contains_key(model) {
            models.insert(model.to_owned(), Charged::default());
        }
        if let Some(charged) = models.get_mut(model) {
            charged.requests += 1;
            charged.units = charged.units.saturating_add(cost.units());
            charged.is_changed = true;
        }
        while self.models.len() as u64 > DAYS_KEPT {
            self.models.pop_first();
        }
    }

    fn count_own_key(&mut self, account: OwnerId, today: Day, at_most: u32) -> bool {
        let none = OwnKey { day: today, requests: 0, is_changed: false };
        let own_key = self.own_keys.entry(account).or_insert(none);
        if own_key.day != today {
            *own_key = none;
        }
        if own_key.requests >= at_most {
            return false;
        }
        (own_key.requests, own_key.is_changed) = (own_key.requests + 1, true);
        true
    }

    fn take_changed(&mut self) -> Rows {
        let mut rows = Rows { models: Vec::new(), own_keys: Vec::new() };
        for (day, models) in &mut self.models {
            for (model, charged) in models.iter_mut().filter(|(_, charged)| charged.is_changed) {
                charged.is_changed = false;
                rows.models.push((*day, model.clone(), *charged));
            }
        }
        for (account, own_key) in self.own_keys.iter_mut().filter(|(_, own_key)| own_key.is_changed) {
            own_key.is_changed = false;
            rows.own_keys.push((*account, *own_key));
        }
        rows
    }
}

/// Writes whole counts, not what was added, so that twice is once.
fn write(file: &mut Connection, rows: &Rows) -> rusqlite::Result<()> {
    let transaction = file.transaction()?;
    {
        let mut put = transaction.prepare_cached("INSERT OR REPLACE INTO model_days VALUES (?1, ?2, ?3, ?4)")?;
        for (day, model, Charged { requests, units, .. }) in &rows.models {
            put.execute(params![day.number().cast_signed(), model, requests.cast_signed(), units.cast_signed()])?;
        }
        let mut put = transaction.prepare_cached("INSERT OR REPLACE INTO own_key_days VALUES (?1, ?2, ?3)")?;
        for (account, OwnKey { day, requests, .. }) in &rows.own_keys {
            put.execute(params![day.number().cast_signed(), account.as_str(), requests])?;
        }
    }
    transaction.commit()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn day(number: u64) -> Day {
        Day::from_number(number)
    }

    fn units(units: u64) -> CreditUnit {
        CreditUnit::new(units).unwrap()
    }

    fn sorted(tally: &Tally) -> Vec<(Day, String, CreditUnit)> {
        let mut all = tally.by_day_and_model(Day::EPOCH);
        all.sort();
        all
    }

    #[tokio::test]
    async fn counts_outlive_their_process_and_old_days_do_not() {
        let dir = tempfile::tempdir().unwrap();
        let (alice, bob): (OwnerId, OwnerId) = ("alice".parse().unwrap(), "bob".parse().unwrap());
        let tally = Tally::open(dir.path(), day(100));
        tally.charged(day(100), "a", units(5));
        tally.charged(day(100), "a", units(6));
        tally.charged(day(99), "b", units(1));
        assert!((1..=3).all(|_| tally.count_own_key(alice, day(100), 3)));
        assert!(!tally.count_own_key(alice, day(100), 3) && tally.count_own_key(bob, day(100), 3));
        tally.keep();
        tally.charged(day(100), "a", units(1_000));

        let again = Tally::open(dir.path(), day(100));
        let expected = [(day(99), "b".to_owned(), units(1)), (day(100), "a".to_owned(), units(11))];
        assert_eq!(sorted(&again), expected, "what was not kept is lost, and nothing else");
        assert!(!again.count_own_key(alice, day(100), 3) && again.count_own_key(alice, day(101), 3));
        assert_eq!(again.by_day_and_model(day(100)).len(), 1);

        let later = Tally::open(dir.path(), day(131));
        assert_eq!(sorted(&later).len(), 1, "the first day is too long ago");
    }

    #[tokio::test]
    async fn a_file_that_is_none_keeps_nothing_from_being_counted() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("usage.db"), "this is no database, and longer than nothing").unwrap();
        let tally = Tally::open(dir.path(), day(7));
        tally.charged(day(7), "a", units(5));
        tally.keep();
        assert_eq!(sorted(&tally), [(day(7), "a".to_owned(), units(5))]);
    }
}
