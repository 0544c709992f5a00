//! The entry as it is stored: version 1 of its bytes, and nothing that depends on how the domain lays out its types.
//!
//! A record stands alone: it names its owner, its charge and the balances after it, so one read answers a repeated request
//! word for word. It also points back, to the owner's entry before it and to its life's record before it, so that a history
//! or a closed charge is found without an index of its own.
//!
//! The format is append-only: a kind keeps its tag for ever, and a changed meaning is a new version.

mod escrow;

pub use escrow::{cause_of, cause_tag};

use crate::codec::{Taker, put_number, put_text};
use crate::request::{Fingerprint, LifeState, Receipt};
use holdfast_domain::budget::BUDGETS_MAX;
use holdfast_domain::charge::{self, Finality, OnExpiry, Overrun, Taken, Terms};
use holdfast_domain::escrow::State as EscrowState;
use holdfast_domain::{
    Account, Budget, Budgets, Change, CreditUnit, CreditsPerUsd, Event, Key, Kind, Label, Mint, OwnerId, Price, Rates,
    RequestPrice, Timestamp,
};
use holdfast_journal::Location;

const VERSION: u8 = 1;
/// The tag of a reserve that counts against budgets, which stand at its end.
const BUDGETED_RESERVE: u8 = 17;

/// An entry with everything the journal keeps of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its place in the order of all entries.
    pub offset: u64,
    /// When it was decided.
    pub at: Timestamp,
    /// Who gave the command.
    pub actor: Label,
    /// The caller's idempotency key.
    pub key: Option<Key>,
    /// The hash of the request's body.
    pub fingerprint: Fingerprint,
    /// What happened.
    pub event: Event,
    /// The state that it left its charge or escrow in.
    pub state: LifeState,
    /// The owner's balances after it.
    pub owner: OwnerLink,
    /// The payee's balance after it, if one was paid.
    pub payee: Option<Link>,
    /// The record before it in the same life.
    pub life_previous: Option<Location>,
}

/// An entry's place in the history of one account holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// The balance after it.
    pub balance: CreditUnit,
    /// The offset of the entry before it in this history; 0 if it is the first.
    pub previous: u64,
    /// Its number in this history, from 1.
    pub number: u64,
}

/// An entry's place in its owner's history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnerLink {
    /// What the owner could spend after it, and its place in the owner's history.
    pub available: Link,
    /// What the owner's open reservations held after it.
    pub held: CreditUnit,
}

impl Record {
    /// What the caller was told.
    #[must_use]
    pub fn into_receipt(self) -> Receipt {
        Receipt {
            offset: self.offset,
            at: self.at,
            event: Box::new(self.event),
            state: self.state,
            available: self.owner.available.balance,
            held: self.owner.held,
        }
    }

    /// The name of the charge or escrow, or the key of a mint.
    #[must_use]
    pub fn correlation(&self) -> String {
        match &self.event {
            Event::Minted(_) => self.key.map(|key| key.to_string()).unwrap_or_default(),
            Event::Charge { id, .. } => id.to_string(),
            Event::Escrow { id, .. } => id.to_string(),
        }
    }

    /// The change of one account by this entry.
    #[must_use]
    pub fn change_of(&self, account: &Account) -> Change {
        let Ok(mut changes) = self.event.changes() else { return Change::ZERO };
        changes.find(|(changed, _)| changed == account).map_or(Change::ZERO, |(_, change)| change)
    }

    /// Appends the record's bytes.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        let Self { offset, at, actor, key, fingerprint, event, state, owner, payee, life_previous } = self;
        let (offset, at, fingerprint, state) = (*offset, *at, *fingerprint, *state);
        let (owner, payee, life_previous) = (*owner, *payee, *life_previous);
        let key = key.as_ref();
        Draft { offset, at, actor, key, fingerprint, event, state, owner, payee, life_previous }.encode(bytes);
    }

    /// The record that `bytes` hold; `None` if they are not one.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut taker = Taker(bytes);
        (taker.byte()? == VERSION).then_some(())?;
        let kind = taker.byte()?;
        let offset = taker.number()?;
        let at = Timestamp::from_millis(taker.number()?);
        let actor = taker.id()?;
        let key = match taker.byte()? {
            0 => None,
            length => Some(Key::from_bytes(taker.bytes(usize::from(length))?).ok()?),
        };
        let fingerprint = Fingerprint(taker.array()?);
        let owner = taker.id()?;
        let available = take_link(&mut taker)?;
        let held = taker.amount()?;
        let state = state_of(taker.byte()?)?;
        let life_previous = Some(taker.number()?).filter(|packed| *packed != 0).map(Location::unpack);
        let event = take_event(&mut taker, kind, owner, at)?;
        let payee = match taker.is_empty() {
            true => None,
            false => Some(take_link(&mut taker)?),
        };
        let owner = OwnerLink { available, held };
        let record = Self { offset, at, actor, key, fingerprint, event, state, owner, payee, life_previous };
        (taker.is_empty() && record.payee.is_some() == record.event.payee().is_some()).then_some(record)
    }
}

