//! The single writer, as two threads.
//!
//! Two workers take turns. One stands at the **desk**: it takes what is waiting and decides it, in order, into the open
//! batch. When the **disk** is free it closes the batch, leaves the desk to the other, writes, syncs, and answers. So the
//! next batch is decided while the last one syncs, and a lone caller waits for one hand-over only.
//!
//! ```text
//!  callers ──▶ intake ──▶ desk (decide) ──▶ disk (append + sync) ──▶ answers
//!                          worker A            worker B            then they change places
//! ```
//!
//! A lone caller with a quick disk does both itself, on its own thread (`serve_alone`). One with a batch decides it there, as long
//! as nobody else waits, and leaves the disk to the workers (`decide_here`): requests and answers that never change threads never
//! leave the processor's cache. Who wakes whom is in `turns.rs`.
//!
//! # Invariants
//! - **Acknowledged means durable**: answers, refusals and queries included, leave only after the batch that they saw.
//! - One worker at the desk, one at the disk; batches reach the disk in the order in which they were closed, because
//!   whoever closes one has the disk already.
//! - After a failed append nothing is accepted, written or acknowledged again.

use crate::archive::OnDisk;
use crate::clock::Clock;
use crate::error::Refusal;
use crate::keys::KeyHash;
use crate::ledger::Ledger;
use crate::lone::Lone;
use crate::margin::{Noted, Notes};
use crate::query::View;
use crate::request::{Answer, Hashes, Request};
use crate::submitted::Part;
use crate::turns::{Beside, Closed, Filled, Since, Step, Turns};
use crate::upkeep::Upkeep;
use holdfast_domain::escrow::Escrowed;
use holdfast_domain::{EscrowId, Label, OwnerId};
use holdfast_journal::{Batch, Cursor, Disk, End, Journal, JournalId, failpoint};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::oneshot;

/// With this many requests decided, a batch goes to the disk when that is free. A large batch of a caller's becomes several, so
/// that the first part of it syncs while the rest is decided.
pub(crate) const TURN: usize = 2_048;
/// The most requests decided into one batch, while the disk is not free: a slow sync is no reason to stop deciding.
const TURN_MAX: usize = 8_192;
/// How many requests' memory is asked for at once, before the first of them is decided.
const AHEAD: usize = 16;
/// While the disk is busy, fewer requests than this wait until it is free: to decide them takes less than to wake a thread for each.
pub(crate) const GATHER: usize = 32;
/// The most holds that one batch gives back because their time has come.
const EXPIRIES_MAX: usize = 1_000;

/// Nothing decided yet.
const EMPTY: Filled = Filled { told: 0, enough: false, full: false };

pub(crate) struct Shared<D: Disk> {
    pub(crate) disk: D,
    pub(crate) journal_id: JournalId,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) turns: Turns<Job>,
    pub(crate) desk: Mutex<Desk<D>>,
    pub(crate) journal: Mutex<Journal<D>>,
    /// Of batches that were written, for those to come.
    pub(crate) memory: Mutex<Vec<Vec<u8>>>,
    /// Whether a caller may do the work itself.
    pub(crate) lone: Lone,
    /// Who writes beside the entries.
    pub(crate) margin: Mutex<Option<Arc<dyn Notes>>>,
    pub(crate) upkeep: Upkeep,
}

/// The books, the open batch, and who is to be told when it is durable.
pub(crate) struct Desk<D: Disk> {
    pub(crate) ledger: Ledger<OnDisk<D>>,
    pub(crate) batch: Batch,
    /// Where the open batch was begun: the place between it and the frame before.
    pub(crate) cursor: Cursor,
    pub(crate) replies: Vec<Reply>,
}

#[expect(clippy::large_enum_variant, reason = "most jobs are single requests, which are moved once and never boxed")]
pub(crate) enum Job {
    One(Request, Hashes, oneshot::Sender<Answer>),
    Many(Many),
    Ask(Ask),
    Told(Told),
    /// Somebody waits for notes: a frame is all that is wanted.
    Ring,
}

impl Job {
    /// What a single request is known by.
    const fn single(&self) -> Option<&Hashes> {
        match self {
            Self::One(_, hashes, _) => Some(hashes),
            Self::Many(_) | Self::Ask(_) | Self::Told(_) | Self::Ring => None,
        }
    }
}

/// A part of a caller's batch, decided as far as `answers` go.
pub(crate) struct Many {
    pub(crate) part: Arc<Part>,
    /// The first of the part that is the workers' to decide.
    pub(crate) first: usize,
    pub(crate) answers: Vec<Answer>,
    pub(crate) reply: oneshot::Sender<Vec<Answer>>,
}

