//! A table in plain text: names to the left, figures to the right.

use std::io::{self, Write};

/// One field of a line.
#[derive(Debug, Clone)]
pub(crate) enum Cell {
    /// Padded on its right.
    Name(String),
    /// Padded on its left.
    Figure(String),
    /// Takes the rest of its line and widens no column.
    Reason(String),
}

/// Lines under a head.
#[derive(Debug)]
pub(crate) struct Table {
    head: Vec<String>,
    lines: Vec<Vec<Cell>>,
}

impl Table {
    pub(crate) fn new(head: impl IntoIterator<Item = String>) -> Self {
        Self { head: head.into_iter().collect(), lines: Vec::new() }
    }

    pub(crate) fn push(&mut self, line: Vec<Cell>) {
        self.lines.push(line);
    }

    pub(crate) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let widths: Vec<usize> = (0..self.head.len()).map(|column| self.width(column)).collect();
        // A head stands over its column: over figures to the right like them.
        let head = self.head.iter().enumerate().map(|(column, name)| {
            match self.lines.iter().find_map(|line| line.get(column)) {
                Some(Cell::Figure(_)) => Cell::Figure(name.clone()),
                Some(Cell::Name(_) | Cell::Reason(_)) | None => Cell::Name(name.clone()),
            }
        });
        print_line(out, &head.collect::<Vec<_>>(), &widths)?;
        self.lines.iter().try_for_each(|line| print_line(out, line, &widths))
    }

    fn width(&self, column: usize) -> usize {
        let cells = self.lines.iter().filter_map(|line| line.get(column)).map(|cell| match cell {
            Cell::Name(text) | Cell::Figure(text) => text.chars().count(),
            Cell::Reason(_) => 0,
        });
        cells.chain([self.head[column].chars().count()]).max().unwrap_or(0)
    }
}

fn print_line(out: &mut impl Write, line: &[Cell], widths: &[usize]) -> io::Result<()> {
    let cells = line.iter().zip(widths).map(|(cell, width)| match cell {
        Cell::Name(text) => format!("{text:<width$}"),
        Cell::Figure(text) => format!("{text:>width$}"),
        Cell::Reason(text) => text.clone(),
    });
    let text = cells.collect::<Vec<_>>().join("  ");
    writeln!(out, "{}", text.trim_end())
}
