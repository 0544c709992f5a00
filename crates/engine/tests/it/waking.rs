//! A model of the waking in `turns.rs`: callers, who may serve themselves, the two workers and the disk, under a scheduler that tries many orders in which
//! they may run. Somebody who sleeps while there is something to do is a deadlock here, because no time passes.
//!
//! The file under test is compiled into this program with the locks of `sync.rs`. Around it stands what `worker.rs` does,
//! without the work: jobs are numbers, a batch holds three of them, and the disk is a list.

use crate::sync::{Odd, plant};
use crate::turns::{Beside, Closed, Filled, Since, Step, Turns};
use shuttle::sync::atomic::{AtomicBool, Ordering};
use shuttle::sync::{Arc, Condvar, Mutex, mpsc};
use shuttle::thread;
use std::panic::catch_unwind;

/// With so many jobs a batch goes to the disk when that is free, and so many fit it.
const ENOUGH: usize = 2;
const ROOM: usize = 3;
const CALLERS: usize = 3;
const JOBS_EACH: usize = 2;
/// Orders of the threads that are tried. One that loses a wake-up is found within a hundred.
const ORDERS: usize = 1_000;
/// While the disk is busy nobody is woken for fewer jobs than these: at once, for two of them, and never.
const GATHERS: [usize; 3] = [1, 2, CALLERS * JOBS_EACH + 1];

/// A job: its number, and where its caller waits to hear that it is durable.
struct Job(usize, mpsc::Sender<usize>);

/// Nothing goes on beside the workers.
struct Nothing;

impl Beside for Nothing {
    fn must_wait(&self) -> bool {
        false
    }

    fn is_unsealed(&self) -> bool {
        false
    }
}

struct Model {
    turns: Turns<Job>,
    at_desk: AtomicBool,
    at_disk: AtomicBool,
    /// Batches closed so far.
    closed: Mutex<usize>,
    /// Batches on the disk.
    written: Mutex<Vec<Vec<usize>>>,
    /// How many jobs have been decided, and who waits for more.
    decided: Mutex<usize>,
    more: Condvar,
    world: World,
}

/// What happens to a model.
#[derive(Clone, Copy, PartialEq, Eq)]
struct World {
    callers: Callers,
    disk: Disk,
    gather: usize,
    /// Whether something beside the workers fails at some time.
    fails_beside: bool,
}

/// What callers do once they have submitted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Callers {
    Wait,
    GoAway,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Disk {
    Quick,
    /// It syncs a batch until a job of a later one has been decided, or there is none left.
    Slow,
    /// It refuses this batch and all after it.
    BreaksAt(usize),
}

impl World {
    const fn new(callers: Callers, disk: Disk, gather: usize) -> Self {
        Self { callers, disk, gather, fails_beside: false }
    }

    fn may_fail(self) -> bool {
        matches!(self.disk, Disk::BreaksAt(_)) || self.fails_beside
    }
}

impl Model {
    fn work(&self) {
        loop {
            self.turns.take_desk();
            assert!(!self.at_desk.swap(true, Ordering::SeqCst), "two at the desk");
            let Some((number, batch)) = self.fill() else { return };
            let returns = number.is_multiple_of(2);
            self.commit(number, batch, if returns { Turns::free_disk_and_return } else { Turns::free_disk });
        }
    }

    fn fill(&self) -> Option<(usize, Vec<Job>)> {
        let mut batch = Vec::new();
        loop {
            let filled = Filled { told: batch.len(), enough: batch.len() >= ENOUGH, full: batch.len() == ROOM };
            match self.turns.next_step(filled, Since::now(), &Nothing) {
                Step::Decide(mut jobs) => {
                    let taken: Vec<Job> = jobs.drain(..jobs.len().min(ROOM - batch.len())).collect();
                    let done = taken.len();
                    batch.extend(taken);
                    *self.decided.lock().unwrap() += done;
                    self.more.notify_all();
                    self.turns.put_back(jobs, done);
                }
                Step::Write => {
                    let number = self.close();
                    self.at_desk.store(false, Ordering::SeqCst);
                    self.turns.leave_desk();
                    return Some((number, batch));
                }
                Step::Seal => unreachable!("nothing is unsealed"),
                Step::Leave(refused) => {
                    drop((refused, batch));
                    self.at_desk.store(false, Ordering::SeqCst);
                    self.turns.go_home();
                    return None;
                }
            }
        }
    }

