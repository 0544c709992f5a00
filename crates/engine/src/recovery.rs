//! From a data directory to a ledger: verify the journal, load the newest good snapshot, replay what came after, check.
//!
//! Nothing is served before all of it has held: every frame's checksum and hash, every replayed entry's balances, and
//! the sum over all accounts.

use crate::archive::OnDisk;
use crate::book::Book;
use crate::keys::Keys;
use crate::ledger::{Ledger, Limits};
use crate::record::Record;
use crate::replay::Corrupt;
use crate::snapshot::{self, Loaded};
use holdfast_journal::{Batch, Config, Disk, Frames, Journal, Location, OpenError, ReadError, Recovered};
use std::io;

/// How a data directory is opened.
#[derive(Debug, Clone, Copy)]
pub struct OpenConfig {
    /// The journal's layout.
    pub journal: Config,
    /// Bounds that the deployment sets.
    pub limits: Limits,
    /// How many keys collect in memory before they are written out, if not the usual number.
    pub keys_in_memory: Option<usize>,
}

/// What an opening found and did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// Of the journal.
    pub recovered: Recovered,
    /// The last entry of the snapshot that was started from.
    pub snapshot: Option<u64>,
    /// Snapshots that were passed over because they were damaged.
    pub bad_snapshots: u32,
    /// Entries replayed after the snapshot.
    pub replayed: u64,
    /// Entries whose keys had to be indexed anew.
    pub reindexed: u64,
}

/// A data directory, ready for its one writer.
pub struct Opened<D: Disk> {
    /// The writing end of the journal.
    pub journal: Journal<D>,
    /// The books.
    pub ledger: Ledger<OnDisk<D>>,
    /// What was found and done.
    pub report: Report,
}

/// How far an opening has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Entries done.
    pub done: u64,
    /// Entries in all.
    pub total: u64,
}

/// Why a data directory cannot be served. Nothing has been changed.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The journal is not sound.
    #[error(transparent)]
    Journal(#[from] OpenError),
    /// An entry does not follow from those before it.
    #[error("{0}; restore the journal from a copy")]
    Corrupt(#[from] Corrupt),
    /// The journal ends before something derived from it: its newest part is gone.
    #[error(
        "the journal ends at entry {journal}, but the {what} has seen entry {seen}: newer segments are missing; restore them"
    )]
    JournalBehind {
        /// The last entry of the journal.
        journal: u64,
        /// The last entry that was seen.
        seen: u64,
        /// By what.
        what: &'static str,
    },
    /// The balances do not sum to zero.
    #[error(
        "the books do not balance: all accounts sum to {accounts} and holds differ by {holds}; restore the journal from a copy"
    )]
    Unbalanced {
        /// The sum over all accounts.
        accounts: i128,
        /// The difference between accounts and open holds.
        holds: i128,
    },
    /// A record could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A file could not be read or written.
    #[error("the data directory cannot be used: {0}")]
    Io(#[from] io::Error),
}

impl StartError {
    /// The stable code of this error.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Journal(error) => error.code(),
            Self::Corrupt(_) => "JOURNAL_ENTRY_CORRUPT",
            Self::JournalBehind { .. } => "JOURNAL_BEHIND",
            Self::Unbalanced { .. } => "BOOKS_UNBALANCED",
            Self::Read(_) => "JOURNAL_DAMAGED",
            Self::Io(_) => "DATA_UNUSABLE",
        }
    }
}

/// Opens a data directory.
pub fn open<D: Disk>(
    disk: D,
    config: &OpenConfig,
    progress: &mut dyn FnMut(Progress),
) -> Result<Opened<D>, StartError> {
    let (journal, recovered) = Journal::open(disk.clone(), config.journal)?;
    let last = journal.end().next_offset - 1;
    let (loaded, bad_snapshots) = snapshot::load(&disk, journal.id())?;
    let (keys, indexed) = Keys::open(disk.clone(), config.keys_in_memory)?;
    let snapshot = loaded.as_ref().map(|loaded| loaded.through);
    for (seen, what) in [(snapshot.unwrap_or(0), "snapshot"), (indexed, "key index")] {
        if seen > last {
            return Err(StartError::JournalBehind { journal: last, seen, what });
        }
    }
    let Loaded { location, through, book } =
        loaded.unwrap_or_else(|| Loaded { location: Location::START, through: 0, book: Book::new() });
    let ledger = Ledger::new(disk.clone(), book, keys, config.limits);
    let mut replay = Replay { ledger, journal: &journal, disk: &disk, indexed, progress, reindexed: 0 };
    if indexed < through {
        replay.reindex(through)?;
    }
    let location = replay.place_after(location, through);
    let replayed = replay.run(location, through)?;
    let Replay { ledger, reindexed, .. } = replay;
    let (accounts, holds) = (ledger.book.imbalance(), ledger.book.hold_imbalance());
    if (accounts, holds) != (0, 0) {
        return Err(StartError::Unbalanced { accounts, holds });
    }
    let report = Report { recovered, snapshot, bad_snapshots, replayed, reindexed };
    Ok(Opened { journal, ledger, report })
}

