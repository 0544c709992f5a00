//! Stores of what the peer is still to be told.

mod memory;

pub use memory::MemoryStore;
