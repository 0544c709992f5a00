//! `bench NAME [--quick] [--only SUBJECT] [--case CASE] [--engine ENGINE]`: runs one benchmark, prints it and writes `target/bench/NAME.json`.
//!
//! Exits with 1 if a subject failed or the run was interrupted, with 2 if the command line makes no sense.

use holdfast_bench::BenchError;
use holdfast_bench::delivery;
use holdfast_bench::escrow;
use holdfast_bench::gateway;
use holdfast_bench::growth;
use holdfast_bench::head::Head;
use holdfast_bench::ledger::{self, Choice, Which};
use holdfast_bench::outbox;
use holdfast_bench::plan::{Pace, Plan, Stop};
use holdfast_bench::report::Report;
use holdfast_bench::sandbox::Sandbox;
use std::path::Path;
use std::process::ExitCode;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

// As in the program itself: answers are freed on another thread than the one that made them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const OUTPUT_DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/bench");
const USAGE: &str = "usage: bench NAME [--quick] [--only SUBJECT] [--case CASE] [--engine embedded|postgres]\nbenchmarks: ledger, growth, gateway, delivery, outbox, escrow";

fn main() -> ExitCode {
    let Some((name, pace, choice)) = parse(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match run(name, pace, &choice) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(failed) => {
            eprintln!("{failed} measurements failed");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// How thorough, and what of it; `None` if the words make no sense.
fn parse(mut words: impl Iterator<Item = String>) -> Option<(&'static str, Pace, Choice)> {
    let named = words.next()?;
    let names = [ledger::NAME, growth::NAME, gateway::NAME, delivery::NAME, outbox::NAME, escrow::NAME];
    let name = names.into_iter().find(|name| *name == named)?;
    let mut pace = Pace::Full;
    let mut choice = Choice::default();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--quick" => pace = Pace::Quick,
            "--only" => choice.subject = Some(words.next()?),
            "--case" => choice.case = Some(words.next()?.replace('x', " × ")),
            "--engine" => {
                choice.engine = match words.next()?.as_str() {
                    "embedded" => Which::Embedded,
                    "postgres" => Which::Postgres,
                    _ => return None,
                }
            }
            _ => return None,
        }
    }
    Some((name, pace, choice))
}

fn run(name: &'static str, pace: Pace, choice: &Choice) -> Result<usize, BenchError> {
    let output = Path::new(OUTPUT_DIR);
    let stop = Stop::default();
    listen(stop.clone())?;
    let mut plan = Plan::new(pace, Sandbox::new(output)?, stop);
    let head = Head::now(plan.sandbox.path(), plan.duration.as_secs_f64(), pace.memory_bytes());
    let (name_of_file, ours) = match (name, choice.engine) {
        (ledger::NAME, Which::Postgres) => ("ledger-postgres", ledger::OURS_SHARED),
        (delivery::NAME, _) => (name, delivery::OURS),
        (escrow::NAME, _) => (name, escrow::OURS),
        (_, _) => (name, ledger::OURS),
    };
    let mut report = Report::new(name_of_file, ours, head);
    let failed = match name {
        growth::NAME => growth::run(pace, &mut plan, choice, &mut report).map(|()| 0)?,
        delivery::NAME => delivery::run(pace, &plan, choice, &mut report)?,
        outbox::NAME => outbox::run(pace, &plan, choice, &mut report)?,
        gateway::NAME => gateway::run(&plan, choice, &mut report)?,
        escrow::NAME => escrow::run(&plan, choice, &mut report)?,
        _ => ledger::run(&plan, choice, &mut report)?,
    };
    report.finish();
    report.write_json(output)?;
    report.print(&mut std::io::stdout()).map_err(BenchError::io("print"))?;
    Ok(failed)
}

/// Raises `stop` at the first signal, so that servers are stopped and files removed on the way out.
fn listen(stop: Stop) -> Result<(), BenchError> {
    let failed = || BenchError::io("listen for signals");
    let runtime = Builder::new_current_thread().enable_all().build().map_err(failed())?;
    let (mut interrupt, mut terminate) = {
        let _entered = runtime.enter();
        (signal(SignalKind::interrupt()).map_err(failed())?, signal(SignalKind::terminate()).map_err(failed())?)
    };
    // May safely die: it holds nothing, and ends with the process.
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        });
        stop.raise();
    });
    Ok(())
}
