//! The outside, behind the engine's ports: the system's clock, the read model in SQLite, the providers of models, and stores of
//! obligations.

mod clock;
pub mod moving;
pub mod obligations;
pub mod peer;
pub mod postgres;
pub mod providers;
pub mod read_model;
mod sqlite;

pub use clock::SystemClock;
pub use read_model::ReadModel;
