//! The simulator at work: seeds without a violation, the same run for the same seed, every planted bug caught, the
//! upstream's and the peer's manners, and the contract of every port's adapters.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod contract;
mod found;
mod peer;
mod planted;
mod seeds;
mod upstream;