    /// The number of the batch that is closed now.
    fn close(&self) -> usize {
        assert!(!self.at_disk.swap(true, Ordering::SeqCst), "two at the disk");
        let mut closed = self.closed.lock().unwrap();
        *closed += 1;
        *closed
    }

    /// Serves one job on its caller's thread, if nobody is at work.
    fn serve_alone(&self, job: Job) -> Result<(), Job> {
        if !self.turns.take_disk_alone(&Nothing) {
            return Err(job);
        }
        let number = self.close();
        *self.decided.lock().unwrap() += 1;
        self.more.notify_all();
        self.commit(number, vec![job], Turns::free_disk_alone);
        Ok(())
    }

    fn commit(&self, number: usize, batch: Vec<Job>, free_disk: fn(&Turns<Job>)) {
        let is_broken = matches!(self.world.disk, Disk::BreaksAt(broken_at) if number >= broken_at);
        if !is_broken {
            let mut written = self.written.lock().unwrap();
            assert_eq!(written.len() + 1, number, "a batch overtook another");
            written.push(batch.iter().map(|job| job.0).collect());
            let jobs: usize = written.iter().map(Vec::len).sum();
            drop(written);
            self.sync(jobs);
        }
        self.at_disk.store(false, Ordering::SeqCst);
        if is_broken {
            drop(self.turns.fail("broken"));
        }
        free_disk(&self.turns);
        for Job(number, caller) in batch.into_iter().filter(|_| !is_broken) {
            // A caller that has gone away changes nothing.
            let _gone = caller.send(number);
        }
    }

    /// Takes as long as the disk takes for a batch with which `written` jobs are on it.
    fn sync(&self, written: usize) {
        if self.world.disk == Disk::Slow && written < CALLERS * JOBS_EACH {
            let decided = self.decided.lock().unwrap();
            let _more = self.more.wait_while(decided, |decided| *decided <= written).unwrap();
        }
    }

    /// Submits a job. What its caller hears; `None` if it was refused, or the disk broke on the way.
    fn submit(&self, number: usize) -> Option<mpsc::Receiver<usize>> {
        let (reply, answer) = mpsc::channel();
        let Err(job) = self.serve_alone(Job(number, reply)) else { return Some(answer) };
        if let Err(closed) = self.turns.admit(1) {
            assert_eq!(closed, Closed::Failed);
            return None;
        }
        self.turns.enqueue(job);
        Some(answer)
    }
}

/// One run: callers come, and when they have gone the engine stops, unless it has failed. What was written, in order.
fn run(world: World) -> Vec<usize> {
    let model = Arc::new(Model {
        turns: Turns::new(world.gather),
        at_desk: AtomicBool::new(false),
        at_disk: AtomicBool::new(false),
        closed: Mutex::new(0),
        written: Mutex::new(Vec::new()),
        decided: Mutex::new(0),
        more: Condvar::new(),
        world,
    });
    let spawn = |act: Box<dyn FnOnce(&Model) + Send>| {
        let model = Arc::clone(&model);
        thread::spawn(move || act(&model))
    };
    let workers: Vec<_> = (0..2).map(|_| spawn(Box::new(Model::work))).collect();
    let mut others: Vec<_> = (0..CALLERS).map(|caller| spawn(Box::new(move |model| call(model, caller)))).collect();
    if world.fails_beside {
        others.push(spawn(Box::new(|model| drop(model.turns.fail("beside")))));
    }
    others.into_iter().for_each(|other| other.join().unwrap());
    if !world.may_fail() {
        model.turns.stop();
    }
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    assert_eq!(model.turns.failure().is_some(), world.may_fail());
    assert_eq!(model.turns.waiting(), 0);
    let written = model.written.lock().unwrap();
    written.iter().flatten().copied().collect()
}

