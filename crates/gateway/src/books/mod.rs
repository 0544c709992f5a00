//! The books, whatever engine holds them: what the services ask, and nothing about how an engine finds it.
//!
//! ```text
//!  service, inference, sweep ──▶ Books ─┬─▶ embedded: the engine in this process, and its read model
//!                                       └─▶ postgres: tables that several nodes share
//! ```
//!
//! # Invariants
//! - What must be of one moment is one question: an answer never mixes two states of the books.
//! - An answer is never stale: it knows everything that was acknowledged when the question came. Where an engine derives
//!   what it answers from, and how it waits for that, is its own matter.
//! - [`Books::submit`] costs an engine in this process nothing besides: no boxed future, no allocation.

mod embedded;
mod found;
pub(crate) mod gather;
mod postgres;

pub(crate) use embedded::Embedded;
pub(crate) use found::{
    AsOf, DatabaseHealth, Entry, EscrowLife, Frame, Health, HistoryEntry, HistoryPage, Life, NoAnswer, OpenHold,
    Overview, OwnerAsOf, TAIL, TailRow,
};
pub(crate) use postgres::Shared;

use holdfast_domain::budget::Used;
use holdfast_domain::charge::{Charge, Hold};
use holdfast_domain::escrow::{Escrow, Escrowed};
use holdfast_domain::{Account, BudgetId, Change, ChargeId, EscrowId, OwnerId};
use holdfast_engine::recovery::Report;
use holdfast_engine::{Answer, Balance, Refusal, Request, Totals};
use std::sync::Arc;

/// An engine that holds the books.
#[derive(Clone)]
pub(crate) enum Books {
    /// In this process, on a data directory of its own.
    Embedded(Arc<Embedded>),
    /// In a database, which other nodes share.
    Postgres(Arc<Shared>),
}

/// What changes the books.
impl Books {
    /// Has one request decided, and waits for its durable answer. The first poll hands it over, so requests polled in order
    /// are decided in order.
    pub(crate) async fn submit(&self, request: Request) -> Answer {
        match self {
            Self::Embedded(books) => books.submit(request).await,
            Self::Postgres(books) => books.submit(request).await,
        }
    }

    /// Has up to [`holdfast_engine::BATCH_MAX`] requests decided, in order. Each stands for itself.
    pub(crate) async fn submit_batch(&self, requests: Vec<Request>) -> Result<Vec<Answer>, Refusal> {
        match self {
            Self::Embedded(books) => books.submit_batch(requests).await,
            Self::Postgres(books) => books.submit_batch(requests).await,
        }
    }
}

/// What is asked of the books as they stand.
impl Books {
    /// An owner's balances; `None` if there is no such account.
    pub(crate) async fn balance(&self, owner: OwnerId) -> Result<Option<Balance>, Refusal> {
        match self {
            Self::Embedded(books) => books.balance(owner).await,
            Self::Postgres(books) => books.balance(owner).await,
        }
    }

    /// The balance of any account; `None` if it has never been posted to.
    pub(crate) async fn account(&self, account: Account) -> Result<Option<Change>, Refusal> {
        match self {
            Self::Embedded(books) => books.account(account).await,
            Self::Postgres(books) => books.account(account).await,
        }
    }

    /// Owners in the order of their names, after a given one, at most so many.
    pub(crate) async fn owners(
        &self,
        after: Option<OwnerId>,
        at_most: usize,
    ) -> Result<Vec<(OwnerId, Balance)>, Refusal> {
        match self {
            Self::Embedded(books) => books.owners(after, at_most).await,
            Self::Postgres(books) => books.owners(after, at_most).await,
        }
    }

    /// What each of these budgets has used, all at one moment.
    pub(crate) async fn used(&self, budgets: Vec<BudgetId>) -> Result<Vec<Used>, Refusal> {
        match self {
            Self::Embedded(books) => books.used(budgets).await,
            Self::Postgres(books) => books.used(budgets).await,
        }
    }

    /// A charge and its owner, open or closed, however old.
    pub(crate) async fn charge(&self, id: ChargeId) -> Result<Option<(Charge, OwnerId)>, Refusal> {
        match self {
            Self::Embedded(books) => books.charge(id).await,
            Self::Postgres(books) => books.charge(id).await,
        }
    }

    /// A charge with every entry of its life.
    pub(crate) async fn life(&self, id: ChargeId) -> Result<Option<Life>, Refusal> {
        match self {
            Self::Embedded(books) => books.life(id).await,
            Self::Postgres(books) => books.life(id).await,
        }
    }

    /// Open reservations and their owners, those that end first before the others, at most so many.
    pub(crate) async fn open_charges(
        &self,
        owner: Option<OwnerId>,
        at_most: usize,
    ) -> Result<Vec<(ChargeId, OwnerId, Hold)>, Refusal> {
        match self {
            Self::Embedded(books) => books.open_charges(owner, at_most).await,
            Self::Postgres(books) => books.open_charges(owner, at_most).await,
        }
    }

