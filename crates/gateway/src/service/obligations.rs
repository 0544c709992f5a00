//! What the peer is still to be told: looked at, brought forward, resolved by hand, put back from the log.
//!
//! # Invariants
//! - Nothing here takes an obligation away but `resolve`, and that only a dead letter, with a note.
//! - Whatever becomes due by this is told to whoever delivers, who does not poll.

use super::Service;
use crate::terminal;
use crate::wire::Shown;
use crate::wire::error::{DeliveryError, Problem};
use crate::wire::obligations::{ListBody, ObligationBody, ObligationsAnswer, ObligationsBody, ObligationsTask};
use holdfast_domain::delivery::Obligation;
use holdfast_domain::{Label, ObligationId, Reason, Timestamp};
use holdfast_engine::obligations::{Answered, Count, ObligationStore, Standing, Stored};
use std::pin::Pin;
use std::sync::Arc;

/// Dead letters that are brought back by one request.
const REPLAY_MAX: usize = 10_000;
/// Rows read at once.
const ROWS: usize = 500;

type Answering<'a, T> = Pin<Box<dyn Future<Output = Answered<T>> + Send + 'a>>;

/// Any store of obligations, behind one type.
pub(crate) trait AnyStore: Send + Sync {
    fn put<'a>(&'a self, obligations: &'a [Obligation]) -> Answering<'a, ()>;
    fn get(&self, id: ObligationId) -> Answering<'_, Option<Stored>>;
    fn count(&self) -> Answering<'_, Count>;
    fn list(&self, list: ListBody, after: Option<ObligationId>, limit: usize) -> Answering<'_, Vec<Stored>>;
    fn resolve<'a>(&'a self, id: ObligationId, note: &'a Reason) -> Answering<'a, bool>;
    fn replay(&self, id: ObligationId) -> Answering<'_, bool>;
}

impl<S: ObligationStore> AnyStore for S {
    fn put<'a>(&'a self, obligations: &'a [Obligation]) -> Answering<'a, ()> {
        Box::pin(ObligationStore::put(self, obligations))
    }

    fn get(&self, id: ObligationId) -> Answering<'_, Option<Stored>> {
        Box::pin(ObligationStore::get(self, id))
    }

    fn count(&self) -> Answering<'_, Count> {
        Box::pin(ObligationStore::count(self))
    }

    fn list(&self, list: ListBody, after: Option<ObligationId>, limit: usize) -> Answering<'_, Vec<Stored>> {
        match list {
            ListBody::Pending => Box::pin(self.list_pending(after, limit)),
            ListBody::Dead => Box::pin(self.list_dead(after, limit)),
        }
    }

    fn resolve<'a>(&'a self, id: ObligationId, note: &'a Reason) -> Answering<'a, bool> {
        Box::pin(ObligationStore::resolve(self, id, note))
    }

    fn replay(&self, id: ObligationId) -> Answering<'_, bool> {
        Box::pin(ObligationStore::replay(self, id))
    }
}

/// What delivers, seen from an operator's desk.
#[derive(Clone)]
pub(crate) struct Delivery {
    pub(crate) store: Arc<dyn AnyStore>,
    /// Called when something has become due.
    pub(crate) wake: Arc<dyn Fn() + Send + Sync>,
}

/// What is still to be told, at a glance.
pub(crate) struct Outstanding {
    pub(crate) count: Count,
    /// The oldest of the pending.
    pub(crate) pending: Vec<Stored>,
    /// The oldest dead letters.
    pub(crate) dead: Vec<Stored>,
}

impl Service {
    /// Does what is asked about obligations, in the name of `actor`.
    pub(crate) async fn obligations(&self, body: ObligationsBody, actor: Label) -> Result<ObligationsAnswer, Problem> {
        let task = body.into_task()?;
        let delivery = self.delivery.get().ok_or(DeliveryError::Off)?;
        match task {
            ObligationsTask::List { list, after, at_most } => delivery.list(list, after, at_most).await,
            ObligationsTask::Show(id) => delivery.show(id).await,
            ObligationsTask::Replay(id) => {
                delivery.replay(id).await?;
                terminal::note(&format!("{actor} replays obligation {id}"));
                // It may be delivered already, so where it stands now says little.
                Ok(ObligationsAnswer::Replay { reservation_id: Shown(id), replayed: true })
            }
            ObligationsTask::ReplaySince(since) => {
                let (replayed, more) = delivery.replay_since(since).await?;
                terminal::note(&format!("{actor} replays {replayed} dead letters"));
                Ok(ObligationsAnswer::Replayed { replayed, more })
            }
            ObligationsTask::Resolve(id, note) => {
                delivery.resolve(id, &note).await?;
                terminal::note(&format!("{actor} has resolved obligation {id}: {}", note.as_str()));
                let note = note.as_str().to_owned();
                Ok(ObligationsAnswer::Resolved { reservation_id: Shown(id), resolved: true, note })
            }
            ObligationsTask::Put(obligations) => {
                delivery.store.put(&obligations).await?;
                (delivery.wake)();
                terminal::note(&format!("{actor} imports {} obligations", obligations.len()));
                Ok(ObligationsAnswer::Put { imported: obligations.len() })
            }
        }
    }

