//! The store without its threads: what is asked is decided at the desk, written as one frame, and filed, each when somebody says
//! so. [`super::LoggedQueue`] says so on threads of its own; a test does it step by step.
//!
//! # Invariants
//! - Who needs several locks takes them in this order: the filing, the disk, the desk.
//! - Whoever has the disk closes the open batch and writes it: batches reach the disk in the order in which they were closed.
//! - Ended items leave memory after the file has them, so whoever finds one in neither looks again.

use super::desk::{Decided, Desk, NoRoom, Seal};
use super::failure::{Behind, OpenFailed, unusable};
use super::file::{self, NotApplied, Reader, Writer};
use super::items::Items;
use super::known::Known;
use super::record::Step;
use holdfast_domain::queue::{Item, Rank, State, Verdict};
use holdfast_domain::{EscrowId, ItemId, PayeeId, Timestamp};
use holdfast_engine::queue::{Answered, Counts, Filter, Put, QueueFailed};
use holdfast_engine::recovery::StartError;
use holdfast_engine::{Applied, Corrupt};
use holdfast_journal::{Config, Disk, End, Frames, Journal, JournalId, Location, ReadError, failpoint};
use std::cmp::Reverse;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use tokio::sync::{oneshot, watch};

/// The size of the log's segments: items are few beside the ledger's entries.
pub const SEGMENT_BYTES: u32 = 4 * 1_024 * 1_024;
/// How many records are filed in one transaction.
const FILE_MAX: u64 = 16_384;

/// How far the log is durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Progress {
    /// The last durable record.
    pub(super) through: u64,
    /// Where the log ends.
    pub(super) end: Location,
    /// Why nothing more will be durable.
    pub(super) failure: Option<String>,
}

impl Progress {
    fn of(end: End) -> Self {
        Self { through: end.next_offset.saturating_sub(1), end: end.location, failure: None }
    }
}

/// The store without its threads.
pub struct Core<D: Disk> {
    data: PathBuf,
    log: D,
    journal_id: JournalId,
    pub(super) desk: Mutex<Desk>,
    disk: Mutex<Journal<D>>,
    filing: Mutex<Filing<D>>,
    /// `None` while the file is made anew.
    reader: Mutex<Option<Reader>>,
    pub(super) durable: watch::Sender<Progress>,
    replayed: u64,
}

/// Who brings records into the file.
struct Filing<D: Disk> {
    log: D,
    writer: Writer,
    frames: Frames<D>,
    is_damaged: bool,
}

/// Tells those who waited that what they waited for is durable.
pub(super) fn tell(waiting: Vec<oneshot::Sender<()>>) {
    for waiting in waiting {
        // Who has gone away need not be told.
        let _gone = waiting.send(());
    }
}

