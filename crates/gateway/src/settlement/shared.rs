//! Settling by several nodes that share a database: what is committed is in the outbox by the same commit, whichever node tells it
//! says so in the books.
//!
//! # Invariants
//! - The word is in the books before the row ends: a row that is left by a crash is found to be settled when it is claimed again.
//! - What the books owe no more, because the charge was voided or the peer knows it, is taken out untold.

use super::log;
use holdfast_adapters::obligations::PostgresStore;
use holdfast_adapters::postgres::PostgresLedger;
use holdfast_adapters::postgres::ledger::Owed;
use holdfast_domain::charge::{self, State};
use holdfast_domain::delivery::{Left, Word};
use holdfast_domain::{ChargeId, CreditUnit, Id, Label, ObligationId, Reason, Span};
use holdfast_engine::dispatcher::Bell;
use holdfast_engine::obligations::{
    Answered, Claimed, Lease, LeaseLost, ObligationStore, Outcome, Standing, StoreFailed, Stored,
};
use holdfast_engine::{Action, Command, Refusal, Request};
use holdfast_journal::failpoint;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How often it is looked whether something was given up without a word.
const CATCH_UP_EVERY: Duration = Duration::from_secs(5);
/// How many of those are looked at.
const CATCH_UP_MAX: usize = 200;

/// The outbox, and the books that it belongs to.
pub(crate) struct InLedger {
    pub(super) store: PostgresStore,
    ledger: Arc<PostgresLedger>,
    dispatcher: Label,
    operator: Label,
}

/// An obligation that is done with: why it was given up, or none if the peer knows it.
#[derive(Clone)]
struct Done {
    id: ObligationId,
    charge: ChargeId,
    dead: Option<Reason>,
}

fn failed(refusal: &Refusal) -> StoreFailed {
    StoreFailed(refusal.to_string())
}

impl InLedger {
    pub(super) fn new(store: PostgresStore, ledger: Arc<PostgresLedger>) -> Self {
        let named = |name: &str| name.parse().expect("a plain word");
        let (dispatcher, operator) = (named("dispatcher"), named("operator"));
        Self { store, ledger, dispatcher, operator }
    }

    /// Claims what is owed still.
    pub(super) async fn claim_ready(&self, worker: Label, limit: usize, lease: Span) -> Answered<Vec<Claimed>> {
        let mut claimed = self.store.claim_ready(worker, limit, lease).await?;
        if claimed.is_empty() {
            return Ok(claimed);
        }
        let charges = claimed.iter().map(|claimed| claimed.obligation.charge).collect();
        let owed = self.ledger.owed(charges).await.map_err(|refusal| failed(&refusal))?;
        // One whose charge is not in the books was brought by an operator, and is told.
        let is_settled = |claimed: &mut Claimed| {
            let state = owed.get(&claimed.obligation.charge).map(|owed| owed.state);
            matches!(state, Some(State::Voided | State::Acked))
        };
        let taken_out = claimed.extract_if(.., is_settled);
        let taken_out: Vec<_> = taken_out.map(|claimed| (claimed.lease, Outcome::Delivered)).collect();
        if !taken_out.is_empty() {
            // What fails to go now is claimed when its lease has run out, and found here again.
            let _gone = self.store.complete(&taken_out).await.is_ok();
        }
        Ok(claimed)
    }

    /// The word first: what the peer knows it knows, whoever has the lease. What a crash leaves after it is claimed again, and then
    /// found to be settled, or told once more.
    pub(super) async fn complete(&self, completed: &[(Lease, Outcome)]) -> Answered<Vec<Result<(), LeaseLost>>> {
        let mut done = Vec::new();
        for (Lease { id, .. }, outcome) in completed {
            let dead = match outcome {
                Outcome::Delivered => None,
                Outcome::Dead { reason } => Some(reason.clone()),
                Outcome::Retry { .. } | Outcome::Returned { .. } => continue,
            };
            if let Some(charge) = self.charge_of(*id).await? {
                done.push(Done { id: *id, charge, dead });
            }
        }
        self.say(&done, self.dispatcher).await?;
        failpoint::pass("delivery.after_ack");
        self.store.complete(completed).await
    }

