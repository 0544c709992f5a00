//! The great run: charges made on the real server while it is killed again and again, told to a peer that misbehaves, until
//! all is delivered. Then the peer's book is held against ours, charge by charge.
//!
//! ```text
//!  charger ─socket─▶ holdfast serve ─▶ journal ─▶ dispatcher ─HTTP─▶ hostile peer ─▶ its book
//!                        ▲ kill -9, start                                              │
//!                        └──────────────── journal cat ─▶ judge ◀──────────────────────┘
//! ```
//!
//! Some charges the peer refuses for good. They become dead letters, and come back by the operator's `replay --all-since` once
//! the peer has relented.
//!
//! # Invariants
//! - What is charged, refused and answered follows from the seed; when a kill falls does not.
//! - The judge knows our books only from `journal cat`, and the peer's only from the peer.

mod charger;
mod judge;
mod plan;
mod site;

pub use judge::Finding;
pub use site::Store;

use crate::outside::OutsideError;
use crate::peer::Plant;
use crate::rng::Rng;
use judge::judge;
use plan::Plan;
use site::Site;
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What is done.
#[derive(Debug, Clone)]
pub struct Options {
    /// The program.
    pub holdfast: PathBuf,
    /// How many charges are made.
    pub charges: u64,
    /// How often the server is killed.
    pub kills: u64,
    /// Where obligations wait.
    pub store: Store,
    /// What everything random follows from.
    pub seed: u64,
    /// A bug in the peer.
    pub plant: Option<Plant>,
    /// An empty directory.
    pub directory: PathBuf,
}

/// What came of it.
#[derive(Debug)]
pub struct Report {
    committed: u64,
    released: u64,
    kills: u64,
    store_kills: u64,
    calls: u64,
    absences: u64,
    asked_most: u64,
    revived: u64,
    charging: Duration,
    took: Duration,
    /// What is wrong.
    pub findings: Vec<Finding>,
}

/// Does the run.
///
/// # Errors
/// If something could not be tried at all, or does not come to an end; what is wrong with the books is in the report.
pub fn run(options: &Options) -> Result<Report, OutsideError> {
    let mut rng = Rng::new(options.seed);
    let plan = Plan::new(options.charges, options.seed, &mut rng.fork());
    let began = Instant::now();
    let mut site = Site::start(options, rng.fork())?;
    let charging = site.charge_and_kill(&plan, options.kills)?;
    let revived = site.until_settled(plan.committed())?;
    let took = began.elapsed();
    site.stop()?;
    let (ours, book) = (site.journal()?, site.book());
    let findings = judge(&plan, &ours, &book);
    Ok(Report {
        committed: plan.committed(),
        released: options.charges - plan.committed(),
        kills: options.kills - site.store_kills,
        store_kills: site.store_kills,
        calls: book.calls,
        absences: book.absences,
        asked_most: book.rows.values().map(|row| row.asked).max().unwrap_or(0),
        revived,
        charging,
        took,
        findings,
    })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { committed, released, kills, store_kills, calls, absences, asked_most, revived, .. } = self;
        let seconds = self.took.as_secs_f64();
        writeln!(f, "{committed} charges committed, {released} released, in {:.1} s", self.charging.as_secs_f64())?;
        writeln!(f, "{kills} kills of the server, {store_kills} of its store")?;
        writeln!(f, "{calls} calls to the peer, {asked_most} at most for one charge; it went away {absences} times")?;
        writeln!(f, "{revived} dead letters were replayed once the peer had relented")?;
        writeln!(f, "all settled after {seconds:.1} s: {:.0} charges a second", *committed as f64 / seconds)?;
        writeln!(f, "{} differences between the peer's book and ours", self.findings.len())
    }
}