/// Requests that their caller has decided into the open batch, or into one before it.
pub(crate) struct Told {
    pub(crate) requests: usize,
    /// To be told when they are durable, if they are the caller's last.
    pub(crate) durable: Option<oneshot::Sender<()>>,
}

pub(crate) type Ask = Box<dyn FnOnce(&View<'_>) -> Deliver + Send>;
pub(crate) type Deliver = Box<dyn FnOnce() + Send>;

pub(crate) enum Reply {
    One(oneshot::Sender<Answer>, Answer),
    Many(oneshot::Sender<Vec<Answer>>, Vec<Answer>),
    Ask(Deliver),
    Durable(oneshot::Sender<()>),
}

/// A closed batch on its way to the disk.
pub(crate) struct Turn {
    batch: Batch,
    replies: Vec<Reply>,
    noted: Option<Noted>,
    seal: Seal,
}

impl Turn {
    /// How many are told when it is durable.
    fn told(&self) -> usize {
        self.replies.len() + self.noted.as_ref().map_or(0, |noted| noted.waiting)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seal {
    Wanted,
    Not,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A worker that panicked left the state half changed, and the process is built to abort on panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<D: Disk> Shared<D> {
    /// Counts `requests` as waiting, if there is room for them all.
    pub(crate) fn admit(&self, requests: usize) -> Result<(), Refusal> {
        self.turns.admit(requests).map_err(|closed| match closed {
            Closed::Full => Refusal::Overloaded,
            Closed::Stopping => Refusal::Stopping,
            Closed::Failed => Refusal::JournalFailed,
        })
    }

    /// A worker's life: take the desk, fill a batch, bring it to the disk, answer.
    pub(crate) fn work(&self) {
        loop {
            self.turns.take_desk();
            let Some(turn) = self.fill() else { return };
            let has_few = turn.told() < GATHER;
            self.commit(turn, if has_few { Turns::free_disk_and_return } else { Turns::free_disk });
        }
    }

    /// Decides what comes until the disk is free for it, and closes the batch. `None` when there is no more to do.
    fn fill(&self) -> Option<Turn> {
        // The last frame may have had no room for all that somebody waits for.
        let mut filled = Filled { told: usize::from(self.are_notes_waited_for()), ..EMPTY };
        let mut since = Since::now();
        loop {
            let jobs = match self.turns.next_step(filled, since, self) {
                Step::Decide(jobs) => jobs,
                Step::Write => return Some(self.leave(Seal::Not)),
                Step::Seal => return Some(self.leave(Seal::Wanted)),
                Step::Leave(jobs) => {
                    refuse_all(jobs);
                    // After a failure: what was decided and not written is known only after a restart.
                    refuse(std::mem::take(&mut lock(&self.desk).replies));
                    self.turns.go_home();
                    return None;
                }
            };
            let (decided, full) = self.decide(jobs);
            let told = filled.told + decided;
            filled = Filled { told, enough: told >= TURN, full: full || told >= TURN_MAX };
            since.looked = Instant::now();
        }
    }

    /// Decides jobs into the open batch, a turn's worth at most; the rest goes back to the front. Says how much came
    /// to it, and whether it is full.
    fn decide(&self, mut jobs: VecDeque<Job>) -> (usize, bool) {
        let mut desk = lock(&self.desk);
        desk.ledger.durable(self.upkeep.durable().location);
        let now = self.clock.now();
        let before = desk.batch.count();
        let actor = Label::from_bytes(b"expiry").expect("a plain word");
        let Desk { ledger, batch, replies, .. } = &mut *desk;
        if ledger.may_be_due(now) {
            ledger.expire(now, actor, batch, EXPIRIES_MAX);
        }
        let mut told = (batch.count() - before) as usize;
        let mut done = 0_usize;
        while !jobs.is_empty() && batch.has_room() && told < TURN {
            if done.is_multiple_of(AHEAD) {
                ledger.approach(jobs.iter().take(AHEAD).filter_map(Job::single));
            }
            let Some(job) = jobs.pop_front() else { break };
            match job {
                Job::One(request, hashes, reply) => {
                    let answer = ledger.decide_hashed(&request, &hashes, now, batch);
                    replies.push(Reply::One(reply, answer));
                    (told, done) = (told + 1, done + 1);
                }
                Job::Ask(ask) => {
                    replies.push(Reply::Ask(View::with(ledger, batch, now, ask)));
                    (told, done) = (told + 1, done + 1);
                }
                Job::Told(Told { requests, durable }) => {
                    // Who waits is told even if all that it decided is in an earlier batch.
                    told += requests.max(durable.iter().len());
                    done += requests;
                    replies.extend(durable.map(Reply::Durable));
                }
                Job::Ring => (told, done) = (told + 1, done + 1),
                Job::Many(mut many) => {
                    let (requests, hashes) = (&many.part.requests, many.part.hashes());
                    while let at = many.first + many.answers.len()
                        && let Some((request, hash)) = requests.get(at).zip(hashes.get(at))
                        && batch.has_room()
                        && told < TURN
                    {
                        if at.is_multiple_of(AHEAD) {
                            ledger.approach(hashes.iter().skip(at).take(AHEAD));
                        }
                        ledger.decide_into(request, hash, now, (batch, &mut many.answers));
                        (told, done) = (told + 1, done + 1);
                    }
                    if many.first + many.answers.len() < hashes.len() {
                        jobs.push_front(Job::Many(many));
                        break;
                    }
                    replies.push(Reply::Many(many.reply, many.answers));
                }
            }
        }
        let full = !batch.has_room();
        // What callers have decided themselves waits for the disk too: else a full batch would have no room for ever, and an intake
        // that waits for the key index would wait for what this batch must make durable first.
        let told = told.max(usize::from(!batch.is_empty()));
        drop(desk);
        self.turns.put_back(jobs, done);
        (told, full)
    }

    /// Closes the open batch and frees the desk.
    fn leave(&self, seal: Seal) -> Turn {
        let turn = self.close(lock(&self.desk), seal);
        self.turns.leave_desk();
        turn
    }

    /// Decides and writes one request on its caller's thread, if nobody is at work, the disk is quick, and callers come one by
    /// one: where they come together, they share a sync. `None` if it must queue.
    pub(crate) fn serve_alone(&self, request: &Request, hashes: &Hashes) -> Option<Answer> {
        if !self.lone.is_likely() || !self.turns.take_disk_alone(self) {
            return None;
        }
        let mut desk = lock(&self.desk);
        desk.ledger.durable(self.upkeep.durable().location);
        let now = self.clock.now();
        // Holds whose time has come are the workers' to give back.
        if desk.ledger.may_be_due(now) || !desk.batch.has_room() {
            drop(desk);
            self.turns.free_disk_alone();
            return None;
        }
        let Desk { ledger, batch, .. } = &mut *desk;
        let answer = ledger.decide_hashed(request, hashes, now, batch);
        let turn = self.close(desk, Seal::Not);
        let written = self.commit(turn, Turns::free_disk_alone);
        Some(if written { answer } else { Err(Refusal::JournalFailed) })
    }

    /// Decides a part of a caller's batch on the caller's own thread, and says how many: all of them, unless there is no room. What
    /// they did is in the open batch; the answers may be told once a [`Told`] that is enqueued after this says that it is durable.
    pub(crate) fn decide_here(&self, part: &Part, answers: &mut Vec<Answer>) -> usize {
        if self.upkeep.must_wait() {
            return 0;
        }
        let (requests, hashes) = (&part.requests, part.hashes());
        let mut desk = lock(&self.desk);
        desk.ledger.durable(self.upkeep.durable().location);
        let now = self.clock.now();
        let Desk { ledger, batch, .. } = &mut *desk;
        // Holds whose time has come are the workers' to give back.
        if ledger.may_be_due(now) {
            return 0;
        }
        let before = answers.len();
        for (requests, hashes) in requests.chunks(AHEAD).zip(hashes.chunks(AHEAD)) {
            ledger.approach(hashes.iter());
            for (request, hashes) in requests.iter().zip(hashes) {
                if !batch.has_room() || batch.count() as usize >= TURN_MAX {
                    return answers.len() - before;
                }
                ledger.decide_into(request, hashes, now, (batch, answers));
            }
        }
        answers.len() - before
    }

    /// An open escrow and its owner, if its hold is durable: the disk is not waited for.
    pub(crate) fn open_escrow(&self, id: EscrowId) -> Option<(Escrowed, OwnerId)> {
        // Before the desk is locked: whoever decides waits for it.
        let hash = KeyHash::of_escrow(id);
        let desk = self.desk();
        let book = &desk.ledger.book;
        let open = book.escrows.get(hash).filter(|open| open.id == id)?;
        (open.last < self.upkeep.durable().location).then(|| (open.escrowed, book.owner_name(open.row)))
    }

    /// Closes the open batch and begins the next. The disk is already ours.
    pub(crate) fn close(&self, mut desk: MutexGuard<'_, Desk<D>>, seal: Seal) -> Turn {
        let noted = self.note(&mut desk.batch);
        let memory = lock(&self.memory).pop().unwrap_or_default();
        let end = match (desk.batch.is_empty(), seal) {
            // Nothing will be written, so the next batch stands where this one would have.
            (true, Seal::Not) => desk.cursor,
            (true, Seal::Wanted) | (false, _) => desk.batch.end(),
        };
        let batch = std::mem::replace(&mut desk.batch, Batch::begin(end, memory));
        desk.cursor = end;
        desk.ledger.closed(&batch);
        let replies = std::mem::take(&mut desk.replies);
        self.upkeep.freeze_if_wanted(&mut desk);
        Turn { batch, replies, noted, seal }
    }

    /// Makes a batch durable, frees the disk, and answers. Says whether it is durable.
    pub(crate) fn commit(&self, turn: Turn, free_disk: impl FnOnce(&Turns<Job>)) -> bool {
        let told = turn.told();
        let Turn { mut batch, replies, noted, seal } = turn;
        let writes = !batch.is_empty() || seal == Seal::Wanted;
        let began = Instant::now();
        let appended = if writes { self.append(&mut batch).map(Some) } else { Ok(None) };
        self.lone.wrote(told, began.elapsed());
        match appended {
            Ok(end) => {
                if let Some(end) = end {
                    self.upkeep.made_durable(end, batch.is_empty());
                }
                free_disk(&self.turns);
                if let Some((noted, end)) = noted.zip(end) {
                    (noted.tell)(end);
                }
                answer(replies);
                let mut memory = lock(&self.memory);
                if memory.len() < 2 {
                    memory.push(batch.into_memory());
                }
                true
            }
            Err(failed) => {
                self.fail(&failed);
                free_disk(&self.turns);
                refuse(replies);
                false
            }
        }
    }

    fn append(&self, batch: &mut Batch) -> Result<End, String> {
        lock(&self.journal).append(batch).map_err(|failed| failed.to_string())
    }

    /// Stops for good: nothing is accepted, written or acknowledged from here on.
    pub(crate) fn fail(&self, reason: &str) {
        refuse_all(self.turns.fail(reason));
        self.fail_notes(reason);
        self.upkeep.stop();
    }

    pub(crate) fn seal_at_stop(&self) -> Result<(), String> {
        if let Some(reason) = self.turns.failure() {
            return Err(reason);
        }
        // A frame that takes the last notes is no seal yet.
        while self.is_unsealed() {
            let turn = self.close(self.desk(), Seal::Wanted);
            if !self.commit(turn, |_| {}) {
                return Err(self.turns.failure().unwrap_or_default());
            }
        }
        Ok(())
    }

    /// The desk, for upkeep between two bursts of deciding.
    pub(crate) fn desk(&self) -> MutexGuard<'_, Desk<D>> {
        lock(&self.desk)
    }
}

fn answer(replies: Vec<Reply>) {
    failpoint::pass("engine.before_answer");
    for reply in replies {
        // A caller that has gone away does not change what was done.
        match reply {
            Reply::One(reply, answer) => drop(reply.send(answer)),
            Reply::Many(reply, answers) => drop(reply.send(answers)),
            Reply::Ask(deliver) => deliver(),
            Reply::Durable(reply) => drop(reply.send(())),
        }
        failpoint::pass("engine.mid_answers");
    }
    failpoint::pass("engine.after_answer");
}

/// Tells callers whose batch failed that its outcome is unknown. A dropped sender says the same.
fn refuse(replies: Vec<Reply>) {
    for reply in replies {
        match reply {
            Reply::One(reply, _) => drop(reply.send(Err(Refusal::JournalFailed))),
            Reply::Many(reply, _) => drop(reply),
            Reply::Ask(deliver) => drop(deliver),
            Reply::Durable(reply) => drop(reply),
        }
    }
}

fn refuse_all(jobs: VecDeque<Job>) {
    for job in jobs {
        match job {
            Job::One(_, _, reply) => drop(reply.send(Err(Refusal::JournalFailed))),
            Job::Many(many) => drop(many.reply),
            Job::Ask(ask) => drop(ask),
            Job::Told(told) => drop(told.durable),
            // Who waits for notes is told by whoever keeps them.
            Job::Ring => {}
        }
    }
}
