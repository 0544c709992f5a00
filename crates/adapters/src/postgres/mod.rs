//! PostgreSQL: the way to it, and its schema.
//!
//! The schema itself is in `crates/adapters/sql`, written for an operator to read and usable from psql alone.

mod connect;
mod failure;
pub mod ledger;
mod migrations;

pub use connect::Database;
pub use failure::DatabaseError;
pub use ledger::PostgresLedger;
pub use migrations::{ALL, Migration, Standing, Step, migrate, plan};
