//! The program under torture as a process: started, awaited, killed, and never left behind.

use super::janitor::Janitor;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// A server that is not ready by then is hung. Recovery of these small directories takes milliseconds.
const READY_WITHIN: Duration = Duration::from_secs(20);
/// How often a process is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// How a server is laid out: small, so that segments, snapshots and key files turn over all the time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    pub(crate) segment_bytes: u64,
    pub(crate) snapshot_entries: u64,
    pub(crate) keys_in_memory: u64,
}

/// What is started, and with what harm in it.
#[derive(Clone)]
pub(crate) struct Launch<'a> {
    pub(crate) holdfast: &'a Path,
    pub(crate) data: PathBuf,
    /// Where its standard error goes: never on a disk that is cut off.
    pub(crate) stderr: PathBuf,
    pub(crate) layout: Layout,
    /// `name:n`.
    pub(crate) failpoint: Option<String>,
    /// The arguments of the `strace` that it runs under.
    pub(crate) strace: Option<Vec<String>>,
    pub(crate) janitor: &'a Janitor,
}

/// A running server. Dropping it kills it.
pub(crate) struct Server<'a> {
    child: Child,
    data: PathBuf,
    stderr: PathBuf,
    ready: Receiver<()>,
    janitor: &'a Janitor,
}

/// How a server ended.
#[derive(Debug, Clone)]
pub(crate) struct Death {
    pub(crate) status: ExitStatus,
    pub(crate) stderr: String,
}

/// Why a server is not ready.
#[derive(Debug)]
pub(crate) enum NotReady {
    Died(Death),
    Hung,
}

impl<'a> Launch<'a> {
    /// Starts the process.
    pub(crate) fn spawn(&self) -> io::Result<Server<'a>> {
        let mut command = match &self.strace {
            None => Command::new(self.holdfast),
            Some(arguments) => {
                let mut strace = Command::new("strace");
                // The tracer is a grandchild, so that the process that is waited for and killed here is the server itself.
                strace.args(["-D", "-f", "-q"]).args(arguments).arg("--").arg(self.holdfast);
                strace
            }
        };
        command.arg("serve").arg("--data").arg(&self.data);
        let Layout { segment_bytes, snapshot_entries, keys_in_memory } = self.layout;
        command.env("HOLDFAST_SEGMENT_BYTES", segment_bytes.to_string());
        command.env("HOLDFAST_SNAPSHOT_ENTRIES", snapshot_entries.to_string());
        command.env("HOLDFAST_KEYS_IN_MEMORY", keys_in_memory.to_string());
        // Many servers run at once, and none is asked over HTTP here.
        command.env("HOLDFAST_LISTEN", "127.0.0.1:0");
        command.env_remove("HOLDFAST_FAILPOINT");
        command.envs(self.failpoint.iter().map(|failpoint| ("HOLDFAST_FAILPOINT", failpoint)));
        let stderr = File::create(&self.stderr)?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
        let mut child = command.spawn()?;
        self.janitor.started(child.id());
        let stdout = child.stdout.take().map(BufReader::new);
        let (tell, ready) = channel();
        // Reads on after the first line, so that the server never blocks on a full pipe; ends with the server.
        thread::spawn(move || {
            for line in stdout.into_iter().flat_map(BufRead::lines).map_while(Result::ok) {
                if line.starts_with("listening on ") {
                    let _nobody_waits = tell.send(());
                }
            }
        });
        let (data, stderr) = (self.data.clone(), self.stderr.clone());
        Ok(Server { child, data, stderr, ready, janitor: self.janitor })
    }

    /// Starts the process and waits until it serves.
    pub(crate) fn start(&self) -> io::Result<Result<Server<'a>, NotReady>> {
        let mut server = self.spawn()?;
        Ok(server.wait_ready().map(|()| server))
    }
}

impl Server<'_> {
    /// Where it listens.
    pub(crate) fn socket(&self) -> PathBuf {
        self.data.join("holdfast.sock")
    }

    /// The process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it serves or is dead.
    pub(crate) fn wait_ready(&mut self) -> Result<(), NotReady> {
        match self.ready.recv_timeout(READY_WITHIN) {
            Ok(()) => Ok(()),
            Err(RecvTimeoutError::Timeout) => Err(NotReady::Hung),
            // Its output has ended, and so it has, or is about to.
            Err(RecvTimeoutError::Disconnected) => {
                self.wait_end(READY_WITHIN).map_or(Err(NotReady::Hung), |death| Err(NotReady::Died(death)))
            }
        }
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<Death> {
        let status = self.child.try_wait().ok().flatten()?;
        self.janitor.ended(self.child.id());
        let stderr = fs::read_to_string(&self.stderr).unwrap_or_default();
        Some(Death { status, stderr })
    }

    /// Waits for its end, for so long.
    pub(crate) fn wait_end(&mut self, patience: Duration) -> Option<Death> {
        let until = Instant::now() + patience;
        loop {
            if let Some(death) = self.ended() {
                return Some(death);
            }
            if Instant::now() >= until {
                return None;
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Kills it as `kill -9` does, and waits until it is gone. How it ended, if that was before.
    pub(crate) fn kill(&mut self) -> Option<Death> {
        if let Some(death) = self.ended() {
            return Some(death);
        }
        // It may end by itself at this very moment.
        let _raced = self.child.kill();
        let _reaped = self.child.wait();
        self.janitor.ended(self.child.id());
        None
    }

    /// Sends a signal to the process.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) -> io::Result<()> {
        Ok(rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal)?)
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        let _ended_before = self.kill();
    }
}

impl Death {
    /// Whether it was killed as a failpoint kills.
    pub(crate) fn is_kill(&self) -> bool {
        self.status.signal() == Some(9)
    }

    /// Whether the runtime ended it because it could not wake itself.
    pub(crate) fn is_of_runtime(&self) -> bool {
        self.status.signal() == Some(6) && self.stderr.contains("failed to wake I/O driver")
    }

    /// Whether it ended by itself with an error, and said which.
    pub(crate) fn is_clear_refusal(&self) -> bool {
        self.status.code().is_some_and(|code| code != 0) && !self.stderr.trim().is_empty()
    }
}

impl std::fmt::Display for Death {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let lines: Vec<&str> = self.stderr.lines().collect();
        let last = lines.get(lines.len().saturating_sub(5)..).unwrap_or_default().join(" | ");
        write!(f, "{}; it said: {last}", self.status)
    }
}

impl std::fmt::Display for NotReady {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Died(death) => write!(f, "it ended with {death}"),
            Self::Hung => write!(f, "it was not ready after {READY_WITHIN:?}"),
        }
    }
}
