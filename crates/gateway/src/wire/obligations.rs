//! What the peer is still to be told, on the wire.

use super::Shown;
use super::error::{Problem, WireError};
use super::parse;
use super::question::page;
use super::time::Moment;
use holdfast_domain::delivery::Obligation;
use holdfast_domain::{ChargeId, CreditUnit, Label, ObligationId, OwnerId, Reason, Timestamp};
use holdfast_engine::obligations::{Count, Standing, Stored};
use serde::{Deserialize, Serialize};

/// The most obligations that are put at once.
const PUT_MAX: usize = 1_000;

/// Everything about obligations that can be asked for.
#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum ObligationsBody {
    Obligations {
        list: ListBody,
        after: Option<String>,
        limit: Option<u64>,
    },
    Obligation {
        id: String,
    },
    ObligationReplay {
        id: String,
    },
    /// Dead letters of charges that were made since then, a bounded number of them.
    ObligationsReplay {
        since: String,
    },
    ObligationResolve {
        id: String,
        note: String,
    },
    ObligationsPut {
        obligations: Vec<ImportBody>,
    },
}

/// Which of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ListBody {
    Pending,
    Dead,
}

/// An obligation from a line of the log.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ImportBody {
    reservation_id: String,
    charge_id: String,
    tenant_id: String,
    actual_cost_micro: String,
    created_at_ms: u64,
}

/// What is to be done with obligations, well formed.
pub(crate) enum ObligationsTask {
    List { list: ListBody, after: Option<ObligationId>, at_most: usize },
    Show(ObligationId),
    Replay(ObligationId),
    ReplaySince(Timestamp),
    Resolve(ObligationId, Reason),
    Put(Vec<Obligation>),
}

impl ObligationsBody {
    /// The task, if every word of this is well formed.
    pub(crate) fn into_task(self) -> Result<ObligationsTask, WireError> {
        Ok(match self {
            Self::Obligations { list, after, limit } => {
                let after = parse::id_if_any("after", after.as_deref())?;
                ObligationsTask::List { list, after, at_most: page(limit)? }
            }
            Self::Obligation { id } => ObligationsTask::Show(parse::id("id", &id)?),
            Self::ObligationReplay { id } => ObligationsTask::Replay(parse::id("id", &id)?),
            Self::ObligationsReplay { since } => ObligationsTask::ReplaySince(parse::moment(&since)?),
            Self::ObligationResolve { id, note } => {
                ObligationsTask::Resolve(parse::id("id", &id)?, parse::reason(&note)?)
            }
            Self::ObligationsPut { obligations } if obligations.len() > PUT_MAX => {
                return Err(WireError::Malformed(format!("at most {PUT_MAX} obligations are put at once")));
            }
            Self::ObligationsPut { obligations } => {
                ObligationsTask::Put(obligations.into_iter().map(ImportBody::parse).collect::<Result<_, _>>()?)
            }
        })
    }
}

impl ImportBody {
    fn parse(self) -> Result<Obligation, WireError> {
        let field = "actual_cost_micro";
        let why = || "write whole millionths of a credit as digits, such as \"12500000\"".to_owned();
        let units: Option<u64> = self.actual_cost_micro.parse().ok();
        // One text per amount: "+1" and "01" are not what was logged.
        let units = units.filter(|units| units.to_string() == self.actual_cost_micro);
        let cost = units.and_then(|units| CreditUnit::new(units).ok());
        Ok(Obligation {
            id: parse::id("reservation_id", &self.reservation_id)?,
            charge: parse::id("charge_id", &self.charge_id)?,
            owner: parse::id("tenant_id", &self.tenant_id)?,
            cost: cost.ok_or_else(|| WireError::Amount { field, why: why() })?,
            created_at: Timestamp::from_millis(self.created_at_ms),
        })
    }
}

/// What was done with obligations.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum ObligationsAnswer {
    One(Box<ObligationBody>),
    Many {
        obligations: Vec<ObligationBody>,
        /// What to ask for `after` to get the next page; null on the last.
        next: Option<Shown<ObligationId>>,
        #[serde(flatten)]
        count: CountBody,
    },
    Replay {
        reservation_id: Shown<ObligationId>,
        replayed: bool,
    },
    Replayed {
        replayed: u64,
        /// Whether there are more of them.
        more: bool,
    },
    Resolved {
        reservation_id: Shown<ObligationId>,
        resolved: bool,
        note: String,
    },
    Put {
        /// How many were read and are with the store now, whether it had them before or not.
        imported: usize,
    },
}