/// A record about to be written, put together from where its parts are.
pub(crate) struct Draft<'a> {
    pub(crate) offset: u64,
    pub(crate) at: Timestamp,
    pub(crate) actor: &'a Label,
    pub(crate) key: Option<&'a Key>,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) event: &'a Event,
    pub(crate) state: LifeState,
    pub(crate) owner: OwnerLink,
    pub(crate) payee: Option<Link>,
    pub(crate) life_previous: Option<Location>,
}

impl Draft<'_> {
    /// Appends the record's bytes.
    pub(crate) fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.push(VERSION);
        bytes.push(event_tag(self.event));
        put_number(bytes, self.offset);
        put_number(bytes, self.at.millis());
        put_text(bytes, self.actor.as_bytes());
        put_text(bytes, self.key.map_or(&[], |key| key.as_bytes()));
        bytes.extend_from_slice(&self.fingerprint.0);
        put_text(bytes, self.event.owner().as_bytes());
        put_link(bytes, &self.owner.available);
        put_number(bytes, self.owner.held.units());
        bytes.push(state_tag(self.state));
        put_number(bytes, self.life_previous.map_or(0, Location::pack));
        put_event(bytes, self.event, self.at);
        if let Some(payee) = &self.payee {
            put_link(bytes, payee);
        }
    }
}

/// The tag of an event: its kind's, unless it carries more than its kind must.
fn event_tag(event: &Event) -> u8 {
    match event {
        Event::Escrow { ruling: Some(_), .. } => tag(event.kind()) + escrow::RULED,
        Event::Charge { .. } if !event.budgets().is_empty() => BUDGETED_RESERVE,
        Event::Minted(_) | Event::Charge { .. } | Event::Escrow { .. } => tag(event.kind()),
    }
}

const fn tag(kind: Kind) -> u8 {
    match kind {
        Kind::CreditMint => 1,
        Kind::BillingReserve => 2,
        Kind::BillingStart => 3,
        Kind::BillingIncrease => 4,
        Kind::BillingExtend => 5,
        Kind::BillingCommit => 6,
        Kind::BillingRelease => 7,
        Kind::BillingAutoRelease => 8,
        Kind::BillingVoid => 9,
        Kind::BillingFinalizeAck => 10,
        Kind::BillingFinalizeFail => 11,
        Kind::EscrowHold => 12,
        Kind::EscrowSettle => 13,
        Kind::EscrowRefund => 14,
        Kind::EscrowPartialSettle => 15,
        Kind::BillingProgress => 16,
    }
}

const fn state_tag(state: LifeState) -> u8 {
    match state {
        LifeState::None => 0,
        LifeState::Charge(charge::State::Held) => 1,
        LifeState::Charge(charge::State::Committed) => 2,
        LifeState::Charge(charge::State::Acked) => 3,
        LifeState::Charge(charge::State::Failed) => 4,
        LifeState::Charge(charge::State::Voided) => 5,
        LifeState::Charge(charge::State::Released) => 6,
        LifeState::Charge(charge::State::AutoReleased) => 7,
        LifeState::Escrow(EscrowState::Held) => 8,
        LifeState::Escrow(EscrowState::Settled) => 9,
        LifeState::Escrow(EscrowState::Refunded) => 10,
        LifeState::Escrow(EscrowState::Partial) => 11,
    }
}

const fn state_of(tag: u8) -> Option<LifeState> {
    Some(match tag {
        0 => LifeState::None,
        1 => LifeState::Charge(charge::State::Held),
        2 => LifeState::Charge(charge::State::Committed),
        3 => LifeState::Charge(charge::State::Acked),
        4 => LifeState::Charge(charge::State::Failed),
        5 => LifeState::Charge(charge::State::Voided),
        6 => LifeState::Charge(charge::State::Released),
        7 => LifeState::Charge(charge::State::AutoReleased),
        8 => LifeState::Escrow(EscrowState::Held),
        9 => LifeState::Escrow(EscrowState::Settled),
        10 => LifeState::Escrow(EscrowState::Refunded),
        11 => LifeState::Escrow(EscrowState::Partial),
        _ => return None,
    })
}

