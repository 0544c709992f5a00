//! A circuit breaker: a target that keeps failing is left alone for a while, then tried with one call.
//!
//! A pure state machine: outcomes and times come in, nothing is read or waited for.

use std::time::Duration;
use tokio::time::Instant;

/// When to leave a target alone, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// This many failures in a row open it.
    pub failures: u32,
    /// It stays open for this long.
    pub rest: Duration,
    /// A target that asks for more than this is tried again after this.
    pub rest_max: Duration,
}

/// The usual policy.
pub const POLICY: Policy = Policy { failures: 5, rest: Duration::from_secs(10), rest_max: Duration::from_secs(5 * 60) };

/// What a breaker is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Calls go through; so many in a row have failed.
    Closed {
        /// How many.
        failures: u32,
    },
    /// No call goes through until then.
    Open {
        /// When one may.
        until: Instant,
    },
    /// One call is trying it.
    HalfOpen,
}

/// Whether a call may go through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It may.
    Admitted,
    /// It may, alone; whatever happens to it must be told.
    Trial,
    /// It may not.
    Refused {
        /// When to ask again, as far as is known.
        until: Option<Instant>,
    },
}

/// What became of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The target works.
    Well,
    /// It does not; perhaps it said for how long.
    Ill {
        /// For this long.
        retry_after: Option<Duration>,
    },
    /// A trial was given up before anything was known.
    TrialAbandoned,
}

/// A breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Breaker {
    state: State,
    policy: Policy,
}

impl Breaker {
    /// A closed one.
    #[must_use]
    pub const fn new(policy: Policy) -> Self {
        Self { state: State::Closed { failures: 0 }, policy }
    }

    /// Its state.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// Asks for a call to go through.
    pub fn admit(&mut self, now: Instant) -> Admission {
        match self.state {
            State::Closed { .. } => Admission::Admitted,
            State::Open { until } if now < until => Admission::Refused { until: Some(until) },
            State::Open { .. } => {
                self.state = State::HalfOpen;
                Admission::Trial
            }
            State::HalfOpen => Admission::Refused { until: None },
        }
    }

    /// Takes what became of a call.
    pub fn record(&mut self, outcome: Outcome, now: Instant) {
        self.state = match (self.state, outcome) {
            (State::Closed { .. } | State::HalfOpen, Outcome::Well) => State::Closed { failures: 0 },
            // A call from before it opened says nothing about now.
            (open @ State::Open { .. }, Outcome::Well | Outcome::TrialAbandoned) => open,
            (State::Closed { failures }, Outcome::Ill { retry_after: None }) if failures + 1 < self.policy.failures => {
                State::Closed { failures: failures + 1 }
            }
            (State::Closed { .. } | State::HalfOpen, Outcome::Ill { retry_after }) => {
                State::Open { until: now + self.rest(retry_after) }
            }
            (State::Open { until }, Outcome::Ill { retry_after: Some(after) }) => {
                State::Open { until: until.max(now + self.rest(Some(after))) }
            }
            (open @ State::Open { .. }, Outcome::Ill { retry_after: None }) => open,
            (closed @ State::Closed { .. }, Outcome::TrialAbandoned) => closed,
            (State::HalfOpen, Outcome::TrialAbandoned) => State::Open { until: now },
        };
    }

    fn rest(&self, retry_after: Option<Duration>) -> Duration {
        retry_after.map_or(self.policy.rest, |after| after.min(self.policy.rest_max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const WELL: Outcome = Outcome::Well;
    const ILL: Outcome = Outcome::Ill { retry_after: None };
    const LIMITED: Outcome = Outcome::Ill { retry_after: Some(Duration::from_secs(30)) };
    const ABANDONED: Outcome = Outcome::TrialAbandoned;

    fn breaker(state: State) -> Breaker {
        Breaker { state, policy: Policy { failures: 3, rest: 10 * SECOND, rest_max: 100 * SECOND } }
    }

    #[test]
    fn every_state_meets_every_outcome() {
        let now = Instant::now();
        let closed = |failures| State::Closed { failures };
        let open = |seconds: u32| State::Open { until: now + SECOND * seconds };
        let table = [
            (closed(0), WELL, closed(0)),
            (closed(2), WELL, closed(0)),
            (closed(0), ILL, closed(1)),
            (closed(1), ILL, closed(2)),
            (closed(2), ILL, open(10)),
            (closed(0), LIMITED, open(30)),
            (closed(2), ABANDONED, closed(2)),
            (open(5), WELL, open(5)),
            (open(5), ILL, open(5)),
            (open(5), LIMITED, open(30)),
            (open(50), LIMITED, open(50)),
            (open(5), ABANDONED, open(5)),
            (State::HalfOpen, WELL, closed(0)),
            (State::HalfOpen, ILL, open(10)),
            (State::HalfOpen, LIMITED, open(30)),
            (State::HalfOpen, ABANDONED, open(0)),
        ];
        for (state, outcome, expected) in table {
            let mut breaker = breaker(state);
            breaker.record(outcome, now);
            assert_eq!(breaker.state(), expected, "{state:?} and {outcome:?}");
        }
    }

    #[test]
    fn every_state_answers_whether_a_call_may_go_through() {
        let now = Instant::now();
        let table = [
            (State::Closed { failures: 2 }, Admission::Admitted, State::Closed { failures: 2 }),
            (
                State::Open { until: now + SECOND },
                Admission::Refused { until: Some(now + SECOND) },
                State::Open { until: now + SECOND },
            ),
            (State::Open { until: now }, Admission::Trial, State::HalfOpen),
            (State::HalfOpen, Admission::Refused { until: None }, State::HalfOpen),
        ];
        for (state, admission, after) in table {
            let mut breaker = breaker(state);
            assert_eq!((breaker.admit(now), breaker.state()), (admission, after), "{state:?}");
        }
    }

    #[test]
    fn a_target_cannot_ask_to_be_left_alone_for_ever() {
        let now = Instant::now();
        let mut breaker = breaker(State::HalfOpen);
        breaker.record(Outcome::Ill { retry_after: Some(Duration::from_secs(1 << 40)) }, now);
        assert_eq!(breaker.state(), State::Open { until: now + 100 * SECOND });
    }
}
