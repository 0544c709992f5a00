//! The engine on a real disk: concurrency, idempotency, expiry, restarts, and bad input.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod concurrency;
mod golden;
mod inputs;
mod restarts;
mod sync;
#[path = "../../src/turns.rs"]
mod turns;
mod waking;
mod world;
