//! Why a database cannot be used.

use std::error::Error as _;

/// Why a database cannot be used, or its schema not be brought up to date.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// The address is not one. What is in it is not repeated: it may hold a password.
    #[error("the database's address is not understood: {0}")]
    Address(String),
    /// The file of certificates cannot be used.
    #[error("the certificates in {file} cannot be used: {why}")]
    Certificates {
        /// Which file.
        file: String,
        /// Why.
        why: String,
    },
    /// Nobody answers there, or not to us.
    #[error("the database cannot be reached: {0}")]
    Unreachable(String),
    /// The server is too old.
    #[error("the database is PostgreSQL {found}, and must be {needed} or newer")]
    TooOld {
        /// What it says it is.
        found: String,
        /// The oldest major version that will do.
        needed: u32,
    },
    /// The schema was made by a newer program.
    #[error("the schema has migration {found}, and this program knows them up to {known}")]
    SchemaNewer {
        /// The newest that was applied.
        found: i32,
        /// The newest that we know.
        known: i32,
    },
    /// The schema is not there, or lacks migrations.
    #[error("the schema has migration {found}, and this program needs them up to {needed}")]
    SchemaOlder {
        /// The newest that was applied; 0 if there is none.
        found: i32,
        /// The newest that we know.
        needed: i32,
    },
    /// The user may not do what it is to do.
    #[error("the database's user may not act as {0}")]
    Forbidden(String),
    /// A migration that was applied is not the one that we have.
    #[error("migration {version} ({name}) was applied in another form than this program has")]
    MigrationChanged {
        /// Which.
        version: i32,
        /// Its name here.
        name: String,
    },
    /// A migration failed, and was undone as a whole.
    #[error("migration {version} ({name}) failed: {said}")]
    MigrationFailed {
        /// Which.
        version: i32,
        /// Its name.
        name: String,
        /// What the database said.
        said: String,
    },
    /// The database refused something, or the way to it broke.
    #[error("the database failed: {0}")]
    Failed(String),
}

impl DatabaseError {
    /// The stable code of this error.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Address(_) => "DATABASE_URL_INVALID",
            Self::Certificates { .. } => "DATABASE_CERTIFICATES_UNUSABLE",
            Self::Unreachable(_) => "DATABASE_UNREACHABLE",
            Self::TooOld { .. } => "DATABASE_TOO_OLD",
            Self::SchemaNewer { .. } => "SCHEMA_NEWER",
            Self::SchemaOlder { .. } => "SCHEMA_OLDER",
            Self::Forbidden(_) => "DATABASE_FORBIDDEN",
            Self::MigrationChanged { .. } => "MIGRATION_CHANGED",
            Self::MigrationFailed { .. } => "MIGRATION_FAILED",
            Self::Failed(_) => "DATABASE_FAILED",
        }
    }

    /// What to do about it.
    #[must_use]
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::Address(_) => "set HOLDFAST_DATABASE_URL to postgres://USER:PASSWORD@HOST:PORT/DATABASE",
            Self::Certificates { .. } => {
                "give a PEM file with the certificates of the authority that signed the server's"
            }
            Self::Unreachable(_) => {
                "check address, user and password; for a server whose certificate no public authority signed, give its \
                 authority with --database-ca, or say sslmode=disable on a network that is your own"
            }
            Self::TooOld { .. } => "move to a newer PostgreSQL first",
            Self::SchemaNewer { .. } => "use the newer holdfast; nothing has been changed",
            Self::SchemaOlder { .. } => "run `holdfast migrate` on that database, then start again",
            Self::Forbidden(_) => {
                "as an administrator: GRANT symphony_ingest, symphony_executor, symphony_admin TO that user"
            }
            Self::MigrationChanged { .. } => {
                "use the holdfast that applied it or a newer one; an applied migration never changes, a new one follows"
            }
            Self::MigrationFailed { .. } => "put right what it says and run it again: nothing of it was kept",
            Self::Failed(_) => "see the database's log; running it again does no harm",
        }
    }

    /// What the database said, with its own hint: `tokio_postgres` prints only "db error".
    pub(crate) fn said(error: &tokio_postgres::Error) -> String {
        let Some(refusal) = error.as_db_error() else {
            return error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"));
        };
        let hint = refusal.hint().map(|hint| format!(" ({hint})")).unwrap_or_default();
        format!("{} {}{hint}", refusal.code().code(), refusal.message())
    }
}

impl From<tokio_postgres::Error> for DatabaseError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Failed(Self::said(&error))
    }
}
