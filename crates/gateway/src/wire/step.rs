//! A step of a queue's item as the journal has it beside its entries, as JSON.

use super::Shown;
use super::entry::FrameBody;
use super::time::Moment;
use crate::books::Frame;
use holdfast_adapters::queue::Step;
use holdfast_domain::queue::{Intake, Verdict};
use holdfast_domain::{CreditUnit, EscrowId, ItemId, OwnerId, PayeeId};
use serde::Serialize;

/// One step; of a note that is none only where it stands.
#[derive(Serialize)]
pub(crate) struct StepBody {
    kind: &'static str,
    /// Its number among all steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<Moment>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue_item_id: Option<Shown<ItemId>>,
    #[serde(flatten)]
    item: Option<PutBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    settle_cu: Option<Shown<CreditUnit>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refund_cu: Option<Shown<CreditUnit>>,
    frame: FrameBody,
}

/// What is said of an item when it is put.
#[derive(Serialize)]
struct PutBody {
    account: Shown<OwnerId>,
    payee: Shown<PayeeId>,
    escrow_id: Shown<EscrowId>,
    amount_cu: Shown<CreditUnit>,
    priority: i32,
}

impl StepBody {
    /// What a note of the journal says.
    pub(crate) fn of(note: &[u8], frame: Frame) -> Self {
        let (step, read) = Step::of_note(note).map_or((None, None), |(number, step)| (Some(number), step));
        let nothing = Self {
            kind: "unknown_note",
            step,
            at: None,
            queue_item_id: read.as_ref().map(|step| Shown(step.id())),
            item: None,
            reason: None,
            settle_cu: None,
            refund_cu: None,
            frame: frame.into(),
        };
        match read {
            None => nothing,
            Some(Step::Put(item)) => {
                let Intake { user, payee, escrow, amount, priority, .. } = item.intake;
                let item_put = PutBody {
                    account: Shown(user),
                    payee: Shown(payee),
                    escrow_id: Shown(escrow),
                    amount_cu: Shown(amount),
                    priority,
                };
                Self { kind: "queue_item_queued", at: Some(Moment(item.queued_at)), item: Some(item_put), ..nothing }
            }
            Some(Step::Start { at, .. }) => Self { kind: "queue_item_started", at: Some(Moment(at)), ..nothing },
            Some(Step::End { at, verdict, .. }) => {
                let (kind, settle_cu, refund_cu) = match verdict {
                    Verdict::Finish => ("queue_item_finished", None, None),
                    Verdict::Abandon { .. } => ("queue_item_abandoned", None, None),
                    Verdict::Partial { settle, refund, .. } => {
                        ("queue_item_partial", Some(Shown(settle)), Some(Shown(refund)))
                    }
                };
                let reason = Some(verdict.cause().name());
                Self { kind, at: Some(Moment(at)), reason, settle_cu, refund_cu, ..nothing }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_journal::{GENESIS, Location};
    use serde_json::{Value, json};

    #[test]
    fn a_note_that_is_no_step_is_shown_with_where_it_stands() {
        let frame = Frame { location: Location::START, hash: GENESIS };
        let shown = |note: &[u8]| -> Value { serde_json::to_value(StepBody::of(note, frame)).unwrap() };
        let short = shown(b"short");
        assert_eq!((&short["kind"], &short["step"]), (&json!("unknown_note"), &Value::Null));
        assert_eq!(short["frame"]["segment"], json!(1));
        let later_version = shown(&[7, 0, 0, 0, 0, 0, 0, 0, 99]);
        assert_eq!((&later_version["kind"], &later_version["step"]), (&json!("unknown_note"), &json!(7)));
    }
}
