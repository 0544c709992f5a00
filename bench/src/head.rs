//! What stands at the head of every report: without it a figure cannot be compared with another day's.

use crate::memory;
use crate::sandbox::file_system;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The circumstances of a run.
#[derive(Debug, Serialize)]
pub struct Head {
    /// Processor and kernel.
    pub machine: String,
    /// How many processors the run may use.
    pub cores: usize,
    /// One, five and fifteen minutes, as the run began.
    pub load_average: String,
    /// The same, as it ended; above the cores, the figures suffered.
    pub load_average_end: String,
    /// How much memory was touched before, and how long that took: slow, where a host still had to give it.
    pub memory: String,
    /// The file system under the sandbox.
    pub disk: String,
    /// What was built, with `-dirty` if the tree had changes.
    pub commit: String,
    /// When the run began, UTC.
    pub date: String,
    /// How long each subject was measured in each case.
    pub seconds_per_case: f64,
    /// Who took part, by name: version and how it was reached.
    pub subjects: BTreeMap<String, String>,
}

impl Head {
    /// Looks at the machine and touches `memory_bytes` of its memory; `dir` is where the run writes.
    #[must_use]
    pub fn now(dir: &Path, seconds_per_case: f64, memory_bytes: u64) -> Self {
        Self {
            machine: machine(),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            load_average: load_average(),
            load_average_end: String::new(),
            memory: memory::touch(memory_bytes),
            disk: file_system(dir),
            commit: said("git", &["describe", "--always", "--dirty", "--abbrev=12"], dir),
            date: said("date", &["-u", "+%Y-%m-%dT%H:%M:%SZ"], dir),
            seconds_per_case,
            subjects: BTreeMap::new(),
        }
    }

    /// Notes the load at the end.
    pub fn ended(&mut self) {
        self.load_average_end = load_average();
    }

    /// The head as lines of name and text.
    #[must_use]
    pub fn lines(&self) -> Vec<(String, String)> {
        let own = [
            ("machine", self.machine.clone()),
            ("cores", self.cores.to_string()),
            ("load", format!("{} at the start, {} at the end", self.load_average, self.load_average_end)),
            ("memory", self.memory.clone()),
            ("disk", self.disk.clone()),
            ("commit", self.commit.clone()),
            ("date", self.date.clone()),
            ("per case", format!("{} s", self.seconds_per_case)),
        ];
        let own = own.into_iter().map(|(name, text)| (name.to_owned(), text));
        own.chain(self.subjects.clone()).collect()
    }
}

fn machine() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let model = model.map_or("unknown processor", |(_, model)| model);
    format!("{model}, {} {}", std::env::consts::OS, kernel.trim())
}

fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

/// What a program prints, or "unknown": a report without a commit hash is still a report.
pub(crate) fn said(program: &str, arguments: &[&str], dir: &Path) -> String {
    let output = Command::new(program).args(arguments).current_dir(dir).output();
    let text = match output {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        Ok(_) | Err(_) => String::new(),
    };
    if text.is_empty() { "unknown".to_owned() } else { text }
}
