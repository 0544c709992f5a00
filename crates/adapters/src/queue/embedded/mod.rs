//! The queue's items in this process: a log of steps that is the truth, open items in memory, ended ones in a file.
//!
//! ```text
//!  callers ─▶ desk (decide, by the rules of the domain) ─▶ one frame, one sync ─▶ answers
//!                                                            └─▶ DATA/queue/journal ─▶ DATA/queue.db (derived)
//! ```
//!
//! A caller decides at the desk, under a lock, and waits until the record that its answer tells of is durable. The workers of the
//! engine beside it write all that has been decided as one frame, in turn with the journal (`engine/rounds.rs`). Whoever is the
//! first to wait for a frame has it written, but only after those who could go on beside it have gone on: many callers become
//! ready together, and a frame for the first of them alone would keep the others waiting for the next. A lone caller
//! with a quick disk writes it on its own thread: to wake a worker and be woken by it takes as long as the sync. A **writer**
//! thread writes what nobody waits for, and everything where no engine does. A **filer** thread brings what is durable into the
//! file and lets go of ended items.
//!
//! # Invariants
//! - What is told is durable, but for ends: an answer waits for the last put or start that it depends on, never for an end.
//! - An end that nobody waits for rides with the next frame, and is written by itself if none comes.
//! - After a failed write nothing is decided, written or acknowledged again.

mod core;
mod desk;
mod failure;
mod file;
mod items;
mod known;
mod record;

pub use self::core::{Core, SEGMENT_BYTES};
pub use desk::{Decided, NoRoom, Seal};
pub use failure::OpenFailed;
pub use file::{path, remove};

use self::core::{lock, tell};
use desk::{Asleep, Desk};
use holdfast_domain::queue::{Item, State, Verdict};
use holdfast_domain::{EscrowId, ItemId, PayeeId, Timestamp};
use holdfast_engine::queue::{Answered, Counts, Filter, Put, QueueFailed, QueueStore};
use holdfast_engine::recovery::StartError;
use holdfast_engine::{Companion, Lone, Rounds, step_aside};
use holdfast_journal::{Disk, LocalDisk};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How long an end waits for another frame to ride with, and a frame for another that proves it whole, before the writer writes
/// one for it: longer than a lone caller takes to come again, so that its next step does not wait for this.
const LINGER: Duration = Duration::from_millis(25);
/// How often the filer looks when nobody calls it: an item that is put, taken up and ended meanwhile is written once, and so is a
/// page of an index that many of them are on.
const FILE_EVERY: Duration = Duration::from_secs(1);
/// How long a file that could not be written is left alone.
const FILE_AGAIN: Duration = Duration::from_secs(1);

/// The queue's items in this process.
pub struct LoggedQueue<D: Disk = LocalDisk> {
    shared: Arc<Shared<D>>,
    /// The writer and the filer, until they are stopped.
    threads: Mutex<Option<(JoinHandle<()>, JoinHandle<()>)>>,
}

struct Shared<D: Disk> {
    core: Core<D>,
    /// Calls the writer, with the desk.
    work: Condvar,
    /// Calls the filer, with the desk.
    stop: Condvar,
    /// Whether a caller may write itself.
    lone: Lone,
    /// The engine whose rounds write this log too, if there is one.
    rounds: Option<Rounds>,
    segment_bytes: u32,
}

/// Whether others wait for the open batch already.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    First,
    Later,
}

/// Calls when it is dropped: whoever was to call and goes away has others count on it.
struct Call<'a, D: Disk>(&'a Shared<D>);

impl<D: Disk> Drop for Call<'_, D> {
    fn drop(&mut self) {
        self.0.call();
    }
}

/// What the writer is to do.
enum Work {
    Write,
    Seal,
    Leave,
}

