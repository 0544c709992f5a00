//! Stores of the performance queue's items: in this process, and in PostgreSQL.

pub mod embedded;
pub mod postgres;

pub use embedded::{Calling, NotedQueue, Step};
pub use postgres::PostgresQueue;
