//! The desk: steps are decided here, one after the other, into the frame that is written next. No I/O.
//!
//! # Invariants
//! - An item in memory is as the last decided step left it; `after` says which record must be durable before anybody is told.
//! - Nothing is decided after the log has failed.

use super::items::{Items, Kept};
use super::known::Known;
use super::record::Step;
use holdfast_domain::queue::{Item, Refusal, Stage, State, Verdict};
use holdfast_domain::{ItemId, PayeeId, Timestamp};
use holdfast_engine::queue::{Answered, METADATA_BYTES_MAX, Put, QueueFailed};
use holdfast_journal::{Batch, Cursor};
use tokio::sync::oneshot;

/// With so many ended items that the file has not got, no more are put: memory is bounded.
pub(super) const UNFILED_MAX: usize = 100_000;

/// An answer, and the record that must be durable before it is given; 0 if there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decided<T> {
    /// What was decided.
    pub answer: Answered<T>,
    /// The record to wait for.
    pub after: u64,
}

/// The open frame has no room for one more step: it has to be written first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoRoom;

/// Whether the writer sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asleep {
    /// It does not: it sees what there is before it does.
    Not,
    /// Until it is called.
    Idle,
    /// Until somebody waits who does not wait for a round of the engine, or nothing more has been written for a while.
    Lingering,
}

pub(super) struct Desk {
    pub(super) items: Items,
    /// Of these and of all that the file has.
    pub(super) known: Known,
    batch: Batch,
    /// Where the open batch was begun.
    cursor: Cursor,
    memory: Vec<u8>,
    /// The last record but for ends: what lists and counts have seen.
    pub(super) seen: u64,
    /// How often the file took over ended items: who looked into both must look again if it did meanwhile.
    pub(super) filings: u64,
    pub(super) failure: Option<String>,
    pub(super) is_stopping: bool,
    /// Whether those who wait are served by the engine's rounds. If not, the writer serves them.
    pub(super) rides: bool,
    /// Whether the writer has ended: nothing more becomes durable.
    pub(super) is_written: bool,
    /// Who waits for the open batch to be durable.
    pub(super) waiting: Vec<oneshot::Sender<()>>,
    /// Whether it is to be written for them now: the first of them lets others join.
    pub(super) is_called_for: bool,
    /// Whether the last frame has no seal after it.
    pub(super) is_unsealed: bool,
    /// Whether the writer sleeps, and for what.
    pub(super) asleep: Asleep,
    /// How many frames were closed: whether something went on meanwhile.
    pub(super) frames: u64,
}

impl Desk {
    pub(super) fn new(items: Items, known: Known, cursor: Cursor) -> Self {
        Self {
            items,
            known,
            batch: Batch::begin(cursor, Vec::new()),
            cursor,
            memory: Vec::new(),
            seen: 0,
            filings: 0,
            failure: None,
            is_stopping: false,
            rides: false,
            is_written: false,
            waiting: Vec::new(),
            is_called_for: false,
            // A start may follow a crash that left the last frame without a seal.
            is_unsealed: cursor.next_offset > 1,
            asleep: Asleep::Not,
            frames: 0,
        }
    }

    /// Puts a new item. `filed` is what the file has under its id, if memory has nothing.
    pub(super) fn put(&mut self, item: &Item, filed: Option<Item>) -> Result<Decided<Put>, NoRoom> {
        let refused = |answer| Ok(Decided { answer: Err(answer), after: 0 });
        if let Some(failed) = self.failed() {
            return refused(failed);
        }
        let known = self.items.get(item.intake.id).map(|kept| (kept.item.clone(), kept.after));
        if let Some((known, after)) = known.or(filed.map(|item| (item, 0))) {
            let is_same = known.intake == item.intake;
            let answer = if is_same { Ok(Put::Known(known)) } else { Err(QueueFailed::Reused) };
            return Ok(Decided { answer, after });
        }
        if let Some(Kept { after, .. }) = self.items.of_escrow(item.intake.escrow) {
            return Ok(Decided { answer: Err(QueueFailed::Linked), after: *after });
        }
        if !matches!(item.stage, Stage::Queued { .. }) {
            let refusal = Refusal::InvalidState { current: item.state(), expected: &[State::Queued] };
            return refused(QueueFailed::Refused(refusal));
        }
        if item.intake.metadata.as_ref().is_some_and(|words| words.len() > METADATA_BYTES_MAX) {
            let why = format!("an item's metadata has at most {METADATA_BYTES_MAX} bytes");
            return refused(QueueFailed::Unavailable(why));
        }
        if self.items.unfiled() >= UNFILED_MAX {
            let why = "queue.db is too far behind the queue's log to take more items; see whether its disk is full";
            return refused(QueueFailed::Unavailable(why.to_owned()));
        }
        let after = self.step(&Step::Put(item.clone()), item.clone())?;
        self.known.add(item.intake.id);
        Ok(Decided { answer: Ok(Put::New(item.clone())), after })
    }