fn call(model: &Model, caller: usize) {
    for number in (0..JOBS_EACH).map(|job| caller * JOBS_EACH + job) {
        let answer = model.submit(number);
        if model.world.callers == Callers::Wait {
            let heard = answer.and_then(|answer| answer.recv().ok());
            assert!(heard == Some(number) || model.world.may_fail(), "{number} was answered {heard:?}");
            assert!(heard.is_none() || model.written.lock().unwrap().iter().flatten().any(|is| *is == number));
        }
    }
}

/// Runs so that every job must be written once, and the jobs of each caller in their order.
fn run_whole(callers: Callers, disk: Disk, gather: usize) {
    let written = run(World::new(callers, disk, gather));
    assert_eq!(written.len(), CALLERS * JOBS_EACH, "{written:?}");
    for caller in 0..CALLERS {
        let of_caller: Vec<usize> = written.iter().copied().filter(|number| number / JOBS_EACH == caller).collect();
        assert!(of_caller.is_sorted() && of_caller.len() == JOBS_EACH, "{written:?}");
    }
}

/// Tries many orders: at random, and with few changes of thread, which finds other mistakes.
fn in_every_order(model: impl Fn() + Copy + Send + Sync + 'static) {
    shuttle::check_random(model, ORDERS);
    shuttle::check_pct(model, ORDERS, 3);
}

#[test]
fn every_caller_is_answered_in_every_order() {
    for gather in GATHERS {
        in_every_order(move || run_whole(Callers::Wait, Disk::Quick, gather));
    }
}

#[test]
fn a_stop_finishes_what_waits_though_nobody_waits_for_it() {
    for gather in GATHERS {
        in_every_order(move || run_whole(Callers::GoAway, Disk::Quick, gather));
    }
}

#[test]
fn the_next_batch_is_decided_while_the_last_one_syncs() {
    in_every_order(|| run_whole(Callers::GoAway, Disk::Slow, 1));
}

#[test]
fn waking_for_nothing_changes_nothing() {
    plant(Odd::WakesForNothing);
    for gather in GATHERS {
        in_every_order(move || run_whole(Callers::Wait, Disk::Quick, gather));
    }
}

#[test]
fn a_broken_disk_leaves_nobody_waiting() {
    for (broken_at, gather) in [1, 2].into_iter().flat_map(|broken_at| GATHERS.map(|gather| (broken_at, gather))) {
        in_every_order(move || {
            let written = run(World::new(Callers::Wait, Disk::BreaksAt(broken_at), gather));
            assert!(written.len() <= (broken_at - 1) * ROOM, "{written:?}");
        });
    }
}

#[test]
fn a_failure_beside_the_workers_leaves_nobody_waiting() {
    for gather in GATHERS {
        in_every_order(move || {
            run(World { fails_beside: true, ..World::new(Callers::Wait, Disk::Quick, gather) });
        });
    }
}

/// The model must find what is planted, as a deadlock.
fn assert_found(odd: Odd) {
    plant(odd);
    let found = catch_unwind(|| in_every_order(|| run_whole(Callers::Wait, Disk::Quick, 1)));
    let found = found.expect_err("the lost wake-up was not found");
    let said = found.downcast_ref::<String>().cloned().unwrap_or_default();
    assert!(said.contains("deadlock"), "{odd:?}: {said}");
}

#[test]
fn a_wake_up_that_is_lost_between_looking_and_sleeping_is_found() {
    assert_found(Odd::ListensTooLate);
}

#[test]
fn a_call_that_wakes_nobody_is_found() {
    assert_found(Odd::LosesCalls);
}
