//! What `test` and `bench` consist of.

use crate::child::{Output, Runner, StepError};
use crate::summary::{Stage, Step};
use crate::{clients, money, sdk, tools, tour};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

const USUAL_LIMIT: Duration = Duration::from_secs(2 * 60 * 60);
const LONG_LIMIT: Duration = Duration::from_secs(24 * 60 * 60);

/// The step that builds the programs which those after it run.
const BUILD: &str = "release build";
/// The program of all that is faked.
pub(crate) const SIMULATOR: &str = "holdfast-simulator";

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
pub fn test(length: Length) -> Vec<Stage> {
    // Who waits a night wants to see how far it is.
    let company = if length == Length::Usual { Company::Rows } else { Company::None };
    let All { mut before, rows, after, build } = all(length, company);
    build.begin_with("tests", &mut before);
    let rows = match company {
        Company::Rows => vec![Stage::Rows(rows)],
        Company::None => rows.into_iter().flatten().map(Stage::Step).collect(),
    };
    before.into_iter().map(Stage::Step).chain(rows).chain(after.into_iter().map(Stage::Step)).collect()
}

/// Whether steps that mostly wait run beside one another.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Company {
    /// They do, and what they say is shown when they have ended.
    Rows,
    None,
}

/// All steps, and the build that may run beside one of them.
struct All {
    /// One after the other.
    before: Vec<Step>,
    /// Rows of about the same length: they kill, restart and wait, and leave a processor idle for half of their time.
    rows: Vec<Vec<Step>>,
    after: Vec<Step>,
    build: Beside,
}

fn all(length: Length, company: Company) -> All {
    let (runner, simulated, cycles) = match length {
        Length::Usual => (runner(USUAL_LIMIT), "--seconds 120 --seeds 200000", "500"),
        Length::Long => (runner(LONG_LIMIT), "--seconds 1200", "20000"),
    };
    let (charges, kills, queue_kills) = match length {
        Length::Usual => ("20000", "10", "200"),
        Length::Long => ("100000", "40", "5000"),
    };
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();

    let mut before = vec![step("tools", &runner, tools::ensure)];
    before.push(cargo_step("fmt", words("fmt --all --check"), Lints::Not, &runner));
    let mut linted = |name: &str, line: &str| before.push(cargo_step(name, words(line), Lints::Denied, &runner));
    if has_nextest() {
        linted("lints", "nextest run --workspace --all-targets --no-run");
        linted("tests", "nextest run --workspace --all-targets --no-fail-fast");
        linted("doc tests", "test --doc --workspace");
    } else {
        linted("lints", "test --workspace --no-run");
        linted("tests", "test --workspace");
    }
    // One build for all that follows: another choice of packages would build their dependencies again.
    let build = Beside::new(words("build --release --package holdfast --package holdfast-simulator"), &runner);
    before.push(step(BUILD, &runner, build.joined()));
    let simulator = |name: &str, line: &str, runner: &Runner| {
        let (program, words) = (release_dir().join(SIMULATOR), words(line));
        step(name, runner, move |runner| {
            let mut command = Command::new(&program);
            command.args(words.iter().map(|word| if word == "HOLDFAST" { holdfast() } else { word.into() }));
            runner.run(command)
        })
    };
    // By itself, because it has both processors to do.
    before.push(simulator("simulate", &format!("simulate {simulated}"), &runner));

    let in_row = |name: &str| match company {
        Company::Rows => Runner { output: Output::Kept(name.to_owned()), ..runner.clone() },
        Company::None => runner.clone(),
    };
    let of_row = |name: &str, line: &str| simulator(name, line, &in_row(name));
    let torture = vec![
        of_row("torture", &format!("torture --holdfast HOLDFAST --cycles {cycles}")),
        of_row("queue kills, postgres", "queue-kills --holdfast HOLDFAST --kills 60 --postgres"),
        step("money", &in_row("money"), |runner| money::run(&release_dir(), runner)),
    ];
    let kills_of_servers = vec![
        of_row("gateway kills", "gateway-kills --holdfast HOLDFAST --rounds 20"),
        of_row("queue kills", &format!("queue-kills --holdfast HOLDFAST --kills {queue_kills}")),
        of_row("queue kills, one process", "queue-kills --holdfast HOLDFAST --kills 60 --one-process"),
        of_row("queue kills, planted", "queue-kills --holdfast HOLDFAST --kills 6 --forget"),
    ];
    let delivery = format!("delivery --holdfast HOLDFAST --charges {charges} --kills {kills}");
    let outside = vec![
        of_row("delivery", &delivery),
        of_row("delivery, redis", &format!("{delivery} --store redis")),
        // A judge that never finds anything proves nothing.
        of_row("delivery, planted", "delivery --holdfast HOLDFAST --charges 500 --kills 1 --plant applies-again"),
        step("clients", &in_row("clients"), |runner| {
            clients::run(&sdk::ensure(&root(), runner)?, &release_dir(), runner)
        }),
    ];
    let tour = |runner: &Runner| tour::run(&root().join("README.md"), &release_dir(), runner);
    let after = vec![step("README tour", &runner, tour)];
    All { before, rows: vec![torture, kills_of_servers, outside], after, build }
}

