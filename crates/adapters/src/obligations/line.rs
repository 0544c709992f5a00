//! An obligation as text: what stores keep of it, and the line of the log that brings it back when a store could not.
//!
//! ```text
//! {"level":"ERROR","event":"obligation_not_stored","obligation":{"reservation_id":"chg_1","charge_id":"chg_1",
//!  "tenant_id":"alice","actual_cost_micro":"12500","created_at_ms":1700000000000}}        (one line)
//! ```
//!
//! # Invariants
//! - What is written is read back to the last digit: costs are texts, and no float is near them.
//! - A line is JSON on one line, whatever else is in the log around it.

use holdfast_domain::delivery::Obligation;
use holdfast_domain::{CreditUnit, Timestamp};
use serde::{Deserialize, Serialize};

/// The event that marks a line.
pub const EVENT: &str = "obligation_not_stored";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    reservation_id: String,
    charge_id: String,
    tenant_id: String,
    actual_cost_micro: String,
    created_at_ms: u64,
}

#[derive(Serialize, Deserialize)]
struct Line<'a> {
    level: &'a str,
    event: &'a str,
    obligation: Body,
}

/// Why a text is not an obligation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not an obligation: {0}")]
pub struct NotAnObligation(String);

impl From<&Obligation> for Body {
    fn from(obligation: &Obligation) -> Self {
        Self {
            reservation_id: obligation.id.to_string(),
            charge_id: obligation.charge.to_string(),
            tenant_id: obligation.owner.to_string(),
            actual_cost_micro: obligation.cost.units().to_string(),
            created_at_ms: obligation.created_at.millis(),
        }
    }
}

impl TryFrom<Body> for Obligation {
    type Error = NotAnObligation;

    fn try_from(body: Body) -> Result<Self, NotAnObligation> {
        let refused = |error: &dyn std::fmt::Display| NotAnObligation(error.to_string());
        let digits = &body.actual_cost_micro;
        let units = digits.parse::<u64>().map_err(|error| refused(&error))?;
        // One text per amount: "+1" and "01" are not what was written.
        if units.to_string() != *digits {
            return Err(NotAnObligation("the cost is not plain digits".to_owned()));
        }
        Ok(Self {
            id: body.reservation_id.parse().map_err(|error| refused(&error))?,
            charge: body.charge_id.parse().map_err(|error| refused(&error))?,
            owner: body.tenant_id.parse().map_err(|error| refused(&error))?,
            cost: CreditUnit::new(units).map_err(|_| NotAnObligation("the cost is too large".to_owned()))?,
            created_at: Timestamp::from_millis(body.created_at_ms),
        })
    }
}

/// The obligation as JSON.
#[must_use]
pub fn encode(obligation: &Obligation) -> String {
    serde_json::to_string(&Body::from(obligation)).expect("texts and a number are always JSON")
}

/// Reads what [`encode`] wrote.
///
/// # Errors
/// If it is anything else.
pub fn decode(text: &str) -> Result<Obligation, NotAnObligation> {
    serde_json::from_str::<Body>(text).map_err(|error| NotAnObligation(error.to_string()))?.try_into()
}

/// The line for the log that keeps an obligation which no store could keep.
#[must_use]
pub fn encode_line(obligation: &Obligation) -> String {
    let line = Line { level: "ERROR", event: EVENT, obligation: Body::from(obligation) };
    serde_json::to_string(&line).expect("texts and a number are always JSON")
}

/// Reads a line of a log. A line that is about something else is `None`; whatever a log puts before the JSON is passed over.
///
/// # Errors
/// If it says that it is such a line, and cannot be read: the obligation in it must not be passed over.
pub fn decode_line(line: &str) -> Result<Option<Obligation>, NotAnObligation> {
    if !line.contains(EVENT) {
        return Ok(None);
    }
    let json = line.find('{').and_then(|start| line.get(start..)).unwrap_or(line).trim_end();
    let read: Line<'_> = serde_json::from_str(json).map_err(|error| NotAnObligation(error.to_string()))?;
    if read.event != EVENT {
        return Ok(None);
    }
    read.obligation.try_into().map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn obligations() -> impl Strategy<Value = Obligation> {
        let id = || "[A-Za-z0-9_-]{1,64}";
        (id(), id(), id(), 0..=holdfast_domain::AMOUNT_MAX, any::<u64>()).prop_map(|(id, charge, owner, cost, made)| {
            Obligation {
                id: id.parse().unwrap(),
                charge: charge.parse().unwrap(),
                owner: owner.parse().unwrap(),
                cost: CreditUnit::new(cost).unwrap(),
                created_at: Timestamp::from_millis(made),
            }
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(obligation in obligations(), before in "[^{\n]{0,40}") {
            prop_assert_eq!(decode(&encode(&obligation)), Ok(obligation));
            let line = encode_line(&obligation);
            prop_assert!(!line.contains('\n'));
            prop_assert_eq!(decode_line(&line), Ok(Some(obligation)));
            prop_assert_eq!(decode_line(&format!("{before}{line}\r\n")), Ok(Some(obligation)));
        }

        #[test]
        fn a_line_that_was_cut_is_an_error_and_never_another_obligation(obligation in obligations(), keep in 0.1..0.99_f64) {
            let line = encode_line(&obligation);
            let cut = &line[..(line.len() as f64 * keep) as usize];
            prop_assert!(matches!(decode_line(cut), Err(_) | Ok(None)));
            prop_assert!(decode_line(cut) != Ok(None) || !cut.contains(EVENT));
        }
    }

    #[test]
    fn the_line_is_what_it_has_always_been() {
        let line = r#"{"level":"ERROR","event":"obligation_not_stored","obligation":{"reservation_id":"late_1","charge_id":"chg_1","tenant_id":"alice","actual_cost_micro":"9007199254740993","created_at_ms":1700000000000}}"#;
        let read = decode_line(line).unwrap().unwrap();
        assert_eq!(read.cost.units(), 9_007_199_254_740_993);
        assert_eq!(encode_line(&read), line);
    }

    #[test]
    fn other_lines_are_passed_over_and_other_costs_refused() {
        assert_eq!(decode_line("2026-01-01 all is well"), Ok(None));
        assert_eq!(decode_line(r#"{"event":"other","of":"obligation"}"#), Ok(None));
        for cost in ["", "-1", "+1", "01", "1.5", "1e3", "99999999999999999999", "18446744073709551615"] {
            let text = format!(
                r#"{{"reservation_id":"a","charge_id":"a","tenant_id":"a","actual_cost_micro":"{cost}","created_at_ms":1}}"#
            );
            assert!(decode(&text).is_err(), "{cost}");
        }
    }
}
