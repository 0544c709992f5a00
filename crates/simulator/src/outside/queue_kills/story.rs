//! What callers ask of the queue and its wallet, and what they were told. All plans follow from the seed.

use crate::rng::Rng;
use holdfast_domain::CreditUnit;
use holdfast_domain::queue::{Cause, Verdict};
use serde_json::{Value, json};

const USERS: u64 = 8;
const PAYEES: u64 = 5;
/// The dearest work, in millionths of a credit.
const AMOUNT_MAX: u64 = 5_000_000;
/// What kind of work it is. Nobody drops a rope for it.
pub(super) const FEATURE: &str = "solo";
/// Work of this kind is given up at once if nobody takes it up.
pub(super) const BRIEF: &str = "brief";

/// What is to become of one piece of work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fate {
    /// Taken up, and ended by one of these, all asked for at the same time.
    Ended(Vec<Verdict>),
    /// Given up by these before it is taken up, at the same time.
    GivenUp(Vec<Verdict>),
    /// Nobody takes it up, and its rope drops.
    Dropped,
    /// It still waits when all is over.
    Waiting,
    /// It is still at work when all is over.
    Working,
}

/// One piece of work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    /// Its name, from which all its keys are made.
    pub(super) name: String,
    pub(super) user: String,
    pub(super) payee: String,
    pub(super) amount: CreditUnit,
    pub(super) fate: Fate,
}

/// What a caller was told of an end that it asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Told {
    /// It is done, and the item is now so.
    Done(Value),
    /// The item is in this state, which does not allow it.
    Not(String),
}

/// A piece of work, and what its callers were told.
#[derive(Debug, Clone)]
pub(super) struct Story {
    pub(super) plan: Plan,
    pub(super) escrow: String,
    pub(super) item: String,
    /// Whether somebody was told that it is taken up.
    pub(super) is_started: bool,
    pub(super) told: Vec<(Verdict, Told)>,
}

impl Plan {
    /// The piece of work with this number.
    pub(super) fn new(seed: u64, number: u64) -> Self {
        let mut rng = Rng::new(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let amount = rng.between(1, AMOUNT_MAX);
        let fate = match rng.weighted(&[60, 25, 10, 6, 2, 2]) {
            0 => Fate::Ended(vec![verdict(&mut rng, amount)]),
            1 => Fate::Ended((0..rng.between(2, 4)).map(|_| verdict(&mut rng, amount)).collect()),
            2 => Fate::GivenUp((0..rng.between(1, 2)).map(|_| abandon(&mut rng)).collect()),
            3 => Fate::Dropped,
            4 => Fate::Waiting,
            _ => Fate::Working,
        };
        Self {
            name: format!("k{seed}-{number}"),
            user: format!("user-{}", rng.below(USERS)),
            payee: format!("payee-{}", rng.below(PAYEES)),
            amount: units(amount),
            fate,
        }
    }

    /// Whose money is needed.
    pub(super) fn users() -> impl Iterator<Item = String> {
        (0..USERS).map(|number| format!("user-{number}"))
    }

    /// Who may earn it.
    pub(super) fn payees() -> impl Iterator<Item = String> {
        (0..PAYEES).map(|number| format!("payee-{number}"))
    }

    pub(super) const fn feature(&self) -> &'static str {
        match self.fate {
            Fate::Dropped => BRIEF,
            Fate::Ended(_) | Fate::GivenUp(_) | Fate::Waiting | Fate::Working => FEATURE,
        }
    }

    /// The key of its hold.
    pub(super) fn hold_key(&self) -> String {
        format!("{}-hold", self.name)
    }

    pub(super) fn hold(&self) -> Value {
        let Self { user, amount, .. } = self;
        let feature = self.feature();
        json!({ "userId": user, "amount": amount.to_string(), "featureType": feature, "idempotencyKey": self.hold_key() })
    }

    pub(super) fn intake(&self, escrow: &str) -> Value {
        let Self { user, payee, amount, .. } = self;
        let amount = amount.to_string();
        let feature = self.feature();
        json!({ "userId": user, "modelId": payee, "escrowId": escrow, "amount": amount, "featureType": feature })
    }

    /// The ends that are asked for.
    pub(super) fn verdicts(&self) -> &[Verdict] {
        match &self.fate {
            Fate::Ended(verdicts) | Fate::GivenUp(verdicts) => verdicts,
            Fate::Dropped => &[Verdict::Abandon { cause: Cause::RopeDropTimeout }],
            Fate::Waiting | Fate::Working => &[],
        }
    }
}

/// The last word of the path, and the body, of what asks for a verdict.
pub(super) fn request(verdict: Verdict) -> (&'static str, Value) {
    match verdict {
        Verdict::Finish => ("finish", json!({})),
        Verdict::Abandon { cause } => ("abandon", json!({ "reason": cause.name() })),
        Verdict::Partial { settle, refund, cause } => {
            let (settle, refund) = (settle.to_string(), refund.to_string());
            ("partial", json!({ "settleAmount": settle, "refundAmount": refund, "reason": cause.name() }))
        }
    }
}

fn verdict(rng: &mut Rng, amount: u64) -> Verdict {
    match rng.weighted(&[4, 2, 3]) {
        0 => Verdict::Finish,
        1 => abandon(rng),
        _ => {
            let settle = rng.between(0, amount);
            let cause = rng.pick(&[Cause::PartialDelivery, Cause::QualityIssue]).unwrap_or(Cause::PartialDelivery);
            Verdict::Partial { settle: units(settle), refund: units(amount - settle), cause }
        }
    }
}

fn abandon(rng: &mut Rng) -> Verdict {
    let causes = [Cause::UserDisconnected, Cause::PerformerDeclined, Cause::AdminCancelled];
    Verdict::Abandon { cause: rng.pick(&causes).unwrap_or(Cause::AdminCancelled) }
}

fn units(units: u64) -> CreditUnit {
    CreditUnit::new(units).unwrap_or(CreditUnit::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_follow_from_the_seed_and_have_every_fate() {
        let plans = |seed| (0..1_000).map(|number| Plan::new(seed, number)).collect::<Vec<_>>();
        assert_eq!(plans(1), plans(1));
        assert_ne!(plans(1), plans(2));
        let count = |wanted: fn(&Fate) -> bool| plans(1).iter().filter(|plan| wanted(&plan.fate)).count();
        assert!(count(|fate| matches!(fate, Fate::Ended(all) if all.len() > 1)) > 100);
        assert!(count(|fate| matches!(fate, Fate::Waiting)) > 0);
        assert!(count(|fate| matches!(fate, Fate::Working)) > 0);
        assert!(count(|fate| matches!(fate, Fate::Dropped)) > 0);
        assert!(count(|fate| matches!(fate, Fate::GivenUp(all) if all.len() > 1)) > 0);
    }

    #[test]
    fn both_parts_of_every_division_are_the_whole() {
        for plan in (0..1_000).map(|number| Plan::new(7, number)) {
            for verdict in plan.verdicts() {
                if let Verdict::Partial { settle, refund, .. } = verdict {
                    assert_eq!(settle.checked_add(*refund), Ok(plan.amount));
                }
            }
        }
    }
}