    /// The open reservations whose id begins so, and that no running process works on any more.
    pub(crate) async fn orphans(&self, prefix: &'static str) -> Result<Vec<ChargeId>, Refusal> {
        match self {
            Self::Embedded(books) => books.orphans(prefix).await,
            Self::Postgres(books) => books.orphans(prefix).await,
        }
    }

    /// An escrow and its owner, open or closed, however old.
    pub(crate) async fn escrow(&self, id: EscrowId) -> Result<Option<(Escrow, OwnerId)>, Refusal> {
        match self {
            Self::Embedded(books) => books.escrow(id).await,
            // In a box, here and below: every call of the queue asks this, and would have room for the database's answer.
            Self::Postgres(books) => Box::pin(books.escrow(id)).await,
        }
    }

    /// An escrow with every entry of its life.
    pub(crate) async fn escrow_life(&self, id: EscrowId) -> Result<Option<EscrowLife>, Refusal> {
        match self {
            Self::Embedded(books) => books.escrow_life(id).await,
            Self::Postgres(books) => Box::pin(books.escrow_life(id)).await,
        }
    }

    /// Open escrows and their owners in the order of their names, after a given one, at most so many.
    pub(crate) async fn open_escrows(
        &self,
        after: Option<EscrowId>,
        at_most: usize,
    ) -> Result<Vec<(EscrowId, OwnerId, Escrowed)>, Refusal> {
        match self {
            Self::Embedded(books) => books.open_escrows(after, at_most).await,
            Self::Postgres(books) => books.open_escrows(after, at_most).await,
        }
    }

    /// The sums over the whole book.
    pub(crate) async fn totals(&self) -> Result<Totals, Refusal> {
        match self {
            Self::Embedded(books) => books.totals().await,
            Self::Postgres(books) => books.totals().await,
        }
    }
}

/// What is asked of the entries that led there.
impl Books {
    /// A page of the history of an account, newest first, of the entries before entry `before`.
    pub(crate) async fn history(
        &self,
        account: Account,
        before: Option<u64>,
        at_most: usize,
    ) -> Result<HistoryPage, NoAnswer> {
        match self {
            Self::Embedded(books) => books.history(account, before, at_most).await,
            Self::Postgres(books) => books.history(account, before, at_most).await,
        }
    }

    /// The balance of one account as of a moment.
    pub(crate) async fn account_as_of(&self, account: Account, as_of: AsOf) -> Result<Change, NoAnswer> {
        match self {
            Self::Embedded(books) => books.account_as_of(account, as_of).await,
            Self::Postgres(books) => books.account_as_of(account, as_of).await,
        }
    }

    /// The balances of an owner as of a moment.
    pub(crate) async fn owner_as_of(&self, owner: OwnerId, as_of: AsOf) -> Result<OwnerAsOf, NoAnswer> {
        match self {
            Self::Embedded(books) => books.owner_as_of(owner, as_of).await,
            Self::Postgres(books) => books.owner_as_of(owner, as_of).await,
        }
    }

    /// One entry.
    pub(crate) async fn entry(&self, offset: u64) -> Result<Entry, NoAnswer> {
        match self {
            Self::Embedded(books) => books.entry(offset).await,
            Self::Postgres(books) => books.entry(offset).await,
        }
    }

    /// The newest entry that [`Books::tail`] knows. Cheap enough to be asked several times a second.
    pub(crate) async fn newest(&self) -> u64 {
        match self {
            Self::Embedded(books) => books.health().applied,
            Self::Postgres(books) => books.newest().await,
        }
    }

    /// The newest entries after entry `after`, at most [`TAIL`], oldest first. It does not wait for those that are on their
    /// way.
    pub(crate) async fn tail(&self, after: u64) -> Result<Vec<TailRow>, NoAnswer> {
        match self {
            Self::Embedded(books) => books.tail(after).await,
            Self::Postgres(books) => books.tail(after).await,
        }
    }

    /// The books at a glance.
    pub(crate) async fn overview(&self) -> Result<Overview, NoAnswer> {
        match self {
            Self::Embedded(books) => books.overview().await,
            Self::Postgres(books) => books.overview().await,
        }
    }
}

/// What is asked of the engine itself.
impl Books {
    /// How the engine is, within a tenth of a second whatever it does.
    pub(crate) async fn health(&self) -> Health {
        match self {
            Self::Embedded(books) => books.health(),
            Self::Postgres(books) => books.health(),
        }
    }

    /// What the start of an engine on a data directory found and did.
    pub(crate) fn recovered(&self) -> Option<Report> {
        match self {
            Self::Embedded(books) => Some(books.recovered()),
            Self::Postgres(_) => None,
        }
    }
}
