//! What people see: lines, notes and progress bars. A reader that has gone away ends nothing.

use holdfast_adapters::postgres::ledger::{Observer, Trouble};
use holdfast_engine::recovery::Progress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Writes a line to standard output at once. Whether anybody reads it does not matter to a server.
pub(crate) fn say(line: &str) {
    let mut out = io::stdout().lock();
    let _nobody_reads = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Writes a line about what goes on to standard error.
pub(crate) fn note(line: &str) {
    let _nobody_reads = writeln!(io::stderr().lock(), "holdfast: {line}");
}

/// A progress bar on standard error: there only if that is a terminal.
pub(crate) struct Bar(ProgressBar);

impl Bar {
    /// A bar that counts entries.
    pub(crate) fn entries(what: &'static str) -> Self {
        let target =
            if io::stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let template = "{msg} {wide_bar} {human_pos} of {human_len} entries, {elapsed}";
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        Self(ProgressBar::with_draw_target(Some(0), target).with_style(style).with_message(what))
    }

    /// How far it has come.
    pub(crate) fn set(&self, progress: Progress) {
        if self.0.length() != Some(progress.total) {
            self.0.set_length(progress.total);
        }
        // A frame without entries says 0.
        self.0.set_position(progress.done.max(self.0.position()));
    }

    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        self.0.finish_and_clear();
    }
}

/// How often the same trouble is told.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// Tells of trouble on the way to the database, not too often.
#[derive(Default)]
pub(crate) struct DatabaseLog(Mutex<Option<Instant>>);

impl Observer for DatabaseLog {
    fn trouble(&self, trouble: &Trouble) {
        let line = match trouble {
            // Counted in /health: with several nodes it is no trouble.
            Trouble::Overtaken => return,
            Trouble::Lost(said) => format!("the database does not answer: {said}; it is tried again"),
            Trouble::InDoubt => "a commit's answer was lost; what became of it is being found out".to_owned(),
            Trouble::Refused(said) => format!("the database refuses: {said}"),
        };
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none_or(|last| last.elapsed() >= TELL_EVERY) {
            *last = Some(Instant::now());
            note(&line);
        }
    }
}
