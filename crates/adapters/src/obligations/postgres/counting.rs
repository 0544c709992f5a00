//! How many there are. PostgreSQL counts one by one, which takes some 100 ms for a million, and those who ask wait for less.
//!
//! # Invariants
//! - A count runs to its end though whoever asked has gone, and one at a time: a health check that gives up leaves no broken
//!   connection behind, and many of them no queue.
//! - What was counted is told again only if it was many, and then is not older than [`GOOD_FOR`], or is counted anew meanwhile.

use super::failed;
use super::rows::column;
use crate::postgres::Pool;
use holdfast_engine::obligations::{Answered, Count, StoreFailed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// So many are counted while somebody waits.
const FEW: u64 = 100_000;
/// For so long a count of more is good.
const GOOD_FOR: Duration = Duration::from_secs(5);
/// For so long it is told while it is counted anew.
const TOLD_FOR: Duration = Duration::from_secs(60);

const COUNT: &str = "SELECT pending, dead FROM holdfast.count_outbox()";

#[derive(Default)]
pub(super) struct Counting {
    last: Arc<Mutex<Option<(Count, Instant)>>>,
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Counting {
    pub(super) async fn count(&self, pool: &Arc<Pool>) -> Answered<Count> {
        let last = *lock(&self.last);
        let many = last.filter(|(count, at)| count.pending > FEW && at.elapsed() < TOLD_FOR);
        let Some((count, at)) = many else { return self.begin(pool).await.unwrap_or_else(|error| ended(&error)) };
        if at.elapsed() >= GOOD_FOR && self.turn.try_lock().is_ok() {
            // May safely die: the next one counts.
            drop(self.begin(pool));
        }
        Ok(count)
    }

    /// Counts, whoever waits for it.
    fn begin(&self, pool: &Arc<Pool>) -> tokio::task::JoinHandle<Answered<Count>> {
        let (pool, last, turn) = (Arc::clone(pool), Arc::clone(&self.last), Arc::clone(&self.turn));
        // May safely die: it changes nothing.
        tokio::spawn(async move {
            let asked = Instant::now();
            let _turn = turn.lock().await;
            // Somebody has counted while this one waited for its turn.
            if let Some((count, _)) = lock(&last).filter(|(_, at)| *at > asked) {
                return Ok(count);
            }
            let began = Instant::now();
            let rows = async { pool.lend().await?.query(COUNT, &[]).await };
            let rows = rows.await.map_err(|error| failed(&error))?;
            let row = rows.first().ok_or_else(|| StoreFailed("postgres did not count".to_owned()))?;
            let number = |index| column::<i64>(row, index).map(i64::unsigned_abs);
            let count = Count { pending: number(0)?, dead: number(1)? };
            *lock(&last) = Some((count, began));
            Ok(count)
        })
    }
}

fn ended(error: &tokio::task::JoinError) -> Answered<Count> {
    Err(StoreFailed(format!("counting was ended: {error}")))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
