//! Records how long requests took and answers percentiles exactly.
//!
//! A sorted list, not a histogram: a run has at most a few million samples, and an exact p99 needs no explaining.

use std::time::Duration;

/// The durations of one run's requests.
#[derive(Debug, Default)]
pub struct Latencies {
    nanos: Vec<u64>,
}

impl Latencies {
    /// Adds one request.
    pub fn record(&mut self, took: Duration) {
        self.nanos.push(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Adds all that another caller recorded.
    pub fn merge(&mut self, other: Self) {
        self.nanos.extend(other.nanos);
    }

    /// How many requests were recorded.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.nanos.len()
    }

    /// Whether none was recorded.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.nanos.is_empty()
    }

    /// The p50 and p99 by nearest rank; zero if nothing was recorded.
    #[must_use]
    pub fn p50_and_p99(mut self) -> (Duration, Duration) {
        self.nanos.sort_unstable();
        (self.nearest_rank(50), self.nearest_rank(99))
    }

    fn nearest_rank(&self, percent: usize) -> Duration {
        let rank = (self.nanos.len() * percent).div_ceil(100);
        let nanos = self.nanos.get(rank.saturating_sub(1)).copied().unwrap_or(0);
        Duration::from_nanos(nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(micros: impl IntoIterator<Item = u64>, p50: u64, p99: u64) {
        let mut latencies = Latencies::default();
        micros.into_iter().for_each(|micros| latencies.record(Duration::from_micros(micros)));
        assert_eq!(latencies.p50_and_p99(), (Duration::from_micros(p50), Duration::from_micros(p99)));
    }

    #[test]
    fn percentiles_are_the_nearest_rank_whatever_the_order() {
        check((1..=100).rev(), 50, 99);
        check(1..=1_000, 500, 990);
    }

    #[test]
    fn few_samples_answer_with_a_sample_and_none_with_zero() {
        check([7], 7, 7);
        check([3, 9], 3, 9);
        check([], 0, 0);
    }
}
