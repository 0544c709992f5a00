//! The engine: the door for callers on any number of tasks, over the workers that write.
//!
//! # Invariants
//! - **Acknowledged means durable**: answers, refusals and queries included, leave only after the batch that they saw (see
//!   `worker.rs`).

use crate::clock::Clock;
use crate::error::Refusal;
use crate::lone::Lone;
use crate::margin::Margin;
use crate::projection::READ_MODEL;
use crate::query::View;
use crate::request::{Answer, Hashes, Request};
use crate::submitted::Submitted;
use crate::turns::Turns;
use crate::upkeep::{self, Upkeep};
use crate::worker::{Ask, Desk, GATHER, Job, Shared};
use holdfast_domain::escrow::Escrow;
use holdfast_domain::{EscrowId, OwnerId};
use holdfast_journal::{Batch, Disk, End, Location};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use tokio::sync::oneshot;

pub use crate::upkeep::Policy;

/// A running engine. Dropping it without [`Engine::stop`] is a crash as far as the data directory is concerned.
pub struct Engine<D: Disk> {
    pub(crate) shared: Arc<Shared<D>>,
    workers: Vec<JoinHandle<()>>,
    upkeep: Option<JoinHandle<()>>,
}

/// A request with what it is known by, which takes a while to work out.
pub struct Prepared {
    request: Request,
    hashes: Hashes,
}

impl Prepared {
    /// Prepares a request.
    #[must_use]
    pub fn new(request: Request) -> Self {
        let hashes = Hashes::of(&request, &mut Vec::with_capacity(256));
        Self { request, hashes }
    }
}

/// A request on its way: answered by its caller's own thread, or waiting for the workers.
pub enum Begun {
    /// This is the durable answer.
    Done(Answer),
    /// Here it will come. A sender that is dropped means [`Refusal::JournalFailed`].
    Queued(oneshot::Receiver<Answer>),
}

impl Begun {
    /// Waits for the durable answer.
    pub async fn answer(self) -> Answer {
        match self {
            Self::Done(answer) => answer,
            Self::Queued(answer) => answer.await.unwrap_or(Err(Refusal::JournalFailed)),
        }
    }
}

/// How the engine is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// Why nothing is accepted any more.
    pub failed: Option<String>,
    /// The last durable entry.
    pub durable: u64,
    /// Where the journal is durable up to.
    pub end: Location,
    /// The last entry that the read model has applied.
    pub applied: u64,
    /// Why the read model does not follow any more.
    pub read_model_failed: Option<String>,
    /// Requests that wait.
    pub waiting: usize,
}

