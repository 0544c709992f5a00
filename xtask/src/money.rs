//! What gateways get wrong with money, done to ours from outside.

use crate::child::{Runner, StepError};
use crate::pair::{MODEL, PRICES, Pair};
use crate::steps::SIMULATOR;
use std::path::Path;
use std::process::Command;

const HANGUPS: &str = "10000";

/// Does both runs to a pair of servers.
///
/// # Errors
/// If a server does not start, or a run finds something wrong.
pub fn run(programs: &Path, runner: &Runner) -> Result<(), StepError> {
    let pair = Pair::start("money", programs, runner)?;
    let [input, output] = PRICES;
    let from_outside = |program: &str| {
        let mut command = Command::new(pair.programs.join(SIMULATOR));
        command.arg(program);
        command.args(["--base-url", &pair.gateway.url, "--upstream-url", &pair.upstream.url]);
        command.arg("--holdfast").arg(pair.programs.join("holdfast")).arg("--data").arg(&pair.data);
        command.args(["--model", MODEL, "--input-price", input, "--output-price", output]);
        command
    };
    runner.run(from_outside("money-behaviour"))?;
    let mut hangups = from_outside("hangups");
    hangups.args(["--requests", HANGUPS]);
    runner.run(hangups)
}
