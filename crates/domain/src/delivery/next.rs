//! What is done about one attempt.

use super::{Chance, Schedule, Verdict};
use crate::time::{Span, Timestamp};

/// An attempt that has just been made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    /// How many there were, this one included.
    pub number: u32,
    /// How old the obligation is.
    pub age: Span,
    /// When it was made.
    pub at: Timestamp,
}

/// What is done now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// It is settled.
    Settle,
    /// It is tried again then.
    TryAgain(Timestamp),
    /// It is given up, until somebody replays it.
    GiveUp,
}

impl Schedule {
    /// What is done after an attempt with this verdict.
    #[must_use]
    pub fn after(&self, verdict: Verdict, attempt: Attempt, chance: Chance) -> Next {
        match verdict {
            Verdict::Finalized | Verdict::Known => Next::Settle,
            Verdict::Terminal => Next::GiveUp,
            Verdict::TryAgain { after } => {
                let next = self.next(attempt.number, attempt.age, after, attempt.at, chance);
                next.map_or(Next::GiveUp, Next::TryAgain)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verdict_has_one_consequence() {
        let schedule = Schedule::usual();
        let at = Timestamp::from_millis(1_000_000);
        let attempt = |number| Attempt { number, age: Span::from_millis(0), at };
        let after = |verdict, number| schedule.after(verdict, attempt(number), Chance(700));
        assert_eq!(after(Verdict::Finalized, 1), Next::Settle);
        assert_eq!(after(Verdict::Known, 11), Next::Settle);
        assert_eq!(after(Verdict::Terminal, 1), Next::GiveUp);
        assert_eq!(after(Verdict::NO_ANSWER, 1), Next::TryAgain(at.after(Span::from_millis(700))));
        let asked = Verdict::TryAgain { after: Some(Span::from_secs(9)) };
        assert_eq!(after(asked, 1), Next::TryAgain(at.after(Span::from_secs(9))));
        assert_eq!(after(asked, 11), Next::GiveUp, "the schedule is used up");
    }
}
