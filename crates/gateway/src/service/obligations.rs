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
use holdfast_domain::{Label, ObligationId, Reason, Timestamp};
use holdfast_engine::dispatcher::Bell;
use holdfast_engine::obligations::{Count, ObligationStore, Stored};

/// Dead letters that are brought back by one request.
const REPLAY_MAX: usize = 10_000;
/// Rows read at once.
const ROWS: usize = 500;

/// Where an operator acts on what is owed.
struct Desk<'a, S> {
    store: &'a S,
    /// Wakes whoever delivers.
    bell: &'a Bell,
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
        let settlement = self.settlement().ok_or(DeliveryError::Off)?;
        let desk = Desk { store: &*settlement.store, bell: &settlement.due };
        match task {
            ObligationsTask::List { list, after, at_most } => desk.list(list, after, at_most).await,
            ObligationsTask::Show(id) => desk.show(id).await,
            ObligationsTask::Replay(id) => {
                desk.replay(id).await?;
                terminal::note(&format!("{actor} replays obligation {id}"));
                // It may be delivered already, so where it stands now says little.
                Ok(ObligationsAnswer::Replay { reservation_id: Shown(id), replayed: true })
            }
            ObligationsTask::ReplaySince(since) => {
                let (replayed, more) = desk.replay_since(since).await?;
                terminal::note(&format!("{actor} replays {replayed} dead letters"));
                Ok(ObligationsAnswer::Replayed { replayed, more })
            }
            ObligationsTask::Resolve(id, note) => {
                desk.resolve(id, &note).await?;
                terminal::note(&format!("{actor} has resolved obligation {id}: {}", note.as_str()));
                let note = note.as_str().to_owned();
                Ok(ObligationsAnswer::Resolved { reservation_id: Shown(id), resolved: true, note })
            }
            ObligationsTask::Put(obligations) => {
                desk.store.put(&obligations).await?;
                desk.bell.ring();
                terminal::note(&format!("{actor} imports {} obligations", obligations.len()));
                Ok(ObligationsAnswer::Put { imported: obligations.len() })
            }
        }
    }

    /// What is still to be told, at a glance; `None` if nothing is delivered here.
    pub(crate) async fn outstanding(&self, rows: usize) -> Result<Option<Outstanding>, Problem> {
        let Some(settlement) = self.settlement() else { return Ok(None) };
        let store = &settlement.store;
        let count = store.count().await?;
        let pending = store.list_pending(None, rows).await?;
        let dead = store.list_dead(None, rows).await?;
        Ok(Some(Outstanding { count, pending, dead }))
    }
}

