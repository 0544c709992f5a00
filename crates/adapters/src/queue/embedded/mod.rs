//! The queue's items in this process: a log of steps that is the truth, open items in memory, ended ones in a file.
//!
//! ```text
//!  callers ─▶ desk (decide, by the rules of the domain) ─▶ one frame, one sync ─▶ answers
//!                                                            └─▶ DATA/queue/journal ─▶ DATA/queue.db (derived)
//! ```
//!
//! A caller decides at the desk, under a lock, and waits until the record that its answer tells of is durable. A **writer**
//! thread writes all that has been decided as one frame. Callers that were told together are waited for a moment, so that they
//! share the next one too. A lone caller with a quick disk writes it on its own thread: to wake the writer and be woken by it
//! takes as long as the sync. A **filer** thread brings what is durable into the file and lets go of ended items.
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
mod record;

pub use self::core::{Core, SEGMENT_BYTES};
pub use desk::{Decided, NoRoom, Seal};
pub use failure::OpenFailed;
pub use file::{path, remove};

use self::core::lock;
use desk::{Asleep, Desk};
use holdfast_domain::queue::{Item, State, Verdict};
use holdfast_domain::{EscrowId, ItemId, PayeeId, Timestamp};
use holdfast_engine::queue::{Answered, Counts, Filter, Put, QueueFailed, QueueStore};
use holdfast_engine::recovery::StartError;
use holdfast_engine::{Lone, step_aside};
use holdfast_journal::{Disk, LocalDisk};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How long an end waits for another frame to ride with, and a frame for another that proves it whole, before the writer writes
/// one for it: longer than a lone caller takes to come again, so that its next step does not wait for this.
const LINGER: Duration = Duration::from_millis(25);
/// How long it takes a caller that was told to come again, for each that was told with it: they share the processors. Those who
/// were told together are waited for so long, so that they are told together again: a frame for each few of them costs a sync
/// and wakes the threads that serve them.
const COMES_AGAIN: Duration = Duration::from_micros(50);
/// The longest that is waited for them.
const GATHER_MAX: Duration = Duration::from_millis(2);
/// How often the filer looks when nobody calls it: an item that is put, taken up and ended meanwhile is written once.
const FILE_EVERY: Duration = Duration::from_millis(500);
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
    segment_bytes: u32,
}

/// How many the writer's last frame was told to, and when.
#[derive(Clone, Copy)]
struct Told {
    many: usize,
    at: Instant,
}

impl Told {
    /// How much longer the next frame waits for them to come again. One alone is not waited for.
    fn patience(self) -> Duration {
        let callers = u32::try_from(self.many).unwrap_or(u32::MAX);
        let whole = if callers > 1 { COMES_AGAIN.saturating_mul(callers).min(GATHER_MAX) } else { Duration::ZERO };
        whole.saturating_sub(self.at.elapsed())
    }
}

/// What the writer is to do.
enum Work {
    Write,
    Seal,
    Leave,
}

impl LoggedQueue {
    /// Opens the queue below the data directory: its log in `queue/`, its file `queue.db`.
    ///
    /// # Errors
    /// If the log is not sound, or the files cannot be used.
    pub fn open(data: &Path) -> Result<Self, OpenFailed> {
        let directory = data.join("queue");
        let disk = LocalDisk::at(&directory);
        let unusable = |error| OpenFailed { directory: directory.display().to_string(), error: StartError::Io(error) };
        Self::on(disk.map_err(unusable)?, data, SEGMENT_BYTES)
    }
}

impl<D: Disk> LoggedQueue<D> {
    /// The same, with its log on another disk.
    ///
    /// # Errors
    /// As [`LoggedQueue::open`].
    pub fn on(log: D, data: &Path, segment_bytes: u32) -> Result<Self, OpenFailed> {
        let core = Core::open(log, data, segment_bytes)?;
        let (work, stop) = (Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { core, work, stop, lone: Lone::new(), segment_bytes });
        let (writer, filer) = (Arc::clone(&shared), Arc::clone(&shared));
        let threads = (spawn("queue-writer", move || writer.write()), spawn("queue-filer", move || filer.file()));
        Ok(Self { shared, threads: Mutex::new(Some(threads)) })
    }

    /// Writes what has been decided, files it, and lets nothing more be decided.
    ///
    /// # Errors
    /// If the log has failed.
    pub fn stop(&self) -> Answered<()> {
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
        let mut last = Told { many: 0, at: Instant::now() };
        loop {
            let seal = match self.next_work(last) {
                Work::Write => Seal::Not,
                Work::Seal => Seal::Wanted,
                Work::Leave => return,
            };
            let began = Instant::now();
            // A failure is told to whoever waits, and ends this loop.
            if let Ok(awaited) = self.core.write(seal) {
                last = Told { many: awaited, at: Instant::now() };
                self.lone.wrote(awaited, last.at.saturating_duration_since(began));
            }
        }
    }

    fn next_work(&self, last: Told) -> Work {
        let mut desk = lock(&self.core.desk);
        let mut is_late = false;
        loop {
            if desk.failure.is_some() {
                return Work::Leave;
            }
            if desk.is_stopping && !desk.is_batch_empty() {
                return Work::Write;
            }
            if !desk.waiting.is_empty() {
                let patience = last.patience();
                if patience.is_zero() || desk.has_gathered(last.many) {
                    return Work::Write;
                }
                desk.asleep = Asleep::Gathering(last.many);
                desk = self.work.wait_timeout(desk, patience).unwrap_or_else(PoisonError::into_inner).0;
                desk.asleep = Asleep::Not;
                continue;
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
        if let Some(told) = self.wait_for(after)
            && told.await.is_ok()
        {
            return Ok(());
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

    /// Has somebody told when a record of the open batch is durable, and the writer called if it would sleep on; `None` if the
    /// record is in an earlier one.
    fn wait_for(&self, after: u64) -> Option<oneshot::Receiver<()>> {
        let mut desk = lock(&self.core.desk);
        let told = desk.wait_for(after)?;
        let is_to_write = match desk.asleep {
            Asleep::Not => false,
            Asleep::Idle | Asleep::Lingering => true,
            Asleep::Gathering(many) => desk.has_gathered(many),
        };
        if is_to_write {
            self.wake_writer(desk);
        }
        Some(told)
    }

    /// Sees to it that the writer looks after what nobody waits for: one that lingers or gathers does.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_company_is_waited_for_and_never_for_long() {
        let told = |many| Told { many, at: Instant::now() };
        assert_eq!(told(0).patience(), Duration::ZERO);
        assert_eq!(told(1).patience(), Duration::ZERO, "a lone caller");
        assert!(told(2).patience() <= COMES_AGAIN * 2);
        assert!(told(10_000).patience() <= GATHER_MAX);
        let long_ago = Told { many: 10_000, at: Instant::now().checked_sub(GATHER_MAX).unwrap() };
        assert_eq!(long_ago.patience(), Duration::ZERO, "they have had their time");
    }
}
