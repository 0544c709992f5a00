//! Why the queue's log cannot be opened.

use super::file::NotApplied;
use holdfast_engine::Corrupt;
use holdfast_engine::recovery::StartError;
use holdfast_journal::ReadError;
use std::io;

/// Why the queue's log cannot be opened, and where it is. What was durable has not been changed.
#[derive(Debug, thiserror::Error)]
#[error("the queue in {directory}: {error}")]
pub struct OpenFailed {
    /// The directory of the log.
    pub directory: String,
    /// What is wrong, in the words and with the codes of every journal.
    #[source]
    pub error: StartError,
}

impl OpenFailed {
    /// The stable code of this error.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        self.error.code()
    }
}

/// Why the file cannot be brought to where the log is.
#[derive(Debug, thiserror::Error)]
pub(super) enum Behind {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Apply(#[from] NotApplied),
}

impl From<Behind> for StartError {
    fn from(behind: Behind) -> Self {
        match behind {
            Behind::Read(error) => Self::Read(error),
            Behind::Apply(NotApplied::Corrupt(corrupt)) => Self::Corrupt(corrupt),
            Behind::Apply(NotApplied::File(error)) => Self::Io(unusable(&error)),
        }
    }
}

impl From<Corrupt> for Behind {
    fn from(corrupt: Corrupt) -> Self {
        Self::Apply(NotApplied::Corrupt(corrupt))
    }
}

pub(super) fn unusable(error: &rusqlite::Error) -> io::Error {
    io::Error::other(format!("queue.db: {error}"))
}
