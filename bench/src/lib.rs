//! Benchmarks of Holdfast beside its peers and beside the disk's own floor.
//!
//! `ledger`, `growth`, `gateway`, `delivery`, `outbox` and `escrow` are benchmarks; the other modules serve every benchmark: `report` prints and
//! writes the figures, `servers` starts private peers, `usage` reads what processes use, `sandbox` holds their files, `memory`
//! sees to it that the machine has any, `latency` records, `plan` says how long.
//!
//! # Invariants
//! - A figure is measured here and now or it is missing with a reason; none is remembered or invented.
//! - Whatever a run starts or writes is stopped and removed with it, or swept by the next run if it was killed.

pub mod delivery;
pub mod error;
pub mod escrow;
pub mod gateway;
pub mod growth;
pub mod head;
pub mod latency;
pub mod ledger;
pub mod memory;
pub mod outbox;
pub mod plan;
pub mod report;
pub mod sandbox;
pub mod servers;
mod table;
pub mod usage;

pub use error::BenchError;
