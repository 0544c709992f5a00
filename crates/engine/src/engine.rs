//! The engine: the single writer as threads, and the door for callers on any number of tasks.
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
use crate::request::{Answer, BATCH_MAX, Hashes, Request};
use crate::upkeep::{self, Upkeep};
use holdfast_domain::Label;
use holdfast_journal::{Batch, Cursor, Disk, Journal, JournalId, failpoint};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

pub use crate::upkeep::Policy;

/// The most requests that wait; more are told to come again.
const WAITING_MAX: usize = 65_536;
/// The most requests decided into one batch. A large batch of a caller's becomes several, so that the first part of it syncs
/// while the rest is decided.
const TURN_MAX: usize = 2_048;
/// A caller's batch is hashed and enqueued in parts of this size.
const PART: usize = 512;
/// The most holds that one batch gives back because their time has come.
const EXPIRIES_MAX: usize = 1_000;
/// A frame is sealed when nothing has followed it for this long.
const SEAL_AFTER: Duration = Duration::from_millis(5);
/// The shortest wait: long enough not to spin, short enough not to be noticed.
const MOMENT: Duration = Duration::from_millis(1);
/// How often a worker with nothing to do looks whether a hold's time has come.
const EXPIRY_CHECK: Duration = Duration::from_millis(250);

/// A running engine. Dropping it without [`Engine::stop`] is a crash as far as the data directory is concerned.
pub struct Engine<D: Disk> {
    pub(crate) shared: Arc<Shared<D>>,
    workers: Vec<JoinHandle<()>>,
    upkeep: Option<JoinHandle<()>>,
}

/// How the engine is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// Why nothing is accepted any more.
    pub failed: Option<String>,
    /// The last durable entry.
    pub durable: u64,
    /// The last entry that the read model has applied.
    pub applied: u64,
    /// Why the read model does not follow any more.
    pub read_model_failed: Option<String>,
    /// Requests that wait.
    pub waiting: usize,
}

pub(crate) struct Shared<D: Disk> {
    pub(crate) disk: D,
    pub(crate) journal_id: JournalId,
    clock: Arc<dyn Clock>,
    intake: Mutex<Intake>,
    /// Wakes the worker at the desk: there is work, or the disk is free.
    work: Condvar,
    /// Wakes the worker who waits for the desk.
    desk_free: Condvar,
    desk: Mutex<Desk<D>>,
    journal: Mutex<Journal<D>>,
    pub(crate) upkeep: Upkeep,
}

/// What waits, and who is where.
struct Intake {
    queue: VecDeque<Job>,
    waiting: usize,
    desk_taken: bool,
    disk_taken: bool,
    /// Whether the worker at the desk sleeps. Waking costs a system call, so it is done only then.
    desk_sleeps: bool,
    /// Whether somebody has been called to the empty desk and is not there yet.
    called: bool,
    state: State,
}

#[derive(Clone, PartialEq, Eq)]
enum State {
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
    replies: Vec<Reply>,
    memory: Vec<Vec<u8>>,
}

#[expect(clippy::large_enum_variant, reason = "most jobs are single requests, which are moved once and never boxed")]
enum Job {
    One(Request, Hashes, oneshot::Sender<Answer>),
    Many(Many),
    Ask(Ask),
}

/// A batch of a caller's, decided as far as `answers` go.
struct Many {
    requests: Vec<Request>,
    hashes: Vec<Hashes>,
    answers: Vec<Answer>,
    reply: oneshot::Sender<Vec<Answer>>,
}

