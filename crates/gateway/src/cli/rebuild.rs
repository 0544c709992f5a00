//! `holdfast rebuild`: throws away everything derived from the journal and derives it anew.

use super::{Ended, Session};
use crate::failure::Failure;
use crate::journal_files::check_not_behind;
use crate::node;
use crate::terminal::{self, Bar};
use holdfast_adapters::{ReadModel, SystemClock, read_model};
use holdfast_engine::recovery::{self, Progress};
use holdfast_engine::{Engine, Projection, Tail};
use holdfast_journal::{LocalDisk, OpenError, verify};
use serde_json::json;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// How many entries the read model takes at once.
const APPLY_MAX: usize = 16_384;

pub(super) fn run(session: &Session<'_>) -> Result<(), Ended> {
    let data = session.cli.global.data.as_path();
    if !data.join("journal").is_dir() {
        return Err(Failure::NoData(data.to_owned()).into());
    }
    let _lock = node::lock(data)?;
    let disk = LocalDisk::at(data).map_err(Failure::io(format!("open {}", data.display())))?;
    check(&disk)?;

    recovery::forget_derived(&disk).map_err(Failure::io("remove what was derived"))?;
    read_model::remove(data).map_err(Failure::io("remove the read model"))?;
    let (began, bar) = (Instant::now(), Bar::entries("books"));
    let opened = recovery::open(disk.clone(), &node::config(&session.settings)?, &mut |progress| bar.set(progress))
        .map_err(Failure::from)?;
    bar.finish();
    let books = began.elapsed();
    if opened.report.recovered.verified.tail.is_some() {
        terminal::note(&node::describe(&opened.report));
    }

    let end = opened.journal.end();
    let entries = end.next_offset - 1;
    let (began, bar) = (Instant::now(), Bar::entries("read model"));
    let mut model = ReadModel::open(data, opened.journal.id(), entries).map_err(Failure::from)?;
    let mut tail = Tail::new(disk.clone(), model.applied());
    while tail.feed(end.location, APPLY_MAX, &mut model).map_err(Failure::from)? {
        bar.set(Progress { done: tail.applied().through, total: entries });
    }
    bar.finish();
    let read_model = began.elapsed();

    // Stopping an engine leaves a snapshot, so that the next start is quick.
    let engine = Engine::start(opened, disk, Arc::new(SystemClock::start()), node::policy(&session.settings));
    engine.stop().map_err(Failure::JournalFailed)?;

    let result = json!({
        "ok": true,
        "entries": entries,
        "books_ms": millis(books),
        "books_entries_per_s": per_second(entries, books),
        "read_model_ms": millis(read_model),
        "read_model_entries_per_s": per_second(entries, read_model),
    });
    if session.output.is_json() {
        return Ok(session.output.line(&result.to_string())?);
    }
    let fields = [
        ("entries", "entries"),
        ("books, entries/s", "books_entries_per_s"),
        ("read model, entries/s", "read_model_entries_per_s"),
    ];
    Ok(session.output.object(&result, &fields)?)
}

/// Nothing is thrown away unless the journal can replace it: it must be sound, and hold all that was ever derived from it.
fn check(disk: &LocalDisk) -> Result<(), Failure> {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let found = verify(disk, threads, &|_, _| {})?.ok_or(OpenError::Missing { segment: 1 })?;
    Ok(check_not_behind(disk, found.end.next_offset - 1)?)
}

fn millis(took: Duration) -> u64 {
    u64::try_from(took.as_millis()).unwrap_or(u64::MAX)
}

fn per_second(entries: u64, took: Duration) -> u64 {
    entries.saturating_mul(1_000) / millis(took).max(1)
}
