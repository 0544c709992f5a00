//! `bench outbox`: the leased payment outbox beside graphile-worker and pg-boss, each on a PostgreSQL of its own with the same
//! settings.
//!
//! The drain: so many no-op jobs are there, and workers claim and complete them in batches until none is left. Each subject is
//! used in its fastest way, and its own records are asked afterwards whether all is done. Ours also records every attempt and
//! fences every completion; the peers do not. Then what the drain leaves behind: dead rows, and the hot tables' size, at once
//! and after the vacuum that the server does by itself within a minute.
//!
//! The claims, of ours alone: how long a claim of a hundred takes with little and with much pending.

mod ours;
mod peers;

use crate::error::BenchError;
use crate::head::said;
use crate::latency::Latencies;
use crate::ledger::Choice;
use crate::ledger::drive::runtime;
use crate::plan::{Pace, Plan};
use crate::report::{Missing, Report, Row, readable};
use crate::servers::postgres::{Cluster, installed};
use std::fmt;
use std::time::Duration;
use tokio_postgres::Client;

/// The name of the benchmark and of its file.
pub const NAME: &str = "outbox";
/// The subject whose ratios to the others are reported.
pub const OURS: &str = "holdfast";

/// What a job carries, so that everybody moves the same bytes.
const PAYLOAD: &str = r#"{"amount": "12.50", "currency": "USD", "note": "a payload of a usual size, which is some hundred bytes or so long"}"#;

/// How a queue is drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Case {
    workers: usize,
    batch: usize,
}

/// Every case, in the order they run; a quick look takes the last three.
const CASES: [Case; 6] = [
    Case { workers: 1, batch: 100 },
    Case { workers: 4, batch: 100 },
    Case { workers: 16, batch: 100 },
    Case { workers: 1, batch: 500 },
    Case { workers: 4, batch: 500 },
    Case { workers: 16, batch: 500 },
];

const fn cases(pace: Pace) -> &'static [Case] {
    match pace {
        Pace::Full => &CASES,
        Pace::Quick => CASES.split_at(3).1,
    }
}

impl fmt::Display for Case {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} × {}", self.workers, self.batch)
    }
}

/// Who takes part, in the order they take turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    Graphile,
    PgBoss,
    Ours,
}

const SUBJECTS: [Subject; 3] = [Subject::Graphile, Subject::PgBoss, Subject::Ours];

impl Subject {
    const fn name(self) -> &'static str {
        match self {
            Self::Graphile => "graphile-worker",
            Self::PgBoss => "pg-boss",
            Self::Ours => OURS,
        }
    }

    fn about(self) -> String {
        match self {
            Self::Graphile => peers::about("graphile-worker", "local queue and batched completion"),
            Self::PgBoss => peers::about("pg-boss", "fetch and complete in batches"),
            Self::Ours => {
                let version =
                    installed().map(|bin| said(&bin.join("postgres").to_string_lossy(), &["--version"], &bin));
                let version = version.unwrap_or_else(|| "PostgreSQL is not installed".to_owned());
                format!(
                    "complete_outbox_batch and claim_outbox_batch in one transaction, a connection per worker; {version} \
                     for all"
                )
            }
        }
    }

    /// The tables that every job goes through, as a condition on `pg_class`.
    const fn hot_tables(self) -> &'static str {
        match self {
            Self::Graphile => "oid = 'graphile_worker._private_jobs'::regclass",
            // A partition for the queues that have none of their own.
            Self::PgBoss => "oid = 'pgboss.job_common'::regclass",
            Self::Ours => {
                "oid IN ('holdfast.payment_outbox_queue'::regclass, 'holdfast.payment_outbox_claims'::regclass)"
            }
        }
    }
}

/// What a drain came to.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Drained {
    jobs_per_second: f64,
    left: LeftOver,
}

