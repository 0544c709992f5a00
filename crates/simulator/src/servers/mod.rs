//! Private servers for tests and benchmarks: on a port of their own, as a user who is not root, and gone afterwards.
//!
//! # Invariants
//! - A server dies with the run even if the run is killed: `setpriv --pdeathsig` asks the kernel for it. Servers are therefore
//!   started on the main thread or that of the test (the kernel watches the thread, not the process), and in the foreground
//!   (`pg_ctl` would detach).

mod error;
mod postgres;
mod redis;

pub use error::ServerError;
pub use postgres::PostgresServer;
pub use redis::{Mode, RedisServer};

use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take to answer for the first time.
pub const READY_WITHIN: Duration = Duration::from_secs(20);
/// How long between two looks at something that is not ready.
pub const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The same, where the time until then is a figure.
pub const LOOK_CLOSELY_EVERY: Duration = Duration::from_millis(1);
const GONE_WITHIN: Duration = Duration::from_secs(10);

/// How a server is made to end; in both ways at once, since its files are about to be removed.
#[derive(Debug, Clone, Copy)]
pub enum Ending {
    /// PostgreSQL's "immediate": it ends its processes but writes no checkpoint, which would burden the next subject.
    Quit,
    /// For one without processes of its own.
    Kill,
    /// For one that ends its own processes when it is asked to.
    Terminate,
}

impl Ending {
    const fn signal(self) -> Signal {
        match self {
            Self::Quit => Signal::QUIT,
            Self::Kill => Signal::KILL,
            Self::Terminate => Signal::TERM,
        }
    }

    /// As `setpriv` calls it.
    const fn name(self) -> &'static str {
        match self {
            Self::Quit => "QUIT",
            Self::Kill => "KILL",
            Self::Terminate => "TERM",
        }
    }
}

/// A running server; stops it when dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
    ending: Ending,
    log: PathBuf,
}

impl Server {
    /// Starts `command` with its output in `log`; `ending` is what will end it.
    ///
    /// # Errors
    /// If it cannot be run.
    pub fn start(mut command: Command, ending: Ending, log: PathBuf) -> Result<Self, ServerError> {
        let failed = || ServerError::io(format!("open {}", log.display()));
        let output = File::create(&log).map_err(failed())?;
        let errors = output.try_clone().map_err(failed())?;
        let program = command.get_program().to_owned();
        let child = command.stdin(Stdio::null()).stdout(output).stderr(errors).spawn();
        let child = child.map_err(ServerError::io(format!("start {}", program.display())))?;
        Ok(Self { child, ending, log })
    }

    /// The process, for those who measure it.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the server has printed `listening on http://…`, and returns that address.
    ///
    /// # Errors
    /// If it does not, within `READY_WITHIN`.
    pub fn wait_listening(&mut self, server: &'static str) -> Result<String, ServerError> {
        let began = Instant::now();
        loop {
            let text = fs::read_to_string(&self.log).unwrap_or_default();
            let whole_lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
            let url = whole_lines.filter_map(|line| line.trim_end().strip_prefix("listening on http://")).next();
            if let Some(address) = url {
                return Ok(format!("http://{address}"));
            }
            if began.elapsed() > READY_WITHIN || !self.is_running() {
                return Err(ServerError::NotReady { server, within: READY_WITHIN, said: self.last_words() });
            }
            std::thread::sleep(LOOK_CLOSELY_EVERY);
        }
    }

    /// Whether waiting for it still makes sense.
    #[must_use]
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// The end of what the server said, for an error message.
    #[must_use]
    pub fn last_words(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(3)..].join(" | ")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A server that is already gone is as good as one that is stopped.
        let _ = kill_process(Pid::from_child(&self.child), self.ending.signal());
        let asked = Instant::now();
        while self.is_running() {
            if asked.elapsed() > GONE_WITHIN {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

/// Looks for a program where shells look for it.
#[must_use]
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// A port nobody listens on now.
///
/// # Errors
/// If the system has none.
pub fn private_port() -> Result<u16, ServerError> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    listener.map(|address| address.port()).map_err(ServerError::io("find a free port"))
}

/// A command that runs as nobody in particular and gets `ending` when we die; `dir` becomes that user's own.
///
/// # Errors
/// If there is no such user, or `dir` cannot be given away.
pub fn unprivileged(program: &Path, ending: Ending, dir: &Path) -> Result<Command, ServerError> {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", ending.name()]).current_dir(dir);
    // PostgreSQL refuses to run as root.
    if rustix::process::geteuid().is_root() {
        let user = unprivileged_user()?;
        std::os::unix::fs::chown(dir, Some(user.uid), Some(user.gid))
            .map_err(ServerError::io("give a directory away"))?;
        command.args([format!("--reuid={}", user.uid), format!("--regid={}", user.gid), "--clear-groups".to_owned()]);
    }
    command.arg("--").arg(program);
    Ok(command)
}

/// A command that runs as who we are and gets `ending` when we die.
#[must_use]
pub fn as_ourselves(program: &Path, ending: Ending) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", ending.name(), "--"]).arg(program);
    command
}

/// A program of ours, built beside this one.
///
/// # Errors
/// If it is not there.
pub fn beside(name: &str) -> Result<PathBuf, ServerError> {
    let ourselves = std::env::current_exe().map_err(ServerError::io("find this program"))?;
    let program = ourselves.with_file_name(name);
    let absent = || ServerError::Program { program: name.to_owned(), said: "it is not built".to_owned() };
    if program.is_file() { Ok(program) } else { Err(absent()) }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct User {
    uid: u32,
    gid: u32,
}

fn unprivileged_user() -> Result<User, ServerError> {
    let passwd = fs::read_to_string("/etc/passwd").map_err(ServerError::io("read /etc/passwd"))?;
    let found = ["postgres", "nobody"].iter().find_map(|name| user_in(&passwd, name));
    let none = || ServerError::Program { program: "setpriv".to_owned(), said: "no user postgres or nobody".to_owned() };
    found.ok_or_else(none)
}

fn user_in(passwd: &str, name: &str) -> Option<User> {
    let line = passwd.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut ids = line.split(':').skip(2).map(str::parse);
    Some(User { uid: ids.next()?.ok()?, gid: ids.next()?.ok()? })
}

/// Runs a program to its end and fails with what it said.
///
/// # Errors
/// If it cannot be run or fails.
pub fn finish(mut command: Command, program: &str) -> Result<(), ServerError> {
    let output = command.stdin(Stdio::null()).output().map_err(ServerError::io(format!("run {program}")))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', " | ");
    Err(ServerError::Program { program: program.to_owned(), said })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_the_whole_name() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\nnobody2:x:7:8::/:\nnobody:x:65534:65533:nobody:/:/bin/false\n";
        assert_eq!(user_in(passwd, "nobody"), Some(User { uid: 65_534, gid: 65_533 }));
        assert_eq!(user_in(passwd, "postgres"), None);
    }
}