impl<S: ObligationStore> Desk<'_, S> {
    async fn list(
        &self,
        list: ListBody,
        after: Option<ObligationId>,
        at_most: usize,
    ) -> Result<ObligationsAnswer, Problem> {
        let mut found = match list {
            ListBody::Pending => self.store.list_pending(after, at_most + 1).await?,
            ListBody::Dead => self.store.list_dead(after, at_most + 1).await?,
        };
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
        self.bell.ring();
        Ok(())
    }

    /// Brings dead letters of charges back that were made since then; whether there are more.
    async fn replay_since(&self, since: Timestamp) -> Result<(u64, bool), Problem> {
        let (mut found, mut after) = (Vec::new(), None);
        let more = loop {
            let rows = self.store.list_dead(after, ROWS).await?;
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
        self.bell.ring();
        Ok((replayed, more && replayed > 0))
    }

    async fn resolve(&self, id: ObligationId, note: &Reason) -> Result<(), Problem> {
        if self.store.resolve(id, note).await? {
            return Ok(());
        }
        Err(match self.store.get(id).await? {
            None => DeliveryError::Unknown(id).into(),
            Some(_) => DeliveryError::NotDead(id).into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_adapters::SystemClock;
    use holdfast_adapters::obligations::MemoryStore;
    use holdfast_domain::delivery::Obligation;
    use holdfast_domain::{CreditUnit, Span};
    use holdfast_engine::obligations::Outcome;
    use serde_json::{Value, json};
    use std::future::Future;
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Waker};

    struct Site {
        store: MemoryStore,
        bell: Bell,
    }

    impl Site {
        fn desk(&self) -> Desk<'_, MemoryStore> {
            Desk { store: &self.store, bell: &self.bell }
        }

        /// Whether whoever delivers was woken since this was last asked.
        fn was_woken(&self) -> bool {
            pin!(self.bell.rung()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
        }
    }

    fn id(number: u64) -> ObligationId {
        format!("chg_{number}").parse().unwrap()
    }

    /// Obligations 1 to 3 are due, 4 to 7 are dead, 8 is in somebody's hands.
    async fn site() -> Site {
        let store = MemoryStore::new(Arc::new(SystemClock::start()));
        let obligation = |number: u64| Obligation {
            id: id(number),
            charge: format!("chg_{number}").parse().unwrap(),
            owner: "alice".parse().unwrap(),
            cost: CreditUnit::new(number).unwrap(),
            created_at: Timestamp::from_millis(number * 1_000),
        };
        let put = async |numbers: std::ops::RangeInclusive<u64>| {
            let all: Vec<_> = numbers.map(obligation).collect();
            store.put(&all).await.unwrap();
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
        Site { store, bell: Bell::default() }
    }

    fn shown(answer: ObligationsAnswer) -> Value {
        serde_json::to_value(answer).unwrap()
    }

    fn code(problem: Problem) -> &'static str {
        problem.code()
    }

    #[tokio::test]
    async fn lists_are_paged_and_say_how_many_there_are() {
        let site = site().await;
        let desk = site.desk();
        let page = shown(desk.list(ListBody::Dead, None, 3).await.unwrap());
        assert_eq!((&page["pending"], &page["dead"], &page["next"]), (&json!(4), &json!(4), &json!("chg_6")));
        let first = &page["obligations"][0];
        assert_eq!(
            (&first["reservation_id"], &first["state"], &first["reason"]),
            (&json!("chg_4"), &json!("dead"), &json!("422"))
        );
        assert_eq!((&first["amount_cu"], &first["actual_cost_micro"]), (&json!("0.000004"), &json!("4")));
        let rest = shown(desk.list(ListBody::Dead, Some(id(6)), 3).await.unwrap());
        assert_eq!((rest["obligations"].as_array().unwrap().len(), &rest["next"]), (1, &Value::Null));
        let in_hand = shown(desk.show(id(8)).await.unwrap());
        assert_eq!((&in_hand["state"], &in_hand["leased_by"]), (&json!("in_delivery"), &json!("w")));
    }

    #[tokio::test]
    async fn what_is_dead_or_waits_is_replayed_and_whoever_delivers_is_told() {
        let site = site().await;
        let desk = site.desk();
        desk.replay(id(4)).await.unwrap();
        desk.replay(id(1)).await.unwrap();
        assert!(site.was_woken());
        assert_eq!(code(desk.replay(id(8)).await.unwrap_err()), "OBLIGATION_IN_DELIVERY");
        assert_eq!(code(desk.replay(id(9)).await.unwrap_err()), "OBLIGATION_NOT_FOUND");
        assert_eq!(desk.replay_since(Timestamp::from_millis(6_000)).await.unwrap(), (2, false));
        assert_eq!(site.store.count().await.unwrap(), Count { pending: 7, dead: 1 });
        assert_eq!(desk.replay_since(Timestamp::EPOCH).await.unwrap(), (1, false));
        assert_eq!(desk.replay_since(Timestamp::EPOCH).await.unwrap(), (0, false));
    }

    #[tokio::test]
    async fn only_a_dead_letter_is_resolved_and_only_once() {
        let site = site().await;
        let desk = site.desk();
        let note = "paid by hand".parse().unwrap();
        desk.resolve(id(4), &note).await.unwrap();
        assert_eq!(code(desk.resolve(id(4), &note).await.unwrap_err()), "OBLIGATION_NOT_FOUND");
        for pending in [1, 8] {
            assert_eq!(code(desk.resolve(id(pending), &note).await.unwrap_err()), "OBLIGATION_NOT_DEAD");
        }
        assert_eq!(site.store.count().await.unwrap(), Count { pending: 4, dead: 3 });
    }
}