/// How far one who follows the journal has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Followed {
    /// The last entry that it has applied.
    pub applied: u64,
    /// Why it does not follow any more.
    pub failed: Option<String>,
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
            turns: Turns::new(GATHER),
            desk: Mutex::new(Desk { ledger, batch, cursor, replies: Vec::new() }),
            journal: Mutex::new(journal),
            memory: Mutex::new(Vec::new()),
            lone: Lone::new(),
            margin: Mutex::new(None),
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

    /// Submits one request and waits for its durable answer. A lone caller's own thread does the work, its sync included,
    /// while the disk is quick.
    pub async fn submit(&self, request: Request) -> Answer {
        self.begin(Prepared::new(request)).answer().await
    }

    /// Submits one request and blocks this thread until its durable answer.
    pub fn submit_blocking(&self, request: Request) -> Answer {
        match self.begin(Prepared::new(request)) {
            Begun::Done(answer) => answer,
            Begun::Queued(answer) => answer.blocking_recv().unwrap_or(Err(Refusal::JournalFailed)),
        }
    }

    /// Hands one request over.
    pub fn begin(&self, prepared: Prepared) -> Begun {
        if let Some(answer) = self.serve_alone(&prepared) {
            return Begun::Done(answer);
        }
        let (reply, answer) = oneshot::channel();
        self.enqueue(std::iter::once((prepared, reply)));
        Begun::Queued(answer)
    }

    /// Decides and writes one request on this thread, if its caller is alone and the disk is quick; `None` if it must queue.
    pub fn serve_alone(&self, prepared: &Prepared) -> Option<Answer> {
        self.shared.serve_alone(&prepared.request, &prepared.hashes)
    }

    /// Hands over requests of several callers, in order. A worker is woken once for all of them.
    pub fn enqueue(&self, requests: impl ExactSizeIterator<Item = (Prepared, oneshot::Sender<Answer>)>) {
        match self.shared.admit(requests.len()) {
            Ok(()) => {
                let jobs = requests.map(|(Prepared { request, hashes }, reply)| Job::One(request, hashes, reply));
                self.shared.turns.enqueue_all(jobs);
            }
            // A caller that has gone away need not be told.
            Err(refusal) => requests.for_each(|(_, reply)| drop(reply.send(Err(refusal.clone())))),
        }
    }

    /// Submits up to [`BATCH_MAX`](crate::BATCH_MAX) requests, which are decided in order and answered in order. They are taken one
    /// by one, and the first are on their way to the disk while the last are still being made.
    pub async fn submit_batch(
        &self,
        requests: impl IntoIterator<Item = Request, IntoIter: ExactSizeIterator>,
    ) -> Result<Vec<Answer>, Refusal> {
        let Submitted { mut answers, durable, parts } = self.shared.submit(requests.into_iter())?;
        if let Some(durable) = durable {
            durable.await.map_err(|_| Refusal::JournalFailed)?;
        }
        for part in parts {
            answers.extend(part.await.map_err(|_| Refusal::JournalFailed)?);
        }
        Ok(answers)
    }

    /// Like [`Engine::submit_batch`], blocking this thread.
    pub fn submit_batch_blocking(
        &self,
        requests: impl IntoIterator<Item = Request, IntoIter: ExactSizeIterator>,
    ) -> Result<Vec<Answer>, Refusal> {
        let Submitted { mut answers, durable, parts } = self.shared.submit(requests.into_iter())?;
        if let Some(durable) = durable {
            durable.blocking_recv().map_err(|_| Refusal::JournalFailed)?;
        }
        for part in parts {
            answers.extend(part.blocking_recv().map_err(|_| Refusal::JournalFailed)?);
        }
        Ok(answers)
    }

    /// Looks at the books between two requests. The answer comes when everything that it saw is durable.
    pub async fn ask<T: Send + 'static>(
        &self,
        look: impl FnOnce(&View<'_>) -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        self.enqueue_look(look)?.await.map_err(|_| Refusal::JournalFailed)
    }

    /// An escrow and its owner, open or closed, however old. One that is open and durable is told at once: neither a worker nor
    /// the disk is waited for.
    pub async fn escrow(&self, id: EscrowId) -> Result<Option<(Escrow, OwnerId)>, Refusal> {
        match self.shared.open_escrow(id) {
            Some((escrowed, owner)) => Ok(Some((Escrow::Held(escrowed), owner))),
            None => self.ask(move |view| view.escrow(id)).await?,
        }
    }

    /// Like [`Engine::ask`], blocking this thread.
    pub fn ask_blocking<T: Send + 'static>(
        &self,
        look: impl FnOnce(&View<'_>) -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        self.enqueue_look(look)?.blocking_recv().map_err(|_| Refusal::JournalFailed)
    }

    fn enqueue_look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&View<'_>) -> T + Send + 'static,
    ) -> Result<oneshot::Receiver<T>, Refusal> {
        let (reply, answer) = oneshot::channel();
        let ask: Ask = Box::new(move |view| {
            let found = look(view);
            Box::new(move || drop(reply.send(found)))
        });
        self.shared.admit(1)?;
        self.shared.turns.enqueue(Job::Ask(ask));
        Ok(answer)
    }

    /// The way for another to write beside the entries.
    #[must_use]
    pub fn margin(&self) -> Margin {
        Margin::of(&self.shared)
    }

    /// How the engine is. Never waits for the disk.
    #[must_use]
    pub fn health(&self) -> Health {
        let read_model = self.followed(READ_MODEL).unwrap_or(Followed { applied: 0, failed: None });
        let End { next_offset, location, .. } = self.shared.upkeep.durable();
        Health {
            failed: self.shared.turns.failure(),
            durable: next_offset - 1,
            end: location,
            applied: read_model.applied,
            read_model_failed: read_model.failed,
            waiting: self.shared.turns.waiting(),
        }
    }

    /// How one who follows the journal is, by its name.
    #[must_use]
    pub fn followed(&self, name: &str) -> Option<Followed> {
        self.shared.upkeep.followed(name)
    }

    /// Has one who follows the journal take what there is at once, because somebody waits for it.
    pub fn hurry(&self, name: &str) {
        self.shared.upkeep.hurry(name);
    }

    /// Stops: finishes what waits, seals the journal, and leaves a snapshot so that the next start is quick.
    pub fn stop(mut self) -> Result<(), String> {
        self.shared.turns.stop();
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
