//! The journal's store over a journal that the test writes: the suite says when each charge was made and uses its ids again,
//! which an engine would not. What is put is written as the entry that owes it; what the store submits is written as well.

use holdfast_adapters::SystemClock;
use holdfast_adapters::obligations::JournalStore;
use holdfast_adapters::obligations::journal::{Entries, Eventually, Follower};
use holdfast_domain::charge::{self, Finality, State, Taken};
use holdfast_domain::delivery::Obligation;
use holdfast_domain::{ChargeId, CreditUnit, Event, Label, ObligationId, OwnerId, Reason, Span, Timestamp};
use holdfast_engine::dispatcher::Bell;
use holdfast_engine::obligations::{
    Answered, Claimed, Count, Durable, Lease, LeaseLost, ObligationStore, Outcome, Stored,
};
use holdfast_engine::{
    Answer, Applied, Command, Fingerprint, LifeState, Link, Located, Outcome as Written, OwnerLink, Projection, Record,
    Refusal, Request,
};
use holdfast_journal::{JournalId, Location};
use std::future::ready;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

/// The journal: entries go to the store's follower as they are written.
#[derive(Default)]
struct Journal {
    follower: OnceLock<Mutex<Follower>>,
}

impl Journal {
    fn write(&self, charge: ChargeId, owner: OwnerId, event: charge::Event, state: State, at: Timestamp) -> Record {
        let mut follower = self.follower.get().unwrap().lock().unwrap();
        let offset = follower.applied().through + 1;
        let nothing = CreditUnit::ZERO;
        let record = Record {
            offset,
            at,
            actor: "test".parse().unwrap(),
            key: None,
            fingerprint: Fingerprint([0; 16]),
            event: Event::Charge { id: charge, owner, event },
            state: LifeState::Charge(state),
            owner: OwnerLink { available: Link { balance: nothing, previous: 0, number: offset }, held: nothing },
            payee: None,
            life_previous: None,
        };
        let located = Located { location: Location::START, record: record.clone() };
        follower.apply(&[located], Applied { through: offset, location: Location::START }).unwrap();
        record
    }
}

impl Entries for Journal {
    fn submit(&self, requests: Vec<Request>) -> Eventually<'_, Result<Vec<Answer>, Refusal>> {
        let write = |request: Request| {
            let Command::Charge { charge, command } = request.command else { return Err(Refusal::UnknownCharge) };
            let (event, state) = match command {
                charge::Command::Ack { .. } => (charge::Event::Acked, State::Acked),
                charge::Command::Fail { reason, .. } => (charge::Event::Failed { reason }, State::Failed),
                other => panic!("the store writes {other:?}"),
            };
            let record = self.write(charge, "alice".parse().unwrap(), event, state, Timestamp::EPOCH);
            Ok(Written::Applied(record.into_receipt()))
        };
        Box::pin(ready(Ok(requests.into_iter().map(write).collect())))
    }

    fn knows(&self, _charge: ChargeId) -> Eventually<'_, Result<bool, Refusal>> {
        Box::pin(ready(Ok(true)))
    }
}

/// The store, and the journal that it follows.
pub(super) struct Fed {
    store: JournalStore,
    journal: Arc<Journal>,
}

impl Fed {
    pub(super) fn new(data: &Path) -> Self {
        let journal = Arc::new(Journal::default());
        let (entries, clock) = (Arc::clone(&journal) as _, Arc::new(SystemClock::start()));
        let (store, follower) =
            JournalStore::open(data, (JournalId([7; 16]), 0), entries, clock, Arc::new(Bell::default())).unwrap();
        assert!(journal.follower.set(Mutex::new(follower)).is_ok());
        Self { store, journal }
    }
}

impl ObligationStore for Fed {
    fn name(&self) -> &'static str {
        self.store.name()
    }

    /// Commits what is owed, in the order of its age, as a journal does; what was committed is not committed again.
    async fn put(&self, obligations: &[Obligation]) -> Answered<()> {
        let mut obligations = obligations.to_vec();
        obligations.sort_by_key(|obligation| obligation.created_at);
        for Obligation { id, charge, owner, cost, created_at } in obligations {
            if self.store.get(id).await?.is_none() {
                let (from_hold, nothing) = (cost, CreditUnit::ZERO);
                let taken = Taken { from_hold, from_available: nothing, returned: nothing, uncollected: nothing };
                let event = charge::Event::Committed { taken, finality: Finality::Final };
                self.journal.write(charge, owner, event, State::Committed, created_at);
            }
        }
        self.store.put(&[]).await
    }

    async fn claim_ready(&self, worker: Label, limit: usize, lease: Span) -> Answered<Vec<Claimed>> {
        self.store.claim_ready(worker, limit, lease).await
    }

    async fn complete(&self, completed: &[(Lease, Outcome)]) -> Answered<Vec<Result<(), LeaseLost>>> {
        self.store.complete(completed).await
    }

    async fn repair_expired(&self, limit: usize) -> Answered<usize> {
        self.store.repair_expired(limit).await
    }

    async fn next_due(&self) -> Answered<Option<Timestamp>> {
        self.store.next_due().await
    }

    async fn get(&self, id: ObligationId) -> Answered<Option<Stored>> {
        self.store.get(id).await
    }

    async fn count(&self) -> Answered<Count> {
        self.store.count().await
    }

    async fn oldest(&self) -> Answered<Option<Timestamp>> {
        self.store.oldest().await
    }

    async fn list_pending(&self, after: Option<ObligationId>, limit: usize) -> Answered<Vec<Stored>> {
        self.store.list_pending(after, limit).await
    }

    async fn list_dead(&self, after: Option<ObligationId>, limit: usize) -> Answered<Vec<Stored>> {
        self.store.list_dead(after, limit).await
    }

    async fn resolve(&self, id: ObligationId, note: &Reason) -> Answered<bool> {
        self.store.resolve(id, note).await
    }

    async fn replay(&self, id: ObligationId) -> Answered<bool> {
        self.store.replay(id).await
    }

    async fn durable(&self) -> Durable {
        self.store.durable().await
    }
}
