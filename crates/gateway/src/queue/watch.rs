//! What operators are told of the queue without asking: how many items there are, how old they are, and which escrows nobody
//! has taken in.

use super::Queue;
use crate::terminal;
use holdfast_domain::EscrowId;
use holdfast_engine::Clock;
use holdfast_engine::queue::QueueStore;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How often it is looked.
const EVERY: Duration = Duration::from_secs(30);
/// How many held escrows are looked at each time; the next time goes on from there.
const LOOKED_MAX: usize = 10_000;

/// A walk over all held escrows, which may take several looks.
#[derive(Default)]
struct Walk {
    after: Option<EscrowId>,
    orphans: usize,
}

/// Looks until `stopping`.
pub(super) async fn run(queue: Arc<Queue>, mut stopping: watch::Receiver<bool>) {
    let mut ticks = tokio::time::interval(EVERY);
    let (mut walk, mut told) = (Walk::default(), 0);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = stopping.wait_for(|stopping| *stopping) => return,
        }
        if let Ok(counts) = queue.store.counts().await {
            queue.numbers.counted(&counts, queue.clock.now());
        }
        // A wallet or a store that does not answer is told of by whoever needs its answer; the walk goes on later.
        let Ok(looked) = queue.orphans(walk.after, LOOKED_MAX, LOOKED_MAX).await else { continue };
        walk.orphans = walk.orphans.saturating_add(looked.orphans.len());
        walk.after = looked.next;
        if looked.next.is_none() {
            let found = std::mem::take(&mut walk).orphans;
            queue.numbers.orphaned(found);
            if found != told {
                told = found;
                terminal::note(&format!("{found} escrows are held without a queue item: `holdfast escrows orphans`"));
            }
        }
    }
}
