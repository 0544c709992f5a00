//! The margin of the journal: what another makes durable in the frames of the entries.
//!
//! A second log beside the journal divides the callers between two batches and the disk between two files: each frame and each
//! wake-up serves fewer, and whoever waits for one waits for the other's sync as well. So whoever keeps something of its own beside the
//! books writes it as notes into the frames that are written anyway: one sync is for all who have come, whatever they came for.
//!
//! # Invariants
//! - **Acknowledged means durable**, for notes as for entries: who waits for one is told after the frame that has it.
//! - A frame takes all notes that there are when it is closed, as long as it has room; one ring is enough for all who wait by then.
//! - What nobody waits for is written too, at the latest where a seal would be.

use crate::turns::{Beside, Closed, Turns};
use crate::worker::{Job, Seal, Shared, lock};
use holdfast_journal::{Batch, Disk, End, JournalId};
use std::sync::Arc;

/// Who writes into the margin.
pub trait Notes: Send + Sync {
    /// Whether it has something to write. It is asked often, and does not wait for anybody.
    fn has_any(&self) -> bool;
    /// Whether somebody waits for that.
    fn is_waited_for(&self) -> bool;
    /// Writes what it has, as far as there is room; `None` if there is nothing.
    fn write(self: Arc<Self>, frame: &mut Batch) -> Option<Noted>;
    /// Nothing is written any more: what was under way is known after a restart.
    fn fail(&self, why: &str);
}

/// What is to be said about the notes of a frame.
pub struct Noted {
    /// How many wait for them.
    pub waiting: usize,
    /// Takes that the journal ends here now, and all of it is durable. It is dropped if it never will be.
    pub tell: Box<dyn FnOnce(End) + Send>,
}

/// The way to the margin of an engine's journal.
#[derive(Clone)]
pub struct Margin(Arc<dyn Frames>);

/// What is needed of an engine, whatever its disk.
trait Frames: Send + Sync {
    fn journal(&self) -> (JournalId, End);
    fn join(&self, notes: Option<Arc<dyn Notes>>);
    fn ring(&self) -> bool;
    fn write_alone(&self) -> bool;
}

impl Margin {
    pub(crate) fn of<D: Disk>(shared: &Arc<Shared<D>>) -> Self {
        Self(Arc::clone(shared) as Arc<dyn Frames>)
    }

    /// Which journal it is, and up to where it is durable.
    #[must_use]
    pub fn journal(&self) -> (JournalId, End) {
        self.0.journal()
    }

    /// From now on this one's notes are written.
    pub fn join(&self, notes: Arc<dyn Notes>) {
        self.0.join(Some(notes));
    }

    /// Nobody's are any more.
    pub fn leave(&self) {
        self.0.join(None);
    }

    /// Has a frame come for all who wait for notes, now and until it comes. If it says no, none will.
    #[must_use]
    pub fn ring(&self) -> bool {
        self.0.ring()
    }

    /// Writes a frame on this thread, if its caller is alone and the disk is quick: to wake a worker and be woken by it takes as
    /// long as the sync. Whether it did.
    #[must_use]
    pub fn write_alone(&self) -> bool {
        self.0.write_alone()
    }
}

impl<D: Disk> Frames for Shared<D> {
    fn journal(&self) -> (JournalId, End) {
        (self.journal_id, self.upkeep.durable())
    }

    fn join(&self, notes: Option<Arc<dyn Notes>>) {
        *lock(&self.margin) = notes;
    }

    fn ring(&self) -> bool {
        let admitted = self.turns.admit(1);
        if admitted.is_ok() {
            self.turns.enqueue(Job::Ring);
        }
        // With so much waiting that no more is taken, frames come anyway.
        !matches!(admitted, Err(Closed::Stopping | Closed::Failed))
    }

    fn write_alone(&self) -> bool {
        if !self.lone.is_likely() || !self.turns.take_disk_alone(self) {
            return false;
        }
        let turn = self.close(self.desk(), Seal::Not);
        self.commit(turn, Turns::free_disk_alone)
    }
}

impl<D: Disk> Shared<D> {
    /// Whether somebody waits for notes.
    pub(crate) fn are_notes_waited_for(&self) -> bool {
        lock(&self.margin).as_ref().is_some_and(|notes| notes.is_waited_for())
    }

    /// Tells whoever writes notes that nothing is written any more.
    pub(crate) fn fail_notes(&self, why: &str) {
        let notes = lock(&self.margin).take();
        if let Some(notes) = notes {
            notes.fail(why);
        }
    }

    /// Writes notes into a frame that is about to be closed.
    pub(crate) fn note(&self, frame: &mut Batch) -> Option<Noted> {
        let notes = lock(&self.margin).clone()?;
        notes.write(frame)
    }
}

impl<D: Disk> Beside for Shared<D> {
    fn must_wait(&self) -> bool {
        self.upkeep.must_wait()
    }

    fn is_unsealed(&self) -> bool {
        self.upkeep.is_unsealed() || lock(&self.margin).as_ref().is_some_and(|notes| notes.has_any())
    }
}
