//! A caller's batch on its way: decided on the caller's own thread, and, from where that was not possible, by the workers.
//!
//! To hash a request takes a fifth of the time that it takes to decide it. So a large batch has a helper, which hashes the next part
//! while the last one is decided, if a processor has the time; if none had, the caller hashes it itself and does not wait.

use crate::error::Refusal;
use crate::request::{Answer, BATCH_MAX, Hashes, Request};
use crate::worker::{Job, Many, Shared, TURN, Told};
use holdfast_journal::Disk;
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use tokio::sync::oneshot;

/// A batch is made, hashed and decided in parts. The first is this small, because its caller hashes it alone.
const PART_MIN: usize = 256;
/// Each is twice the one before, because the helper is woken for each, up to this many: few enough to stay in the cache. Parts that
/// are left to the workers stay small: they have no helper, and several callers take turns.
const PART_MAX: usize = 1_024;
/// From this many on, a batch is worth a helper: to start one takes as long as to hash some two hundred requests.
const HELPED: usize = 2_048;

/// A batch that has been submitted.
pub(crate) struct Submitted {
    /// Of the requests that the caller has decided itself, from the first on.
    pub(crate) answers: Vec<Answer>,
    /// Comes when these are durable, if there are any.
    pub(crate) durable: Option<oneshot::Receiver<()>>,
    /// The answers to the others, in order.
    pub(crate) parts: Vec<oneshot::Receiver<Vec<Answer>>>,
}

/// Requests, and what they are known by once somebody has worked it out.
#[derive(Default)]
pub(crate) struct Part {
    pub(crate) requests: Vec<Request>,
    hashes: OnceLock<Vec<Hashes>>,
}

impl Part {
    /// The hashes, worked out here if nobody has yet. One who is at it is not waited for: it may have no processor.
    pub(crate) fn hashes(&self) -> &[Hashes] {
        if self.hashes.get().is_none() {
            let mut body = Vec::with_capacity(256);
            let hashes = self.requests.iter().map(|request| Hashes::of(request, &mut body)).collect();
            // The same, if another was quicker after all.
            let _kept = self.hashes.set(hashes);
        }
        self.hashes.get().expect("they were there or have been put there")
    }
}

/// A batch on its way: how far it has come.
struct Batch<'a, D: Disk> {
    shared: &'a Shared<D>,
    submitted: Submitted,
    /// Whether its caller still decides it itself.
    is_own: bool,
    /// How many of those that the caller has decided the workers do not know of yet.
    uncalled: usize,
    /// How many are still to be decided.
    left: usize,
    /// The size of the part that was made last.
    size: usize,
    /// Parts that are done with, for their memory.
    spare: Vec<Vec<Request>>,
}

impl<D: Disk> Shared<D> {
    /// Submits a batch, in order. Its caller decides it if nobody else waits, and calls the workers for each turn's worth, so that
    /// the first are written while the last are decided; towards the end for less and less, so that little is left to wait for. Once
    /// a request is left to the workers, so are those after it.
    pub(crate) fn submit(&self, requests: impl ExactSizeIterator<Item = Request>) -> Result<Submitted, Refusal> {
        let count = requests.len();
        if count > BATCH_MAX {
            return Err(Refusal::BatchTooLarge);
        }
        let is_own = self.turns.waiting() == 0;
        self.admit(count)?;
        let submitted = Submitted { answers: Vec::with_capacity(count), durable: None, parts: Vec::new() };
        let mut batch = Batch { shared: self, submitted, is_own, uncalled: 0, left: count, size: 0, spare: Vec::new() };
        // As many as were admitted, whatever the iterator goes on to give.
        let mut requests = requests.take(count);
        if is_own && count >= HELPED {
            thread::scope(|scope| {
                let (ahead, helped) = mpsc::channel::<Arc<Part>>();
                let help = || {
                    for part in helped {
                        let _worked_out = part.hashes();
                    }
                };
                // Without a helper nothing is lost but time.
                let _helper = thread::Builder::new().name("batch-hashes".to_owned()).spawn_scoped(scope, help);
                let mut next = batch.part(&mut requests);
                while let Some(part) = next {
                    next = batch.part(&mut requests);
                    let _unhelped = next.as_ref().map(|next| ahead.send(Arc::clone(next)));
                    batch.take(part);
                }
                // Before the helper is waited for: the disk has something to do meanwhile.
                batch.end();
            });
        } else {
            while let Some(part) = batch.part(&mut requests) {
                batch.take(part);
            }
            batch.end();
        }
        Ok(batch.submitted)
    }
}

impl<D: Disk> Batch<'_, D> {
    fn part(&mut self, from: &mut impl Iterator<Item = Request>) -> Option<Arc<Part>> {
        let mut requests = self.spare.pop().unwrap_or_default();
        self.size = if self.is_own { (self.size * 2).clamp(PART_MIN, PART_MAX) } else { PART_MIN };
        requests.extend(from.take(self.size));
        (!requests.is_empty()).then(|| Arc::new(Part { requests, ..Part::default() }))
    }

    /// Decides a part, or what there is room for, and leaves the rest to the workers.
    fn take(&mut self, part: Arc<Part>) {
        self.left -= part.requests.len();
        let mut decided = 0;
        if self.is_own {
            decided = self.shared.decide_here(&part, &mut self.submitted.answers);
            self.uncalled += decided;
            if decided < part.requests.len() {
                self.call_for_last();
            } else if self.left > 0 && self.uncalled >= TURN.min(self.left) {
                self.call(None);
            }
        }
        if decided < part.requests.len() {
            self.leave(part, decided);
        } else if let Some(mut done) = Arc::into_inner(part) {
            done.requests.clear();
            self.spare.push(done.requests);
        }
    }

    /// There are no more. What was said to come and did not is not waited for.
    fn end(&mut self) {
        self.uncalled += self.left;
        if self.is_own && self.uncalled > 0 {
            self.call_for_last();
        } else if self.uncalled > 0 {
            self.call(None);
        }
    }

    /// Has the caller told when all that it has decided is durable, which is all that it decides.
    fn call_for_last(&mut self) {
        let (sender, durable) = oneshot::channel();
        self.is_own = false;
        self.call(Some(sender));
        self.submitted.durable = Some(durable);
    }

    /// Has the workers write what the caller has decided, and tells them whom to tell.
    fn call(&mut self, durable: Option<oneshot::Sender<()>>) {
        let requests = std::mem::take(&mut self.uncalled);
        self.shared.turns.enqueue(Job::Told(Told { requests, durable }));
    }

    /// Leaves the requests of a part to the workers, from the one with number `first` on.
    fn leave(&mut self, part: Arc<Part>, first: usize) {
        // Not for the workers to do.
        let count = part.hashes().len() - first;
        let (reply, answers) = oneshot::channel();
        self.shared.turns.enqueue(Job::Many(Many { part, first, answers: Vec::with_capacity(count), reply }));
        self.submitted.parts.push(answers);
    }
}
