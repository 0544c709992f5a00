//! The work that every subject does: the same numbers, from the same seed.

/// How many payers there are; their ids are `0..PAYERS`.
pub const PAYERS: u64 = 10_000;
/// What every payer starts with: more than any run can reserve.
pub const FUNDS: u64 = 1_000_000_000_000;
/// What every hold reserves.
pub const HELD: u64 = 1_000;

/// One hold, from its reserve to its commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    /// The hold's id, used once.
    pub hold: u64,
    /// Who pays.
    pub payer: u64,
    /// What is committed of `HELD`: from 1 to all of it.
    pub actual: u64,
}

/// An endless supply of orders for one caller.
#[derive(Debug)]
pub struct Work {
    next_hold: u64,
    random: u64,
}

impl Work {
    /// The work of the caller with this number; no two callers share a hold's id.
    #[must_use]
    pub const fn of_caller(caller: u64) -> Self {
        // Below 2^63, because PostgreSQL's bigint is signed, and below 2^53, because Lua's numbers are doubles.
        let next_hold = (caller + 1) << 36;
        Self { next_hold, random: next_hold }
    }

    /// Replaces `orders` by the next `count`.
    pub fn fill(&mut self, orders: &mut Vec<Order>, count: usize) {
        orders.clear();
        orders.extend((0..count).map(|_| self.order()));
    }

    fn order(&mut self) -> Order {
        let hold = self.next_hold;
        self.next_hold += 1;
        Order { hold, payer: self.random_below(PAYERS), actual: 1 + self.random_below(HELD) }
    }

    /// SplitMix64: good enough to spread payers, and four lines instead of a dependency.
    const fn random_below(&mut self, limit: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_stay_in_bounds_and_repeat_with_the_caller() {
        let [mut orders, mut again] = [Vec::new(), Vec::new()];
        Work::of_caller(3).fill(&mut orders, 10_000);
        Work::of_caller(3).fill(&mut again, 10_000);
        assert_eq!(orders, again);
        assert!(orders.iter().all(|order| order.payer < PAYERS && (1..=HELD).contains(&order.actual)));
        assert!(orders.iter().any(|order| order.actual == HELD), "the whole amount is committed now and then");
    }

    #[test]
    fn no_two_callers_share_a_hold() {
        let first_hold = |caller| Work::of_caller(caller).order().hold;
        assert!(first_hold(1) - first_hold(0) > 1 << 35);
        assert!(first_hold(1_023) < 1 << 53);
    }
}
