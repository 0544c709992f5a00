//! The simulator at work: seeds without a violation, the same run for the same seed, every planted bug caught, the
//! upstream's and the peer's manners, the invariants of settlement, the contract of every port's adapters, what a Redis or a
//! PostgreSQL that fails does to them, and the payment outbox on a real PostgreSQL.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod contract;
mod found;
mod invariants;
mod ledger;
mod outbox;
mod peer;
mod planted;
mod postgres_faults;
mod postgres_nodes;
mod postgres_world;
mod queue_crashes;
mod redis_faults;
mod redis_leases;
mod redis_world;
mod seeds;
mod upstream;
