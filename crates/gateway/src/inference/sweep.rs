//! What an earlier process left: holds that nobody works on any more.
//!
//! What its work noted as delivered is charged; the rest is given back.

use super::CHARGE_PREFIX;
use crate::books::Books;
use holdfast_domain::{ChargeId, Label, charge};
use holdfast_engine::{Command, Refusal, Request};

/// Settles every hold that an earlier process left, and says how many there were.
pub(crate) async fn sweep(books: &Books) -> Result<usize, Refusal> {
    let orphans = books.orphans(CHARGE_PREFIX).await?;
    let actor: Label = Label::from_bytes(b"sweep").expect("a plain word");
    let abandon = |charge: &ChargeId| Request {
        key: None,
        actor,
        command: Command::Charge { charge: *charge, command: charge::Command::Abandon },
    };
    for part in orphans.chunks(holdfast_engine::BATCH_MAX) {
        for answer in books.submit_batch(part.iter().map(abandon).collect()).await? {
            match answer {
                // Its time had come a moment before.
                Ok(_) | Err(Refusal::InvalidState(_)) => {}
                Err(refusal) => return Err(refusal),
            }
        }
    }
    Ok(orphans.len())
}