/// What a drain leaves of the tables that every job went through, added up.
#[derive(Debug, Clone, Copy, PartialEq)]
struct LeftOver {
    dead_rows: f64,
    table_mb: f64,
    indexes_mb: f64,
    /// After a vacuum.
    vacuumed_mb: f64,
}

const fn jobs(pace: Pace) -> u32 {
    match pace {
        Pace::Full => 100_000,
        Pace::Quick => 10_000,
    }
}

const fn pending(pace: Pace) -> &'static [u32] {
    match pace {
        Pace::Full => &[1_000, 100_000, 2_000_000],
        Pace::Quick => &[1_000, 100_000],
    }
}

/// Runs every chosen subject in every chosen case and reports as it goes; returns how many failed.
///
/// # Errors
/// Only if interrupted: a subject that fails is reported as missing with its error, and the others go on.
pub fn run(pace: Pace, plan: &Plan, choice: &Choice, report: &mut Report) -> Result<usize, BenchError> {
    let subjects =
        || SUBJECTS.into_iter().filter(|subject| choice.subject.as_ref().is_none_or(|only| only == subject.name()));
    let is_chosen = |case: &str| choice.case.as_ref().is_none_or(|only| only == case);
    for subject in subjects() {
        report.introduce(subject.name(), subject.about());
    }
    let mut failed = 0;
    for case in cases(pace).iter().copied().filter(|case| is_chosen(&case.to_string())) {
        for subject in subjects() {
            let drained = drain(subject, case, jobs(pace), plan);
            failed += note(report, subject, &case.to_string(), drained, |report, drained| {
                add_drain(report, subject, case, drained)
            })?;
        }
    }
    for pending in pending(pace).iter().copied() {
        let case = format!("{} pending", readable(f64::from(pending)));
        if is_chosen(&case) && subjects().any(|subject| subject == Subject::Ours) {
            let claimed = claims(pending, plan);
            failed +=
                note(report, Subject::Ours, &case, claimed, |report, claimed| add_claims(report, &case, claimed))?;
        }
    }
    Ok(failed)
}

/// Reports a figure, or why there is none: how many failed.
fn note<T>(
    report: &mut Report,
    subject: Subject,
    case: &str,
    outcome: Result<T, BenchError>,
    add: impl FnOnce(&mut Report, T),
) -> Result<usize, BenchError> {
    match outcome {
        Ok(figures) => {
            add(report, figures);
            Ok(0)
        }
        Err(BenchError::Interrupted) => Err(BenchError::Interrupted),
        Err(error) => {
            let why = format!("failed: {error}");
            eprintln!("{case:<18} {:<15} {why}", subject.name());
            report.miss(Missing { subject: subject.name().to_owned(), case: case.to_owned(), why });
            Ok(1)
        }
    }
}

fn add_drain(report: &mut Report, subject: Subject, case: Case, drained: Drained) {
    let (name, case) = (subject.name().to_owned(), case.to_string());
    eprintln!("{case:<18} {name:<15} {} jobs/s", readable(drained.jobs_per_second));
    let mut add = |metric, value, unit| {
        report.add(Row { subject: name.clone(), case: case.clone(), metric, value, unit });
    };
    add("throughput", drained.jobs_per_second, "jobs/s");
    add("dead rows", drained.left.dead_rows, "rows");
    add("hot table", drained.left.table_mb, "MB");
    add("its indexes", drained.left.indexes_mb, "MB");
    add("vacuumed", drained.left.vacuumed_mb, "MB");
}

fn add_claims(report: &mut Report, case: &str, claimed: Latencies) {
    let (p50, p99) = claimed.p50_and_p99();
    eprintln!("{case:<18} {OURS:<15} claim p50 {p50:?}, p99 {p99:?}");
    for (metric, took) in [("claim p50", p50), ("claim p99", p99)] {
        let value = took.as_secs_f64() * 1e3;
        report.add(Row { subject: OURS.to_owned(), case: case.to_owned(), metric, value, unit: "ms" });
    }
}

