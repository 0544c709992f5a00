//! One running process: a journal and a ledger, driven in the order in which the engine's two workers drive them.
//!
//! Decide into the open batch; close it, so that the next one is decided while it syncs; append it; and only then
//! answer.

use crate::disk::SimDisk;
use holdfast_engine::recovery::Opened;
use holdfast_engine::{Answer, Frozen, Ledger, OnDisk, Request};
use holdfast_journal::{Batch, Cursor, Journal, Location};

/// A running process.
pub(crate) struct Node {
    pub(crate) journal: Journal<SimDisk>,
    pub(crate) ledger: Ledger<OnDisk<SimDisk>>,
    /// The open batch.
    pub(crate) batch: Batch,
    /// Where the open batch was begun.
    pub(crate) cursor: Cursor,
    /// Who is to be told when the open batch is durable.
    pub(crate) replies: Vec<Reply>,
    /// The batch on its way to the disk.
    pub(crate) turn: Option<Turn>,
    /// A book set aside for a snapshot.
    pub(crate) frozen: Option<Frozen>,
    /// Whether the last frame has no seal after it.
    pub(crate) unsealed: bool,
}

/// A closed batch.
pub(crate) struct Turn {
    pub(crate) batch: Batch,
    pub(crate) replies: Vec<Reply>,
    pub(crate) seal: Seal,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seal {
    Wanted,
    Not,
}

/// Something that is told when the batch that it saw is durable.
pub(crate) struct Reply {
    /// The last entry that it saw.
    pub(crate) saw: u64,
    /// The answer to a request; none if somebody only looked.
    pub(crate) answer: Option<(Request, Answer)>,
}

impl Node {
    pub(crate) fn new(opened: Opened<SimDisk>) -> Self {
        let Opened { journal, ledger, .. } = opened;
        let cursor = journal.cursor();
        // A start may follow a crash that left the last frame without a seal.
        let unsealed = journal.end().next_offset > 1;
        let batch = Batch::begin(cursor, Vec::new());
        Self { journal, ledger, batch, cursor, replies: Vec::new(), turn: None, frozen: None, unsealed }
    }

    /// The last entry that has been decided.
    pub(crate) fn decided(&self) -> u64 {
        self.batch.next().1 - 1
    }

    /// Closes the open batch and begins the next. The disk must be free.
    pub(crate) fn close(&mut self, seal: Seal) {
        let end = match (self.batch.is_empty(), seal) {
            // Nothing will be written, so the next batch stands where this one would have.
            (true, Seal::Not) => self.cursor,
            (true, Seal::Wanted) | (false, Seal::Wanted | Seal::Not) => self.batch.end(),
        };
        let batch = std::mem::replace(&mut self.batch, Batch::begin(end, Vec::new()));
        self.cursor = end;
        self.ledger.closed(&batch);
        self.turn = Some(Turn { batch, replies: std::mem::take(&mut self.replies), seal });
    }

    /// Everybody who has not been told.
    pub(crate) fn into_replies(self) -> impl Iterator<Item = Reply> {
        self.turn.into_iter().flat_map(|turn| turn.replies).chain(self.replies)
    }
}

/// The places of the records in a batch from `first` on, with their bodies.
pub(crate) fn records_from(batch: &Batch, first: Location) -> Vec<(Location, Vec<u8>)> {
    const RECORD_HEADER: u32 = holdfast_journal::RECORD_HEADER_BYTES;
    let mut found = Vec::new();
    let mut location = first;
    while location < batch.next().0
        && let Some(body) = holdfast_journal::record_in(batch.frame(), batch.start(), location)
    {
        found.push((location, body.to_vec()));
        location.byte += RECORD_HEADER + body.len() as u32;
    }
    found
}

/// All records of a batch.
pub(crate) fn records(batch: &Batch) -> Vec<(Location, Vec<u8>)> {
    let start = batch.start();
    records_from(batch, Location { byte: start.byte + holdfast_journal::FRAME_HEADER_BYTES, ..start })
}
