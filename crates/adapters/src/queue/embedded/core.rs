//! The store without its threads: what is asked is decided at the desk, written into a frame of the journal, and filed, each when somebody
//! says so. [`super::NotedQueue`] says so in the engine's frames and on a thread of its own; a test does it step by step.
//!
//! # Invariants
//! - Who needs several locks takes them in this order: the filing, the desk.
//! - Frames reach the disk in the order in which steps were written into them.
//! - Ended items leave memory after the file has them, so whoever finds one in neither looks again.

use super::desk::{Decided, Desk, NoRoom, Written};
use super::failure::{Behind, OpenFailed, unusable};
use super::file::{self, Filed, NotApplied, Reader, Writer};
use super::items::Items;
use super::known::Known;
use super::notes::Notes;
use super::record::Step;
use holdfast_domain::queue::{Item, Rank, State, Verdict};
use holdfast_domain::{EscrowId, ItemId, PayeeId, Timestamp};
use holdfast_engine::Corrupt;
use holdfast_engine::queue::{Answered, Counts, Filter, Put, QueueFailed};
use holdfast_engine::recovery::StartError;
use holdfast_journal::{Batch, Disk, End, Frames, JournalId, Location, ReadError, failpoint};
use std::cmp::Reverse;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// How many steps are filed in one transaction.
const FILE_MAX: u64 = 16_384;
/// So many ended items are forgotten before others get to the desk.
const FORGET_MAX: usize = 128;

/// So much of the journal without a step is not read again by the next start.
const FAR_BYTES: u32 = 1_024 * 1_024;

/// How far the steps are durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Progress {
    /// The last durable step.
    pub(super) through: u64,
    /// Where the frame ends that has it.
    pub(super) end: End,
    /// Why nothing more will be durable.
    pub(super) failure: Option<String>,
}

/// The store without its threads.
pub struct Core<D: Disk> {
    data: PathBuf,
    journal_id: JournalId,
    pub(super) desk: Mutex<Desk>,
    /// Whether there are steps that no frame has. It changes under the desk's lock.
    has_open: AtomicBool,
    filing: Mutex<Filing<D>>,
    /// `None` while the file is made anew.
    reader: Mutex<Option<Reader>>,
    pub(super) durable: watch::Sender<Progress>,
    replayed: u64,
}

/// Who brings steps into the file.
struct Filing<D: Disk> {
    disk: D,
    writer: Writer,
    /// What is filed.
    notes: Notes,
    is_damaged: bool,
}

/// Steps in a frame that is on its way to the disk.
pub struct OnItsWay(Written);

