//! `holdfast serve` in front of an upstream, from the built programs, as a new user would run it.

use crate::child::{Runner, Serving, StepError};
use crate::steps::SIMULATOR;
use crate::tour::EmptyDir;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The model behind the upstream; `mock-embedding` embeds.
pub(crate) const MODEL: &str = "mock";
/// Dollars per million tokens, of the prompt and of the answer.
pub(crate) const PRICES: [&str; 2] = ["1", "2"];

/// Both servers. Nothing of them is left when this is dropped.
pub(crate) struct Pair {
    pub(crate) upstream: Serving,
    pub(crate) gateway: Serving,
    pub(crate) programs: PathBuf,
    pub(crate) data: PathBuf,
    _dir: EmptyDir,
}

impl Pair {
    /// Starts the pair.
    pub(crate) fn start(name: &str, programs: &Path, runner: &Runner) -> Result<Self, StepError> {
        let wrong = |error: std::io::Error| StepError::Wrong(format!("the directory for the servers: {error}"));
        let dir = EmptyDir::new(name).map_err(wrong)?;
        let programs = programs.canonicalize().map_err(wrong)?;
        let (data, config) = (dir.0.join("data"), dir.0.join("holdfast.toml"));
        let mut upstream = Command::new(programs.join(SIMULATOR));
        upstream.arg("upstream");
        let upstream = runner.serve(upstream)?;
        fs::write(dir.0.join("prices.toml"), prices()).map_err(wrong)?;
        fs::write(&config, configuration(&upstream.url)).map_err(wrong)?;
        let mut serve = Command::new(programs.join("holdfast"));
        serve.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(&data).arg("--config").arg(&config);
        // The upstream takes any key, but a provider must have one.
        serve.env("UPSTREAM_KEY", "test");
        let gateway = runner.serve(serve)?;
        Ok(Self { upstream, gateway, programs, data, _dir: dir })
    }

    /// What a command of the operator's prints first.
    pub(crate) fn operate(&self, words: &[&str]) -> Result<String, StepError> {
        let wrong = |why: String| StepError::Wrong(format!("holdfast {}: {why}", words.join(" ")));
        let mut command = Command::new(self.programs.join("holdfast"));
        let said =
            command.args(words).arg("--data").arg(&self.data).output().map_err(|error| wrong(error.to_string()))?;
        if !said.status.success() {
            return Err(wrong(String::from_utf8_lossy(&said.stderr).into_owned()));
        }
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        said.lines().next().map(str::to_owned).ok_or_else(|| wrong("it said nothing".to_owned()))
    }
}

fn prices() -> String {
    let [input, output] = PRICES;
    let one = |model: &str| format!("[models.\"{model}\"]\ninput = \"{input}\"\noutput = \"{output}\"\n");
    one(MODEL) + &one("mock-embedding")
}

fn configuration(upstream_url: &str) -> String {
    let model = |name: &str, provider: &str| {
        format!("[[models]]\nname = \"{name}\"\ntargets = [{{ provider = \"{provider}\", model = \"{name}\" }}]\n")
    };
    let providers = format!(
        r#"prices = "prices.toml"

[providers.echo]
kind = "echo"

[providers.upstream]
kind = "openai"
base_url = "{upstream_url}/v1"
key_env = "UPSTREAM_KEY"

"#
    );
    let named = [(MODEL, "upstream"), ("mock-embedding", "upstream"), ("echo", "echo"), ("echo-embedding", "echo")];
    providers + &named.map(|(name, provider)| model(name, provider)).concat()
}
