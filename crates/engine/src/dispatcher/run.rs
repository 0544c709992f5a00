//! The dispatcher's one loop.

use super::{LEASE, Parts, Peer, Seen, Told};
use crate::obligations::{Answered, Claimed, Lease, LeaseLost, ObligationStore, Outcome, StoreFailed};
use holdfast_domain::delivery::{Attempt, CircuitState, Next};
use holdfast_domain::{Span, Timestamp};
use holdfast_journal::failpoint;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How many leases that ran out are given back at once.
const REPAIR_MAX: usize = 1_000;
/// How many results are written at once.
const COMPLETE_MAX: usize = 4_096;
/// How long a store that does not answer is left alone: twice as long each time, up to the last.
const STORE_PAUSE: Span = Span::from_millis(100);
const STORE_PAUSE_MAX: Span = Span::from_secs(10);
/// Something that is due and cannot be claimed is not looked for again before this.
const LOOK_PAUSE: Span = Span::from_millis(5);

type Results = Vec<(Lease, Outcome)>;

/// What a task of the dispatcher's comes to.
enum Step {
    Looked(Answered<Looked>),
    Sent(Box<Claimed>, Told),
    Completed(Results, Answered<Vec<Result<(), LeaseLost>>>),
}

/// What a look into the store found.
struct Looked {
    claimed: Vec<Claimed>,
    repaired: usize,
    /// When to look again, if nobody rings.
    next_due: Option<Timestamp>,
    /// Whether there may be more that is due now.
    more: bool,
}

/// Delivers until `stopping`, and then finishes what is under way. Whoever cannot wait for that may drop it.
pub async fn run<S: ObligationStore, P: Peer>(parts: Parts<S, P>, mut stopping: watch::Receiver<bool>) {
    let mut run = Run::new(parts);
    let bell = Arc::clone(&run.parts.bell);
    loop {
        run.stopping = *stopping.borrow_and_update() || stopping.has_changed().is_err();
        run.advance();
        if run.stopping && run.is_idle() {
            return;
        }
        let pause = run.pause();
        tokio::select! {
            biased;
            Some(step) = run.tasks.join_next() => {
                run.take(step);
                while let Some(step) = run.tasks.try_join_next() {
                    run.take(step);
                }
            }
            () = bell.rung(), if !run.stopping => run.look = true,
            () = tokio::time::sleep(pause.unwrap_or_default()), if pause.is_some() => run.wake(),
            _ = stopping.changed(), if !run.stopping => {}
        }
    }
}

struct Run<S, P> {
    parts: Parts<S, P>,
    /// Every task is one that [`run`] waits for, or that may die with it: then its lease runs out.
    tasks: JoinSet<Step>,
    /// Claimed, and waiting for their turn.
    ready: VecDeque<Claimed>,
    sending: usize,
    finished: Results,
    is_looking: bool,
    is_completing: bool,
    stopping: bool,
    /// Whether there may be something that is due.
    look: bool,
    /// Whether leases may have run out.
    repair: bool,
    /// When something is due, as far as is known.
    due: Option<Timestamp>,
    /// Until when the store is left alone, and how often it has failed in a row.
    store_rests_until: Timestamp,
    store_failures: u32,
    circuit_seen: CircuitState,
}

impl<S: ObligationStore, P: Peer> Run<S, P> {
    fn new(parts: Parts<S, P>) -> Self {
        Self {
            parts,
            tasks: JoinSet::new(),
            ready: VecDeque::new(),
            sending: 0,
            finished: Vec::new(),
            is_looking: false,
            is_completing: false,
            stopping: false,
            look: true,
            repair: true,
            due: None,
            store_rests_until: Timestamp::EPOCH,
            store_failures: 0,
            circuit_seen: CircuitState::Closed,
        }
    }

    fn now(&self) -> Timestamp {
        self.parts.clock.now()
    }

    fn is_idle(&self) -> bool {
        self.tasks.is_empty() && self.finished.is_empty() && self.ready.is_empty()
    }

