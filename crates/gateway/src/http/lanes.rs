//! The threads that serve connections: one for each core, each with a runtime of its own.
//!
//! A request stays on the thread of its connection from its first byte to its last, and so does the provider's connection that
//! answers it. On threads that share their tasks each step of it (the hold, the provider's answer, the charge) would wake
//! another thread, which costs more than the step. Answers of the engine, which come from other threads, come by mail (`mail.rs`), and
//! what a lane asks of it goes there together (`books/gather.rs`).
//!
//! # Invariants
//! - What is begun on a lane outlives its connection, and ends with the lane: lanes are stopped last.

use super::mail::Mailbox;
use crate::books::gather;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::runtime::{Builder, Handle};
use tokio::sync::watch;

/// All lanes.
pub(crate) struct Lanes {
    lanes: Vec<Lane>,
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
}

/// One of them.
pub(super) struct Lane {
    pub(super) handle: Handle,
    /// One for each of its connections, and one more.
    pub(super) load: Arc<()>,
}

impl Lanes {
    /// Starts as many as there are cores. Whatever waits for a file in them waits on so many threads at the most.
    pub(crate) fn start(blocking_threads_max: usize, stop_within: Duration) -> io::Result<Self> {
        let count = thread::available_parallelism().map_or(1, usize::from);
        let (stop, stopped) = watch::channel(false);
        let mut started = Self { lanes: Vec::new(), stop, threads: Vec::new() };
        for number in 0..count {
            let runtime =
                Builder::new_current_thread().enable_all().max_blocking_threads(blocking_threads_max).build()?;
            started.lanes.push(Lane { handle: runtime.handle().clone(), load: Arc::new(()) });
            let mut stopped = stopped.clone();
            let run = move || {
                let mailbox = Mailbox::new(number);
                mailbox.open();
                // Both may safely die: they end with their lane.
                drop(runtime.spawn(mailbox.carry()));
                drop(runtime.spawn(gather::carry()));
                // If nobody can tell any more, the server is going down too.
                let _told = runtime.block_on(stopped.wait_for(|stopped| *stopped)).is_ok();
                runtime.shutdown_timeout(stop_within);
            };
            started.threads.push(thread::Builder::new().name(format!("lane-{number}")).spawn(run)?);
        }
        Ok(started)
    }

    /// The one with the fewest connections.
    pub(super) fn least_busy(&self) -> Option<&Lane> {
        self.lanes.iter().min_by_key(|lane| Arc::strong_count(&lane.load))
    }

    /// Stops them. What is still running there is dropped.
    pub(crate) fn stop(self) {
        // They may have gone already.
        let _gone = self.stop.send(true).is_err();
        for thread in self.threads {
            let _panicked = thread.join().is_err();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_with_the_fewest_connections_is_next_and_all_that_runs_is_dropped_at_the_end() {
        let lanes = Lanes::start(1, Duration::from_secs(1)).unwrap();
        let mut loads = Vec::new();
        for _ in 0..lanes.lanes.len() * 2 {
            loads.push(Arc::clone(&lanes.least_busy().unwrap().load));
        }
        assert!(lanes.lanes.iter().all(|lane| Arc::strong_count(&lane.load) == 3), "two each");
        let held = Arc::new(());
        let (running, handle) = (Arc::clone(&held), lanes.least_busy().unwrap().handle.clone());
        let (begun, has_begun) = std::sync::mpsc::channel();
        handle.spawn(async move {
            begun.send(thread::current().name().map(str::to_owned)).unwrap();
            std::future::pending::<()>().await;
            drop(running);
        });
        assert!(has_begun.recv().unwrap().unwrap().starts_with("lane-"));
        lanes.stop();
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