    /// What is still to be told, at a glance; `None` if nothing is delivered here.
    pub(crate) async fn outstanding(&self, rows: usize) -> Result<Option<Outstanding>, Problem> {
        let Some(Delivery { store, .. }) = self.delivery.get() else { return Ok(None) };
        let count = store.count().await?;
        let pending = store.list(ListBody::Pending, None, rows).await?;
        let dead = store.list(ListBody::Dead, None, rows).await?;
        Ok(Some(Outstanding { count, pending, dead }))
    }
}

impl Delivery {
    async fn list(
        &self,
        list: ListBody,
        after: Option<ObligationId>,
        at_most: usize,
    ) -> Result<ObligationsAnswer, Problem> {
        let mut found = self.store.list(list, after, at_most + 1).await?;
        let more = found.len() > at_most;
        found.truncate(at_most);
        let next = found.last().filter(|_| more).map(|stored| Shown(stored.obligation.id));
        let obligations = found.iter().map(ObligationBody::from).collect();
        Ok(ObligationsAnswer::Many { obligations, next, count: self.store.count().await?.into() })
    }

    async fn show(&self, id: ObligationId) -> Result<ObligationsAnswer, Problem> {
        let stored = self.store.get(id).await?.ok_or(DeliveryError::Unknown(id))?;
        Ok(ObligationsAnswer::One(Box::new(ObligationBody::from(&stored))))
    }

    async fn replay(&self, id: ObligationId) -> Result<(), Problem> {
        if !self.store.replay(id).await? {
            // Either there is none, or somebody has it in hand.
            return Err(match self.store.get(id).await? {
                None => DeliveryError::Unknown(id).into(),
                Some(_) => DeliveryError::InDelivery(id).into(),
            });
        }
        (self.wake)();
        Ok(())
    }

    /// Brings dead letters of charges back that were made since then; whether there are more.
    async fn replay_since(&self, since: Timestamp) -> Result<(u64, bool), Problem> {
        let (mut found, mut after) = (Vec::new(), None);
        let more = loop {
            let rows = self.store.list(ListBody::Dead, after, ROWS).await?;
            let Some(last) = rows.last() else { break false };
            after = Some(last.obligation.id);
            let ids = rows.iter().filter(|row| row.obligation.created_at >= since).map(|row| row.obligation.id);
            found.extend(ids);
            if found.len() >= REPLAY_MAX {
                break true;
            }
        };
        let mut replayed = 0;
        for id in found {
            // One that somebody else has just brought back or resolved is not counted.
            replayed += u64::from(self.store.replay(id).await?);
        }
        (self.wake)();
        Ok((replayed, more && replayed > 0))
    }

