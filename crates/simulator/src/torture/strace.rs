//! What `strace` wrote down: which call of which thread touched which file, and which one was made to fail.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The calls through which the program changes what is on the disk, or opens it.
pub(crate) const TRACED: [&str; 10] =
    ["pwritev2", "fdatasync", "fsync", "pwrite64", "write", "openat", "rename", "ftruncate", "unlink", "mkdir"];

/// The tracer writes its last lines after the server's death.
const FINISHED_WITHIN: Duration = Duration::from_secs(5);

/// A call as it was begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) name: &'static str,
    /// It was the thread's so-manieth of this name, from 1: what `when=` counts.
    pub(crate) ordinal: u64,
    /// Its arguments, and its result if it came before the next line.
    text: String,
    /// Whether it was made to fail.
    pub(crate) injected: bool,
}

impl Call {
    /// Whether it has to do with a file below `directory`.
    pub(crate) fn touches(&self, directory: &Path) -> bool {
        self.text.contains(&format!("{}", directory.display()))
    }

    /// Whether it writes or syncs a segment of the journal.
    pub(crate) fn writes_segment(&self) -> bool {
        ["pwritev2", "fdatasync", "pwrite64"].contains(&self.name)
            && self.text.split(['<', '>']).nth(1).is_some_and(|file| file.ends_with(".seg"))
    }

    /// Whether it is how the runtime wakes itself. No kernel refuses that, and the runtime ends the process if one does.
    pub(crate) fn is_of_runtime(&self) -> bool {
        self.text.contains("anon_inode:[eventfd]")
    }

    /// Whether it has to do with the journal's files, the next segment included.
    pub(crate) fn is_of_journal(&self) -> bool {
        self.text.contains("/journal")
    }
}

impl std::fmt::Display for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}({}", self.name, self.text)
    }
}

/// The arguments that have the traced calls written to `log`.
pub(crate) fn arguments(log: &Path, inject: Option<String>) -> Vec<String> {
    let mut arguments = vec!["-y".to_owned(), "-o".to_owned(), log.display().to_string()];
    // Stops the server only at the calls that are traced. With it, strace 6.1 sends no injected signal.
    if !inject.as_ref().is_some_and(|inject| inject.contains("signal=")) {
        arguments.push("--seccomp-bpf".to_owned());
    }
    arguments.extend(["-e".to_owned(), format!("trace={}", TRACED.join(","))]);
    arguments.extend(inject.into_iter().flat_map(|inject| ["-e".to_owned(), format!("inject={inject}")]));
    arguments
}

/// Whether calls can be traced here, and if not, why.
pub(crate) fn is_permitted() -> Result<(), String> {
    let tried = Command::new("strace").args(["-qq", "-e", "trace=none", "true"]).stdin(Stdio::null()).output();
    match tried {
        Err(error) => Err(format!("strace cannot be run: {error}")),
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("strace is not permitted: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

/// The calls in the log of a server that was process `pid` and has ended.
pub(crate) fn read(log: &Path, pid: u32) -> Vec<Call> {
    let until = Instant::now() + FINISHED_WITHIN;
    let last = format!("{pid} +++ ");
    loop {
        let text = fs::read_to_string(log).unwrap_or_default();
        if text.lines().any(|line| line.starts_with(&last)) || Instant::now() >= until {
            return parse(&text);
        }
        thread::sleep(Duration::from_millis(2));
    }
}

fn parse(text: &str) -> Vec<Call> {
    let mut counts: HashMap<(&str, &'static str), u64> = HashMap::new();
    let mut calls: Vec<Call> = Vec::new();
    let mut open: HashMap<&str, usize> = HashMap::new();
    for line in text.lines() {
        let Some((thread, rest)) = line.split_once(' ').map(|(thread, rest)| (thread, rest.trim_start())) else {
            continue;
        };
        if rest.starts_with("<... ") {
            if let Some(call) = open.remove(thread).and_then(|index| calls.get_mut(index)) {
                call.injected |= rest.contains("(INJECTED)");
            }
            continue;
        }
        let Some((name, text)) = rest.split_once('(') else { continue };
        let Some(name) = TRACED.into_iter().find(|traced| *traced == name) else { continue };
        let ordinal = counts.entry((thread, name)).or_default();
        *ordinal += 1;
        open.insert(thread, calls.len());
        calls.push(Call { name, ordinal: *ordinal, text: text.to_owned(), injected: text.contains("(INJECTED)") });
    }
    calls
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_thread_and_an_injected_one_is_found_in_its_second_half() {
        let log = "7 openat(AT_FDCWD</x>, \"/d/journal\", O_RDONLY) = 4</d/journal>\n\
            7 fdatasync(4</d/journal/0000000001.seg> <unfinished ...>\n\
            8 fdatasync(5</d/keys/a.run.tmp>) = 0\n\
            7 <... fdatasync resumed>) = -1 EIO (Input/output error) (INJECTED)\n\
            7 fdatasync(4</d/journal/spare>) = 0\n\
            7 +++ killed by SIGKILL +++\n";
        let calls = parse(log);
        let seen: Vec<_> = calls.iter().map(|call| (call.name, call.ordinal, call.injected)).collect();
        let sync = "fdatasync";
        assert_eq!(seen, [("openat", 1, false), (sync, 1, true), (sync, 1, false), (sync, 2, false)]);
        let segment: Vec<_> = calls.iter().map(Call::writes_segment).collect();
        assert_eq!(segment, [false, true, false, false]);
        assert!(calls.iter().all(|call| call.touches(Path::new("/d"))));
    }
}
