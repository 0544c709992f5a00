//! Where the items are: in the journal of this process, or in the database that several nodes share.

use crate::books::gather;
use crate::failure::Failure;
use crate::node::{Node, Running};
use holdfast_adapters::postgres::Limits;
use holdfast_adapters::queue::{NotedQueue, PostgresQueue};
use holdfast_domain::queue::{Item, Verdict};
use holdfast_domain::{EscrowId, ItemId, PayeeId, Timestamp};
use holdfast_engine::queue::{Answered, Counts, Filter, Put, QueueStore};
use tokio::runtime::Runtime;

/// A store of items.
pub(crate) enum Store {
    /// In the data directory.
    Embedded(NotedQueue),
    /// In the database that has the books.
    Postgres(Box<PostgresQueue>),
}

macro_rules! ask {
    ($self:ident, $store:ident => $asked:expr) => {
        match $self {
            Self::Embedded($store) => $asked.await,
            // In a box: what it keeps while it asks a database is large, and would be moved about with every request here too.
            Self::Postgres($store) => Box::pin($asked).await,
        }
    };
}

impl Store {
    /// The store of a node's items: beside its books.
    pub(super) fn open(node: &Node, runtime: &Runtime) -> Result<Self, Failure> {
        match &node.engine {
            Running::Embedded(local) => {
                Ok(Self::Embedded(NotedQueue::open(&node.data, local.engine.margin(), gather::soon)?))
            }
            Running::Postgres(ledger) => {
                let store = PostgresQueue::new(ledger.database().clone(), Limits::USUAL);
                runtime.block_on(store.check())?;
                Ok(Self::Postgres(Box::new(store)))
            }
        }
    }

    /// Whether only this process writes to it.
    pub(super) const fn is_ours_alone(&self) -> bool {
        match self {
            Self::Embedded(_) => true,
            Self::Postgres(_) => false,
        }
    }
}

impl QueueStore for Store {
    fn name(&self) -> &'static str {
        match self {
            Self::Embedded(store) => store.name(),
            Self::Postgres(store) => store.name(),
        }
    }

    async fn put(&self, item: Item) -> Answered<Put> {
        ask!(self, store => store.put(item))
    }

    async fn item(&self, id: ItemId) -> Answered<Option<Item>> {
        ask!(self, store => store.item(id))
    }

    async fn start(&self, id: ItemId, now: Timestamp) -> Answered<Item> {
        ask!(self, store => store.start(id, now))
    }

    async fn start_next(&self, payee: PayeeId, now: Timestamp) -> Answered<Option<Item>> {
        ask!(self, store => store.start_next(payee, now))
    }

    async fn end(&self, id: ItemId, verdict: Verdict, at: Timestamp) -> Answered<Item> {
        ask!(self, store => store.end(id, verdict, at))
    }

    async fn list(&self, filter: Filter, at_most: usize) -> Answered<Vec<Item>> {
        ask!(self, store => store.list(filter, at_most))
    }

    async fn overdue(&self, now: Timestamp, at_most: usize) -> Answered<Vec<Item>> {
        ask!(self, store => store.overdue(now, at_most))
    }

    async fn linked(&self, escrows: Vec<EscrowId>) -> Answered<Vec<EscrowId>> {
        ask!(self, store => store.linked(escrows))
    }

    async fn counts(&self) -> Answered<Counts> {
        ask!(self, store => store.counts())
    }
}
