//! A private Redis that syncs its log before it answers.

use super::{Ending, LOOK_EVERY, READY_WITHIN, Server, private_port, unprivileged};
use crate::error::BenchError;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client};
use std::path::Path;
use std::time::{Duration, Instant};

/// A large pipeline with a sync per chunk takes longer than the client's default of half a second.
const REPLY_WITHIN: Duration = Duration::from_secs(60);

/// A running Redis; stops it when dropped.
#[derive(Debug)]
pub struct Redis {
    server: Server,
    client: Client,
}

impl Redis {
    /// Starts a server in `dir`; it may not answer yet.
    ///
    /// # Errors
    /// If it cannot be run.
    pub fn start(program: &Path, dir: &Path) -> Result<Self, BenchError> {
        let port = private_port()?;
        let mut command = unprivileged(program, Ending::Kill, dir)?;
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--daemonize", "no"]);
        command.args(["--appendonly", "yes", "--appendfsync", "always", "--save", ""]);
        let server = Server::start(command, Ending::Kill, dir.join("log"))?;
        Ok(Self { server, client: Client::open(("127.0.0.1", port))? })
    }

    /// Connects, waiting for the server to come up.
    ///
    /// # Errors
    /// If it does not within `READY_WITHIN`.
    pub async fn connect(&mut self) -> Result<MultiplexedConnection, BenchError> {
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(REPLY_WITHIN));
        let began = Instant::now();
        loop {
            match self.client.get_multiplexed_async_connection_with_config(&config).await {
                Ok(connection) => return Ok(connection),
                Err(_) if began.elapsed() < READY_WITHIN && self.server.is_running() => {
                    tokio::time::sleep(LOOK_EVERY).await
                }
                Err(_) => {
                    let said = self.server.last_words();
                    return Err(BenchError::NotReady { server: "redis", within: READY_WITHIN, said });
                }
            }
        }
    }
}
