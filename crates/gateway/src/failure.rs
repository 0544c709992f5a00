//! Why a command of the program failed before or beside the ledger's own answers.

use crate::identity::IdentityError;
use crate::prices::{PricesError, UnknownModel};
use holdfast_adapters::escrow_metadata::MetadataFailed;
use holdfast_adapters::moving::MovingError;
use holdfast_adapters::postgres::DatabaseError;
use holdfast_adapters::queue::embedded::OpenFailed;
use holdfast_engine::ProjectionFailed;
use holdfast_engine::recovery::StartError;
use holdfast_journal::{LockError, OpenError};
use std::io;
use std::path::{Path, PathBuf};

/// A failure with a stable code and a sentence that says what to do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("there is no data directory at {}; `holdfast serve` and `holdfast mint` make one", .0.display())]
    NoData(PathBuf),
    #[error("the data directory {} is in use by process {pid}", data.display())]
    InUse { data: PathBuf, pid: String },
    #[error("{name} is {value:?}, and must be {allowed}")]
    Setting { name: String, value: String, allowed: String },
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    ReadModel(#[from] ProjectionFailed),
    #[error("the journal failed, and nothing is accepted until a restart: {0}")]
    JournalFailed(String),
    #[error("the control socket {} cannot be used: {error}", path.display())]
    Socket { path: PathBuf, error: io::Error },
    #[error("the server ended before it answered; whether the request was done is not known")]
    ServerGone,
    #[error("the server's answer is not understood: {0}")]
    ServerStrange(String),
    #[error("the server did not stop in time: {0}")]
    Stuck(&'static str),
    #[error("cannot listen on {address}: {error}")]
    Listen { address: String, error: io::Error },
    #[error(transparent)]
    Identity(IdentityError),
    #[error("the configuration in {} cannot be used: {why}", path.display())]
    Config { path: PathBuf, why: String },
    #[error("{} is there already", .0.display())]
    Exists(PathBuf),
    #[error("the providers cannot be set up: {0}")]
    Providers(String),
    #[error(transparent)]
    Prices(PricesError),
    #[error(transparent)]
    Model(UnknownModel),
    #[error(transparent)]
    Database(#[from] DatabaseError),
    #[error(transparent)]
    Moving(#[from] MovingError),
    #[error(transparent)]
    Queue(#[from] OpenFailed),
    #[error(transparent)]
    Metadata(#[from] MetadataFailed),
    #[error("{}: {why}", file.display())]
    Request { file: PathBuf, why: String },
    #[error("cannot {what}: {error}")]
    Io { what: String, error: io::Error },
}

impl Failure {
    /// Why a file operation failed, in the form of `map_err(Failure::io("write x"))`.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |error| Self::Io { what, error }
    }

    /// Why the lock of `data` was not had.
    pub(crate) fn lock(data: &Path, error: LockError) -> Self {
        match error {
            LockError::Held { pid } => Self::InUse { data: data.to_owned(), pid },
            LockError::Io(error) => Self::io(format!("lock {}", data.display()))(error),
        }
    }

    /// The stable code of this error.
    pub(crate) const fn code(&self) -> &'static str {
        match self {
            Self::NoData(_) => "DATA_NOT_FOUND",
            Self::InUse { .. } => "DATA_IN_USE",
            Self::Setting { .. } => "INVALID_SETTING",
            Self::Start(error) => error.code(),
            Self::ReadModel(_) => "SERVICE_READ_MODEL_FAILED",
            Self::JournalFailed(_) => "SERVICE_JOURNAL_FAILED",
            Self::Socket { .. } => "SOCKET_UNUSABLE",
            Self::ServerGone => "SERVER_GONE",
            Self::ServerStrange(_) => "SERVER_NOT_UNDERSTOOD",
            Self::Stuck(_) => "SERVER_STUCK",
            Self::Listen { .. } => "LISTEN_FAILED",
            Self::Identity(error) => error.code(),
            Self::Config { .. } | Self::Providers(_) => "INVALID_SETTING",
            Self::Exists(_) => "FILE_EXISTS",
            Self::Prices(error) => error.code(),
            Self::Model(error) => error.code(),
            Self::Database(error) => error.code(),
            Self::Moving(error) => error.code(),
            Self::Queue(error) => error.code(),
            Self::Metadata(failed) => failed.code(),
            Self::Request { .. } => "INVALID_REQUEST",
            Self::Io { .. } => "IO_FAILED",
        }
    }

    /// What to do about it.
    pub(crate) fn hint(&self) -> String {
        let hint = match self {
            Self::NoData(_) => "give the directory with --data or HOLDFAST_DATA",
            Self::InUse { .. } => {
                "stop that process first, or use another --data directory; if its books are in a database, say HOLDFAST_DATABASE_URL here too"
            }
            Self::Setting { .. } => "set it to an allowed value, or unset it",
            Self::Start(StartError::Io(_)) | Self::Io { .. } => {
                "check that the path exists and may be read and written"
            }
            Self::Start(_) | Self::Queue(_) => {
                return format!("nothing has been changed; docs/errors/{}.md says more", self.code());
            }
            Self::ReadModel(_) => "stop the server and run `holdfast rebuild`",
            Self::JournalFailed(_) => "check the disk, then start again: what was acknowledged is there",
            Self::Socket { .. } => "check the directory's permissions, and that its path is shorter than 90 bytes",
            Self::ServerGone => "ask again with the same --key or id: it is done once",
            Self::ServerStrange(_) => "use the same version of holdfast for the server and its commands",
            Self::Stuck(_) => "start again: what was acknowledged is there",
            Self::Listen { .. } => "give another address with --listen or HOLDFAST_LISTEN; port 0 takes any free one",
            Self::Identity(error) => error.hint(),
            Self::Config { .. } | Self::Providers(_) => "correct the file; `holdfast config check FILE` tries it",
            Self::Exists(_) => "name another file, or write over this one with --force",
            Self::Prices(_) => return format!("nothing has been changed; docs/errors/{}.md says more", self.code()),
            Self::Model(_) => "give it a price: holdfast prices import FILE, or a [models.NAME] in prices.toml",
            Self::Database(error) => error.hint(),
            Self::Moving(error) => return error.hint(),
            Self::Metadata(_) => {
                "check that wallet.db in the data directory may be read and written, and that there is room"
            }
            Self::Request { .. } => "give the body of a request as JSON, and with --for which API it is for",
        };
        hint.to_owned()
    }
}

impl From<IdentityError> for Failure {
    fn from(error: IdentityError) -> Self {
        // To whoever gives a command at the terminal it says what the database said.
        if let IdentityError::Database(error) = error { Self::Database(error) } else { Self::Identity(error) }
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        Self::Start(error.into())
    }
}
