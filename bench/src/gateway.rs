//! `bench gateway`: the same upstream called directly, through Holdfast with durable billing, and through LiteLLM's proxy.
//!
//! Every subject is started once, and in each case they take short turns. The upstream's answer is prepared, so what is
//! added to a direct call is the gateway's own. Processor time is that of the gateway's processes (of the upstream itself, for
//! `direct`); the driver's is a row of its own. Where one asks at a time the bare disk takes turns with them, because a durable
//! charge waits for its sync: a paid answer has two of them, so twice that is what no gateway with durable billing can go
//! below where nobody shares a sync, in time and in processor time too.

pub mod load;
mod turns;

use crate::error::BenchError;
use crate::ledger::Choice;
use crate::ledger::floor::{Bare, Floor};
use crate::plan::Plan;
use crate::report::{Missing, Report, Row, readable};
use crate::servers::holdfast::Holdfast;
use crate::servers::litellm::{self, LiteLlm};
use crate::servers::upstream::Upstream;
use std::fmt;
use std::time::Duration;
use turns::Used;

/// The name of the benchmark and of its file.
pub const NAME: &str = "gateway";

/// How an answer comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// In one piece.
    Whole,
    /// In 20 chunks.
    Stream,
}

/// How the work arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    /// How an answer comes.
    pub shape: Shape,
    /// How many ask at the same time.
    pub connections: usize,
}

impl fmt::Display for Case {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shape = match self.shape {
            Shape::Whole => "whole",
            Shape::Stream => "stream",
        };
        write!(out, "{shape} × {}", self.connections)
    }
}

const CONNECTIONS: [usize; 3] = [1, 16, 64];

/// Someone who answers.
struct Subject {
    name: &'static str,
    url: String,
    key: String,
    /// Whose processor time and memory it is.
    pid: u32,
}

/// Keeps the servers running.
struct Field {
    subjects: Vec<Subject>,
    missing: Vec<(&'static str, String)>,
    failed: usize,
    _upstream: Upstream,
    _holdfast: Option<Holdfast>,
    _litellm: Option<LiteLlm>,
}

/// Runs every chosen subject in every case and reports as it goes; returns how many failed.
///
/// # Errors
/// If interrupted, or if the upstream itself does not run.
pub fn run(plan: &Plan, choice: &Choice, report: &mut Report) -> Result<usize, BenchError> {
    let field = start(plan, choice, report)?;
    let mut failed = field.failed;
    let mut floor = Floor::new(1, &plan.sandbox.fresh("floor")?)?;
    report.introduce("floor", "the bare disk: one write and its sync; a paid answer waits for two".to_owned());
    for shape in [Shape::Whole, Shape::Stream] {
        for connections in CONNECTIONS {
            let case = Case { shape, connections };
            if choice.case.as_ref().is_some_and(|only| *only != case.to_string()) {
                continue;
            }
            failed += run_case(case, &field, &mut floor, plan, report)?;
        }
    }
    Ok(failed)
}

fn start(plan: &Plan, choice: &Choice, report: &mut Report) -> Result<Field, BenchError> {
    // The others mean nothing without a direct call beside them.
    let is_chosen = |name: &str| choice.subject.as_ref().is_none_or(|only| only == name);
    let upstream = Upstream::start(&plan.sandbox.fresh("upstream")?)?;
    report.introduce("direct", "the upstream itself, one thread, its answers prepared once".to_owned());
    let pid = upstream.server.pid();
    let direct = Subject { name: "direct", url: upstream.url.clone(), key: "bench".to_owned(), pid };
    let mut field = Field {
        subjects: vec![direct],
        missing: Vec::new(),
        failed: 0,
        _upstream: upstream,
        _holdfast: None,
        _litellm: None,
    };
    if is_chosen("holdfast") {
        field.add_holdfast(plan, report)?;
    }
    plan.stop.check()?;
    if is_chosen("litellm") {
        field.add_litellm(plan, report)?;
    }
    Ok(field)
}

impl Field {
    fn add_holdfast(&mut self, plan: &Plan, report: &mut Report) -> Result<(), BenchError> {
        report.introduce("holdfast", "holdfast serve, release build, durable billing, one account".to_owned());
        match Holdfast::start(&plan.sandbox.fresh("holdfast")?, &self.subjects[0].url) {
            Ok(holdfast) => {
                let (url, key, pid) = (holdfast.url.clone(), holdfast.key.clone(), holdfast.server.pid());
                add_ready(report, "holdfast", holdfast.ready_after);
                self.subjects.push(Subject { name: "holdfast", url, key, pid });
                self._holdfast = Some(holdfast);
            }
            Err(error) => {
                self.failed += 1;
                self.missing.push(("holdfast", format!("failed: {error}")));
            }
        }
        Ok(())
    }

