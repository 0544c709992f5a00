//! Telling the peer of a charge: what there is to tell, what one attempt came to, and when the next is due.
//!
//! ```text
//!  commit ─▶ due ─attempt─▶ Finalized | Known        ─▶ settled (acked)
//!             ▲      └────▶ TryAgain ─ quick, then slow, then ─▶ dead (failed) ─ replay ─▶ due
//!             └──────────────┘           Terminal ────────────▶ dead
//! ```
//!
//! # Invariants
//! - What is told never changes: the same obligation has the same cost and the same moment for ever.
//! - Whatever a peer answers is exactly one [`Verdict`].
//! - A schedule ends: after so many attempts there is no next one.

mod circuit;
mod next;
mod owed;

pub use circuit::{Circuit, CircuitPolicy, CircuitState, Sign};
pub use next::{Attempt, Next};
pub use owed::{Duty, Left, Part, Sum, Word, owed};

use crate::id::{ChargeId, ObligationId, OwnerId};
use crate::money::CreditUnit;
use crate::time::{Span, Timestamp};

/// What the peer is still to be told: what a charge came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Obligation {
    /// What the peer knows it by: the charge's id, or one of its own for what a late result added.
    pub id: ObligationId,
    /// The charge.
    pub charge: ChargeId,
    /// Who was charged.
    pub owner: OwnerId,
    /// How much.
    pub cost: CreditUnit,
    /// When it was charged.
    pub created_at: Timestamp,
}

/// What one attempt to tell the peer came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The peer has taken it.
    Finalized,
    /// The peer had it already.
    Known,
    /// It may go better later.
    TryAgain {
        /// The peer asks for this much time.
        after: Option<Span>,
    },
    /// It will never go better without somebody's doing.
    Terminal,
}

impl Verdict {
    /// What an answer with this status means. A redirect is not followed: it is most often a proxy that stands in for a peer
    /// which is away, so it may go better later.
    #[must_use]
    pub const fn of_status(status: u16, retry_after: Option<Span>) -> Self {
        match status {
            200..=299 => Self::Finalized,
            409 => Self::Known,
            300..=399 | 408 | 425 | 429 | 500..=599 => Self::TryAgain { after: retry_after },
            _ => Self::Terminal,
        }
    }

    /// How the peer is, by what it answered. One that asks to be told later is left alone too, if it keeps doing so.
    #[must_use]
    pub const fn sign(self) -> Sign {
        match self {
            Self::Finalized | Self::Known | Self::Terminal => Sign::Well,
            Self::TryAgain { .. } => Sign::Ill,
        }
    }

    /// What it is for whoever asked for the charge to be finalized: one of three, whatever happened.
    #[must_use]
    pub const fn result(self) -> &'static str {
        match self {
            Self::Finalized => "finalized",
            Self::Known => "idempotent",
            Self::TryAgain { .. } | Self::Terminal => "dlq",
        }
    }

    /// What no answer at all means: it may have been taken or not, and telling again does no harm.
    pub const NO_ANSWER: Self = Self::TryAgain { after: None };
}

/// When to try again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// The pauses after the first attempts, while the peer may only have stumbled.
    pub quick: Vec<Span>,
    /// The pauses after that.
    pub slow: Vec<Span>,
    /// An obligation younger than this is not given up, but tried after the last pause again.
    pub age_min: Span,
}

/// A number that nobody can foresee, for pauses that do not fall together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chance(pub u64);

/// A pause that a peer asks for is kept up to this long: no peer may park an obligation for ever.
pub const RETRY_AFTER_MAX: Span = Span::from_secs(10 * 60);

impl Schedule {
    /// 1, 2, 4, 8 and 16 seconds; then 1, 2, 4, 8 and 10 minutes.
    #[must_use]
    pub fn usual() -> Self {
        let quick = [1, 2, 4, 8, 16].map(Span::from_secs).to_vec();
        let slow = [60, 120, 240, 480, 600].map(Span::from_secs).to_vec();
        Self { quick, slow, age_min: Span::from_millis(0) }
    }

    /// The most attempts on an obligation that is old enough to be given up.
    #[must_use]
    pub fn attempts_max(&self) -> usize {
        self.quick.len().saturating_add(self.slow.len()).saturating_add(1)
    }

