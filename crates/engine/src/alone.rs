//! The ledger for whoever owns it alone, without the engine's threads: looking at the books, and snapshots of them.
//!
//! The simulator drives a ledger this way, step by step; [`crate::Engine`] does the same beside its writer.

use crate::archive::OnDisk;
use crate::ledger::Ledger;
use crate::query::View;
use crate::snapshot::{self, Snapshot};
use holdfast_domain::Timestamp;
use holdfast_journal::{Batch, Cursor, Disk, JournalId};
use std::io;

/// A book set aside between two frames, to be saved once everything in it is durable.
pub struct Frozen(Snapshot);

impl<D: Disk> Ledger<OnDisk<D>> {
    /// Looks at the books as they stand with everything in `batch` decided.
    pub fn look<T>(&self, batch: &Batch, now: Timestamp, look: impl FnOnce(&View<'_>) -> T) -> T {
        View::with(self, batch, now, look)
    }

    /// Sets the book aside for a snapshot. `cursor` is where the open batch, in which there is nothing yet, was begun.
    pub fn set_aside(&mut self, cursor: &Cursor) -> Frozen {
        let through = cursor.next_offset.saturating_sub(1);
        let book = self.freeze(through);
        Frozen(Snapshot { location: cursor.location, through, book })
    }

    /// Saves a book that was set aside. `false` if its keys are not all written yet, which also means that it may not
    /// be durable yet: [`Ledger::tidy_keys`] writes them.
    pub fn save(&self, disk: &D, journal: JournalId, frozen: &Frozen) -> io::Result<bool> {
        if !self.archive.keys.covers(frozen.0.through) {
            return Ok(false);
        }
        snapshot::save(disk, journal, &frozen.0)?;
        Ok(true)
    }
}
