//! The performance queue, for those who operate it and for those who call it: the same tasks through both doors.

use super::Service;
use crate::queue::{Queue, QueueError};
use crate::terminal;
use crate::wire::Shown;
use crate::wire::error::Problem;
use crate::wire::queue::{EndedBody, ItemBody, ItemsBody, OrphansBody, QueueAnswer, QueueBody, QueueTask};
use holdfast_domain::Label;
use holdfast_engine::queue::Filter;
use std::sync::Arc;

/// Held escrows that are looked at for one page of orphans.
const LOOKED_MAX: usize = 20_000;

impl Service {
    /// Does what an operator asks about the queue.
    pub(crate) async fn queue_line(&self, body: QueueBody, actor: Label) -> Result<QueueAnswer, Problem> {
        let task = body.into_task()?;
        let given_back = if let QueueTask::RefundOrphan(escrow) = &task { Some(*escrow) } else { None };
        let answer = self.queue_task(task, actor).await?;
        if let Some(escrow) = given_back {
            terminal::note(&format!("{actor} has given back escrow {escrow}, which no queue item had"));
        }
        Ok(answer)
    }

    /// Does something about the queue, in the name of `actor`.
    pub(crate) async fn queue_task(&self, task: QueueTask, actor: Label) -> Result<QueueAnswer, Problem> {
        let queue = self.queue().ok_or(QueueError::Off)?;
        let one = |item| QueueAnswer::One(Box::new(ItemBody::from(&item)));
        let ended = |ended| QueueAnswer::Ended(Box::new(EndedBody::from(ended)));
        Ok(match task {
            // What is rarely asked for is so in a box: what it keeps meanwhile is large.
            QueueTask::List { filter, at_most } => Box::pin(list(queue, filter, at_most)).await?,
            QueueTask::Show(id) => one(queue.item(id).await?),
            QueueTask::Start(id) => one(queue.start(id).await?),
            QueueTask::Next(payee) => {
                let next = Box::pin(queue.next(payee)).await?;
                next.map_or(QueueAnswer::Nothing { queue_item_id: None }, one)
            }
            QueueTask::Finish { id, payee } => ended(queue.finish(id, payee, actor).await?),
            QueueTask::End { id, verdict } => ended(queue.end(id, verdict, actor).await?),
            QueueTask::Orphans { after, at_most } => {
                QueueAnswer::Orphans(OrphansBody::from(&Box::pin(queue.orphans(after, at_most, LOOKED_MAX)).await?))
            }
            QueueTask::RefundOrphan(escrow) => ended(Box::pin(queue.refund_orphan(escrow, actor)).await?),
        })
    }
}

async fn list(queue: &Arc<Queue>, filter: Filter, at_most: usize) -> Result<QueueAnswer, Problem> {
    let mut found = queue.list(filter, at_most.saturating_add(1)).await?;
    let more = found.len() > at_most;
    found.truncate(at_most);
    let next = found.last().filter(|_| more).map(|item| Shown(item.intake.id));
    Ok(QueueAnswer::Many(ItemsBody { items: found.iter().map(ItemBody::from).collect(), next }))
}
