//! The gateway seen from outside: clients that hang up, crowds on a small balance, kills at every step,
//! and what the books say afterwards.
//!
//! Nothing here knows the gateway's code. It speaks its HTTP API and its command line, and compares what the upstream says it
//! did with what the gateway says it charged.

pub mod books;
pub mod gateway;
pub mod hangups;
pub mod kills;
pub mod money;
pub mod operator;
pub mod queue_kills;
pub mod tariff;
pub mod wire;

/// Why a run could not be made, or what it found.
#[derive(Debug, thiserror::Error)]
pub enum OutsideError {
    /// The network or a process failed.
    #[error("failed to {doing}: {source}")]
    Io {
        /// What was tried, as it reads after "failed to".
        doing: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// HTTP itself failed.
    #[error("HTTP: {0}")]
    Http(#[from] hyper::Error),
    /// A server or command did not answer as it must.
    #[error("{who} answered: {said}")]
    Answered {
        /// Who.
        who: String,
        /// What.
        said: String,
    },
    /// Something did not happen in time.
    #[error("{what} did not happen within {seconds} s")]
    TooLate {
        /// What was waited for.
        what: String,
        /// For how long.
        seconds: u64,
    },
}

impl OutsideError {
    /// For `map_err`: with what was tried, as it reads after "failed to".
    pub fn io(doing: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }

    /// An answer that does not fit.
    pub fn answered(who: impl Into<String>, said: impl Into<String>) -> Self {
        Self::Answered { who: who.into(), said: said.into() }
    }
}