    /// When an obligation is due again after `attempts` that failed; `None` if it is given up. The pause is a random part of
    /// the schedule's, and no shorter than what the peer asked for.
    #[must_use]
    pub fn next(
        &self,
        attempts: u32,
        age: Span,
        asked: Option<Span>,
        now: Timestamp,
        chance: Chance,
    ) -> Option<Timestamp> {
        let done = usize::try_from(attempts).unwrap_or(usize::MAX).saturating_sub(1);
        let pauses = || self.quick.iter().chain(&self.slow).copied();
        let pause = match pauses().nth(done) {
            Some(pause) => pause,
            None if age < self.age_min => pauses().last()?,
            None => return None,
        };
        let jittered = Span::from_millis(chance.0.checked_rem(pause.millis().saturating_add(1)).unwrap_or(0));
        Some(now.after(jittered.max(asked.map_or(jittered, |asked| asked.min(RETRY_AFTER_MAX)))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: Timestamp = Timestamp::from_millis(1_000_000);
    const YOUNG: Span = Span::from_millis(0);

    #[test]
    fn every_status_is_one_verdict() {
        let again = Verdict::TryAgain { after: None };
        for (statuses, verdict) in [
            (&[200, 201, 204, 299][..], Verdict::Finalized),
            (&[409], Verdict::Known),
            (&[301, 302, 307, 308, 408, 425, 429, 500, 502, 503, 504, 599], again),
            (&[0, 100, 101, 400, 401, 403, 404, 410, 418, 422, 451, 600, u16::MAX], Verdict::Terminal),
        ] {
            for status in statuses {
                assert_eq!(Verdict::of_status(*status, None), verdict, "{status}");
            }
        }
        let asked = Some(Span::from_secs(7));
        assert_eq!(Verdict::of_status(429, asked), Verdict::TryAgain { after: asked });
    }

    #[test]
    fn the_longest_pauses_are_those_of_the_schedule() {
        let schedule = Schedule::usual();
        let seconds = [1_u64, 2, 4, 8, 16, 60, 120, 240, 480, 600];
        for (attempts, seconds) in (1..).zip(seconds) {
            let next = schedule.next(attempts, YOUNG, None, NOW, Chance(seconds * 1_000));
            assert_eq!(next, Some(NOW.after(Span::from_millis(seconds * 1_000))), "after {attempts}");
        }
        assert_eq!(schedule.next(11, YOUNG, None, NOW, Chance(0)), None);
        assert_eq!(schedule.attempts_max(), 11);
    }

    #[test]
    fn a_young_obligation_is_not_given_up() {
        let schedule = Schedule { age_min: Span::DAY, ..Schedule::usual() };
        let next = |age| schedule.next(500, age, None, NOW, Chance(600_000));
        assert_eq!(next(Span::from_secs(3_600)), Some(NOW.after(Span::from_secs(600))));
        assert_eq!(next(Span::DAY), None);
    }

    proptest! {
        #[test]
        fn a_pause_is_between_what_the_peer_asks_for_and_what_the_schedule_allows(
            attempts in 1..=10_u32, chance: u64, asked in proptest::option::of(0..2_000_u32),
        ) {
            let asked = asked.map(Span::from_secs);
            let next = Schedule::usual().next(attempts, YOUNG, asked, NOW, Chance(chance)).unwrap();
            let longest = Schedule::usual().next(attempts, YOUNG, None, NOW, Chance(0)).map(|_| RETRY_AFTER_MAX).unwrap();
            prop_assert!(next >= NOW && next <= NOW.after(longest));
            if let Some(asked) = asked {
                prop_assert!(next >= NOW.after(asked.min(RETRY_AFTER_MAX)));
            }
        }

        #[test]
        fn every_schedule_ends(quick in prop::collection::vec(0..100_u32, 0..8), slow in prop::collection::vec(0..100_u32, 0..8)) {
            let spans = |seconds: Vec<u32>| seconds.into_iter().map(Span::from_secs).collect();
            let schedule = Schedule { quick: spans(quick), slow: spans(slow), age_min: YOUNG };
            let last = u32::try_from(schedule.attempts_max()).unwrap();
            prop_assert_eq!(schedule.next(last, YOUNG, None, NOW, Chance(3)), None);
            prop_assert!((1..last).all(|attempts| schedule.next(attempts, YOUNG, None, NOW, Chance(3)).is_some()));
        }
    }
}
