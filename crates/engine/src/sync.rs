//! What threads wait with. `turns.rs` takes it from here alone, so that the model of it in `tests/it/waking.rs` can compile the
//! very same file with a scheduler's locks and a clock that stands still.

pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
pub(crate) use std::time::Instant;
