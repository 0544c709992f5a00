//! Settling with the peer: what the journal owes is told to it, by the dispatcher, from the store that was chosen.
//!
//! ```text
//!  journal ─▶ store ─▶ dispatcher ─▶ peer
//!     ▲                    │            └─ its word ─▶ ack, fail
//!     └────────────────────┴──────────────────────────────┘
//! ```
//!
//! Without a peer there is nothing of all this: charges wait in the journal, and a peer that is configured later is told of
//! them.

mod log;
mod observer;
mod settings;
mod shared;
mod store;

pub(crate) use observer::Numbers;
pub(crate) use settings::{SettlementSettings, StoreChoice};
pub(crate) use store::Store;

use crate::failure::Failure;
use crate::identity::Identity;
use crate::node::{Node, Running};
use holdfast_adapters::obligations::redis::Limits;
use holdfast_adapters::obligations::{Failover, JournalStore, MemoryStore, PostgresStore, RedisStore};
use holdfast_adapters::peer::{HttpPeer, Sign};
use holdfast_adapters::postgres;
use holdfast_domain::Label;
use holdfast_domain::delivery::Chance;
use holdfast_engine::Clock;
use holdfast_engine::dispatcher::{self, Bell, CircuitView, Parts};
use holdfast_engine::obligations::{Count, Durable, ObligationStore};
use observer::{Again, Watcher};
use serde::Serialize;
use shared::InLedger;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use store::Elsewhere;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How long `/health` waits for the store.
const HEALTH_MAX: Duration = Duration::from_millis(80);
/// How long our tokens for the peer are good.
const TOKEN_LIFE_S: u64 = 300;

/// What everybody may look at.
pub(crate) struct Settlement {
    pub(crate) store: Arc<Store>,
    pub(crate) circuit: Arc<CircuitView>,
    pub(crate) numbers: Arc<Numbers>,
    /// Rung when something has become due.
    pub(crate) due: Arc<Bell>,
    /// Whether new paid work is refused while the peer is away.
    require_peer: bool,
    clock: Arc<dyn Clock>,
}

/// The tasks that settle.
pub(crate) struct Tasks(Vec<JoinHandle<()>>);

impl Tasks {
    /// Waits until what is under way is done.
    pub(crate) async fn finished(self) {
        for task in self.0 {
            // A task that panicked has said so, and what it had is told again after the next start.
            let _ended = task.await;
        }
    }
}

impl Settlement {
    /// Starts to settle what a node's journal owes.
    pub(crate) fn start(
        node: &mut Node,
        data: &Path,
        settings: &SettlementSettings,
        identity: &Arc<Identity>,
        (runtime, stopping): (&Runtime, watch::Receiver<bool>),
    ) -> Result<(Arc<Self>, Tasks), Failure> {
        let clock: Arc<dyn Clock> = Arc::clone(&node.clock) as _;
        let peer = peer(settings, Arc::clone(&clock), Arc::clone(identity))?;
        let (due, owed) = (Arc::new(Bell::default()), Arc::new(Bell::default()));
        let store = match (&mut node.engine, &settings.store) {
            (Running::Embedded(local), choice) => {
                let follower_rings = if matches!(choice, StoreChoice::Journal) { &due } else { &owed };
                let (entries, bell) = (Arc::clone(&local.engine) as _, Arc::clone(follower_rings));
                let (journal, follower) =
                    JournalStore::open(data, local.journal_end(), entries, Arc::clone(&clock), bell)?;
                local.follow(follower);
                open(choice, journal, &clock)
            }
            (Running::Postgres(ledger), StoreChoice::Journal) => {
                let (database, notes) = (ledger.database().clone(), Arc::new(log::Notes));
                let store = PostgresStore::new(database, postgres::Limits::USUAL, Arc::clone(&clock), notes);
                Store::InLedger(Box::new(InLedger::new(store, Arc::clone(ledger))))
            }
            (Running::Postgres(_), StoreChoice::Memory | StoreChoice::Redis(_) | StoreChoice::Postgres(_)) => {
                return Err(Failure::Setting {
                    name: "HOLDFAST_BILLING_OBLIGATIONS".to_owned(),
                    value: settings.store.name().to_owned(),
                    allowed: "journal where the books are in PostgreSQL: what is owed is in the same database"
                        .to_owned(),
                });
            }
        };
        let store = Arc::new(store);
        runtime.block_on(store.check())?;
        let circuit = Arc::new(CircuitView::new(settings.circuit, Arc::clone(&clock)));
        let numbers = Arc::new(Numbers::default());
        let observer =
            Watcher { numbers: Arc::clone(&numbers), store: Arc::clone(&store), again: Mutex::new(Again::new()) };
        let parts = Parts {
            store: Arc::clone(&store),
            peer: Arc::new(peer),
            clock: Arc::clone(&clock),
            bell: Arc::clone(&due),
            circuit: Arc::clone(&circuit),
            observer: Arc::new(observer),
            chance,
            worker: worker(),
            schedule: settings.schedule.clone(),
            at_once: settings.circuit.at_once,
        };
        // Both are waited for when the server stops.
        let tasks = vec![
            runtime.spawn(dispatcher::run(parts, stopping.clone())),
            runtime.spawn(store::forward(Arc::clone(&store), owed, Arc::clone(&due), stopping)),
        ];
        let require_peer = settings.require_peer;
        Ok((Arc::new(Self { store, circuit, numbers, due, require_peer, clock }), Tasks(tasks)))
    }

