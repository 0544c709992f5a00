//! The outside, behind the engine's ports: the system's clock, and the read model in SQLite.

mod clock;
pub mod read_model;

pub use clock::SystemClock;
pub use read_model::ReadModel;
