//! What came of the kills, as a table.

use std::fmt;
use std::time::Duration;

/// One way to kill one of the processes.
#[derive(Debug, Clone)]
pub struct Row {
    /// Whom.
    pub side: &'static str,
    /// Where.
    pub name: &'static str,
    /// How often.
    pub kills: u64,
    /// Of these, before it served.
    pub at_start: u64,
}

impl Row {
    pub(super) const fn new(side: &'static str, name: &'static str) -> Self {
        Self { side, name, kills: 0, at_start: 0 }
    }
}

/// What came of a run.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// One row per way to kill.
    pub rows: Vec<Row>,
    /// How many pieces of work there were.
    pub items: u64,
    /// Of these, how many ended finished, abandoned and partial.
    pub ended: [u64; 3],
    /// How many ends callers were told of, and how many they were refused.
    pub told: [u64; 2],
    /// How many were still open, and were ended at last.
    pub open: u64,
    /// How long it took.
    pub took: Duration,
    /// What is wrong, one line each.
    pub faults: Vec<String>,
}

impl Report {
    /// How often a process was killed.
    #[must_use]
    pub fn kills(&self) -> u64 {
        self.rows.iter().map(|row| row.kills).sum()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "{:<8} {:<28} {:>6} {:>9}", "process", "killed at", "kills", "at start")?;
        for Row { side, name, kills, at_start } in &self.rows {
            writeln!(out, "{side:<8} {name:<28} {kills:>6} {at_start:>9}")?;
        }
        let [finished, abandoned, partial] = self.ended;
        let [done, refused] = self.told;
        let seconds = self.took.as_secs_f64();
        writeln!(out, "{} kills in {seconds:.1} s", self.kills())?;
        writeln!(out, "{} items: {finished} finished, {abandoned} abandoned, {partial} partial", self.items)?;
        writeln!(out, "{} were open at the end of the kills, and have ended since", self.open)?;
        writeln!(out, "{done} ends were answered, {refused} refused because another was first")
    }
}
