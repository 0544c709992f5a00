//! What budgets have used, counted anew from the whole history each time: slow, and hard to get wrong.

use super::{AMOUNT_MAX, Model, No, unit, units};
use holdfast_domain::budget::{OverBudget, Used, Window};
use holdfast_domain::charge::Event as ChargeEvent;
use holdfast_domain::{Budget, BudgetId, ChargeId, CreditUnit, Event};
use holdfast_engine::Refusal;

const DAY_MS: u64 = 24 * 60 * 60 * 1_000;

impl Model {
    /// The limits that a charge was reserved under, and the day.
    pub(super) fn limits_of(&self, charge: ChargeId) -> (&[Budget], u64) {
        let reserved = self.history.iter().find_map(|past| match &*past.receipt.event {
            Event::Charge { id, event: ChargeEvent::Reserved { budgets, .. }, .. } if *id == charge => {
                Some((budgets.as_slice(), past.receipt.at.millis() / DAY_MS))
            }
            Event::Charge { .. } | Event::Minted(_) | Event::Escrow { .. } => None,
        });
        reserved.unwrap_or((&[], 0))
    }

    /// What a budget has used on a day, and in all.
    fn used(&self, budget: BudgetId, day: u64) -> (i128, i128) {
        let (mut today, mut total) = (0, 0);
        for past in &self.history {
            let Event::Charge { id, .. } = &*past.receipt.event else { continue };
            let (limits, reserved) = self.limits_of(*id);
            if limits.iter().any(|limit| limit.id == budget) {
                let used = -past.available;
                total += used;
                let on_the_day = past.receipt.at.millis() / DAY_MS == day;
                if on_the_day && (used > 0 || reserved == day) {
                    today += used;
                }
            }
        }
        (today, total)
    }

    /// Whether what is used stays an amount in every name that the event's charge counts against, if it changes what its owner
    /// can spend by `available`. Several owners may spend in one name, so that it can have used more than any of them can have.
    pub(super) fn usage_stays_in_range(&self, event: &Event, available: i128, now: u64) -> bool {
        let ever: i128 = self.history.iter().map(|past| past.available.abs()).sum();
        let Event::Charge { id, event, .. } = event else { return true };
        if available == 0 || ever + available.abs() <= AMOUNT_MAX {
            return true;
        }
        let (limits, reserved) = if let ChargeEvent::Reserved { budgets, .. } = event {
            (budgets.as_slice(), now / DAY_MS)
        } else {
            self.limits_of(*id)
        };
        let in_range = |used: i128| (0..=AMOUNT_MAX).contains(&used);
        limits.iter().all(|limit| {
            let (today, total) = self.used(limit.id, now / DAY_MS);
            let counts_today = available < 0 || reserved == now / DAY_MS;
            in_range(total - available) && in_range(if counts_today { today - available } else { today })
        })
    }

    /// Refuses `amount` more, if one of the limits would be passed.
    pub(super) fn check_limits(&self, limits: &[Budget], amount: CreditUnit, now: u64) -> Result<(), No> {
        for Budget { id, per_day, in_total } in limits {
            let (today, total) = self.used(*id, now / DAY_MS);
            for (limit, used, window) in [(per_day, today, Window::Day), (in_total, total, Window::Total)] {
                if let Some(limit) = *limit
                    && used + units(amount) > units(limit)
                {
                    let over = Box::new(OverBudget { id: *id, limit, used: unit(used), window });
                    return Err(Refusal::BudgetExceeded { over, required: amount }.into());
                }
            }
        }
        Ok(())
    }

    /// Whether `used` is what a budget has used.
    #[must_use]
    pub fn has_used(&self, budget: BudgetId, used: &Used) -> bool {
        (units(used.today), units(used.total)) == self.used(budget, used.day.number())
    }

    /// Every budget that was ever named by an entry.
    pub fn budgets(&self) -> impl Iterator<Item = BudgetId> {
        let named = self.history.iter().flat_map(|past| past.receipt.event.budgets());
        let mut names: Vec<BudgetId> = named.map(|budget| budget.id).collect();
        names.sort_unstable();
        names.dedup();
        names.into_iter()
    }
}
