//! How new what is in memory is, where others change the store too.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Which state of a store something is of: a higher one is later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(pub(super) i64);

impl Version {
    /// That of a store which nobody else changes.
    pub(super) const ONLY: Self = Self(0);
}

/// When memory was last the same as the store. It is read on every request's way, so it is a few atomic numbers.
pub(super) struct Freshness {
    began: Instant,
    stale_after: Duration,
    /// When the last look began that was answered, in milliseconds since `began`.
    seen_ms: AtomicU64,
    version: AtomicI64,
    is_reached: AtomicBool,
}

impl Freshness {
    /// Nothing was seen yet, which is tolerated for as long as anything that is old.
    pub(super) fn new(stale_after: Duration) -> Self {
        let (seen_ms, version) = (AtomicU64::new(0), AtomicI64::new(0));
        Self { began: Instant::now(), stale_after, seen_ms, version, is_reached: AtomicBool::new(true) }
    }

    /// A look that began then found this version, and memory follows it. Whether the one before had failed.
    pub(super) fn saw(&self, version: Version, look_began: Instant) -> bool {
        let millis = look_began.saturating_duration_since(self.began).as_millis();
        self.seen_ms.fetch_max(u64::try_from(millis).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.version.store(version.0, Ordering::Relaxed);
        !self.is_reached.swap(true, Ordering::Relaxed)
    }

    /// A look was not answered. Whether the one before was.
    pub(super) fn failed(&self) -> bool {
        self.is_reached.swap(false, Ordering::Relaxed)
    }

    /// Whether the last look was answered.
    pub(super) fn is_reached(&self) -> bool {
        self.is_reached.load(Ordering::Relaxed)
    }

    pub(super) fn age(&self) -> Duration {
        let seen = Duration::from_millis(self.seen_ms.load(Ordering::Relaxed));
        self.began.elapsed().saturating_sub(seen)
    }

    /// Whether it is too long ago to trust what is in memory.
    pub(super) fn is_stale(&self) -> bool {
        self.age() > self.stale_after
    }

    pub(super) fn version(&self) -> i64 {
        self.version.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_seen_for_too_long_is_stale_until_it_is_seen_again() {
        let minute = Duration::from_secs(60);
        let began = Instant::now().checked_sub(minute * 2).unwrap();
        let freshness = Freshness { began, ..Freshness::new(minute) };
        assert!(freshness.is_stale() && freshness.failed() && !freshness.is_reached());
        assert!(!freshness.failed(), "it had failed before");
        // A look counts from when it began: what was changed after that is not in it.
        assert!(freshness.saw(Version(7), began + minute / 2));
        assert!(freshness.is_stale() && freshness.is_reached());
        assert!(!freshness.saw(Version(8), Instant::now()));
        assert!(!freshness.is_stale());
        assert_eq!(freshness.version(), 8);
    }
}
