//! Ends what a step leaves behind, however the step or we ourselves end.
//!
//! A second process, `xtask __watch TAG`, holds the reading end of a pipe whose writing end only we hold. The kernel closes it
//! when we end in any way (the step is over, Ctrl-C, `kill -9`), and then the watcher ends every process of the step. It knows
//! them by their process group, and by an environment variable that they inherit even if they leave the group, as daemons do.
//!
//! # Invariants
//! - The watcher is in no group that a terminal signals, so Ctrl-C does not end it before its work is done.
//! - It ends only processes of its own step: the tag holds our process id and a number.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The hidden command that makes a process the watcher.
pub const COMMAND: &str = "__watch";
const VARIABLE: &str = "HOLDFAST_XTASK_STEP";
/// A server may need this long to end in good order.
const GRACE: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Our end: while it lives, the step may run.
#[derive(Debug)]
pub struct Watch {
    watcher: Child,
    tag: String,
}

impl Watch {
    /// Starts the watcher; `xtask` is this program.
    ///
    /// # Errors
    /// If it cannot be run.
    pub fn start(xtask: &Path) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let tag = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let mut command = Command::new(xtask);
        command.args([COMMAND, &tag]).stdin(Stdio::piped()).process_group(0);
        Ok(Self { watcher: command.spawn()?, tag })
    }

    /// Makes `command` and all it will start known to the watcher.
    pub fn mark(&self, command: &mut Command) {
        command.env(VARIABLE, &self.tag);
    }

    /// Names the step's process group as well, for those who clear their environment.
    ///
    /// # Errors
    /// If the watcher is gone.
    pub fn guard_group(&mut self, group: u32) -> io::Result<()> {
        match &mut self.watcher.stdin {
            Some(pipe) => writeln!(pipe, "{group}"),
            None => Ok(()),
        }
    }

    /// Ends all that is left of the step.
    pub fn sweep(self) {
        drop(self);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.watcher.stdin.take());
        // It ends by itself after `GRACE`; if it is already gone there is nothing to wait for.
        let _ = self.watcher.wait();
    }
}

/// The watcher's life: wait until the pipe closes, then end the step.
pub fn keep(tag: &str) {
    let mut group = String::new();
    // An error means the same as the end: there is no one at the other end.
    let _ = io::stdin().read_to_string(&mut group);
    let step = Step { group: group.trim().parse().ok(), mark: format!("{VARIABLE}={tag}") };
    let left = step.processes();
    if left.is_empty() {
        return;
    }
    // Named, because a test that leaves a server behind should be found.
    let names =
        left.iter().map(|id| fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default().trim().to_owned());
    eprintln!("xtask: ending what still runs: {}", names.collect::<Vec<_>>().join(" "));
    signal("TERM", &left);
    let asked = Instant::now();
    while !step.processes().is_empty() && asked.elapsed() < GRACE {
        std::thread::sleep(LOOK_EVERY);
    }
    signal("KILL", &step.processes());
}

struct Step {
    group: Option<u32>,
    mark: String,
}

impl Step {
    fn processes(&self) -> Vec<u32> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        ids.filter(|id| *id != std::process::id() && self.owns(*id)).collect()
    }

    fn owns(&self, id: u32) -> bool {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        let Some(Stat { is_running, group }) = parse_stat(&stat) else { return false };
        let environment = || fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
        is_running
            && (Some(group) == self.group
                || environment().split(|byte| *byte == 0).any(|variable| variable == self.mark.as_bytes()))
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Stat {
    is_running: bool,
    group: u32,
}

/// `PID (NAME) STATE PARENT GROUP …`; the name may hold spaces and brackets, so the fields begin after its last bracket.
fn parse_stat(stat: &str) -> Option<Stat> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    let is_running = !matches!(fields.next()?, "Z" | "X");
    Some(Stat { is_running, group: fields.nth(1)?.parse().ok()? })
}

/// By the shell, because the standard library cannot signal another's process.
fn signal(name: &str, processes: &[u32]) {
    if processes.is_empty() {
        return;
    }
    let mut kill = Command::new("sh");
    kill.args(["-c", "kill -s \"$@\" 2>/dev/null", "sh", name]).args(processes.iter().map(u32::to_string));
    // One that has ended meanwhile is what we want.
    let _ = kill.status();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_read_whatever_the_name_of_the_process() {
        let check = |line: &str, is_running: bool, group: u32| {
            assert_eq!(parse_stat(line), Some(Stat { is_running, group }), "{line}");
        };
        check("12 (cat) S 1 34 34 0", true, 34);
        check("12 (a) b (c)) Z 1 7 34 0", false, 7);
        assert_eq!(parse_stat(""), None);
    }
}