impl LoggedQueue {
    /// Opens the queue below the data directory: its log in `queue/`, its file `queue.db`. The log is written in the rounds of
    /// the engine, if one is given.
    ///
    /// # Errors
    /// If the log is not sound, or the files cannot be used.
    pub fn open(data: &Path, rounds: Option<Rounds>) -> Result<Self, OpenFailed> {
        let directory = data.join("queue");
        let disk = LocalDisk::at(&directory);
        let unusable = |error| OpenFailed { directory: directory.display().to_string(), error: StartError::Io(error) };
        Self::on(disk.map_err(unusable)?, data, SEGMENT_BYTES, rounds)
    }
}

impl<D: Disk> LoggedQueue<D> {
    /// The same, with its log on another disk.
    ///
    /// # Errors
    /// As [`LoggedQueue::open`].
    pub fn on(log: D, data: &Path, segment_bytes: u32, rounds: Option<Rounds>) -> Result<Self, OpenFailed> {
        let core = Core::open(log, data, segment_bytes)?;
        lock(&core.desk).rides = rounds.is_some();
        let (work, stop) = (Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { core, work, stop, lone: Lone::new(), rounds, segment_bytes });
        if let Some(rounds) = &shared.rounds {
            rounds.join(Arc::clone(&shared) as Arc<dyn Companion>);
        }
        let (writer, filer) = (Arc::clone(&shared), Arc::clone(&shared));
        let threads = (spawn("queue-writer", move || writer.write()), spawn("queue-filer", move || filer.file()));
        Ok(Self { shared, threads: Mutex::new(Some(threads)) })
    }

    /// Writes what has been decided, files it, and lets nothing more be decided.
    ///
    /// # Errors
    /// If the log has failed.
    pub fn stop(&self) -> Answered<()> {
        if let Some(rounds) = &self.shared.rounds {
            rounds.leave();
        }
        {
            let mut desk = lock(&self.shared.core.desk);
            desk.is_stopping = true;
            self.shared.work.notify_all();
        }
        if let Some((writer, filer)) = lock(&self.threads).take() {
            // A thread that panicked has ended the process, as it is built.
            let _written = writer.join();
            lock(&self.shared.core.desk).is_written = true;
            self.shared.stop.notify_all();
            let _filed = filer.join();
        }
        let failure = lock(&self.shared.core.desk).failure.clone();
        failure.map_or(Ok(()), |failure| Err(QueueFailed::Unavailable(failure)))
    }
}

impl<D: Disk> Drop for LoggedQueue<D> {
    fn drop(&mut self) {
        // Whoever wants to know has called `stop`.
        let _told_before = self.stop();
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(run).expect("a process can start a thread")
}

impl<D: Disk> Shared<D> {
    /// The writer's life.
    fn write(&self) {
        loop {
            let seal = match self.next_work() {
                Work::Write => Seal::Not,
                Work::Seal => Seal::Wanted,
                Work::Leave => return,
            };
            let began = Instant::now();
            // A failure is told to whoever waits, and ends this loop.
            if let Ok(awaited) = self.core.write(seal) {
                self.lone.wrote(awaited, began.elapsed());
            }
        }
    }

    fn next_work(&self) -> Work {
        let mut desk = lock(&self.core.desk);
        let mut is_late = false;
        loop {
            if desk.failure.is_some() {
                return Work::Leave;
            }
            if (desk.is_stopping && !desk.is_batch_empty()) || (!desk.rides && desk.is_called_for) {
                return Work::Write;
            }
            let is_idle = desk.is_batch_empty() && !desk.is_unsealed;
            if is_idle {
                if desk.is_stopping {
                    return Work::Leave;
                }
                desk.asleep = Asleep::Idle;
                desk = self.work.wait(desk).unwrap_or_else(PoisonError::into_inner);
                desk.asleep = Asleep::Not;
                continue;
            }
            if desk.is_stopping {
                return Work::Seal;
            }
            if is_late {
                return if desk.is_batch_empty() { Work::Seal } else { Work::Write };
            }
            let frames = desk.frames;
            desk.asleep = Asleep::Lingering;
            let (woken, waited) = self.work.wait_timeout(desk, LINGER).unwrap_or_else(PoisonError::into_inner);
            desk = woken;
            desk.asleep = Asleep::Not;
            is_late = waited.timed_out() && desk.frames == frames;
        }
    }

