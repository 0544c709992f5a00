//! graphile-worker and pg-boss from npm, with a Node of their own, in `target/peers`.

use super::Case;
use crate::error::BenchError;
use crate::servers::{find_program, finish};
use serde::Deserialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Kept between runs: installing takes half a minute.
const HOME: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/peers/outbox");
/// The versions that are measured: pinned, so that runs can be compared.
const LOCK: &str = include_str!("package-lock.json");
const FILES: [(&str, &str); 3] = [
    ("package.json", include_str!("package.json")),
    ("package-lock.json", LOCK),
    ("peers.mjs", include_str!("peers.mjs")),
];

/// The installed peers.
#[derive(Debug)]
pub(super) struct Peers {
    home: PathBuf,
}

#[derive(Debug, Deserialize)]
struct Said {
    seconds: f64,
    jobs: u32,
}

/// What a peer is: its version, and how it is used.
pub(super) fn about(name: &str, how: &str) -> String {
    #[derive(Deserialize)]
    struct Package {
        dependencies: std::collections::BTreeMap<String, String>,
    }
    let package: Option<Package> = serde_json::from_str(FILES[0].1).ok();
    let version = package.and_then(|package| package.dependencies.get(name).cloned());
    format!("{}, {how}; spread over a thread per processor", version.unwrap_or_default())
}

/// The peers, installed if they are not there yet.
///
/// # Errors
/// If they cannot be installed: they are missing.
pub(super) fn ensure() -> Result<Peers, BenchError> {
    let home = Path::new(HOME).to_owned();
    fs::create_dir_all(&home).map_err(BenchError::io(format!("make {}", home.display())))?;
    for (name, text) in FILES {
        fs::write(home.join(name), text).map_err(BenchError::io(format!("write {name}")))?;
    }
    // Written last, so that half an installation is done again.
    let installed = home.join("installed-from");
    if fs::read_to_string(&installed).is_ok_and(|from| from == LOCK) {
        return Ok(Peers { home });
    }
    let none = || BenchError::program("npm", "it is not installed");
    let mut npm = Command::new(find_program("npm").ok_or_else(none)?);
    eprintln!("installing graphile-worker and pg-boss");
    npm.args(["ci", "--no-audit", "--no-fund", "--loglevel", "error"]).current_dir(&home);
    finish(npm, "npm ci")?;
    fs::write(&installed, LOCK).map_err(BenchError::io("note what was installed"))?;
    Ok(Peers { home })
}

impl Peers {
    /// Fills the database at `url`, and drains it: how long the drain took.
    pub(super) fn drain(&self, name: &str, url: &str, case: Case, jobs: u32) -> Result<Duration, BenchError> {
        let mut node = Command::new("setpriv");
        node.args(["--pdeathsig", "KILL", "--"]).arg(self.home.join("node_modules/node/bin/node")).arg("peers.mjs");
        node.args([name, url]).args([jobs.to_string(), case.workers.to_string(), case.batch.to_string()]);
        let output = node.current_dir(&self.home).stdin(Stdio::null()).output().map_err(BenchError::io("run node"))?;
        let failed = |said: &[u8]| BenchError::program(name, String::from_utf8_lossy(said).trim().replace('\n', " | "));
        if !output.status.success() {
            return Err(failed(&output.stderr));
        }
        let said: Said = serde_json::from_slice(&output.stdout).map_err(|_| failed(&output.stdout))?;
        if said.jobs != jobs {
            return Err(BenchError::Books { expected: jobs.to_string(), found: said.jobs.to_string() });
        }
        Ok(Duration::from_secs_f64(said.seconds))
    }
}
