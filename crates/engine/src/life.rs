//! A charge or an escrow around an entry: as it stands before it, and after.

use crate::book::{Budgeted, Standing};
use crate::request::LifeState;
use crate::table::Row;
use holdfast_domain::Event;
use holdfast_domain::charge::Charge;
use holdfast_domain::escrow::Escrow;
use holdfast_journal::Location;

/// The charge or escrow that an entry moves on.
pub(crate) enum Life {
    None,
    Charge(Option<Charge>),
    Escrow(Option<Escrow>),
}

/// A life as it stands before an entry.
pub(crate) struct Before {
    pub(crate) life: Life,
    /// Its newest record.
    pub(crate) last: Option<Location>,
    /// The owner's row; `None` for a new owner.
    pub(crate) row: Option<Row>,
    pub(crate) budgeted: Budgeted,
}

impl Before {
    /// Before an entry that begins a life, or has none.
    pub(crate) const fn nothing(life: Life, row: Option<Row>) -> Self {
        Self { life, last: None, row, budgeted: Budgeted::NONE }
    }

    pub(crate) const fn of(life: Life, standing: Standing) -> Self {
        let Standing { last, row, budgeted } = standing;
        Self { life, last: Some(last), row: Some(row), budgeted }
    }
}

/// A charge or escrow that was found, open or closed.
pub(crate) struct Found<L> {
    pub(crate) life: L,
    pub(crate) standing: Standing,
}

/// The life after an entry.
pub(crate) enum Next {
    None,
    Charge(Charge),
    Escrow(Escrow),
}

/// The life after `event`. `None` if the event cannot follow.
#[inline(always)]
pub(crate) fn advance(life: &Life, event: &Event) -> Option<Next> {
    match (life, event) {
        (Life::None, Event::Minted(_)) => Some(Next::None),
        (Life::Charge(before), Event::Charge { event, .. }) => Charge::apply(*before, event).ok().map(Next::Charge),
        (Life::Escrow(before), Event::Escrow { event, .. }) => Escrow::apply(*before, event).ok().map(Next::Escrow),
        (
            Life::None | Life::Charge(_) | Life::Escrow(_),
            Event::Minted(_) | Event::Charge { .. } | Event::Escrow { .. },
        ) => None,
    }
}

pub(crate) const fn state_of(next: &Next) -> LifeState {
    match next {
        Next::None => LifeState::None,
        Next::Charge(charge) => LifeState::Charge(charge.state()),
        Next::Escrow(escrow) => LifeState::Escrow(escrow.state()),
    }
}
