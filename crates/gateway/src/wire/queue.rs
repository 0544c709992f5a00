//! The performance queue on the wire: what can be asked of it, and its items as they are shown, under the names that the
//! services around it know.

use super::error::WireError;
use super::escrows::EscrowBody;
use super::parse;
use super::question::page;
use super::time::Moment;
use super::{Named, Shown};
use crate::queue::{Ended, Orphans, item_id, state_named};
use crate::wallet::Replayed;
use holdfast_domain::queue::{Cause, End, Intake, Item, Stage, State, Verdict};
use holdfast_domain::{CreditUnit, EscrowId, ItemId, Label, OwnerId, PayeeId};
use holdfast_engine::queue::Filter;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

/// Everything about the queue that can be asked for on the control socket.
#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum QueueBody {
    QueueList { payee: Option<String>, state: Option<String>, after: Option<String>, limit: Option<u64> },
    QueueItem { id: String },
    QueueStart { id: String },
    QueueFinish { id: String },
    QueueAbandon { id: String, reason: String },
    QueuePartial { id: String, settle_cu: Value, refund_cu: Value, reason: String },
    QueueNext { payee: String },
    EscrowOrphans { after: Option<String>, limit: Option<u64> },
    EscrowOrphanRefund { escrow_id: String },
}

/// What is to be done with the queue, well formed.
pub(crate) enum QueueTask {
    List { filter: Filter, at_most: usize },
    Show(ItemId),
    Start(ItemId),
    Finish { id: ItemId, payee: Option<PayeeId> },
    End { id: ItemId, verdict: Verdict },
    Next(PayeeId),
    Orphans { after: Option<EscrowId>, at_most: usize },
    RefundOrphan(EscrowId),
}

impl QueueBody {
    /// The task, if every word of this is well formed.
    pub(crate) fn into_task(self) -> Result<QueueTask, WireError> {
        Ok(match self {
            Self::QueueList { payee, state, after, limit } => {
                let filter = filter(payee.as_deref(), state.as_deref(), after.as_deref())?;
                QueueTask::List { filter, at_most: page(limit)? }
            }
            Self::QueueItem { id } => QueueTask::Show(item("id", &id)?),
            Self::QueueStart { id } => QueueTask::Start(item("id", &id)?),
            Self::QueueFinish { id } => QueueTask::Finish { id: item("id", &id)?, payee: None },
            Self::QueueAbandon { id, reason } => {
                QueueTask::End { id: item("id", &id)?, verdict: Verdict::Abandon { cause: cause(&reason)? } }
            }
            Self::QueuePartial { id, settle_cu, refund_cu, reason } => {
                let settle = parse::amount("settle_cu", &settle_cu)?;
                let refund = parse::amount("refund_cu", &refund_cu)?;
                let verdict = Verdict::Partial { settle, refund, cause: cause(&reason)? };
                QueueTask::End { id: item("id", &id)?, verdict }
            }
            Self::QueueNext { payee } => QueueTask::Next(parse::id("payee", &payee)?),
            Self::EscrowOrphans { after, limit } => {
                QueueTask::Orphans { after: parse::id_if_any("after", after.as_deref())?, at_most: page(limit)? }
            }
            Self::EscrowOrphanRefund { escrow_id } => QueueTask::RefundOrphan(parse::id("escrow_id", &escrow_id)?),
        })
    }
}

/// Which items are meant.
pub(crate) fn filter(payee: Option<&str>, state: Option<&str>, after: Option<&str>) -> Result<Filter, WireError> {
    let named = |name: &str| {
        let names = State::ALL.map(State::name).join(", ");
        state_named(name).ok_or_else(|| WireError::Malformed(format!("status: one of {names}, and not {name:?}")))
    };
    Ok(Filter {
        payee: parse::id_if_any("modelId", payee)?,
        state: state.map(named).transpose()?,
        after: after.map(|after| item("after", after)).transpose()?,
    })
}

/// The id of an item.
pub(crate) fn item(field: &'static str, text: &str) -> Result<ItemId, WireError> {
    let why = || "the queue item must be 1 to 50 characters of A-Z a-z 0-9 _ -".to_owned();
    item_id(text).ok_or_else(|| WireError::Id { field, why: why() })
}