    fn add_litellm(&mut self, plan: &Plan, report: &mut Report) -> Result<(), BenchError> {
        let program = match litellm::ensure() {
            Ok(program) => program,
            Err(error) => {
                report.introduce("litellm", format!("{} could not be installed", litellm::VERSION));
                self.missing.push(("litellm", error.to_string()));
                return Ok(());
            }
        };
        report.introduce(
            "litellm",
            format!("litellm[proxy] {}, one worker, a master key, no database", litellm::VERSION),
        );
        match LiteLlm::start(&program, &plan.sandbox.fresh("litellm")?, &self.subjects[0].url) {
            Ok(litellm) => {
                let (url, key, pid) = (litellm.url.clone(), litellm.key.clone(), litellm.server.pid());
                add_ready(report, "litellm", litellm.ready_after);
                self.subjects.push(Subject { name: "litellm", url, key, pid });
                self._litellm = Some(litellm);
            }
            Err(error) => {
                self.failed += 1;
                self.missing.push(("litellm", format!("failed: {error}")));
            }
        }
        Ok(())
    }
}

fn add_ready(report: &mut Report, subject: &str, after: Duration) {
    let (subject, case) = (subject.to_owned(), "start".to_owned());
    report.add(Row { subject, case, metric: "ready", value: milliseconds(after), unit: "ms" });
}

fn run_case(
    case: Case,
    field: &Field,
    floor: &mut Floor,
    plan: &Plan,
    report: &mut Report,
) -> Result<usize, BenchError> {
    let floor = (case.connections == 1).then_some(floor);
    let (all, bare) = turns::take(case, &field.subjects, floor, plan)?;
    let sync = (case.connections == 1).then(|| add_floor(report, case, bare));
    let mut failed = 0;
    let mut direct = Vec::new();
    for (subject, used) in field.subjects.iter().zip(all) {
        match used {
            Ok(used) if subject.name == "direct" => {
                direct = figures(used);
                add(report, subject.name, case, direct.clone());
            }
            Ok(used) => add(report, subject.name, case, with_added(figures(used), &direct, sync)),
            Err(error) => {
                failed += 1;
                miss(report, subject.name, case, format!("failed: {error}"));
            }
        }
    }
    for (name, why) in &field.missing {
        miss(report, name, case, why.clone());
    }
    Ok(failed)
}

type Figure = (&'static str, f64, &'static str);

fn figure(figures: &[Figure], metric: &str) -> Option<f64> {
    figures.iter().find(|(name, ..)| *name == metric).map(|(_, value, _)| *value)
}

/// What one durable write took in the same moments; returns its p50 in milliseconds.
fn add_floor(report: &mut Report, case: Case, bare: Bare) -> f64 {
    let processor = microseconds_each(bare.processor_time, bare.latencies.len());
    let (p50, p99) = bare.latencies.p50_and_p99();
    let (p50, p99) = (milliseconds(p50), milliseconds(p99));
    for (metric, value, unit) in [("sync p50", p50, "ms"), ("sync p99", p99, "ms"), ("sync CPU", processor, "µs/sync")]
    {
        report.add(Row { subject: "floor".to_owned(), case: case.to_string(), metric, value, unit });
    }
    p50
}

/// With what was added to a direct call, and how much of that is beyond two syncs.
fn with_added(mut figures: Vec<Figure>, direct: &[Figure], sync_p50: Option<f64>) -> Vec<Figure> {
    let added = |of| Some(figure(&figures, of)? - figure(direct, of)?);
    let (p50, p99) = (added("p50"), added("p99"));
    let beyond = p50.zip(sync_p50).map(|(p50, sync)| p50 - 2.0 * sync);
    let added = [("added p50", p50), ("added p99", p99), ("beyond two syncs", beyond)];
    figures.extend(added.into_iter().filter_map(|(metric, value)| Some((metric, value?, "ms"))));
    figures
}

fn figures(used: Used) -> Vec<Figure> {
    let Used { latencies, elapsed, theirs, ours, resident_bytes } = used;
    let count = latencies.len();
    let (p50, p99) = latencies.p50_and_p99();
    vec![
        ("throughput", count as f64 / elapsed.as_secs_f64(), "requests/s"),
        ("p50", milliseconds(p50), "ms"),
        ("p99", milliseconds(p99), "ms"),
        ("CPU", microseconds_each(theirs, count), "µs/request"),
        ("driver CPU", microseconds_each(ours, count), "µs/request"),
        ("memory", resident_bytes as f64 / 1e6, "MB"),
    ]
}

fn add(report: &mut Report, subject: &str, case: Case, figures: Vec<Figure>) {
    let (subject, case) = (subject.to_owned(), case.to_string());
    let rate = figure(&figures, "throughput").unwrap_or_default();
    let processor = figure(&figures, "CPU").unwrap_or_default();
    eprintln!("{case:<12} {subject:<9} {} requests/s, {} µs CPU a request", readable(rate), readable(processor));
    for (metric, value, unit) in figures {
        report.add(Row { subject: subject.clone(), case: case.clone(), metric, value, unit });
    }
}

fn miss(report: &mut Report, subject: &str, case: Case, why: String) {
    let (subject, case) = (subject.to_owned(), case.to_string());
    eprintln!("{case:<12} {subject:<9} missing: {why}");
    report.miss(Missing { subject, case, why });
}

/// A time's share for each of so many.
fn microseconds_each(all: Duration, count: usize) -> f64 {
    all.as_secs_f64() * 1e6 / count.max(1) as f64
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_is_told_beyond_two_syncs_only_where_syncs_were_measured() {
        let direct = [("p50", 0.1, "ms"), ("p99", 0.2, "ms")];
        let ours = vec![("p50", 0.6, "ms"), ("p99", 1.2, "ms")];
        let near = |figures: &[Figure], metric, expected: f64| {
            assert!((figure(figures, metric).unwrap() - expected).abs() < 1e-9, "{metric}");
        };
        let beside_syncs = with_added(ours.clone(), &direct, Some(0.15));
        near(&beside_syncs, "added p50", 0.5);
        near(&beside_syncs, "added p99", 1.0);
        near(&beside_syncs, "beyond two syncs", 0.2);
        assert_eq!(figure(&with_added(ours.clone(), &direct, None), "beyond two syncs"), None);
        assert_eq!(figure(&with_added(ours, &[], None), "added p50"), None, "no direct call, nothing added to it");
    }
}