/// One step alone, after the build of the programs if it runs any; nothing if there is none of this name.
#[must_use]
pub fn only(name: &str) -> Vec<Stage> {
    let All { before, rows, after, .. } = all(Length::Usual, Company::None);
    let mut steps: Vec<Step> = before.into_iter().chain(rows.into_iter().flatten()).chain(after).collect();
    let place = |wanted: &str| steps.iter().position(|step| step.name == wanted);
    let (wanted, build) = (place(name), place(BUILD));
    let is_built_first = wanted > build;
    steps.retain(|step| step.name == name || (is_built_first && step.name == BUILD));
    steps.into_iter().map(Stage::Step).collect()
}

/// One benchmark; `words` are its name and options.
#[must_use]
pub fn bench(words: &[&str]) -> Step {
    let runner = runner(USUAL_LIMIT);
    let program = "run --quiet --release --package holdfast-bench --bin bench --";
    let arguments = program.split(' ').chain(words.iter().copied()).map(str::to_owned).collect::<Vec<_>>();
    let is_of = |name: &str| words.first() == Some(&name);
    let needs_upstream = is_of("gateway");
    let needs_server = needs_upstream || is_of("growth") || is_of("delivery") || is_of("escrow");
    step("bench", &runner, move |runner| {
        // The benchmark finds these beside itself.
        if needs_server {
            cargo_run(&["build", "--quiet", "--release", "--package", "holdfast", "--bin", "holdfast"], runner)?;
        }
        if needs_upstream {
            cargo_run(
                &["build", "--quiet", "--release", "--package", "holdfast-simulator", "--bin", SIMULATOR],
                runner,
            )?;
        }
        cargo_run(&arguments.iter().map(String::as_str).collect::<Vec<_>>(), runner)
    })
}

fn runner(limit: Duration) -> Runner {
    // Not `current_exe`: a step may build this program anew and so remove the file that runs.
    Runner { xtask: PathBuf::from("/proc/self/exe"), limit, output: Output::Shown }
}

fn step(name: &str, runner: &Runner, action: impl FnOnce(&Runner) -> Result<(), StepError> + Send + 'static) -> Step {
    let runner = runner.clone();
    Step { name: name.to_owned(), action: Box::new(move || action(&runner)) }
}

/// Whether a build is to look at our own code as `cargo clippy -- -D warnings` does.
#[derive(Clone, Copy)]
enum Lints {
    /// It is, in the same go: what is looked at need not be built twice.
    Denied,
    Not,
}

fn cargo_step(name: &str, arguments: Vec<String>, lints: Lints, runner: &Runner) -> Step {
    step(name, runner, move |runner| {
        let mut command = Command::new(cargo());
        command.args(&arguments).current_dir(root());
        match lints {
            Lints::Denied => {
                // This is what `cargo clippy` sets, which would only check.
                command.env("RUSTC_WORKSPACE_WRAPPER", PathBuf::from(cargo()).with_file_name("clippy-driver"));
                command.env("CLIPPY_ARGS", "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__");
            }
            Lints::Not => {}
        }
        runner.run(command)
    })
}

type Building = JoinHandle<Result<(), StepError>>;

/// A build that runs beside an earlier step: tests wait for disks, clocks and other processes for much of their time.
struct Beside {
    arguments: Vec<String>,
    runner: Runner,
    begun: Arc<Mutex<Option<Building>>>,
}

impl Beside {
    fn new(arguments: Vec<String>, runner: &Runner) -> Self {
        Self { arguments, runner: runner.clone(), begun: Arc::default() }
    }

    /// Waits for it, or does it now if nothing began it.
    fn joined(&self) -> impl FnOnce(&Runner) -> Result<(), StepError> + use<> {
        let (begun, arguments) = (Arc::clone(&self.begun), self.arguments.clone());
        move |runner| match begun.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(building) => {
                building.join().unwrap_or_else(|_| Err(StepError::Wrong("the build's thread panicked".to_owned())))
            }
            None => cargo_run(&arguments.iter().map(String::as_str).collect::<Vec<_>>(), runner),
        }
    }

    /// Begins it together with the step of this name. It takes only what that leaves of the processor.
    fn begin_with(self, name: &str, steps: &mut [Step]) {
        let Some(step) = steps.iter_mut().find(|step| step.name == name) else { return };
        let action = std::mem::replace(&mut step.action, Box::new(|| Ok(())));
        step.action = Box::new(move || {
            let Self { arguments, runner, begun } = self;
            *begun.lock().unwrap_or_else(PoisonError::into_inner) = Some(std::thread::spawn(move || {
                let mut command = Command::new("nice");
                command.args(["-n", "19"]).arg(cargo()).arg("--quiet").args(&arguments).current_dir(root());
                runner.run(command)
            }));
            action()
        });
    }
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

fn holdfast() -> OsString {
    release_dir().join("holdfast").into()
}

/// Where release binaries are.
fn release_dir() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    root().join(target).join("release")
}
