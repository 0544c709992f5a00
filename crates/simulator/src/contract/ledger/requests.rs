//! Requests in few words, for the rules.

use holdfast_domain::charge::{self, Actual, Finality, OnExpiry, Overrun, Reserve, Terms};
use holdfast_domain::{
    Budget, Budgets, ChargeId, CreditUnit, EscrowId, Key, Label, OwnerId, PayeeId, Reason, Span, escrow,
};
use holdfast_engine::{Command, Request};

/// Longer than any rule lets time pass.
pub(super) const LONG: Span = Span::from_secs(300 * 24 * 60 * 60);
pub(super) const TERMS: Terms = Terms { rates: None, overrun: Overrun::Cap, on_expiry: OnExpiry::Release };

pub(super) fn owner(name: &str) -> OwnerId {
    name.parse().expect("a short plain name")
}

pub(super) fn charge(name: &str) -> ChargeId {
    name.parse().expect("a short plain name")
}

pub(super) fn escrow(name: &str) -> EscrowId {
    name.parse().expect("a short plain name")
}

pub(super) fn payee(name: &str) -> PayeeId {
    name.parse().expect("a short plain name")
}

pub(super) fn key(name: &str) -> Key {
    name.parse().expect("a short plain name")
}

pub(super) fn reason() -> Reason {
    "because".parse().expect("a short text")
}

/// An amount in whole credits.
pub(super) fn credits(whole: u64) -> CreditUnit {
    CreditUnit::new(whole * 1_000_000).expect("far below the largest amount")
}

pub(super) fn asks(command: Command) -> Request {
    let actor: Label = "suite".parse().expect("a plain word");
    Request { key: None, actor, command }
}

/// The same request with a key.
pub(super) fn keyed(name: &str, request: Request) -> Request {
    Request { key: Some(key(name)), ..request }
}

/// Credits an account, once by its name and the amount.
pub(super) fn mint(to: &str, whole: u64) -> Request {
    let command = Command::Mint { owner: owner(to), amount: credits(whole), reason: reason() };
    keyed(&format!("mint-{to}-{whole}"), asks(command))
}

pub(super) fn plan(from: &str, whole: u64) -> Reserve {
    Reserve { owner: owner(from), amount: credits(whole), terms: TERMS, ttl: LONG, budgets: Budgets::NONE }
}

pub(super) fn reserve(id: &str, from: &str, whole: u64) -> Request {
    reserve_as(id, plan(from, whole))
}

pub(super) fn reserve_as(id: &str, reserve: Reserve) -> Request {
    asks(Command::Reserve { charge: charge(id), reserve })
}

/// What a reserve counts against.
pub(super) fn under(name: &str, per_day: Option<u64>, in_total: Option<u64>) -> Budgets {
    let budget = Budget {
        id: name.parse().expect("a short plain name"),
        per_day: per_day.map(credits),
        in_total: in_total.map(credits),
    };
    Budgets::new(&[budget]).expect("it is one")
}

pub(super) fn on(id: &str, command: charge::Command) -> Request {
    asks(Command::Charge { charge: charge(id), command })
}

pub(super) const fn cost(amount: CreditUnit, finality: Finality) -> charge::Command {
    charge::Command::Commit { actual: Actual::Credits(amount), finality }
}

pub(super) fn commit(id: &str, whole: u64) -> Request {
    on(id, cost(credits(whole), Finality::Final))
}

pub(super) fn hold(id: &str, from: &str, whole: u64) -> Request {
    let feature: Label = "dance".parse().expect("a plain word");
    let hold = escrow::Hold { owner: owner(from), amount: credits(whole), feature };
    keyed(&format!("hold-{id}"), asks(Command::Hold { escrow: escrow(id), hold }))
}

pub(super) fn on_escrow(id: &str, command: escrow::Command) -> Request {
    asks(Command::Escrow { escrow: escrow(id), command, ruling: None })
}
