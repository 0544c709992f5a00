//! Tables as text: a line per row, cells between bars, and the few words that every table shares.

use holdfast_domain::{CreditUnit, Id, IdKind, Reason, Span};

/// The rows of a table, each as its trimmed cells. Empty lines are for people.
pub(crate) fn rows(table: &str) -> impl Iterator<Item = Vec<&str>> {
    let lines = table.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.map(|line| line.split('|').map(str::trim).collect())
}

/// Reads a cell word by word; a cell that `parse` does not know is a slip in the table, and is shown.
pub(crate) fn read<T>(cell: &str, parse: impl Fn(&[&str]) -> Option<T>) -> T {
    let words: Vec<&str> = cell.split_whitespace().collect();
    let value = parse(&words);
    assert!(value.is_some(), "the table has a cell that nobody understands: {cell:?}");
    value.expect("just asserted")
}

/// An amount in credits, as in `12.5`.
pub(crate) fn credits(text: &str) -> Option<CreditUnit> {
    text.parse().ok()
}

/// A span in hours, as in `24h`.
pub(crate) fn hours(text: &str) -> Option<Span> {
    let hours: u32 = text.strip_suffix('h')?.parse().ok()?;
    Some(Span::from_secs(hours * 60 * 60))
}

/// An id of any kind.
pub(crate) fn id<K: IdKind>(text: &str) -> Id<K> {
    text.parse().expect("the tests use plain ids")
}

/// A reason.
pub(crate) fn reason(text: &str) -> Reason {
    text.parse().expect("the tests use plain reasons")
}
