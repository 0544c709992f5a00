//! `bench ledger`: reserve + commit pairs per second, durable, for every subject on the same disk and the same work.
//!
//! The work: 10,000 payers who may not overdraw; reserve 1,000, commit a pseudo-random part, the rest goes back to the payer.
//! Every operation is acknowledged after a sync, and a pair is two acknowledged operations. Subjects take turns case by case,
//! so that a noisy minute of the disk hits them alike. To add a subject, write its module and add a line to `SUBJECTS`.

pub mod drive;
pub mod floor;
pub mod holdfast;
pub mod pgbench;
pub mod postgres;
pub mod redis;
pub mod shared;
pub mod work;

use crate::error::BenchError;
use crate::latency::Latencies;
use crate::plan::Plan;
use crate::report::{Missing, Report, Row, readable};
use std::fmt;
use std::path::Path;
use std::time::Duration;

/// The name of the benchmark and of its file.
pub const NAME: &str = "ledger";
/// The subject whose ratios to the others are reported.
pub const OURS: &str = "holdfast";

/// How the work arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    /// How many ask at the same time, each waiting for its answer.
    pub callers: usize,
    /// How many operations one request carries.
    pub batch: usize,
}

/// Every case, in the order they run.
pub const CASES: [Case; 7] = [
    Case { callers: 1, batch: 1 },
    Case { callers: 8, batch: 1 },
    Case { callers: 64, batch: 1 },
    Case { callers: 1_024, batch: 1 },
    Case { callers: 1, batch: 100 },
    Case { callers: 1, batch: 8_190 },
    Case { callers: 4, batch: 8_190 },
];

impl fmt::Display for Case {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} × {}", self.callers, self.batch)
    }
}

/// What one subject did in one case.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Pairs acknowledged, over the time from the first request to the last answer.
    pub pairs_per_second: f64,
    /// Per operation, from sending it to its acknowledgement. An operation in a batch takes as long as its batch.
    pub p50: Duration,
    /// The same.
    pub p99: Duration,
}

impl Measured {
    /// The figures of `pairs` done in `elapsed`.
    #[must_use]
    pub fn new(pairs: u64, elapsed: Duration, latencies: &Latencies) -> Self {
        let (p50, p99) = latencies.p50_and_p99();
        Self { pairs_per_second: pairs as f64 / elapsed.as_secs_f64(), p50, p99 }
    }
}

/// A figure, or why there is none.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// It ran, and its books balanced afterwards.
    Measured(Measured),
    /// It is not installed, or the case does not apply to it.
    Missing(String),
}

/// Runs one case in an empty directory that is removed afterwards; starts and stops whatever it needs.
pub type Measure = fn(Case, &Path, &Plan) -> Result<Outcome, BenchError>;

/// Something that can do the work.
#[derive(Debug, Clone, Copy)]
pub struct Subject {
    /// Its name in rows.
    pub name: &'static str,
    /// Its version and how it is reached, for the head.
    pub about: fn() -> String,
    /// Runs one case.
    pub measure: Measure,
}

/// Everyone who takes part, in the order they take turns.
pub const SUBJECTS: [Subject; 4] = [
    Subject { name: "floor", about: floor::about, measure: floor::measure },
    Subject { name: "postgres", about: postgres::about, measure: postgres::measure },
    Subject { name: "redis", about: redis::about, measure: redis::measure },
    Subject { name: OURS, about: holdfast::about, measure: holdfast::measure },
];

/// Every case of the engine on PostgreSQL.
pub const SHARED_CASES: [Case; 5] = [
    Case { callers: 1, batch: 1 },
    Case { callers: 8, batch: 1 },
    Case { callers: 64, batch: 1 },
    Case { callers: 256, batch: 1 },
    Case { callers: 1, batch: 1_000 },
];

/// Those who take part with it.
pub const SHARED_SUBJECTS: [Subject; 5] = [
    Subject { name: "pgbench", about: pgbench::about, measure: pgbench::measure },
    Subject { name: "postgres", about: postgres::about, measure: postgres::measure },
    Subject { name: "3 nodes", about: shared::about, measure: shared::three_nodes },
    Subject { name: "1 node, owing", about: shared::about_owing, measure: shared::one_node_owing },
    Subject { name: OURS_SHARED, about: shared::about, measure: shared::one_node },
];

/// The subject whose ratios to the others are reported, of the engine on PostgreSQL.
pub const OURS_SHARED: &str = "1 node";

/// Which engine is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Which {
    /// The embedded one, beside the floor and others.
    #[default]
    Embedded,
    /// The one on PostgreSQL, beside functions of a careful engineer.
    Postgres,
}

impl Which {
    fn subjects(self) -> &'static [Subject] {
        match self {
            Self::Embedded => &SUBJECTS,
            Self::Postgres => &SHARED_SUBJECTS,
        }
    }

    fn cases(self) -> &'static [Case] {
        match self {
            Self::Embedded => &CASES,
            Self::Postgres => &SHARED_CASES,
        }
    }
}