    async fn resolve(&self, id: ObligationId, note: &Reason) -> Result<(), Problem> {
        if self.store.resolve(id, note).await? {
            return Ok(());
        }
        Err(match self.store.get(id).await?.map(|stored| stored.standing) {
            None => DeliveryError::Unknown(id).into(),
            Some(Standing::Due { .. } | Standing::Leased { .. } | Standing::Dead) => DeliveryError::NotDead(id).into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_adapters::SystemClock;
    use holdfast_adapters::obligations::MemoryStore;
    use holdfast_domain::{CreditUnit, Span};
    use holdfast_engine::obligations::Outcome;
    use serde_json::{Value, json};
    use std::sync::atomic::{AtomicU64, Ordering};

    struct Desk {
        delivery: Delivery,
        store: Arc<MemoryStore>,
        woken: Arc<AtomicU64>,
    }

    fn id(number: u64) -> ObligationId {
        format!("chg_{number}").parse().unwrap()
    }

    /// Obligations 1 to 3 are due, 4 to 7 are dead, 8 is in somebody's hands.
    async fn desk() -> Desk {
        let store = Arc::new(MemoryStore::new(Arc::new(SystemClock::start())));
        let obligation = |number: u64| Obligation {
            id: id(number),
            charge: format!("chg_{number}").parse().unwrap(),
            owner: "alice".parse().unwrap(),
            cost: CreditUnit::new(number).unwrap(),
            created_at: Timestamp::from_millis(number * 1_000),
        };
        let put = async |numbers: std::ops::RangeInclusive<u64>| {
            let all: Vec<_> = numbers.map(obligation).collect();
            ObligationStore::put(&*store, &all).await.unwrap();
        };
        let claim = async || store.claim_ready("w".parse().unwrap(), 9, Span::from_secs(60)).await.unwrap();
        put(4..=7).await;
        let dead = claim().await.into_iter();
        let dead: Vec<_> =
            dead.map(|claimed| (claimed.lease, Outcome::Dead { reason: "422".parse().unwrap() })).collect();
        assert_eq!(store.complete(&dead).await.unwrap(), [Ok(()); 4]);
        put(8..=8).await;
        assert_eq!(claim().await.len(), 1);
        put(1..=3).await;
        let woken = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&woken);
        let wake = Arc::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        Desk { delivery: Delivery { store: Arc::clone(&store) as _, wake }, store, woken }
    }

    fn shown(answer: ObligationsAnswer) -> Value {
        serde_json::to_value(answer).unwrap()
    }

    fn code(problem: Problem) -> &'static str {
        problem.code()
    }

    #[tokio::test]
    async fn lists_are_paged_and_say_how_many_there_are() {
        let desk = desk().await;
        let page = shown(desk.delivery.list(ListBody::Dead, None, 3).await.unwrap());
        assert_eq!((&page["pending"], &page["dead"], &page["next"]), (&json!(4), &json!(4), &json!("chg_6")));
        let first = &page["obligations"][0];
        assert_eq!(
            (&first["reservation_id"], &first["state"], &first["reason"]),
            (&json!("chg_4"), &json!("dead"), &json!("422"))
        );
        assert_eq!((&first["amount_cu"], &first["actual_cost_micro"]), (&json!("0.000004"), &json!("4")));
        let rest = shown(desk.delivery.list(ListBody::Dead, Some(id(6)), 3).await.unwrap());
        assert_eq!((rest["obligations"].as_array().unwrap().len(), &rest["next"]), (1, &Value::Null));
        let in_hand = shown(desk.delivery.show(id(8)).await.unwrap());
        assert_eq!((&in_hand["state"], &in_hand["leased_by"]), (&json!("in_delivery"), &json!("w")));
    }

    #[tokio::test]
    async fn what_is_dead_or_waits_is_replayed_and_whoever_delivers_is_told() {
        let Desk { delivery, store, woken } = desk().await;
        delivery.replay(id(4)).await.unwrap();
        delivery.replay(id(1)).await.unwrap();
        assert_eq!(woken.load(Ordering::Relaxed), 2);
        assert_eq!(code(delivery.replay(id(8)).await.unwrap_err()), "OBLIGATION_IN_DELIVERY");
        assert_eq!(code(delivery.replay(id(9)).await.unwrap_err()), "OBLIGATION_NOT_FOUND");
        assert_eq!(delivery.replay_since(Timestamp::from_millis(6_000)).await.unwrap(), (2, false));
        assert_eq!(ObligationStore::count(&*store).await.unwrap(), Count { pending: 7, dead: 1 });
        assert_eq!(delivery.replay_since(Timestamp::EPOCH).await.unwrap(), (1, false));
        assert_eq!(delivery.replay_since(Timestamp::EPOCH).await.unwrap(), (0, false));
    }

    #[tokio::test]
    async fn only_a_dead_letter_is_resolved_and_only_once() {
        let Desk { delivery, store, .. } = desk().await;
        let note = "paid by hand".parse().unwrap();
        delivery.resolve(id(4), &note).await.unwrap();
        assert_eq!(code(delivery.resolve(id(4), &note).await.unwrap_err()), "OBLIGATION_NOT_FOUND");
        for pending in [1, 8] {
            assert_eq!(code(delivery.resolve(id(pending), &note).await.unwrap_err()), "OBLIGATION_NOT_DEAD");
        }
        assert_eq!(ObligationStore::count(&*store).await.unwrap(), Count { pending: 4, dead: 3 });
    }
}
