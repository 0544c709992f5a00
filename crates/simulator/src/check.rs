//! What the auditor checks, and what it says when a check fails.

use std::fmt;

/// A property that must hold, by the name of what broke it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Check {
    /// A request was answered otherwise than the specification says.
    WrongAnswer,
    /// The books show other balances, holds or lives than the specification says.
    WrongBooks,
    /// The balances do not sum to zero, or one is below its floor.
    NotConserved,
    /// An entry's postings do not sum to zero.
    NotBalanced,
    /// Something was told before it was durable.
    ToldTooEarly,
    /// Something was told after the journal had failed.
    ToldAfterFailure,
    /// The journal touched the disk again after it had failed.
    TouchedAfterFailure,
    /// An acknowledged entry is gone after a crash.
    AcknowledgedLost,
    /// An entry that the journal had called durable is gone after a crash.
    DurableLost,
    /// A part of a batch survived a crash, or a batch that was never handed to the disk.
    HalfBatch,
    /// The journal holds an entry that nobody asked for, or one with another content than was decided.
    WrongEntry,
    /// A start was refused although nothing that was durable is damaged.
    RefusedStart,
    /// A start went well although something durable is damaged, or blamed the wrong place.
    DamageMissed,
    /// Something that must happen in the end did not.
    NotLive,
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{self:?}"))
    }
}

/// A check that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The run.
    pub seed: u64,
    /// The step of the run.
    pub step: u32,
    /// Which check.
    pub check: Check,
    /// What was seen.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, step, check, what } = self;
        write!(f, "seed {seed} step {step}: {check}: {what}\n  again with: simulate --seed {seed}")
    }
}
impl std::error::Error for Violation {}

/// A failed check, before it is known where.
pub(crate) type Found = (Check, String);
