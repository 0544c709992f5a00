//! The directory of one run: `target/bench/run-PID`, on a real disk, removed with the run.
//!
//! # Invariants
//! - Never on a file system in memory: there a sync is free and every figure would lie.
//! - A run that was killed leaves its directory; the next run removes every directory whose process is gone.

use crate::error::BenchError;
use std::fs;
use std::path::{Path, PathBuf};

/// Removes its directory when dropped.
#[derive(Debug)]
pub struct Sandbox {
    dir: PathBuf,
}

impl Sandbox {
    /// Makes the run's directory under `parent` and sweeps those of dead runs.
    ///
    /// # Errors
    /// If it cannot be made, or is not on a disk.
    pub fn new(parent: &Path) -> Result<Self, BenchError> {
        fs::create_dir_all(parent).map_err(BenchError::io(format!("make {}", parent.display())))?;
        let path = parent.canonicalize().map_err(BenchError::io("resolve the sandbox"))?;
        let kind = file_system(&path);
        if ["tmpfs", "ramfs"].contains(&kind.as_str()) {
            return Err(BenchError::NotADisk { path, kind });
        }
        sweep(&path);
        let dir = path.join(format!("run-{}", std::process::id()));
        fs::create_dir_all(&dir).map_err(BenchError::io(format!("make {}", dir.display())))?;
        Ok(Self { dir })
    }

    /// An empty directory of this name, whatever was there before.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn fresh(&self, name: &str) -> Result<PathBuf, BenchError> {
        let dir = self.dir.join(name);
        self.discard(name);
        fs::create_dir(&dir).map_err(BenchError::io(format!("make {}", dir.display())))?;
        Ok(dir)
    }

    /// Removes a subject's files at once, so that their write-back does not burden the next subject.
    pub fn discard(&self, name: &str) {
        // Nothing there is the usual case, and `fresh` fails loudly if anything stays.
        let _ = fs::remove_dir_all(self.dir.join(name));
    }

    /// Where the run writes.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // The next run sweeps what cannot be removed now.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn sweep(parent: &Path) {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix("run-"));
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// The kind of the file system that holds `path`, by the longest mount point that is a prefix of it.
#[must_use]
pub fn file_system(path: &Path) -> String {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    kind_at(&mounts, path).unwrap_or_else(|| "unknown".to_owned())
}

fn kind_at(mounts: &str, path: &Path) -> Option<String> {
    let points = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        Some((fields.next()?, fields.next()?))
    });
    // A later mount on the same point hides an earlier one, and `max_by_key` keeps the last of equals.
    points
        .filter(|(point, _)| path.starts_with(point))
        .max_by_key(|(point, _)| point.len())
        .map(|(_, kind)| kind.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_system_is_that_of_the_longest_mount_point() {
        let mounts = "/dev/vda / ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n/dev/vdb /tmp/disk xfs rw 0 0\n";
        let check = |path: &str, kind: &str| assert_eq!(kind_at(mounts, Path::new(path)).as_deref(), Some(kind));
        check("/srv/target", "ext4");
        check("/tmp/x", "tmpfs");
        check("/tmp/disk/x", "xfs");
        check("/tmpfoo", "ext4");
    }
}
