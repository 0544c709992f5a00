//! A data directory with its one engine running: opened under the lock, stopped in order.

use crate::books::{Books, Embedded};
use crate::failure::Failure;
use crate::settings::Settings;
use crate::wire::ids;
use holdfast_adapters::{ReadModel, SystemClock};
use holdfast_engine::recovery::{self, OpenConfig, Progress, Report};
use holdfast_engine::{Engine, Limits, OPEN_HOLDS_MAX, Policy, Projection};
use holdfast_journal::{Config, DirLock, JournalId, LocalDisk};
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// What serves a data directory.
pub(crate) struct Node {
    /// For whoever asks.
    pub(crate) books: Books,
    /// For those who follow its journal.
    pub(crate) engine: Arc<Engine<LocalDisk>>,
    pub(crate) data: PathBuf,
    pub(crate) clock: Arc<SystemClock>,
    pub(crate) report: Report,
    /// Those who follow the journal.
    followers: Vec<JoinHandle<()>>,
    /// Let go last, when nothing of this process touches the directory any more.
    _lock: DirLock,
}

/// Takes the lock of a data directory, which is made if it is not there: for this user alone, as keys lie in it.
pub(crate) fn lock(data: &Path) -> Result<DirLock, Failure> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(data)
        .map_err(Failure::io(format!("make {}", data.display())))?;
    DirLock::take(data).map_err(|error| Failure::lock(data, error))
}

/// How this program opens a data directory.
pub(crate) fn config(settings: &Settings) -> Result<OpenConfig, Failure> {
    let id = JournalId(ids::random().map_err(Failure::io("get random bytes"))?);
    let verify_threads = thread::available_parallelism().map_or(1, usize::from);
    Ok(OpenConfig {
        journal: Config { segment_bytes: settings.segment_bytes, id, verify_threads },
        limits: Limits { open_holds: OPEN_HOLDS_MAX },
        keys_in_memory: settings.keys_in_memory,
    })
}

/// When upkeep happens.
pub(crate) const fn policy(settings: &Settings) -> Policy {
    Policy { snapshot_entries: settings.snapshot_entries, segment_bytes: settings.segment_bytes, ..Policy::STANDARD }
}

impl Node {
    /// Recovers the directory, and starts the engine and the read model on it.
    pub(crate) fn start(
        lock: DirLock,
        data: &Path,
        settings: &Settings,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Self, Failure> {
        let disk = LocalDisk::at(data).map_err(Failure::io(format!("open {}", data.display())))?;
        let opened = recovery::open(disk.clone(), &config(settings)?, progress)?;
        let report = opened.report;
        let (id, last) = (opened.journal.id(), opened.journal.end().next_offset - 1);
        let read_model = ReadModel::open(data, id, last)?;
        let clock = Arc::new(SystemClock::start());
        let engine = Engine::start(opened, disk.clone(), Arc::clone(&clock) as _, policy(settings));
        let followers = vec![engine.follow(read_model)];
        let engine = Arc::new(engine);
        let books = Books::Embedded(Arc::new(Embedded::new(Arc::clone(&engine), disk, report)));
        Ok(Self { books, engine, data: data.to_owned(), clock, report, followers, _lock: lock })
    }

    /// Has something else follow the journal until the node stops.
    pub(crate) fn follow(&mut self, projection: impl Projection) {
        self.followers.push(self.engine.follow(projection));
    }

    /// The journal, and its last entry when it was opened.
    pub(crate) const fn journal_end(&self) -> (JournalId, u64) {
        let found = &self.report.recovered.verified;
        (found.id, found.end.next_offset - 1)
    }

    /// Finishes what waits, seals the journal, leaves a snapshot, and waits for those who follow it.
    pub(crate) fn stop(self) -> Result<(), Failure> {
        let Self { books, engine, followers, .. } = self;
        drop(books);
        let engine = Arc::into_inner(engine).ok_or(Failure::Stuck("a request is still being answered"))?;
        engine.stop().map_err(Failure::JournalFailed)?;
        let joined = followers.into_iter().try_for_each(JoinHandle::join);
        joined.map_err(|_| Failure::Stuck("one who follows the journal panicked"))
    }
}

/// What an opening found and did, on one line.
pub(crate) fn describe(report: &Report) -> String {
    let found = &report.recovered.verified;
    if report.recovered.created {
        return format!("began journal {}", found.id);
    }
    let entries = found.end.next_offset - 1;
    let mut line = format!("recovered {entries} entries in {} segments of journal {}: ", found.segments, found.id);
    match report.snapshot {
        Some(through) => line.push_str(&format!("snapshot at entry {through}, ")),
        None => line.push_str("no snapshot, "),
    }
    line.push_str(&format!("{} entries replayed", report.replayed));
    if report.bad_snapshots > 0 {
        line.push_str(&format!(", {} damaged snapshots passed over", report.bad_snapshots));
    }
    if report.reindexed > 0 {
        line.push_str(&format!(", keys of {} entries indexed anew", report.reindexed));
    }
    if let Some(cut) = found.tail {
        line.push_str(&format!(", torn tail of {} bytes cut at {}", cut.bytes, cut.location));
    }
    line
}
