//! `bench gateway`: the same upstream called directly, through Holdfast with durable billing, and through LiteLLM's proxy.
//!
//! Every subject is started once, and the subjects take turns case by case. The upstream's answer is prepared, so what is
//! added to a direct call is the gateway's own. Processor time is that of the gateway's processes (of the upstream itself, for
//! `direct`); the driver's is a row of its own. The disk's sync stands beside them, because a durable charge waits for it.

pub mod load;

use crate::error::BenchError;
use crate::ledger::Choice;
use crate::ledger::floor::{self, Bare};
use crate::plan::Plan;
use crate::report::{Missing, Report, Row, readable};
use crate::servers::holdfast::Holdfast;
use crate::servers::litellm::{self, LiteLlm};
use crate::servers::upstream::Upstream;
use crate::usage::{processor_time, processor_time_alone, resident_bytes};
use load::Load;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;
use tokio::runtime::Builder;

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
    sync_time(plan, report)?;
    let field = start(plan, choice, report)?;
    let mut failed = field.failed;
    for shape in [Shape::Whole, Shape::Stream] {
        for connections in CONNECTIONS {
            let case = Case { shape, connections };
            if choice.case.as_ref().is_some_and(|only| *only != case.to_string()) {
                continue;
            }
            failed += run_case(case, &field, plan, report)?;
        }
    }
    Ok(failed)
}

/// What one durable write costs on this disk: rows, and a line in the head. A paid answer has two of them, so twice this is what
/// no gateway with durable billing can go below where nobody shares a sync: in time, and in processor time too.
fn sync_time(plan: &Plan, report: &mut Report) -> Result<(), BenchError> {
    let dir = plan.sandbox.fresh("floor")?;
    let bare = floor::bare(1, &dir, plan);
    plan.sandbox.discard("floor");
    let Bare { latencies, processor_time, .. } = bare?;
    let processor = microseconds_each(processor_time, latencies.len());
    let (p50, p99) = latencies.p50_and_p99();
    let (p50, p99) = (milliseconds(p50), milliseconds(p99));
    let [shown_p50, shown_p99, shown_processor] = [p50, p99, processor].map(readable);
    let about =
        format!("p50 {shown_p50} ms, p99 {shown_p99} ms, {shown_processor} µs CPU; a paid answer waits for two");
    report.introduce("disk sync", about);
    for (metric, value, unit) in [("p50", p50, "ms"), ("p99", p99, "ms"), ("CPU", processor, "µs/request")] {
        let (subject, case) = ("floor".to_owned(), "disk sync".to_owned());
        report.add(Row { subject, case, metric, value, unit });
    }
    Ok(())
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

fn run_case(case: Case, field: &Field, plan: &Plan, report: &mut Report) -> Result<usize, BenchError> {
    let mut failed = 0;
    let mut direct: BTreeMap<&str, f64> = BTreeMap::new();
    for subject in &field.subjects {
        plan.stop.check()?;
        match measure(case, subject, plan) {
            Ok(mut figures) => {
                if subject.name == "direct" {
                    direct = figures.iter().map(|(metric, value, _)| (*metric, *value)).collect();
                } else {
                    let added = [("added p50", "p50"), ("added p99", "p99")]
                        .map(|(metric, of)| Some((metric, figure(&figures, of)? - direct.get(of)?, "ms")));
                    figures.extend(added.into_iter().flatten());
                }
                add(report, subject.name, case, figures);
            }
            Err(BenchError::Interrupted) => return Err(BenchError::Interrupted),
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

fn measure(case: Case, subject: &Subject, plan: &Plan) -> Result<Vec<Figure>, BenchError> {
    let Case { shape, connections } = case;
    let load = Load { url: subject.url.clone(), key: subject.key.clone(), shape, connections };
    let runtime = Builder::new_current_thread().enable_all().build().map_err(BenchError::io("start a runtime"))?;
    runtime.block_on(load::run(&load, plan.warm_up, &plan.stop, || {}))?;
    let ourselves = std::process::id();
    let own = || processor_time_alone(ourselves);
    let (theirs_before, ours_before) = (processor_time(subject.pid), own());
    let mut resident = 0;
    let look = || resident = resident_bytes(subject.pid);
    let (latencies, elapsed) = runtime.block_on(load::run(&load, plan.duration, &plan.stop, look))?;
    let (theirs, ours) = (processor_time(subject.pid) - theirs_before, own() - ours_before);
    let count = latencies.len();
    let (p50, p99) = latencies.p50_and_p99();
    Ok(vec![
        ("throughput", count as f64 / elapsed.as_secs_f64(), "requests/s"),
        ("p50", milliseconds(p50), "ms"),
        ("p99", milliseconds(p99), "ms"),
        ("CPU", microseconds_each(theirs, count), "µs/request"),
        ("driver CPU", microseconds_each(ours, count), "µs/request"),
        ("memory", resident as f64 / 1e6, "MB"),
    ])
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
