//! What the peer is owed, entry by entry: which of a charge's entries make an obligation, and which end it.
//!
//! A charge is told once, when its hold has ended, by all that was charged. Only a hold that expired can be charged again
//! after that; each such late result is told by itself, as a part of its own with the difference as its cost.

use crate::charge::{Event, Finality, State};
use crate::money::{CreditUnit, Overflow};

/// What was charged so far of a charge that may be charged again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sum {
    /// All that was charged.
    pub charged: CreditUnit,
    /// The part of it that there are obligations for.
    pub told: CreditUnit,
    /// How many obligations it took.
    pub parts: u32,
}

/// Which obligation of its charge it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The first, which most often is the only one: the peer knows it by the charge's id.
    First,
    /// What a late result added: the peer knows it by an id of its own.
    Late,
}

/// What an entry means for what the peer is owed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Duty {
    /// Nothing.
    Nothing,
    /// The peer is to be told.
    Tell {
        /// Of which part.
        part: Part,
        /// What it comes to.
        cost: CreditUnit,
        /// What the charge comes to in all, with it.
        total: CreditUnit,
    },
    /// The peer knows all there is.
    Settled,
    /// The peer could not be told.
    GivenUp,
    /// There is nothing to tell any more: the charge was taken back.
    Cancelled,
}

const NOTHING_YET: Sum = Sum { charged: CreditUnit::ZERO, told: CreditUnit::ZERO, parts: 0 };

/// What `event` means, which left its charge in `state`, and what is to be remembered of the charge. `before` is what was
/// remembered.
pub fn owed(before: Option<Sum>, event: &Event, state: State) -> Result<(Duty, Option<Sum>), Overflow> {
    match event {
        Event::Reserved { .. }
        | Event::Started
        | Event::Noted { .. }
        | Event::Increased { .. }
        | Event::Extended { .. } => Ok((Duty::Nothing, before)),
        Event::Committed { taken, finality } => {
            let sum = before.unwrap_or(NOTHING_YET);
            let sum = Sum { charged: sum.charged.checked_add(taken.charged()?)?, ..sum };
            let more = matches!(finality, Finality::Partial);
            ended(sum, state, more)
        }
        Event::Released { .. } => ended(before.unwrap_or(NOTHING_YET), state, false),
        Event::AutoReleased { .. } => ended(before.unwrap_or(NOTHING_YET), state, true),
        Event::Voided { .. } => Ok((Duty::Cancelled, None)),
        Event::Acked => Ok((Duty::Settled, before)),
        Event::Failed { .. } => Ok((Duty::GivenUp, before)),
    }
}

/// What there is to tell of a charge by its new state, and what is to be remembered if `more` can come.
fn ended(sum: Sum, state: State, more: bool) -> Result<(Duty, Option<Sum>), Overflow> {
    let remembered = |sum: Sum| (more && (sum.parts > 0 || !sum.charged.is_zero())).then_some(sum);
    let cost = sum.charged.checked_sub(sum.told)?;
    let is_owed = match state {
        State::Committed => true,
        // The last result has not come, and may never: what was charged meanwhile is told now.
        State::AutoReleased => !cost.is_zero(),
        State::Held | State::Released | State::Acked | State::Failed | State::Voided => false,
    };
    if !is_owed {
        return Ok((Duty::Nothing, remembered(sum)));
    }
    let part = if sum.parts == 0 { Part::First } else { Part::Late };
    let after = Sum { told: sum.charged, parts: sum.parts.saturating_add(1), ..sum };
    Ok((Duty::Tell { part, cost, total: sum.charged }, remembered(after)))
}

/// What is left of a charge's obligations, when one of them is done with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    /// Those that are still to be told.
    pub pending: u64,
    /// Those that were given up, the one that is done with included.
    pub dead: u64,
}

/// What is to be written about a charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// Nothing yet: the last of its obligations will say.
    None,
    /// The peer knows all of it.
    Acked,
    /// The peer could not be told all of it.
    Failed,
}

