//! One suite for each port, which every adapter of it passes.

pub mod ledger;
pub mod obligations;
pub mod queue;
