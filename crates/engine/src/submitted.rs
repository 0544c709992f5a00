//! A caller's batch on its way: decided on the caller's own thread, and, from where that was not possible, by the workers.

use crate::error::Refusal;
use crate::request::{Answer, BATCH_MAX, Hashes, Request};
use crate::worker::{Job, Many, Shared, TURN, Told};
use holdfast_journal::Disk;
use tokio::sync::oneshot;

/// A batch is made, hashed and decided in parts of this size: few enough to stay in the cache from one to the next.
const PART: usize = 256;
/// A batch that has been submitted.
pub(crate) struct Submitted {
    /// Of the requests that the caller has decided itself, from the first on.
    pub(crate) answers: Vec<Answer>,
    /// Comes when these are durable, if there are any.
    pub(crate) durable: Option<oneshot::Receiver<()>>,
    /// The answers to the others, in order.
    pub(crate) parts: Vec<oneshot::Receiver<Vec<Answer>>>,
}

impl<D: Disk> Shared<D> {
    /// Submits a batch, in order. Its caller decides it if nobody else waits, and calls the workers for each turn's worth, so that
    /// the first are written while the last are decided. Once a request is left to the workers, so are those after it.
    pub(crate) fn submit(&self, mut requests: impl ExactSizeIterator<Item = Request>) -> Result<Submitted, Refusal> {
        let count = requests.len();
        if count > BATCH_MAX {
            return Err(Refusal::BatchTooLarge);
        }
        let mut is_own = self.turns.waiting() == 0;
        self.admit(count)?;
        let mut submitted = Submitted { answers: Vec::with_capacity(count), durable: None, parts: Vec::new() };
        let (mut part, mut hashes) = (Vec::with_capacity(PART.min(count)), Vec::with_capacity(PART.min(count)));
        let mut memory = Vec::with_capacity(256);
        // How many of those that the caller has decided the workers do not know of yet.
        let mut uncalled = 0;
        for from in (0..count).step_by(PART) {
            // As many as were admitted, whatever the iterator goes on to give.
            part.extend(requests.by_ref().take(PART.min(count - from)));
            hashes.extend(part.iter().map(|request| Hashes::of(request, &mut memory)));
            if is_own {
                let decided = self.decide_here(&part, &hashes, &mut submitted.answers);
                uncalled += decided;
                if decided < part.len() || from + PART >= count {
                    is_own = false;
                    submitted.durable = Some(self.call_for_last(uncalled));
                } else if uncalled >= TURN {
                    self.call(std::mem::take(&mut uncalled), None);
                }
                part.drain(..decided);
                hashes.drain(..decided);
            }
            if !part.is_empty() {
                submitted.parts.push(self.enqueue_part(std::mem::take(&mut part), std::mem::take(&mut hashes)));
            }
        }
        Ok(submitted)
    }

    /// Has the workers write what a caller has decided.
    fn call(&self, requests: usize, durable: Option<oneshot::Sender<()>>) {
        self.turns.enqueue(Job::Told(Told { requests, durable }));
    }

    /// The same, and has the caller told when all of it is durable.
    fn call_for_last(&self, requests: usize) -> oneshot::Receiver<()> {
        let (sender, durable) = oneshot::channel();
        self.call(requests, Some(sender));
        durable
    }

    /// Leaves requests to the workers.
    fn enqueue_part(&self, requests: Vec<Request>, hashes: Vec<Hashes>) -> oneshot::Receiver<Vec<Answer>> {
        let (reply, answers) = oneshot::channel();
        let many = Many { answers: Vec::with_capacity(requests.len()), requests, hashes, reply };
        self.turns.enqueue(Job::Many(many));
        answers
    }
}
