//! Why books were not moved.

use crate::postgres::DatabaseError;
use holdfast_engine::recovery::StartError;
use std::io;
use std::path::{Path, PathBuf};

/// Why books were not moved. The target is as it was.
#[derive(Debug, thiserror::Error)]
pub enum MovingError {
    /// The file is not a whole export.
    #[error("line {line} of {}: {why}", file.display())]
    Damaged {
        /// Which file.
        file: PathBuf,
        /// The line at which it shows.
        line: u64,
        /// What is wrong.
        why: String,
    },
    /// There are entries in the target.
    #[error("the books in {target} have {entries} entries, and must be empty")]
    NotEmpty {
        /// Which.
        target: String,
        /// How many.
        entries: u64,
    },
    /// An entry does not follow from those before it.
    #[error("entry {offset} of the file cannot be taken over: {why}")]
    Refused {
        /// Its offset in the file.
        offset: u64,
        /// Why.
        why: String,
    },
    /// The books in the target are not what the file says.
    #[error("the books differ: the file says {file}, and the target has {target}")]
    Differ {
        /// What the file says.
        file: String,
        /// What the target has.
        target: String,
    },
    /// Late results would go by other ids.
    #[error("{count} late results that the peer has not acknowledged would go by other ids in a data directory")]
    LateResults {
        /// How many.
        count: u64,
    },
    /// The books that are to be exported do not fit together.
    #[error("the books cannot be exported: {0}")]
    Inconsistent(String),
    /// There is a file already.
    #[error("{} is there already", .0.display())]
    Exists(PathBuf),
    /// A data directory cannot be opened.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The database failed.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// A file could not be read or written.
    #[error("cannot use {}: {error}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

impl MovingError {
    /// Why a file operation failed, in the form of `map_err(MovingError::io(path))`.
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Io { path: path.to_owned(), error }
    }

    /// The stable code of this error.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Damaged { .. } => "EXPORT_DAMAGED",
            Self::NotEmpty { .. } => "IMPORT_TARGET_NOT_EMPTY",
            Self::Refused { .. } => "IMPORT_ENTRY_REFUSED",
            Self::Differ { .. } => "IMPORT_BOOKS_DIFFER",
            Self::LateResults { .. } => "IMPORT_LATE_RESULTS",
            Self::Inconsistent(_) => "EXPORT_INCONSISTENT",
            Self::Exists(_) => "FILE_EXISTS",
            Self::Start(error) => error.code(),
            Self::Database(error) => error.code(),
            Self::Io { .. } => "IO_FAILED",
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> String {
        let hint = match self {
            Self::Damaged { .. } => "export again, or copy the file again; nothing has been written",
            Self::NotEmpty { .. } => "import into a new data directory or a new database: books are not mixed",
            Self::Refused { .. } | Self::Differ { .. } => {
                "nothing has been kept; export again with the holdfast that wrote the books, and keep both"
            }
            Self::LateResults { .. } => {
                "let them be delivered first; or say --without-peer if nobody is told, or --rename-late if the peer is to be told \
                 of them again"
            }
            Self::Inconsistent(_) => "check the source first: `holdfast journal verify`, or the database's log",
            Self::Exists(_) => "name another file",
            Self::Start(error) => {
                return format!("nothing has been changed; docs/errors/{}.md says more", error.code());
            }
            Self::Database(error) => error.hint(),
            Self::Io { .. } => "check that the path exists and may be read and written",
        };
        hint.to_owned()
    }
}
