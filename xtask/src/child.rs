//! Runs one program to its end, within a limit, and leaves nothing of it running.

use crate::watch::Watch;
use std::fmt;
use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Why a step failed.
#[derive(Debug)]
pub enum StepError {
    /// The program could not be run at all.
    NotRun {
        /// Its name.
        program: String,
        /// What the system said.
        source: io::Error,
    },
    /// It ended, but not well.
    Ended(ExitStatus),
    /// It did not end.
    TimedOut(Duration),
    /// What it did was not what was wanted.
    Wrong(String),
}

impl fmt::Display for StepError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRun { program, source } => write!(out, "{program} could not be run: {source}"),
            Self::Ended(status) => write!(out, "{status}"),
            Self::TimedOut(limit) => write!(out, "no end after {} s", limit.as_secs()),
            Self::Wrong(what) => write!(out, "{what}"),
        }
    }
}

/// Runs programs, each within the same limit.
#[derive(Debug, Clone)]
pub struct Runner {
    /// This program, which also is the watcher: see `watch`.
    pub xtask: PathBuf,
    /// How long one program may take.
    pub limit: Duration,
}

impl Runner {
    /// Runs `command` in a process group of its own. Whatever it started is gone when this returns, or when we are killed.
    ///
    /// # Errors
    /// If it cannot be run, does not end, or does not end well.
    pub fn run(&self, mut command: Command) -> Result<(), StepError> {
        let program = command.get_program().to_string_lossy().into_owned();
        let not_run = |source| StepError::NotRun { program: program.clone(), source };
        let mut watch = Watch::start(&self.xtask).map_err(not_run)?;
        watch.mark(&mut command);
        let mut child = command.stdin(Stdio::null()).process_group(0).spawn().map_err(not_run)?;
        watch.guard_group(child.id()).map_err(not_run)?;
        let status = wait(&mut child, self.limit).map_err(not_run)?;
        // Ends the child too, if it is still there.
        watch.sweep();
        match status {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(StepError::Ended(status)),
            None => {
                // Reaps what the sweep ended, so that it is not left as a zombie.
                child.wait().map_err(not_run)?;
                Err(StepError::TimedOut(self.limit))
            }
        }
    }
}

/// A server in the background of a step; ended with all it started when dropped, or when we are killed.
#[derive(Debug)]
pub struct Serving {
    /// Where it listens, as it says itself.
    pub url: String,
    child: Child,
    // Dropped after the child was ended, so that it finds nothing to tell of.
    _watch: Watch,
}

impl Runner {
    /// Starts a server and waits until it says `listening on URL` on its standard output.
    ///
    /// # Errors
    /// If it cannot be run or ends before that.
    pub fn serve(&self, mut command: Command) -> Result<Serving, StepError> {
        let program = command.get_program().to_string_lossy().into_owned();
        let not_run = |source| StepError::NotRun { program: program.clone(), source };
        let mut watch = Watch::start(&self.xtask).map_err(not_run)?;
        watch.mark(&mut command);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
        let mut child = command.spawn().map_err(not_run)?;
        let guarded = watch.guard_group(child.id());
        let stdout = child.stdout.take();
        let mut serving = Serving { url: String::new(), child, _watch: watch };
        guarded.map_err(not_run)?;
        let mut lines = stdout.into_iter().flat_map(|stdout| BufReader::new(stdout).lines()).map_while(Result::ok);
        let url = lines.find_map(|line| line.strip_prefix("listening on ").map(str::to_owned));
        serving.url = url.ok_or_else(|| StepError::Wrong(format!("{program} ended before it listened")))?;
        // It says no more, but if it did it would not block; ends with the server.
        std::thread::spawn(move || lines.for_each(drop));
        Ok(serving)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // One that has ended by itself is what we want.
        let _ended_before = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// `None` if it is still running when the limit is over.
fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if began.elapsed() > limit {
            return Ok(None);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}
