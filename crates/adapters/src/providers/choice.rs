//! In which order the targets of a pool are tried: by priority, and within one by weight. A pure function.

/// What decides about a target's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rank {
    /// Lower goes first.
    pub priority: u32,
    /// Within one priority, twice the weight goes first twice as often. Zero goes last.
    pub weight: u32,
}

/// The order in which to try targets, as their indexes; `random` is any number.
#[must_use]
pub fn order(ranks: &[Rank], random: u64) -> Vec<usize> {
    let mut left: Vec<usize> = (0..ranks.len()).collect();
    if left.len() < 2 {
        return left;
    }
    left.sort_by_key(|index| ranks.get(*index).map(|rank| rank.priority));
    let mut ordered = Vec::with_capacity(left.len());
    let mut random = random;
    let priority = |index: &usize| ranks.get(*index).map_or(u32::MAX, |rank| rank.priority);
    while let Some(first) = left.first().map(priority) {
        let equals = left.iter().take_while(|index| priority(index) == first).count();
        random = scrambled(random);
        let weights = left.iter().take(equals).map(|index| ranks.get(*index).map_or(0, |rank| rank.weight));
        ordered.push(left.remove(drawn(weights, random)));
    }
    ordered
}

/// Which of these weights a random number falls on.
fn drawn(weights: impl Iterator<Item = u32> + Clone, random: u64) -> usize {
    let total: u64 = weights.clone().map(u64::from).sum();
    let Some(mut mark) = random.checked_rem(total) else { return 0 };
    for (index, weight) in weights.map(u64::from).enumerate() {
        match mark.checked_sub(weight) {
            None => return index,
            Some(rest) => mark = rest,
        }
    }
    0
}

/// The next number of a well mixed sequence (SplitMix64).
const fn scrambled(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ranks(pairs: &[(u32, u32)]) -> Vec<Rank> {
        pairs.iter().map(|(priority, weight)| Rank { priority: *priority, weight: *weight }).collect()
    }

    #[test]
    fn twice_the_weight_goes_first_twice_as_often() {
        let ranks = ranks(&[(1, 5), (0, 1), (0, 2), (0, 0)]);
        let mut first = [0_u32; 4];
        for random in 0..30_000 {
            let order = order(&ranks, random);
            assert_eq!(
                (order[2], order[3]),
                (3, 0),
                "no weight is last of its priority, and a later priority after it"
            );
            first[order[0]] += 1;
        }
        assert!((9_500..10_500).contains(&first[1]), "{first:?}");
        assert_eq!((first[0], first[3], first[1] + first[2]), (0, 0, 30_000));
    }

    proptest! {
        #[test]
        fn every_target_is_tried_once_and_priorities_rise(pairs in proptest::collection::vec((0..3_u32, any::<u32>()), 0..8), random: u64) {
            let ranks = ranks(&pairs);
            let order = order(&ranks, random);
            prop_assert!(order.is_sorted_by_key(|index| ranks[*index].priority));
            let mut sorted = order.clone();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (0..ranks.len()).collect::<Vec<_>>());
        }
    }
}
