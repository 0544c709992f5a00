//! Where the performance queue keeps its items: a port.
//!
//! # Invariants, for every adapter
//! - A step is decided by the rules of [`holdfast_domain::queue`] on the item as it then is, and written in the same moment: of
//!   any number of steps at once on one item, each sees what the one before it left.
//! - An escrow belongs to at most one item that has not ended.
//! - What was answered is durable, but for [`QueueStore::end`]: that an item has ended is told by its escrow too, which ended
//!   before it. It is seen by every later question, and if a crash loses it, the escrow tells it again.

use holdfast_domain::queue::{Item, Refusal, State, Verdict};
use holdfast_domain::{EscrowId, ItemId, PayeeId, Timestamp};
use std::future::Future;

/// Why a store did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueueFailed {
    /// The rules do not allow it. Nothing has changed.
    #[error("the item does not allow that")]
    Refused(Refusal),
    /// There is no such item.
    #[error("there is no such queue item")]
    Unknown,
    /// Another item has the escrow.
    #[error("the escrow belongs to another queue item")]
    Linked,
    /// Another item has the id.
    #[error("the id belongs to another queue item")]
    Reused,
    /// The store does not answer; what was asked may or may not have been done.
    #[error("the store of the queue does not answer: {0}")]
    Unavailable(String),
}

/// The most bytes of an item's metadata: it is kept in one record with the rest. Whoever takes items in refuses more.
pub const METADATA_BYTES_MAX: usize = 1_024;

/// The answer of a store.
pub type Answered<T> = Result<T, QueueFailed>;

/// Which items to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Filter {
    /// Of this payee only.
    pub payee: Option<PayeeId>,
    /// In this state only; if not said, those that have not ended.
    pub state: Option<State>,
    /// Those after this one in the same order, wherever it stands now. One that there is not is answered with the first page;
    /// so is one that has not ended, where those that have are listed.
    pub after: Option<ItemId>,
}

/// A new item, or the one that was there already under its id, made by the same intake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Put {
    /// It is new.
    New(Item),
    /// It was there: as it is now.
    Known(Item),
}

/// How many there are, and how old.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Waiting.
    pub queued: u64,
    /// Taken up.
    pub in_progress: u64,
    /// Since when the oldest that has not ended is there.
    pub oldest: Option<Timestamp>,
}

/// A store of the queue's items.
pub trait QueueStore: Send + Sync + 'static {
    /// What to call it: `embedded`, `postgres`.
    fn name(&self) -> &'static str;

    /// Puts a new item. The same intake under the same id again gives the item as it is.
    fn put(&self, item: Item) -> impl Future<Output = Answered<Put>> + Send;

    /// One item, however old.
    fn item(&self, id: ItemId) -> impl Future<Output = Answered<Option<Item>>> + Send;

    /// Has the item taken up.
    fn start(&self, id: ItemId, now: Timestamp) -> impl Future<Output = Answered<Item>> + Send;

    /// Has the first of a payee's waiting items taken up, if there is one. Overdue items are passed over.
    fn start_next(&self, payee: PayeeId, now: Timestamp) -> impl Future<Output = Answered<Option<Item>>> + Send;

    /// Ends an item as its escrow ended at `at`. One that has ended so already stays as it is, and is answered; one that has
    /// ended otherwise is refused.
    fn end(&self, id: ItemId, verdict: Verdict, at: Timestamp) -> impl Future<Output = Answered<Item>> + Send;

    /// Items in the order of [`Item::rank`]; of those that have ended, the last to end first.
    fn list(&self, filter: Filter, at_most: usize) -> impl Future<Output = Answered<Vec<Item>>> + Send;

    /// Those that nobody took up in time, the longest overdue first.
    fn overdue(&self, now: Timestamp, at_most: usize) -> impl Future<Output = Answered<Vec<Item>>> + Send;

    /// Which of these escrows an item has or had.
    fn linked(&self, escrows: Vec<EscrowId>) -> impl Future<Output = Answered<Vec<EscrowId>>> + Send;

    /// How many there are.
    fn counts(&self) -> impl Future<Output = Answered<Counts>> + Send;
}
