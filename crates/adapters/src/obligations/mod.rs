//! Stores of what the peer is still to be told.

mod failover;
mod id;
pub mod journal;
pub mod line;
mod memory;
mod notices;
pub mod postgres;
pub mod redis;

pub use failover::Failover;
pub(crate) use id::{late_id, same};
pub use journal::JournalStore;
pub use memory::MemoryStore;
pub use notices::{Notice, Notices, StandardError};
pub use postgres::PostgresStore;
pub use redis::RedisStore;