    /// Whether new paid work must wait, because the peer could not be told of it.
    pub(crate) fn must_wait(&self) -> bool {
        self.require_peer && self.circuit.is_away()
    }

    /// How settling goes, within a tenth of a second whatever the store does.
    pub(crate) async fn health(&self) -> BillingHealth {
        let store = &self.store;
        let ask = async { tokio::join!(store.count(), store.oldest(), store.durable(), store.aof_verified()) };
        let asked = tokio::time::timeout(HEALTH_MAX, ask).await.ok();
        let asked = asked.map(|(count, oldest, durable, aof)| (count.ok(), oldest.ok(), durable, aof));
        let (count, oldest, durable, dlq_aof_verified) = asked.unwrap_or((None, None, Durable::Unknown, None));
        let now = self.clock.now().millis();
        let age = oldest.flatten().map(|at| now.saturating_sub(at.millis()));
        let all = |count: Count| count.pending.saturating_add(count.dead);
        if let Some(Count { pending, dead }) = count {
            self.numbers.pending.set(pending.cast_signed());
            self.numbers.dead_letters.set(dead.cast_signed());
            self.numbers.oldest_age_ms.set(age.unwrap_or(0).cast_signed());
        }
        let dlq_losses = store.losses();
        self.numbers.store_losses.set(dlq_losses.unwrap_or(0).cast_signed());
        BillingHealth {
            dlq_size: count.map(all),
            dlq_pending: count.map(|count| count.pending),
            dlq_dead: count.map(|count| count.dead),
            dlq_oldest_entry_age_ms: age,
            dlq_store_type: store.name(),
            dlq_durable: match durable {
                Durable::Yes => Some(true),
                Durable::No => Some(false),
                Durable::Unknown => None,
            },
            dlq_aof_verified,
            dlq_losses,
            circuit: self.circuit.state().name(),
        }
    }
}

fn open(choice: &StoreChoice, journal: JournalStore, clock: &Arc<dyn Clock>) -> Store {
    match choice {
        StoreChoice::Journal => Store::Journal(Box::new(journal)),
        StoreChoice::Memory => Store::Memory(Box::new(Elsewhere::new(MemoryStore::new(Arc::clone(clock)), journal))),
        StoreChoice::Redis(place) => {
            let (address, prefix) = &**place;
            let notes = || Arc::new(log::Notes);
            let redis = RedisStore::new(address.clone(), prefix, Limits::USUAL, Arc::clone(clock), notes());
            let redis = Failover::new(redis, Arc::clone(clock), notes());
            Store::Redis(Box::new(Elsewhere::new(redis, journal)))
        }
        StoreChoice::Postgres(database) => {
            let (database, notes) = ((**database).clone(), Arc::new(log::Notes));
            let store = PostgresStore::new(database, postgres::Limits::USUAL, Arc::clone(clock), notes);
            Store::Postgres(Box::new(Elsewhere::new(store, journal)))
        }
    }
}

/// How settling goes, for `/health`. What is not known in time is null.
#[derive(Serialize)]
pub(crate) struct BillingHealth {
    /// All that the peer has not taken: pending and dead.
    dlq_size: Option<u64>,
    dlq_pending: Option<u64>,
    dlq_dead: Option<u64>,
    /// By when the oldest pending one was made, however often it was tried.
    dlq_oldest_entry_age_ms: Option<u64>,
    dlq_store_type: &'static str,
    dlq_durable: Option<bool>,
    dlq_aof_verified: Option<bool>,
    /// How often since the start the store had lost what the journal owes, and was given it again.
    dlq_losses: Option<u64>,
    circuit: &'static str,
}

fn peer(settings: &SettlementSettings, clock: Arc<dyn Clock>, identity: Arc<Identity>) -> Result<HttpPeer, Failure> {
    let audience = settings.audience.clone();
    let subject: Label = "holdfast".parse().expect("a plain word");
    let sign: Sign = Arc::new(move || {
        let signed = identity.signing.sign_for(&audience, subject, TOKEN_LIFE_S);
        signed.map_err(|error| error.to_string())
    });
    HttpPeer::new(&settings.peer, clock, sign).map_err(|refused| settings.refused(&refused))
}

/// In whose name obligations are claimed: another for each process.
fn worker() -> Label {
    format!("holdfast-{}", std::process::id()).parse().expect("a plain word")
}

/// A number that nobody can foresee: the hasher's keys are random.
fn chance() -> Chance {
    Chance(RandomState::new().build_hasher().finish())
}
