//! Who is where and who wakes whom: the queue of jobs between callers and the two workers, and nothing of the work itself.
//!
//! A caller who finds nobody at work takes the disk and serves itself: to wake a worker and be woken by it takes as long as a
//! quick disk takes to sync. A worker stays asleep at the desk meanwhile, and only watches for the moment to seal.
//!
//! Waking costs a system call, so it is done only where somebody sleeps who has something to do. While the disk is busy, a few
//! jobs are not worth it: they are decided in no time once it is free. Whether any of that ever leaves
//! somebody asleep is tried in `tests/it/waking.rs` over thousands of orders in which the threads may run.
//!
//! # Invariants
//! - One worker at the desk; one worker, or one caller that serves itself, at the disk.
//! - While a job waits, somebody is awake at the desk, on the way to it, or sure to be woken by the one at the disk.
//! - Once stopped or failed, both workers leave.

use crate::sync::{Condvar, Instant, Mutex, MutexGuard, PoisonError};
use std::collections::VecDeque;
use std::time::Duration;

/// The most requests that wait; more are told to come again.
const WAITING_MAX: usize = 65_536;
/// A frame is sealed when nothing has followed it for this long.
const SEAL_AFTER: Duration = Duration::from_millis(5);
/// The shortest wait: long enough not to spin, short enough not to be noticed.
const MOMENT: Duration = Duration::from_millis(1);
/// How often a worker with nothing to do looks whether a hold's time has come.
const EXPIRY_CHECK: Duration = Duration::from_millis(250);

/// The desk, the disk, and the jobs that wait for them.
pub(crate) struct Turns<J> {
    intake: Mutex<Intake<J>>,
    /// Wakes the worker at the desk: there is work, or the disk is free.
    work: Condvar,
    /// Wakes the worker who waits for the desk.
    desk_free: Condvar,
    /// While the disk is busy, nobody is woken before so many requests wait.
    gather: usize,
}

/// What waits, and who is where.
struct Intake<J> {
    queue: VecDeque<J>,
    waiting: usize,
    desk_taken: bool,
    disk_taken: bool,
    /// Whether the worker at the desk sleeps.
    desk_sleeps: bool,
    /// What it sleeps for, while it does.
    asleep_for: AsleepFor,
    /// When a caller last served itself.
    served_at: Instant,
    /// Whether somebody has been called to the empty desk, or goes there by itself, and is not there yet.
    called: bool,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum AsleepFor {
    /// Jobs.
    Work,
    /// Jobs, or a moment's quiet after which it seals.
    Quiet,
    /// The disk, with a batch in hand.
    Disk,
}

#[derive(PartialEq, Eq)]
enum State {
    Running,
    Stopping,
    Failed(String),
}

/// Why nothing is admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closed {
    /// Too much waits.
    Full,
    Stopping,
    Failed,
}

/// How far the open batch is filled.
#[derive(Clone, Copy)]
pub(crate) struct Filled {
    /// How many answers and entries wait for it to be durable.
    pub(crate) told: usize,
    /// Whether it goes to the disk as soon as that is free, though more waits.
    pub(crate) enough: bool,
    /// Whether nothing more goes in.
    pub(crate) full: bool,
}

/// Since when a worker is at the desk.
#[derive(Clone, Copy)]
pub(crate) struct Since {
    pub(crate) arrived: Instant,
    /// When it last looked at the books.
    pub(crate) looked: Instant,
}

impl Since {
    pub(crate) fn now() -> Self {
        let arrived = Instant::now();
        Self { arrived, looked: arrived }
    }
}

/// What goes on beside the workers.
pub(crate) trait Beside {
    /// Whether the intake must wait for a derived store.
    fn must_wait(&self) -> bool;
    /// Whether the last frame has no seal yet.
    fn is_unsealed(&self) -> bool;
}

