//! What gateways get wrong with money, done to ours as a new user would run it: `holdfast serve` in front of an upstream.

use crate::child::{Runner, StepError};
use crate::tour::EmptyDir;
use std::fs;
use std::path::Path;
use std::process::Command;

const MODEL: &str = "mock";
/// Dollars per million tokens, of the prompt and of the answer.
const PRICES: [&str; 2] = ["1", "2"];
const HANGUPS: &str = "10000";

/// Starts the pair from the built programs, and does both runs to it. Nothing of it is left, however they end.
///
/// # Errors
/// If a server does not start, or a run finds something wrong.
pub fn run(programs: &Path, runner: &Runner) -> Result<(), StepError> {
    let wrong = |error: std::io::Error| StepError::Wrong(format!("the directory for the servers: {error}"));
    let dir = EmptyDir::new("money").map_err(wrong)?;
    let programs = programs.canonicalize().map_err(wrong)?;
    let holdfast = programs.join("holdfast");
    let (data, config) = (dir.0.join("data"), dir.0.join("holdfast.toml"));

    let upstream = runner.serve(Command::new(programs.join("upstream")))?;
    fs::write(dir.0.join("prices.toml"), prices()).map_err(wrong)?;
    fs::write(&config, configuration(&upstream.url)).map_err(wrong)?;
    let mut serve = Command::new(&holdfast);
    serve.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(&data).arg("--config").arg(&config);
    // The upstream takes any key, but a provider must have one.
    serve.env("UPSTREAM_KEY", "test");
    let gateway = runner.serve(serve)?;

    let [input, output] = PRICES;
    let from_outside = |program: &str| {
        let mut command = Command::new(programs.join(program));
        command.args(["--base-url", &gateway.url, "--upstream-url", &upstream.url]);
        command.arg("--holdfast").arg(&holdfast).arg("--data").arg(&data);
        command.args(["--model", MODEL, "--input-price", input, "--output-price", output]);
        command
    };
    runner.run(from_outside("money_behaviour"))?;
    let mut hangups = from_outside("hangups");
    hangups.args(["--requests", HANGUPS]);
    runner.run(hangups)
}

fn prices() -> String {
    let [input, output] = PRICES;
    format!("[models.\"{MODEL}\"]\ninput = \"{input}\"\noutput = \"{output}\"\n")
}

fn configuration(upstream_url: &str) -> String {
    format!(
        r#"prices = "prices.toml"

[providers.upstream]
kind = "openai"
base_url = "{upstream_url}/v1"
key_env = "UPSTREAM_KEY"

[[models]]
name = "{MODEL}"
targets = [{{ provider = "upstream", model = "{MODEL}" }}]
"#
    )
}
