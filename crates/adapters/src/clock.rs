//! The system's clock, as the engine's port.

use holdfast_domain::Timestamp;
use holdfast_engine::Clock;
use std::time::{Duration, Instant};

/// Wall time at the start, carried on by the monotonic clock: a jump of the wall clock while the program runs neither
/// expires a hold early nor keeps one for ever.
#[derive(Debug)]
pub struct SystemClock {
    started: Instant,
    wall: Duration,
}

impl SystemClock {
    /// The time now, to be carried on from.
    #[must_use]
    #[expect(clippy::disallowed_types, reason = "this is the clock adapter: the one place that reads wall time")]
    pub fn start() -> Self {
        let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Self { started: Instant::now(), wall: wall.unwrap_or(Duration::ZERO) }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let now = self.wall.saturating_add(self.started.elapsed());
        Timestamp::from_millis(u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
    }
}
