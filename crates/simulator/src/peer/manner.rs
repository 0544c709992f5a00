//! What the peer can do with a call, and how often it does each.

use crate::rng::Rng;

/// What is done with one call. Those that begin with `Takes` apply the charge first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Manner {
    /// Applies, and says 200, or 409 if it knew it.
    Honest,
    /// Applies, and says 200 whether it knew it or not.
    Takes200,
    /// Applies, and answers byte by byte.
    TakesSlowly,
    /// Applies, and answers in chunks.
    TakesInChunks,
    /// Applies, and says 103 before 200.
    TakesInforming,
    /// Applies, and closes without a word.
    TakesAndDrops,
    /// Applies, and says 500.
    TakesAndFails,
    /// Applies, and closes in the middle of the head.
    TakesAndCutsHead,
    /// Applies, says 200, and closes in the middle of the body.
    TakesAndCutsBody,
    /// Applies, and sends garbage.
    TakesAndGarbles,
    /// Applies, says 200, and sends megabytes.
    TakesAndFloods,
    /// Applies, and says nothing until the caller gives up.
    TakesAndHangs,
    /// Closes without a word.
    Drops,
    /// 500, 502 or 504.
    Fails,
    /// 503.
    Unavailable,
    /// 429, and to come back in a second.
    TooManySeconds,
    /// 429, and to come back at a date that is past.
    TooManyDate,
    /// 429, and to come back in words that nobody understands.
    TooManyNonsense,
    /// A redirect to another path of the same server.
    Redirects,
    /// Bytes that are no HTTP.
    Garbles,
    /// Headers without end.
    FloodsHead,
    /// 500 with megabytes.
    FailsAndFloods,
    /// Says nothing until the caller gives up.
    Hangs,
}

/// Every manner, with how often it happens among 1,000 calls of a hostile peer.
const ALL: [(Manner, u32); 23] = [
    (Manner::Honest, 587),
    (Manner::Takes200, 30),
    (Manner::TakesSlowly, 10),
    (Manner::TakesInChunks, 20),
    (Manner::TakesInforming, 20),
    (Manner::TakesAndDrops, 40),
    (Manner::TakesAndFails, 30),
    (Manner::TakesAndCutsHead, 20),
    (Manner::TakesAndCutsBody, 15),
    (Manner::TakesAndGarbles, 15),
    (Manner::TakesAndFloods, 3),
    (Manner::TakesAndHangs, 1),
    (Manner::Drops, 40),
    (Manner::Fails, 60),
    (Manner::Unavailable, 30),
    (Manner::TooManySeconds, 4),
    (Manner::TooManyDate, 10),
    (Manner::TooManyNonsense, 10),
    (Manner::Redirects, 25),
    (Manner::Garbles, 24),
    (Manner::FloodsHead, 3),
    (Manner::FailsAndFloods, 2),
    (Manner::Hangs, 1),
];

impl Manner {
    /// Every one of them.
    pub fn all() -> impl Iterator<Item = Self> {
        ALL.iter().map(|(manner, _)| *manner)
    }

    /// Whether the charge is applied before anything is said.
    #[must_use]
    pub const fn takes(self) -> bool {
        match self {
            Self::Honest
            | Self::Takes200
            | Self::TakesSlowly
            | Self::TakesInChunks
            | Self::TakesInforming
            | Self::TakesAndDrops
            | Self::TakesAndFails
            | Self::TakesAndCutsHead
            | Self::TakesAndCutsBody
            | Self::TakesAndGarbles
            | Self::TakesAndFloods
            | Self::TakesAndHangs => true,
            Self::Drops
            | Self::Fails
            | Self::Unavailable
            | Self::TooManySeconds
            | Self::TooManyDate
            | Self::TooManyNonsense
            | Self::Redirects
            | Self::Garbles
            | Self::FloodsHead
            | Self::FailsAndFloods
            | Self::Hangs => false,
        }
    }

    /// Whether it holds its caller up until that one gives up.
    #[must_use]
    pub const fn hangs(self) -> bool {
        matches!(self, Self::Hangs | Self::TakesAndHangs)
    }
}

/// How often each manner happens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mix([u32; ALL.len()]);

impl Mix {
    /// Nothing but what is right.
    #[must_use]
    pub fn honest() -> Self {
        Self::of(&[Manner::Honest])
    }

    /// Everything, in the proportions of a bad day.
    #[must_use]
    pub fn hostile() -> Self {
        Self(ALL.map(|(_, weight)| weight))
    }

    /// These, as often as each other.
    #[must_use]
    pub fn of(manners: &[Manner]) -> Self {
        Self(ALL.map(|(manner, _)| u32::from(manners.contains(&manner))))
    }

    /// The same without those that wait for the caller's patience to end.
    #[must_use]
    pub fn without_hangs(self) -> Self {
        let mut weights = self.0;
        for (weight, (manner, _)) in weights.iter_mut().zip(ALL) {
            if manner.hangs() {
                *weight = 0;
            }
        }
        Self(weights)
    }

    /// What is done with the `asked`th call about an id, with what is random about it.
    pub(super) fn choose(&self, seed: u64, id: &str, asked: u64) -> (Manner, Rng) {
        let mut rng = of_id(seed ^ asked.rotate_left(32), id);
        let manner = ALL.get(rng.weighted(&self.0)).map_or(Manner::Honest, |(manner, _)| *manner);
        (manner, rng)
    }
}

/// What is random about an id.
pub(super) fn of_id(seed: u64, id: &str) -> Rng {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes()).update(id.as_bytes());
    let hash = hasher.finalize();
    let mut first = [0; 8];
    first.copy_from_slice(hash.as_bytes().get(..8).unwrap_or(&[0; 8]));
    Rng::new(u64::from_le_bytes(first))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn what_is_done_follows_from_the_seed_the_id_and_the_number_of_the_call() {
        let (mix, ids) = (Mix::hostile(), (0..20_000).map(|number| format!("r{number}")).collect::<Vec<_>>());
        let all = |seed, asked| ids.iter().map(|id| mix.choose(seed, id, asked).0).collect::<Vec<_>>();
        assert_eq!(all(1, 1), all(1, 1));
        assert_ne!(all(1, 1), all(1, 2));
        assert_ne!(all(1, 1), all(2, 1));
        assert_eq!(all(1, 1).into_iter().collect::<HashSet<_>>(), Manner::all().collect(), "every manner happens");
    }

    #[test]
    fn a_mix_has_what_it_was_made_of() {
        let chosen = |mix: Mix| (0..2_000).map(|number| mix.choose(7, "r", number).0).collect::<HashSet<_>>();
        assert_eq!(chosen(Mix::honest()), HashSet::from([Manner::Honest]));
        let two = [Manner::Hangs, Manner::Fails];
        assert_eq!(chosen(Mix::of(&two)), HashSet::from(two));
        assert_eq!(chosen(Mix::of(&two).without_hangs()), HashSet::from([Manner::Fails]));
    }
}
