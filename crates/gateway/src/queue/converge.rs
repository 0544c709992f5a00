//! Items and escrows that a crash left apart: an item that has not ended is compared with its escrow, and ends as that did.
//!
//! # Invariants
//! - Nothing here moves money: the escrow has ended already, and the item follows.

use super::{Queue, QueueError, unavailable};
use crate::terminal;
use futures_util::{StreamExt, stream};
use holdfast_domain::escrow::Escrow;
use holdfast_domain::queue::{Item, Stage};
use holdfast_engine::queue::{Filter, QueueFailed, QueueStore};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How many items are read at once.
const PAGE: usize = 500;
/// How many pages are read at most: what is beyond is compared the next time, or before it is used.
const PAGES_MAX: usize = 10_000;
/// How many of them are compared at once.
const AT_ONCE: usize = 32;
/// How often all of them are compared, where another process may have ended an escrow.
const EVERY: Duration = Duration::from_secs(5 * 60);
/// How long it waits for a wallet or a store that does not answer.
const PAUSE: Duration = Duration::from_secs(2);

/// Compares all items once, and then again and again where others work on the same, until `stopping`.
pub(super) async fn run(queue: Arc<Queue>, mut stopping: watch::Receiver<bool>) {
    let mut sleep = if queue.is_alone() { EVERY } else { Duration::ZERO };
    loop {
        tokio::select! {
            () = tokio::time::sleep(sleep) => {}
            _ = stopping.wait_for(|stopping| *stopping) => return,
        }
        if queue.is_alone() {
            continue;
        }
        sleep = match queue.converge_all().await {
            Ok(converged) => {
                tell(converged);
                EVERY
            }
            Err(error) => {
                terminal::note(&format!("queue items are not yet compared with their escrows: {error}"));
                PAUSE
            }
        };
    }
}

/// Says how many items followed their escrows.
pub(super) fn tell(converged: usize) {
    if converged > 0 {
        terminal::note(&format!("ended {converged} queue items whose escrows had ended"));
    }
}

impl Queue {
    /// Whether no other process can end an escrow or an item unseen: what the start has compared stays so.
    pub(super) const fn is_alone(&self) -> bool {
        self.store.is_ours_alone() && self.purse.is_here()
    }

    /// Compares every item that has not ended with its escrow, before anything is answered; how many have ended.
    pub(crate) async fn converge_at_start(&self) -> Result<(), QueueError> {
        // Others are waited for in the background: this one must not wait for a process that waits for it.
        if self.is_alone() {
            tell(self.converge_all().await?);
        }
        Ok(())
    }

    /// Compares every item that has not ended with its escrow; how many have ended.
    async fn converge_all(&self) -> Result<usize, QueueError> {
        let (mut converged, mut after) = (0, None);
        for _ in 0..PAGES_MAX {
            let page = self.store.list(Filter { after, ..Filter::default() }, PAGE).await.map_err(unavailable)?;
            let is_last = page.len() < PAGE;
            after = page.last().map(|item| item.intake.id);
            let compared = stream::iter(page).map(|item| async move { self.converge(&item).await }).buffered(AT_ONCE);
            let compared: Vec<Result<Option<Item>, QueueError>> = compared.collect().await;
            for ended in compared.into_iter().filter_map(Result::transpose) {
                self.numbers.ended(&ended?);
                converged += 1;
            }
            if is_last {
                break;
            }
        }
        Ok(converged)
    }

    /// The item as its escrow has it, or as it is if the wallet does not say.
    pub(super) async fn converged(&self, item: Item) -> Item {
        match self.converge(&item).await {
            Ok(Some(ended)) => ended,
            Ok(None) | Err(_) => item,
        }
    }

    /// Has an item follow its escrow; `None` if there is nothing to follow.
    pub(super) async fn converge(&self, item: &Item) -> Result<Option<Item>, QueueError> {
        if item.state().is_end() {
            return Ok(None);
        }
        let (id, escrow) = (item.intake.id, item.intake.escrow);
        if let Some((Escrow::Held(_), _)) = self.purse.standing(escrow).await? {
            return Ok(None);
        }
        let Some(end) = self.purse.escrow(escrow).await?.and_then(|seen| seen.end) else { return Ok(None) };
        let Some(ended) = item.ended_as(&end.event, end.ruling, end.at) else { return Ok(None) };
        let Stage::Ended(as_it_did) = ended.stage else { return Ok(None) };
        let of_store = |failed| QueueError::of_store(id, escrow, failed);
        match self.store.end(id, as_it_did.verdict, end.at).await {
            Ok(item) => Ok(Some(item)),
            // Another was faster: it has ended, and that is how.
            Err(QueueFailed::Refused(_)) => Ok(self.store.item(id).await.map_err(unavailable)?),
            Err(failed) => Err(of_store(failed)),
        }
    }
}
