//! A private PostgreSQL cluster with the settings it ships with.

use super::{Ending, LOOK_EVERY, READY_WITHIN, Server, finish, private_port, unprivileged};
use crate::error::BenchError;
use std::path::{Path, PathBuf};
use std::time::Instant;
use tokio_postgres::{Client, NoTls};

/// The oldest major version that counts as a fair peer.
const OLDEST_MAJOR: u32 = 15;
const USER: &str = "bench";

/// Where `initdb` and `postgres` are, if they are new enough; the newest of several.
#[must_use]
pub fn installed() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let majors = versions.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let newest = majors.filter(|major| *major >= OLDEST_MAJOR).max()?;
    let bin = PathBuf::from(format!("/usr/lib/postgresql/{newest}/bin"));
    bin.join("initdb").is_file().then_some(bin)
}

/// A running cluster; stops it when dropped.
#[derive(Debug)]
pub struct Cluster {
    server: Server,
    port: u16,
}

impl Cluster {
    /// Makes a cluster in `dir` and starts it; it may not answer yet.
    ///
    /// # Errors
    /// If `initdb` or `postgres` cannot be run.
    pub fn start(bin: &Path, dir: &Path) -> Result<Self, BenchError> {
        let mut initdb = unprivileged(&bin.join("initdb"), Ending::Quit, dir)?;
        // `--no-sync` concerns the files of `initdb` alone; the server's own setting stays `fsync = on`.
        initdb.args([
            "--auth=trust",
            "--no-locale",
            "--encoding=UTF8",
            "--no-sync",
            "--username",
            USER,
            "--pgdata=data",
        ]);
        finish(initdb, "initdb")?;

        let port = private_port()?;
        let mut postgres = unprivileged(&bin.join("postgres"), Ending::Quit, dir)?;
        postgres.args(["-D", "data", "-p", &port.to_string()]);
        postgres.args(["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]);
        let server = Server::start(postgres, Ending::Quit, dir.join("log"))?;
        Ok(Self { server, port })
    }

    /// Connects, waiting for the server to come up.
    ///
    /// # Errors
    /// If it does not within `READY_WITHIN`.
    pub async fn connect(&mut self) -> Result<Client, BenchError> {
        let settings = format!("host=127.0.0.1 port={} user={USER} dbname=postgres", self.port);
        let began = Instant::now();
        loop {
            match tokio_postgres::connect(&settings, NoTls).await {
                Ok((client, connection)) => {
                    // May safely die: it ends with its client, and errors reach the client's own calls.
                    tokio::spawn(connection);
                    return Ok(client);
                }
                Err(_) if began.elapsed() < READY_WITHIN && self.server.is_running() => {
                    tokio::time::sleep(LOOK_EVERY).await
                }
                Err(_) => {
                    let said = self.server.last_words();
                    return Err(BenchError::NotReady { server: "postgres", within: READY_WITHIN, said });
                }
            }
        }
    }
}
