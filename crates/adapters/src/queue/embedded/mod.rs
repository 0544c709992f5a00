//! The queue's items in this process: steps that are notes in the journal, open items in memory, ended ones in a file.
//!
//! ```text
//!  callers ─▶ desk (decide, by the rules of the domain) ─▶ a note in the journal's next frame, one sync ─▶ answers
//!                                                            └─▶ DATA/queue.db (derived)
//! ```
//!
//! A caller decides at the desk, under a lock, and waits until the step that its answer tells of is durable. The engine writes all
//! steps that have been decided beside the entries of its next frame (`engine/margin.rs`). Whoever is the first to wait for a frame
//! has it written, but only after those who could go on beside it have gone on ([`Soon`]): many callers become ready together, and a
//! frame for the first of them alone would keep the others waiting for the next. A lone caller with a quick disk writes it on its own thread: to
//! wake a worker and be woken by it takes as long as the sync. A **filer** thread brings what is durable into the file and lets
//! go of ended items.
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
mod notes;
mod record;

pub use self::core::{Core, OnItsWay};
pub use desk::{Decided, NoRoom};
pub use failure::OpenFailed;
pub use file::path;
pub use record::Step;

use self::core::lock;
use holdfast_domain::queue::{Item, State, Verdict};
use holdfast_domain::{EscrowId, ItemId, PayeeId, Timestamp};
use holdfast_engine::queue::{Answered, Counts, Filter, Put, QueueFailed, QueueStore};
use holdfast_engine::recovery::StartError;
use holdfast_engine::{Margin, Noted, Notes, step_aside};
use holdfast_journal::{Batch, Disk, LocalDisk};
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::sync::oneshot;

/// How often the filer looks when nobody calls it: an item that is put, taken up and ended meanwhile is written once, and so is a
/// page of an index that many of them are on.
const FILE_EVERY: Duration = Duration::from_secs(1);
/// How often one who stops looks whether the last steps are durable.
const STOP_LOOK: Duration = Duration::from_millis(1);

/// Where earlier builds kept what is now in the journal.
const OLD_LOG: &str = "queue/journal";

/// The queue's items in this process.
pub struct NotedQueue<D: Disk = LocalDisk> {
    shared: Arc<Shared<D>>,
    /// The filer, until it is stopped.
    filer: Mutex<Option<JoinHandle<()>>>,
}

struct Shared<D: Disk> {
    core: Core<D>,
    /// Calls the filer, with `has_stopped`.
    stop: Condvar,
    /// Whether nothing more becomes durable.
    has_stopped: Mutex<bool>,
    /// Where steps are written.
    margin: Margin,
    soon: Soon,
}

/// Has a frame called for in a moment: after all on this thread have gone on who can, and with whatever else they want of the engine.
/// If it says no, nobody will.
pub type Soon = fn(Arc<dyn Calling>) -> bool;

/// Somebody waits for a frame.
pub trait Calling: Send + Sync {
    /// Has it written, if that is still so.
    fn call(&self);
}

/// Whether others wait for the next frame already.
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

impl NotedQueue {
    /// Opens the queue of a data directory, beside the engine whose journal is there: its file is `queue.db`.
    ///
    /// # Errors
    /// If its steps are not sound, or the file cannot be used.
    pub fn open(data: &Path, margin: Margin, soon: Soon) -> Result<Self, OpenFailed> {
        let unusable = |error| OpenFailed { directory: data.display().to_string(), error: StartError::Io(error) };
        if data.join(OLD_LOG).is_dir() {
            let why = format!(
                "its queue has a log of its own ({OLD_LOG}), which only earlier builds read; end its items with one of them, then remove it"
            );
            return Err(unusable(io::Error::other(why)));
        }
        Self::on(LocalDisk::at(data).map_err(unusable)?, data, margin, soon)
    }
}

impl<D: Disk> NotedQueue<D> {
    /// The same, with the journal on another disk.
    ///
    /// # Errors
    /// As [`NotedQueue::open`].
    pub fn on(disk: D, data: &Path, margin: Margin, soon: Soon) -> Result<Self, OpenFailed> {
        let core = Core::open(disk, data, margin.journal())?;
        let shared = Arc::new(Shared { core, stop: Condvar::new(), has_stopped: Mutex::new(false), margin, soon });
        shared.margin.join(Arc::clone(&shared) as Arc<dyn Notes>);
        let filing = Arc::clone(&shared);
        let filer = thread::Builder::new().name("queue-filer".to_owned()).spawn(move || filing.file());
        Ok(Self { shared, filer: Mutex::new(Some(filer.expect("a process can start a thread"))) })
    }

