//! Runs one program to its end, within a limit, and leaves nothing of it running.

use crate::summary::say;
use crate::watch::Watch;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
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
    /// What becomes of what they say.
    pub output: Output,
}

/// What becomes of what programs say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// It is seen at once.
    Shown,
    /// It is seen when the program has ended, below this name: others speak at the same time.
    Kept(String),
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
        let kept = Kept::of(&mut command, &self.output).map_err(not_run)?;
        let mut child = command.stdin(Stdio::null()).process_group(0).spawn().map_err(not_run)?;
        watch.guard_group(child.id()).map_err(not_run)?;
        let status = wait(&mut child, self.limit).map_err(not_run)?;
        // Ends the child too, if it is still there.
        watch.sweep();
        if let Some(kept) = kept {
            // In one go, so that nothing of another comes between.
            say(&kept.text().map_err(not_run)?);
        }
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

/// What a program says, until it has ended. In a file, not a pipe: what it leaves in the background would keep a pipe open.
struct Kept<'a> {
    of: &'a str,
    file: File,
}

impl<'a> Kept<'a> {
    /// Has what `command` says kept, if it is to be.
    fn of(command: &mut Command, output: &'a Output) -> io::Result<Option<Self>> {
        let Output::Kept(of) = output else { return Ok(None) };
        let file = nameless_file()?;
        command.stdout(file.try_clone()?).stderr(file.try_clone()?);
        Ok(Some(Self { of, file }))
    }

    /// All of it, below the name.
    fn text(mut self) -> io::Result<String> {
        let mut said = Vec::new();
        self.file.rewind()?;
        self.file.read_to_end(&mut said)?;
        Ok(format!("    {}:\n{}", self.of, String::from_utf8_lossy(&said).trim_end()))
    }
}

/// A file to write and read that nobody else finds, and that is gone when it is closed.
fn nameless_file() -> io::Result<File> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("holdfast-xtask-{}-{number}", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    fs::remove_file(path)?;
    Ok(file)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_all_that_was_said_in_order_below_its_name() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; echo two >&2; echo three"]);
        let output = Output::Kept("counting".to_owned());
        let kept = Kept::of(&mut command, &output).unwrap().expect("it is to be kept");
        assert!(command.status().unwrap().success());
        assert_eq!(kept.text().unwrap(), "    counting:\none\ntwo\nthree");
        assert!(Kept::of(&mut command, &Output::Shown).unwrap().is_none());
    }
}
