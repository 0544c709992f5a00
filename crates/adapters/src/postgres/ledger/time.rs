//! Whose time it is.

use holdfast_domain::Timestamp;
use holdfast_engine::Clock;
use std::fmt;
use std::sync::Arc;

/// Where the moment of an entry comes from.
#[derive(Clone)]
pub enum Time {
    /// The database, once the locks are held: the same for all nodes, whatever their own clocks say.
    Database,
    /// A clock of the caller's: for those who let time pass by hand.
    Given(Arc<dyn Clock>),
}

impl Time {
    /// The moment, if it does not come from the database.
    pub(super) fn given(&self) -> Option<Timestamp> {
        match self {
            Self::Database => None,
            Self::Given(clock) => Some(clock.now()),
        }
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Database => "Database",
            Self::Given(_) => "Given",
        })
    }
}