/// Which part of a benchmark to run: all of it, or one subject, or one case.
#[derive(Debug, Clone, Default)]
pub struct Choice {
    /// Of the ledger: which engine.
    pub engine: Which,
    /// The subject's name.
    pub subject: Option<String>,
    /// The case as it is printed.
    pub case: Option<String>,
}

/// Runs every chosen subject in every chosen case and reports as it goes; returns how many failed.
///
/// # Errors
/// Only if interrupted: a subject that fails is reported as missing with its error, and the others go on.
pub fn run(plan: &Plan, choice: &Choice, report: &mut Report) -> Result<usize, BenchError> {
    let all = choice.engine.subjects();
    let subjects =
        || all.iter().copied().filter(|subject| choice.subject.as_ref().is_none_or(|only| only == subject.name));
    let chosen = |case: &Case| choice.case.as_ref().is_none_or(|only| *only == case.to_string());
    for subject in subjects() {
        report.introduce(subject.name, (subject.about)());
    }
    let mut failed = 0;
    for case in choice.engine.cases().iter().copied().filter(chosen) {
        for subject in subjects() {
            let outcome = match measure_one(subject, case, plan) {
                Ok(outcome) => outcome,
                Err(BenchError::Interrupted) => return Err(BenchError::Interrupted),
                Err(error) => {
                    failed += 1;
                    Outcome::Missing(format!("failed: {error}"))
                }
            };
            add(report, subject, case, outcome);
        }
    }
    Ok(failed)
}

fn measure_one(subject: Subject, case: Case, plan: &Plan) -> Result<Outcome, BenchError> {
    plan.stop.check()?;
    let dir = plan.sandbox.fresh(subject.name)?;
    let outcome = (subject.measure)(case, &dir, plan);
    plan.sandbox.discard(subject.name);
    outcome
}

fn add(report: &mut Report, subject: Subject, case: Case, outcome: Outcome) {
    let (name, case) = (subject.name.to_owned(), case.to_string());
    match outcome {
        Outcome::Measured(Measured { pairs_per_second, p50, p99 }) => {
            eprintln!("{case:<9} {name:<9} {} pairs/s", readable(pairs_per_second));
            let row = |metric, value, unit| Row { subject: name.clone(), case: case.clone(), metric, value, unit };
            report.add(row("throughput", pairs_per_second, "pairs/s"));
            report.add(row("p50", p50.as_secs_f64() * 1e3, "ms"));
            report.add(row("p99", p99.as_secs_f64() * 1e3, "ms"));
        }
        Outcome::Missing(why) => {
            eprintln!("{case:<9} {name:<9} missing: {why}");
            report.miss(Missing { subject: name, case, why });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Stop;
    use crate::sandbox::Sandbox;

    fn try_out(subject: Subject, case: Case) -> Result<f64, BenchError> {
        // A directory for each, because tests of one process share the process's id.
        let parent = format!(
            "{}/../target/bench-tests/{}-{}-{}",
            env!("CARGO_MANIFEST_DIR"),
            subject.name,
            case.callers,
            case.batch
        );
        let sandbox = Sandbox::new(Path::new(&parent))?;
        let blink = Duration::from_millis(50);
        let plan = Plan { warm_up: blink, duration: blink, sandbox, stop: Stop::default() };
        match measure_one(subject, case, &plan)? {
            Outcome::Measured(measured) => Ok(measured.pairs_per_second),
            Outcome::Missing(why) => Err(BenchError::NotApplied(why)),
        }
    }

    fn check(name: &str, case: Case) {
        let all = SUBJECTS.into_iter().chain(SHARED_SUBJECTS);
        let subject = all.into_iter().find(|subject| subject.name == name).unwrap();
        let pairs_per_second = try_out(subject, case).unwrap();
        assert!(pairs_per_second > 0.0, "{name} did nothing in {case}");
    }

    #[test]
    fn the_floor_runs() {
        check("floor", Case { callers: 1, batch: 1 });
    }

    #[test]
    fn postgres_runs_and_its_books_balance_one_by_one_and_in_batches() {
        check("postgres", Case { callers: 70, batch: 1 });
        check("postgres", Case { callers: 1, batch: 100 });
    }

    #[test]
    fn holdfast_on_postgres_runs_and_its_books_balance_one_by_one_and_in_batches() {
        check("1 node", Case { callers: 1, batch: 100 });
        check("1 node, owing", Case { callers: 70, batch: 1 });
        check("3 nodes", Case { callers: 70, batch: 1 });
        check("pgbench", Case { callers: 8, batch: 1 });
    }

    #[test]
    fn redis_runs_and_its_books_balance_one_by_one_and_in_batches() {
        check("redis", Case { callers: 70, batch: 1 });
        check("redis", Case { callers: 1, batch: 100 });
    }
}
