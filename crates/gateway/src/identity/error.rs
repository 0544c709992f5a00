//! Why an identity cannot be used.

use holdfast_adapters::postgres::DatabaseError;
use std::io;
use std::path::PathBuf;

/// A failure of files, of the key store, or of a request about keys.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IdentityError {
    #[error("cannot {what}: {error}")]
    Io { what: String, error: io::Error },
    #[error("others than its owner may read the signing key {}", .0.display())]
    TooOpen(PathBuf),
    #[error("{0} is no signing key of this program")]
    NotAKey(String),
    #[error("the key store failed: {0}")]
    Store(String),
    #[error("the peer keys of {place} cannot be used: {why}")]
    PeerKeys { place: String, why: String },
    #[error("the database with the keys does not answer, and whether this was done is not known; look, and ask again")]
    Database(DatabaseError),
    #[error("there is no API key {0}")]
    UnknownKey(String),
    #[error("{0}")]
    BadKey(String),
}

impl IdentityError {
    /// Why a file operation failed, in the form of `map_err(IdentityError::io("write x"))`.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |error| Self::Io { what, error }
    }

    /// The stable code of this error.
    pub(crate) const fn code(&self) -> &'static str {
        match self {
            Self::Io { .. } | Self::Store(_) => "SERVICE_IDENTITY_FAILED",
            Self::Database(_) => "SERVICE_DATABASE_UNAVAILABLE",
            Self::TooOpen(_) => "IDENTITY_TOO_OPEN",
            Self::NotAKey(_) => "IDENTITY_DAMAGED",
            Self::PeerKeys { .. } => "INVALID_JWKS",
            Self::UnknownKey(_) => "KEY_NOT_FOUND",
            Self::BadKey(_) => "INVALID_KEY",
        }
    }

    /// What to do about it.
    pub(crate) const fn hint(&self) -> &'static str {
        match self {
            Self::Io { .. } | Self::Store(_) => "check that the data directory may be read and written",
            Self::Database(error) => error.hint(),
            Self::TooOpen(_) => "take the rights away with chmod 600, and run `holdfast keys rotate`",
            Self::NotAKey(_) => "move the file away; a new signing key is made if none is left",
            Self::PeerKeys { .. } => "check HOLDFAST_JWKS: a file or URL of a JSON Web Key Set with P-256 keys",
            Self::UnknownKey(_) => "`holdfast keys list` shows those there are",
            Self::BadKey(_) => "change the request",
        }
    }
}

impl From<rusqlite::Error> for IdentityError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Store(error.to_string())
    }
}
