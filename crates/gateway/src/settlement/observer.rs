//! What is counted and logged of the deliveries.

use super::log;
use super::store::Store;
use holdfast_domain::delivery::{CircuitState, Next};
use holdfast_engine::dispatcher::{Observer, Seen};
use holdfast_engine::obligations::ObligationStore;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often it is said how trying again goes.
const REPLAYED_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Result {
    result: &'static str,
}

/// The numbers of the deliveries.
#[derive(Default)]
pub(crate) struct Numbers {
    attempts: Family<Result, Counter>,
    dead: Counter,
    returned: Counter,
    repaired: Counter,
    leases_lost: Counter,
    store_failures: Counter,
    circuit: Gauge,
    pub(crate) pending: Gauge,
    pub(crate) dead_letters: Gauge,
    pub(crate) oldest_age_ms: Gauge,
    pub(crate) store_losses: Gauge,
}

impl Numbers {
    /// Has them shown among the server's.
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "finalize_attempts",
            "Attempts to tell the peer, by what came of them",
            self.attempts.clone(),
        );
        for (name, help, counter) in [
            ("finalize_given_up", "Obligations that became dead letters", &self.dead),
            ("finalize_returned", "Obligations given back untried, because the peer was away", &self.returned),
            ("finalize_leases_expired", "Leases that ran out", &self.repaired),
            ("finalize_leases_lost", "Results that came after their lease had run out", &self.leases_lost),
            ("finalize_store_failures", "Times that the store of obligations did not answer", &self.store_failures),
        ] {
            registry.register(name, help, counter.clone());
        }
        for (name, help, gauge) in [
            ("finalize_circuit", "The circuit before the peer: 0 closed, 1 half open, 2 open", &self.circuit),
            ("obligations_pending", "Obligations that the peer is still to be told", &self.pending),
            ("obligations_dead", "Dead letters", &self.dead_letters),
            ("obligations_oldest_age_ms", "The age of the oldest pending obligation", &self.oldest_age_ms),
            ("obligations_store_losses", "Times that the store had lost what the journal owes", &self.store_losses),
        ] {
            registry.register(name, help, gauge.clone());
        }
    }
}

/// Counts and logs.
pub(super) struct Watcher {
    pub(super) numbers: Arc<Numbers>,
    pub(super) store: Arc<Store>,
    pub(super) again: Mutex<Again>,
}

/// How trying again went since it was last said.
pub(super) struct Again {
    said_at: Instant,
    replayed: u64,
    succeeded: u64,
}

impl Again {
    pub(super) fn new() -> Self {
        Self { said_at: Instant::now(), replayed: 0, succeeded: 0 }
    }
}

impl Watcher {
    fn tried_again(&self, next: Next) {
        let mut again = self.again.lock().unwrap_or_else(PoisonError::into_inner);
        again.replayed += 1;
        again.succeeded += u64::from(next == Next::Settle);
        if again.said_at.elapsed() >= REPLAYED_EVERY {
            log::replayed(again.replayed, again.succeeded, self.store.owed().pending);
            *again = Again::new();
        }
    }
}

impl Observer for Watcher {
    fn see(&self, seen: &Seen<'_>) {
        let numbers = &self.numbers;
        let count = |counter: &Counter, by: usize| {
            counter.inc_by(u64::try_from(by).unwrap_or(0));
        };
        match seen {
            Seen::Attempted { claimed, told, next } => {
                let result = told.verdict.result();
                numbers.attempts.get_or_create(&Result { result }).inc();
                let reason = told.reason.as_str();
                match next {
                    Next::GiveUp => {
                        numbers.dead.inc();
                        log::given_up(claimed, reason);
                    }
                    Next::TryAgain(_) if claimed.attempts == 0 => log::deferred(claimed, reason, self.store.name()),
                    Next::TryAgain(_) | Next::Settle => {}
                }
                if claimed.attempts > 0 {
                    self.tried_again(*next);
                }
            }
            Seen::Returned(many) => count(&numbers.returned, *many),
            Seen::Repaired(many) => count(&numbers.repaired, *many),
            Seen::LeaseLost(_) => count(&numbers.leases_lost, 1),
            Seen::StoreFailed(failed) => {
                numbers.store_failures.inc();
                log::store_failed(failed);
            }
            Seen::Circuit(state) => {
                numbers.circuit.set(match state {
                    CircuitState::Closed => 0,
                    CircuitState::HalfOpen => 1,
                    CircuitState::Open { .. } => 2,
                });
                log::circuit(*state);
            }
        }
    }
}
