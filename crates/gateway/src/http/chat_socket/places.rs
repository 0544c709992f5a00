//! How many conversations there may be at once. A connection that speaks WebSocket is no longer counted by the server.

use crate::http::error::ApiError;
use crate::http::limits::Limited;
use holdfast_domain::Label;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio_util::task::TaskTracker;

/// One key has at most so large a part of all places.
const PART_OF_ONE_KEY: usize = 8;
/// A place becomes free when somebody leaves; this is when it is worth while to ask again.
const ASK_AGAIN_S: u64 = 5;

/// The places of a server.
pub(crate) struct Places {
    taken: Arc<Mutex<HashMap<Label, usize>>>,
    most: usize,
    /// Every conversation, so that the server can wait for their ends.
    pub(super) tasks: TaskTracker,
}

/// A taken place. Free again when it is dropped.
pub(super) struct Place {
    taken: Arc<Mutex<HashMap<Label, usize>>>,
    key: Label,
}

impl Places {
    pub(crate) fn new(most: usize) -> Self {
        Self { taken: Arc::default(), most, tasks: TaskTracker::new() }
    }

    /// Takes a place for a key.
    pub(super) fn take(&self, key: Label) -> Result<Place, ApiError> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = taken.values().sum();
        let own = taken.get(&key).copied().unwrap_or(0);
        let own_most = (self.most / PART_OF_ONE_KEY).max(1);
        if all >= self.most || own >= own_most {
            let limit = u32::try_from(own_most).unwrap_or(u32::MAX);
            return Err(ApiError::RateLimited(Limited { limit, retry_after_s: ASK_AGAIN_S }));
        }
        taken.insert(key, own + 1);
        Ok(Place { taken: Arc::clone(&self.taken), key })
    }

    /// Waits until every conversation has been closed, for a while.
    pub(crate) async fn finished(&self, at_most: Duration) {
        self.tasks.close();
        // Those who are not done in time are left; what was asked is charged all the same.
        let _in_time = tokio::time::timeout(at_most, self.tasks.wait()).await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = taken.get_mut(&self.key) {
            *own = own.saturating_sub(1);
            if *own == 0 {
                taken.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_key_cannot_take_every_place_and_a_place_is_free_again() {
        let places = Places::new(16);
        let (one, two) = ("key_1".parse().unwrap(), "key_2".parse().unwrap());
        let mut held = vec![places.take(one).unwrap(), places.take(one).unwrap()];
        assert!(places.take(one).is_err());
        held.push(places.take(two).unwrap());
        drop(held.remove(0));
        assert!(places.take(one).is_ok());
        drop(held);
        assert!(places.taken.lock().unwrap().is_empty(), "nobody who has left is remembered");
    }
}
