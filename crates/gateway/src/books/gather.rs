//! What the requests of one lane ask of the engine, gathered.
//!
//! To wake a worker of the engine is a system call, and what it is woken for shares one sync. So what a lane's requests submit is
//! put aside until all of them that could go on have gone on, and is handed over together.
//!
//! # Invariants
//! - What is handed over is so in the order in which it was submitted on its lane.
//! - Nothing lies here unseen: who puts the first thing aside wakes the task that hands it over, and a lane runs its tasks in turn.

use holdfast_adapters::queue::Calling;
use holdfast_engine::{Answer, Begun, Engine, Prepared};
use holdfast_journal::LocalDisk;
use std::cell::RefCell;
use std::future::poll_fn;
use std::sync::{Arc, Weak};
use std::task::{Poll, Waker};
use tokio::sync::oneshot;

/// With so many, they are worth a worker at once.
const ENOUGH: usize = 32;

thread_local! {
    /// What the lane of this thread has put aside; none if it is no lane.
    static ASIDE: RefCell<Option<Aside>> = const { RefCell::new(None) };
}

struct Aside {
    submitted: Vec<(Prepared, oneshot::Sender<Answer>)>,
    /// Whom it is for. Not kept alive: whoever stops an engine must be the last to have it.
    engine: Weak<Engine<LocalDisk>>,
    /// Who wants a frame besides.
    calling: Option<Arc<dyn Calling>>,
    carrier: Waker,
}

/// Hands over, for ever, what is put aside on this thread. What has been submitted before it runs was not put aside.
pub(crate) async fn carry() {
    poll_fn(|context| {
        ASIDE.with_borrow_mut(|aside| match aside {
            Some(aside) => {
                aside.carrier.clone_from(context.waker());
                aside.hand_over();
            }
            None => {
                let carrier = context.waker().clone();
                *aside = Some(Aside { submitted: Vec::new(), engine: Weak::new(), calling: None, carrier });
            }
        });
        Poll::<()>::Pending
    })
    .await;
}

/// Submits a request: a lone caller's is done at once, others are put aside for a moment.
pub(super) fn begin(engine: &Arc<Engine<LocalDisk>>, prepared: Prepared) -> Begun {
    ASIDE.with_borrow_mut(|aside| {
        let Some(aside) = aside else { return engine.begin(prepared) };
        if aside.becomes_that_of(engine) { aside.begin(engine, prepared) } else { engine.begin(prepared) }
    })
}

/// Has somebody call for a frame when what is put aside on this thread is handed over; no, if nothing is.
pub(crate) fn soon(calling: Arc<dyn Calling>) -> bool {
    ASIDE.with_borrow_mut(|aside| {
        let Some(aside) = aside else { return false };
        if let Some(before) = &aside.calling {
            // It will be called for already. There is one queue in a process; were there two, the other would call by itself.
            return Arc::ptr_eq(before, &calling);
        }
        aside.calling = Some(calling);
        aside.carrier.wake_by_ref();
        true
    })
}

impl Aside {
    /// Whether what is put aside goes to this engine, or can from now on.
    fn becomes_that_of(&mut self, engine: &Arc<Engine<LocalDisk>>) -> bool {
        let is_its = std::ptr::eq(self.engine.as_ptr(), Arc::as_ptr(engine));
        if !is_its && self.submitted.is_empty() {
            self.engine = Arc::downgrade(engine);
        }
        is_its || self.submitted.is_empty()
    }

    fn begin(&mut self, engine: &Engine<LocalDisk>, prepared: Prepared) -> Begun {
        if self.submitted.is_empty() {
            if let Some(answer) = engine.serve_alone(&prepared) {
                return Begun::Done(answer);
            }
            self.carrier.wake_by_ref();
        }
        let (reply, answer) = oneshot::channel();
        self.submitted.push((prepared, reply));
        if self.submitted.len() >= ENOUGH {
            self.hand_over();
        }
        Begun::Queued(answer)
    }

    fn hand_over(&mut self) {
        if !self.submitted.is_empty() {
            let submitted = self.submitted.drain(..);
            // If it has gone, whoever waits is told by the dropped sender.
            if let Some(engine) = self.engine.upgrade() {
                engine.enqueue(submitted);
            }
        }
        // After the requests, whose frame may be the one that is wanted: then nobody is woken for another.
        if let Some(calling) = self.calling.take() {
            calling.call();
        }
    }
}