    /// Has an item taken up.
    pub(super) fn start(&mut self, id: ItemId, filed: Option<&Item>, now: Timestamp) -> Result<Decided<Item>, NoRoom> {
        let (item, after) = match self.known(id, filed) {
            Ok(known) => known,
            Err(answer) => return Ok(Decided { answer: Err(answer), after: 0 }),
        };
        match item.start(now) {
            Err(refusal) => Ok(Decided { answer: Err(QueueFailed::Refused(refusal)), after }),
            Ok(started) => {
                let after = self.step(&Step::Start { id, at: now }, started.clone())?;
                Ok(Decided { answer: Ok(started), after })
            }
        }
    }

    /// Has the first of a payee's waiting items taken up.
    pub(super) fn start_next(&mut self, payee: PayeeId, now: Timestamp) -> Result<Decided<Option<Item>>, NoRoom> {
        let Some(id) = self.items.next_of(payee, now).map(|item| item.intake.id) else {
            let answer = self.failed().map_or(Ok(None), Err);
            return Ok(Decided { answer, after: self.seen });
        };
        let Decided { answer, after } = self.start(id, None, now)?;
        Ok(Decided { answer: answer.map(Some), after })
    }

    /// Ends an item. What is waited for is only what the answer tells of its life before.
    pub(super) fn end(
        &mut self,
        id: ItemId,
        filed: Option<&Item>,
        verdict: Verdict,
        at: Timestamp,
    ) -> Result<Decided<Item>, NoRoom> {
        let (item, after) = match self.known(id, filed) {
            Ok(known) => known,
            Err(answer) => return Ok(Decided { answer: Err(answer), after: 0 }),
        };
        let has_ended_so = matches!(item.stage, Stage::Ended(end) if end.verdict == verdict);
        if has_ended_so {
            return Ok(Decided { answer: Ok(item), after });
        }
        match item.end(verdict, at) {
            Err(refusal) => Ok(Decided { answer: Err(QueueFailed::Refused(refusal)), after }),
            Ok(ended) => {
                self.step(&Step::End { id, at, verdict }, ended.clone())?;
                Ok(Decided { answer: Ok(ended), after })
            }
        }
    }

    fn failed(&self) -> Option<QueueFailed> {
        let stopping = self.is_stopping.then(|| "it is stopping".to_owned());
        self.failure.clone().or(stopping).map(QueueFailed::Unavailable)
    }

    fn known(&self, id: ItemId, filed: Option<&Item>) -> Answered<(Item, u64)> {
        if let Some(failed) = self.failed() {
            return Err(failed);
        }
        let here = self.items.get(id).map(|kept| (kept.item.clone(), kept.after));
        here.or_else(|| filed.map(|item| (item.clone(), 0))).ok_or(QueueFailed::Unknown)
    }

    /// Writes a step into the open batch, and the item as it is after it into memory. Gives the record's offset.
    fn step(&mut self, step: &Step, item: Item) -> Result<u64, NoRoom> {
        if !self.batch.has_room() {
            return Err(NoRoom);
        }
        let (_, offset) = self.batch.next();
        self.batch.push(|bytes| step.encode(bytes)).expect("the longest record fits, by the assertion beside it");
        if !item.state().is_end() {
            self.seen = offset;
        }
        self.items.set(item, offset);
        Ok(offset)
    }

    /// The last record that was decided.
    pub(super) fn last(&self) -> u64 {
        self.batch.next().1.saturating_sub(1)
    }

    /// Has somebody told when a record of the open batch is durable; `None` if it is in an earlier one, or no batch is written any
    /// more.
    pub(super) fn wait_for(&mut self, after: u64) -> Option<oneshot::Receiver<()>> {
        if self.failure.is_some() || after <= self.last().saturating_sub(u64::from(self.batch.count())) {
            return None;
        }
        let (teller, told) = oneshot::channel();
        self.waiting.push(teller);
        Some(told)
    }

    pub(super) fn is_batch_empty(&self) -> bool {
        self.batch.is_empty()
    }

    /// Closes the open batch and begins the next. `None` if there is nothing to write and no seal is wanted.
    pub(super) fn close(&mut self, seal: Seal) -> Option<(Batch, Vec<oneshot::Sender<()>>)> {
        if self.failure.is_some() || (self.batch.is_empty() && seal == Seal::Not) {
            return None;
        }
        self.cursor = self.batch.end();
        self.frames += 1;
        self.is_called_for = false;
        let next = Batch::begin(self.cursor, std::mem::take(&mut self.memory));
        Some((std::mem::replace(&mut self.batch, next), std::mem::take(&mut self.waiting)))
    }

    /// Nothing is written any more. Those who wait for the open batch are told by nobody, and look why.
    pub(super) fn fail(&mut self, failure: String) {
        self.failure = Some(failure);
        self.is_called_for = false;
        self.waiting.clear();
    }

    /// Takes the memory of a batch that was written.
    pub(super) fn reuse(&mut self, batch: Batch) {
        self.memory = batch.into_memory();
    }
}

/// Whether an empty frame is written where there is nothing to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seal {
    /// It is: the frame before it is known to be whole from then on.
    Wanted,
    /// It is not.
    Not,
}
