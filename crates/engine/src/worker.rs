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
//! # Invariants
//! - **Acknowledged means durable**: answers, refusals and queries included, leave only after the batch that they saw.
//! - One worker at the desk, one at the disk; batches reach the disk in the order in which they were closed.
//! - After a failed append nothing is accepted, written or acknowledged again.

use crate::clock::Clock;
use crate::error::Refusal;
use crate::ledger::Ledger;
use crate::query::View;
use crate::request::{Answer, Hashes, Request};
use crate::upkeep::Upkeep;
use holdfast_domain::Label;
use holdfast_journal::{Batch, Cursor, Disk, Journal, JournalId, failpoint};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// The most requests that wait; more are told to come again.
const WAITING_MAX: usize = 65_536;
/// The most requests decided into one batch. A large batch of a caller's becomes several, so that the first part of it syncs
/// while the rest is decided.
const TURN_MAX: usize = 2_048;
/// The most holds that one batch gives back because their time has come.
const EXPIRIES_MAX: usize = 1_000;
/// A frame is sealed when nothing has followed it for this long.
const SEAL_AFTER: Duration = Duration::from_millis(5);
/// The shortest wait: long enough not to spin, short enough not to be noticed.
const MOMENT: Duration = Duration::from_millis(1);
/// How often a worker with nothing to do looks whether a hold's time has come.
const EXPIRY_CHECK: Duration = Duration::from_millis(250);

pub(crate) struct Shared<D: Disk> {
    pub(crate) disk: D,
    pub(crate) journal_id: JournalId,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) intake: Mutex<Intake>,
    /// Wakes the worker at the desk: there is work, or the disk is free.
    pub(crate) work: Condvar,
    /// Wakes the worker who waits for the desk.
    pub(crate) desk_free: Condvar,
    pub(crate) desk: Mutex<Desk<D>>,
    pub(crate) journal: Mutex<Journal<D>>,
    pub(crate) upkeep: Upkeep,
}

/// What waits, and who is where.
pub(crate) struct Intake {
    pub(crate) queue: VecDeque<Job>,
    pub(crate) waiting: usize,
    pub(crate) desk_taken: bool,
    pub(crate) disk_taken: bool,
    /// Whether the worker at the desk sleeps. Waking costs a system call, so it is done only then.
    pub(crate) desk_sleeps: bool,
    /// Whether somebody has been called to the empty desk and is not there yet.
    pub(crate) called: bool,
    pub(crate) state: State,
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) enum State {
    Running,
    Stopping,
    Failed(String),
}

/// The books, the open batch, and who is to be told when it is durable.
pub(crate) struct Desk<D: Disk> {
    pub(crate) ledger: Ledger<D>,
    pub(crate) batch: Batch,
    /// Where the open batch was begun: the place between it and the frame before.
    pub(crate) cursor: Cursor,
    pub(crate) replies: Vec<Reply>,
    pub(crate) memory: Vec<Vec<u8>>,
}

#[expect(clippy::large_enum_variant, reason = "most jobs are single requests, which are moved once and never boxed")]
pub(crate) enum Job {
    One(Request, Hashes, oneshot::Sender<Answer>),
    Many(Many),
    Ask(Ask),
}

/// A part of a caller's batch, decided as far as `answers` go.
pub(crate) struct Many {
    /// The whole batch: the caller keeps it, and its parts are not copied.
    pub(crate) requests: Arc<Vec<Request>>,
    /// Where in it the part begins.
    pub(crate) from: usize,
    /// Of the part's requests.
    pub(crate) hashes: Vec<Hashes>,
    pub(crate) answers: Vec<Answer>,
    pub(crate) reply: oneshot::Sender<Vec<Answer>>,
}

