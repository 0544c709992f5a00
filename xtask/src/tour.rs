//! Runs the README's tour as it stands, so that what the first visitor copies works.

use crate::child::{Runner, StepError};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

const MARK: &str = "<!-- tour -->";

/// Runs the tour in an empty directory with the built programs first in `PATH`.
///
/// # Errors
/// If there is none, if it fails, or if it prints an error.
pub fn run(readme: &Path, programs: &Path, runner: &Runner) -> Result<(), StepError> {
    let wrong = |what: &str| StepError::Wrong(format!("{}: {what}", readme.display()));
    let text = fs::read_to_string(readme).map_err(|error| wrong(&error.to_string()))?;
    let script = script(&text).ok_or_else(|| wrong(&format!("no ```sh block after {MARK}")))?;
    let programs = programs.canonicalize().map_err(|error| wrong(&error.to_string()))?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths([programs].into_iter().chain(std::env::split_paths(&path)));
    let path = path.map_err(|error| wrong(&error.to_string()))?;

    let dir = EmptyDir::new("tour").map_err(|error| wrong(&error.to_string()))?;
    // A file, not a pipe: a server that the tour leaves in the background would keep a pipe open.
    let stderr_path = dir.0.with_extension("stderr");
    let stderr = File::create(&stderr_path).map_err(|error| wrong(&error.to_string()))?;
    let mut bash = Command::new("bash");
    bash.args(["-euo", "pipefail", "-c", &script]).current_dir(&dir.0).env("PATH", path).stderr(stderr);
    // The usual port may be taken on this machine.
    bash.env("HOLDFAST_LISTEN", "127.0.0.1:0");
    let result = runner.run(bash);
    let stderr = fs::read_to_string(&stderr_path).unwrap_or_default();
    let _ = fs::remove_file(&stderr_path);
    eprint!("{stderr}");
    result?;
    match stderr.lines().find(|line| line.to_lowercase().contains("error")) {
        Some(line) => Err(wrong(&format!("the tour printed: {line}"))),
        None => Ok(()),
    }
}

/// The first `sh` block after the mark.
fn script(readme: &str) -> Option<String> {
    let mut lines = readme.lines().skip_while(|line| line.trim() != MARK).skip(1);
    lines.find(|line| line.trim() == "```sh")?;
    let block: Vec<&str> = lines.by_ref().take_while(|line| line.trim() != "```").collect();
    Some(block.join("\n"))
}

/// Removed with all in it when dropped.
pub(crate) struct EmptyDir(pub(crate) PathBuf);

impl EmptyDir {
    pub(crate) fn new(name: &str) -> std::io::Result<Self> {
        let dir = std::env::temp_dir().join(format!("holdfast-{name}-{}", std::process::id()));
        fs::create_dir(&dir)?;
        Ok(Self(dir))
    }
}

impl Drop for EmptyDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_is_the_first_shell_block_after_the_mark() {
        let readme =
            "```sh\nno\n```\n<!-- tour -->\n\ntext\n```sh\nholdfast init\nholdfast serve &\n```\n```sh\nno\n```\n";
        assert_eq!(script(readme).as_deref(), Some("holdfast init\nholdfast serve &"));
        assert_eq!(script("```sh\nno\n```\n"), None);
        assert_eq!(script("<!-- tour -->\nnothing\n"), None);
    }
}
