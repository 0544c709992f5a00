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
    /// The operating system refused something.
    #[error("failed to {doing}: {source}")]
    Io {
        /// What was tried, as it reads after "failed to".
        doing: String,
        /// What the system said.
        source: io::Error,
    },
    /// A program run to its end did not succeed.
    #[error("{program} failed: {said}")]
    Program {
        /// Its name.
        program: String,
        /// The last it said.
        said: String,
    },
    /// A private server did not answer in time.
    #[error("{server} ended, or did not answer within {} s: {said}", within.as_secs())]
    NotReady {
        /// Its name.
        server: &'static str,
        /// How long it was waited for.
        within: Duration,
        /// The end of its log.
        said: String,
    },
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

impl From<ServerError> for BenchError {
    fn from(error: ServerError) -> Self {
        match error {
            ServerError::Io { doing, source } => Self::Io { doing, source },
            ServerError::Program { program, said } => Self::Program { program, said },
            ServerError::NotReady { server, within, said } => Self::NotReady { server, within, said },
        }
    }
}

impl BenchError {
    /// For `map_err`: an I/O error with what was tried, as it reads after "failed to".
    pub fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }
}

/// `tokio_postgres` prints only "db error"; what the server said is in the cause.
fn with_cause(error: &tokio_postgres::Error) -> String {
    let text = error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"));
    text.replace('\n', " ")
}
