//! The simulator at work: seeds without a violation, the same run for the same seed, every planted bug caught, and the
//! upstream's manners.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod found;
mod planted;
mod seeds;
mod upstream;