    /// Has what was decided written, files it, and lets nothing more be decided.
    ///
    /// # Errors
    /// If the journal has failed.
    pub fn stop(&self) -> Answered<()> {
        if let Some(filer) = lock(&self.filer).take() {
            lock(&self.shared.core.desk).is_stopping = true;
            // An engine that has stopped has written all there was.
            if self.shared.core.has_open() && self.shared.margin.ring() {
                while !self.shared.is_all_durable() {
                    thread::sleep(STOP_LOOK);
                }
            }
            self.shared.margin.leave();
            *lock(&self.shared.has_stopped) = true;
            self.shared.stop.notify_all();
            // A thread that panicked has ended the process, as it is built.
            let _filed = filer.join();
        }
        let failure = lock(&self.shared.core.desk).failure.clone();
        failure.map_or(Ok(()), |failure| Err(QueueFailed::Unavailable(failure)))
    }
}

impl<D: Disk> Drop for NotedQueue<D> {
    fn drop(&mut self) {
        // Whoever wants to know has called `stop`.
        let _told_before = self.stop();
    }
}

impl<D: Disk> Shared<D> {
    /// The filer's life: it ends when all that is durable is filed and nothing more will be.
    fn file(&self) {
        step_aside();
        loop {
            let is_last = *lock(&self.has_stopped);
            let (_, durable) = self.margin.journal();
            // What cannot be filed now is filed later, at the latest by the next start.
            let _filed_later = self.core.file(durable);
            if is_last {
                return;
            }
            let has_stopped = lock(&self.has_stopped);
            if !*has_stopped {
                drop(self.stop.wait_timeout(has_stopped, FILE_EVERY).unwrap_or_else(PoisonError::into_inner));
            }
        }
    }

    /// Waits until a step is durable.
    async fn durable(self: &Arc<Self>, after: u64) -> Answered<()> {
        if self.is_durable(after) || (self.margin.write_alone() && self.is_durable(after)) {
            return Ok(());
        }
        if let Some((told, place)) = self.wait_for(after) {
            if place == Place::First && !(self.soon)(Arc::clone(self) as Arc<dyn Calling>) {
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

    fn is_durable(&self, step: u64) -> bool {
        self.core.durable.borrow().through >= step
    }

    /// Whether all that was decided is durable, or never will be.
    fn is_all_durable(&self) -> bool {
        let desk = lock(&self.core.desk);
        desk.failure.is_some() || self.is_durable(desk.last())
    }

    /// Has somebody told when a step that no frame has is durable; `None` if a frame has it. The first who waits is to have one
    /// written, for all who wait by then.
    fn wait_for(&self, after: u64) -> Option<(oneshot::Receiver<()>, Place)> {
        let mut desk = lock(&self.core.desk);
        let place = if desk.is_waited_for() { Place::Later } else { Place::First };
        Some((desk.wait_for(after)?, place))
    }

    /// Has a frame written, once those who could go on beside the caller have gone on: what they decide shares its sync.
    async fn call_in_a_moment(&self) {
        let _calls_at_the_end = Call(self);
        tokio::task::yield_now().await;
    }
}

impl<D: Disk> Calling for Shared<D> {
    fn call(&self) {
        {
            let mut desk = lock(&self.core.desk);
            if !desk.is_waited_for() {
                return;
            }
            desk.is_called_for = true;
        }
        if !self.margin.ring() {
            self.core.fail("the engine has stopped");
        }
    }
}

impl<D: Disk> Notes for Shared<D> {
    fn has_any(&self) -> bool {
        self.core.has_open()
    }

    fn is_waited_for(&self) -> bool {
        lock(&self.core.desk).is_called_for
    }

    fn write(self: Arc<Self>, frame: &mut Batch) -> Option<Noted> {
        let on_its_way = self.core.write(frame)?;
        let waiting = on_its_way.waiting();
        Some(Noted { waiting, tell: Box::new(move |end| self.core.written(on_its_way, end)) })
    }

    fn fail(&self, why: &str) {
        self.core.fail(why);
    }
}

impl<D: Disk> NotedQueue<D> {
    /// Decides, and waits until what is told is durable. Where too much waits for a frame, that is written first.
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

impl<D: Disk> QueueStore for NotedQueue<D> {
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
        self.decided(move |core| core.end(id, verdict, at)).await
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
