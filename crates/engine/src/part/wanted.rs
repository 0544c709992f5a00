//! What requests may look at.

use crate::request::{Command, Request};
use holdfast_domain::{BudgetId, ChargeId, EscrowId, Key, OwnerId, PayeeId, escrow};

/// What is to be loaded, each list in order and nothing twice: whoever locks in this order waits for nobody in a circle. With
/// each charge and escrow go its owner and its budgets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Owners that are named.
    pub owners: Vec<OwnerId>,
    /// Payees.
    pub payees: Vec<PayeeId>,
    /// Budgets that are named.
    pub budgets: Vec<BudgetId>,
    /// Charges, whole.
    pub charges: Vec<ChargeId>,
    /// Escrows, whole.
    pub escrows: Vec<EscrowId>,
    /// Keys.
    pub keys: Vec<Key>,
}

impl Wanted {
    /// What deciding these may look at.
    #[must_use]
    pub fn by<'a>(requests: impl IntoIterator<Item = &'a Request>) -> Self {
        let mut wanted = Self::default();
        for request in requests {
            wanted.keys.extend(request.key);
            wanted.add(&request.command);
        }
        wanted.in_order()
    }

    fn add(&mut self, command: &Command) {
        match command {
            Command::Mint { owner, .. } => self.owners.push(*owner),
            Command::Reserve { charge, reserve } => {
                self.charges.push(*charge);
                self.owners.push(reserve.owner);
                self.budgets.extend(reserve.budgets.as_slice().iter().map(|budget| budget.id));
            }
            Command::Charge { charge, .. } => self.charges.push(*charge),
            Command::Hold { escrow, hold } => {
                self.escrows.push(*escrow);
                self.owners.push(hold.owner);
            }
            Command::Escrow { escrow, command, .. } => {
                self.escrows.push(*escrow);
                match command {
                    escrow::Command::Settle { payee } | escrow::Command::PartialSettle { payee, .. } => {
                        self.payees.push(*payee);
                    }
                    escrow::Command::Refund => {}
                }
            }
        }
    }

    /// Each list in order and nothing twice.
    #[must_use]
    pub fn in_order(mut self) -> Self {
        fn sort<T: Ord>(list: &mut Vec<T>) {
            list.sort_unstable();
            list.dedup();
        }
        sort(&mut self.owners);
        sort(&mut self.payees);
        sort(&mut self.budgets);
        sort(&mut self.charges);
        sort(&mut self.escrows);
        sort(&mut self.keys);
        self
    }
}
