//! What the lanes of a node are at: two of them that decide on the same account at once would only be refused by the database.

use holdfast_domain::{BudgetId, OwnerId, PayeeId};
use std::collections::HashMap;

/// Something that one round at a time can move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Touch {
    Owner(OwnerId),
    Payee(PayeeId),
    Budget(BudgetId),
}

/// Whether others are at what a round is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Meets {
    #[default]
    Nobody,
    Others,
}

/// What rounds are at, and how many are.
#[derive(Default)]
pub(super) struct Busy(HashMap<Touch, u32>);

impl Busy {
    pub(super) fn is_at(&self, touch: &Touch) -> bool {
        self.0.contains_key(touch)
    }

    pub(super) fn begin(&mut self, touches: &[Touch]) {
        for touch in touches {
            *self.0.entry(*touch).or_default() += 1;
        }
    }

    pub(super) fn end(&mut self, touches: &[Touch]) {
        for touch in touches {
            let Some(count) = self.0.get_mut(touch) else { continue };
            *count -= 1;
            if *count == 0 {
                self.0.remove(touch);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_two_rounds_are_at_is_free_when_both_have_ended() {
        let (alice, bob) = (Touch::Owner("alice".parse().unwrap()), Touch::Budget("alice".parse().unwrap()));
        let mut busy = Busy::default();
        busy.begin(&[alice, alice, bob]);
        busy.begin(&[alice]);
        busy.end(&[alice, alice, bob]);
        assert!(busy.is_at(&alice) && !busy.is_at(&bob));
        busy.end(&[alice]);
        assert!(!busy.is_at(&alice));
    }
}
