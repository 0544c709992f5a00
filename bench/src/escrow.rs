//! `bench escrow`: hold → put in → take up → finish over HTTP, beside reserve + commit over the same server in the same run.
//!
//! One `holdfast serve` with both services in it, every answer durable. The two take short turns, so that a noisy second of the
//! machine hits them alike. A cycle of the queue is four calls and a pair of the ledger is two, so half as many
//! cycles as pairs is as fast a call; that is what is asked.

pub mod load;

use crate::error::BenchError;
use crate::latency::Latencies;
use crate::ledger::Choice;
use crate::plan::Plan;
use crate::report::{Missing, Report, Row, readable};
use crate::servers::holdfast::Served;
use crate::usage::{processor_time, processor_time_alone};
use load::{Load, Taken};
use std::time::Duration;
use tokio::runtime::Builder;

/// The name of the benchmark and of its file.
pub const NAME: &str = "escrow";
/// The subject whose ratios to the other are reported.
pub const OURS: &str = "escrow";

const CONNECTIONS: [usize; 3] = [1, 16, 64];
/// How many turns each takes in a case.
const TURNS: u32 = 10;

/// Who is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// Hold, put in, take up, finish.
    Escrow,
    /// Reserve, commit.
    Reservation,
}

impl Subject {
    const ALL: [Self; 2] = [Self::Escrow, Self::Reservation];

    const fn name(self) -> &'static str {
        match self {
            Self::Escrow => OURS,
            Self::Reservation => "reservation",
        }
    }

    /// What each of its calls is called, and its two metrics.
    #[must_use]
    pub const fn calls(self) -> &'static [[&'static str; 3]] {
        match self {
            Self::Escrow => &[
                ["hold", "hold p50", "hold p99"],
                ["enqueue", "enqueue p50", "enqueue p99"],
                ["start", "start p50", "start p99"],
                ["finish", "finish p50", "finish p99"],
            ],
            Self::Reservation => &[["reserve", "reserve p50", "reserve p99"], ["commit", "commit p50", "commit p99"]],
        }
    }
}

/// Runs both in every case and reports as it goes; returns how many failed.
///
/// # Errors
/// If interrupted, or if the server does not run.
pub fn run(plan: &Plan, choice: &Choice, report: &mut Report) -> Result<usize, BenchError> {
    report.introduce(OURS, "hold, put in, take up, finish: one cycle".to_owned());
    report.introduce("reservation", "reserve, commit: one cycle, on the same server".to_owned());
    let dir = plan.sandbox.fresh("served")?;
    let served = Served::start(&dir, &dir.join("data"), &[])?;
    for user in load::users() {
        served.mint(&user)?;
    }
    let token = served.service_token()?;
    let site = Site { url: served.url.clone(), token, pid: served.server.pid() };
    let mut failed = 0;
    for connections in CONNECTIONS {
        let case = format!("{connections} connections");
        if choice.case.as_ref().is_some_and(|only| *only != connections.to_string()) {
            continue;
        }
        let is_chosen = |subject: &Subject| choice.subject.as_ref().is_none_or(|only| only == subject.name());
        let subjects: Vec<Subject> = Subject::ALL.into_iter().filter(is_chosen).collect();
        match measure(&site, &subjects, connections, plan) {
            Ok(all) => all.into_iter().for_each(|(subject, used)| add(report, subject, &case, used.figures(subject))),
            Err(BenchError::Interrupted) => return Err(BenchError::Interrupted),
            Err(error) => {
                failed += 1;
                eprintln!("{case:<15} failed: {error}");
                for subject in subjects {
                    let (subject, case) = (subject.name().to_owned(), case.clone());
                    report.miss(Missing { subject, case, why: format!("failed: {error}") });
                }
            }
        }
    }
    Ok(failed)
}

/// The server that is asked.
struct Site {
    url: String,
    token: String,
    pid: u32,
}

/// What was done in all turns, and what that took.
#[derive(Default)]
struct Used {
    cycles: usize,
    calls: [Latencies; load::CALLS_MAX],
    elapsed: Duration,
    /// Of the processor, by the server and by the driver.
    theirs: Duration,
    ours: Duration,
}

/// Has the subjects take turns, after a warm-up of each.
fn measure(
    site: &Site,
    subjects: &[Subject],
    connections: usize,
    plan: &Plan,
) -> Result<Vec<(Subject, Used)>, BenchError> {
    let runtime = Builder::new_current_thread().enable_all().build().map_err(BenchError::io("start a runtime"))?;
    let mut all: Vec<_> = subjects.iter().map(|subject| (*subject, Used::default())).collect();
    for turn in 0..=TURNS {
        for (subject, used) in &mut all {
            plan.stop.check()?;
            let (url, token) = (site.url.clone(), site.token.clone());
            let load = Load { url, token, subject: *subject, connections, turn };
            let is_warm_up = turn == 0;
            let duration = if is_warm_up { plan.warm_up } else { plan.duration / TURNS };
            let own = || processor_time_alone(std::process::id());
            let (theirs, ours) = (processor_time(site.pid), own());
            let taken = runtime.block_on(load::run(&load, duration, &plan.stop))?;
            // First our own: to look at the server's takes some time of ours, which belongs to no call.
            let (ours, theirs) = (own() - ours, processor_time(site.pid) - theirs);
            if !is_warm_up {
                used.add(taken, theirs, ours);
            }
        }
    }
    Ok(all)
}

type Figure = (&'static str, f64, &'static str);

impl Used {
    fn add(&mut self, taken: Taken, theirs: Duration, ours: Duration) {
        let Taken { cycles, calls, elapsed } = taken;
        self.cycles += cycles;
        self.calls.iter_mut().zip(calls).for_each(|(all, of_turn)| all.merge(of_turn));
        self.elapsed += elapsed;
        self.theirs += theirs;
        self.ours += ours;
    }

    fn figures(self, subject: Subject) -> Vec<Figure> {
        let count = self.cycles.max(1) as f64;
        let mut figures = vec![
            ("throughput", count / self.elapsed.as_secs_f64(), "cycles/s"),
            ("CPU", self.theirs.as_secs_f64() * 1e6 / count, "µs/cycle"),
            ("driver CPU", self.ours.as_secs_f64() * 1e6 / count, "µs/cycle"),
        ];
        for ([_, p50_name, p99_name], latencies) in subject.calls().iter().zip(self.calls) {
            let (p50, p99) = latencies.p50_and_p99();
            figures.extend([(*p50_name, milliseconds(p50), "ms"), (*p99_name, milliseconds(p99), "ms")]);
        }
        figures
    }
}

fn add(report: &mut Report, subject: Subject, case: &str, figures: Vec<Figure>) {
    let rate = figures.first().map(|(_, rate, _)| *rate).unwrap_or_default();
    eprintln!("{case:<15} {:<11} {} cycles/s", subject.name(), readable(rate));
    for (metric, value, unit) in figures {
        report.add(Row { subject: subject.name().to_owned(), case: case.to_owned(), metric, value, unit });
    }
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
