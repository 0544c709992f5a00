//! The simulator at work: seeds without a violation, the same run for the same seed, every planted bug caught, the
//! upstream's manners, the contract of every port's adapters, and what a Redis that fails does to them.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod contract;
mod found;
mod planted;
mod redis_faults;
mod redis_leases;
mod redis_world;
mod seeds;
mod upstream;
