//! A private Redis that syncs its log before it answers.

use crate::error::BenchError;
use holdfast_simulator::servers::{Mode, RedisServer};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client};
use std::path::Path;
use std::time::Duration;

/// A large pipeline with a sync per chunk takes longer than the client's default of half a second.
const REPLY_WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(20);

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

    /// Has the log rewritten and waits for it. Redis does so whenever the log has doubled: after a fill that would be in the
    /// middle of what is measured, for one subject and not for another.
    ///
    /// # Errors
    /// If it does not answer.
    pub async fn rewrite_log(&self) -> Result<(), BenchError> {
        let mut connection = self.connect().await?;
        self.wait_for_rewrite(&mut connection).await?;
        redis::cmd("BGREWRITEAOF").exec_async(&mut connection).await?;
        self.wait_for_rewrite(&mut connection).await
    }

    async fn wait_for_rewrite(&self, connection: &mut MultiplexedConnection) -> Result<(), BenchError> {
        loop {
            let persistence: String = redis::cmd("INFO").arg("persistence").query_async(connection).await?;
            let is_idle = |what: &str| persistence.contains(&format!("{what}:0"));
            if is_idle("aof_rewrite_in_progress") && is_idle("aof_rewrite_scheduled") {
                return Ok(());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}
