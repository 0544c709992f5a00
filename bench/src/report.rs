//! Collects rows, derives ratios, prints a table and writes `NAME.json`. Knows nothing of any one benchmark.
//!
//! # Invariants
//! - A ratio is `ours / other` of one metric in one case, whichever way is better; it exists only if both were measured.

use crate::error::BenchError;
use crate::head::Head;
use crate::table::{Cell, Table};
use serde::Serialize;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

/// One figure.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Who was measured.
    pub subject: String,
    /// At what.
    pub case: String,
    /// In what respect.
    pub metric: &'static str,
    /// How much.
    pub value: f64,
    /// Of what.
    pub unit: &'static str,
}

/// One figure of ours over one of another subject.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ratio {
    /// The case both were measured in.
    pub case: String,
    /// The metric both have.
    pub metric: &'static str,
    /// Our value.
    pub ours: f64,
    /// The other's value.
    pub other: f64,
    /// Who the other is.
    pub other_subject: String,
    /// `ours / other`.
    pub ratio: f64,
}

/// A figure that could not be had, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// Who was not measured.
    pub subject: String,
    /// At what.
    pub case: String,
    /// Because of what.
    pub why: String,
}

/// All that one benchmark found.
#[derive(Debug, Serialize)]
pub struct Report {
    #[serde(skip)]
    name: &'static str,
    #[serde(skip)]
    ours: &'static str,
    /// Case and subject of each line of the table, in the order they came.
    #[serde(skip)]
    lines: Vec<(String, String)>,
    head: Head,
    rows: Vec<Row>,
    ratios: Vec<Ratio>,
    missing: Vec<Missing>,
}

impl Report {
    /// An empty report of the benchmark `name`, whose ratios are those of the subject `ours` to every other.
    #[must_use]
    pub const fn new(name: &'static str, ours: &'static str, head: Head) -> Self {
        Self { name, ours, lines: Vec::new(), head, rows: Vec::new(), ratios: Vec::new(), missing: Vec::new() }
    }

    /// Says in the head who takes part.
    pub fn introduce(&mut self, subject: &str, about: String) {
        self.head.subjects.insert(subject.to_owned(), about);
    }

    /// Adds a figure.
    pub fn add(&mut self, row: Row) {
        push_new(&mut self.lines, (row.case.clone(), row.subject.clone()));
        self.rows.push(row);
    }

    /// Notes a figure that could not be had.
    pub fn miss(&mut self, missing: Missing) {
        push_new(&mut self.lines, (missing.case.clone(), missing.subject.clone()));
        self.missing.push(missing);
    }

    /// Ends the run: notes the load and derives the ratios.
    pub fn finish(&mut self) {
        self.head.ended();
        self.ratios = ratios(&self.rows, self.ours);
    }

