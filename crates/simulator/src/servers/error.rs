//! Why a private server is not there.

use std::io;
use std::time::Duration;

/// Why a private server is not there.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
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
    /// A server did not answer in time.
    #[error("{server} ended, or did not answer within {} s: {said}", within.as_secs())]
    NotReady {
        /// Its name.
        server: &'static str,
        /// How long it was waited for.
        within: Duration,
        /// The end of its log.
        said: String,
    },
}

impl ServerError {
    /// For `map_err`: an I/O error with what was tried, as it reads after "failed to".
    pub fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }
}
