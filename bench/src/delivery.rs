//! `bench delivery`: stores of obligations, beside a plain stream on the same Redis.
//!
//! For each store, with nothing pending and with a million: how long a put of one takes, how long a claim of a hundred, and how
//! many obligations go through put, claim and complete per second, with four workers and batches. The stream does the same
//! with `XADD`, `XREADGROUP` and `XACK`; it has no schedule, no lease that runs out, no dead letters and no upsert. Redis syncs
//! its log before it answers, for both, and has rewritten it once it is filled; the two take turns of a second, so that a slow
//! minute of the machine is one for both. Afterwards as many must be pending as before. To add a store, add to `GROUPS`.
//!
//! Last comes the real server with each store: what telling a peer adds to a commit, and how many charges a second reach it.

mod journal;
mod measure;
mod served;
mod store;
mod streams;

use crate::error::BenchError;
use crate::ledger::Choice;
use crate::ledger::drive::runtime;
use crate::plan::{Pace, Plan};
use crate::report::{Missing, Report, Row, readable};
use measure::Figures;
use served::Mode;
use std::path::PathBuf;

/// The name of the benchmark and of its file.
pub const NAME: &str = "delivery";
/// The case of the real server.
const SERVED: &str = "served";
/// The subject whose ratios to the others are reported.
pub const OURS: &str = "redis";

/// Measures subjects with so many pending, each in an empty directory of its own.
type Measure = fn(u32, &[PathBuf], &Plan) -> Result<Vec<Figures>, BenchError>;

/// Subjects that are measured together.
struct Group {
    /// Their names, and what they are.
    subjects: &'static [(&'static str, &'static str)],
    /// Measures them with so many pending, each in an empty directory.
    measure: Measure,
}

/// Who takes part, in the order they take turns.
const GROUPS: [Group; 4] = [
    Group { subjects: &[("memory", "in this process; a restart loses it")], measure: store::memory },
    Group {
        subjects: &[("journal", "in this process; a put is a reserve and a commit, durable")],
        measure: journal::in_engine,
    },
    Group {
        subjects: &[
            ("streams", "plain XADD, XREADGROUP and XACK; appendfsync always"),
            (OURS, "one Lua script per operation; appendfsync always"),
        ],
        measure: store::redis_beside_a_stream,
    },
    Group {
        subjects: &[(
            "postgres",
            "the payment outbox, one function per operation; every attempt is on record for ever",
        )],
        measure: store::postgres,
    },
];

const fn pending(pace: Pace) -> [u32; 2] {
    match pace {
        Pace::Full => [0, 1_000_000],
        Pace::Quick => [0, 100_000],
    }
}

/// Runs every chosen subject in every chosen case and reports as it goes; returns how many failed.
///
/// # Errors
/// Only if interrupted: a subject that fails is reported as missing with its error, and the others go on.
pub fn run(pace: Pace, plan: &Plan, choice: &Choice, report: &mut Report) -> Result<usize, BenchError> {
    let is_chosen = |name: &str| choice.subject.as_ref().is_none_or(|only| only == name);
    let groups = || GROUPS.iter().filter(|group| group.subjects.iter().any(|(name, _)| is_chosen(name)));
    for (name, about) in groups().flat_map(|group| group.subjects) {
        report.introduce(name, (*about).to_owned());
    }
    let mut failed = 0;
    for pending in pending(pace) {
        let case = format!("{} pending", if pending == 0 { "0".to_owned() } else { readable(f64::from(pending)) });
        for group in groups().filter(|_| is_case(choice, &case)) {
            plan.stop.check()?;
            match measured(group, pending, plan) {
                Ok(all) => group.subjects.iter().zip(all).for_each(|((name, _), one)| add(report, name, &case, one)),
                Err(BenchError::Interrupted) => return Err(BenchError::Interrupted),
                Err(error) => {
                    failed += group.subjects.len();
                    group.subjects.iter().for_each(|(name, _)| miss(report, name, &case, &error));
                }
            }
        }
    }
    Ok(failed + run_served(pace, plan, choice, report)?)
}

fn is_case(choice: &Choice, case: &str) -> bool {
    choice.case.as_ref().is_none_or(|only| only == case)
}

