//! Followers of the journal's tail: derived stores that can be thrown away and rebuilt.

use crate::record::Record;
use holdfast_journal::Location;

/// A record and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// Where.
    pub location: Location,
    /// What.
    pub record: Record,
}

/// How far a projection has come: it has applied every entry up to and with `through`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Applied {
    /// The last entry applied; 0 if none.
    pub through: u64,
    /// Where the next frame stands.
    pub location: Location,
}

impl Applied {
    /// Nothing applied yet.
    pub const NOTHING: Self = Self { through: 0, location: Location::START };
}

/// The name of the read model among the followers.
pub const READ_MODEL: &str = "read-model";

/// Why a projection could not apply entries. It is derived, so no money is at risk; what it answers is stale.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the read model failed: {0}; run `holdfast rebuild`")]
pub struct ProjectionFailed(pub String);

/// A store derived from the journal.
pub trait Projection: Send + 'static {
    /// What to call it: the name of its thread, and of its place in the engine's health.
    fn name(&self) -> &'static str;
    /// How far it has come, durably.
    fn applied(&self) -> Applied;
    /// Applies `records`, which follow what it has, and remembers that it has come to `applied`: all of it, or nothing.
    fn apply(&mut self, records: &[Located], applied: Applied) -> Result<(), ProjectionFailed>;
}
