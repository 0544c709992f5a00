//! Escrows that are held and that nobody has taken in: found, and given back by an operator's word.

use super::{Ended, Mismatch, PurseFailed, Queue, QueueError, unavailable};
use crate::wallet::{EscrowSeen, WalletFailed};
use crate::wire::ids;
use holdfast_domain::queue::{self, Cause, Intake, Verdict};
use holdfast_domain::{EscrowId, ItemId, Label, PayeeId};
use holdfast_engine::Clock;
use holdfast_engine::Refusal;
use holdfast_engine::queue::{Put, QueueStore};
use std::collections::HashSet;
use std::sync::Arc;

/// How many held escrows are read at once.
const PAGE: usize = 500;
/// The payee of an item that is there to be given up only.
const NOBODY: &str = "nobody";

/// A part of the orphans.
pub(crate) struct Orphans {
    pub(crate) orphans: Vec<EscrowSeen>,
    /// Where to go on; `None` at the end.
    pub(crate) next: Option<EscrowId>,
}

impl Queue {
    /// Escrows after `after`, by name, that have been held for too long without an item: at most so many of them, found among so
    /// many held ones.
    pub(crate) async fn orphans(
        &self,
        after: Option<EscrowId>,
        at_most: usize,
        looked_max: usize,
    ) -> Result<Orphans, QueueError> {
        let (mut found, mut next, mut looked) = (Vec::new(), after, 0);
        while looked < looked_max {
            let page = self.purse.held(next, PAGE).await?;
            let is_last = page.len() < PAGE;
            looked += page.len();
            let end = page.last().map(|seen| seen.id);
            for orphan in self.orphans_of(page).await? {
                if found.len() == at_most {
                    let last = found.last().map(|seen: &EscrowSeen| seen.id);
                    return Ok(Orphans { orphans: found, next: last });
                }
                found.push(orphan);
            }
            if is_last {
                return Ok(Orphans { orphans: found, next: None });
            }
            next = end;
        }
        Ok(Orphans { orphans: found, next })
    }

    /// Those of some held escrows that are old enough and that no item has.
    async fn orphans_of(&self, mut held: Vec<EscrowSeen>) -> Result<Vec<EscrowSeen>, QueueError> {
        let now = self.clock.now();
        held.retain(|seen| seen.escrowed.held_at.after(self.orphan_after) <= now);
        if held.is_empty() {
            return Ok(held);
        }
        let ids = held.iter().map(|seen| seen.id).collect();
        let linked: HashSet<EscrowId> = self.store.linked(ids).await.map_err(unavailable)?.into_iter().collect();
        held.retain(|seen| !linked.contains(&seen.id));
        Ok(held)
    }

    /// Gives an escrow back that no item has, on an operator's word: it is taken in, so that nobody else can take it in any more,
    /// and given up at once, by the same signed word as every other.
    pub(crate) async fn refund_orphan(self: &Arc<Self>, escrow: EscrowId, actor: Label) -> Result<Ended, QueueError> {
        let refused = |mismatch| QueueError::Linkage { escrow, mismatch };
        let unknown = || PurseFailed::from(WalletFailed::Refused(Refusal::UnknownEscrow));
        let seen = self.purse.escrow(escrow).await?.ok_or_else(unknown)?;
        let payee: PayeeId = NOBODY.parse().expect("a plain word");
        let intake = Intake {
            id: orphan_id(escrow),
            user: seen.owner,
            payee,
            escrow,
            amount: seen.escrowed.amount,
            feature: seen.escrowed.feature,
            priority: 0,
            metadata: None,
        };
        let id = intake.id;
        let known = self.store.item(id).await.map_err(unavailable)?;
        if seen.end.is_some() && known.is_none() {
            return Err(refused(Mismatch::NotHeld(seen.state())));
        }
        let put = self.store.put(queue::enqueue(intake, self.clock.now(), None)).await;
        let (Put::New(_) | Put::Known(_)) = put.map_err(|failed| QueueError::of_store(id, escrow, failed))?;
        self.end(id, Verdict::Abandon { cause: Cause::AdminCancelled }, actor).await
    }
}

/// The item of an orphan: always the same, so that it can be given back once only.
fn orphan_id(escrow: EscrowId) -> ItemId {
    ids::of_hash("qi_", &blake3::derive_key("holdfast 2026-11 item of an orphaned escrow", escrow.as_bytes()))
}
