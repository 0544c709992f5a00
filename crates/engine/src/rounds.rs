//! Another log that takes turns with the journal at the disk.
//!
//! Two logs with writers of their own divide the callers between their batches and compete for the processors: each frame, each
//! wake-up and each thread that is woken serves fewer. So the engine's workers write the other log too: one round for the
//! journal, one for its companion, each for all who have come meanwhile.
//!
//! # Invariants
//! - The companion keeps its own promises: the engine only says when. A round that does not come, because the engine stops or has
//!   failed, is the companion's to do without.
//! - Neither waits for more than one round of the other: whoever comes to the desk looks whether somebody waits for the companion, so
//!   that one ring is enough for all who wait, and none is lost to a round of the journal.

use crate::turns::{Closed, Turns};
use crate::worker::{Job, Shared, lock};
use holdfast_journal::Disk;
use std::sync::Arc;

/// A log that is written in the engine's rounds.
pub trait Companion: Send + Sync {
    /// Whether somebody waits for it.
    fn is_waited_for(&self) -> bool;
    /// Makes durable what has been decided, and gives what tells those who wait for it.
    fn write(&self) -> Box<dyn FnOnce() + Send>;
}

/// Who takes turns with the journal, and whose turn it is.
#[derive(Default)]
pub(crate) struct Company {
    companion: Option<Arc<dyn Companion>>,
    is_its_turn: bool,
}

impl Company {
    /// The journal has had its round.
    pub(crate) const fn journal_wrote(&mut self) {
        self.is_its_turn = true;
    }
}

/// The way to an engine's rounds.
#[derive(Clone)]
pub struct Rounds(Arc<dyn Bell>);

/// What a companion needs of the engine, whatever its disk.
trait Bell: Send + Sync {
    fn join(&self, companion: Arc<dyn Companion>);
    fn leave(&self);
    fn ring(&self) -> bool;
}

impl Rounds {
    pub(crate) fn of<D: Disk>(shared: &Arc<Shared<D>>) -> Self {
        Self(Arc::clone(shared) as Arc<dyn Bell>)
    }

    /// From now on this one takes turns with the journal.
    pub fn join(&self, companion: Arc<dyn Companion>) {
        self.0.join(companion);
    }

    /// It does not any more.
    pub fn leave(&self) {
        self.0.leave();
    }

    /// Has a round come for all who wait for the companion, now and until it comes. If it says no, none will.
    #[must_use]
    pub fn ring(&self) -> bool {
        self.0.ring()
    }
}

impl<D: Disk> Bell for Shared<D> {
    fn join(&self, companion: Arc<dyn Companion>) {
        lock(&self.company).companion = Some(companion);
    }

    fn leave(&self) {
        lock(&self.company).companion = None;
    }

    fn ring(&self) -> bool {
        let admitted = self.turns.admit(1);
        if admitted.is_ok() {
            self.turns.enqueue(Job::Ring);
        }
        // With so much waiting that no more is taken, rounds come anyway.
        !matches!(admitted, Err(Closed::Stopping | Closed::Failed))
    }
}

impl<D: Disk> Shared<D> {
    /// Whether somebody waits for the companion.
    pub(crate) fn is_companion_waited_for(&self) -> bool {
        let companion = lock(&self.company).companion.clone();
        companion.is_some_and(|companion| companion.is_waited_for())
    }

    /// Writes for the companion, if somebody waits for it and it is its turn, and frees the disk, which is ours. If not, the disk
    /// stays ours.
    pub(crate) fn serve_companion(&self) -> bool {
        let is_clear = self.desk().is_clear();
        let companion = {
            let mut company = lock(&self.company);
            let is_its_turn = std::mem::replace(&mut company.is_its_turn, false) || is_clear;
            company.companion.clone().filter(|_| is_its_turn)
        };
        let Some(companion) = companion.filter(|companion| companion.is_waited_for()) else { return false };
        let tell = companion.write();
        Turns::free_disk(&self.turns);
        tell();
        true
    }
}
