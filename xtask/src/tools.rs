//! What the tests need from the system: looked for, and installed where that is ours to do.

use crate::child::{Runner, StepError};
use crate::summary::say;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The oldest PostgreSQL that the tests run against.
const OLDEST_POSTGRES: u32 = 15;
/// The oldest Node.js that the SDKs run on.
const OLDEST_NODE: u32 = 18;

/// One thing the tests need. To need another, add a line to `TOOLS`.
struct Tool {
    what: &'static str,
    is_there: fn() -> bool,
    /// What `apt-get` installs for it.
    packages: &'static [&'static str],
}

const TOOLS: [Tool; 7] = [
    Tool { what: "a C compiler", is_there: || in_path("cc"), packages: &["gcc", "libc6-dev"] },
    Tool { what: "strace", is_there: || in_path("strace"), packages: &["strace"] },
    Tool { what: "redis-server", is_there: || in_path("redis-server"), packages: &["redis-server"] },
    Tool { what: "PostgreSQL 15 or newer", is_there: has_postgres, packages: &["postgresql"] },
    Tool { what: "Python 3 with venv", is_there: has_venv, packages: &["python3", "python3-venv"] },
    Tool { what: "Node.js 18 or newer", is_there: has_node, packages: &["nodejs"] },
    Tool { what: "npm", is_there: || in_path("npm"), packages: &["npm"] },
];

/// Succeeds if all is there, in the end.
///
/// # Errors
/// With what to install, if that is not ours to do; else if it fails.
pub fn ensure(runner: &Runner) -> Result<(), StepError> {
    let missing = missing();
    if missing.is_empty() {
        return Ok(());
    }
    let packages: Vec<&str> = missing.iter().flat_map(|tool| tool.packages).copied().collect();
    if !(in_path("apt-get") && is_root()) {
        return Err(StepError::Wrong(advice(&missing)));
    }
    say(&format!("    installing {}", packages.join(" ")));
    apt_get(&["update"], runner)?;
    apt_get(&[&["install", "-y", "--no-install-recommends"], packages.as_slice()].concat(), runner)?;
    let still = self::missing();
    if still.is_empty() { Ok(()) } else { Err(StepError::Wrong(advice(&still))) }
}

fn missing() -> Vec<&'static Tool> {
    const { &TOOLS }.iter().filter(|tool| !(tool.is_there)()).collect()
}

fn advice(missing: &[&Tool]) -> String {
    let what: Vec<&str> = missing.iter().map(|tool| tool.what).collect();
    let packages: Vec<&str> = missing.iter().flat_map(|tool| tool.packages).copied().collect();
    format!("{} not found. On Debian: sudo apt-get install {}", what.join(", "), packages.join(" "))
}

fn apt_get(arguments: &[&str], runner: &Runner) -> Result<(), StepError> {
    let mut command = Command::new("apt-get");
    // A run level without services: the tests start servers of their own and need none in the background.
    command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive").env("RUNLEVEL", "1");
    runner.run(command)
}

fn in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

fn has_postgres() -> bool {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let dirs: Vec<PathBuf> = versions.map(|entry| entry.path()).collect();
    dirs.iter().any(|dir| is_new_enough(dir) && dir.join("bin/initdb").is_file())
}

/// Debian's python3 has no `ensurepip` until its own package brings it.
fn has_venv() -> bool {
    says("python3", &["-c", "import ensurepip, venv"]).is_some()
}

fn has_node() -> bool {
    says("node", &["--version"]).and_then(|version| node_major(&version)).is_some_and(|major| major >= OLDEST_NODE)
}

/// The 20 of `v20.1.0`.
fn node_major(version: &str) -> Option<u32> {
    version.trim().strip_prefix('v')?.split('.').next()?.parse().ok()
}

/// What a program prints, if it succeeds.
fn says(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

fn is_new_enough(version_dir: &Path) -> bool {
    let major = version_dir.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok());
    major.is_some_and(|major| major >= OLDEST_POSTGRES)
}

fn is_root() -> bool {
    // The owner of our own process is who we are.
    std::fs::metadata("/proc/self").is_ok_and(|metadata| std::os::unix::fs::MetadataExt::uid(&metadata) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_names_what_is_missing_and_the_command_that_helps() {
        let text = advice(&[&TOOLS[1], &TOOLS[2]]);
        assert_eq!(text, "strace, redis-server not found. On Debian: sudo apt-get install strace redis-server");
    }

    #[test]
    fn the_major_version_of_node_is_read_or_it_does_not_count() {
        assert_eq!(node_major("v20.20.2\n"), Some(20));
        assert_eq!(node_major("v9.1.0"), Some(9));
        assert_eq!(node_major("20.1.0"), None);
    }

    #[test]
    fn an_old_postgres_does_not_count() {
        assert!(is_new_enough(Path::new("/usr/lib/postgresql/15")));
        assert!(!is_new_enough(Path::new("/usr/lib/postgresql/9.6")));
        assert!(!is_new_enough(Path::new("/usr/lib/postgresql/14")));
    }
}