/// How many there are.
#[derive(Serialize)]
pub(crate) struct CountBody {
    pending: u64,
    dead: u64,
}

impl From<Count> for CountBody {
    fn from(Count { pending, dead }: Count) -> Self {
        Self { pending, dead }
    }
}

/// An obligation as it is shown, under the names that peers know.
#[derive(Serialize)]
pub(crate) struct ObligationBody {
    reservation_id: Shown<ObligationId>,
    billing_entry_id: Shown<ChargeId>,
    tenant_id: Shown<OwnerId>,
    amount_cu: Shown<CreditUnit>,
    actual_cost_micro: String,
    state: &'static str,
    attempt_count: u32,
    created_at: Moment,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_attempt_at: Option<Moment>,
    #[serde(skip_serializing_if = "Option::is_none")]
    leased_by: Option<Shown<Label>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    leased_until: Option<Moment>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl From<&Stored> for ObligationBody {
    fn from(stored: &Stored) -> Self {
        let Obligation { id, charge, owner, cost, created_at } = stored.obligation;
        let (next_attempt_at, leased) = match &stored.standing {
            Standing::Due { at } => (Some(Moment(*at)), None),
            Standing::Leased { worker, until } => (None, Some((Shown(*worker), Moment(*until)))),
            Standing::Dead => (None, None),
        };
        let (leased_by, leased_until) = leased.unzip();
        Self {
            reservation_id: Shown(id),
            billing_entry_id: Shown(charge),
            tenant_id: Shown(owner),
            amount_cu: Shown(cost),
            actual_cost_micro: cost.units().to_string(),
            state: state_name(&stored.standing),
            attempt_count: stored.attempts,
            created_at: Moment(created_at),
            next_attempt_at,
            leased_by,
            leased_until,
            reason: stored.reason.as_ref().map(|reason| reason.as_str().to_owned()),
        }
    }
}

/// Where an obligation stands, in a word.
pub(crate) const fn state_name(standing: &Standing) -> &'static str {
    match standing {
        Standing::Due { .. } => "due",
        Standing::Leased { .. } => "in_delivery",
        Standing::Dead => "dead",
    }
}

impl From<holdfast_engine::obligations::StoreFailed> for Problem {
    fn from(failed: holdfast_engine::obligations::StoreFailed) -> Self {
        super::error::DeliveryError::from(failed).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn import(cost: &str) -> Result<u64, WireError> {
        let text = format!(
            r#"{{"op":"obligations_put","obligations":[{{"reservation_id":"late_1","charge_id":"chg_1",
                "tenant_id":"alice","actual_cost_micro":"{cost}","created_at_ms":1700000000000}}]}}"#
        );
        let task = serde_json::from_str::<ObligationsBody>(&text).unwrap().into_task()?;
        let ObligationsTask::Put(all) = task else { unreachable!("it was a put") };
        Ok(all[0].cost.units())
    }

    #[test]
    fn costs_are_read_to_the_last_digit_and_in_one_way_only() {
        assert_eq!(import("9007199254740993"), Ok(9_007_199_254_740_993));
        for bad in ["", "+1", "01", "-1", "1.5", "1e3", "99999999999999999999"] {
            assert_eq!(import(bad).unwrap_err().code(), "INVALID_AMOUNT", "{bad}");
        }
    }

    #[test]
    fn what_is_badly_said_is_refused() {
        for (text, code) in [
            (r#"{"op":"obligations","list":"dead","after":"a b"}"#, "INVALID_ID"),
            (r#"{"op":"obligations","list":"dead","limit":0}"#, "INVALID_REQUEST"),
            (r#"{"op":"obligation","id":""}"#, "INVALID_ID"),
            (r#"{"op":"obligations_replay","since":"yesterday"}"#, "INVALID_TIME"),
            (r#"{"op":"obligation_resolve","id":"a","note":""}"#, "INVALID_REASON"),
        ] {
            let refused = serde_json::from_str::<ObligationsBody>(text).unwrap().into_task().err();
            assert_eq!(refused.map(|error| error.code()), Some(code), "{text}");
        }
    }
}