/// What the worker at the desk is to do next. After `Write` and `Seal` the disk is its own.
pub(crate) enum Step<J> {
    Decide(VecDeque<J>),
    Write,
    Seal,
    /// Go home; these jobs will not be done.
    Leave(VecDeque<J>),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<J> Turns<J> {
    pub(crate) fn new(gather: usize) -> Self {
        let intake = Intake {
            queue: VecDeque::new(),
            waiting: 0,
            desk_taken: false,
            disk_taken: false,
            desk_sleeps: false,
            asleep_for: AsleepFor::Work,
            served_at: Instant::now(),
            called: false,
            state: State::Running,
        };
        Self { intake: Mutex::new(intake), work: Condvar::new(), desk_free: Condvar::new(), gather }
    }

    /// Counts `requests` as waiting, if there is room for them all.
    pub(crate) fn admit(&self, requests: usize) -> Result<(), Closed> {
        let mut intake = lock(&self.intake);
        match intake.state {
            State::Running => {}
            State::Stopping => return Err(Closed::Stopping),
            State::Failed(_) => return Err(Closed::Failed),
        }
        if intake.waiting.saturating_add(requests) > WAITING_MAX {
            return Err(Closed::Full);
        }
        intake.waiting += requests;
        Ok(())
    }

    /// Puts a job, whose requests have been admitted, at the end of the queue.
    pub(crate) fn enqueue(&self, job: J) {
        self.enqueue_all(std::iter::once(job));
    }

    /// Puts jobs, whose requests have been admitted, at the end of the queue, and wakes somebody for all of them.
    pub(crate) fn enqueue_all(&self, jobs: impl Iterator<Item = J>) {
        let mut intake = lock(&self.intake);
        // After a failure nobody takes jobs any more: dropping one tells its caller.
        if !matches!(intake.state, State::Failed(_)) {
            intake.queue.extend(jobs);
        }
        if self.is_worth_waking(&intake) {
            self.wake(intake);
        }
    }

    /// Whether somebody is to decide at once. If not, whoever frees the disk sees to it.
    const fn is_worth_waking(&self, intake: &Intake<J>) -> bool {
        !intake.disk_taken || intake.waiting >= self.gather
    }

    /// Sees to it that somebody at the desk is awake.
    fn wake(&self, mut intake: MutexGuard<'_, Intake<J>>) {
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

    /// Waits until the desk is free, and takes it.
    pub(crate) fn take_desk(&self) {
        let mut intake = lock(&self.intake);
        while intake.desk_taken {
            intake = self.desk_free.wait(intake).unwrap_or_else(PoisonError::into_inner);
        }
        intake.desk_taken = true;
        intake.called = false;
    }

    /// Waits for what the worker at the desk should do next.
    pub(crate) fn next_step(&self, filled: Filled, since: Since, beside: &impl Beside) -> Step<J> {
        let Since { arrived, looked } = since;
        let decided = filled.told;
        let mut intake = lock(&self.intake);
        loop {
            if matches!(intake.state, State::Failed(_)) {
                intake.waiting = 0;
                return Step::Leave(std::mem::take(&mut intake.queue));
            }
            let full = filled.full || beside.must_wait();
            if decided > 0 && !intake.disk_taken && (full || filled.enough || intake.queue.is_empty()) {
                intake.disk_taken = true;
                return Step::Write;
            }
            if !full && !intake.queue.is_empty() {
                return Step::Decide(std::mem::take(&mut intake.queue));
            }
            if decided == 0 && intake.queue.is_empty() && intake.state == State::Stopping {
                return Step::Leave(VecDeque::new());
            }
            let quiet_for = arrived.elapsed().min(intake.served_at.elapsed());
            let unsealed = decided == 0 && beside.is_unsealed();
            if unsealed && quiet_for >= SEAL_AFTER && !intake.disk_taken {
                intake.disk_taken = true;
                return Step::Seal;
            }
            if decided == 0 && looked.elapsed() >= EXPIRY_CHECK {
                return Step::Decide(VecDeque::new());
            }
            let (asleep_for, patience) = if full && !intake.queue.is_empty() {
                (AsleepFor::Disk, MOMENT)
            } else if decided > 0 {
                (AsleepFor::Disk, EXPIRY_CHECK.saturating_sub(looked.elapsed()))
            } else if unsealed && intake.disk_taken {
                (AsleepFor::Quiet, SEAL_AFTER)
            } else if unsealed {
                (AsleepFor::Quiet, SEAL_AFTER.saturating_sub(quiet_for))
            } else {
                (AsleepFor::Work, EXPIRY_CHECK.saturating_sub(looked.elapsed()))
            };
            intake.asleep_for = asleep_for;
            intake.desk_sleeps = true;
            let waited = self.work.wait_timeout(intake, patience.max(MOMENT));
            intake = waited.unwrap_or_else(PoisonError::into_inner).0;
            intake.desk_sleeps = false;
        }
    }

    /// Puts back what did not fit, and counts `done` requests as no longer waiting.
    pub(crate) fn put_back(&self, jobs: VecDeque<J>, done: usize) {
        let mut intake = lock(&self.intake);
        intake.waiting = intake.waiting.saturating_sub(done);
        for job in jobs.into_iter().rev() {
            intake.queue.push_front(job);
        }
    }

    /// Frees the desk for the next batch.
    pub(crate) fn leave_desk(&self) {
        let mut intake = lock(&self.intake);
        intake.desk_taken = false;
        // The other worker is called only for work: a lone caller is served by one worker, without a hand-over.
        if !intake.queue.is_empty() && self.is_worth_waking(&intake) {
            self.wake(intake);
        }
    }

    /// Frees the desk for good: the other worker is to leave as well.
    pub(crate) fn go_home(&self) {
        lock(&self.intake).desk_taken = false;
        self.desk_free.notify_one();
    }

    /// Frees the disk for whoever waits at the desk with a batch, and has somebody decide what has come meanwhile.
    pub(crate) fn free_disk(&self) {
        let mut intake = lock(&self.intake);
        intake.disk_taken = false;
        if intake.desk_taken || !intake.queue.is_empty() {
            self.wake(intake);
        }
    }

    /// Like [`Turns::free_disk`], for a worker that has few to answer and is then back at the desk: another is not called to it. To
    /// wake somebody costs more than to tell a few callers.
    pub(crate) fn free_disk_and_return(&self) {
        let mut intake = lock(&self.intake);
        intake.disk_taken = false;
        if intake.desk_taken {
            self.wake(intake);
        } else {
            intake.called = true;
        }
    }

    /// Takes the disk for a caller that serves itself, if nobody waits or is at work.
    pub(crate) fn take_disk_alone(&self, beside: &impl Beside) -> bool {
        let mut intake = lock(&self.intake);
        let desk_rests = !intake.desk_taken || intake.desk_sleeps;
        let nobody_works = desk_rests && !intake.disk_taken && !intake.called && intake.queue.is_empty();
        let taken = nobody_works && intake.state == State::Running && !beside.must_wait();
        intake.disk_taken |= taken;
        taken
    }

    /// Frees the disk after [`Turns::take_disk_alone`], and wakes the worker at the desk only if it has something to do.
    pub(crate) fn free_disk_alone(&self) {
        let mut intake = lock(&self.intake);
        intake.disk_taken = false;
        intake.served_at = Instant::now();
        // One that watches for a quiet moment goes on; one that does not has now something to watch for.
        if !intake.queue.is_empty() || (intake.desk_taken && intake.asleep_for != AsleepFor::Quiet) {
            self.wake(intake);
        }
    }

    /// Stops once everything that waits is done.
    pub(crate) fn stop(&self) {
        {
            let mut intake = lock(&self.intake);
            if intake.state == State::Running {
                intake.state = State::Stopping;
            }
        }
        self.wake_all();
    }

    /// Stops for good, and gives back the jobs that will not be done.
    pub(crate) fn fail(&self, reason: &str) -> VecDeque<J> {
        let mut intake = lock(&self.intake);
        intake.state = State::Failed(reason.to_owned());
        intake.waiting = 0;
        let jobs = std::mem::take(&mut intake.queue);
        drop(intake);
        self.wake_all();
        jobs
    }

    fn wake_all(&self) {
        self.work.notify_all();
        self.desk_free.notify_all();
    }

    /// Why nothing is accepted any more.
    pub(crate) fn failure(&self) -> Option<String> {
        match &lock(&self.intake).state {
            State::Failed(reason) => Some(reason.clone()),
            State::Running | State::Stopping => None,
        }
    }

    /// How many requests wait.
    pub(crate) fn waiting(&self) -> usize {
        lock(&self.intake).waiting
    }
}
