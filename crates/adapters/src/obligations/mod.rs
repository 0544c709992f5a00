//! Stores of what the peer is still to be told.

pub mod journal;
mod memory;

pub use journal::JournalStore;
pub use memory::MemoryStore;
