//! The peer's book: what it was told of each charge, what it made of it, and what was wrong with how it was told.

use super::call::Finalize;
use std::collections::HashMap;

/// So many complaints say all that there is to say.
const COMPLAINTS_MAX: usize = 50;

/// One charge, as the peer knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Who was charged.
    pub tenant: String,
    /// How much, in millionths of a credit: the text as it came.
    pub cost: String,
    /// How often it was told of.
    pub asked: u64,
    /// How often it was applied: more than once is money taken twice.
    pub applied: u64,
}

/// All that the peer was told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Book {
    /// By reservation id.
    pub rows: HashMap<String, Row>,
    /// Calls about charges, whatever came of them.
    pub calls: u64,
    /// What no caller may do: another cost for a known id, a body that is none, no token, a redirect followed.
    pub complaints: Vec<String>,
    /// How often it was away.
    pub absences: u64,
}

/// What the caller is to hear.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entered {
    /// It is new in the book.
    Applied,
    /// It was there.
    Known,
}

/// The book, and what it takes to write it.
#[derive(Debug, Default)]
pub(super) struct Books {
    pub(super) book: Book,
}

impl Books {
    pub(super) fn complain(&mut self, complaint: String) {
        if self.book.complaints.len() < COMPLAINTS_MAX {
            self.book.complaints.push(complaint);
        }
    }

    /// Counts a call, and says which one about its id it is, from 1; `None` if it says something else than an earlier one.
    pub(super) fn asked(&mut self, told: &Finalize) -> Option<u64> {
        let new = || Row { tenant: told.tenant.clone(), cost: told.cost.clone(), asked: 0, applied: 0 };
        let row = self.book.rows.entry(told.id.clone()).or_insert_with(new);
        row.asked += 1;
        let asked = row.asked;
        let is_same = (&row.tenant, &row.cost) == (&told.tenant, &told.cost);
        let was = format!("{} of {}", row.cost, row.tenant);
        self.book.calls += 1;
        if !is_same {
            self.complain(format!("{} was {was} and is now {} of {}", told.id, told.cost, told.tenant));
        }
        is_same.then_some(asked)
    }

    /// Applies a charge; again only if `again` says so.
    pub(super) fn apply(&mut self, id: &str, again: Again) -> Entered {
        let Some(row) = self.book.rows.get_mut(id) else { return Entered::Known };
        match (row.applied, again) {
            (0, _) => {
                row.applied = 1;
                Entered::Applied
            }
            (_, Again::Never) => Entered::Known,
            (_, Again::Planted) => {
                row.applied += 1;
                Entered::Applied
            }
        }
    }
}

/// Whether what is known is applied once more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    Never,
    /// A bug on purpose.
    Planted,
}
