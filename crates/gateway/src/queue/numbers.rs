//! What is counted of the queue, for `/metrics`. Labels are states, verdicts and results: nothing that a caller chose.

use holdfast_domain::Timestamp;
use holdfast_domain::queue::{Item, Stage, State};
use holdfast_engine::queue::Counts;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::time::Duration;

/// Seconds, from a moment to the day that nobody should wait.
const BUCKETS: [f64; 11] = [1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 1_800.0, 3_600.0, 7_200.0, 21_600.0, 86_400.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct InState {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct By {
    verdict: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Came {
    result: &'static str,
}

/// What came of asking the wallet to end an escrow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// It did.
    Done,
    /// It would not.
    Refused,
    /// It did not answer.
    Failed,
}

/// The numbers of the queue.
pub(crate) struct Numbers {
    items: Family<InState, Gauge>,
    oldest_seconds: Gauge,
    processing_seconds: Histogram,
    ends: Family<By, Counter>,
    settlements: Family<Came, Counter>,
    orphans: Gauge,
}

impl Numbers {
    /// Numbers in which nothing has happened: every label is there from the start, so that a rate can be told.
    pub(super) fn new() -> Self {
        let numbers = Self {
            items: Family::default(),
            oldest_seconds: Gauge::default(),
            processing_seconds: Histogram::new(BUCKETS),
            ends: Family::default(),
            settlements: Family::default(),
            orphans: Gauge::default(),
        };
        for state in State::ALL {
            if state.is_end() {
                let _zero = numbers.ends.get_or_create(&By { verdict: state.name() });
            } else {
                let _zero = numbers.items.get_or_create(&InState { state: state.name() });
            }
        }
        for asked in [Asked::Done, Asked::Refused, Asked::Failed] {
            let _zero = numbers.settlements.get_or_create(&Came { result: asked.name() });
        }
        numbers
    }

    /// Has them shown among the server's.
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register("queue_items", "Items that have not ended, by state", self.items.clone());
        registry.register("queue_ends", "Items that ended, by how", self.ends.clone());
        registry.register("queue_settlements", "Words to the wallet, by what came of them", self.settlements.clone());
        registry.register(
            "queue_processing_seconds",
            "From an item's intake to its end",
            self.processing_seconds.clone(),
        );
        for (name, help, gauge) in [
            ("queue_oldest_seconds", "The age of the oldest item that has not ended", &self.oldest_seconds),
            ("escrow_orphans", "Escrows that have been held for too long without an item", &self.orphans),
        ] {
            registry.register(name, help, gauge.clone());
        }
    }

    /// Notes how many items there are.
    pub(super) fn counted(&self, counts: &Counts, now: Timestamp) {
        for (state, many) in [(State::Queued, counts.queued), (State::InProgress, counts.in_progress)] {
            self.items.get_or_create(&InState { state: state.name() }).set(many.cast_signed());
        }
        let age = counts.oldest.map_or(0, |oldest| now.millis().saturating_sub(oldest.millis()) / 1_000);
        self.oldest_seconds.set(age.cast_signed());
    }

    /// Notes how many escrows are orphans.
    pub(super) fn orphaned(&self, many: usize) {
        self.orphans.set(i64::try_from(many).unwrap_or(i64::MAX));
    }

    /// Counts an item that has just ended.
    pub(super) fn ended(&self, item: &Item) {
        let Stage::Ended(end) = item.stage else { return };
        self.ends.get_or_create(&By { verdict: end.verdict.state().name() }).inc();
        let took = Duration::from_millis(end.ended_at.millis().saturating_sub(item.queued_at.millis()));
        self.processing_seconds.observe(took.as_secs_f64());
    }

    /// Counts a word to the wallet.
    pub(super) fn asked(&self, asked: Asked) {
        self.settlements.get_or_create(&Came { result: asked.name() }).inc();
    }
}

impl Asked {
    const fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}
