//! The torture: the real program, killed, starved of its system calls and cut off from power, and checked after each.
//!
//! Everything that is sent is recorded with what came back. After each blow the program is started again, and the record is
//! held against it: what was acknowledged is there, at its offset, and answers as before; what was not is done at most once;
//! nothing was invented; and the books balance. The checker shares no code with the program.

mod amount;
mod audit;
mod books;
mod check;
mod client;
mod entry;
mod history;
pub(crate) mod janitor;
mod kills;
mod mix;
mod order;
mod power;
mod recheck;
mod server;
mod site;
mod strace;
mod syscalls;
mod tally;

use holdfast_simulator::rng::Rng;
use janitor::Janitor;
use site::Context;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};
use tally::{Summary, Tally};

/// After so many violations the run ends: more of them say no more.
const VIOLATIONS_MAX: u64 = 10;

/// What is to be done.
pub(crate) struct Options {
    pub(crate) holdfast: PathBuf,
    pub(crate) cycles: u64,
    pub(crate) syscalls: u64,
    pub(crate) power_cuts: u64,
    pub(crate) seed: u64,
    pub(crate) seconds: Option<u64>,
    pub(crate) directory: PathBuf,
}

/// How far a run goes.
pub(crate) struct Limits {
    pub(crate) seed: u64,
    started: Instant,
    until: Option<Instant>,
}

/// Why a run cannot go on, though nothing was found wrong with the program.
#[derive(Debug)]
pub(crate) struct Stop(String);

impl Stop {
    /// For `map_err`.
    fn because<E: std::fmt::Display>(what: &str) -> impl Fn(E) -> Self {
        move |error| Self(format!("{what}: {error}"))
    }
}

impl Limits {
    fn is_over(&self, tally: &Tally) -> bool {
        tally.violations >= VIOLATIONS_MAX || self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// Says how far the run is, where somebody watches.
    fn progress(&self, what: &str, done: u64, of: u64, tally: &Tally) {
        let mut output = io::stderr();
        if output.is_terminal() {
            let (seconds, entries) = (self.started.elapsed().as_secs(), tally.acknowledged);
            let line =
                format!("{what} {done} of {of}, {entries} entries, {} violations, {seconds} s", tally.violations);
            let _unwatched = write!(output, "\r\x1b[K{line}").and_then(|()| output.flush());
        }
    }
}

/// Does everything, and prints what came of it.
pub(crate) fn run(options: &Options) -> ExitCode {
    let started = Instant::now();
    let until = options.seconds.map(|seconds| started + Duration::from_secs(seconds));
    let limits = Limits { seed: options.seed, started, until };
    let mut tally = Tally::default();
    let ended = try_run(options, &limits, &mut tally);
    if io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
    println!("seed {}", options.seed);
    print!("{}", Summary { tally: &tally, took: started.elapsed() });
    if let Err(Stop(reason)) = &ended {
        eprintln!("torture: not everything could be done: {reason}");
    }
    println!("torture: {} cycles, {} violations", tally.cycles, tally.violations);
    if ended.is_ok() && tally.violations == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn try_run(options: &Options, limits: &Limits, tally: &mut Tally) -> Result<(), Stop> {
    let holdfast = options.holdfast.canonicalize();
    let holdfast = holdfast.map_err(Stop::because(&options.holdfast.display().to_string()))?;
    let janitor = Janitor::start(&options.directory).map_err(Stop::because("the run's directory cannot be made"))?;
    let context = Context { holdfast, janitor };
    let mut rng = Rng::new(options.seed);
    let (mut blows, mut lanes) = (rng.fork(), [rng.fork(), rng.fork()]);
    // Most of a cycle is waiting for starts and syncs, so several go on beside each other, each with a count of its own.
    let each = options.cycles.div_ceil(lanes.len() as u64);
    let done: Vec<(Result<(), Stop>, Tally)> = thread::scope(|scope| {
        let context = &context;
        let kills = lanes.iter_mut().zip(0..).map(|(rng, lane)| {
            let cycles = each.min(options.cycles.saturating_sub(each * lane));
            scope.spawn(move || {
                counted(|tally| kills::run(context, limits, &format!("kill-{lane}"), cycles, rng, tally))
            })
        });
        let mut threads: Vec<_> = kills.collect();
        threads.push(scope.spawn(|| {
            counted(|tally| {
                // What cannot be done does not keep the rest.
                let struck = syscalls::run(context, limits, options.syscalls, &mut blows, tally);
                struck.and(power::run(context, limits, options.power_cuts, &mut blows, tally))
            })
        }));
        threads.into_iter().map(|lane| lane.join().expect("a lane does not panic")).collect()
    });
    let mut ended = Ok(());
    for (outcome, counts) in done {
        tally.add(counts);
        ended = ended.and(outcome);
    }
    ended
}

fn counted(run: impl FnOnce(&mut Tally) -> Result<(), Stop>) -> (Result<(), Stop>, Tally) {
    let mut tally = Tally::default();
    (run(&mut tally), tally)
}
