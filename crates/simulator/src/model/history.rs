//! What has happened, entry by entry, and how to take it back.

use super::charges::ChargeRow;
use super::escrows::EscrowRow;
use super::{Model, OwnerRow, PayeeRow, SystemRow};
use holdfast_domain::{ChargeId, EscrowId, OwnerId, PayeeId};
use holdfast_engine::{Receipt, Record, Request};
use holdfast_journal::Location;

/// An entry as it must stand in the journal.
#[derive(Debug)]
pub struct Past {
    /// What was asked.
    pub request: Request,
    /// What was answered.
    pub receipt: Receipt,
    /// The record's bytes and place, once the engine has written them.
    pub written: Option<(Location, Vec<u8>)>,
    /// By how much it changed what the owner can spend.
    pub(super) available: i128,
    /// The owner's entry before it, and how many the owner had.
    owner_before: (u64, u64),
    payee: Option<PastPayee>,
    undo: Undo,
}

/// What an entry says of the payee's history.
#[derive(Debug, Clone, Copy)]
pub struct PastPayee {
    /// The balance after it.
    pub balance: i128,
    /// The payee's entry before it.
    pub previous: u64,
    /// Its number among the payee's.
    pub number: u64,
}

/// What everything that an entry changed was before.
#[derive(Debug)]
pub(super) struct Undo {
    pub(super) owner: (OwnerId, Option<OwnerRow>),
    pub(super) payee: Option<(PayeeId, Option<PayeeRow>)>,
    pub(super) life: LifeBefore,
    pub(super) system: SystemRow,
}

#[derive(Debug)]
pub(super) enum LifeBefore {
    None,
    Charge(ChargeId, Option<ChargeRow>),
    Escrow(EscrowId, Option<EscrowRow>),
}

impl LifeBefore {
    /// The entry before in the same life.
    fn last(&self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Charge(_, before) => before.map(|row| row.last),
            Self::Escrow(_, before) => before.map(|row| row.last),
        }
    }
}

impl Past {
    pub(super) const fn new(
        request: Request,
        receipt: Receipt,
        available: i128,
        owner_before: (u64, u64),
        payee: Option<PastPayee>,
        undo: Undo,
    ) -> Self {
        Self { request, receipt, written: None, available, owner_before, payee, undo }
    }
}

impl Model {
    /// How many entries there are.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.history.len() as u64
    }

    /// The entry at an offset.
    #[must_use]
    pub fn past(&self, offset: u64) -> Option<&Past> {
        self.history.get(usize::try_from(offset.checked_sub(1)?).ok()?)
    }

    /// The entries of a life, newest first.
    pub(super) fn life(&self, last: u64) -> impl Iterator<Item = &Past> {
        std::iter::successors(self.past(last), |past| self.past(past.undo.life.last()?))
    }

    /// Notes how the engine wrote the newest entry.
    pub fn note_written(&mut self, location: Location, body: Vec<u8>) {
        if let Some(past) = self.history.last_mut() {
            past.written = Some((location, body));
        }
    }

    /// Takes back every entry above `through`.
    pub fn take_back(&mut self, through: u64) {
        while self.entries() > through {
            let Some(Past { request, undo, .. }) = self.history.pop() else { return };
            let Undo { owner, payee, life, system } = undo;
            put_back(&mut self.owners, owner);
            if let Some(payee) = payee {
                put_back(&mut self.payees, payee);
            }
            match life {
                LifeBefore::None => {}
                LifeBefore::Charge(id, before) => put_back(&mut self.charges, (id, before)),
                LifeBefore::Escrow(id, before) => put_back(&mut self.escrows, (id, before)),
            }
            self.system = system;
            if let Some(key) = &request.key {
                self.keys.remove(key);
            }
        }
    }

    /// What is wrong with a record that stands at `offset` and reads as `record`; `None` if nothing is.
    #[must_use]
    pub fn disagrees(&self, record: &Record) -> Option<&'static str> {
        let Some(past) = self.past(record.offset) else { return Some("nobody asked for it") };
        let Past { request, receipt, owner_before: (previous, entries), payee, undo, .. } = past;
        let available = &record.owner.available;
        let told = [
            ((record.at, record.actor, record.key) == (receipt.at, request.actor, request.key), "time, actor or key"),
            (record.event == *receipt.event, "event"),
            (record.state == receipt.state, "state"),
            (available.balance == receipt.available && record.owner.held == receipt.held, "balances"),
            ((available.previous, available.number) == (*previous, entries + 1), "owner's history"),
            (
                record.payee.map(|link| (i128::from(link.balance.units()), link.previous, link.number))
                    == payee.map(|payee| (payee.balance, payee.previous, payee.number)),
                "payee's history",
            ),
            (
                record.life_previous == undo.life.last().and_then(|last| Some(self.past(last)?.written.as_ref()?.0)),
                "the record before in its life",
            ),
        ];
        told.into_iter().find(|(agrees, _)| !agrees).map(|(_, what)| what)
    }
}

fn put_back<K: Ord, V>(map: &mut std::collections::BTreeMap<K, V>, (key, before): (K, Option<V>)) {
    match before {
        Some(before) => drop(map.insert(key, before)),
        None => drop(map.remove(&key)),
    }
}
