//! The life of an escrow: held, then exactly one of settled, refunded or partial.
//!
//! The wallet never decides who earns an escrow: a command comes with the queue's word, and the same word twice gives the
//! first answer again (that is the key's work, see the engine).
//!
//! # Invariants
//! - Each terminal state is final: money leaves an escrow once, and all of it.

use crate::id::{ItemId, Label, OwnerId, PayeeId};
use crate::money::CreditUnit;
use crate::queue::Cause;
use crate::time::Timestamp;
use std::fmt;

/// An escrow as it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Escrow {
    /// Set aside, waiting for the work.
    Held(Escrowed),
    /// Paid out to the payee.
    Settled(Escrowed),
    /// Given back to the owner.
    Refunded(Escrowed),
    /// Divided between the two.
    Partial(Escrowed),
}

/// What an escrow is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Escrowed {
    /// How much was set aside.
    pub amount: CreditUnit,
    /// What for.
    pub feature: Label,
    /// Since when.
    pub held_at: Timestamp,
}

/// On whose word an escrow ends: the queue's, about one of its items. An operator's word has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ruling {
    /// The item that the escrow pays for.
    pub item: ItemId,
    /// Why it ends.
    pub cause: Cause,
}

/// A request to set money aside in escrow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold {
    /// Whose credits to set aside.
    pub owner: OwnerId,
    /// How much.
    pub amount: CreditUnit,
    /// What for.
    pub feature: Label,
}

/// What can be asked of an escrow that exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Pay it out.
    Settle {
        /// Who earned it.
        payee: PayeeId,
    },
    /// Give it back.
    Refund,
    /// Divide it.
    PartialSettle {
        /// Who earned the settled part.
        payee: PayeeId,
        /// What the payee gets.
        settle: CreditUnit,
        /// What the owner gets back.
        refund: CreditUnit,
    },
}

/// What happened to an escrow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Money was set aside.
    Held(Escrowed),
    /// It was paid out.
    Settled {
        /// To whom.
        payee: PayeeId,
        /// How much.
        amount: CreditUnit,
    },
    /// It was given back.
    Refunded {
        /// How much.
        amount: CreditUnit,
    },
    /// It was divided.
    PartiallySettled {
        /// Who earned the settled part.
        payee: PayeeId,
        /// What the payee got.
        settled: CreditUnit,
        /// What the owner got back.
        refunded: CreditUnit,
    },
}

/// Why a command was not done. Nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The escrow has already been settled, refunded or divided.
    AlreadyProcessed(State),
    /// The two parts do not add up to the escrow.
    InvalidSplit {
        /// What they must add up to.
        amount: CreditUnit,
    },
    /// An amount of zero.
    ZeroAmount,
}

/// The name of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// [`Escrow::Held`].
    Held,
    /// [`Escrow::Settled`].
    Settled,
    /// [`Escrow::Refunded`].
    Refunded,
    /// [`Escrow::Partial`].
    Partial,
}

impl State {
    /// Its name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Settled => "settled",
            Self::Refunded => "refunded",
            Self::Partial => "partial",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Decides a hold. Whether the owner can pay for it is the guard of the entry that it becomes.
pub fn hold(request: &Hold, now: Timestamp) -> Result<Event, Refusal> {
    let Hold { amount, feature, .. } = *request;
    if amount.is_zero() {
        Err(Refusal::ZeroAmount)
    } else {
        Ok(Event::Held(Escrowed { amount, feature, held_at: now }))
    }
}

impl Escrow {
    /// The name of its state.
    #[must_use]
    pub const fn state(&self) -> State {
        match self {
            Self::Held(_) => State::Held,
            Self::Settled(_) => State::Settled,
            Self::Refunded(_) => State::Refunded,
            Self::Partial(_) => State::Partial,
        }
    }

    /// What it is about.
    #[must_use]
    pub const fn escrowed(&self) -> &Escrowed {
        match self {
            Self::Held(escrowed) | Self::Settled(escrowed) | Self::Refunded(escrowed) | Self::Partial(escrowed) => {
                escrowed
            }
        }
    }

    /// What `command` does to this escrow.
    pub fn decide(&self, command: Command) -> Result<Event, Refusal> {
        let Self::Held(Escrowed { amount, .. }) = *self else {
            return Err(Refusal::AlreadyProcessed(self.state()));
        };
        match command {
            Command::Settle { payee } => Ok(Event::Settled { payee, amount }),
            Command::Refund => Ok(Event::Refunded { amount }),
            Command::PartialSettle { payee, settle, refund } => match settle.checked_add(refund) {
                Ok(sum) if sum == amount => Ok(Event::PartiallySettled { payee, settled: settle, refunded: refund }),
                Ok(_) | Err(_) => Err(Refusal::InvalidSplit { amount }),
            },
        }
    }

    /// The escrow after `event`. An event that cannot follow means that the journal is corrupt.
    pub fn apply(escrow: Option<Self>, event: &Event) -> Result<Self, CannotFollow> {
        let cannot_follow = CannotFollow { state: escrow.map(|escrow| escrow.state()) };
        match (escrow, *event) {
            (None, Event::Held(escrowed)) if !escrowed.amount.is_zero() => Ok(Self::Held(escrowed)),
            (Some(Self::Held(escrowed)), Event::Settled { amount, .. }) if amount == escrowed.amount => {
                Ok(Self::Settled(escrowed))
            }
            (Some(Self::Held(escrowed)), Event::Refunded { amount }) if amount == escrowed.amount => {
                Ok(Self::Refunded(escrowed))
            }
            (Some(Self::Held(escrowed)), Event::PartiallySettled { settled, refunded, .. })
                if settled.checked_add(refunded) == Ok(escrowed.amount) =>
            {
                Ok(Self::Partial(escrowed))
            }
            (_, _) => Err(cannot_follow),
        }
    }
}

/// An event that cannot follow the state before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CannotFollow {
    /// The state that it met.
    pub state: Option<State>,
}