impl OnItsWay {
    /// How many wait for it.
    #[must_use]
    pub const fn waiting(&self) -> usize {
        self.0.waiting.len()
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A thread that panicked left the state half changed, and the process is built to abort on panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<D: Disk> Core<D> {
    /// Opens the store whose steps are in a journal on `disk`, which is durable up to its end; its file in the directory `data` is
    /// brought to there.
    ///
    /// # Errors
    /// If the steps are not sound, end before those of the file do, or the file cannot be written.
    pub fn open(disk: D, data: &Path, journal: (JournalId, End)) -> Result<Self, OpenFailed> {
        Self::try_open(disk, data, journal).map_err(|error| OpenFailed { directory: data.display().to_string(), error })
    }

    fn try_open(disk: D, data: &Path, (journal_id, end): (JournalId, End)) -> Result<Self, StartError> {
        let mut writer = Writer::open(data, journal_id).map_err(Behind::from)?;
        if !is_place(&disk, writer.filed, end) {
            let (seen, journal) = (writer.filed.through, last_step(&disk, end)?);
            if journal < seen {
                return Err(StartError::JournalBehind { journal, seen, what: "file queue.db" });
            }
            file::remove(data)?;
            writer = Writer::open(data, journal_id).map_err(Behind::from)?;
        }
        let mut before = writer.filed.through;
        let mut filing = Filing { disk, writer, notes: Notes::default(), is_damaged: false };
        let (open, known) = match filing.catch_up(end.location).and_then(|()| filing.look()) {
            Ok(found) => found,
            // A file that looked sound is not: the journal says what is in it.
            Err(Behind::Apply(NotApplied::File(_))) => {
                file::remove(data)?;
                filing.writer = Writer::open(data, journal_id).map_err(Behind::from)?;
                before = 0;
                filing.catch_up(end.location)?;
                filing.look()?
            }
            Err(error) => return Err(error.into()),
        };
        let mut items = Items::default();
        open.into_iter().for_each(|item| items.set(item, 0));
        let reader = Reader::open(data).map_err(|error| unusable(&error))?;
        let through = filing.writer.filed.through;
        Ok(Self {
            data: data.to_owned(),
            journal_id,
            desk: Mutex::new(Desk::new(items, known, through)),
            has_open: AtomicBool::new(false),
            filing: Mutex::new(filing),
            reader: Mutex::new(Some(reader)),
            durable: watch::Sender::new(Progress { through, end, failure: None }),
            replayed: through - before,
        })
    }

    /// How many steps the file had not got when it was opened.
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
        self.decide(&mut lock(&self.desk), |desk| desk.start_next(payee, now))
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
                    return self.decide(&mut desk, |desk| decide(desk, None));
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
                return self.decide(&mut desk, |desk| decide(desk, filed));
            }
        }
    }

    /// Decides, and remembers whether something is to be written.
    fn decide<T>(&self, desk: &mut Desk, decide: impl FnOnce(&mut Desk) -> T) -> T {
        let decided = decide(desk);
        self.has_open.store(desk.has_open(), Ordering::Relaxed);
        decided
    }

    /// Asks the file. One that turns out to be damaged is made anew at the next filing.
    fn read<T>(&self, ask: impl FnOnce(&Reader) -> rusqlite::Result<T>) -> Answered<T> {
        let mut reader = lock(&self.reader);
        let anew = || QueueFailed::Unavailable("queue.db is made anew from the journal".to_owned());
        let answer = ask(reader.as_ref().ok_or_else(anew)?);
        answer.map_err(|error| {
            if file::is_damage(&error) {
                *reader = None;
            }
            QueueFailed::Unavailable(format!("queue.db: {error}"))
        })
    }

    /// Whether there are steps that no frame has. It waits for nobody.
    pub fn has_open(&self) -> bool {
        self.has_open.load(Ordering::Relaxed)
    }

    /// Writes what has been decided into a frame, as far as there is room; `None` if there is nothing.
    pub fn write(&self, frame: &mut Batch) -> Option<OnItsWay> {
        let mut desk = lock(&self.desk);
        let written = self.decide(&mut desk, |desk| desk.write(frame))?;
        drop(desk);
        failpoint::pass("queue.before_write");
        Some(OnItsWay(written))
    }

    /// The frame with these steps is durable, and ends here: tells those who wait for it.
    pub fn written(&self, OnItsWay(Written { through, waiting }): OnItsWay, end: End) {
        failpoint::pass("queue.after_sync");
        // Of two frames the later one may be told first.
        self.durable.send_if_modified(|progress| {
            let is_further = through > progress.through;
            if is_further {
                (progress.through, progress.end) = (through, end);
            }
            is_further
        });
        for waiting in waiting {
            // Who has gone away need not be told.
            let _gone = waiting.send(());
        }
    }

    /// Nothing is written any more.
    pub fn fail(&self, why: &str) {
        lock(&self.desk).fail(why.to_owned());
        self.durable.send_modify(|progress| {
            progress.failure.get_or_insert_with(|| why.to_owned());
        });
    }

    /// Brings what is durable into the file, and lets go of ended items that it has. A damaged file is made anew. `durable` is a place
    /// up to which the journal has been durable.
    ///
    /// # Errors
    /// If the file cannot be written now; or the journal not be read.
    pub fn file(&self, durable: End) -> Result<(), String> {
        let mut filing = lock(&self.filing);
        if filing.is_damaged || lock(&self.reader).is_none() {
            self.make_anew(&mut filing).map_err(|error| error.to_string())?;
        }
        let Progress { through, end, .. } = self.durable.borrow().clone();
        let (first, end) = {
            let mut desk = lock(&self.desk);
            // A frame that is on its way, or that nobody has been told of, may stand before the place.
            let end = if desk.is_on_its_way(through) { end } else { durable };
            (desk.take_unfiled(through, &mut filing.notes), end)
        };
        if let Err(error) = filing.file(first, Filed::to(through, end)) {
            filing.is_damaged = matches!(&error, Behind::Apply(NotApplied::File(error)) if file::is_damage(error));
            // They are read again from the journal.
            filing.writer.forget();
            return Err(error.to_string());
        }
        let through = filing.writer.filed.through;
        while self.forget(through) == FORGET_MAX {}
        Ok(())
    }

    /// Lets go of some of the ended items that the file has, and says of how many.
    fn forget(&self, through: u64) -> usize {
        let mut desk = lock(&self.desk);
        let forgotten = desk.items.forget_ended(through, FORGET_MAX);
        desk.filings += u64::from(forgotten > 0);
        forgotten
    }

    fn make_anew(&self, filing: &mut Filing<D>) -> Result<(), Behind> {
        *lock(&self.reader) = None;
        let end = self.durable.borrow().end.location;
        file::remove(&self.data).map_err(ReadError::Io)?;
        filing.writer = Writer::open(&self.data, self.journal_id)?;
        filing.catch_up(end)?;
        filing.is_damaged = false;
        *lock(&self.reader) = Some(Reader::open(&self.data).map_err(NotApplied::from)?);
        Ok(())
    }
}

