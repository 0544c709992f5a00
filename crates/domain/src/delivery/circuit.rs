//! A circuit breaker before the peer: one that keeps failing is left alone for a while, then tried with one attempt, and
//! when that goes well, loaded again step by step.
//!
//! A pure state machine: outcomes and times come in, nothing is read or waited for.

use crate::time::{Span, Timestamp};

/// When to leave the peer alone, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CircuitPolicy {
    /// This many failures open it, if nothing goes well between them.
    pub failures: u32,
    /// They count if they lie within this time.
    pub window: Span,
    /// It stays open for this long.
    pub rest: Span,
    /// How many attempts may run at once when all is well.
    pub at_once: usize,
}

impl CircuitPolicy {
    /// Five failures in a minute, half a minute's rest, 64 at once.
    pub const USUAL: Self = Self { failures: 5, window: Span::from_secs(60), rest: Span::from_secs(30), at_once: 64 };
}

/// What a circuit is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CircuitState {
    /// Attempts go through.
    Closed,
    /// None goes through until then.
    Open {
        /// When one may.
        until: Timestamp,
    },
    /// One attempt is trying it.
    HalfOpen,
}

impl CircuitState {
    /// Its name, for people and programs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open { .. } => "open",
            Self::HalfOpen => "half_open",
        }
    }
}

/// How the peer is, by one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sign {
    /// It works: it has answered, whatever it said of the obligation.
    Well,
    /// It does not.
    Ill,
}

/// A circuit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Circuit {
    state: CircuitState,
    /// Failures since something went well, and when the first of them was.
    failures: u32,
    since: Timestamp,
    /// How many attempts may run at once: fewer, after it was open.
    allowed: usize,
    policy: CircuitPolicy,
}

impl Circuit {
    /// A closed one.
    #[must_use]
    pub const fn new(policy: CircuitPolicy) -> Self {
        let (state, since) = (CircuitState::Closed, Timestamp::EPOCH);
        Self { state, failures: 0, since, allowed: policy.at_once, policy }
    }

    /// Its state.
    #[must_use]
    pub const fn state(&self) -> CircuitState {
        self.state
    }

    /// Whether as many attempts may run at once as ever.
    #[must_use]
    pub fn is_at_full_load(&self) -> bool {
        self.state == CircuitState::Closed && self.allowed == self.policy.at_once
    }

    /// Whether new work should not be begun that the peer would have to be told of: it rests, or is being tried.
    #[must_use]
    pub fn is_away(&self, now: Timestamp) -> bool {
        match self.state {
            CircuitState::Closed => false,
            CircuitState::Open { until } => now < until,
            CircuitState::HalfOpen => true,
        }
    }

    /// How many attempts may be begun now, while `running` are under way. Whoever begins one after a rest is the trial.
    #[must_use]
    pub fn room(&self, running: usize, now: Timestamp) -> usize {
        match self.state {
            CircuitState::Closed => self.allowed.saturating_sub(running),
            CircuitState::Open { until } if until <= now => 1_usize.saturating_sub(running),
            CircuitState::Open { .. } | CircuitState::HalfOpen => 0,
        }
    }

    /// Attempts have begun.
    pub fn begin(&mut self) {
        if let CircuitState::Open { .. } = self.state {
            self.state = CircuitState::HalfOpen;
        }
    }

    /// Takes what became of an attempt.
    pub fn record(&mut self, sign: Sign, now: Timestamp) {
        match (self.state, sign) {
            (CircuitState::Closed, Sign::Well) => {
                self.failures = 0;
                // Each that goes well makes room for one more, so the load doubles with every round.
                self.allowed = self.allowed.saturating_add(1).min(self.policy.at_once);
            }
            (CircuitState::HalfOpen, Sign::Well) => {
                (self.state, self.failures, self.allowed) = (CircuitState::Closed, 0, 2.min(self.policy.at_once));
            }
            // An attempt from before it opened says nothing about now.
            (CircuitState::Open { .. }, Sign::Well | Sign::Ill) => {}
            (CircuitState::HalfOpen, Sign::Ill) => self.open(now),
            (CircuitState::Closed, Sign::Ill) => {
                if self.failures == 0 || self.since.after(self.policy.window) < now {
                    (self.failures, self.since) = (0, now);
                }
                self.failures = self.failures.saturating_add(1);
                if self.failures >= self.policy.failures {
                    self.open(now);
                }
            }
        }
    }

    /// An attempt was given up before anything was known of the peer.
    pub fn abandon(&mut self, now: Timestamp) {
        if self.state == CircuitState::HalfOpen {
            self.state = CircuitState::Open { until: now };
        }
    }