    /// The charge of an obligation: of the same name, unless it is what a late result added.
    async fn charge_of(&self, id: ObligationId) -> Answered<Option<ChargeId>> {
        if !id.as_str().starts_with("late_") {
            return Ok(Id::from_bytes(id.as_bytes()).ok());
        }
        Ok(self.store.get(id).await?.map(|stored| stored.obligation.charge))
    }

    pub(super) async fn resolve(&self, id: ObligationId, note: &Reason) -> Answered<bool> {
        let charge = self.charge_of(id).await?;
        let found = self.store.resolve(id, note).await?;
        if let (true, Some(charge)) = (found, charge) {
            self.say(&[Done { id, charge, dead: None }], self.operator).await?;
        }
        Ok(found)
    }

    /// Has the books say what became of obligations that are done with.
    async fn say(&self, done: &[Done], actor: Label) -> Answered<()> {
        if done.is_empty() {
            return Ok(());
        }
        let owed = self.ledger.owed(done.iter().map(|done| done.charge).collect()).await;
        let owed = owed.map_err(|refusal| failed(&refusal))?;
        let mut requests = Vec::new();
        for done in done {
            let Some(Owed { parts, .. }) = owed.get(&done.charge) else { continue };
            let Some(command) = self.word(done, parts).await? else { continue };
            requests.push(Request { key: None, actor, command: Command::Charge { charge: done.charge, command } });
        }
        let answers = self.ledger.submit_batch(requests).await.map_err(|refusal| failed(&refusal))?;
        match answers.iter().find_map(|answer| answer.as_ref().err().filter(|no| no.action() == Action::RetryLater)) {
            Some(refusal) => Err(failed(refusal)),
            None => Ok(()),
        }
    }

    /// What is to be written about a charge: nothing while something of it is still to be told.
    async fn word(
        &self,
        done: &Done,
        parts: &[holdfast_domain::delivery::Obligation],
    ) -> Answered<Option<charge::Command>> {
        let mut left = Left { pending: 0, dead: u64::from(done.dead.is_some()) };
        let mut total = CreditUnit::ZERO;
        for part in parts {
            let sum = total.checked_add(part.cost);
            total = sum.map_err(|_| StoreFailed("the sum of a charge's parts is out of range".to_owned()))?;
            if part.id == done.id {
                continue;
            }
            match self.store.get(part.id).await? {
                None => {}
                Some(Stored { standing: Standing::Dead, .. }) => left.dead += 1,
                Some(Stored { standing: Standing::Due { .. } | Standing::Leased { .. }, .. }) => left.pending += 1,
            }
        }
        let charged = Some(total);
        Ok(match left.word() {
            Word::None => None,
            Word::Acked => Some(charge::Command::Ack { charged }),
            Word::Failed => {
                let unsaid = || "another part of it was given up".parse().expect("a short text");
                let reason = done.dead.clone().unwrap_or_else(unsaid);
                Some(charge::Command::Fail { reason, charged })
            }
        })
    }

    /// Wakes whoever delivers when this node has committed something, until `stopping`.
    pub(super) async fn run(&self, due: &Bell, mut stopping: watch::Receiver<bool>) {
        let mut catch_up = tokio::time::interval(CATCH_UP_EVERY);
        loop {
            tokio::select! {
                () = self.ledger.owes() => due.ring(),
                _ = catch_up.tick() => if let Err(error) = self.catch_up().await {
                    log::store_failed(&error);
                },
                () = super::store::told(&mut stopping) => return,
            }
        }
    }

    /// Says what nobody could: an obligation that cost too many workers, or too many attempts, was given up by the database itself.
    async fn catch_up(&self) -> Answered<()> {
        let dead = self.store.list_dead(None, CATCH_UP_MAX).await?;
        let owed = self.ledger.owed(dead.iter().map(|stored| stored.obligation.charge).collect()).await;
        let owed = owed.map_err(|refusal| failed(&refusal))?;
        let is_unsaid =
            |stored: &Stored| owed.get(&stored.obligation.charge).is_some_and(|owed| owed.state == State::Committed);
        let unsaid = || "it was given up".parse().expect("a short text");
        let done = dead.into_iter().filter(is_unsaid).map(|stored| {
            let dead = Some(stored.reason.unwrap_or_else(unsaid));
            Done { id: stored.obligation.id, charge: stored.obligation.charge, dead }
        });
        self.say(&done.collect::<Vec<_>>(), self.dispatcher).await
    }
}