    /// Begins whatever can be begun.
    fn advance(&mut self) {
        let now = self.now();
        self.send(now);
        if self.store_rests_until <= now {
            self.complete();
            self.begin_look(now);
        }
        let circuit = self.parts.circuit.state();
        if circuit != self.circuit_seen {
            self.circuit_seen = circuit;
            self.parts.observer.see(&Seen::Circuit(circuit));
        }
    }

    /// Sends what is ready, as far as the circuit lets it; gives it back while the circuit is open.
    fn send(&mut self, now: Timestamp) {
        let sending = self.sending;
        let room = if self.stopping { 0 } else { self.parts.circuit.with(|circuit| circuit.room(sending, now)) };
        for claimed in self.ready.drain(..room.min(self.ready.len())) {
            self.parts.circuit.with(|circuit| circuit.begin());
            let peer = Arc::clone(&self.parts.peer);
            self.sending += 1;
            self.tasks.spawn(async move {
                failpoint::pass("delivery.before_tell");
                let told = peer.tell(&claimed.obligation).await;
                failpoint::pass("delivery.after_tell");
                Step::Sent(Box::new(claimed), told)
            });
        }
        let back_at = match self.parts.circuit.state() {
            _ if self.stopping => Some(now),
            CircuitState::Open { until } if now < until => Some(until),
            CircuitState::HalfOpen | CircuitState::Open { .. } => Some(now.after(LOOK_PAUSE)),
            CircuitState::Closed => None,
        };
        if let Some(at) = back_at.filter(|_| !self.ready.is_empty()) {
            self.parts.observer.see(&Seen::Returned(self.ready.len()));
            self.finished.extend(self.ready.drain(..).map(|claimed| (claimed.lease, Outcome::Returned { at })));
        }
    }

    /// Writes down what is finished, in one go.
    fn complete(&mut self) {
        if self.is_completing || self.finished.is_empty() {
            return;
        }
        self.is_completing = true;
        let results: Results = self.finished.drain(..self.finished.len().min(COMPLETE_MAX)).collect();
        let store = Arc::clone(&self.parts.store);
        self.tasks.spawn(async move {
            let answers = store.complete(&results).await;
            Step::Completed(results, answers)
        });
    }

    /// Looks for what is due, if there may be something and it could be sent.
    fn begin_look(&mut self, now: Timestamp) {
        let (sending, at_once) = (self.sending, self.parts.at_once);
        let (room, full) = self.parts.circuit.with(|circuit| (circuit.room(sending, now), circuit.is_at_full_load()));
        // One round more than can be sent at once, so that nobody waits for the store.
        let wanted = if full { room + at_once } else { room };
        let limit = wanted.saturating_sub(self.ready.len());
        let is_behind = self.finished.len() >= COMPLETE_MAX;
        // Few at a time would cost as much as many: half a round, or all there is room for.
        if self.is_looking || !self.look || self.stopping || is_behind || limit == 0 || (full && limit < at_once / 2) {
            return;
        }
        (self.is_looking, self.look) = (true, false);
        let repair = std::mem::take(&mut self.repair);
        let (store, worker) = (Arc::clone(&self.parts.store), self.parts.worker);
        self.tasks.spawn(async move {
            let looked = async {
                let repaired = if repair { store.repair_expired(REPAIR_MAX).await? } else { 0 };
                let claimed = store.claim_ready(worker, limit, LEASE).await?;
                let more = claimed.len() >= limit || repaired >= REPAIR_MAX;
                let next_due = if more { None } else { store.next_due().await? };
                Ok(Looked { claimed, repaired, next_due, more })
            };
            Step::Looked(looked.await)
        });
    }