    /// The filer's life: it ends when the writer has, and all that is durable is filed.
    fn file(&self) {
        step_aside();
        loop {
            let is_last = lock(&self.core.desk).is_written;
            self.core.prepare(self.segment_bytes);
            // What cannot be filed now is filed later, at the latest by the next start.
            let pause = if self.core.file().is_ok() { FILE_EVERY } else { FILE_AGAIN };
            if is_last {
                return;
            }
            let desk = lock(&self.core.desk);
            if !desk.is_written {
                drop(self.stop.wait_timeout(desk, pause).unwrap_or_else(PoisonError::into_inner));
            }
        }
    }

    /// Waits until a record is durable.
    async fn durable(&self, after: u64) -> Answered<()> {
        if self.is_durable(after) {
            return Ok(());
        }
        if self.lone.is_likely() {
            let began = Instant::now();
            if let Some(written) = self.core.try_write() {
                // The caller itself is not among those who waited.
                self.lone.wrote(written?.saturating_add(1), began.elapsed());
                self.call_writer();
                if self.is_durable(after) {
                    return Ok(());
                }
            }
        }
        if let Some((told, place)) = self.wait_for(after) {
            if place == Place::First {
                self.call_in_a_moment().await;
            }
            if told.await.is_ok() {
                return Ok(());
            }
        }
        // Its frame is being written, or could not be.
        let mut durable = self.core.durable.subscribe();
        let come = durable.wait_for(|progress| progress.through >= after || progress.failure.is_some()).await;
        match come.as_deref().map(|progress| (progress.through >= after, progress.failure.clone())) {
            Ok((true, _)) => Ok(()),
            Ok((false, failure)) => Err(QueueFailed::Unavailable(failure.unwrap_or_default())),
            Err(gone) => Err(QueueFailed::Unavailable(gone.to_string())),
        }
    }

    fn is_durable(&self, record: u64) -> bool {
        self.core.durable.borrow().through >= record
    }

    /// Has somebody told when a record of the open batch is durable; `None` if the record is in an earlier one. The first who waits
    /// is to have it written, for all who wait by then.
    fn wait_for(&self, after: u64) -> Option<(oneshot::Receiver<()>, Place)> {
        let mut desk = lock(&self.core.desk);
        let place = if desk.waiting.is_empty() { Place::First } else { Place::Later };
        Some((desk.wait_for(after)?, place))
    }

    /// Has the open batch written, once those who could go on beside the caller have gone on: what they decide shares its sync.
    async fn call_in_a_moment(&self) {
        let _calls_at_the_end = Call(self);
        tokio::task::yield_now().await;
    }

    /// Has the open batch written, if somebody still waits for it.
    fn call(&self) {
        let mut desk = lock(&self.core.desk);
        if desk.waiting.is_empty() {
            return;
        }
        desk.is_called_for = true;
        let rides = desk.rides;
        let is_to_look = match desk.asleep {
            Asleep::Not => false,
            // It looks whether a round does come.
            Asleep::Idle => true,
            Asleep::Lingering => !rides,
        };
        if is_to_look {
            self.wake_writer(desk);
        } else {
            drop(desk);
        }
        if rides && !self.rounds.as_ref().is_some_and(Rounds::ring) {
            self.ride_no_more();
        }
    }

    /// The engine goes, and no round comes any more.
    #[cold]
    fn ride_no_more(&self) {
        let mut desk = lock(&self.core.desk);
        desk.rides = false;
        self.wake_writer(desk);
    }

