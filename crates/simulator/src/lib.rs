//! The simulator: the ledger on a disk that fails in every way a disk can, driven and audited from one seed.
//!
//! [`run`] takes a seed and plays a life: callers, batches, syncs, upkeep, expiry, crashes within any disk operation,
//! damage between two starts, and starts. It drives the engine's own `Ledger`, `Journal` and `recovery::open`, one
//! thread, in the order in which the engine's workers do. Beside it runs a [`Model`], a second ledger written from the
//! specification, that says what every answer and balance must be; an auditor reads the journal back and adds it up by
//! its own rules.
//!
//! # Invariants
//! - The same seed is the same run, whatever else the machine does: [`Report::trace`] is a hash over all of it.
//! - The auditor is not the engine: neither decides by the other's code.
//! - A bug planted on purpose ([`Planted`]) is caught: the tests plant each of them.

mod audit;
mod check;
pub mod contract;
pub mod disk;
mod follower;
pub mod model;
mod node;
pub mod outside;
mod plant;
pub mod rng;
pub mod servers;
mod tally;
pub mod upstream;
mod workload;
mod world;

pub use check::{Check, Violation};
pub use disk::SimDisk;
pub use model::Model;
pub use plant::Planted;
pub use tally::{Count, Tally};
pub use world::{Report, run, run_telling};
