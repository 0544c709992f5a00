//! What can stop a benchmark.
//!
//! A peer that is not installed is no error: it is `Outcome::Missing`. An error says that a figure would have been wrong.

use holdfast_simulator::servers::ServerError;
use std::error::Error as _;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why a benchmark, or one subject in one case, gave no figure.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A signal asked the run to end.
    #[error("interrupted")]
    Interrupted,
    /// The operating system, a program run to its end, or a private server failed.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The subject took far longer than the plan allows.
    #[error("no end after {} s", after.as_secs())]
    Hung {
        /// How long it was waited for.
        after: Duration,
    },
    /// PostgreSQL or the way to it failed.
    #[error("postgres: {}", with_cause(.0))]
    Postgres(#[from] tokio_postgres::Error),
    /// Redis or the way to it failed.
    #[error("redis: {0}")]
    Redis(#[from] redis::RedisError),
    /// An operation that had to succeed was refused or was taken for a replay.
    #[error("an operation was not applied: {0}")]
    NotApplied(String),
    /// Money was made or lost under load, so the speed means nothing.
    #[error("the books do not balance: expected {expected}, found {found}")]
    Books {
        /// What the driver knows was spent and left.
        expected: String,
        /// What the subject says.
        found: String,
    },
    /// The sandbox is in memory, where a sync costs nothing.
    #[error("{} is on {kind}, which is not a disk: set another directory", path.display())]
    NotADisk {
        /// Where the sandbox would be.
        path: PathBuf,
        /// The file system's kind.
        kind: String,
    },
}

impl BenchError {
    /// A program run to its end did not succeed, and said why.
    pub fn program(program: impl Into<String>, said: impl Into<String>) -> Self {
        ServerError::Program { program: program.into(), said: said.into() }.into()
    }

    /// For `map_err`: an I/O error with what was tried, as it reads after "failed to".
    pub fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let failed = ServerError::io(doing);
        move |source| failed(source).into()
    }
}

/// `tokio_postgres` prints only "db error"; what the server said is in the cause.
fn with_cause(error: &tokio_postgres::Error) -> String {
    let text = error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"));
    text.replace('\n', " ")
}
