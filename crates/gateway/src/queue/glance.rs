//! The queue at a glance, for whoever operates it.

use super::{Orphans, Queue, QueueError, unavailable};
use holdfast_domain::Timestamp;
use holdfast_domain::queue::{Item, Stage, State};
use holdfast_engine::queue::{Counts, Filter, QueueStore};
use std::cmp::Reverse;

/// Held escrows that are looked at for a glance.
const LOOKED_MAX: usize = 2_000;

/// What there is, some rows of each.
pub(crate) struct Glance {
    pub(crate) counts: Counts,
    /// Items that have not ended, the next first.
    pub(crate) open: Vec<Item>,
    /// Items that have, the last to end first.
    pub(crate) ended: Vec<Item>,
    /// Escrows that no item has, among the first that are held; or why the wallet does not say.
    pub(crate) orphans: Result<Orphans, QueueError>,
}

impl Queue {
    /// Looks at so many rows of each.
    pub(crate) async fn glance(&self, rows: usize) -> Result<Glance, QueueError> {
        let counts = self.store.counts().await.map_err(unavailable)?;
        let open = self.list(Filter::default(), rows).await?;
        let mut ended = Vec::new();
        for state in State::ALL.into_iter().filter(|state| state.is_end()) {
            ended.extend(self.list(Filter { state: Some(state), ..Filter::default() }, rows).await?);
        }
        ended.sort_by_key(|item| Reverse(ended_at(item)));
        ended.truncate(rows);
        Ok(Glance { counts, open, ended, orphans: self.orphans(None, rows, LOOKED_MAX).await })
    }
}

/// When it ended, if it has.
const fn ended_at(item: &Item) -> Option<Timestamp> {
    match item.stage {
        Stage::Queued { .. } | Stage::InProgress { .. } => None,
        Stage::Ended(end) => Some(end.ended_at),
    }
}
