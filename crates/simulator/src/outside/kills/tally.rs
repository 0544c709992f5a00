//! What came of the kills, as a table.

use super::super::books::{Booked, Ending};
use holdfast_domain::CreditUnit;
use std::fmt;

/// One way to kill.
#[derive(Debug, Clone)]
pub struct Row {
    /// Which.
    pub name: String,
    /// How often.
    pub rounds: u64,
    /// How many requests were asked before the kills.
    pub requests: u64,
    /// Of these, charged after the restart.
    pub charged: u64,
    /// Given back.
    pub released: u64,
    /// Never held for.
    pub not_booked: u64,
    /// What is wrong, one line each.
    pub faults: Vec<String>,
}

impl Row {
    pub(super) const fn new(name: String) -> Self {
        Self { name, rounds: 0, requests: 0, charged: 0, released: 0, not_booked: 0, faults: Vec::new() }
    }

    /// Counts a request; one that is still held is a fault and counts nowhere else.
    pub(super) fn count(&mut self, booked: Option<&Booked>) {
        self.requests += 1;
        match booked {
            None => self.not_booked += 1,
            Some(booked) if !booked.charged.is_zero() || booked.ending == Ending::Committed => self.charged += 1,
            Some(booked) if booked.ending == Ending::Released => self.released += 1,
            Some(_) => {}
        }
    }

    /// Counts a prompt of a conversation by its life in the journal.
    pub(super) fn count_life(&mut self, charged: CreditUnit, commits: u64) {
        if commits > 0 || !charged.is_zero() { self.charged += 1 } else { self.released += 1 }
    }
}

/// All of them.
#[derive(Debug, Clone, Default)]
pub struct Table {
    /// One row per way to kill.
    pub rows: Vec<Row>,
    /// What is wrong with the journal as a whole.
    pub whole: Vec<String>,
}

impl Table {
    /// Everything that is wrong.
    pub fn faults(&self) -> impl Iterator<Item = &str> {
        let of_rows = self.rows.iter().flat_map(|row| &row.faults);
        of_rows.chain(&self.whole).map(String::as_str)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |out: &mut fmt::Formatter<'_>, name: &str, cells: [&str; 6]| {
            let [rounds, requests, charged, released, not_booked, faults] = cells;
            writeln!(
                out,
                "{name:<41} {rounds:>7} {requests:>9} {charged:>8} {released:>9} {not_booked:>11} {faults:>7}"
            )
        };
        line(out, "killed at", ["rounds", "requests", "charged", "released", "not booked", "faults"])?;
        for row in &self.rows {
            let Row { name, rounds, requests, charged, released, not_booked, faults } = row;
            let cells = [*rounds, *requests, *charged, *released, *not_booked, faults.len() as u64];
            let cells = cells.map(|count| count.to_string());
            line(out, name, cells.each_ref().map(String::as_str))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_is_counted_once_and_a_fault_anywhere_is_one() {
        let booked =
            |ending, charged: &str| Booked { ending, held: None, charged: charged.parse().unwrap(), endings: 1 };
        let mut row = Row::new("x".to_owned());
        row.count(None);
        row.count(Some(&booked(Ending::Committed, "0")));
        row.count(Some(&booked(Ending::Released, "0")));
        row.count(Some(&booked(Ending::Released, "1")));
        row.count(Some(&booked(Ending::Held, "0")));
        assert_eq!((row.requests, row.charged, row.released, row.not_booked), (5, 2, 1, 1));
        let mut table = Table { rows: vec![row], whole: Vec::new() };
        assert_eq!(table.faults().count(), 0);
        table.whole.push("wrong".to_owned());
        assert_eq!(table.faults().collect::<Vec<_>>(), ["wrong"]);
    }
}