/// Removes everything derived from the journal that [`open`] would start from, so that it reads all of the journal.
pub fn forget_derived<D: Disk>(disk: &D) -> io::Result<()> {
    snapshot::remove_all(disk)?;
    for name in disk.list("keys")? {
        disk.remove(&format!("keys/{name}"))?;
    }
    Ok(())
}

struct Replay<'a, D: Disk> {
    ledger: Ledger<OnDisk<D>>,
    journal: &'a Journal<D>,
    disk: &'a D,
    /// The entry up to which the key index has been read back.
    indexed: u64,
    progress: &'a mut dyn FnMut(Progress),
    reindexed: u64,
}

impl<D: Disk> Replay<'_, D> {
    /// Where to read on after a snapshot: the place that it names, if the entry after it stands there. It need not: the
    /// place counts frames, and a seal holds no entry, so one that the snapshot counted may have been cut since.
    fn place_after(&self, location: Location, through: u64) -> Location {
        let end = self.journal.end();
        if through + 1 == end.next_offset {
            return end.location;
        }
        let mut frames = Frames::starting(self.disk.clone(), location);
        match frames.next(end.location) {
            Ok(Some(frame)) if frame.header.first_offset == through + 1 => location,
            Ok(_) | Err(_) => Location::START,
        }
    }

    /// Applies every entry after `through`, reading from `location`.
    fn run(&mut self, location: Location, through: u64) -> Result<u64, StartError> {
        // Replayed records are all on the disk: a batch that stands beyond them never answers for one.
        let nothing = Batch::begin(self.journal.cursor(), Vec::new());
        let indexed = self.indexed;
        self.each(location, through, |ledger, record, location| ledger.replay(&record, location, &nothing, indexed))
    }

    /// Puts the keys of all entries up to `through` into the index again, after its files were lost.
    fn reindex(&mut self, through: u64) -> Result<(), StartError> {
        let indexed = self.indexed;
        let count = self.each(Location::START, indexed, |ledger, record, location| {
            if record.offset <= through {
                ledger.reindex(&record, location);
            }
            Ok(())
        })?;
        self.reindexed = count.min(through - indexed);
        self.indexed = through;
        Ok(())
    }

    /// Calls `apply` with every entry after `skip`, reading from `location`.
    fn each(
        &mut self,
        location: Location,
        skip: u64,
        mut apply: impl FnMut(&mut Ledger<OnDisk<D>>, Record, Location) -> Result<(), StartError>,
    ) -> Result<u64, StartError> {
        let end = self.journal.end();
        let total = end.next_offset - 1;
        let mut frames = Frames::starting(self.disk.clone(), location);
        let mut count = 0;
        while let Some(frame) = frames.next(end.location)? {
            let mut last = 0;
            for stored in frame.records() {
                let stored = stored.map_err(|_| ReadError::Damaged { location: frame.location })?;
                let unreadable = Corrupt { offset: stored.offset, what: "it cannot be decoded" };
                let record =
                    Record::decode(stored.body).filter(|record| record.offset == stored.offset).ok_or(unreadable)?;
                if record.offset > skip + count + 1 {
                    return Err(Corrupt { offset: record.offset, what: "entries before it are missing" }.into());
                }
                last = record.offset;
                if record.offset > skip {
                    apply(&mut self.ledger, record, stored.location)?;
                    count += 1;
                }
            }
            if last > 0 {
                while self.ledger.tidy_keys(self.disk, last)? {}
                (self.progress)(Progress { done: last, total });
            }
        }
        Ok(count)
    }
}
