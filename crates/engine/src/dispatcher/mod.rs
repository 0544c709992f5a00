//! The dispatcher: tells the peer what it is owed, from a store that several may deliver from.
//!
//! ```text
//!  bell, due time ─▶ claim ─▶ ready ─▶ send (so many at once) ─▶ finished ─▶ complete, in batches
//!                      ▲        └── the circuit opens: given back, and no attempt is counted ──┘
//! ```
//!
//! It sleeps until somebody rings its [`Bell`], something is due, or the peer has rested: it never polls. One claim and one
//! completion run at a time, beside the sends.
//!
//! # Invariants
//! - Every obligation that was claimed is completed, with exactly one outcome, unless the process ends first: then its
//!   lease runs out.
//! - What is leased is sent before its lease runs out, or given back.

mod run;

pub use run::run;

use crate::clock::Clock;
use crate::obligations::{Claimed, StoreFailed};
use holdfast_domain::delivery::{Chance, Circuit, CircuitPolicy, CircuitState, Next, Obligation, Schedule, Verdict};
use holdfast_domain::{Label, ObligationId, Reason, Span};
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Notify;

/// The longest that telling the peer may take, whatever it does.
pub const DELIVERY_MAX: Span = Span::from_secs(10);
/// How long what was claimed belongs to who claimed it.
pub const LEASE: Span = Span::from_secs(60);
/// As many as may be sent at once wait, claimed, for their turn.
const READY_ROUNDS: u64 = 1;

// What waits for its turn is sent after the round before it, and then takes as long itself. There is time left to complete it.
const _: () = assert!((READY_ROUNDS + 2) * DELIVERY_MAX.millis() < LEASE.millis());

/// Whoever is to be told.
pub trait Peer: Send + Sync + 'static {
    /// Tells it, within [`DELIVERY_MAX`]. Whatever happens is an answer.
    fn tell(&self, obligation: &Obligation) -> impl Future<Output = Told> + Send;
}

/// What came of telling it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// What it means.
    pub verdict: Verdict,
    /// The peer's last word, for people.
    pub reason: Reason,
}

/// What the dispatcher sees, for whoever counts and logs it.
#[derive(Debug)]
pub enum Seen<'a> {
    /// The peer was told, or it was tried.
    Attempted {
        /// What.
        claimed: &'a Claimed,
        /// What came of it.
        told: &'a Told,
        /// What is done about it.
        next: Next,
    },
    /// So many were given back untried.
    Returned(usize),
    /// So many leases had run out: whoever had them was not heard of again.
    Repaired(usize),
    /// A result came too late: somebody else may have the obligation.
    LeaseLost(ObligationId),
    /// The store did not answer.
    StoreFailed(&'a StoreFailed),
    /// The circuit changed.
    Circuit(CircuitState),
}

/// Somebody who is told what happens.
pub trait Observer: Send + Sync + 'static {
    /// Something happened.
    fn see(&self, seen: &Seen<'_>);
}

/// Wakes the dispatcher: whoever puts an obligation rings it.
#[derive(Debug, Default)]
pub struct Bell(Notify);

impl Bell {
    /// There is work. Rung many times before anybody listens is rung once.
    pub fn ring(&self) {
        self.0.notify_one();
    }

    /// Waits until it is rung.
    pub async fn rung(&self) {
        self.0.notified().await;
    }
}

/// The circuit before the peer, for everybody who looks at it.
pub struct CircuitView {
    circuit: Mutex<Circuit>,
    clock: Arc<dyn Clock>,
}

impl CircuitView {
    /// A closed one.
    #[must_use]
    pub fn new(policy: CircuitPolicy, clock: Arc<dyn Clock>) -> Self {
        Self { circuit: Mutex::new(Circuit::new(policy)), clock }
    }

    /// Its state.
    #[must_use]
    pub fn state(&self) -> CircuitState {
        self.with(|circuit| circuit.state())
    }

    /// Whether new work should not be begun that the peer would have to be told of.
    #[must_use]
    pub fn is_away(&self) -> bool {
        let now = self.clock.now();
        self.with(|circuit| circuit.is_away(now))
    }

    fn with<T>(&self, act: impl FnOnce(&mut Circuit) -> T) -> T {
        act(&mut self.circuit.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What the dispatcher works with.
pub struct Parts<S, P> {
    /// What is owed.
    pub store: Arc<S>,
    /// To whom.
    pub peer: Arc<P>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Rung when something is put.
    pub bell: Arc<Bell>,
    /// Before the peer.
    pub circuit: Arc<CircuitView>,
    /// Who is told what happens.
    pub observer: Arc<dyn Observer>,
    /// Numbers that nobody can foresee.
    pub chance: fn() -> Chance,
    /// In whose name obligations are claimed.
    pub worker: Label,
    /// When to try again.
    pub schedule: Schedule,
    /// How many may be sent at once; the circuit's policy has the same number.
    pub at_once: usize,
}
