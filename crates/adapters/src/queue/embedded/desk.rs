//! The desk: steps are decided here, one after the other, for the frame that is written next. No I/O.
//!
//! ```text
//!  steps   1 … filed │ … closed │ … last      filed: the file has them; closed: a frame has them, durable or on its way
//! ```
//!
//! # Invariants
//! - An item in memory is as the last decided step left it; `after` says which step must be durable before anybody is told.
//! - Nothing is decided after the journal has failed.

use super::items::{Items, Kept};
use super::known::Known;
use super::notes::Notes;
use super::record::Step;
use holdfast_domain::queue::{Item, Refusal, Stage, State, Verdict};
use holdfast_domain::{ItemId, PayeeId, Timestamp};
use holdfast_engine::queue::{Answered, METADATA_BYTES_MAX, Put, QueueFailed};
use holdfast_journal::Batch;
use tokio::sync::oneshot;

/// With so many ended items that the file has not got, no more are put: memory is bounded.
pub(super) const UNFILED_MAX: usize = 100_000;
/// With so many steps that no frame has, a frame is waited for first.
const OPEN_MAX: u64 = 4_096;

/// An answer, and the step that must be durable before it is given; 0 if there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decided<T> {
    /// What was decided.
    pub answer: Answered<T>,
    /// The step to wait for.
    pub after: u64,
}

/// Too many steps wait for a frame to decide one more: it has to be written first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoRoom;

/// What was written into a frame.
pub(super) struct Written {
    /// The last step in it.
    pub(super) through: u64,
    /// Who waits for it to be durable.
    pub(super) waiting: Vec<oneshot::Sender<()>>,
}

/// Who waits for a step.
struct Waiting {
    after: u64,
    teller: oneshot::Sender<()>,
}

pub(super) struct Desk {
    pub(super) items: Items,
    /// Of these and of all that the file has.
    pub(super) known: Known,
    /// The notes of the steps that the file has not got.
    unfiled: Notes,
    /// The last step that the file has.
    filed: u64,
    /// The last step that a frame has, durable or on its way.
    closed: u64,
    /// The last step but for ends: what lists and counts have seen.
    pub(super) seen: u64,
    /// How often the file took over ended items: who looked into both must look again if it did meanwhile.
    pub(super) filings: u64,
    pub(super) failure: Option<String>,
    pub(super) is_stopping: bool,
    /// Who waits for steps that no frame has.
    waiting: Vec<Waiting>,
    /// Whether a frame is to be written for them now: the first of them lets others join.
    pub(super) is_called_for: bool,
}

impl Desk {
    /// A desk whose items are as they are after the step `filed`.
    pub(super) fn new(items: Items, known: Known, filed: u64) -> Self {
        Self {
            items,
            known,
            unfiled: Notes::default(),
            filed,
            closed: filed,
            seen: 0,
            filings: 0,
            failure: None,
            is_stopping: false,
            waiting: Vec::new(),
            is_called_for: false,
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

    /// Has a step written by the next frame, and puts the item as it is after it into memory. Gives the step's number.
    fn step(&mut self, step: &Step, item: Item) -> Result<u64, NoRoom> {
        if self.last() - self.closed >= OPEN_MAX {
            return Err(NoRoom);
        }
        let number = self.last() + 1;
        self.unfiled.push(step, number);
        if !item.state().is_end() {
            self.seen = number;
        }
        self.items.set(item, number);
        Ok(number)
    }

    /// The last step that was decided.
    pub(super) fn last(&self) -> u64 {
        self.filed + self.unfiled.len() as u64
    }

    /// Whether there are steps that no frame has.
    pub(super) fn has_open(&self) -> bool {
        self.last() > self.closed
    }

    /// Whether there are steps that a frame has on its way to the disk, if those up to `durable` are there.
    pub(super) const fn is_on_its_way(&self, durable: u64) -> bool {
        self.closed > durable
    }

    /// Has somebody told when a step that no frame has is durable; `None` if a frame has it, or none is written any more.
    pub(super) fn wait_for(&mut self, after: u64) -> Option<oneshot::Receiver<()>> {
        if self.failure.is_some() || after <= self.closed {
            return None;
        }
        let (teller, told) = oneshot::channel();
        self.waiting.push(Waiting { after, teller });
        Some(told)
    }

    /// Whether somebody waits for a frame.
    pub(super) const fn is_waited_for(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Writes what no frame has into this one, as far as there is room; `None` if there is nothing, or nothing is written any more.
    pub(super) fn write(&mut self, frame: &mut Batch) -> Option<Written> {
        if self.failure.is_some() || !self.has_open() {
            return None;
        }
        let before = self.closed;
        for note in self.unfiled.after((self.closed - self.filed) as usize) {
            if !frame.has_room() {
                break;
            }
            frame.push_note(note).expect("the longest note fits, by the assertion beside it");
            self.closed += 1;
        }
        if self.closed == before {
            return None;
        }
        let through = self.closed;
        let is_in_it = |waiting: &mut Waiting| waiting.after <= through;
        let waiting = self.waiting.extract_if(.., is_in_it).map(|waiting| waiting.teller).collect();
        self.is_called_for = !self.waiting.is_empty();
        Some(Written { through, waiting })
    }

    /// Takes out the notes of steps up to `through`, for the file. Gives the number of the first.
    pub(super) fn take_unfiled(&mut self, through: u64, notes: &mut Notes) -> u64 {
        let first = self.filed + 1;
        self.unfiled.take((through.max(self.filed) - self.filed) as usize, notes);
        self.filed += notes.len() as u64;
        first
    }

    /// Nothing is written any more. Those who wait are told by nobody, and look why.
    pub(super) fn fail(&mut self, failure: String) {
        self.failure.get_or_insert(failure);
        self.is_called_for = false;
        self.waiting.clear();
    }
}
