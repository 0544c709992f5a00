//! The data directory and the disk below it.

use super::Finding;
use rustix::fs::{statfs, statvfs};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Syncs that are measured; the median counts.
const SYNCS: usize = 15;
/// No disk and no flash behind a bus keeps anything in less.
const HONEST_MIN: Duration = Duration::from_micros(15);
/// A sync as slow as this is felt by every caller.
const SLOW: Duration = Duration::from_millis(50);
const SPACE_FAIL_BYTES: u64 = 256 << 20;
const SPACE_WARN_BYTES: u64 = 2 << 30;
/// File systems that live in memory: tmpfs and ramfs.
const IN_MEMORY: [i128; 2] = [0x0102_1994, 0x8584_58f6];

/// Checks the directory, its file system, its space and its syncs.
pub(super) fn check(data: &Path) -> Vec<Finding> {
    let mut findings = vec![directory(data)];
    let Some(place) = nearest(data) else { return findings };
    findings.push(space(&place));
    findings.push(syncs(&place));
    findings
}

/// The directory, or the nearest one above it that is there.
fn nearest(data: &Path) -> Option<PathBuf> {
    let absolute = std::path::absolute(data).ok()?;
    absolute.ancestors().find(|place| place.is_dir()).map(Path::to_path_buf)
}

fn directory(data: &Path) -> Finding {
    const CHECK: &str = "data directory";
    let shown = data.display();
    let metadata = match fs::metadata(data) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Finding::pass(CHECK, format!("{shown} is not there yet; the first start makes it"));
        }
        Err(error) => return Finding::fail(CHECK, format!("{shown}: {error}"), "let this user read and write it"),
        Ok(metadata) if !metadata.is_dir() => {
            return Finding::fail(CHECK, format!("{shown} is no directory"), "give another one with --data");
        }
        Ok(metadata) => metadata,
    };
    let me = rustix::process::geteuid().as_raw();
    if metadata.uid() != me {
        let found = format!("{shown} belongs to user {}, and this is user {me}", metadata.uid());
        return Finding::warn(CHECK, found, "run the server and its commands as one user");
    }
    if metadata.permissions().mode() & 0o022 != 0 {
        let found = format!("others than its owner may write to {shown}");
        return Finding::fail(CHECK, found, format!("chmod 700 {shown}"));
    }
    if metadata.permissions().mode() & 0o055 != 0 {
        let found = format!("others than its owner may look into {shown}; keys are kept from them, the books are not");
        return Finding::warn(CHECK, found, format!("chmod 700 {shown}"));
    }
    Finding::pass(CHECK, format!("{shown} is its owner's only"))
}

fn space(place: &Path) -> Finding {
    const CHECK: &str = "space";
    let Ok(stat) = statvfs(place) else {
        return Finding::warn(CHECK, "cannot be told", "look with df");
    };
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    let found = format!("{} MiB free", free >> 20);
    if free < SPACE_FAIL_BYTES {
        Finding::fail(CHECK, found, "make room: a full disk stops the journal, and with it the server")
    } else if free < SPACE_WARN_BYTES {
        Finding::warn(CHECK, found, "make room before it is needed: the journal grows with every charge")
    } else {
        Finding::pass(CHECK, found)
    }
}

/// Whether a sync takes as long as something that keeps must take.
fn syncs(place: &Path) -> Finding {
    const CHECK: &str = "sync";
    let in_memory = statfs(place).is_ok_and(|stat| IN_MEMORY.contains(&i128::from(stat.f_type)));
    if in_memory {
        let found = format!("{} is in memory: nothing there outlives the machine", place.display());
        return Finding::fail(CHECK, found, "keep the data directory on a disk");
    }
    let took = match measure(place) {
        Ok(took) => took,
        Err(error) => {
            let found = format!("{} cannot be written and synced: {error}", place.display());
            return Finding::fail(CHECK, found, "let this user write there, on a disk that can sync");
        }
    };
    let found = format!("{:.2} ms, the median of {SYNCS}", took.as_secs_f64() * 1_000.0);
    if took < HONEST_MIN {
        let found = format!("{found}: faster than any disk can be");
        let advice =
            "something says `kept` before it is: look for eatmydata, nobarrier, or a virtual disk's write-back cache";
        Finding::warn(CHECK, found, advice)
    } else if took > SLOW {
        Finding::warn(CHECK, found, "every charge waits for two of these: use a disk of its own, or a faster one")
    } else {
        Finding::pass(CHECK, found)
    }
}

/// How long one appended block takes to be kept.
fn measure(place: &Path) -> io::Result<Duration> {
    // The file has no name, so nothing is left of it whatever happens.
    let mut file: File = tempfile::tempfile_in(place)?;
    let mut times = Vec::with_capacity(SYNCS);
    for _ in 0..SYNCS {
        let began = Instant::now();
        file.write_all(&[1; 4_096])?;
        file.sync_data()?;
        times.push(began.elapsed());
    }
    times.sort_unstable();
    Ok(times.get(SYNCS / 2).copied().unwrap_or_default())
}
