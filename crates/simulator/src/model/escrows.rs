//! The life of an escrow, as the queue's specification tells it: held, then exactly one of settled, refunded or
//! partial.

use super::{Draft, Life, Model, Moves, No, invalid_amount, units};
use holdfast_domain::escrow::{Command, Escrowed, Event as EscrowEvent, Hold, Ruling, State};
use holdfast_domain::{CreditUnit, EscrowId, Event, OwnerId, Timestamp};
use holdfast_engine::Refusal;

/// An escrow, open or closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EscrowRow {
    pub(crate) owner: OwnerId,
    pub(crate) amount: CreditUnit,
    pub(crate) state: State,
    /// Its newest entry.
    pub(crate) last: u64,
}

impl Model {
    pub(super) fn hold(&self, id: EscrowId, hold: &Hold, now: Timestamp) -> Result<Draft, No> {
        if self.escrows.contains_key(&id) {
            return Err(Refusal::KeyReused.into());
        }
        self.owners.get(&hold.owner).ok_or(Refusal::UnknownAccount)?;
        if hold.amount.is_zero() {
            return Err(invalid_amount().into());
        }
        let amount = units(hold.amount);
        let row = EscrowRow { owner: hold.owner, amount: hold.amount, state: State::Held, last: 0 };
        let moves = Moves { available: -amount, escrowed: amount, ..Moves::default() };
        let escrowed = Escrowed { amount: hold.amount, feature: hold.feature, held_at: now };
        Ok(draft(id, row, (EscrowEvent::Held(escrowed), None), moves))
    }

    pub(super) fn move_escrow(
        &self,
        id: EscrowId,
        (command, ruling): (Command, Option<Ruling>),
        has_key: bool,
    ) -> Result<Draft, No> {
        let row = *self.escrows.get(&id).ok_or(Refusal::UnknownEscrow)?;
        let amount = units(row.amount);
        if row.state != State::Held {
            let refusal = Refusal::EscrowAlreadyProcessed(row.state);
            // A new key is a new wish, even in the same words.
            return Err(if has_key { refusal.into() } else { No::WrongState { last: row.last, refusal } });
        }
        match command {
            Command::Settle { payee } => {
                let moves = Moves { escrowed: -amount, payee: Some((payee, amount)), ..Moves::default() };
                let event = EscrowEvent::Settled { payee, amount: row.amount };
                Ok(draft(id, EscrowRow { state: State::Settled, ..row }, (event, ruling), moves))
            }
            Command::Refund => {
                let moves = Moves { escrowed: -amount, available: amount, ..Moves::default() };
                let event = EscrowEvent::Refunded { amount: row.amount };
                Ok(draft(id, EscrowRow { state: State::Refunded, ..row }, (event, ruling), moves))
            }
            Command::PartialSettle { payee, settle, refund } => {
                if units(settle) + units(refund) != amount {
                    return Err(Refusal::InvalidSplit { amount: row.amount }.into());
                }
                let moves = Moves {
                    escrowed: -amount,
                    payee: Some((payee, units(settle))),
                    available: units(refund),
                    ..Moves::default()
                };
                let event = EscrowEvent::PartiallySettled { payee, settled: settle, refunded: refund };
                Ok(draft(id, EscrowRow { state: State::Partial, ..row }, (event, ruling), moves))
            }
        }
    }
}

fn draft(id: EscrowId, row: EscrowRow, (event, ruling): (EscrowEvent, Option<Ruling>), moves: Moves) -> Draft {
    let owner = row.owner;
    Draft { owner, event: Event::Escrow { id, owner, event, ruling }, life: Life::Escrow(id, row), moves }
}