fn put_link(bytes: &mut Vec<u8>, link: &Link) {
    put_number(bytes, link.balance.units());
    put_number(bytes, link.previous);
    put_number(bytes, link.number);
}

fn take_link(taker: &mut Taker<'_>) -> Option<Link> {
    Some(Link { balance: taker.amount()?, previous: taker.number()?, number: taker.number()? })
}

fn put_event(bytes: &mut Vec<u8>, event: &Event, at: Timestamp) {
    match event {
        Event::Minted(mint) => {
            put_number(bytes, mint.amount.units());
            put_text(bytes, mint.reason.as_str().as_bytes());
        }
        Event::Charge { id, event, .. } => {
            put_text(bytes, id.as_bytes());
            put_charge_event(bytes, event, at);
        }
        Event::Escrow { id, event, ruling, .. } => {
            put_text(bytes, id.as_bytes());
            escrow::put(bytes, event, ruling.as_ref());
        }
    }
}

fn put_charge_event(bytes: &mut Vec<u8>, event: &charge::Event, at: Timestamp) {
    // A hold ends after it begins, and most soon after: the difference is shorter than the moment.
    let ends = |expires_at: &Timestamp| expires_at.millis().saturating_sub(at.millis());
    match event {
        charge::Event::Reserved { amount, terms, expires_at, budgets } => {
            put_number(bytes, amount.units());
            put_number(bytes, ends(expires_at));
            put_terms(bytes, terms);
            if !budgets.as_slice().is_empty() {
                put_budgets(bytes, budgets.as_slice());
            }
        }
        charge::Event::Noted { cost } => put_number(bytes, cost.units()),
        charge::Event::Started | charge::Event::Acked => {}
        charge::Event::Increased { amount } => put_number(bytes, amount.units()),
        charge::Event::Extended { expires_at } => put_number(bytes, ends(expires_at)),
        charge::Event::Committed { taken, finality } => {
            bytes.push(match finality {
                Finality::Final => 0,
                Finality::Partial => 1,
            });
            for amount in [taken.from_hold, taken.from_available, taken.returned, taken.uncollected] {
                put_number(bytes, amount.units());
            }
        }
        charge::Event::Released { returned } | charge::Event::AutoReleased { returned } => {
            put_number(bytes, returned.units())
        }
        charge::Event::Voided { returned, reason } => {
            put_number(bytes, returned.units());
            put_text(bytes, reason.as_str().as_bytes());
        }
        charge::Event::Failed { reason } => put_text(bytes, reason.as_str().as_bytes()),
    }
}

fn put_budgets(bytes: &mut Vec<u8>, budgets: &[Budget]) {
    put_number(bytes, budgets.len() as u64);
    for Budget { id, per_day, in_total } in budgets {
        put_text(bytes, id.as_bytes());
        bytes.push(u8::from(per_day.is_some()) | u8::from(in_total.is_some()) << 1);
        for limit in [per_day, in_total].into_iter().flatten() {
            put_number(bytes, limit.units());
        }
    }
}

fn take_budgets(taker: &mut Taker<'_>) -> Option<Budgets> {
    let mut budgets = Vec::new();
    for _ in 0..taker.number().filter(|count| (1..=BUDGETS_MAX as u64).contains(count))? {
        let id = taker.id()?;
        let flags = taker.byte().filter(|flags| *flags < 4)?;
        let mut limit = |bit| if flags & bit == 0 { Some(None) } else { taker.amount().map(Some) };
        budgets.push(Budget { id, per_day: limit(1)?, in_total: limit(2)? });
    }
    Budgets::new(&budgets).ok()
}

pub(crate) fn put_terms(bytes: &mut Vec<u8>, terms: &Terms) {
    let overrun = match terms.overrun {
        Overrun::Cap => 0,
        Overrun::Available => 1,
        Overrun::Refuse => 2,
    };
    let on_expiry = match terms.on_expiry {
        OnExpiry::Release => 0,
        OnExpiry::ChargeEstimate => 4,
    };
    let further = terms.rates.as_ref().map(further_prices).filter(|prices| prices.iter().any(|price| *price != 0));
    let rated = if terms.rates.is_some() { 8 } else { 0 };
    let detailed = if further.is_some() { 16 } else { 0 };
    bytes.push(overrun | on_expiry | rated | detailed);
    if let Some(rates) = &terms.rates {
        for number in [rates.input.get(), rates.output.get(), rates.credits_per_usd.get()] {
            put_number(bytes, number);
        }
    }
    for number in further.into_iter().flatten() {
        put_number(bytes, number);
    }
}

