//! Which charges are made: ids, accounts, amounts and fates, all from the seed.

use crate::rng::Rng;
use holdfast_domain::CreditUnit;
use serde_json::{Value, json};

const ACCOUNTS: u64 = 20;
/// The dearest charge, in millionths of a credit.
const COST_MAX: u64 = 5_000_000;
/// One in so many is released instead.
const RELEASED_ONE_IN: u64 = 20;

/// What becomes of a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// So much is charged, in millionths.
    Committed(u64),
    /// Nothing is: the peer must never hear of it.
    Released,
}

/// One hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Planned {
    pub(super) id: String,
    pub(super) account: String,
    pub(super) fate: Fate,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) holds: Vec<Planned>,
}

impl Plan {
    pub(super) fn new(charges: u64, seed: u64, rng: &mut Rng) -> Self {
        let one = |number| {
            let account = format!("account-{}", rng.below(ACCOUNTS));
            let is_released = rng.one_in(RELEASED_ONE_IN);
            let fate = if is_released { Fate::Released } else { Fate::Committed(rng.between(1, COST_MAX)) };
            Planned { id: format!("d{seed}-{number}"), account, fate }
        };
        Self { holds: (0..charges).map(one).collect() }
    }

    pub(super) fn committed(&self) -> u64 {
        self.holds.iter().filter(|planned| planned.fate != Fate::Released).count() as u64
    }

    /// Whose money is needed.
    pub(super) fn accounts() -> impl Iterator<Item = String> {
        (0..ACCOUNTS).map(|number| format!("account-{number}"))
    }
}

impl Planned {
    /// The two requests that make it so, each of which can be sent again.
    pub(super) fn requests(&self) -> [Value; 2] {
        let held = text(COST_MAX);
        let reserve = json!({ "op": "reserve", "account_id": self.account, "request_id": self.id, "amount_cu": held });
        let end = match self.fate {
            Fate::Committed(cost) => json!({ "op": "commit", "id": self.id, "actual_cu": text(cost) }),
            Fate::Released => json!({ "op": "release", "id": self.id }),
        };
        [reserve, end]
    }
}

/// Millionths as credits.
fn text(units: u64) -> String {
    CreditUnit::new(units).map(|amount| amount.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_follows_from_its_seed_and_has_both_fates() {
        let plan = |seed| Plan::new(500, seed, &mut Rng::new(seed));
        assert_eq!(plan(1).holds, plan(1).holds);
        assert_ne!(plan(1).holds, plan(2).holds);
        let committed = plan(1).committed();
        assert!((400..500).contains(&committed), "{committed}");
        let [reserve, _] = plan(1).holds[0].requests();
        assert_eq!(reserve["amount_cu"], "5");
    }
}
