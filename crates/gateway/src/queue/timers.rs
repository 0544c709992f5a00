//! The rope drop: whoever nobody took up in time is given up, and gets the money back.
//!
//! It sleeps until the next item's time, or until an item comes whose time is sooner; it never polls. Several nodes may drop
//! the same item: it is the same word to the wallet, which does it once.

use super::Queue;
use crate::terminal;
use holdfast_domain::queue::{Item, Stage};
use holdfast_domain::{Span, Timestamp};
use holdfast_engine::Clock;
use holdfast_engine::dispatcher::Bell;
use holdfast_engine::queue::QueueStore;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// How many are dropped before it is looked again.
const AT_ONCE: usize = 1_000;
/// The longest sleep: the clock may be set, and another node may have died with the item's timer.
const SLEEP_MAX: Duration = Duration::from_secs(60);
/// How long it waits when the wallet or the store does not answer; twice as long each time.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// How long after its time an item is dropped: a start that was decided just before has that long to be written.
const GRACE: Span = Span::from_millis(250);
/// Later than every item's time.
const END_OF_TIME: Timestamp = Timestamp::from_millis(1 << 62);

/// When it wakes next, and a bell for whoever knows of an earlier time.
pub(super) struct Alarm {
    /// In milliseconds. The end of time while it looks: whatever comes meanwhile rings.
    at: AtomicU64,
    bell: Bell,
}

impl Default for Alarm {
    fn default() -> Self {
        Self { at: AtomicU64::new(u64::MAX), bell: Bell::default() }
    }
}

impl Alarm {
    /// Wakes it if it would sleep too long for a new item.
    pub(super) fn set_for(&self, item: &Item) {
        if drop_at(item).is_some_and(|at| at.millis() < self.at.load(Ordering::SeqCst)) {
            self.bell.ring();
        }
    }

    fn forget(&self) {
        self.at.store(u64::MAX, Ordering::SeqCst);
    }
}

fn drop_at(item: &Item) -> Option<Timestamp> {
    match item.stage {
        Stage::Queued { drop_at } => drop_at,
        Stage::InProgress { .. } | Stage::Ended(_) => None,
    }
}

/// Drops what is overdue until `stopping`.
pub(super) async fn run(queue: Arc<Queue>, mut stopping: watch::Receiver<bool>) {
    let mut pause = PAUSE_MIN;
    loop {
        let sleep = match drop_overdue(&queue).await {
            Ok(next) => {
                pause = PAUSE_MIN;
                next
            }
            Err(why) => {
                terminal::note(&format!("overdue queue items wait: {why}"));
                let waited = pause;
                pause = (pause * 2).min(PAUSE_MAX);
                waited
            }
        };
        tokio::select! {
            () = tokio::time::sleep(sleep) => {}
            () = queue.alarm.bell.rung() => {}
            _ = stopping.wait_for(|stopping| *stopping) => return,
        }
    }
}

/// Drops what is overdue; how long it is until the next time.
async fn drop_overdue(queue: &Arc<Queue>) -> Result<Duration, String> {
    queue.alarm.forget();
    loop {
        let before = Timestamp::from_millis(queue.clock.now().millis().saturating_sub(GRACE.millis()));
        let overdue = queue.store.overdue(before, AT_ONCE).await.map_err(|failed| failed.to_string())?;
        if overdue.is_empty() {
            return next_in(queue).await;
        }
        let mut failed = None;
        for item in overdue {
            failed = queue.drop_overdue(item.intake.id).await.err().or(failed);
        }
        if let Some(error) = failed {
            return Err(error.to_string());
        }
    }
}

/// How long it is until the next item is to be dropped.
async fn next_in(queue: &Queue) -> Result<Duration, String> {
    let next = queue.store.overdue(END_OF_TIME, 1).await.map_err(|failed| failed.to_string())?;
    let now = queue.clock.now().millis();
    let latest = now.saturating_add(u64::try_from(SLEEP_MAX.as_millis()).unwrap_or(u64::MAX));
    let at = next.first().and_then(drop_at).map_or(latest, |at| at.after(GRACE).millis().min(latest));
    queue.alarm.at.store(at, Ordering::SeqCst);
    Ok(Duration::from_millis(at.saturating_sub(now)))
}
