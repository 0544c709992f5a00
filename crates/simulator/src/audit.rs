//! The auditor of the journal: reads every record back from the disk and adds it up by its own rules.
//!
//! Its posting rules are the table of the specification, written a third time, neither the engine's nor the model's.

use crate::check::{Check, Found};
use crate::disk::SimDisk;
use crate::model::Model;
use holdfast_domain::charge::Event as ChargeEvent;
use holdfast_domain::escrow::Event as EscrowEvent;
use holdfast_domain::{Account, CreditUnit, Event, OwnerId};
use holdfast_engine::Record;
use holdfast_journal::{Frames, Location};
use std::collections::BTreeMap;

/// Signed changes of at most three accounts.
type Postings = [Option<(Account, i128)>; 3];

/// Every balance, added up from the records alone.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    balances: BTreeMap<Account, i128>,
    through: u64,
}

impl Audit {
    /// Reads the journal up to `end`: every record must be what was decided, and those not seen before are added up.
    pub(crate) fn read(&mut self, disk: &SimDisk, end: Location, model: &Model) -> Result<(), Found> {
        let unreadable = |error: &dyn std::fmt::Display| (Check::WrongEntry, format!("the journal: {error}"));
        let mut frames = Frames::starting(disk.clone(), Location::START);
        let mut next = 1;
        while let Some(frame) = frames.next(end).map_err(|error| unreadable(&error))? {
            for stored in frame.records() {
                let stored = stored.map_err(|_| unreadable(&"a record does not add up"))?;
                let decided = model.past(next).and_then(|past| past.written.as_ref());
                let same = decided.is_some_and(|(place, body)| *place == stored.location && body == stored.body);
                if stored.offset != next || !same {
                    return Err((
                        Check::WrongEntry,
                        format!("entry {next} at {} is not what was decided", stored.location),
                    ));
                }
                if next > self.through {
                    let record =
                        Record::decode(stored.body).ok_or_else(|| unreadable(&"a record cannot be decoded"))?;
                    if let Some(what) = model.disagrees(&record) {
                        return Err((Check::WrongEntry, format!("entry {next} has a wrong {what}: {record:?}")));
                    }
                    self.add(&record)?;
                }
                next += 1;
            }
        }
        if next - 1 != model.entries() {
            return Err((Check::WrongEntry, format!("the journal has {} entries, not {}", next - 1, model.entries())));
        }
        Ok(())
    }

    /// Adds one record up, and checks what must hold after every entry.
    fn add(&mut self, record: &Record) -> Result<(), Found> {
        let postings = postings(&record.event);
        let sum: i128 = postings.iter().flatten().map(|(_, change)| change).sum();
        if sum != 0 {
            return Err((Check::NotBalanced, format!("entry {} sums to {sum}", record.offset)));
        }
        for (account, change) in postings.into_iter().flatten() {
            let balance = self.balances.entry(account).or_insert(0);
            *balance += change;
            let guarded = !matches!(account, Account::Revenue | Account::Treasury);
            if guarded && *balance < 0 {
                return Err((Check::NotConserved, format!("entry {} takes {account} to {balance}", record.offset)));
            }
        }
        self.through = record.offset;
        Ok(())
    }

    /// Compares what the records add up to with the model.
    pub(crate) fn compare(&self, model: &Model) -> Result<(), Found> {
        let sum: i128 = self.balances.values().sum();
        if sum != 0 {
            return Err((Check::NotConserved, format!("the journal sums to {sum}")));
        }
        let system = model.system();
        let of = |account: Account| self.balances.get(&account).copied().unwrap_or(0);
        let escrowed: i128 = model.open_escrows().map(|(_, amount)| amount).sum();
        let mut pairs = vec![
            (Account::Revenue, system.revenue, of(Account::Revenue)),
            (Account::Treasury, system.treasury, of(Account::Treasury)),
        ];
        for (owner, row) in model.owners() {
            pairs.push((Account::Available(*owner), row.available, of(Account::Available(*owner))));
            pairs.push((Account::Held(*owner), row.held, of(Account::Held(*owner))));
        }
        pairs.extend(model.payees().map(|(id, row)| (Account::Payee(*id), row.balance, of(Account::Payee(*id)))));
        pairs.extend(model.open_escrows().map(|(id, amount)| (Account::Escrow(id), amount, of(Account::Escrow(id)))));
        let differs = pairs.iter().find(|(_, expected, found)| expected != found);
        if let Some((account, expected, found)) = differs {
            return Err((Check::NotConserved, format!("the journal makes {account} {found}, not {expected}")));
        }
        if escrowed != system.escrowed {
            return Err((Check::NotConserved, format!("escrows hold {escrowed}, not {}", system.escrowed)));
        }
        Ok(())
    }
}

fn units(amount: CreditUnit) -> i128 {
    i128::from(amount.units())
}

fn moved(amount: CreditUnit, from: Account, to: Account) -> Postings {
    [Some((from, -units(amount))), Some((to, units(amount))), None]
}

/// The specification's table of postings.
fn postings(event: &Event) -> Postings {
    match event {
        Event::Minted(mint) => moved(mint.amount, Account::Treasury, Account::Available(mint.owner)),
        Event::Charge { owner, event, .. } => charge_postings(*owner, event),
        Event::Escrow { id, owner, event, .. } => {
            let (available, escrow) = (Account::Available(*owner), Account::Escrow(*id));
            match *event {
                EscrowEvent::Held(escrowed) => moved(escrowed.amount, available, escrow),
                EscrowEvent::Settled { payee, amount } => moved(amount, escrow, Account::Payee(payee)),
                EscrowEvent::Refunded { amount } => moved(amount, escrow, available),
                EscrowEvent::PartiallySettled { payee, settled, refunded } => [
                    Some((escrow, -units(settled) - units(refunded))),
                    Some((Account::Payee(payee), units(settled))),
                    Some((available, units(refunded))),
                ],
            }
        }
    }
}

fn charge_postings(owner: OwnerId, event: &ChargeEvent) -> Postings {
    let (available, held) = (Account::Available(owner), Account::Held(owner));
    match event {
        ChargeEvent::Reserved { amount, .. } | ChargeEvent::Increased { amount } => moved(*amount, available, held),
        ChargeEvent::Released { returned } | ChargeEvent::AutoReleased { returned } => {
            moved(*returned, held, available)
        }
        ChargeEvent::Voided { returned, .. } => moved(*returned, Account::Revenue, available),
        ChargeEvent::Committed { taken, .. } => [
            Some((held, -units(taken.from_hold) - units(taken.returned))),
            Some((Account::Revenue, units(taken.from_hold) + units(taken.from_available))),
            Some((available, units(taken.returned) - units(taken.from_available))),
        ],
        ChargeEvent::Started
        | ChargeEvent::Noted { .. }
        | ChargeEvent::Extended { .. }
        | ChargeEvent::Acked
        | ChargeEvent::Failed { .. } => [None; 3],
    }
}
