//! What an earlier process left: holds that nobody works on any more.
//!
//! A data directory has one process at a time, so at its start every open hold of the gateway's own is an orphan, however
//! young. What its work noted as delivered is charged; the rest is given back.

use super::CHARGE_PREFIX;
use holdfast_domain::{ChargeId, Label, charge};
use holdfast_engine::{Command, Engine, Refusal, Request};
use holdfast_journal::LocalDisk;

/// Settles every hold that an earlier process left, and says how many there were.
pub(crate) fn sweep(engine: &Engine<LocalDisk>) -> Result<usize, Refusal> {
    let orphans: Vec<ChargeId> = engine.ask_blocking(|view| {
        let open = view.open_charges(None, usize::MAX).into_iter();
        open.map(|(id, _, _)| id).filter(|id| id.as_str().starts_with(CHARGE_PREFIX)).collect()
    })?;
    let actor: Label = Label::from_bytes(b"sweep").expect("a plain word");
    let abandon = |charge: &ChargeId| Request {
        key: None,
        actor,
        command: Command::Charge { charge: *charge, command: charge::Command::Abandon },
    };
    for part in orphans.chunks(holdfast_engine::BATCH_MAX) {
        for answer in engine.submit_batch_blocking(part.iter().map(abandon))? {
            match answer {
                // Its time had come a moment before.
                Ok(_) | Err(Refusal::InvalidState(_)) => {}
                Err(refusal) => return Err(refusal),
            }
        }
    }
    Ok(orphans.len())
}
