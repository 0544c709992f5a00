//! Whoever cleans up: a process of its own, so that nothing stays behind however the torture ends, `kill -9` included.
//!
//! It is told which processes were started and ended, and waits for the end of its input. Then it kills those that are left,
//! unmounts what is mounted below the run's directory, and removes that directory, unless it was asked to keep it.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

/// The argument that makes this program the janitor.
pub(crate) const ARGUMENT: &str = "--be-the-janitor-of";

/// What the name of a run's directory begins with.
const PREFIX: &str = "torture-";
/// How often unmounting is tried before it is left to the kernel.
const UNMOUNTS_MAX: usize = 40;

/// The torture's end of it.
pub(crate) struct Janitor {
    directory: PathBuf,
    child: Child,
    input: Mutex<Option<ChildStdin>>,
}

impl Janitor {
    /// Makes a directory for the run, and starts the janitor of it.
    pub(crate) fn start(parent: &Path) -> io::Result<Self> {
        let directory = parent.join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir_all(&directory)?;
        let directory = directory.canonicalize()?;
        // In a process group of its own, so that ctrl-c at the terminal does not reach it.
        let mut child = Command::new(std::env::current_exe()?)
            .arg(ARGUMENT)
            .arg(&directory)
            .stdin(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let input = Mutex::new(child.stdin.take());
        Ok(Self { directory, child, input })
    }

    /// The run's directory.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn started(&self, pid: u32) {
        self.tell(&format!("started {pid}"));
    }

    pub(crate) fn ended(&self, pid: u32) {
        self.tell(&format!("ended {pid}"));
    }

    /// Has the directory kept, as evidence.
    pub(crate) fn keep(&self) {
        self.tell("keep");
    }

    fn tell(&self, line: &str) {
        let mut input = self.input.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // Without a janitor the run goes on: every server is also killed when it is dropped.
        let _told = input.as_mut().map(|input| writeln!(input, "{line}"));
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        drop(self.input.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take());
        let _cleaned = self.child.wait();
    }
}

/// The janitor's life.
pub(crate) fn be(directory: &Path) {
    let mut running = BTreeSet::new();
    let mut keep = false;
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        match line.split_once(' ') {
            Some(("started", pid)) => drop(running.insert(pid.to_owned())),
            Some(("ended", pid)) => drop(running.remove(pid)),
            Some(_) | None => keep = true,
        }
    }
    for pid in &running {
        kill(pid, directory);
    }
    for _ in 0..UNMOUNTS_MAX {
        let Some(mount) = mounts_below(directory).pop() else { break };
        let unmounted = Command::new("umount").arg(&mount).stderr(Stdio::null()).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            // A process that was just killed may still have it for a moment.
            thread::sleep(Duration::from_millis(50));
        }
    }
    for mount in mounts_below(directory) {
        let _last_resort = Command::new("umount").arg("--lazy").arg(&mount).status();
    }
    let is_a_runs = directory.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX));
    if is_a_runs && !keep && mounts_below(directory).is_empty() {
        let _best_effort = fs::remove_dir_all(directory);
    }
}

/// Kills a process if it is still one of the run: its number may have been given to another since.
fn kill(pid: &str, directory: &Path) {
    let command_line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let ours = String::from_utf8_lossy(&command_line).contains(&*directory.to_string_lossy());
    let pid = pid.parse().ok().and_then(rustix::process::Pid::from_raw);
    if let Some(pid) = pid.filter(|_| ours) {
        let _gone_already = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

/// What is mounted below `directory`, in the order in which it was.
pub(crate) fn mounts_below(directory: &Path) -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(1)).map(PathBuf::from);
    points.filter(|point| point.starts_with(directory)).collect()
}