/// The reason of an end.
pub(crate) fn cause(text: &str) -> Result<Cause, WireError> {
    text.parse().map_err(|error| WireError::Reason(format!("{error}")))
}

/// What was done with the queue.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum QueueAnswer {
    One(Box<ItemBody>),
    Ended(Box<EndedBody>),
    Many(ItemsBody),
    Orphans(OrphansBody),
    /// Nobody waits.
    #[serde(rename_all = "camelCase")]
    Nothing {
        queue_item_id: Option<Shown<ItemId>>,
    },
}

/// Some items.
#[derive(Serialize)]
pub(crate) struct ItemsBody {
    pub(crate) items: Vec<ItemBody>,
    /// What to ask for `after` to get the next page; null on the last.
    pub(crate) next: Option<Shown<ItemId>>,
}

/// Some escrows that no item has.
#[derive(Serialize)]
pub(crate) struct OrphansBody {
    orphans: Vec<EscrowBody>,
    /// What to ask for `after` to get the next page; null on the last.
    next: Option<Shown<EscrowId>>,
}

/// An item that has ended, and its escrow as it now is.
#[derive(Serialize)]
pub(crate) struct EndedBody {
    #[serde(flatten)]
    item: ItemBody,
    settlement: EscrowBody,
    /// Whether an earlier request with the same verdict did it.
    #[serde(skip)]
    pub(crate) replayed: Replayed,
}

/// An item as it is shown.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ItemBody {
    queue_item_id: Named<ItemId>,
    user_id: Named<OwnerId>,
    model_id: Named<PayeeId>,
    escrow_id: Named<EscrowId>,
    amount: Shown<CreditUnit>,
    feature_type: Named<Label>,
    status: &'static str,
    status_reason: Option<&'static str>,
    priority: i32,
    created_at: Moment,
    started_at: Option<Moment>,
    completed_at: Option<Moment>,
    /// When it is given up, if nobody has taken it up by then.
    #[serde(skip_serializing_if = "Option::is_none")]
    drop_at: Option<Moment>,
    #[serde(skip_serializing_if = "Option::is_none")]
    settle_amount: Option<Shown<CreditUnit>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refund_amount: Option<Shown<CreditUnit>>,
    metadata: Option<Box<RawValue>>,
}

impl From<&Item> for ItemBody {
    fn from(item: &Item) -> Self {
        let Intake { id, user, payee, escrow, amount, feature, priority, .. } = item.intake;
        let (end, drop_at) = match item.stage {
            Stage::Queued { drop_at } => (None, drop_at),
            Stage::InProgress { .. } => (None, None),
            Stage::Ended(end) => (Some(end), None),
        };
        let (settle, refund) = end.map_or((None, None), |End { verdict, .. }| match verdict {
            Verdict::Finish => (Some(amount), None),
            Verdict::Abandon { .. } => (None, Some(amount)),
            Verdict::Partial { settle, refund, .. } => (Some(settle), Some(refund)),
        });
        Self {
            queue_item_id: Named(id),
            user_id: Named(user),
            model_id: Named(payee),
            escrow_id: Named(escrow),
            amount: Shown(amount),
            feature_type: Named(feature),
            status: item.state().name(),
            status_reason: end.map(|end| end.verdict.cause().name()),
            priority,
            created_at: Moment(item.queued_at),
            started_at: item.started_at().map(Moment),
            completed_at: end.map(|end| Moment(end.ended_at)),
            drop_at: drop_at.map(Moment),
            settle_amount: settle.map(Shown),
            refund_amount: refund.map(Shown),
            metadata: item.intake.metadata.as_deref().and_then(|text| RawValue::from_string(text.to_owned()).ok()),
        }
    }
}

impl From<Ended> for EndedBody {
    fn from(Ended { item, escrow, replayed }: Ended) -> Self {
        Self { item: ItemBody::from(&item), settlement: EscrowBody::from(escrow), replayed }
    }
}

impl From<&Orphans> for OrphansBody {
    fn from(found: &Orphans) -> Self {
        Self { orphans: found.orphans.iter().cloned().map(EscrowBody::from).collect(), next: found.next.map(Shown) }
    }
}