    /// Sees to it that the writer looks after what nobody waits for: one that lingers does.
    fn call_writer(&self) {
        let desk = lock(&self.core.desk);
        if desk.asleep == Asleep::Idle {
            self.wake_writer(desk);
        }
    }

    fn wake_writer(&self, mut desk: MutexGuard<'_, Desk>) {
        desk.asleep = Asleep::Not;
        drop(desk);
        self.work.notify_one();
    }
}

impl<D: Disk> Companion for Shared<D> {
    fn is_waited_for(&self) -> bool {
        // Ends that nobody waits for ride with the next frame that somebody waits for.
        lock(&self.core.desk).is_called_for
    }

    fn write(&self) -> Box<dyn FnOnce() + Send> {
        let began = Instant::now();
        // A failure is told to whoever waits by the log itself.
        let waiting = self.core.append(Seal::Not).unwrap_or_default();
        self.lone.wrote(waiting.len(), began.elapsed());
        Box::new(move || tell(waiting))
    }
}

impl<D: Disk> LoggedQueue<D> {
    /// Decides, and waits until what is told is durable. Where there is no room, the open frame is written first.
    async fn decided<T>(&self, decide: impl Fn(&Core<D>) -> Result<Decided<T>, NoRoom>) -> Answered<T> {
        loop {
            match decide(&self.shared.core) {
                Ok(Decided { answer, after }) => {
                    self.shared.durable(after).await?;
                    return answer;
                }
                Err(NoRoom) => {
                    let last = lock(&self.shared.core.desk).last();
                    self.shared.durable(last).await?;
                }
            }
        }
    }

    /// Looks, on a thread that may wait for the disk.
    async fn look<T: Send + 'static>(&self, look: impl FnOnce(&Core<D>) -> Decided<T> + Send + 'static) -> Answered<T> {
        let shared = Arc::clone(&self.shared);
        let looked = tokio::task::spawn_blocking(move || look(&shared.core)).await;
        let Decided { answer, after } = looked.map_err(|error| QueueFailed::Unavailable(error.to_string()))?;
        self.shared.durable(after).await?;
        answer
    }
}

impl<D: Disk> QueueStore for LoggedQueue<D> {
    fn name(&self) -> &'static str {
        "embedded"
    }

    async fn put(&self, item: Item) -> Answered<Put> {
        self.decided(move |core| core.put(&item)).await
    }

    async fn item(&self, id: ItemId) -> Answered<Option<Item>> {
        self.decided(move |core| Ok(core.item(id))).await
    }

    async fn start(&self, id: ItemId, now: Timestamp) -> Answered<Item> {
        self.decided(move |core| core.start(id, now)).await
    }

    async fn start_next(&self, payee: PayeeId, now: Timestamp) -> Answered<Option<Item>> {
        self.decided(move |core| core.start_next(payee, now)).await
    }

    async fn end(&self, id: ItemId, verdict: Verdict, at: Timestamp) -> Answered<Item> {
        let ended = self.decided(move |core| core.end(id, verdict, at)).await;
        // It is to see to it that an end is written though nobody waits for it.
        self.shared.call_writer();
        ended
    }

    async fn list(&self, filter: Filter, at_most: usize) -> Answered<Vec<Item>> {
        if filter.state.is_some_and(State::is_end) {
            return self.look(move |core| core.list(filter, at_most)).await;
        }
        self.decided(move |core| Ok(core.list(filter, at_most))).await
    }

    async fn overdue(&self, now: Timestamp, at_most: usize) -> Answered<Vec<Item>> {
        self.decided(move |core| Ok(core.overdue(now, at_most))).await
    }

    async fn linked(&self, escrows: Vec<EscrowId>) -> Answered<Vec<EscrowId>> {
        self.look(move |core| core.linked(&escrows)).await
    }

    async fn counts(&self) -> Answered<Counts> {
        self.decided(|core| Ok(core.counts())).await
    }
}
