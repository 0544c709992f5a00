//! A node: its data directory under the lock, and the engine that holds the books, in the directory or in a database.

use crate::books::{Books, Embedded, Shared};
use crate::failure::Failure;
use crate::identity::{Identity, IdentityError};
use crate::settings::{KEYS_STALE_AFTER, Settings};
use crate::terminal;
use crate::wire::ids;
use holdfast_adapters::postgres::ledger::{LANES, Rules, Settles};
use holdfast_adapters::postgres::{self, Database, Pool, PostgresLedger};
use holdfast_adapters::{ReadModel, SystemClock};
use holdfast_engine::recovery::{self, OpenConfig, Progress, Report};
use holdfast_engine::{Engine, Limits, OPEN_HOLDS_MAX, Policy, Projection};
use holdfast_journal::{Config, DirLock, JournalId, LocalDisk};
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// What serves the books.
pub(crate) struct Node {
    /// For whoever asks.
    pub(crate) books: Books,
    pub(crate) data: PathBuf,
    pub(crate) clock: Arc<SystemClock>,
    pub(crate) engine: Running,
    /// What all nodes on a database know of callers; `None` if that is in the data directory.
    pub(crate) identity: Option<Arc<Identity>>,
    /// Let go last, when nothing of this process touches the directory any more.
    _lock: DirLock,
}

/// The engine that runs.
pub(crate) enum Running {
    /// In the data directory.
    Embedded(Local),
    /// In a database, which other nodes share.
    Postgres(Arc<PostgresLedger>),
}

/// The engine in a data directory.
pub(crate) struct Local {
    /// For those who follow its journal.
    pub(crate) engine: Arc<Engine<LocalDisk>>,
    pub(crate) report: Report,
    /// Those who follow the journal.
    followers: Vec<JoinHandle<()>>,
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

/// Does something with what all nodes on a database know of callers, whether or not one of them runs.
pub(crate) fn with_shared_identity<T: Send + 'static>(
    database: &Database,
    work: impl FnOnce(Identity) -> Result<T, IdentityError> + Send + 'static,
) -> Result<T, Failure> {
    let runtime = Builder::new_current_thread().enable_all().build().map_err(Failure::io("start a thread"))?;
    join(&runtime, database, KEYS_STALE_AFTER, work)
}

/// Joins those who share a database, and works with what they know, on a thread that may wait.
fn join<T: Send + 'static>(
    runtime: &Runtime,
    database: &Database,
    stale_after: Duration,
    work: impl FnOnce(Identity) -> Result<T, IdentityError> + Send + 'static,
) -> Result<T, Failure> {
    let (database, handle) = (database.clone(), runtime.handle().clone());
    let joining = runtime.spawn_blocking(move || Identity::join(database, &handle, stale_after).and_then(work));
    let joined = runtime.block_on(joining).map_err(|_| Failure::Stuck("the one who asked the database panicked"))?;
    joined.map_err(Failure::from)
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
    /// Starts the engine that the settings ask for; in `runtime`, if it is one in a database.
    pub(crate) fn open(
        lock: DirLock,
        data: &Path,
        settings: &Settings,
        (runtime, settles): (&Runtime, Settles),
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Self, Failure> {
        match &settings.database {
            None => Self::start(lock, data, settings, progress),
            Some(database) => {
                let node = runtime.block_on(Self::connect(lock, data, database, settles))?;
                let join = join(runtime, database, settings.keys_stale_after, Ok);
                Ok(Self { identity: Some(Arc::new(join?)), ..node })
            }
        }
    }

    /// Joins those who share the books in a database.
    async fn connect(lock: DirLock, data: &Path, database: &Database, settles: Settles) -> Result<Self, Failure> {
        let pool = Pool::new(database.clone(), postgres::Limits::USUAL);
        let roles: &[&str] = &postgres::DECIDES;
        postgres::check(&mut pool.lend().await?, roles).await?;
        let rules = Rules { limits: Limits { open_holds: OPEN_HOLDS_MAX }, settles, lanes: LANES };
        let ledger = PostgresLedger::open(database.clone(), rules, Arc::new(terminal::DatabaseLog::default())).await?;
        let ledger = Arc::new(ledger);
        let books = Books::Postgres(Arc::new(Shared::start(Arc::clone(&ledger))));
        let (data, clock) = (data.to_owned(), Arc::new(SystemClock::start()));
        Ok(Self { books, data, clock, engine: Running::Postgres(ledger), identity: None, _lock: lock })
    }

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
        let engine = Running::Embedded(Local { engine, report, followers });
        Ok(Self { books, engine, data: data.to_owned(), clock, identity: None, _lock: lock })
    }

    /// What its start found, on one line.
    pub(crate) fn describe(&self) -> String {
        match &self.engine {
            Running::Embedded(local) => describe(&local.report),
            Running::Postgres(_) => "the books are in PostgreSQL".to_owned(),
        }
    }

    /// Finishes what waits.
    pub(crate) fn stop(self) -> Result<(), Failure> {
        let Self { books, engine, .. } = self;
        drop(books);
        match engine {
            Running::Embedded(local) => local.stop(),
            // Whoever waits for an answer has been waited for; the database has the rest.
            Running::Postgres(_) => Ok(()),
        }
    }
}

impl Local {
    /// Has something else follow the journal until the node stops.
    pub(crate) fn follow(&mut self, projection: impl Projection) {
        self.followers.push(self.engine.follow(projection));
    }

    /// The journal, and its last entry when it was opened.
    pub(crate) const fn journal_end(&self) -> (JournalId, u64) {
        let found = &self.report.recovered.verified;
        (found.id, found.end.next_offset - 1)
    }

    /// Seals the journal, leaves a snapshot, and waits for those who follow it.
    fn stop(self) -> Result<(), Failure> {
        let Self { engine, followers, .. } = self;
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
