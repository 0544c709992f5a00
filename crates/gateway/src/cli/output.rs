//! How answers are shown: a table on a terminal, plain columns in a pipe, and the answer itself with `--json`.

use comfy_table::{Cell, CellAlignment, ContentArrangement, Row, Table, presets};
use serde_json::Value;
use std::io::{self, IsTerminal, Write};

/// A column or line of what is shown: its title, and the field that it shows.
pub(super) type Field = (&'static str, &'static str);

/// Narrower than this, a terminal does not know its own width.
const WIDTH_MIN: u16 = 40;

/// Who reads the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reader {
    /// A program: answers come as they are.
    Program,
    /// A person at a terminal: tables with lines.
    Terminal,
    /// A person behind a pipe: plain columns.
    Pipe,
}

/// Where answers go.
pub(super) struct Output {
    reader: Reader,
}

impl Output {
    /// Output for programs.
    pub(super) const fn for_programs() -> Self {
        Self { reader: Reader::Program }
    }

    /// Output for people, wherever they read it.
    pub(super) fn for_people() -> Self {
        Self { reader: if io::stdout().is_terminal() { Reader::Terminal } else { Reader::Pipe } }
    }

    /// Whether programs read it.
    pub(super) fn is_json(&self) -> bool {
        self.reader == Reader::Program
    }

    /// Writes one line.
    pub(super) fn line(&self, line: &str) -> io::Result<()> {
        writeln!(io::stdout().lock(), "{line}")
    }

    /// Shows the fields of an object that it has, one per line.
    pub(super) fn object(&self, value: &Value, fields: &[Field]) -> io::Result<()> {
        let mut table = self.table();
        for (title, field) in fields {
            if let Some(shown) = value.get(field).and_then(text) {
                table.add_row([(*title).to_owned(), shown]);
            }
        }
        self.finish(table)
    }

    /// Shows a list of objects, one per row.
    pub(super) fn rows(&self, rows: &[Value], fields: &[Field]) -> io::Result<()> {
        let mut table = self.table();
        table.set_header(fields.iter().map(|(title, _)| *title));
        for row in rows {
            let cell = |(_, field): &Field| {
                let shown = row.get(field).and_then(text).unwrap_or_default();
                let is_number = shown.starts_with(|first: char| first.is_ascii_digit() || first == '-');
                let number = is_number && shown.bytes().all(|byte| byte.is_ascii_digit() || b"-.".contains(&byte));
                Cell::new(shown).set_alignment(if number { CellAlignment::Right } else { CellAlignment::Left })
            };
            table.add_row(Row::from(fields.iter().map(cell).collect::<Vec<_>>()));
        }
        self.finish(table)
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        if self.reader == Reader::Terminal {
            table.load_preset(presets::UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic);
            // A terminal that does not know its width says 0: better too wide than a letter a line.
            if table.width().is_none_or(|width| width < WIDTH_MIN) {
                table.set_content_arrangement(ContentArrangement::Disabled);
            }
        } else {
            table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        }
        table
    }

    /// Writes a table without spaces at the ends of its lines.
    fn finish(&self, mut table: Table) -> io::Result<()> {
        if self.reader != Reader::Terminal {
            for column in table.column_iter_mut() {
                column.set_padding((0, 2));
            }
        }
        let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
        self.line(&lines.join("\n"))
    }
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        Value::Array(items) if items.iter().all(Value::is_string) => {
            Some(items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", "))
        }
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => Some(value.to_string()),
    }
}
