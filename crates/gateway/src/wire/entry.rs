//! An entry of the journal as JSON: what happened, its postings, and the balances that it led to.

use super::Shown;
use super::time::Moment;
use crate::books::{Entry, Frame};
use holdfast_domain::charge::{self, Finality};
use holdfast_domain::{Account, Change, CreditUnit, Event, ItemId, Label, Mint, OwnerId, PayeeId, escrow};
use holdfast_journal::Hash;
use serde::Serialize;

/// One entry.
#[derive(Serialize)]
pub(crate) struct EntryBody {
    pub(crate) offset: u64,
    kind: &'static str,
    at: Moment,
    actor: Shown<Label>,
    key: Option<String>,
    correlation_id: String,
    account: Shown<OwnerId>,
    state: &'static str,
    postings: Vec<PostingBody>,
    available_cu: Shown<CreditUnit>,
    held_cu: Shown<CreditUnit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payee_available_cu: Option<Shown<CreditUnit>>,
    #[serde(flatten)]
    details: Details,
    #[serde(skip_serializing_if = "Option::is_none")]
    frame: Option<FrameBody>,
}

#[derive(Serialize)]
struct PostingBody {
    account: Shown<Account>,
    change_cu: Shown<Change>,
}

/// The frame that an entry stands in.
#[derive(Serialize)]
pub(super) struct FrameBody {
    segment: u32,
    byte: u32,
    hash: Shown<Hash>,
}

impl From<Frame> for FrameBody {
    fn from(Frame { location, hash }: Frame) -> Self {
        Self { segment: location.segment, byte: location.byte, hash: Shown(hash) }
    }
}

impl From<Entry> for EntryBody {
    fn from(entry: Entry) -> Self {
        let posting = |(account, change)| PostingBody { account: Shown(account), change_cu: Shown(change) };
        Self {
            offset: entry.offset,
            kind: entry.event.kind().name(),
            at: Moment(entry.at),
            actor: Shown(entry.actor),
            key: entry.key.map(|key| key.to_string()),
            correlation_id: entry.correlation,
            account: Shown(entry.event.owner()),
            state: entry.state.name(),
            postings: entry.event.changes().map(|found| found.map(posting).collect()).unwrap_or_default(),
            available_cu: Shown(entry.available),
            held_cu: Shown(entry.held),
            payee_available_cu: entry.payee.map(Shown),
            details: Details::of(&entry.event),
            frame: entry.frame.map(FrameBody::from),
        }
    }
}

/// What only some kinds of event have.
#[derive(Serialize, Default)]
pub(crate) struct Details {
    #[serde(skip_serializing_if = "Option::is_none")]
    amount_cu: Option<Shown<CreditUnit>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    charged_cu: Option<Shown<CreditUnit>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    returned_cu: Option<Shown<CreditUnit>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    uncollected_cu: Option<Shown<CreditUnit>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    settled_cu: Option<Shown<CreditUnit>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payee: Option<Shown<PayeeId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    feature: Option<Shown<Label>>,
    #[serde(rename = "final", skip_serializing_if = "Option::is_none")]
    is_final: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<Moment>,
    /// The queue item on whose word an escrow ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    queue_item_id: Option<Shown<ItemId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl Details {
    /// The details of an event.
    pub(crate) fn of(event: &Event) -> Self {
        match event {
            Event::Minted(Mint { amount, reason, .. }) => {
                Self { amount_cu: Some(Shown(*amount)), reason: Some(reason.as_str().to_owned()), ..Self::default() }
            }
            Event::Charge { event, .. } => Self::of_charge(event),
            Event::Escrow { event, ruling, .. } => Self {
                queue_item_id: ruling.map(|ruling| Shown(ruling.item)),
                reason: ruling.map(|ruling| ruling.cause.name().to_owned()),
                ..Self::of_escrow(event)
            },
        }
    }

    fn of_charge(event: &charge::Event) -> Self {
        let nothing = Self::default();
        match event {
            charge::Event::Reserved { amount, expires_at, .. } => {
                Self { amount_cu: Some(Shown(*amount)), expires_at: Some(Moment(*expires_at)), ..nothing }
            }
            charge::Event::Started | charge::Event::Acked => nothing,
            charge::Event::Noted { cost } => Self { amount_cu: Some(Shown(*cost)), ..nothing },
            charge::Event::Increased { amount } => Self { amount_cu: Some(Shown(*amount)), ..nothing },
            charge::Event::Extended { expires_at } => Self { expires_at: Some(Moment(*expires_at)), ..nothing },
            charge::Event::Committed { taken, finality } => Self {
                // The sum was in range when it was decided, and again when it was posted.
                charged_cu: taken.charged().ok().map(Shown),
                returned_cu: Some(Shown(taken.returned)),
                uncollected_cu: Some(Shown(taken.uncollected)),
                is_final: Some(*finality == Finality::Final),
                ..nothing
            },
            charge::Event::Released { returned } | charge::Event::AutoReleased { returned } => {
                Self { returned_cu: Some(Shown(*returned)), ..nothing }
            }
            charge::Event::Voided { returned, reason } => {
                Self { returned_cu: Some(Shown(*returned)), reason: Some(reason.as_str().to_owned()), ..nothing }
            }
            charge::Event::Failed { reason } => Self { reason: Some(reason.as_str().to_owned()), ..nothing },
        }
    }

    fn of_escrow(event: &escrow::Event) -> Self {
        let nothing = Self::default();
        match *event {
            escrow::Event::Held(escrow::Escrowed { amount, feature, .. }) => {
                Self { amount_cu: Some(Shown(amount)), feature: Some(Shown(feature)), ..nothing }
            }
            escrow::Event::Settled { payee, amount } => {
                Self { settled_cu: Some(Shown(amount)), payee: Some(Shown(payee)), ..nothing }
            }
            escrow::Event::Refunded { amount } => Self { returned_cu: Some(Shown(amount)), ..nothing },
            escrow::Event::PartiallySettled { payee, settled, refunded } => Self {
                settled_cu: Some(Shown(settled)),
                returned_cu: Some(Shown(refunded)),
                payee: Some(Shown(payee)),
                ..nothing
            },
        }
    }
}
