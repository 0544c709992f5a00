//! How many calls to one provider run at once, and how many wait for their turn.

use super::error::{ProviderError, Stage};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Duration, Instant, timeout_at};

/// The gate of one provider.
#[derive(Debug)]
pub(crate) struct Gate {
    places: Arc<Semaphore>,
    waiting: AtomicUsize,
    waiting_max: usize,
    wait_max: Duration,
}

/// Counts one who waits, also if it goes away.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Gate {
    pub(crate) fn new(running_max: usize, waiting_max: usize, wait_max: Duration) -> Self {
        let places = Arc::new(Semaphore::new(running_max.min(Semaphore::MAX_PERMITS)));
        Self { places, waiting: AtomicUsize::new(0), waiting_max, wait_max }
    }

    /// A place, kept for as long as the permit lives.
    pub(crate) async fn enter(&self, deadline: Option<Instant>) -> Result<OwnedSemaphorePermit, ProviderError> {
        if let Ok(permit) = Arc::clone(&self.places).try_acquire_owned() {
            return Ok(permit);
        }
        let _waiting = match self.waiting.fetch_add(1, Ordering::Relaxed) {
            before if before >= self.waiting_max => {
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                return Err(ProviderError::Overloaded);
            }
            _ => Waiting(&self.waiting),
        };
        let until = Instant::now() + self.wait_max;
        let due = deadline.filter(|deadline| *deadline < until);
        match timeout_at(due.unwrap_or(until), Arc::clone(&self.places).acquire_owned()).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) => Err(ProviderError::Overloaded),
            Err(_) if due.is_some() => Err(ProviderError::TimedOut(Stage::Deadline)),
            Err(_) => Err(ProviderError::Overloaded),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_waits_its_turn_one_more_is_turned_away_and_a_place_comes_back() {
        let gate = Arc::new(Gate::new(1, 1, Duration::from_secs(60)));
        let first = gate.enter(None).await.unwrap();
        let second = tokio::spawn({
            let gate = Arc::clone(&gate);
            async move { gate.enter(None).await }
        });
        while gate.waiting.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(gate.enter(None).await.unwrap_err(), ProviderError::Overloaded);
        drop(first);
        let second = second.await.unwrap().unwrap();
        assert_eq!(gate.waiting.load(Ordering::Relaxed), 0);
        let due = Some(Instant::now() + Duration::from_secs(1));
        assert_eq!(gate.enter(due).await.unwrap_err(), ProviderError::TimedOut(Stage::Deadline));
        assert_eq!(
            gate.enter(None).await.unwrap_err(),
            ProviderError::Overloaded,
            "after waiting for as long as one may"
        );
        drop(second);
        assert!(gate.enter(None).await.is_ok());
    }
}
