//! When open holds end: a heap that forgets lazily.
//!
//! Nearly every hold is settled long before its time, so taking one out must cost nothing. A settled hold's moment stays in
//! the heap until its time comes, or until half of the heap may be such moments and all of them are dropped at once.
//!
//! # Invariants
//! - Every open hold's moment is in the heap, once.

use crate::keys::KeyHash;
use holdfast_domain::Timestamp;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Below this many moments, old ones are not looked for.
const SMALL: usize = 4_096;

/// The moment at which a hold ends, if nobody settles it before.
pub(crate) type Moment = (Timestamp, KeyHash);

/// The moments of all open holds, the next one first.
#[derive(Debug)]
pub(crate) struct Expiries {
    heap: BinaryHeap<Reverse<Moment>>,
    /// The size at which old moments are looked for.
    full: usize,
}

impl Expiries {
    pub(crate) const fn new() -> Self {
        Self { heap: BinaryHeap::new(), full: SMALL }
    }

    /// Whether an open hold's moment may have come; if not, none has.
    pub(crate) fn may_be_due(&self, now: Timestamp) -> bool {
        self.heap.peek().is_some_and(|Reverse((ends_at, _))| *ends_at <= now)
    }

    /// The next moment of an open hold. Looks at all of them.
    pub(crate) fn first(&self, is_open: impl Fn(&Moment) -> bool) -> Option<Moment> {
        self.heap.iter().map(|Reverse(moment)| *moment).filter(is_open).min()
    }

    /// Adds an open hold's moment. `is_open` says of any moment whether it still is one.
    pub(crate) fn insert(&mut self, moment: Moment, is_open: impl Fn(&Moment) -> bool) {
        if self.heap.len() >= self.full {
            self.heap.retain(|Reverse(moment)| is_open(moment));
            self.full = SMALL.max(self.heap.len().saturating_mul(2));
        }
        self.heap.push(Reverse(moment));
    }

    /// Takes out up to `at_most` moments that have come, the oldest first. Those whose holds stay open must be put back.
    pub(crate) fn take_due(
        &mut self,
        now: Timestamp,
        at_most: usize,
        is_open: impl Fn(&Moment) -> bool,
    ) -> Vec<Moment> {
        let mut due = Vec::new();
        while due.len() < at_most && self.may_be_due(now) {
            due.extend(self.heap.pop().map(|Reverse(moment)| moment).filter(&is_open));
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn moment(at: u64, key: u128) -> Moment {
        (Timestamp::from_millis(at), KeyHash(key))
    }

    proptest! {
        #[test]
        fn the_first_is_always_that_of_an_ordered_set(steps in proptest::collection::vec((0_u64..50, any::<bool>()), 1..400)) {
            let (mut expiries, mut open) = (Expiries::new(), BTreeSet::new());
            expiries.full = 4;
            for (number, (at, settles)) in steps.into_iter().enumerate() {
                let new = moment(at, number as u128);
                let chosen = open.iter().nth(at as usize % open.len().max(1)).copied();
                match chosen.filter(|_| settles) {
                    Some(settled) => {
                        open.remove(&settled);
                    }
                    None => {
                        open.insert(new);
                        expiries.insert(new, |moment| open.contains(moment));
                    }
                }
                let first = open.first().copied();
                prop_assert_eq!(expiries.first(|moment| open.contains(moment)), first);
                prop_assert!(first.is_none_or(|(at, _)| expiries.may_be_due(at)));
            }
            let due = expiries.take_due(Timestamp::from_millis(25), 7, |moment| open.contains(moment));
            let expected: Vec<_> = open.iter().filter(|(at, _)| at.millis() <= 25).take(7).copied().collect();
            prop_assert_eq!(due, expected);
        }
    }

    #[test]
    fn settled_holds_do_not_collect() {
        let mut expiries = Expiries::new();
        for number in 0..100_000_u64 {
            // The first hold stays open, so that no other comes to the top.
            let is_open = |(at, _): &Moment| at.millis() == 0 || at.millis() == number;
            expiries.insert(moment(number, u128::from(number)), is_open);
        }
        assert!(expiries.heap.len() <= SMALL + 1, "{}", expiries.heap.len());
    }
}