    fn open(&mut self, now: Timestamp) {
        self.state = CircuitState::Open { until: now.after(self.policy.rest) };
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: Timestamp = Timestamp::from_millis(1_000_000);
    const REST: Span = Span::from_secs(30);

    fn seconds(number: u32) -> Timestamp {
        NOW.after(Span::from_secs(number))
    }

    fn ill(circuit: &mut Circuit, moments: &[u32]) -> CircuitState {
        for moment in moments {
            circuit.record(Sign::Ill, seconds(*moment));
        }
        circuit.state()
    }

    #[test]
    fn five_failures_in_a_minute_open_it_and_four_do_not() {
        let new = || Circuit::new(CircuitPolicy::USUAL);
        assert_eq!(ill(&mut new(), &[0, 1, 2, 3]), CircuitState::Closed);
        assert_eq!(ill(&mut new(), &[0, 1, 2, 3, 4]), CircuitState::Open { until: seconds(34) });
        assert_eq!(ill(&mut new(), &[0, 15, 30, 45, 60]), CircuitState::Open { until: seconds(90) });
        assert_eq!(ill(&mut new(), &[0, 15, 30, 45, 61]), CircuitState::Closed, "the first is forgotten");
        let mut circuit = new();
        ill(&mut circuit, &[0, 1, 2, 3]);
        circuit.record(Sign::Well, NOW);
        assert_eq!(ill(&mut circuit, &[4, 5, 6, 7]), CircuitState::Closed, "something went well between them");
    }

    #[test]
    fn after_a_rest_one_attempt_tries_it() {
        let mut circuit = Circuit::new(CircuitPolicy::USUAL);
        ill(&mut circuit, &[0; 5]);
        assert_eq!(circuit.room(0, seconds(29)), 0);
        assert_eq!(circuit.room(1, seconds(30)), 0, "one from before is still under way");
        assert_eq!(circuit.room(0, seconds(30)), 1);
        circuit.begin();
        assert_eq!((circuit.state(), circuit.room(0, seconds(99))), (CircuitState::HalfOpen, 0));
        let mut failing = circuit;
        failing.record(Sign::Ill, seconds(31));
        assert_eq!(failing.state(), CircuitState::Open { until: seconds(31).after(REST) });
        let mut abandoned = circuit;
        abandoned.abandon(seconds(31));
        assert_eq!(abandoned.room(0, seconds(31)), 1, "another may try at once");
    }

    #[test]
    fn after_a_trial_that_goes_well_the_load_grows_with_every_success() {
        let mut circuit = Circuit::new(CircuitPolicy { at_once: 4, ..CircuitPolicy::USUAL });
        assert_eq!(circuit.room(1, NOW), 3, "all at once from the start");
        ill(&mut circuit, &[0; 5]);
        circuit.begin();
        let mut rooms = Vec::new();
        for _ in 0..5 {
            circuit.record(Sign::Well, seconds(30));
            rooms.push(circuit.room(0, seconds(30)));
        }
        assert_eq!((circuit.state(), rooms), (CircuitState::Closed, vec![2, 3, 4, 4, 4]));
    }

    proptest! {
        #[test]
        fn it_never_lets_more_through_than_it_may(steps in prop::collection::vec((0..4_u8, 0..20_u32), 0..200)) {
            let mut circuit = Circuit::new(CircuitPolicy { at_once: 8, ..CircuitPolicy::USUAL });
            let mut now = NOW;
            let mut running = 0_usize;
            for (step, pause) in steps {
                now = now.after(Span::from_secs(pause));
                let resting = matches!(circuit.state(), CircuitState::Open { until } if until > now);
                match step {
                    0 => {
                        let room = circuit.room(running, now);
                        prop_assert!(!resting || room == 0);
                        prop_assert!(running.saturating_add(room) <= 8);
                        if room > 0 {
                            running = running.saturating_add(room);
                            circuit.begin();
                        }
                    }
                    1 if running > 0 => { running = running.saturating_sub(1); circuit.record(Sign::Well, now); }
                    2 if running > 0 => { running = running.saturating_sub(1); circuit.record(Sign::Ill, now); }
                    _ if running > 0 => { running = running.saturating_sub(1); circuit.abandon(now); }
                    _ => {}
                }
            }
            // However it went, it comes back by itself.
            for _ in 0..running {
                circuit.abandon(now);
            }
            prop_assert!(circuit.room(0, now.after(REST)) > 0);
        }
    }
}
