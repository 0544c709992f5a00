//! A private PostgreSQL cluster, and connections to it.

use crate::error::BenchError;
use holdfast_simulator::servers::PostgresServer;
use std::path::{Path, PathBuf};
use tokio_postgres::{Client, NoTls};

/// Where its programs are, if they are new enough.
#[must_use]
pub fn installed() -> Option<PathBuf> {
    PostgresServer::installed()
}

/// A running cluster; stops it when dropped.
#[derive(Debug)]
pub struct Cluster {
    server: PostgresServer,
}

impl Cluster {
    /// Makes a cluster in `dir` and starts it.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start(dir: &Path) -> Result<Self, BenchError> {
        Ok(Self { server: PostgresServer::start(dir)? })
    }

    /// Where it is.
    #[must_use]
    pub fn url(&self) -> String {
        self.server.url("postgres")
    }

    /// Connects.
    ///
    /// # Errors
    /// If it does not answer.
    pub async fn connect(&self) -> Result<Client, BenchError> {
        let (client, connection) = tokio_postgres::connect(&self.url(), NoTls).await?;
        // May safely die: it ends with its client, and errors reach the client's own calls.
        tokio::spawn(connection);
        Ok(client)
    }
}
