//! Which row of the outbox a lease is on, and in whose name: what the database asks for, and the port does not carry.
//!
//! A lease is in here from its claim until the database has said what became of it. So a second completion with it is told
//! [`LeaseLost`](holdfast_engine::obligations::LeaseLost) without asking, and one whose answer was lost is asked for again: that
//! it is recorded already is then known to be our own doing.

use holdfast_domain::Label;
use holdfast_engine::obligations::Lease;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A claimed row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hold {
    pub(super) outbox_id: String,
    pub(super) worker: Label,
}

/// The most that are remembered: who claims completes, so there are only as many as are being told. Beyond it, somebody claims
/// and never completes, and what it forgets is told as a lost lease.
const HELD_MAX: usize = 1_000_000;

/// All leases that are not completed.
#[derive(Default)]
pub(super) struct Held(Mutex<HashMap<Lease, Hold>>);

impl Held {
    fn all(&self) -> MutexGuard<'_, HashMap<Lease, Hold>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, lease: Lease, hold: Hold) {
        let mut all = self.all();
        if all.len() >= HELD_MAX {
            all.clear();
        }
        all.insert(lease, hold);
    }

    /// Takes those of `leases` that are held, each once, until it is said what became of them.
    pub(super) fn take(&self, leases: impl Iterator<Item = Lease>) -> Taken<'_> {
        let mut all = self.all();
        let take = |lease: Lease| Some((lease, all.remove(&lease)?));
        Taken { held: self, holds: leases.map(take).collect() }
    }
}

/// Leases that are being completed. What is still in it when it is dropped, whatever the reason, is held again.
pub(super) struct Taken<'a> {
    held: &'a Held,
    holds: Vec<Option<(Lease, Hold)>>,
}

impl Taken<'_> {
    /// Those whose end is not known yet, with their place.
    pub(super) fn open(&self) -> impl Iterator<Item = (usize, &Lease, &Hold)> {
        let holds = self.holds.iter().enumerate();
        holds.filter_map(|(place, hold)| hold.as_ref().map(|(lease, hold)| (place, lease, hold)))
    }

    /// The database has said what became of this one.
    pub(super) fn answered(&mut self, place: usize) {
        if let Some(hold) = self.holds.get_mut(place) {
            *hold = None;
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut all = self.held.all();
        all.extend(self.holds.drain(..).flatten());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_engine::obligations::LeaseToken;

    #[test]
    fn a_lease_is_taken_once_and_is_back_unless_its_end_is_known() {
        let lease = |number: u128| Lease { id: "req_1".parse().unwrap(), token: LeaseToken(number) };
        let held = Held::default();
        for number in 1..=2 {
            held.add(lease(number), Hold { outbox_id: number.to_string(), worker: "a".parse().unwrap() });
        }
        let mut taken = held.take([lease(1), lease(3), lease(1), lease(2)].into_iter());
        let open = |taken: &Taken<'_>| taken.open().map(|(place, lease, _)| (place, lease.token.0)).collect::<Vec<_>>();
        assert_eq!(open(&taken), [(0, 1), (3, 2)]);
        assert_eq!(open(&held.take([lease(1)].into_iter())), []);
        taken.answered(0);
        drop(taken);
        assert_eq!(open(&held.take([lease(1), lease(2)].into_iter())), [(1, 2)]);
    }
}
