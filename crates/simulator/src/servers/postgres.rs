//! A private PostgreSQL cluster with the settings it ships with.

use super::{Ending, LOOK_EVERY, READY_WITHIN, Server, ServerError, finish, private_port, unprivileged};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// The oldest major version that we work with.
const OLDEST_MAJOR: u32 = 15;
/// Its superuser.
const USER: &str = "bench";

/// A running cluster that anybody on this machine may use as anybody; stopped when dropped.
#[derive(Debug)]
pub struct PostgresServer {
    process: Option<Server>,
    bin: PathBuf,
    dir: PathBuf,
    port: u16,
}

impl PostgresServer {
    /// Where `initdb` and `postgres` are, if they are new enough; the newest of several.
    #[must_use]
    pub fn installed() -> Option<PathBuf> {
        let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
        let majors = versions.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let newest = majors.filter(|major| *major >= OLDEST_MAJOR).max()?;
        let bin = PathBuf::from(format!("/usr/lib/postgresql/{newest}/bin"));
        bin.join("initdb").is_file().then_some(bin)
    }

    /// Makes a cluster in `dir`, starts it, and waits until it answers.
    ///
    /// # Errors
    /// If it is not installed or does not start.
    pub fn start(dir: &Path) -> Result<Self, ServerError> {
        let said = format!("version {OLDEST_MAJOR} or newer is not installed");
        let absent = || ServerError::Program { program: "postgres".to_owned(), said };
        let bin = Self::installed().ok_or_else(absent)?;
        let mut initdb = unprivileged(&bin.join("initdb"), Ending::Quit, dir)?;
        // `--no-sync` concerns the files of `initdb` alone; the server's own setting stays `fsync = on`.
        initdb.args(["--auth=trust", "--no-locale", "--encoding=UTF8", "--no-sync", "--username", USER]);
        initdb.arg("--pgdata=data");
        finish(initdb, "initdb")?;

        let mut server = Self { process: None, bin, dir: dir.to_owned(), port: private_port()? };
        server.start_again()?;
        Ok(server)
    }

    /// Starts it on the same port with the files that it left, and waits until it answers.
    ///
    /// # Errors
    /// If it does not.
    pub fn start_again(&mut self) -> Result<(), ServerError> {
        let mut postgres = unprivileged(&self.bin.join("postgres"), Ending::Quit, &self.dir)?;
        postgres.args(["-D", "data", "-p", &self.port.to_string()]);
        postgres.args(["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]);
        let process = self.process.insert(Server::start(postgres, Ending::Quit, self.dir.join("log"))?);
        let began = Instant::now();
        while !is_ready(&self.bin, self.port) {
            if began.elapsed() > READY_WITHIN || !process.is_running() {
                let said = process.last_words();
                return Err(ServerError::NotReady { server: "postgres", within: READY_WITHIN, said });
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Ends it at once, without a checkpoint: it recovers when it is started again.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// The address of a database of it, for its superuser.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        self.url_as(USER, database)
    }

    /// The address of a database of it, for somebody.
    #[must_use]
    pub fn url_as(&self, user: &str, database: &str) -> String {
        format!("postgres://{user}@127.0.0.1:{}/{database}", self.port)
    }

    /// Its port on the loopback.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Its first process, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Server::pid)
    }
}

/// Whether it takes connections; PostgreSQL's own program knows best.
fn is_ready(bin: &Path, port: u16) -> bool {
    let mut asked = Command::new(bin.join("pg_isready"));
    asked.args(["--quiet", "--host=127.0.0.1", "--port", &port.to_string()]).stdin(Stdio::null());
    asked.status().is_ok_and(|status| status.success())
}
