//! Books in a data directory, which nobody else holds: read to a file, and made from one.
//!
//! An import makes the journal below `DIR/import` and gives it its place at the end. What a crash leaves is a data directory without
//! entries; the next import begins anew.

use super::file::sync_parent;
use super::{Checked, Engine, Head, Item, Late, Moved, MovingError, Owed, Writer, check};
use holdfast_domain::delivery::Part;
use holdfast_engine::moving::{NotTaken, Owing, Stands, Sums};
use holdfast_engine::recovery::{self, OpenConfig, Opened, Progress, StartError};
use holdfast_engine::{Corrupt, Ledger, OnDisk, Record};
use holdfast_journal::{Batch, Disk, Frames, Journal, LocalDisk, Location, OpenError, ReadError, failpoint, verify};
use std::fs;
use std::io;
use std::path::Path;

/// Where an import makes the journal, below the data directory.
const STAGE: &str = "import";
/// How many entries a frame takes.
const FRAME_ENTRIES: u32 = 4_096;

/// Writes all entries of the data directory at `data` to `file`.
///
/// # Errors
/// If the books are not sound, or the file is there already or cannot be written.
pub fn export(
    data: &Path,
    config: &OpenConfig,
    file: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<Moved, MovingError> {
    if file.exists() {
        return Err(MovingError::Exists(file.to_owned()));
    }
    let disk = LocalDisk::at(data).map_err(MovingError::io(data))?;
    let opened = recovery::open(disk.clone(), config, &mut |_| {})?;
    let end = opened.journal.end();
    let entries = end.next_offset - 1;
    let mut writer = Writer::create(file, Head::new(Engine::Embedded, opened.journal.id().0, entries))?;
    let mut frames = Frames::starting(disk, Location::START);
    while let Some(frame) = frames.next(end.location).map_err(StartError::from)? {
        for stored in frame.records() {
            let stored = stored.map_err(|_| StartError::from(ReadError::Damaged { location: frame.location }))?;
            let unreadable = Corrupt { offset: stored.offset, what: "it cannot be decoded" };
            let record = Record::decode(stored.body).ok_or(StartError::from(unreadable))?;
            writer.entry(&record)?;
            progress(Progress { done: record.offset, total: entries });
        }
    }
    for stands in opened.ledger.stands() {
        writer.stands(&stands)?;
    }
    let sums = opened.ledger.sums(entries);
    writer.finish(sums.map_err(|_| MovingError::Inconsistent("a sum is out of range".to_owned()))?)
}

/// Makes the books of the data directory at `data`, which are empty, from `file`.
///
/// # Errors
/// If they are not empty, or the file is not a whole export that the rules allow. Then nothing is to be seen of it.
pub fn import(
    data: &Path,
    config: &OpenConfig,
    (file, late): (&Path, Late),
    progress: &mut dyn FnMut(Progress),
) -> Result<Moved, MovingError> {
    let disk = LocalDisk::at(data).map_err(MovingError::io(data))?;
    check_empty(&disk, data)?;
    let checked = check(file, &mut |_| {})?;
    let stage = data.join(STAGE);
    if stage.exists() {
        // What an import left that did not come to its end.
        fs::remove_dir_all(&stage).map_err(MovingError::io(&stage))?;
    }
    fs::create_dir(&stage).map_err(MovingError::io(&stage))?;
    let taken = take(&stage, config, (&checked, late), progress);
    let placed = taken.and_then(|(found, owed)| {
        put_in_place(&disk, data, &stage)?;
        Ok(Moved { head: checked.head.clone(), sums: checked.sums, found, blake3: checked.blake3.clone(), owed })
    });
    // Done or not, nobody needs it any more; what cannot be removed is removed by the next import.
    let _removed = fs::remove_dir_all(&stage).is_ok();
    placed
}

/// Makes a journal below `stage` from a file, and compares what came of it.
fn take(
    stage: &Path,
    config: &OpenConfig,
    (checked, late): (&Checked, Late),
    progress: &mut dyn FnMut(Progress),
) -> Result<(Sums, Owed), MovingError> {
    let staged = LocalDisk::at(stage).map_err(MovingError::io(stage))?;
    let mut taking = Taking::begin(staged, config)?;
    let mut lines = checked.again()?;
    let mut stands = None;
    while let Some(item) = lines.next()? {
        match item {
            Item::Entry(record) => {
                taking.entry(&record)?;
                progress(Progress { done: taking.batch.next().1 - 1, total: checked.head.entries });
            }
            Item::Stands(said) => {
                let stands = stands.get_or_insert_with(|| taking.ledger.stands().into_iter());
                same(&said, stands.next().as_ref())?;
            }
        }
    }
    let mut stands = stands.unwrap_or_else(|| taking.ledger.stands().into_iter());
    if let Some(more) = stands.next() {
        return Err(differ(&"no more", &more));
    }
    let entries = taking.batch.next().1 - 1;
    let found = taking.ledger.sums(entries).map_err(|_| differ(&checked.sums, &"a sum out of range"))?;
    if found != checked.sums {
        return Err(differ(&checked.sums, &found));
    }
    let owed = taking.end()?;
    if owed.renamed > 0 && late == Late::Refuse {
        return Err(MovingError::LateResults { count: owed.renamed });
    }
    Ok((found, owed))
}

/// A journal that entries are taken into.
struct Taking {
    disk: LocalDisk,
    journal: Journal<LocalDisk>,
    ledger: Ledger<OnDisk<LocalDisk>>,
    batch: Batch,
    owing: Owing,
}

impl Taking {
    fn begin(disk: LocalDisk, config: &OpenConfig) -> Result<Self, MovingError> {
        let Opened { journal, ledger, .. } = recovery::open(disk.clone(), config, &mut |_| {})?;
        let batch = Batch::begin(journal.cursor(), Vec::new());
        Ok(Self { disk, journal, ledger, batch, owing: Owing::default() })
    }

    fn entry(&mut self, record: &Record) -> Result<(), MovingError> {
        if self.batch.count() >= FRAME_ENTRIES || !self.batch.has_room() {
            self.append()?;
            failpoint::pass("import.mid_entries");
        }
        self.ledger.take_over(record, &mut self.batch).map_err(refused)?;
        let out_of_range = |_| MovingError::Refused { offset: record.offset, why: "out of range".to_owned() };
        self.owing.add(record).map_err(out_of_range)
    }

    /// Makes the batch durable, and begins the next.
    fn append(&mut self) -> Result<(), MovingError> {
        let Self { disk, journal, ledger, batch, .. } = self;
        ledger.closed(batch);
        let io = |error: io::Error| MovingError::Start(error.into());
        let end = journal.append(batch).map_err(|error| io(io::Error::other(error)))?;
        ledger.durable(end.location);
        while ledger.tidy_keys(disk, end.next_offset - 1).map_err(io)? {}
        *batch = Batch::begin(journal.cursor(), Vec::new());
        Ok(())
    }

    /// Makes all of it durable.
    fn end(mut self) -> Result<Owed, MovingError> {
        if !self.batch.is_empty() {
            self.append()?;
        }
        // A seal: the last frame is not mistaken for a torn one.
        self.append()?;
        let parts = || self.owing.due.values().flatten();
        let renamed = parts().filter(|due| due.part == Part::Late).count() as u64;
        Ok(Owed { pending: parts().count() as u64, renamed, given_up: self.owing.given_up.len() as u64 })
    }
}

/// Refuses a data directory in which there ever was an entry.
fn check_empty(disk: &LocalDisk, data: &Path) -> Result<(), MovingError> {
    let io = MovingError::io;
    let snapshots = disk.list("snapshots").map_err(io(data))?;
    let snapshots = snapshots.iter().filter_map(|name| name.strip_suffix(".snap")?.parse().ok()).max().unwrap_or(0);
    let found = match disk.list("journal").map_err(io(data))?.as_slice() {
        [] => None,
        [..] => verify(disk, 1, &|_, _| {}).map_err(|error: OpenError| StartError::from(error))?,
    };
    let entries = found.map_or(0, |found| found.end.next_offset - 1).max(snapshots);
    let target = data.display().to_string();
    if entries == 0 { Ok(()) } else { Err(MovingError::NotEmpty { target, entries }) }
}

/// Gives the new journal its place. All else that an engine needs is derived from it at the next start.
fn put_in_place(disk: &LocalDisk, data: &Path, stage: &Path) -> Result<(), MovingError> {
    let journal = data.join("journal");
    let io = MovingError::io;
    failpoint::pass("import.before_commit");
    recovery::forget_derived(disk).map_err(io(data))?;
    if journal.exists() {
        // It has no entries.
        fs::rename(&journal, stage.join("empty")).map_err(io(&journal))?;
    }
    fs::rename(stage.join("journal"), &journal).map_err(io(&journal))?;
    sync_parent(&journal).map_err(io(data))?;
    failpoint::pass("import.after_commit");
    Ok(())
}

pub(crate) fn refused(error: NotTaken) -> MovingError {
    match error {
        NotTaken::Corrupt(Corrupt { offset, what }) => MovingError::Refused { offset, why: what.to_owned() },
        NotTaken::Unread(refusal) => MovingError::Start(io::Error::other(refusal.to_string()).into()),
    }
}

/// Whether somebody stands as the file says.
pub(crate) fn same(said: &Stands, found: Option<&Stands>) -> Result<(), MovingError> {
    match found {
        Some(found) if found == said => Ok(()),
        Some(found) => Err(differ(said, found)),
        None => Err(differ(said, &"nothing like it")),
    }
}

pub(crate) fn differ(file: &dyn std::fmt::Debug, target: &dyn std::fmt::Debug) -> MovingError {
    MovingError::Differ { file: format!("{file:?}"), target: format!("{target:?}") }
}
