//! Budgets: how much may be held and charged in one name, in a day and in all.
//!
//! A name is a key, a user, a team, an organisation: a charge counts against each that it was reserved under, and all of
//! them are checked in the same decision as the balance. What a budget has used moves opposite to what its owner can spend:
//! a reserve uses, what comes back is unused again.
//!
//! # Invariants
//! - What is used in all is what the charges under this name hold and have charged: never below zero.
//! - What is used on a day is never less than what that day's reserves hold and have charged. A part that comes back on a
//!   later day, or was added on one, stays counted where it was: a limit errs to the safe side.

use crate::id::BudgetId;
use crate::money::{Change, CreditUnit, Overflow};
use crate::time::Day;

/// The most budgets that a charge counts against: key, user, team, organisation.
pub const BUDGETS_MAX: usize = 4;

/// A limit in one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// In whose name.
    pub id: BudgetId,
    /// The most on one day (UTC).
    pub per_day: Option<CreditUnit>,
    /// The most in all.
    pub in_total: Option<CreditUnit>,
}

/// The budgets that a charge counts against. Most have none, which takes no memory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Budgets(Option<Box<[Budget]>>);

/// More than [`BUDGETS_MAX`] budgets, or one name twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotBudgets;

impl Budgets {
    /// No budget at all.
    pub const NONE: Self = Self(None);

    /// The given ones, in their order.
    pub fn new(budgets: &[Budget]) -> Result<Self, NotBudgets> {
        let mut rest = budgets;
        while let [first, others @ ..] = rest {
            if others.iter().any(|other| other.id == first.id) {
                return Err(NotBudgets);
            }
            rest = others;
        }
        match budgets.len() {
            0 => Ok(Self::NONE),
            1..=BUDGETS_MAX => Ok(Self(Some(budgets.into()))),
            _ => Err(NotBudgets),
        }
    }

    /// Each of them.
    #[must_use]
    pub fn as_slice(&self) -> &[Budget] {
        self.0.as_deref().unwrap_or_default()
    }
}

/// What a budget has used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Used {
    /// The newest day on which anything was reserved.
    pub day: Day,
    /// On that day.
    pub today: CreditUnit,
    /// In all.
    pub total: CreditUnit,
}

/// Which limit would be passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverBudget {
    /// In whose name.
    pub id: BudgetId,
    /// The limit.
    pub limit: CreditUnit,
    /// What has been used of it.
    pub used: CreditUnit,
    /// Whether it is the day's limit.
    pub window: Window,
}

/// The time that a limit is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Window {
    /// One day (UTC).
    Day,
    /// For ever.
    Total,
}

impl Used {
    /// Nothing yet.
    pub const NOTHING: Self = Self { day: Day::EPOCH, today: CreditUnit::ZERO, total: CreditUnit::ZERO };

    /// What has been used on `day`, which is not before any that was counted.
    #[must_use]
    pub fn on(&self, day: Day) -> CreditUnit {
        if self.day == day { self.today } else { CreditUnit::ZERO }
    }

    /// Whether `amount` more may be held under `budget` on `day`.
    pub fn admits(&self, budget: &Budget, amount: CreditUnit, day: Day) -> Result<(), OverBudget> {
        let windows = [(budget.per_day, self.on(day), Window::Day), (budget.in_total, self.total, Window::Total)];
        for (limit, used, window) in windows {
            if let Some(limit) = limit
                && used.checked_add(amount).map_or(true, |sum| sum > limit)
            {
                return Err(OverBudget { id: budget.id, limit, used, window });
            }
        }
        Ok(())
    }

    /// What has been used after an entry of a charge that was reserved on `reserved`, made on `day`, has changed what its
    /// owner can spend by `available`.
    pub fn after(self, available: Change, reserved: Day, day: Day) -> Result<Self, Overflow> {
        let used = available.negated()?;
        let total = Change::plus(self.total).checked_add(used)?.amount()?;
        let today = Change::plus(self.on(day));
        let today = match used < Change::ZERO {
            false => today.checked_add(used)?.amount()?,
            // What comes back is unused on the day it was reserved, or on none.
            true if reserved == day => today.checked_add(used)?.amount()?,
            true => today.amount()?,
        };
        Ok(Self { day: day.max(self.day), today, total })
    }
}