/// Drains `jobs` in a cluster of its own.
fn drain(subject: Subject, case: Case, jobs: u32, plan: &Plan) -> Result<Drained, BenchError> {
    plan.stop.check()?;
    let peer = match subject {
        Subject::Ours => None,
        Subject::Graphile | Subject::PgBoss => Some(peers::ensure()?),
    };
    let dir = plan.sandbox.fresh(subject.name())?;
    let cluster = Cluster::start(&dir)?;
    let runtime = runtime()?;
    let took = match &peer {
        None => runtime.block_on(ours::drain(&cluster, case, jobs, plan))?,
        Some(peer) => peer.drain(subject.name(), &cluster.url(), case, jobs)?,
    };
    let left = runtime.block_on(async { left_over(&cluster.connect().await?, subject).await })?;
    drop(cluster);
    plan.sandbox.discard(subject.name());
    Ok(Drained { jobs_per_second: f64::from(jobs) / took.as_secs_f64(), left })
}

/// Claims with so many pending, in a cluster of its own.
fn claims(pending: u32, plan: &Plan) -> Result<Latencies, BenchError> {
    plan.stop.check()?;
    let dir = plan.sandbox.fresh(OURS)?;
    let cluster = Cluster::start(&dir)?;
    let claimed = runtime()?.block_on(ours::claims(&cluster, pending, plan));
    drop(cluster);
    plan.sandbox.discard(OURS);
    claimed
}

/// The workers have gone, so the server knows what they left.
async fn left_over(admin: &Client, subject: Subject) -> Result<LeftOver, BenchError> {
    let condition = subject.hot_tables();
    let sizes = format!(
        "SELECT sum((SELECT n_dead_tup FROM pg_stat_all_tables WHERE relid = oid))::float8, \
         sum(pg_relation_size(oid))::float8 / 1e6, sum(pg_indexes_size(oid))::float8 / 1e6, \
         string_agg(oid::regclass::text, ', ') FROM pg_class WHERE {condition}"
    );
    let before = admin.query_one(&sizes, &[]).await?;
    let tables: String = before.try_get(3)?;
    admin.batch_execute(&format!("VACUUM {tables}")).await?;
    let after = admin.query_one(&sizes, &[]).await?;
    Ok(LeftOver {
        dead_rows: before.try_get(0)?,
        table_mb: before.try_get(1)?,
        indexes_mb: before.try_get(2)?,
        vacuumed_mb: after.try_get(1)?,
    })
}

/// Founding is not the work: its dirty pages must not weigh on the figures.
async fn settle(admin: &Client) -> Result<(), BenchError> {
    admin.batch_execute("VACUUM ANALYZE").await?;
    Ok(admin.batch_execute("CHECKPOINT").await?)
}

/// How long a drain may take before something is wrong.
const HUNG_AFTER: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Stop;
    use crate::sandbox::Sandbox;
    use std::path::Path;

    fn plan(name: &str) -> Plan {
        let parent = format!("{}/../target/bench-tests/outbox-{name}", env!("CARGO_MANIFEST_DIR"));
        let blink = Duration::from_millis(50);
        let sandbox = Sandbox::new(Path::new(&parent)).unwrap();
        Plan { warm_up: blink, duration: blink, sandbox, stop: Stop::default() }
    }

    #[test]
    fn ours_drains_all_and_leaves_a_small_table() {
        let drained = drain(Subject::Ours, Case { workers: 3, batch: 70 }, 2_000, &plan("drain")).unwrap();
        assert!(drained.jobs_per_second > 0.0);
        assert!(drained.left.vacuumed_mb < 0.1, "{drained:?}");
    }

    #[test]
    fn claims_are_timed_and_give_back_what_they_took() {
        let claimed = claims(500, &plan("claims")).unwrap();
        assert!(!claimed.is_empty());
    }
}