/// The same; how many they are.
fn tell_all(waiting: Vec<oneshot::Sender<()>>) -> usize {
    let told = waiting.len();
    tell(waiting);
    told
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A thread that panicked left the state half changed, and the process is built to abort on panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<D: Disk> Core<D> {
    /// Opens the log on `log`, and the file in the directory `data`, which is brought to where the log ends.
    ///
    /// # Errors
    /// If the log is not sound, ends before the file does, or the file cannot be written.
    pub fn open(log: D, data: &Path, segment_bytes: u32) -> Result<Self, OpenFailed> {
        Self::try_open(log, data, segment_bytes)
            .map_err(|error| OpenFailed { directory: data.join("queue").display().to_string(), error })
    }

    fn try_open(log: D, data: &Path, segment_bytes: u32) -> Result<Self, StartError> {
        let mut id = [0; 16];
        aws_lc_rs::rand::fill(&mut id).map_err(|_| std::io::Error::other("the system has no randomness to give"))?;
        let config = Config { segment_bytes, id: JournalId(id), verify_threads: threads() };
        let (journal, _) = Journal::open(log.clone(), config)?;
        let (end, journal_id) = (journal.end(), journal.id());
        let last = end.next_offset.saturating_sub(1);
        let writer = Writer::open(data, journal_id).map_err(Behind::from)?;
        if writer.applied.through > last {
            return Err(StartError::JournalBehind {
                journal: last,
                seen: writer.applied.through,
                what: "file queue.db",
            });
        }
        let replayed = last.saturating_sub(writer.applied.through);
        let mut filing = Filing::starting(log.clone(), writer, end);
        let (open, known) = match filing.catch_up(end.location).and_then(|()| filing.look()) {
            Ok(found) => found,
            // A file that looked sound is not: the log says what is in it.
            Err(Behind::Apply(NotApplied::File(_))) => {
                file::remove(data)?;
                filing = Filing::starting(log.clone(), Writer::open(data, journal_id).map_err(Behind::from)?, end);
                filing.catch_up(end.location)?;
                filing.look()?
            }
            Err(error) => return Err(error.into()),
        };
        let mut items = Items::default();
        open.into_iter().for_each(|item| items.set(item, 0));
        let reader = Reader::open(data).map_err(|error| unusable(&error))?;
        Ok(Self {
            data: data.to_owned(),
            log,
            journal_id,
            desk: Mutex::new(Desk::new(items, known, journal.cursor())),
            disk: Mutex::new(journal),
            filing: Mutex::new(filing),
            reader: Mutex::new(Some(reader)),
            durable: watch::Sender::new(Progress::of(end)),
            replayed,
        })
    }

    /// How many records the file had not got when it was opened.
    #[must_use]
    pub const fn replayed(&self) -> u64 {
        self.replayed
    }

    /// Puts a new item.
    pub fn put(&self, item: &Item) -> Result<Decided<Put>, NoRoom> {
        self.with_item(item.intake.id, |desk, filed| desk.put(item, filed))
    }

    /// One item.
    pub fn item(&self, id: ItemId) -> Decided<Option<Item>> {
        let find = |desk: &mut Desk, filed: Option<Item>| {
            let here = desk.items.get(id).map(|kept| (kept.item.clone(), kept.after));
            let (item, after) = here.map_or((filed, 0), |(item, after)| (Some(item), after));
            Ok(Decided { answer: Ok(item), after })
        };
        self.with_item(id, find).unwrap_or_else(|NoRoom| unreachable!("nothing is written"))
    }

    /// Has an item taken up.
    pub fn start(&self, id: ItemId, now: Timestamp) -> Result<Decided<Item>, NoRoom> {
        self.with_item(id, |desk, filed| desk.start(id, filed.as_ref(), now))
    }

    /// Has the first of a payee's waiting items taken up.
    pub fn start_next(&self, payee: PayeeId, now: Timestamp) -> Result<Decided<Option<Item>>, NoRoom> {
        lock(&self.desk).start_next(payee, now)
    }

    /// Ends an item.
    pub fn end(&self, id: ItemId, verdict: Verdict, at: Timestamp) -> Result<Decided<Item>, NoRoom> {
        self.with_item(id, |desk, filed| desk.end(id, filed.as_ref(), verdict, at))
    }

    /// Items in order.
    pub fn list(&self, filter: Filter, at_most: usize) -> Decided<Vec<Item>> {
        let Filter { payee, state, after } = filter;
        let after = match after.map(|id| self.item(id).answer).transpose() {
            Ok(after) => after.flatten(),
            Err(failed) => return Decided { answer: Err(failed), after: 0 },
        };
        let desk = lock(&self.desk);
        match state {
            Some(state @ (State::Finished | State::Abandoned | State::Partial)) => {
                let (here, seen) = (desk.items.ended(state, payee), desk.seen);
                drop(desk);
                let after = after.and_then(|item| Some((file::ended_at(&item)?, item.intake.id)));
                let filed = self.read(|reader| reader.ended(state, payee, after, at_most));
                let answer = filed.map(|filed| last_first(here, filed, after, at_most));
                Decided { answer, after: seen }
            }
            None | Some(State::Queued | State::InProgress) => {
                let after: Option<Rank> = after.map(|item| item.rank());
                Decided { answer: Ok(desk.items.open(state, payee, after, at_most)), after: desk.seen }
            }
        }
    }

    /// Those that nobody took up in time.
    pub fn overdue(&self, now: Timestamp, at_most: usize) -> Decided<Vec<Item>> {
        let desk = lock(&self.desk);
        Decided { answer: Ok(desk.items.overdue(now, at_most)), after: desk.seen }
    }

    /// Which of these escrows an item has or had.
    pub fn linked(&self, escrows: &[EscrowId]) -> Decided<Vec<EscrowId>> {
        let (here, after) = {
            let desk = lock(&self.desk);
            (desk.items.linked(escrows), desk.seen)
        };
        let answer = self.read(|reader| {
            let mut linked = Vec::new();
            for escrow in escrows {
                if here.contains(escrow) || reader.is_linked(*escrow)? {
                    linked.push(*escrow);
                }
            }
            Ok(linked)
        });
        Decided { answer, after }
    }

    /// How many there are.
    pub fn counts(&self) -> Decided<Counts> {
        let desk = lock(&self.desk);
        Decided { answer: Ok(desk.items.counts()), after: desk.seen }
    }

    /// Decides about one item, with what the file has of it if memory has nothing.
    fn with_item<T>(
        &self,
        id: ItemId,
        decide: impl Fn(&mut Desk, Option<Item>) -> Result<Decided<T>, NoRoom>,
    ) -> Result<Decided<T>, NoRoom> {
        loop {
            let filings = {
                let mut desk = lock(&self.desk);
                if desk.items.get(id).is_some() || !desk.known.may_have(id) {
                    return decide(&mut desk, None);
                }
                desk.filings
            };
            let filed = match self.read(|reader| reader.item(id)) {
                Ok(filed) => filed,
                Err(failed) => return Ok(Decided { answer: Err(failed), after: 0 }),
            };
            let mut desk = lock(&self.desk);
            // It may have been put, or have ended, been filed and left memory, since the file was asked.
            let is_here = desk.items.get(id).is_some();
            let is_over = filed.as_ref().is_some_and(|item| item.state().is_end());
            if is_here || is_over || (filed.is_none() && desk.filings == filings) {
                return decide(&mut desk, filed);
            }
        }
    }

    /// Asks the file. One that turns out to be damaged is made anew at the next filing.
    fn read<T>(&self, ask: impl FnOnce(&Reader) -> rusqlite::Result<T>) -> Answered<T> {
        let mut reader = lock(&self.reader);
        let anew = || QueueFailed::Unavailable("queue.db is made anew from the queue's log".to_owned());
        let answer = ask(reader.as_ref().ok_or_else(anew)?);
        answer.map_err(|error| {
            if file::is_damage(&error) {
                *reader = None;
            }
            QueueFailed::Unavailable(format!("queue.db: {error}"))
        })
    }

    /// Writes what has been decided as one frame with one sync, if there is anything. Gives how many waited for it.
    ///
    /// # Errors
    /// If the log failed, now or before: nothing is decided any more.
    pub fn write(&self, seal: Seal) -> Answered<usize> {
        self.append(seal).map(tell_all)
    }

    /// The same, if nobody writes at this moment.
    pub(super) fn try_write(&self) -> Option<Answered<usize>> {
        let mut disk = match self.disk.try_lock() {
            Ok(disk) => disk,
            Err(TryLockError::WouldBlock | TryLockError::Poisoned(_)) => return None,
        };
        let written = self.append_with(&mut disk, Seal::Not);
        drop(disk);
        Some(written.map(tell_all))
    }

    /// Writes what has been decided, and gives those who waited for it: they are still to be told.
    pub(super) fn append(&self, seal: Seal) -> Answered<Vec<oneshot::Sender<()>>> {
        self.append_with(&mut lock(&self.disk), seal)
    }

    fn append_with(&self, journal: &mut Journal<D>, seal: Seal) -> Answered<Vec<oneshot::Sender<()>>> {
        let (mut batch, waiting) = {
            let mut desk = lock(&self.desk);
            if let Some(failure) = &desk.failure {
                return Err(QueueFailed::Unavailable(failure.clone()));
            }
            let Some(closed) = desk.close(seal) else { return Ok(Vec::new()) };
            closed
        };
        failpoint::pass("queue.before_write");
        match journal.append(&mut batch) {
            Ok(end) => {
                failpoint::pass("queue.after_sync");
                let mut desk = lock(&self.desk);
                desk.is_unsealed = !batch.is_empty();
                desk.reuse(batch);
                drop(desk);
                self.durable.send_replace(Progress::of(end));
                Ok(waiting)
            }
            Err(failed) => {
                let failure = failed.to_string();
                lock(&self.desk).fail(failure.clone());
                self.durable.send_modify(|progress| progress.failure = Some(failure.clone()));
                Err(QueueFailed::Unavailable(failure))
            }
        }
    }

    /// Brings what is durable into the file, and lets go of ended items that it has. A damaged file is made anew.
    ///
    /// # Errors
    /// If the file cannot be written now; or the log not be read.
    pub fn file(&self) -> Result<(), String> {
        let mut filing = lock(&self.filing);
        if filing.is_damaged || lock(&self.reader).is_none() {
            self.make_anew(&mut filing).map_err(|error| error.to_string())?;
        }
        let end = self.durable.borrow().end;
        if let Err(error) = filing.catch_up(end) {
            filing.is_damaged = matches!(&error, Behind::Apply(NotApplied::File(error)) if file::is_damage(error));
            // What a transaction that failed had read is read again.
            filing.rewind();
            return Err(error.to_string());
        }
        let through = filing.writer.applied.through;
        let mut desk = lock(&self.desk);
        desk.filings += u64::from(desk.items.forget_ended(through));
        Ok(())
    }

    fn make_anew(&self, filing: &mut Filing<D>) -> Result<(), Behind> {
        *lock(&self.reader) = None;
        let progress = self.durable.borrow().clone();
        file::remove(&self.data).map_err(ReadError::Io)?;
        let writer = Writer::open(&self.data, self.journal_id)?;
        filing.writer = writer;
        filing.rewind();
        filing.catch_up(progress.end)?;
        filing.is_damaged = false;
        *lock(&self.reader) = Some(Reader::open(&self.data).map_err(NotApplied::from)?);
        Ok(())
    }

    /// Fills the next segment with zeros ahead of time.
    pub(super) fn prepare(&self, segment_bytes: u32) {
        // Preparing ahead that fails is left to the writer, which makes the segment itself or fails for good.
        let _left_to_the_writer = Journal::<D>::prepare_next_segment(&self.log, segment_bytes);
    }
}

impl<D: Disk> Filing<D> {
    /// Goes on where the file has come to, in a log that ends at `end`.
    fn starting(log: D, writer: Writer, end: End) -> Self {
        let location = place_after(&log, writer.applied, end);
        Self { frames: Frames::starting(log.clone(), location), log, writer, is_damaged: false }
    }

    fn rewind(&mut self) {
        self.writer.forget();
        self.frames = Frames::starting(self.log.clone(), self.writer.applied.location);
    }

    /// Applies every record before `end`, some thousand at a time.
    fn catch_up(&mut self, end: Location) -> Result<(), Behind> {
        loop {
            let (from, mut through) = (self.writer.applied.through, self.writer.applied.through);
            let mut is_last = true;
            while let Some(frame) = self.frames.next(end)? {
                for stored in frame.records() {
                    let stored = stored.map_err(|_| ReadError::Damaged { location: frame.location })?;
                    let corrupt = |what| Corrupt { offset: stored.offset, what };
                    if stored.offset <= through {
                        continue;
                    }
                    if stored.offset != through + 1 {
                        return Err(corrupt("records before it are missing").into());
                    }
                    through = stored.offset;
                    let step = Step::decode(stored.body).ok_or(corrupt("it cannot be decoded"))?;
                    self.writer.take(through, step)?;
                }
                if through - from >= FILE_MAX {
                    is_last = false;
                    break;
                }
            }
            if through > from {
                self.writer.apply(Applied { through, location: self.frames.position() })?;
            }
            if is_last {
                return Ok(());
            }
        }
    }

    /// The items that have not ended, and the ids of all.
    fn look(&self) -> Result<(Vec<Item>, Known), Behind> {
        let mut known = Known::none();
        self.writer.each_id(|id| known.add(id)).map_err(NotApplied::from)?;
        Ok((self.writer.open_items().map_err(NotApplied::from)?, known))
    }
}

/// Where to read on after what the file has: the place that it names, if the record after it stands there. It need not: the
/// place counts frames, and a seal holds no record, so one that the file counted may have been cut since.
fn place_after<D: Disk>(log: &D, applied: Applied, end: End) -> Location {
    if applied.through.saturating_add(1) == end.next_offset {
        return end.location;
    }
    match Frames::starting(log.clone(), applied.location).next(end.location) {
        Ok(Some(frame)) if frame.header.first_offset == applied.through.saturating_add(1) => applied.location,
        Ok(_) | Err(_) => Location::START,
    }
}

/// Ended items of memory and of the file in one order, each once.
fn last_first(here: Vec<Item>, filed: Vec<Item>, after: Option<(Timestamp, ItemId)>, at_most: usize) -> Vec<Item> {
    let place = |item: &Item| (Reverse(file::ended_at(item)), item.intake.id);
    let after = after.map(|(at, id)| (Reverse(Some(at)), id));
    let mut all: Vec<Item> = here.into_iter().chain(filed).filter(|item| Some(place(item)) > after).collect();
    all.sort_by_key(place);
    all.dedup_by_key(|item| item.intake.id);
    all.truncate(at_most);
    all
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}
