//! `simulate`: plays seeds on all cores until the time is up or a check fails.
//!
//! `simulate --seed N` plays one and tells its story; `simulate --seconds S [--seeds N] [--threads T] [--from SEED]` plays as
//! many as it can, or as are asked for.

use clap::Args;
use holdfast_simulator::{Count, Tally, Violation, run, run_telling};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Plays the ledger on a disk that fails in every way, one life per seed.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Play this seed alone, and tell its story.
    #[arg(long)]
    seed: Option<u64>,
    /// Play seeds for this long.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Play so many at the most.
    #[arg(long)]
    seeds: Option<u64>,
    /// On so many threads; all cores, if not said.
    #[arg(long)]
    threads: Option<usize>,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
}

pub(crate) fn main(arguments: Arguments) -> ExitCode {
    match arguments.seed {
        Some(seed) => one(seed),
        None => many(&arguments),
    }
}

fn one(seed: u64) -> ExitCode {
    match run_telling(seed, None, |line| println!("{line}")) {
        Ok(report) => {
            print!("{}", report.tally);
            println!("seed {seed}: no violation, trace {:016x}", report.trace);
            ExitCode::SUCCESS
        }
        Err(violation) => {
            println!("{violation}");
            ExitCode::FAILURE
        }
    }
}

fn many(arguments: &Arguments) -> ExitCode {
    let begun = Instant::now();
    let until = begun + Duration::from_secs(arguments.seconds);
    let (next, end) =
        (AtomicU64::new(arguments.from), arguments.from.saturating_add(arguments.seeds.unwrap_or(u64::MAX)));
    let failed = AtomicBool::new(false);
    let total = Mutex::new((Tally::ZERO, None::<Violation>));
    let work = || {
        let mut tally = Tally::ZERO;
        let mut found = None;
        while !failed.load(Ordering::Relaxed) && Instant::now() < until {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end {
                break;
            }
            match run(seed, None) {
                Ok(report) => tally.merge(&report.tally),
                Err(violation) => {
                    failed.store(true, Ordering::Relaxed);
                    found = Some(violation);
                }
            }
        }
        if let Ok(mut total) = total.lock() {
            total.0.merge(&tally);
            // Of several, the smallest seed.
            let smaller = |violation: &Violation| total.1.as_ref().is_none_or(|other| violation.seed < other.seed);
            if found.as_ref().is_some_and(smaller) {
                total.1 = found;
            }
        }
    };
    let threads = arguments.threads.or_else(|| std::thread::available_parallelism().ok().map(Into::into)).unwrap_or(1);
    std::thread::scope(|scope| (0..threads.max(1)).for_each(|_| drop(scope.spawn(work))));
    let Ok((tally, violation)) = total.into_inner() else { return ExitCode::FAILURE };
    print!("{tally}");
    if let Some(violation) = violation {
        println!("{violation}");
        return ExitCode::FAILURE;
    }
    let seconds = begun.elapsed().as_millis().max(1) as u64;
    println!(
        "{} seeds in {}.{:03} s ({} seeds/s): {} entries, {} crashes, {} faults, no violation",
        tally.of(Count::Seeds),
        seconds / 1_000,
        seconds % 1_000,
        tally.of(Count::Seeds) * 1_000 / seconds,
        tally.of(Count::Applied),
        tally.crashes(),
        tally.faults(),
    );
    ExitCode::SUCCESS
}
