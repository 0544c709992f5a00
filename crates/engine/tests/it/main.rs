//! The engine on a real disk: concurrency, idempotency, expiry, restarts, and bad input.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod batches;
mod budgets;
mod concurrency;
mod forged;
mod glimpse;
mod golden;
mod hanging;
mod inputs;
mod margin;
mod restarts;
mod sync;
#[path = "../../src/turns.rs"]
mod turns;
mod views;
mod waking;
mod world;