/// The prices that not every model has; 0, which is no price, for one that is not there.
pub(crate) fn further_prices(rates: &Rates) -> [u64; 4] {
    let price = |price: Option<Price>| price.map_or(0, Price::get);
    let per_request = rates.per_request.map_or(0, RequestPrice::get);
    [price(rates.cached_input), price(rates.cache_write), price(rates.reasoning), per_request]
}

pub(crate) fn take_terms(taker: &mut Taker<'_>) -> Option<Terms> {
    let flags = taker.byte()?;
    let overrun = match flags & 3 {
        0 => Overrun::Cap,
        1 => Overrun::Available,
        2 => Overrun::Refuse,
        _ => return None,
    };
    let on_expiry = if flags & 4 == 0 { OnExpiry::Release } else { OnExpiry::ChargeEstimate };
    let rates = match flags & 24 {
        0 => None,
        8 => Some(take_rates(taker)?),
        24 => {
            let rates = take_rates(taker)?;
            Some(take_further_prices(taker, rates)?)
        }
        _ => return None,
    };
    (flags < 32).then_some(Terms { rates, overrun, on_expiry })
}

fn take_rates(taker: &mut Taker<'_>) -> Option<Rates> {
    Some(Rates {
        input: Price::new(taker.number()?).ok()?,
        output: Price::new(taker.number()?).ok()?,
        credits_per_usd: CreditsPerUsd::new(taker.number()?)?,
        cached_input: None,
        cache_write: None,
        reasoning: None,
        per_request: None,
    })
}

fn take_further_prices(taker: &mut Taker<'_>, rates: Rates) -> Option<Rates> {
    let mut price = || match taker.number()? {
        0 => Some(None),
        number => Price::new(number).ok().map(Some),
    };
    let (cached_input, cache_write, reasoning) = (price()?, price()?, price()?);
    let per_request = match taker.number()? {
        0 => None,
        number => Some(RequestPrice::new(number).ok()?),
    };
    let rates = Rates { cached_input, cache_write, reasoning, per_request, ..rates };
    // One value, one encoding: without a further price the flag would not be there.
    (further_prices(&rates) != [0; 4]).then_some(rates)
}

fn take_event(taker: &mut Taker<'_>, kind: u8, owner: OwnerId, at: Timestamp) -> Option<Event> {
    match kind {
        1 => Some(Event::Minted(Mint { owner, amount: taker.amount()?, reason: taker.text()? })),
        2..=11 | 16 | BUDGETED_RESERVE => {
            let id = taker.id()?;
            Some(Event::Charge { id, owner, event: take_charge_event(taker, kind, at)? })
        }
        12..=15 | 18..=20 => {
            let id = taker.id()?;
            let (event, ruling) = escrow::take(taker, kind, at)?;
            Some(Event::Escrow { id, owner, event, ruling })
        }
        _ => None,
    }
}

fn take_charge_event(taker: &mut Taker<'_>, kind: u8, at: Timestamp) -> Option<charge::Event> {
    let ends = |taker: &mut Taker<'_>| Some(Timestamp::from_millis(at.millis().checked_add(taker.number()?)?));
    Some(match kind {
        2 | BUDGETED_RESERVE => {
            let amount = taker.amount()?;
            let expires_at = ends(taker)?;
            let terms = take_terms(taker)?;
            let budgets = if kind == BUDGETED_RESERVE { take_budgets(taker)? } else { Budgets::NONE };
            charge::Event::Reserved { amount, terms, expires_at, budgets }
        }
        3 => charge::Event::Started,
        4 => charge::Event::Increased { amount: taker.amount()? },
        5 => charge::Event::Extended { expires_at: ends(taker)? },
        6 => {
            let finality = match taker.byte()? {
                0 => Finality::Final,
                1 => Finality::Partial,
                _ => return None,
            };
            let taken = Taken {
                from_hold: taker.amount()?,
                from_available: taker.amount()?,
                returned: taker.amount()?,
                uncollected: taker.amount()?,
            };
            charge::Event::Committed { taken, finality }
        }
        7 => charge::Event::Released { returned: taker.amount()? },
        8 => charge::Event::AutoReleased { returned: taker.amount()? },
        9 => charge::Event::Voided { returned: taker.amount()?, reason: taker.text()? },
        10 => charge::Event::Acked,
        11 => charge::Event::Failed { reason: taker.text()? },
        16 => charge::Event::Noted { cost: taker.amount()? },
        _ => return None,
    })
}
