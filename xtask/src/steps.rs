//! What `test` and `bench` consist of.

use crate::child::{Runner, StepError};
use crate::summary::Step;
use crate::{clients, money, sdk, tools, tour};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const USUAL_LIMIT: Duration = Duration::from_secs(2 * 60 * 60);
const LONG_LIMIT: Duration = Duration::from_secs(24 * 60 * 60);

/// How much time a test run may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// For every commit.
    Usual,
    /// For a night.
    Long,
}

/// Everything that must hold, cheapest first.
#[must_use]
pub fn test(length: Length) -> Vec<Step> {
    let (runner, seconds, cycles) = match length {
        Length::Usual => (runner(USUAL_LIMIT), "120", "500"),
        Length::Long => (runner(LONG_LIMIT), "1200", "20000"),
    };
    let (charges, kills) = match length {
        Length::Usual => ("20000", "10"),
        Length::Long => ("100000", "40"),
    };
    let holdfast = release_dir().join("holdfast").to_string_lossy().into_owned();
    let simulator = |bin: &str, arguments: &[&str]| {
        let words = ["run", "--release", "--package", "holdfast-simulator", "--bin", bin, "--"];
        words.iter().chain(arguments).map(|word| (*word).to_owned()).collect::<Vec<_>>()
    };
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();

    let mut steps = vec![step("tools", &runner, tools::ensure)];
    let mut cargo = |name: &str, arguments: Vec<String>| steps.push(cargo_step(name, arguments, &runner));
    cargo("fmt", words("fmt --all --check"));
    cargo("clippy", words("clippy --workspace --all-targets -- -D warnings"));
    if has_nextest() {
        cargo("tests", words("nextest run --workspace"));
        cargo("doc tests", words("test --doc --workspace"));
    } else {
        cargo("tests", words("test --workspace"));
    }
    cargo("release build", words("build --release"));
    cargo("simulate", simulator("simulate", &["--seconds", seconds]));
    cargo("torture", simulator("torture", &["--holdfast", &holdfast, "--cycles", cycles]));
    cargo("gateway kills", simulator("gateway_kills", &["--holdfast", &holdfast, "--rounds", "20"]));
    cargo("delivery", simulator("delivery", &["--holdfast", &holdfast, "--charges", charges, "--kills", kills]));
    // A judge that never finds anything proves nothing.
    let planted = ["--holdfast", &holdfast, "--charges", "500", "--kills", "1", "--plant", "applies-again"];
    cargo("delivery, planted", simulator("delivery", &planted));
    steps.push(step("clients", &runner, |runner| {
        cargo_run(&["build", "--release", "--package", "holdfast-simulator", "--bin", "upstream"], runner)?;
        clients::run(&sdk::ensure(&root(), runner)?, &release_dir(), runner)
    }));
    steps.push(step("money", &runner, |runner| {
        let programs = ["upstream", "money_behaviour", "hangups"].iter().flat_map(|program| ["--bin", program]);
        let build = ["build", "--release", "--package", "holdfast-simulator"].into_iter().chain(programs);
        cargo_run(&build.collect::<Vec<_>>(), runner)?;
        money::run(&release_dir(), runner)
    }));
    steps.push(step("README tour", &runner, |runner| tour::run(&root().join("README.md"), &release_dir(), runner)));
    steps
}

/// One benchmark; `words` are its name and options.
#[must_use]
pub fn bench(words: &[&str]) -> Step {
    let runner = runner(USUAL_LIMIT);
    let program = "run --quiet --release --package holdfast-bench --bin bench --";
    let arguments = program.split(' ').chain(words.iter().copied()).map(str::to_owned).collect::<Vec<_>>();
    let is_of = |name: &str| words.first() == Some(&name);
    let (needs_server, needs_upstream) = (is_of("gateway") || is_of("growth") || is_of("delivery"), is_of("gateway"));
    step("bench", &runner, move |runner| {
        // The benchmark finds these beside itself.
        if needs_server {
            cargo_run(&["build", "--quiet", "--release", "--package", "holdfast", "--bin", "holdfast"], runner)?;
        }
        if needs_upstream {
            cargo_run(
                &["build", "--quiet", "--release", "--package", "holdfast-simulator", "--bin", "upstream"],
                runner,
            )?;
        }
        cargo_run(&arguments.iter().map(String::as_str).collect::<Vec<_>>(), runner)
    })
}

fn runner(limit: Duration) -> Runner {
    // Not `current_exe`: a step may build this program anew and so remove the file that runs.
    Runner { xtask: PathBuf::from("/proc/self/exe"), limit }
}

fn step(name: &str, runner: &Runner, action: impl FnOnce(&Runner) -> Result<(), StepError> + 'static) -> Step {
    let runner = runner.clone();
    Step { name: name.to_owned(), action: Box::new(move || action(&runner)) }
}

fn cargo_step(name: &str, arguments: Vec<String>, runner: &Runner) -> Step {
    step(name, runner, move |runner| cargo_run(&arguments.iter().map(String::as_str).collect::<Vec<_>>(), runner))
}

fn cargo_run(arguments: &[&str], runner: &Runner) -> Result<(), StepError> {
    let mut command = Command::new(cargo());
    command.args(arguments).current_dir(root());
    runner.run(command)
}

/// The cargo that runs us, so that a chosen toolchain stays chosen.
fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

fn has_nextest() -> bool {
    let asked =
        Command::new(cargo()).args(["nextest", "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    asked.is_ok_and(|status| status.success())
}

/// The workspace.
fn root() -> PathBuf {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    PathBuf::from(manifest).parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// Where release binaries are.
fn release_dir() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    root().join(target).join("release")
}
