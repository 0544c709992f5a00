//! One run: a process on a disk, callers, crashes, and the auditor, all from one seed.

mod books;
mod damage;
mod forge;
mod plants;
mod restart;
mod steps;

use crate::audit::Audit;
use crate::check::{Found, Violation};
use crate::disk::{Fault, Image, Odds, SimDisk};
use crate::follower::Follower;
use crate::model::Model;
use crate::node::Node;
use crate::plant::Planted;
use crate::rng::Rng;
use crate::tally::{Count, Tally};
use crate::workload::{Profile, Workload};
use holdfast_engine::Limits;
use holdfast_engine::recovery::OpenConfig;
use holdfast_journal::{Config, JournalId};

/// The size of segments: the least that there is.
const SEGMENT_BYTES: u32 = 64 * 1_024;
const HOUR_MS: u64 = 60 * 60 * 1_000;
const DAY_MS: u64 = 24 * HOUR_MS;

/// What a run did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Counts.
    pub tally: Tally,
    /// A hash over everything that happened, in order: two runs of one seed have the same.
    pub trace: u64,
}

/// Runs one seed, with a planted bug or none.
pub fn run(seed: u64, planted: Option<Planted>) -> Result<Report, Violation> {
    World::new(seed, planted).run(seed)
}

/// Runs one seed like [`run`], and gives each line of its story to `tell`.
pub fn run_telling(seed: u64, planted: Option<Planted>, tell: fn(&str)) -> Result<Report, Violation> {
    let mut world = World::new(seed, planted);
    world.story = Some(tell);
    world.run(seed)
}

/// How a run is to go: which of the many things that can go wrong may go wrong in it.
struct Plan {
    steps: u32,
    /// The most requests decided in one step.
    burst: u64,
    /// Entries at the start that bring the first segment near its end.
    prefill: u64,
    keys_in_memory: usize,
    limits: Limits,
    odds: Odds,
    /// The room that files have to grow between two starts, where room is short.
    space: Option<u64>,
    /// The most disk operations before the power goes within one, if it may.
    fuse: Option<u64>,
    /// How often, out of 100, a step is a crash.
    crash_percent: u32,
    /// How often, out of 4, a crash is a power cut and not a kill.
    power_cuts: u64,
    damage: bool,
    wild_clock: bool,
    profile: Profile,
}

impl Plan {
    fn new(rng: &mut Rng) -> Self {
        let long = rng.one_in(64);
        let fat = rng.one_in(8);
        let huge = rng.one_in(16);
        let mut odds = Odds::NONE;
        for fault in Fault::ALL {
            if rng.one_in(5) {
                odds.of[fault as usize] = rng.pick(&[2, 8, 24]).unwrap_or(2);
            }
        }
        // Running out of room is a matter of room, not of odds.
        odds.of[Fault::NoSpace as usize] = 0;
        Self {
            steps: rng.between(20, 70) as u32 * if long { 6 } else { 1 },
            burst: rng.pick(&[1, 3, 6]).unwrap_or(3) * if fat { 3 } else { 1 },
            prefill: if fat { rng.between(60, 180) } else { 0 },
            keys_in_memory: rng.pick(&[2, 4, 8, 16, 32]).unwrap_or(16),
            limits: Limits { open_holds: rng.pick(&[3, 8, 1_000]).unwrap_or(8) },
            odds,
            space: rng.one_in(12).then(|| rng.between(1, 256 * 1_024)),
            fuse: (!rng.one_in(3)).then(|| rng.between(4, 120)),
            crash_percent: rng.pick(&[0, 2, 5]).unwrap_or(2),
            power_cuts: rng.below(5),
            damage: rng.one_in(3),
            wild_clock: rng.one_in(3),
            profile: Profile {
                owners: rng.between(1, 4) as usize,
                width: if fat { 56 } else { rng.pick(&[1, 12]).unwrap_or(1) as usize },
                huge,
            },
        }
    }
}

/// One run.
struct World {
    step: u32,
    rng: Rng,
    plan: Plan,
    planted: Option<Planted>,
    disk: SimDisk,
    clock_ms: u64,
    node: Option<Node>,
    model: Model,
    audit: Audit,
    workload: Workload,
    follower: Follower,
    /// Whether a seal that a follower may have counted was damaged, and so cut.
    seal_cut: bool,
    /// The last entry that a caller was told was done.
    acknowledged: u64,
    /// The last entry that anybody was told anything of.
    told: u64,
    /// The last entry that the journal has called durable.
    durable: u64,
    /// The last entry of the batch that the disk was given and that may or may not be there.
    in_flight: Option<u64>,
    tally: Tally,
    trace: u64,
    /// Where the story of the run goes, if anybody listens.
    story: Option<fn(&str)>,
    /// For planted bugs that need an older state.
    keepsake: Keepsake,
}

/// What planted bugs keep for later.
#[derive(Default)]
struct Keepsake {
    image: Option<Image>,
    /// A process that was replaced, and the last durable entry then.
    replaced: Option<(Box<Node>, u64)>,
    /// Whether the bug has struck: most strike once.
    struck: bool,
    /// Whether the machine must lose its power before anything else is written.
    crash_next: bool,
}

impl World {
    fn new(seed: u64, planted: Option<Planted>) -> Self {
        let mut rng = Rng::new(seed);
        let mut plan = Plan::new(&mut rng);
        let disk = SimDisk::new(rng.fork());
        if let Some(planted) = planted {
            plan.damage = planted == Planted::MendQuietly;
            plan.odds = planted.odds(plan.odds);
            disk.set_lie(planted.lie());
        }
        let mut tally = Tally::ZERO;
        tally.one(Count::Seeds);
        Self {
            step: 0,
            planted,
            disk,
            clock_ms: 1_700_000_000_000 + rng.below(DAY_MS),
            node: None,
            model: Model::new(plan.limits.open_holds),
            audit: Audit::default(),
            workload: Workload::new(rng.fork(), plan.profile),
            follower: Follower::new(),
            seal_cut: false,
            plan,
            rng,
            acknowledged: 0,
            told: 0,
            durable: 0,
            in_flight: None,
            tally,
            trace: seed,
            story: None,
            keepsake: Keepsake::default(),
        }
    }

    fn config(&self) -> OpenConfig {
        OpenConfig {
            journal: Config { segment_bytes: SEGMENT_BYTES, id: JournalId([7; 16]), verify_threads: 1 },
            limits: self.plan.limits,
            keys_in_memory: Some(self.plan.keys_in_memory),
        }
    }

    fn run(mut self, seed: u64) -> Result<Report, Violation> {
        match self.all() {
            Ok(()) => Ok(self.report()),
            Err((check, what)) => Err(Violation { seed, step: self.step, check, what }),
        }
    }

    /// Tells a line of the story.
    fn say(&self, line: impl FnOnce() -> String) {
        if let Some(tell) = self.story {
            tell(&format!("{:>4}  {}", self.step, line()));
        }
    }

    fn all(&mut self) -> Result<(), Found> {
        self.restart()?;
        self.prefill()?;
        while self.step < self.plan.steps {
            self.step += 1;
            self.one_step()?;
        }
        self.finish()
    }

    fn report(mut self) -> Report {
        self.tally.add(Count::Steps, u64::from(self.step));
        self.tally.add(Count::Applied, self.model.entries());
        for fault in Fault::ALL {
            self.tally.set_fault(fault, self.disk.count(fault));
        }
        self.note(self.disk.operations());
        Report { tally: self.tally, trace: self.trace }
    }

    /// Puts something that happened into the trace.
    fn note(&mut self, word: u64) {
        self.trace = (self.trace.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
}