fn measured(group: &Group, pending: u32, plan: &Plan) -> Result<Vec<Figures>, BenchError> {
    let dirs: Result<Vec<PathBuf>, _> = group.subjects.iter().map(|(name, _)| plan.sandbox.fresh(name)).collect();
    let figures = dirs.and_then(|dirs| (group.measure)(pending, &dirs, plan));
    group.subjects.iter().for_each(|(name, _)| plan.sandbox.discard(name));
    figures
}

fn run_served(pace: Pace, plan: &Plan, choice: &Choice, report: &mut Report) -> Result<usize, BenchError> {
    let charges = match pace {
        Pace::Full => 100_000,
        Pace::Quick => 20_000,
    };
    let mut failed = 0;
    let is_chosen = |mode: &Mode| choice.subject.as_ref().is_none_or(|only| only == mode.name());
    for mode in Mode::ALL.into_iter().filter(is_chosen).filter(|_| is_case(choice, SERVED)) {
        plan.stop.check()?;
        let dir = plan.sandbox.fresh(mode.name())?;
        let measured = served::measure(mode, charges, &dir, plan);
        plan.sandbox.discard(mode.name());
        match measured {
            Ok(figures) => add_served(report, mode.name(), &figures),
            Err(BenchError::Interrupted) => return Err(BenchError::Interrupted),
            Err(error) => {
                failed += 1;
                miss(report, mode.name(), SERVED, &error);
            }
        }
    }
    Ok(failed)
}

fn add_served(report: &mut Report, subject: &str, figures: &served::Figures) {
    let mut add = |metric, value, unit| {
        report.add(Row { subject: subject.to_owned(), case: SERVED.to_owned(), metric, value, unit });
    };
    let (p50, p99) = figures.commit;
    eprintln!("{SERVED:<18} {subject:<9} a commit takes {} ms", readable(p50.as_secs_f64() * 1e3));
    add("commit p50", p50.as_secs_f64() * 1e3, "ms");
    add("commit p99", p99.as_secs_f64() * 1e3, "ms");
    if let Some(delivered) = figures.delivered_per_second {
        add("delivered", delivered, "1/s");
    }
}

fn miss(report: &mut Report, subject: &str, case: &str, error: &BenchError) {
    let why = format!("failed: {error}");
    eprintln!("{case:<18} {subject:<9} {why}");
    report.miss(Missing { subject: subject.to_owned(), case: case.to_owned(), why });
}

fn add(report: &mut Report, subject: &str, case: &str, figures: Figures) {
    eprintln!("{case:<18} {subject:<9} {} obligations/s", readable(figures.per_second));
    let mut add = |metric, value, unit| {
        report.add(Row { subject: subject.to_owned(), case: case.to_owned(), metric, value, unit });
    };
    add("throughput", figures.per_second, "1/s");
    for (metrics, (p50, p99)) in [
        (["put p50", "put p99"], figures.put),
        (["claim p50", "claim p99"], figures.claim),
        (["complete p50", "complete p99"], figures.complete),
    ] {
        add(metrics[0], p50.as_secs_f64() * 1e3, "ms");
        add(metrics[1], p99.as_secs_f64() * 1e3, "ms");
    }
}

/// Runs what one subject does.
fn block_on<T>(work: impl Future<Output = Result<T, BenchError>>) -> Result<T, BenchError> {
    runtime()?.block_on(work)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Stop;
    use crate::sandbox::Sandbox;
    use std::path::Path;
    use std::time::Duration;

    #[test]
    fn every_subject_runs_and_keeps_what_was_pending() {
        let parent = format!("{}/../target/bench-tests/delivery", env!("CARGO_MANIFEST_DIR"));
        let blink = Duration::from_millis(50);
        let sandbox = Sandbox::new(Path::new(&parent)).unwrap();
        let plan = Plan { warm_up: blink, duration: blink, sandbox, stop: Stop::default() };
        for group in &GROUPS {
            let all = measured(group, 2_000, &plan).unwrap();
            assert_eq!(all.len(), group.subjects.len());
            for ((name, _), figures) in group.subjects.iter().zip(all) {
                assert!(figures.per_second > 0.0, "{name} did nothing");
                assert!(figures.put.0 > Duration::ZERO && figures.claim.0 > Duration::ZERO, "{name} was not timed");
            }
        }
    }
}
