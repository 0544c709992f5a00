//! A data directory, the program's commands on it, and a client of its socket.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_holdfast");
/// Small, so that a test has several.
pub(crate) const SEGMENT_BYTES: &str = "65536";

/// A data directory of its own.
pub(crate) struct World {
    home: tempfile::TempDir,
    segment_bytes: &'static str,
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl World {
    pub(crate) fn new() -> Self {
        Self { home: tempfile::tempdir().unwrap(), segment_bytes: SEGMENT_BYTES }
    }

    /// A world in which everything fits one segment.
    pub(crate) fn of_one_segment() -> Self {
        Self { segment_bytes: "4194304", ..Self::new() }
    }

    /// A world in which alice has 100 credits.
    pub(crate) fn with_alice() -> Self {
        let world = Self::new();
        world.ok(&["mint", "alice", "100", "--reason", "start", "--key", "start"]);
        world
    }

    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.home().join("data")
    }

    pub(crate) fn segment(&self, number: u32) -> PathBuf {
        self.data().join(format!("journal/{number:010}.seg"))
    }

    /// The program with nothing of the surroundings, on this world's data.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        command.args(words).current_dir(self.home()).env_remove("HOLDFAST_FAILPOINT");
        command.env("HOLDFAST_DATA", self.data()).env("HOLDFAST_SEGMENT_BYTES", self.segment_bytes);
        command.env("HOLDFAST_LISTEN", "127.0.0.1:0");
        command
    }

    pub(crate) fn run(&self, words: &[&str]) -> Run {
        self.run_with(words, &[])
    }

    /// The same with settings of its own.
    fn run_with(&self, words: &[&str], settings: &[(&str, &str)]) -> Run {
        let output = self.command(words).envs(settings.iter().copied()).output().unwrap();
        Run {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// What a command prints that must succeed and complain of nothing.
    pub(crate) fn ok(&self, words: &[&str]) -> String {
        self.ok_with(words, &[])
    }

    /// The same with settings of its own.
    pub(crate) fn ok_with(&self, words: &[&str], settings: &[(&str, &str)]) -> String {
        let run = self.run_with(words, settings);
        assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""), "{words:?}: {run:?}");
        run.stdout
    }

    /// The JSON that a command prints that must succeed.
    pub(crate) fn json(&self, words: &[&str]) -> Value {
        let words: Vec<&str> = words.iter().copied().chain(["--json"]).collect();
        serde_json::from_str(&self.ok(&words)).unwrap()
    }

    /// The code with which a command is refused.
    pub(crate) fn refused(&self, words: &[&str]) -> String {
        let run = self.run(words);
        assert_eq!(run.code, Some(1), "{words:?}: {run:?}");
        let (first, hint) = run.stderr.split_once('\n').unwrap();
        assert!(hint.starts_with("hint: ") && hint.lines().count() == 1, "{run:?}");
        let (code, message) = first.strip_prefix("error[").and_then(|rest| rest.split_once("]: ")).unwrap();
        assert!(!message.is_empty(), "{run:?}");
        code.to_owned()
    }

    /// How many entries the journal has.
    pub(crate) fn entries(&self) -> u64 {
        self.json(&["journal", "stat"])["entries"].as_u64().unwrap()
    }

    /// Every entry of the journal.
    pub(crate) fn journal(&self) -> Vec<Value> {
        self.ok(&["journal", "cat"]).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    pub(crate) fn serve(&self) -> Server {
        self.serve_with(self.command(&["serve"]))
    }

    /// Starts `command`, which serves this world, and waits until it answers.
    pub(crate) fn serve_with(&self, mut command: Command) -> Server {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let socket = self.data().join("holdfast.sock");
        let url = line.trim_end().strip_prefix("listening on ").map(str::to_owned);
        assert!(url.as_ref().is_some_and(|url| url.starts_with("http://")), "{line:?} {:?}", child.wait());
        Server { child, socket, url: url.unwrap(), stdout }
    }
}

/// A running server. Killed if a test ends without stopping it.
pub(crate) struct Server {
    child: Child,
    socket: PathBuf,
    url: String,
    stdout: BufReader<ChildStdout>,
}

impl Server {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where it listens for HTTP.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn client(&self) -> Client {
        let stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Client { stream: BufReader::new(stream) }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for its end; what it said on standard error.
    pub(crate) fn wait(mut self) -> (ExitStatus, String) {
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap(), said)
    }

    /// Stops it as a service manager would; what it said on standard error.
    pub(crate) fn stop(self) -> String {
        self.signal(Signal::TERM);
        let (status, said) = self.wait();
        assert_eq!(status.code(), Some(0), "{said}");
        said
    }

    /// The next line that it says on standard output; empty when it says no more.
    pub(crate) fn next_line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line
    }

    /// Stops it; the rest of what it said on standard output, and all that it said on standard error.
    pub(crate) fn stop_and_hear(mut self) -> (String, String) {
        self.signal(Signal::TERM);
        let (mut told, mut said) = (String::new(), String::new());
        self.stdout.read_to_string(&mut told).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(0), "{said}");
        (told, said)
    }

    /// Kills it, as a crash would.
    pub(crate) fn crash(self) {
        self.signal(Signal::KILL);
        self.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _already_gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// One connection.
pub(crate) struct Client {
    stream: BufReader<UnixStream>,
}

impl Client {
    /// The same connection, for whoever sends while another reads.
    pub(crate) fn another(&self) -> Self {
        Self { stream: BufReader::new(self.stream.get_ref().try_clone().unwrap()) }
    }

    pub(crate) fn send(&mut self, line: &[u8]) {
        self.stream.get_mut().write_all(line).unwrap();
        self.stream.get_mut().write_all(b"\n").unwrap();
    }

    /// The answer of a server that may be gone.
    pub(crate) fn try_ask(&mut self, request: &Value) -> Option<Value> {
        writeln!(self.stream.get_mut(), "{request}").ok()?;
        self.next()
    }

    /// The next answer; `None` when the server has gone.
    pub(crate) fn next(&mut self) -> Option<Value> {
        let mut line = String::new();
        match self.stream.read_line(&mut line) {
            Ok(0) | Err(_) => None,
            Ok(_) => Some(serde_json::from_str(&line).unwrap()),
        }
    }

    pub(crate) fn raw(&mut self, line: &[u8]) -> Value {
        self.send(line);
        self.next().unwrap()
    }

    pub(crate) fn ask(&mut self, request: Value) -> Value {
        self.raw(request.to_string().as_bytes())
    }

    /// The answer to a request that must be done.
    pub(crate) fn ok(&mut self, request: Value) -> Value {
        let answer = self.ask(request.clone());
        assert_eq!(answer["ok"], json!(true), "{:.300} {:.300}", request.to_string(), answer.to_string());
        answer
    }

    /// The code of the refusal that a line must get.
    pub(crate) fn refused(&mut self, line: &[u8]) -> String {
        let answer = self.raw(line);
        assert_eq!(answer["ok"], json!(false), "{:?} {answer}", String::from_utf8_lossy(line));
        for field in ["message", "action"] {
            assert!(answer["error"][field].as_str().is_some_and(|text| !text.is_empty()), "{answer}");
        }
        answer["error"]["code"].as_str().unwrap().to_owned()
    }
}

/// A mint of one credit.
pub(crate) fn mint(account: &str, key: &str) -> Value {
    json!({ "op": "mint", "account": account, "amount_cu": "1", "reason": "test", "key": key })
}
