//! A private Redis: plain, as a cluster of one, or with a Sentinel that knows it; and all that can be done to it.

use super::{Ending, LOOK_CLOSELY_EVERY, READY_WITHIN, Server, ServerError, find_program, private_port, unprivileged};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const PROGRAM: &str = "redis-server";
/// What the Sentinel calls the server.
const MASTER: &str = "main";
/// How long one command may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// What kind of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// A server alone.
    Plain,
    /// A cluster of one server, with all slots.
    Cluster,
}

/// A running Redis that writes a log of what it is given; killed when dropped.
#[derive(Debug)]
pub struct RedisServer {
    process: Option<Server>,
    program: PathBuf,
    dir: PathBuf,
    port: u16,
    mode: Mode,
    settings: Vec<String>,
}

impl RedisServer {
    /// Starts one in `dir` and waits until it answers. `settings` are words of its command line, over `--appendonly yes`.
    ///
    /// # Errors
    /// If it is not installed or does not start.
    pub fn start(dir: &Path, mode: Mode, settings: &[&str]) -> Result<Self, ServerError> {
        let absent = || ServerError::Program { program: PROGRAM.to_owned(), said: "it is not installed".to_owned() };
        let program = find_program(PROGRAM).ok_or_else(absent)?;
        let settings = settings.iter().map(|word| (*word).to_owned()).collect();
        let mut server = Self { process: None, program, dir: dir.to_owned(), port: private_port()?, mode, settings };
        server.start_again()?;
        if mode == Mode::Cluster {
            server.command("CLUSTER ADDSLOTSRANGE 0 16383")?;
            server.wait_until("CLUSTER INFO", |answer| answer.contains("cluster_state:ok"))?;
        }
        Ok(server)
    }

    /// Starts it on the same port with the files that it left.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn start_again(&mut self) -> Result<(), ServerError> {
        let mut command = unprivileged(&self.program, Ending::Kill, &self.dir)?;
        command.args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--daemonize", "no"]);
        command.args(["--appendonly", "yes", "--save", ""]);
        if self.mode == Mode::Cluster {
            command.args(["--cluster-enabled", "yes", "--cluster-port", &private_port()?.to_string()]);
        }
        command.args(&self.settings);
        self.process = Some(Server::start(command, Ending::Kill, self.dir.join("log"))?);
        // One that asks for a password is there as well.
        self.wait_until("PING", |answer| answer.contains("PONG") || answer.contains("NOAUTH"))
    }

    /// Ends it at once, as `kill -9` does.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Server::pid)
    }

    /// Its port on the loopback.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        match self.mode {
            Mode::Plain => format!("redis://127.0.0.1:{}", self.port),
            Mode::Cluster => format!("redis+cluster://127.0.0.1:{}", self.port),
        }
    }

    /// Starts a Sentinel in `dir` that knows this server, and returns it with the URL that goes by it.
    ///
    /// # Errors
    /// If it does not start.
    pub fn sentinel(&self, dir: &Path) -> Result<(Server, String), ServerError> {
        let port = private_port()?;
        let file = dir.join("sentinel.conf");
        let text = format!("port {port}\nbind 127.0.0.1\nsentinel monitor {MASTER} 127.0.0.1 {} 1\n", self.port);
        fs::write(&file, text).map_err(ServerError::io("write sentinel.conf"))?;
        let mut command = unprivileged(&self.program, Ending::Kill, dir)?;
        // The Sentinel writes its own configuration anew.
        let ours = fs::metadata(dir).map_err(ServerError::io("look at a directory"))?;
        chown(&file, Some(ours.uid()), Some(ours.gid())).map_err(ServerError::io("give a file away"))?;
        command.arg(&file).arg("--sentinel");
        let mut server = Server::start(command, Ending::Kill, dir.join("sentinel.log"))?;
        let knows_it = |answer: &str| answer.contains(&self.port.to_string());
        wait_until(&mut server, port, &format!("SENTINEL MASTER {MASTER}"), knows_it)?;
        Ok((server, format!("redis+sentinel://127.0.0.1:{port}/{MASTER}")))
    }

    /// Sends one command in words and returns the answer as it came over the wire, an error included.
    ///
    /// # Errors
    /// If the server is not there.
    pub fn command(&self, words: &str) -> Result<String, ServerError> {
        ask(self.port, words)
    }

    fn wait_until(&mut self, words: &str, is_ready: impl Fn(&str) -> bool) -> Result<(), ServerError> {
        let port = self.port;
        match &mut self.process {
            Some(server) => wait_until(server, port, words, is_ready),
            None => Ok(()),
        }
    }
}

/// Waits until the answer to a command is as it should be.
fn wait_until(server: &mut Server, port: u16, words: &str, is_ready: impl Fn(&str) -> bool) -> Result<(), ServerError> {
    let began = Instant::now();
    while !ask(port, words).is_ok_and(|answer| is_ready(&answer)) {
        if began.elapsed() > READY_WITHIN || !server.is_running() {
            let said = server.last_words();
            return Err(ServerError::NotReady { server: PROGRAM, within: READY_WITHIN, said });
        }
        std::thread::sleep(LOOK_CLOSELY_EVERY);
    }
    Ok(())
}

fn ask(port: u16, words: &str) -> Result<String, ServerError> {
    let failed = || ServerError::io(format!("ask redis for {words}"));
    let stream = TcpStream::connect(("127.0.0.1", port)).map_err(failed())?;
    stream.set_read_timeout(Some(ANSWER_WITHIN)).map_err(failed())?;
    (&stream).write_all(format!("{words}\r\n").as_bytes()).map_err(failed())?;
    let mut reader = BufReader::new(&stream);
    answer(&mut reader).map_err(failed())
}

/// Reads one answer of any shape, and gives it back as it came.
fn answer(reader: &mut impl BufRead) -> std::io::Result<String> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    let count = line.get(1..).and_then(|count| count.trim_end().parse::<i64>().ok()).unwrap_or(0);
    match line.as_bytes().first() {
        Some(b'$') => {
            let mut bytes = vec![0; usize::try_from(count).map_or(0, |count| count + 2)];
            reader.read_exact(&mut bytes)?;
            line.push_str(&String::from_utf8_lossy(&bytes));
        }
        Some(b'*') => {
            for _ in 0..count {
                line.push_str(&answer(reader)?);
            }
        }
        _ => {}
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_any_shape_is_read_to_its_end() {
        for text in ["+PONG\r\n", "-ERR no\r\n", ":1\r\n", "$3\r\nabc\r\n", "$-1\r\n", "*2\r\n:1\r\n$1\r\na\r\n"] {
            assert_eq!(answer(&mut text.as_bytes()).unwrap(), text);
        }
    }
}
