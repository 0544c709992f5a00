//! Whether a caller may write its own step: to wake a writer and be woken by it takes as long as a quick disk takes to sync, but
//! whoever syncs on a thread that serves others keeps them waiting, and shares the sync with nobody.
//!
//! # Invariants
//! - It is advice, never correctness: whoever is told wrongly is only slower.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A disk that takes longer is not waited for on a caller's thread, which may have others to serve.
const QUICK_SYNC: Duration = Duration::from_millis(2);
/// So many writes for one caller each, one after the other, and the next is taken for a lone caller's too. Among many callers a
/// single one is now and then alone by chance.
const IN_A_ROW: u32 = 16;

/// How many writes in a row were for one caller.
pub(crate) struct Lone(AtomicU32);

impl Lone {
    /// Nobody has come yet: whoever comes first is alone.
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(IN_A_ROW))
    }

    /// Whether a caller may write itself.
    pub(crate) fn is_likely(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= IN_A_ROW
    }

    /// A write for so many callers took so long.
    pub(crate) fn wrote(&self, callers: usize, took: Duration) {
        let in_a_row = self.0.load(Ordering::Relaxed);
        let next = if callers > 1 {
            0
        } else if took >= QUICK_SYNC {
            in_a_row.min(IN_A_ROW - 1)
        } else {
            in_a_row.saturating_add(1).min(IN_A_ROW)
        };
        if next != in_a_row {
            self.0.store(next, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Duration = Duration::from_micros(300);

    #[test]
    fn company_is_remembered_for_a_while_and_a_slow_sync_for_one_write() {
        let lone = Lone::new();
        assert!(lone.is_likely(), "the first who comes");
        lone.wrote(2, QUICK);
        for _ in 0..IN_A_ROW {
            assert!(!lone.is_likely());
            lone.wrote(1, QUICK);
        }
        assert!(lone.is_likely());
        lone.wrote(1, QUICK_SYNC);
        assert!(!lone.is_likely(), "the disk is slow");
        lone.wrote(0, QUICK);
        assert!(lone.is_likely(), "the disk is quick again");
    }
}
