//! The outside, behind the engine's ports: the system's clock, the read model in SQLite, the providers of models, and stores of
//! obligations and of the queue's items.

mod clock;
pub mod escrow_metadata;
pub mod moving;
pub mod obligations;
pub mod peer;
pub mod postgres;
pub mod providers;
pub mod queue;
pub mod read_model;
mod sqlite;

pub use clock::SystemClock;
pub use read_model::ReadModel;
