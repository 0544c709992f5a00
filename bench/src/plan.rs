//! How long a benchmark runs, where its files go, and when to give up.

use crate::error::BenchError;
use crate::sandbox::Sandbox;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How thorough a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// For figures worth quoting.
    Full,
    /// For a look: the whole benchmark ends within a minute.
    Quick,
}

impl Pace {
    /// How much memory is touched before anything is measured: what the greediest case writes, page cache included.
    #[must_use]
    pub const fn memory_bytes(self) -> u64 {
        match self {
            Self::Full => 6_000_000_000,
            Self::Quick => 1_500_000_000,
        }
    }
}

/// What every subject is given.
#[derive(Debug)]
pub struct Plan {
    /// Runs before the clock starts, so that caches and prepared plans are warm.
    pub warm_up: Duration,
    /// How long one subject is measured in one case.
    pub duration: Duration,
    /// Where a subject may write; on a real disk.
    pub sandbox: Sandbox,
    /// Set by a signal; every loop looks at it.
    pub stop: Stop,
}

impl Plan {
    /// The plan of a pace.
    #[must_use]
    pub fn new(pace: Pace, sandbox: Sandbox, stop: Stop) -> Self {
        let (warm_up_ms, duration_ms) = match pace {
            Pace::Full => (1_000, 5_000),
            Pace::Quick => (200, 1_500),
        };
        let [warm_up, duration] = [warm_up_ms, duration_ms].map(Duration::from_millis);
        Self { warm_up, duration, sandbox, stop }
    }
}

/// A flag that a signal raises once and for all.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Asks every loop to end.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Fails once the flag is up, so that `?` unwinds through the guards that stop servers.
    ///
    /// # Errors
    /// `Interrupted`.
    pub fn check(&self) -> Result<(), BenchError> {
        if self.0.load(Ordering::Relaxed) { Err(BenchError::Interrupted) } else { Ok(()) }
    }
}
