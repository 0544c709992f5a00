//! What a record keeps of an escrow.

use crate::codec::{Taker, put_number, put_text};
use holdfast_domain::Timestamp;
use holdfast_domain::escrow::{Escrowed, Event, Ruling};
use holdfast_domain::queue::Cause;

/// What is added to the tag of an escrow's end if it carries the queue's ruling, which stands after it: 18 to 20.
pub(super) const RULED: u8 = 5;

pub(super) fn put(bytes: &mut Vec<u8>, event: &Event, ruling: Option<&Ruling>) {
    match event {
        // It is held since the moment of its record.
        Event::Held(escrowed) => {
            put_number(bytes, escrowed.amount.units());
            put_text(bytes, escrowed.feature.as_bytes());
        }
        Event::Settled { payee, amount } => {
            put_text(bytes, payee.as_bytes());
            put_number(bytes, amount.units());
        }
        Event::Refunded { amount } => put_number(bytes, amount.units()),
        Event::PartiallySettled { payee, settled, refunded } => {
            put_text(bytes, payee.as_bytes());
            put_number(bytes, settled.units());
            put_number(bytes, refunded.units());
        }
    }
    if let Some(Ruling { item, cause }) = ruling {
        put_text(bytes, item.as_bytes());
        bytes.push(cause_tag(*cause));
    }
}

pub(super) fn take(taker: &mut Taker<'_>, kind: u8, at: Timestamp) -> Option<(Event, Option<Ruling>)> {
    let (kind, ruled) = if kind > 15 { (kind - RULED, true) } else { (kind, false) };
    let event = match kind {
        12 => Event::Held(Escrowed { amount: taker.amount()?, feature: taker.id()?, held_at: at }),
        13 => Event::Settled { payee: taker.id()?, amount: taker.amount()? },
        14 => Event::Refunded { amount: taker.amount()? },
        15 => Event::PartiallySettled { payee: taker.id()?, settled: taker.amount()?, refunded: taker.amount()? },
        _ => return None,
    };
    let ruling = if ruled { Some(Ruling { item: taker.id()?, cause: cause_of(taker.byte()?)? }) } else { None };
    Some((event, ruling))
}

/// The number that stands for a cause in every record, for ever.
#[must_use]
pub const fn cause_tag(cause: Cause) -> u8 {
    match cause {
        Cause::PerformanceCompleted => 1,
        Cause::UserDisconnected => 2,
        Cause::PerformerDeclined => 3,
        Cause::RopeDropTimeout => 4,
        Cause::AdminCancelled => 5,
        Cause::PartialDelivery => 6,
        Cause::QualityIssue => 7,
    }
}

/// The cause that a number stands for.
#[must_use]
pub fn cause_of(tag: u8) -> Option<Cause> {
    Cause::ALL.into_iter().find(|cause| cause_tag(*cause) == tag)
}