impl Left {
    /// What is to be written.
    #[must_use]
    pub const fn word(self) -> Word {
        match self {
            Self { pending: 1.., .. } => Word::None,
            Self { pending: 0, dead: 0 } => Word::Acked,
            Self { pending: 0, dead: 1.. } => Word::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::charge::Taken;
    use crate::id::Reason;

    fn credits(text: &str) -> CreditUnit {
        text.parse().unwrap()
    }

    fn committed(from_hold: &str, from_available: &str, finality: Finality) -> Event {
        let zero = CreditUnit::ZERO;
        let taken = Taken {
            from_hold: credits(from_hold),
            from_available: credits(from_available),
            returned: zero,
            uncollected: zero,
        };
        Event::Committed { taken, finality }
    }

    fn tell(part: Part, cost: &str, total: &str) -> Duty {
        Duty::Tell { part, cost: credits(cost), total: credits(total) }
    }

    /// The entries of one life, the state that each left, and what each means. Whether something is remembered at the end.
    fn check(life: &[(Event, State, Duty)]) -> bool {
        let mut sum = None;
        for (number, (event, state, expected)) in life.iter().enumerate() {
            let (duty, after) = owed(sum, event, *state).unwrap();
            assert_eq!(duty, *expected, "entry {number}");
            sum = after;
        }
        sum.is_some()
    }

    const RELEASED: Event = Event::Released { returned: CreditUnit::ZERO };
    const EXPIRED: Event = Event::AutoReleased { returned: CreditUnit::ZERO };

    fn void() -> Event {
        Event::Voided { returned: CreditUnit::ZERO, reason: "by mistake".parse::<Reason>().unwrap() }
    }

    #[test]
    fn a_commit_is_told_once_and_then_settled_given_up_or_cancelled() {
        let commit = || committed("7", "3", Finality::Final);
        let told = || tell(Part::First, "10", "10");
        let failed = Event::Failed { reason: "no".parse::<Reason>().unwrap() };
        assert!(!check(&[(commit(), State::Committed, told()), (Event::Acked, State::Acked, Duty::Settled)]));
        assert!(!check(&[(commit(), State::Committed, told()), (failed, State::Failed, Duty::GivenUp)]));
        assert!(!check(&[(commit(), State::Committed, told()), (void(), State::Voided, Duty::Cancelled)]));
    }

    #[test]
    fn a_commit_of_nothing_is_told_too() {
        let commit = committed("0", "0", Finality::Final);
        assert!(!check(&[(commit, State::Committed, tell(Part::First, "0", "0"))]));
    }

    #[test]
    fn parts_are_told_together_when_the_hold_ends() {
        let part = || (committed("5", "0", Finality::Partial), State::Held, Duty::Nothing);
        let last = committed("1", "0", Finality::Final);
        assert!(!check(&[part(), part(), (last, State::Committed, tell(Part::First, "11", "11"))]));
        assert!(!check(&[part(), (RELEASED, State::Committed, tell(Part::First, "5", "5"))]));
    }

    #[test]
    fn what_was_given_back_unspent_is_not_told() {
        assert!(!check(&[(RELEASED, State::Released, Duty::Nothing)]));
        assert!(!check(&[(EXPIRED, State::AutoReleased, Duty::Nothing)]));
        let lost = committed("0", "0", Finality::Partial);
        assert!(!check(&[(lost, State::Held, Duty::Nothing), (EXPIRED, State::AutoReleased, Duty::Nothing)]));
    }

    #[test]
    fn each_late_result_is_told_by_itself() {
        let part = (committed("5", "0", Finality::Partial), State::Held, Duty::Nothing);
        let expired = (EXPIRED, State::Committed, tell(Part::First, "5", "5"));
        let acked = (Event::Acked, State::Acked, Duty::Settled);
        let late = (committed("0", "2", Finality::Partial), State::Committed, tell(Part::Late, "2", "7"));
        let last = (committed("0", "1", Finality::Final), State::Committed, tell(Part::Late, "1", "8"));
        assert!(!check(&[part.clone(), expired.clone(), acked, late.clone(), last]));
        assert!(check(&[part, expired, late]), "more may come");
    }

    #[test]
    fn the_first_late_result_of_an_unspent_hold_is_the_first_to_be_told() {
        let expired = (EXPIRED, State::AutoReleased, Duty::Nothing);
        let part = (committed("0", "2", Finality::Partial), State::AutoReleased, tell(Part::First, "2", "2"));
        let nothing = (committed("0", "0", Finality::Partial), State::AutoReleased, Duty::Nothing);
        let last = (committed("0", "1", Finality::Final), State::Committed, tell(Part::Late, "1", "3"));
        assert!(!check(&[expired.clone(), part.clone(), nothing, last]));
        assert!(!check(&[expired, part, (void(), State::Voided, Duty::Cancelled)]));
    }

    #[test]
    fn the_last_obligation_of_a_charge_has_the_word() {
        for (pending, dead, word) in
            [(0, 0, Word::Acked), (0, 1, Word::Failed), (0, 2, Word::Failed), (1, 0, Word::None), (2, 3, Word::None)]
        {
            assert_eq!(Left { pending, dead }.word(), word);
        }
    }
}