impl<D: Disk> Filing<D> {
    /// Files the steps of its notes, from number `first` on, the last of those before `to`. If they do not follow what the file has,
    /// all are read from the journal.
    fn file(&mut self, first: u64, to: Filed) -> Result<(), Behind> {
        let Filed { through, location, .. } = self.writer.filed;
        if through + 1 < first {
            return self.catch_up(to.location);
        }
        // A place much further on is worth remembering though nothing has happened: a start reads on from there.
        let is_far = to.location.segment > location.segment
            || (to.location.segment == location.segment && to.location.byte.saturating_sub(location.byte) >= FAR_BYTES);
        if self.notes.is_empty() && !is_far {
            return Ok(());
        }
        for (number, note) in (first..).zip(self.notes.after(0)).filter(|(number, _)| *number > through) {
            self.writer.take(number, step(note, number)?)?;
        }
        Ok(self.writer.apply(to)?)
    }

    /// Reads every step before `end`, and files some thousand at a time.
    fn catch_up(&mut self, end: Location) -> Result<(), Behind> {
        let mut frames = Frames::starting(self.disk.clone(), self.writer.filed.location);
        loop {
            let Filed { through: from, mut chain, .. } = self.writer.filed;
            let (mut through, mut is_last) = (from, true);
            while let Some(frame) = frames.next(end)? {
                for note in frame.notes() {
                    let note = note.map_err(|_| ReadError::Damaged { location: frame.location })?;
                    let (number, _) = Step::of_note(note).ok_or_else(|| undecoded(through + 1))?;
                    if number <= through {
                        continue;
                    }
                    if number != through + 1 {
                        return Err(Corrupt { offset: number, what: "steps before it are missing" }.into());
                    }
                    self.writer.take(number, step(note, number)?)?;
                    through = number;
                }
                chain = frame.header.hash;
                if through - from >= FILE_MAX {
                    is_last = false;
                    break;
                }
            }
            let location = frames.position();
            if location != self.writer.filed.location {
                self.writer.apply(Filed { through, location, chain })?;
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

fn step(note: &[u8], number: u64) -> Result<Step, Corrupt> {
    Step::of_note(note).and_then(|(_, step)| step).ok_or_else(|| undecoded(number))
}

const fn undecoded(number: u64) -> Corrupt {
    Corrupt { offset: number, what: "it cannot be decoded" }
}

/// Whether this is still the journal from which the file was derived, as far as that: the frame after the place follows the one that
/// stood before it.
fn is_place<D: Disk>(disk: &D, filed: Filed, end: End) -> bool {
    match Frames::starting(disk.clone(), filed.location).next(end.location) {
        Ok(Some(frame)) => frame.follows(&filed.chain),
        Ok(None) => filed.chain == end.chain,
        Err(_) => false,
    }
}

/// The last step in a journal.
fn last_step<D: Disk>(disk: &D, end: End) -> Result<u64, StartError> {
    let mut frames = Frames::starting(disk.clone(), Location::START);
    let mut last = 0;
    while let Some(frame) = frames.next(end.location)? {
        let numbers = frame.notes().flatten().filter_map(|note| Step::of_note(note).map(|(number, _)| number));
        last = numbers.last().unwrap_or(last);
    }
    Ok(last)
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
