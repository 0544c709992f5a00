//! The subjects of a case take short turns, and so does the bare disk: a noisy second of the machine hits them alike.

use super::load::{self, Line, Load};
use super::{Case, Subject};
use crate::error::BenchError;
use crate::latency::Latencies;
use crate::ledger::floor::{Bare, Floor};
use crate::plan::Plan;
use crate::usage::{processor_time, processor_time_alone, resident_bytes};
use std::time::Duration;
use tokio::runtime::Builder;

/// How many turns each takes in a case.
const TURNS: u32 = 10;

/// What was done in all turns, and what that took.
#[derive(Debug, Default)]
pub(super) struct Used {
    pub(super) latencies: Latencies,
    pub(super) elapsed: Duration,
    /// Of the processor, by the subject and by the driver.
    pub(super) theirs: Duration,
    pub(super) ours: Duration,
    /// The most of all turns.
    pub(super) resident_bytes: u64,
}

/// Has all of them take turns, after a warm-up of each. One that fails takes no more, and the others go on.
///
/// # Errors
/// If interrupted, or if the bare disk fails.
pub(super) fn take(
    case: Case,
    subjects: &[Subject],
    mut floor: Option<&mut Floor>,
    plan: &Plan,
) -> Result<(Vec<Result<Used, BenchError>>, Bare), BenchError> {
    let runtime = Builder::new_current_thread().enable_all().build().map_err(BenchError::io("start a runtime"))?;
    let mut all: Vec<_> = subjects.iter().map(|subject| Seat::new(case, subject)).collect();
    let mut bare = Bare::default();
    for turn in 0..=TURNS {
        let is_warm_up = turn == 0;
        let duration = if is_warm_up { plan.warm_up } else { plan.duration / TURNS };
        for seat in &mut all {
            plan.stop.check()?;
            let Ok(used) = &mut seat.so_far else { continue };
            match runtime.block_on(one(&seat.load, &mut seat.lines, seat.pid, (duration, plan))) {
                Ok(of_turn) if !is_warm_up => used.add(of_turn),
                Ok(_) => {}
                Err(BenchError::Interrupted) => return Err(BenchError::Interrupted),
                Err(error) => seat.so_far = Err(error),
            }
        }
        if let Some(floor) = &mut floor {
            let of_turn = floor.run(duration, &plan.stop)?;
            if !is_warm_up {
                bare.add(of_turn);
            }
        }
    }
    Ok((all.into_iter().map(|seat| seat.so_far).collect(), bare))
}

/// One who takes turns.
struct Seat {
    load: Load,
    /// Opened in the warm-up, and kept: what is measured is how requests are served.
    lines: Vec<Line>,
    pid: u32,
    so_far: Result<Used, BenchError>,
}

impl Seat {
    fn new(case: Case, subject: &Subject) -> Self {
        let Case { shape, connections } = case;
        let load = Load { url: subject.url.clone(), key: subject.key.clone(), shape, connections };
        Self { load, lines: Vec::new(), pid: subject.pid, so_far: Ok(Used::default()) }
    }
}

async fn one(
    load: &Load,
    lines: &mut Vec<Line>,
    pid: u32,
    (duration, plan): (Duration, &Plan),
) -> Result<Used, BenchError> {
    if lines.is_empty() {
        *lines = load::open(load).await?;
    }
    let own = || processor_time_alone(std::process::id());
    let mut resident = 0;
    let look = || resident = resident_bytes(pid);
    let (theirs, ours) = (processor_time(pid), own());
    let (latencies, elapsed) = load::run(load, lines, duration, &plan.stop, look).await?;
    // First our own: to look at the subject's takes some time of ours, which belongs to no request.
    let (ours, theirs) = (own() - ours, processor_time(pid) - theirs);
    Ok(Used { latencies, elapsed, theirs, ours, resident_bytes: resident })
}

impl Used {
    fn add(&mut self, of_turn: Self) {
        let Self { latencies, elapsed, theirs, ours, resident_bytes } = of_turn;
        self.latencies.merge(latencies);
        self.elapsed += elapsed;
        self.theirs += theirs;
        self.ours += ours;
        self.resident_bytes = self.resident_bytes.max(resident_bytes);
    }
}
