//! What the scripts answer, as obligations; and moments by the server's clock, as moments by ours.

use super::super::line;
use holdfast_domain::{ObligationId, Reason, Timestamp};
use holdfast_engine::obligations::{Answered, Claimed, Lease, LeaseToken, Standing, StoreFailed, Stored};

/// Both clocks at one time. Whatever ours says, what lies between two moments is the same on both.
#[derive(Clone, Copy)]
pub(super) struct Clocks {
    pub(super) ours: Timestamp,
    pub(super) theirs: u64,
}

impl Clocks {
    /// A moment of the server's, by our clock.
    pub(super) fn ours(self, theirs: u64) -> Timestamp {
        let ours = u128::from(self.ours.millis()) + u128::from(theirs);
        Timestamp::from_millis(u64::try_from(ours.saturating_sub(u128::from(self.theirs))).unwrap_or(u64::MAX))
    }
}

/// How one stands, as `described` in `common.lua` says it.
pub(super) type Described = Vec<String>;

pub(super) fn stored(described: &Described, clocks: Clocks) -> Answered<Stored> {
    let [id, body, attempts, reason, place, at, worker] = described.as_slice() else {
        return Err(strange("a record with other fields"));
    };
    let unreadable = |_| strange(&format!("the record of {id}"));
    let at = || millis(at).map(|at| clocks.ours(at));
    let standing = match place.as_str() {
        "dead" => Standing::Dead,
        "due" => Standing::Due { at: at()? },
        _ => Standing::Leased { worker: worker.parse().map_err(|_| strange("a worker's name"))?, until: at()? },
    };
    Ok(Stored {
        obligation: line::decode(body).map_err(unreadable)?,
        attempts: number(attempts)?,
        reason: text(reason),
        standing,
    })
}

/// What was claimed, or the lease on what cannot be read.
pub(super) fn claimed(id: &str, body: &str, attempts: &str, token: LeaseToken) -> Answered<Result<Claimed, Lease>> {
    let id: ObligationId = id.parse().map_err(|_| strange("an id"))?;
    let lease = Lease { id, token };
    let attempts = number(attempts)?;
    Ok(match line::decode(body) {
        Ok(obligation) if obligation.id == id => Ok(Claimed { obligation, lease, attempts }),
        Ok(_) | Err(_) => Err(lease),
    })
}

/// A score, which Redis keeps as a float: a whole one up to 2^53.
pub(super) fn millis(score: &str) -> Answered<u64> {
    score.parse().map_err(|_| strange("a moment"))
}

pub(super) fn number<T: std::str::FromStr>(digits: &str) -> Answered<T> {
    digits.parse().map_err(|_| strange("a number"))
}

fn text(reason: &str) -> Option<Reason> {
    reason.parse().ok()
}

pub(super) fn strange(what: &str) -> StoreFailed {
    StoreFailed(format!("redis holds what was not written by us: {what} cannot be read"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_as_far_away_on_our_clock_as_on_theirs() {
        let clocks = Clocks { ours: Timestamp::from_millis(1_000), theirs: 5_000_000 };
        assert_eq!(clocks.ours(5_000_000), Timestamp::from_millis(1_000));
        assert_eq!(clocks.ours(5_000_500), Timestamp::from_millis(1_500));
        assert_eq!(clocks.ours(0), Timestamp::EPOCH);
        assert_eq!(clocks.ours(u64::MAX), Timestamp::from_millis(u64::MAX - 4_999_000));
    }
}
