//! The official SDKs and schemathesis: installed once under `target/sdk`, as the lock files pin them, and run on a server.
//!
//! # Invariants
//! - What is installed is what the lock files say: the lock that an installation was made from is kept in it, and another lock
//!   makes it anew. It is written last, so that half an installation does not count.
//! - Nothing is left out silently: each script prints which of its checks it ran, and fails if it ran none.

use crate::child::{Runner, StepError};
use crate::summary::say;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The scripts and their locks.
const SCRIPTS: &str = "crates/gateway/tests/sdk";
/// How many examples schemathesis tries per operation, and how long at most.
const SCHEMATHESIS_EXAMPLES: &str = "50";
const SCHEMATHESIS_SECONDS: &str = "25";
/// The same cases in every run.
const SCHEMATHESIS_SEED: &str = "1";

/// Where the SDKs are installed.
#[derive(Debug, Clone)]
pub struct Sdks {
    /// Our scripts, which import them.
    scripts: PathBuf,
    /// The virtual environment.
    venv: PathBuf,
    /// Where `node_modules` and a copy of the Node scripts are.
    node: PathBuf,
}

/// A server that the SDKs are tried on.
#[derive(Debug, Clone)]
pub struct Server<'a> {
    /// `http://HOST:PORT`.
    pub base_url: &'a str,
    /// The key to call it with.
    pub api_key: &'a str,
    /// What is asked for, and for embeddings.
    pub model: &'a str,
    /// None leaves the embeddings out, aloud.
    pub embedding_model: Option<&'a str>,
    /// More settings of `checks.py`, such as `("HOLDFAST", "1")`, `("POOR_KEY", …)`, `("UPSTREAM_URL", …)`.
    pub settings: &'a [(&'a str, &'a str)],
}

/// Installs what is missing; quick if nothing is.
///
/// # Errors
/// If something cannot be installed; what to do by hand is said.
pub fn ensure(root: &Path, runner: &Runner) -> Result<Sdks, StepError> {
    let (scripts, home) = (root.join(SCRIPTS), root.join("target/sdk"));
    let sdks = Sdks { venv: home.join("venv"), node: home.join("node"), scripts };
    let requirements = sdks.scripts.join("requirements.txt");
    installed(&requirements, &sdks.venv, || {
        let mut venv = Command::new("python3");
        venv.args(["-m", "venv", "--clear"]).arg(&sdks.venv);
        runner.run(venv)?;
        let mut pip = Command::new(sdks.python());
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes", "-r"]);
        pip.arg(&requirements);
        runner.run(pip)
    })?;
    installed(&sdks.scripts.join("package-lock.json"), &sdks.node, || {
        // Node looks for packages beside a script and above it, so the scripts go to the packages.
        copy("package.json", &sdks)?;
        copy("package-lock.json", &sdks)?;
        let mut npm = Command::new("npm");
        npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel", "error"]).current_dir(&sdks.node);
        runner.run(npm)
    })?;
    for script in ["checks.mjs", "openai.mjs", "anthropic.mjs"] {
        copy(script, &sdks)?;
    }
    Ok(sdks)
}

/// Runs `install` unless `dir` was installed from this very lock.
fn installed(lock: &Path, dir: &Path, install: impl FnOnce() -> Result<(), StepError>) -> Result<(), StepError> {
    let wanted = fs::read(lock).map_err(|error| wrong(lock, &error))?;
    let mark = dir.join("installed-from");
    if fs::read(&mark).is_ok_and(|was| was == wanted) {
        return Ok(());
    }
    say(&format!("    installing from {}", lock.display()));
    // What an older lock left behind is no part of the new one.
    let _ = fs::remove_dir_all(dir);
    fs::create_dir_all(dir).map_err(|error| wrong(dir, &error))?;
    install().map_err(|error| {
        let advice = "needs python3 with venv, node, npm, and their package registries or mirrors of them";
        StepError::Wrong(format!("{} could not be installed ({advice}): {error}", lock.display()))
    })?;
    fs::write(&mark, wanted).map_err(|error| wrong(&mark, &error))
}

fn copy(name: &str, sdks: &Sdks) -> Result<(), StepError> {
    let from = sdks.scripts.join(name);
    fs::copy(&from, sdks.node.join(name)).map(drop).map_err(|error| wrong(&from, &error))
}

fn wrong(path: &Path, error: &std::io::Error) -> StepError {
    StepError::Wrong(format!("{}: {error}", path.display()))
}

impl Sdks {
    fn python(&self) -> PathBuf {
        self.venv.join("bin/python")
    }

    /// Runs the scripts of all four SDKs.
    ///
    /// # Errors
    /// If a check fails, or one script ran none.
    pub fn run(&self, server: &Server<'_>, runner: &Runner) -> Result<(), StepError> {
        for script in ["openai_chat.py", "anthropic_messages.py"] {
            let mut python = Command::new(self.python());
            // No byte code beside the sources.
            python.arg("-B").arg(self.scripts.join(script));
            runner.run(with_settings(python, server))?;
        }
        for script in ["openai.mjs", "anthropic.mjs"] {
            let mut node = Command::new("node");
            node.arg(self.node.join(script));
            runner.run(with_settings(node, server))?;
        }
        Ok(())
    }

    /// Tries what `/openapi.json` promises: no 5xx, and no answer that it does not describe.
    ///
    /// # Errors
    /// If an answer breaks a promise.
    pub fn run_schemathesis(&self, base_url: &str, token: &str, runner: &Runner) -> Result<(), StepError> {
        let mut schemathesis = Command::new(self.venv.join("bin/schemathesis"));
        schemathesis.arg("run").arg(format!("{base_url}/openapi.json"));
        schemathesis.args(["--url", base_url, "--header", &format!("Authorization: Bearer {token}")]);
        schemathesis.args(["--checks", "not_a_server_error,response_schema_conformance,status_code_conformance"]);
        schemathesis.args(["--seed", SCHEMATHESIS_SEED, "--max-examples", SCHEMATHESIS_EXAMPLES]);
        schemathesis.args(["--generation-database", "none", "--max-time", SCHEMATHESIS_SECONDS]);
        // It writes files where it runs.
        schemathesis.current_dir(&self.node);
        runner.run(schemathesis)
    }
}

fn with_settings(mut command: Command, server: &Server<'_>) -> Command {
    command.env("BASE_URL", server.base_url).env("API_KEY", server.api_key).env("MODEL", server.model);
    command.envs(server.embedding_model.map(|model| ("EMBEDDING_MODEL", model)));
    command.envs(server.settings.iter().copied());
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn an_installation_is_made_once_per_lock_and_again_after_half_of_one() {
        let dir = std::env::temp_dir().join(format!("holdfast-sdk-test-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let (lock, home, count) = (dir.join("lock"), dir.join("home"), Cell::new(0));
        let install = |result: Result<(), StepError>| {
            installed(&lock, &home, || {
                count.set(count.get() + 1);
                result
            })
        };
        fs::write(&lock, "one").unwrap();
        assert!(install(Err(StepError::Wrong("no network".to_owned()))).is_err());
        assert!(install(Ok(())).is_ok() && install(Ok(())).is_ok());
        assert_eq!(count.get(), 2);
        fs::write(&lock, "two").unwrap();
        assert!(install(Ok(())).is_ok());
        assert_eq!(count.get(), 3);
        fs::remove_dir_all(&dir).unwrap();
    }
}