pub(crate) type Ask = Box<dyn FnOnce(&View<'_>) -> Deliver + Send>;
pub(crate) type Deliver = Box<dyn FnOnce() + Send>;

pub(crate) enum Reply {
    One(oneshot::Sender<Answer>, Answer),
    Many(oneshot::Sender<Vec<Answer>>, Vec<Answer>),
    Ask(Deliver),
}

/// A closed batch on its way to the disk.
struct Turn {
    batch: Batch,
    replies: Vec<Reply>,
    seal: Seal,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Seal {
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
        let mut intake = lock(&self.intake);
        match intake.state {
            State::Running => {}
            State::Stopping => return Err(Refusal::Stopping),
            State::Failed(_) => return Err(Refusal::JournalFailed),
        }
        if intake.waiting.saturating_add(requests) > WAITING_MAX {
            return Err(Refusal::Overloaded);
        }
        intake.waiting += requests;
        Ok(())
    }

    /// Puts a job, whose requests have been admitted, at the end of the queue.
    pub(crate) fn enqueue(&self, job: Job) {
        let mut intake = lock(&self.intake);
        // After a failure nobody takes jobs any more: dropping one tells its caller.
        if !matches!(intake.state, State::Failed(_)) {
            intake.queue.push_back(job);
        }
        self.wake(intake);
    }

    /// Sees to it that somebody at the desk is awake.
    fn wake(&self, mut intake: MutexGuard<'_, Intake>) {
        let call = if intake.desk_taken {
            std::mem::take(&mut intake.desk_sleeps).then_some(&self.work)
        } else {
            (!std::mem::replace(&mut intake.called, true)).then_some(&self.desk_free)
        };
        drop(intake);
        if let Some(condition) = call {
            condition.notify_one();
        }
    }

    /// A worker's life: take the desk, fill a batch, bring it to the disk, answer.
    pub(crate) fn work(&self) {
        while self.take_desk() {
            let Some(turn) = self.fill() else { return };
            self.commit(turn);
        }
    }

    fn take_desk(&self) -> bool {
        let mut intake = lock(&self.intake);
        while intake.desk_taken {
            intake = self.desk_free.wait(intake).unwrap_or_else(PoisonError::into_inner);
        }
        intake.desk_taken = true;
        intake.called = false;
        true
    }

    /// Decides what comes until the disk is free for it, and closes the batch. `None` when there is no more to do.
    fn fill(&self) -> Option<Turn> {
        let mut filled = Filled { told: 0, full: false };
        let mut looked_at = Instant::now();
        let arrived = looked_at;
        loop {
            let jobs = match self.next_step(filled, arrived, looked_at) {
                Step::Decide(jobs) => jobs,
                Step::Write => return Some(self.close(Seal::Not)),
                Step::Seal => return Some(self.close(Seal::Wanted)),
                Step::Leave => {
                    // After a failure: what was decided and not written is known only after a restart.
                    refuse(std::mem::take(&mut lock(&self.desk).replies));
                    lock(&self.intake).desk_taken = false;
                    self.desk_free.notify_one();
                    return None;
                }
            };
            let Filled { told, full } = self.decide(jobs);
            filled = Filled { told: filled.told + told, full };
            looked_at = Instant::now();
        }
    }

    /// Waits for what the worker at the desk should do next. It `arrived` there, and last `looked_at` the books, then.
    fn next_step(&self, filled: Filled, arrived: Instant, looked_at: Instant) -> Step {
        let decided = filled.told;
        let mut intake = lock(&self.intake);
        loop {
            if matches!(intake.state, State::Failed(_)) {
                refuse_all(&mut intake);
                return Step::Leave;
            }
            let full = filled.full || decided >= TURN_MAX || self.upkeep.must_wait();
            if decided > 0 && !intake.disk_taken && (full || intake.queue.is_empty()) {
                intake.disk_taken = true;
                return Step::Write;
            }
            if !full && !intake.queue.is_empty() {
                return Step::Decide(std::mem::take(&mut intake.queue));
            }
            if decided == 0 && intake.queue.is_empty() && intake.state == State::Stopping {
                return Step::Leave;
            }
            let unsealed = self.upkeep.is_unsealed();
            if decided == 0 && unsealed && arrived.elapsed() >= SEAL_AFTER && !intake.disk_taken {
                intake.disk_taken = true;
                return Step::Seal;
            }
            if decided == 0 && looked_at.elapsed() >= EXPIRY_CHECK {
                return Step::Decide(VecDeque::new());
            }
            let patience = if full && !intake.queue.is_empty() {
                MOMENT
            } else if decided == 0 && unsealed && !intake.disk_taken {
                SEAL_AFTER.saturating_sub(arrived.elapsed()).max(MOMENT)
            } else {
                EXPIRY_CHECK.saturating_sub(looked_at.elapsed()).max(MOMENT)
            };
            intake.desk_sleeps = true;
            let waited = self.work.wait_timeout(intake, patience);
            intake = waited.unwrap_or_else(PoisonError::into_inner).0;
            intake.desk_sleeps = false;
        }
    }

    /// Decides jobs into the open batch; what does not fit goes back to the front. Says how far the batch is filled.
    fn decide(&self, mut jobs: VecDeque<Job>) -> Filled {
        let mut desk = lock(&self.desk);
        desk.ledger.durable(self.upkeep.durable().location);
        let now = self.clock.now();
        let before = desk.batch.count();
        let actor = Label::from_bytes(b"expiry").expect("a plain word");
        let Desk { ledger, batch, replies, .. } = &mut *desk;
        if ledger.next_due().is_some_and(|due| due <= now) {
            ledger.expire(now, actor, batch, EXPIRIES_MAX);
        }
        let mut told = (batch.count() - before) as usize;
        let mut done = 0;
        while let Some(job) = jobs.pop_front() {
            if !batch.has_room() || told >= TURN_MAX {
                jobs.push_front(job);
                break;
            }
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
                Job::Many(mut many) => {
                    let decided = many.answers.len();
                    for (request, hashes) in many.requests.iter().skip(many.from).zip(&many.hashes).skip(decided) {
                        if !batch.has_room() || told >= TURN_MAX {
                            break;
                        }
                        many.answers.push(ledger.decide_hashed(request, hashes, now, batch));
                        (told, done) = (told + 1, done + 1);
                    }
                    if many.answers.len() < many.hashes.len() {
                        jobs.push_front(Job::Many(many));
                        break;
                    }
                    replies.push(Reply::Many(many.reply, many.answers));
                }
            }
        }
        let full = !batch.has_room() || told >= TURN_MAX;
        drop(desk);
        self.put_back(jobs, done);
        Filled { told, full }
    }

    /// Puts back what did not fit, and counts what did as no longer waiting.
    fn put_back(&self, jobs: VecDeque<Job>, done: usize) {
        let mut intake = lock(&self.intake);
        intake.waiting = intake.waiting.saturating_sub(done);
        for job in jobs.into_iter().rev() {
            intake.queue.push_front(job);
        }
    }

    /// Closes the open batch and begins the next; the desk is free when this returns. The disk is already ours.
    fn close(&self, seal: Seal) -> Turn {
        let mut desk = lock(&self.desk);
        let memory = desk.memory.pop().unwrap_or_default();
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
        drop(desk);
        let mut intake = lock(&self.intake);
        intake.desk_taken = false;
        // The other worker is called only for work: a lone caller is served by one worker, without a hand-over.
        if !intake.queue.is_empty() {
            self.wake(intake);
        }
        Turn { batch, replies, seal }
    }

    /// Makes a batch durable, frees the disk, and answers.
    fn commit(&self, turn: Turn) {
        let Turn { mut batch, replies, seal } = turn;
        let writes = !batch.is_empty() || seal == Seal::Wanted;
        let appended = if writes { lock(&self.journal).append(&mut batch).map(Some) } else { Ok(None) };
        match appended {
            Ok(end) => {
                if let Some(end) = end {
                    self.upkeep.made_durable(end, batch.is_empty());
                }
                let mut intake = lock(&self.intake);
                intake.disk_taken = false;
                if intake.desk_taken {
                    self.wake(intake);
                } else {
                    drop(intake);
                }
                answer(replies);
                let mut desk = lock(&self.desk);
                if desk.memory.len() < 2 {
                    desk.memory.push(batch.into_memory());
                }
            }
            Err(failed) => {
                self.fail(&failed.to_string());
                lock(&self.intake).disk_taken = false;
                refuse(replies);
            }
        }
    }

    /// Stops for good: nothing is accepted, written or acknowledged from here on.
    pub(crate) fn fail(&self, reason: &str) {
        let mut intake = lock(&self.intake);
        intake.state = State::Failed(reason.to_owned());
        refuse_all(&mut intake);
        drop(intake);
        self.upkeep.stop();
        self.work.notify_all();
        self.desk_free.notify_all();
    }

    pub(crate) fn seal_at_stop(&self) -> Result<(), String> {
        if let State::Failed(reason) = &lock(&self.intake).state {
            return Err(reason.clone());
        }
        if !self.upkeep.is_unsealed() {
            return Ok(());
        }
        let turn = self.close(Seal::Wanted);
        let end = lock(&self.journal).append(&mut { turn.batch }).map_err(|failed| failed.to_string())?;
        self.upkeep.made_durable(end, true);
        Ok(())
    }

    /// The desk, for upkeep between two bursts of deciding.
    pub(crate) fn desk(&self) -> MutexGuard<'_, Desk<D>> {
        lock(&self.desk)
    }
}

/// How far the open batch is filled.
#[derive(Clone, Copy)]
struct Filled {
    /// How many answers and entries wait for it to be durable.
    told: usize,
    full: bool,
}

enum Step {
    Decide(VecDeque<Job>),
    Write,
    Seal,
    Leave,
}

fn answer(replies: Vec<Reply>) {
    failpoint::pass("engine.before_answer");
    for reply in replies {
        // A caller that has gone away does not change what was done.
        match reply {
            Reply::One(reply, answer) => drop(reply.send(answer)),
            Reply::Many(reply, answers) => drop(reply.send(answers)),
            Reply::Ask(deliver) => deliver(),
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
        }
    }
}

fn refuse_all(intake: &mut Intake) {
    intake.waiting = 0;
    for job in intake.queue.drain(..) {
        match job {
            Job::One(_, _, reply) => drop(reply.send(Err(Refusal::JournalFailed))),
            Job::Many(many) => drop(many.reply),
            Job::Ask(ask) => drop(ask),
        }
    }
}
