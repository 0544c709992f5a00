//! Records how long requests took and answers percentiles.
//!
//! A histogram, not a list: a minute at full load has tens of millions of samples, and a driver that keeps them all would be most
//! of the memory that a benchmark is to measure. Its steps are a 128th of a value, which no two runs agree on.

use std::time::Duration;

/// So many steps from a power of two to the next.
const STEPS: u64 = 128;
const STEP_BITS: u32 = STEPS.ilog2();

/// The durations of one run's requests.
#[derive(Debug, Default)]
pub struct Latencies {
    /// How many took as long as each step says, up to the longest seen.
    counts: Vec<u32>,
    len: usize,
}

impl Latencies {
    /// Adds one request.
    pub fn record(&mut self, took: Duration) {
        self.add(step_of(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX)), 1);
    }

    /// Adds all that another caller recorded.
    pub fn merge(&mut self, other: Self) {
        for (step, count) in other.counts.into_iter().enumerate().filter(|(_, count)| *count > 0) {
            self.add(step, count);
        }
    }

    fn add(&mut self, step: usize, count: u32) {
        if step >= self.counts.len() {
            self.counts.resize(step + 1, 0);
        }
        self.counts[step] += count;
        self.len += count as usize;
    }

    /// How many requests were recorded.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether none was recorded.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The p50 and p99 by nearest rank; zero if nothing was recorded.
    #[must_use]
    pub fn p50_and_p99(&self) -> (Duration, Duration) {
        (self.nearest_rank(50), self.nearest_rank(99))
    }

    fn nearest_rank(&self, percent: usize) -> Duration {
        let rank = (self.len * percent).div_ceil(100);
        let mut seen = 0;
        let reaches = |count: &u32| {
            seen += *count as usize;
            seen >= rank
        };
        let step = self.counts.iter().position(reaches).unwrap_or(0);
        Duration::from_nanos(middle_of(step as u64))
    }
}

/// The step that a duration falls into: below twice `STEPS` each is its own, then `STEPS` to every power of two.
fn step_of(nanos: u64) -> usize {
    let shift = nanos.max(1).ilog2().saturating_sub(STEP_BITS);
    (u64::from(shift) * STEPS + (nanos >> shift)) as usize
}

/// What stands for all that fell into a step.
const fn middle_of(step: u64) -> u64 {
    let shift = (step / STEPS).saturating_sub(1);
    ((step - shift * STEPS) << shift) + (1 << shift) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(micros: impl IntoIterator<Item = u64>) -> Latencies {
        let mut latencies = Latencies::default();
        micros.into_iter().for_each(|micros| latencies.record(Duration::from_micros(micros)));
        latencies
    }

    /// Right within half a step.
    fn check(latencies: &Latencies, p50: u64, p99: u64) {
        let (found_p50, found_p99) = latencies.p50_and_p99();
        for (found, expected) in [(found_p50, p50), (found_p99, p99)] {
            let expected = Duration::from_micros(expected);
            assert!(found.abs_diff(expected) <= expected / 256, "{found:?} instead of {expected:?}");
        }
    }

    #[test]
    fn percentiles_are_the_nearest_rank_whatever_the_order() {
        check(&of((1..=100).rev()), 50, 99);
        check(&of(1..=1_000), 500, 990);
    }

    #[test]
    fn few_samples_answer_with_a_sample_and_none_with_zero() {
        check(&of([7]), 7, 7);
        check(&of([3, 9]), 3, 9);
        check(&of([]), 0, 0);
    }

    #[test]
    fn callers_that_are_merged_count_as_one() {
        let mut all = of(1..=50);
        all.merge(of(51..=100));
        all.merge(Latencies::default());
        assert_eq!((all.len(), all.is_empty()), (100, false));
        check(&all, 50, 99);
    }

    #[test]
    fn every_duration_has_one_step_and_longer_ones_a_later_one() {
        let nanos: Vec<u64> = (0..1_000).chain((10..64).map(|bit| 1 << bit)).chain([u64::MAX]).collect();
        for pair in nanos.windows(2) {
            let [shorter, longer] = [pair[0], pair[1]].map(step_of);
            assert!(shorter <= longer, "{pair:?}");
        }
        for nanos in nanos.into_iter().filter(|nanos| *nanos < 1 << 62) {
            assert!(middle_of(step_of(nanos) as u64).abs_diff(nanos) <= nanos / 256, "{nanos}");
        }
    }
}
