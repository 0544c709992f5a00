//! Benchmarks of Holdfast beside its peers and beside the disk's own floor.
//!
//! `ledger` is one benchmark; the other modules know nothing of ledgers and serve every benchmark: `report` prints and writes
//! the figures, `servers` starts private peers, `sandbox` holds their files, `latency` records, `plan` says how long.
//!
//! # Invariants
//! - A figure is measured here and now or it is missing with a reason; none is remembered or invented.
//! - Whatever a run starts or writes is stopped and removed with it, or swept by the next run if it was killed.

pub mod error;
pub mod growth;
pub mod head;
pub mod latency;
pub mod ledger;
pub mod plan;
pub mod report;
pub mod sandbox;
pub mod servers;
mod table;

pub use error::BenchError;