    fn take(&mut self, step: Result<Step, tokio::task::JoinError>) {
        match step {
            Ok(Step::Looked(looked)) => {
                self.is_looking = false;
                match looked {
                    Ok(looked) => self.looked(looked),
                    Err(failed) => {
                        (self.look, self.repair) = (true, true);
                        self.store_failed(&failed);
                    }
                }
            }
            Ok(Step::Sent(claimed, told)) => self.sent(&claimed, &told),
            Ok(Step::Completed(results, answers)) => {
                self.is_completing = false;
                match answers {
                    Ok(answers) => self.completed(&results, &answers),
                    Err(failed) => {
                        self.store_failed(&failed);
                        if !self.stopping {
                            self.finished.extend(results);
                        }
                    }
                }
            }
            // A panic is a bug, and must not be taken for an answer; nobody cancels these tasks.
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    fn looked(&mut self, looked: Looked) {
        self.store_failures = 0;
        if looked.repaired > 0 {
            self.parts.observer.see(&Seen::Repaired(looked.repaired));
        }
        self.look |= looked.more;
        if !looked.more {
            let soonest = self.now().after(LOOK_PAUSE);
            self.due = looked.next_due.map(|due| due.max(soonest));
        }
        self.ready.extend(looked.claimed);
    }

    fn sent(&mut self, claimed: &Claimed, told: &Told) {
        self.sending -= 1;
        let now = self.now();
        self.parts.circuit.with(|circuit| circuit.record(told.verdict.sign(), now));
        let created_at = claimed.obligation.created_at;
        let age = Span::from_millis(now.millis().saturating_sub(created_at.millis()));
        let attempt = Attempt { number: claimed.attempts.saturating_add(1), age, at: now };
        let next = self.parts.schedule.after(told.verdict, attempt, (self.parts.chance)());
        self.parts.observer.see(&Seen::Attempted { claimed, told, next });
        let reason = || told.reason.clone();
        let outcome = match next {
            Next::Settle => Outcome::Delivered,
            Next::TryAgain(at) => Outcome::Retry { at, reason: reason() },
            Next::GiveUp => Outcome::Dead { reason: reason() },
        };
        self.finished.push((claimed.lease, outcome));
    }

    fn completed(&mut self, results: &[(Lease, Outcome)], answers: &[Result<(), LeaseLost>]) {
        self.store_failures = 0;
        for ((lease, outcome), answer) in results.iter().zip(answers) {
            match (answer, outcome) {
                (Err(LeaseLost), _) => self.parts.observer.see(&Seen::LeaseLost(lease.id)),
                (Ok(()), Outcome::Retry { at, .. } | Outcome::Returned { at }) => {
                    self.due = Some(self.due.map_or(*at, |due| due.min(*at)));
                }
                (Ok(()), Outcome::Delivered | Outcome::Dead { .. }) => {}
            }
        }
    }

    fn store_failed(&mut self, failed: &StoreFailed) {
        self.parts.observer.see(&Seen::StoreFailed(failed));
        let doubled = STORE_PAUSE.millis().saturating_mul(1 << self.store_failures.min(16));
        self.store_failures = self.store_failures.saturating_add(1);
        self.store_rests_until = self.now().after(Span::from_millis(doubled).min(STORE_PAUSE_MAX));
    }

    /// How long there is nothing to do but to wait for a task or a bell; `None` for as long as that takes.
    fn pause(&self) -> Option<Duration> {
        let now = self.now();
        let store_rests = (self.store_rests_until > now).then_some(self.store_rests_until);
        let circuit_rests = match self.parts.circuit.state() {
            CircuitState::Open { until } if now < until => Some(until),
            CircuitState::Open { .. } | CircuitState::HalfOpen | CircuitState::Closed => None,
        };
        let due = match (self.stopping, circuit_rests) {
            (true, _) => None,
            // Nothing is sent before the peer has rested.
            (false, Some(rest)) => {
                (self.look || self.due.is_some()).then(|| self.due.map_or(rest, |due| due.max(rest)))
            }
            (false, None) => self.due,
        };
        let first = [store_rests, due].into_iter().flatten().min()?;
        Some(Duration::from_millis(first.millis().saturating_sub(now.millis())))
    }

    /// A moment has come that was waited for.
    fn wake(&mut self) {
        let now = self.now();
        if self.due.is_some_and(|due| due <= now) {
            (self.due, self.look, self.repair) = (None, true, true);
        }
    }
}