    /// Writes `NAME.json` into `dir`.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_json(&self, dir: &Path) -> Result<(), BenchError> {
        let path = dir.join(format!("{}.json", self.name));
        let text = serde_json::to_string_pretty(self).map_err(io::Error::from);
        text.and_then(|text| fs::write(&path, text + "\n")).map_err(BenchError::io(format!("write {}", path.display())))
    }

    /// Prints head, table and ratios for people.
    ///
    /// # Errors
    /// If `out` is closed.
    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "\n# {}", self.name)?;
        for (name, text) in self.head.lines() {
            writeln!(out, "{name:<10} {text}")?;
        }
        writeln!(out)?;
        self.table().print(out)?;
        if !self.ratios.is_empty() {
            writeln!(out, "\nratios, {} / other", self.ours)?;
            self.ratio_table().print(out)?;
        }
        Ok(())
    }

    /// A line for each subject in each case, a column for each metric, both in the order they came.
    fn table(&self) -> Table {
        let mut metrics: Vec<(&str, &str)> = Vec::new();
        for row in &self.rows {
            push_new(&mut metrics, (row.metric, row.unit));
        }
        let metric_names = metrics.iter().map(|(metric, unit)| format!("{metric} {unit}"));
        let mut table = Table::new(["case".to_owned(), "subject".to_owned()].into_iter().chain(metric_names));
        for (case, subject) in &self.lines {
            let mut line = vec![Cell::Name(case.clone()), Cell::Name(subject.clone())];
            let missing = self.missing.iter().find(|missing| (&missing.case, &missing.subject) == (case, subject));
            match missing {
                Some(missing) => line.push(Cell::Reason(format!("missing: {}", missing.why))),
                None => line.extend(metrics.iter().map(|(metric, _)| self.cell(case, subject, metric))),
            }
            table.push(line);
        }
        table
    }

    fn cell(&self, case: &str, subject: &str, metric: &str) -> Cell {
        let found = self.rows.iter().find(|row| row.case == case && row.subject == subject && row.metric == metric);
        Cell::Figure(found.map_or_else(|| "–".to_owned(), |row| readable(row.value)))
    }

    fn ratio_table(&self) -> Table {
        let mut table = Table::new(["case", "metric", "other", "ours", "theirs", "ratio"].map(str::to_owned));
        for ratio in &self.ratios {
            let names = [&ratio.case, ratio.metric, &ratio.other_subject].map(|name| Cell::Name(name.to_owned()));
            let figures = [readable(ratio.ours), readable(ratio.other), format!("{:.2}", ratio.ratio)];
            table.push(names.into_iter().chain(figures.map(Cell::Figure)).collect());
        }
        table
    }
}

fn ratios(rows: &[Row], ours: &str) -> Vec<Ratio> {
    let mut ratios = Vec::new();
    for our in rows.iter().filter(|row| row.subject == ours) {
        let others = rows.iter().filter(|row| row.subject != ours && row.case == our.case && row.metric == our.metric);
        ratios.extend(others.filter(|other| other.value > 0.0).map(|other| Ratio {
            case: our.case.clone(),
            metric: our.metric,
            ours: our.value,
            other: other.value,
            other_subject: other.subject.clone(),
            ratio: our.value / other.value,
        }));
    }
    ratios
}

fn push_new<T: PartialEq>(list: &mut Vec<T>, item: T) {
    if !list.contains(&item) {
        list.push(item);
    }
}

/// Four figures are enough to read: 1,234,567 and 12.3 and 0.284.
#[must_use]
pub fn readable(value: f64) -> String {
    if value < 10.0 {
        return format!("{value:.3}");
    }
    if value < 1_000.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(subject: &str, case: &str, value: f64) -> Row {
        Row { subject: subject.to_owned(), case: case.to_owned(), metric: "speed", value, unit: "1/s" }
    }

    #[test]
    fn a_ratio_is_ours_over_theirs_in_the_same_case_and_none_is_invented() {
        let rows = [row("us", "a", 30.0), row("them", "a", 10.0), row("them", "b", 5.0), row("zero", "a", 0.0)];
        let found = ratios(&rows, "us");
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].other_subject.as_str(), found[0].ratio), ("them", 3.0));
        assert_eq!(ratios(&rows, "absent"), []);
    }

    #[test]
    fn figures_read_with_thousands_apart_and_small_ones_with_decimals() {
        let check = |value: f64, text: &str| assert_eq!(readable(value), text);
        check(0.284, "0.284");
        check(12.34, "12.3");
        check(1_000.0, "1,000");
        check(1_234_567.4, "1,234,567");
        check(123_456.0, "123,456");
    }

    #[test]
    fn the_table_has_a_line_per_subject_and_names_what_is_missing() {
        let mut report = Report::new("test", "us", Head::now(Path::new("/"), 1.0, 0));
        report.add(row("us", "a", 2_000.0));
        report.miss(Missing { subject: "them".to_owned(), case: "a".to_owned(), why: "not installed".to_owned() });
        report.finish();
        let mut text = Vec::new();
        report.print(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("a     us           2,000\na     them     missing: not installed\n"), "{text}");
    }
}
