//! The books as the engine shows them, beside the model.

use super::World;
use crate::check::{Check, Found};
use holdfast_domain::{Account, Timestamp};
use holdfast_engine::View;

/// How many old keys are asked again at the end of a run.
const ASKED_AGAIN: u64 = 6;

impl World {
    /// Compares every balance, and the sums over all of them.
    pub(super) fn check_books(&mut self) -> Result<(), Found> {
        let Some(node) = &self.node else { return Ok(()) };
        let due = node.ledger.next_due().map(Timestamp::millis);
        let expected = self.model.next_due().map(|(due, _)| due);
        if due != expected {
            return Err((Check::WrongBooks, format!("the next hold ends at {due:?}, not {expected:?}")));
        }
        let now = Timestamp::from_millis(self.clock_ms);
        node.ledger.look(&node.batch, now, |view| self.check_balances(view))
    }

    fn check_balances(&self, view: &View<'_>) -> Result<(), Found> {
        let totals = view.totals();
        if totals.imbalance != 0 {
            return Err((Check::NotConserved, format!("the books sum to {}", totals.imbalance)));
        }
        for (id, row) in self.model.owners() {
            let found = view.balance(*id).map(|balance| {
                let (available, held) = (i128::from(balance.available.units()), i128::from(balance.held.units()));
                (available, held, balance.open_holds, balance.last, balance.entries)
            });
            if found != Some((row.available, row.held, row.open, row.last, row.entries)) {
                return Err((Check::WrongBooks, format!("{id} has {found:?}, not {row:?}")));
            }
        }
        for budget in self.model.budgets() {
            let used = view.used(budget);
            if !self.model.has_used(budget, &used) {
                return Err((Check::WrongBooks, format!("budget {budget} has used {used:?}")));
            }
        }
        let of = |account: Account| view.account(&account).map(|change| i128::from(change.units()));
        for (id, row) in self.model.payees() {
            let end = view.history_end(&Account::Payee(*id)).map(|end| (end.last, end.entries));
            if of(Account::Payee(*id)) != Some(row.balance) || end != Some((row.last, row.entries)) {
                return Err((Check::WrongBooks, format!("payee {id} has {:?}, not {row:?}", of(Account::Payee(*id)))));
            }
        }
        let system = self.model.system();
        let counts = (totals.owners, totals.payees, totals.open_charges, totals.open_escrows);
        let expected = (
            self.model.owners().count(),
            self.model.payees().count(),
            self.model.open_charges(),
            self.model.open_escrows().count(),
        );
        let outer = (i128::from(totals.revenue.units()), i128::from(totals.treasury.units()));
        if counts != expected || outer != (system.revenue, system.treasury) {
            return Err((Check::WrongBooks, format!("the books have {totals:?}, not {expected:?} and {system:?}")));
        }
        Ok(())
    }

    /// Compares what every open escrow holds, and the states of some charges and escrows, however old.
    pub(super) fn check_lives(&mut self) -> Result<(), Found> {
        let odds = self.disk.quiet();
        let skipped = self.rng.index(4);
        let Some(node) = &self.node else { return Ok(()) };
        let now = Timestamp::from_millis(self.clock_ms);
        let checked = node.ledger.look(&node.batch, now, |view| {
            for (id, amount) in self.model.open_escrows() {
                let found = view.account(&Account::Escrow(id)).map(|change| i128::from(change.units()));
                if found != Some(amount) {
                    return Err((Check::WrongBooks, format!("escrow {id} holds {found:?}, not {amount}")));
                }
            }
            for (id, state) in self.model.charges().skip(skipped).step_by(4) {
                let found = view.charge(id).map(|found| found.map(|(charge, _)| charge.state()));
                if found.as_ref().is_ok_and(|found| *found == Some(state)) {
                    continue;
                }
                return Err((Check::WrongBooks, format!("reservation {id} is {found:?}, not {state}")));
            }
            for (id, state) in self.model.escrows().skip(skipped).step_by(4) {
                let found = view.escrow(id).map(|found| found.map(|(escrow, _)| escrow.state()));
                if found.as_ref().is_ok_and(|found| *found == Some(state)) {
                    continue;
                }
                return Err((Check::WrongBooks, format!("escrow {id} is {found:?}, not {state}")));
            }
            self.check_keys(view, skipped)
        });
        self.disk.set_odds(odds);
        checked
    }

    /// Looks some keys up, however old.
    fn check_keys(&self, view: &View<'_>, skipped: usize) -> Result<(), Found> {
        for (key, offset) in self.model.keys().skip(skipped).step_by(4) {
            let found = view.by_key(key).map(|found| found.map(|record| (record.offset, record.key)));
            if !found.as_ref().is_ok_and(|found| *found == Some((offset, Some(*key)))) {
                return Err((Check::WrongBooks, format!("key {key} leads to {found:?}, not to entry {offset}")));
            }
        }
        Ok(())
    }

    /// Reads the whole journal back while the process runs.
    pub(super) fn read_back(&mut self) -> Result<(), Found> {
        let Some(node) = &self.node else { return Ok(()) };
        if self.durable != self.model.entries() {
            return Ok(());
        }
        let odds = self.disk.quiet();
        let end = node.journal.end().location;
        let read = self.audit.read(&self.disk, end, &self.model).and_then(|()| self.audit.compare(&self.model));
        self.disk.set_odds(odds);
        read
    }

    /// At the end of a run, old requests once more: each must get the answer that it has had.
    pub(super) fn ask_again(&mut self) -> Result<(), Found> {
        let entries = self.model.entries();
        for _ in 0..ASKED_AGAIN.min(entries) {
            let offset = self.rng.between(1, entries);
            let Some(request) = self.model.past(offset).map(|past| past.request.clone()) else { continue };
            self.decide(request)?;
        }
        self.drain()?;
        self.read_back()
    }
}