type Ask = Box<dyn FnOnce(&View<'_>) -> Deliver + Send>;
type Deliver = Box<dyn FnOnce() + Send>;

enum Reply {
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

impl<D: Disk> Engine<D> {
    /// Starts the workers over an opened data directory.
    #[must_use]
    pub fn start(opened: crate::recovery::Opened<D>, disk: D, clock: Arc<dyn Clock>, policy: Policy) -> Self {
        let crate::recovery::Opened { journal, ledger, report } = opened;
        let cursor = journal.cursor();
        let end = journal.end();
        let batch = Batch::begin(cursor, Vec::new());
        let shared = Arc::new(Shared {
            disk,
            journal_id: journal.id(),
            clock,
            intake: Mutex::new(Intake {
                queue: VecDeque::new(),
                waiting: 0,
                desk_taken: false,
                disk_taken: false,
                desk_sleeps: false,
                called: false,
                state: State::Running,
            }),
            work: Condvar::new(),
            desk_free: Condvar::new(),
            desk: Mutex::new(Desk { ledger, batch, cursor, replies: Vec::new(), memory: Vec::new() }),
            journal: Mutex::new(journal),
            upkeep: Upkeep::new(end, policy, report.snapshot.unwrap_or(0)),
        });
        let spawn = |name: &str, run: fn(&Shared<D>)| {
            let shared = Arc::clone(&shared);
            let thread = thread::Builder::new().name(name.to_owned());
            thread.spawn(move || run(&shared)).expect("a process can start its first threads")
        };
        let workers = vec![spawn("writer-a", Shared::work), spawn("writer-b", Shared::work)];
        let upkeep = Some(spawn("upkeep", upkeep::run));
        Self { shared, workers, upkeep }
    }

    /// Submits one request and waits for its durable answer.
    pub async fn submit(&self, request: Request) -> Answer {
        let answer = self.enqueue(request)?;
        answer.await.unwrap_or(Err(Refusal::JournalFailed))
    }

    /// Submits one request and blocks this thread until its durable answer.
    pub fn submit_blocking(&self, request: Request) -> Answer {
        self.enqueue(request)?.blocking_recv().unwrap_or(Err(Refusal::JournalFailed))
    }

    fn enqueue(&self, request: Request) -> Result<oneshot::Receiver<Answer>, Refusal> {
        let (reply, answer) = oneshot::channel();
        let hashes = Hashes::of(&request, &mut Vec::with_capacity(256));
        self.shared.admit(1)?;
        self.shared.enqueue(Job::One(request, hashes, reply));
        Ok(answer)
    }

    /// Submits up to [`BATCH_MAX`] requests, which are decided in order and answered in order.
    pub async fn submit_batch(&self, requests: Vec<Request>) -> Result<Vec<Answer>, Refusal> {
        let mut answers = Vec::with_capacity(requests.len());
        for part in self.enqueue_batch(requests)? {
            answers.extend(part.await.map_err(|_| Refusal::JournalFailed)?);
        }
        Ok(answers)
    }

    /// Like [`Engine::submit_batch`], blocking this thread.
    pub fn submit_batch_blocking(&self, requests: Vec<Request>) -> Result<Vec<Answer>, Refusal> {
        let mut answers = Vec::with_capacity(requests.len());
        for part in self.enqueue_batch(requests)? {
            answers.extend(part.blocking_recv().map_err(|_| Refusal::JournalFailed)?);
        }
        Ok(answers)
    }

    /// Enqueues a batch in parts: the first is decided while the next is still being hashed.
    fn enqueue_batch(&self, requests: Vec<Request>) -> Result<Vec<oneshot::Receiver<Vec<Answer>>>, Refusal> {
        if requests.len() > BATCH_MAX {
            return Err(Refusal::BatchTooLarge);
        }
        self.shared.admit(requests.len())?;
        let mut memory = Vec::with_capacity(256);
        let mut requests = requests.into_iter().peekable();
        let mut parts = Vec::new();
        while requests.peek().is_some() {
            let part: Vec<Request> = requests.by_ref().take(PART).collect();
            let hashes = part.iter().map(|request| Hashes::of(request, &mut memory)).collect();
            let (reply, answers) = oneshot::channel();
            self.shared.enqueue(Job::Many(Many {
                answers: Vec::with_capacity(part.len()),
                requests: part,
                hashes,
                reply,
            }));
            parts.push(answers);
        }
        Ok(parts)
    }

    /// Looks at the books between two requests. The answer leaves when everything that it saw is durable.
    pub fn ask<T: Send + 'static>(&self, look: impl FnOnce(&View<'_>) -> T + Send + 'static) -> Result<T, Refusal> {
        let (reply, answer) = oneshot::channel();
        let ask: Ask = Box::new(move |view| {
            let found = look(view);
            Box::new(move || drop(reply.send(found)))
        });
        self.shared.admit(1)?;
        self.shared.enqueue(Job::Ask(ask));
        answer.blocking_recv().map_err(|_| Refusal::JournalFailed)
    }

    /// How the engine is. Never waits for the disk.
    #[must_use]
    pub fn health(&self) -> Health {
        let (state, waiting) = {
            let intake = lock(&self.shared.intake);
            (intake.state.clone(), intake.waiting)
        };
        let failed = match state {
            State::Failed(reason) => Some(reason),
            State::Running | State::Stopping => None,
        };
        let (applied, read_model_failed) = self.shared.upkeep.read_model();
        Health { failed, durable: self.shared.upkeep.durable().next_offset - 1, applied, read_model_failed, waiting }
    }

    /// Stops: finishes what waits, seals the journal, and leaves a snapshot so that the next start is quick.
    pub fn stop(mut self) -> Result<(), String> {
        {
            let mut intake = lock(&self.shared.intake);
            if intake.state == State::Running {
                intake.state = State::Stopping;
            }
        }
        self.shared.work.notify_all();
        self.shared.desk_free.notify_all();
        for worker in self.workers.drain(..) {
            worker.join().map_err(|_| "a writer panicked".to_owned())?;
        }
        let sealed = self.shared.seal_at_stop();
        self.shared.upkeep.stop();
        if let Some(upkeep) = self.upkeep.take() {
            upkeep.join().map_err(|_| "the upkeep panicked".to_owned())?;
        }
        sealed
    }
}

impl<D: Disk> Shared<D> {
    /// Counts `requests` as waiting, if there is room for them all.
    fn admit(&self, requests: usize) -> Result<(), Refusal> {
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
    fn enqueue(&self, job: Job) {
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
    fn work(&self) {
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
                    for (request, hashes) in many.requests.iter().zip(&many.hashes).skip(decided) {
                        if !batch.has_room() || told >= TURN_MAX {
                            break;
                        }
                        many.answers.push(ledger.decide_hashed(request, hashes, now, batch));
                        (told, done) = (told + 1, done + 1);
                    }
                    if many.answers.len() < many.requests.len() {
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
                let mut intake = lock(&self.intake);
                intake.state = State::Failed(failed.to_string());
                intake.disk_taken = false;
                refuse_all(&mut intake);
                drop(intake);
                self.upkeep.stop();
                self.work.notify_all();
                self.desk_free.notify_all();
                refuse(replies);
            }
        }
    }

    fn seal_at_stop(&self) -> Result<(), String> {
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
