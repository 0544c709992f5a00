//! A private Redis that syncs its log before it answers.

use crate::error::BenchError;
use holdfast_simulator::servers::{Mode, RedisServer};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client};
use std::path::Path;
use std::time::Duration;

/// A large pipeline with a sync per chunk takes longer than the client's default of half a second.
const REPLY_WITHIN: Duration = Duration::from_secs(60);

/// A running Redis; stops it when dropped.
#[derive(Debug)]
pub struct Redis {
    server: RedisServer,
    client: Client,
}

impl Redis {
    /// Starts a server in `dir`.
    ///
    /// # Errors
    /// If it cannot be run.
    pub fn start(dir: &Path) -> Result<Self, BenchError> {
        let server = RedisServer::start(dir, Mode::Plain, &["--appendfsync", "always"])?;
        let client = Client::open(server.url())?;
        Ok(Self { server, client })
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        self.server.url()
    }

    /// Connects.
    ///
    /// # Errors
    /// If it does not answer.
    pub async fn connect(&self) -> Result<MultiplexedConnection, BenchError> {
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(REPLY_WITHIN));
        Ok(self.client.get_multiplexed_async_connection_with_config(&config).await?)
    }
}
