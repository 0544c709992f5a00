//! PostgreSQL: the way to it, a few connections for all who ask, and its schema.
//!
//! The schema itself is in `crates/adapters/sql`, written for an operator to read and usable from psql alone.

pub mod access;
mod connect;
mod failure;
pub mod ledger;
mod migrations;
mod pool;
mod schema;

pub use connect::Database;
pub use failure::DatabaseError;
pub use ledger::PostgresLedger;
pub use migrations::{ALL, Migration, Standing, Step, migrate, plan};
pub use pool::{Lent, Limits, Parameters, Pool};
pub use schema::{DECIDES, SETTLES, check};

pub(crate) use connect::Driver;
