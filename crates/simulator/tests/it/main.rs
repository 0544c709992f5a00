//! The simulator at work: seeds without a violation, the same run for the same seed, and every planted bug caught.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod found;
mod planted;
mod seeds;
