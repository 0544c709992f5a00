//! Budgets: what counts against them, on which day, and when they say no.

use crate::table::{credits, id};
use holdfast_domain::budget::{BUDGETS_MAX, NotBudgets, OverBudget, Used, Window};
use holdfast_domain::{Budget, Budgets, Change, CreditUnit, Day, Overflow};
use proptest::prelude::*;

fn cu(amount: &str) -> CreditUnit {
    credits(amount).expect("an amount")
}

fn day(number: u64) -> Day {
    Day::from_number(number)
}

fn used(number: u64, today: &str, total: &str) -> Used {
    Used { day: day(number), today: cu(today), total: cu(total) }
}

#[test]
fn a_limit_admits_exactly_as_much_as_is_left_of_it() {
    let limits = |per_day: Option<&str>, in_total: Option<&str>| Budget {
        id: id("key"),
        per_day: per_day.map(cu),
        in_total: in_total.map(cu),
    };
    let before = used(7, "60", "90");
    let over = |limit, used, window| Err(OverBudget { id: id("key"), limit: cu(limit), used: cu(used), window });
    for (budget, amount, on, expected) in [
        (limits(None, None), "1000000000000", 7, Ok(())),
        (limits(Some("100"), None), "40", 7, Ok(())),
        (limits(Some("100"), None), "40.000001", 7, over("100", "60", Window::Day)),
        (limits(Some("100"), None), "100", 8, Ok(())),
        (limits(Some("100"), None), "100.000001", 8, over("100", "0", Window::Day)),
        (limits(None, Some("100")), "10", 8, Ok(())),
        (limits(None, Some("100")), "10.000001", 8, over("100", "90", Window::Total)),
        (limits(Some("100"), Some("100")), "40", 7, over("100", "90", Window::Total)),
        (limits(Some("1000000000000"), None), "1000000000000", 7, over("1000000000000", "60", Window::Day)),
        (limits(Some("0"), None), "0.000001", 9, over("0", "0", Window::Day)),
    ] {
        assert_eq!(before.admits(&budget, cu(amount), day(on)), expected, "{budget:?} {amount} on {on}");
    }
}

#[test]
fn what_comes_back_is_unused_on_the_day_of_its_reserve_only() {
    let back = Change::plus(cu("30"));
    let before = used(7, "60", "90");
    assert_eq!(before.after(back, day(7), day(7)), Ok(used(7, "30", "60")));
    assert_eq!(before.after(back, day(6), day(7)), Ok(used(7, "60", "60")));
    assert_eq!(before.after(back, day(7), day(8)), Ok(used(8, "0", "60")));
    assert_eq!(before.after(Change::minus(cu("5")), day(6), day(8)), Ok(used(8, "5", "95")));
    assert_eq!(before.after(Change::plus(cu("90.000001")), day(6), day(8)), Err(Overflow));
}

#[test]
fn budgets_are_few_and_each_of_another_name() {
    let named = |name: &str| Budget { id: id(name), per_day: None, in_total: None };
    let five: Vec<_> = ["a", "b", "c", "d", "e"].map(named).into();
    assert_eq!(Budgets::new(&[]), Ok(Budgets::NONE));
    assert_eq!(Budgets::new(&five[..BUDGETS_MAX]).map(|budgets| budgets.as_slice().len()), Ok(BUDGETS_MAX));
    assert_eq!(Budgets::new(&five), Err(NotBudgets));
    assert_eq!(Budgets::new(&[named("a"), named("b"), named("a")]), Err(NotBudgets));
}

proptest! {
    /// Reserves that the limit admits, some of them given back in part: the day's limit is never passed.
    #[test]
    fn no_order_of_reserves_and_returns_passes_a_limit(
        steps in proptest::collection::vec((1_u64..100, 0_u64..=100, 0_u64..2), 1..60),
    ) {
        let limit = CreditUnit::new(150).expect("small");
        let budget = Budget { id: id("key"), per_day: Some(limit), in_total: None };
        let (mut used, mut today) = (Used::NOTHING, 1);
        let mut kept_today = 0;
        for (amount, part, passes) in steps {
            if passes > 0 {
                (today, kept_today) = (today + 1, 0);
            }
            let amount = CreditUnit::new(amount).expect("small");
            if used.admits(&budget, amount, day(today)).is_ok() {
                used = used.after(Change::minus(amount), day(today), day(today)).expect("small");
                let back = CreditUnit::new(amount.units() * part / 100).expect("small");
                used = used.after(Change::plus(back), day(today), day(today)).expect("no more than was used");
                kept_today += amount.units() - back.units();
            }
            prop_assert!(kept_today <= limit.units());
            prop_assert_eq!(used.on(day(today)).units(), kept_today);
        }
    }
}
