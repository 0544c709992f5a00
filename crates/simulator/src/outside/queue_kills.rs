//! The queue and its wallet as real processes, either killed at every step of a settlement, and their books afterwards.
//!
//! ```text
//!  callers ─HTTP─▶ holdfast serve --role queue ─HTTP, signed─▶ holdfast serve --role wallet ─▶ journal
//!     │                    ▲ kill -9, start                            ▲ kill -9, start          │
//!     └────────── what they were told ────────▶ judge ◀──── items, escrows, journal cat ─────────┘
//! ```
//!
//! Callers hold, put in, take up and end work, several of them at once on the same item, and ask again whatever was not
//! answered. Both processes are armed all the time: whichever dies is started again with its next blow. When all blows have
//! fallen, both are killed once more together, and every item is judged beside its escrow, the journal and what callers were
//! told. What is open then is ended, and judged again. In one process it is the same with both services behind one door. Where
//! the books are in a database, the judge reads a journal that they were exported to.
//!
//! # Invariants
//! - What is asked follows from the seed; what happens at the same time does not.
//! - The judge knows money only from `journal cat`, and adds it up by itself.

mod caller;
mod judge;
mod reading;
mod side;
mod site;
mod story;
mod tally;

pub use tally::{Report, Row};

use super::OutsideError;
use super::gateway::Gateway;
use crate::rng::Rng;
use caller::Desk;
use side::Side;
use site::Site;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;
use story::Story;
use tokio::task::{JoinError, JoinSet};

/// How many ask at the same time.
const CALLERS: usize = 6;

/// How the two services run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Both in one process.
    One,
    /// Each in its own, with HTTP between them.
    Two,
}

/// Where the books and the items are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Books {
    /// In a data directory of each process.
    Directories,
    /// In one PostgreSQL that all of them share.
    Database,
}

/// A loss on purpose, which the judge must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plant {
    /// The queue loses its journal.
    Forgets,
}

/// What is killed, and how often.
#[derive(Debug, Clone)]
pub struct Options {
    /// The program.
    pub holdfast: PathBuf,
    /// How often, all in all.
    pub kills: u64,
    /// One process or two.
    pub shape: Shape,
    /// Where the books are.
    pub books: Books,
    /// What is lost on purpose.
    pub plant: Option<Plant>,
    /// What everything random follows from.
    pub seed: u64,
    /// An empty directory.
    pub directory: PathBuf,
}

/// Does the run.
///
/// # Errors
/// If something could not be tried at all; what is wrong with the books is in the report.
pub async fn run(options: &Options) -> Result<Report, OutsideError> {
    let began = Instant::now();
    let mut rng = Rng::new(options.seed);
    let (site, running) = Site::start(options, &mut rng).await?;
    let stop = Arc::new(AtomicBool::new(false));
    let (doors, next) = (site.doors.clone(), Arc::new(AtomicU64::new(0)));
    let desk = Desk { doors, seed: options.seed, next, stop: Arc::clone(&stop) };
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        callers.spawn(desk.clone().work());
    }
    let sides = site.sides(options.kills, &mut rng);
    let (running, rows) = strike(sides, running, &mut callers).await?;
    stop.store(true, Ordering::Relaxed);
    let mut stories = Vec::new();
    while let Some(ended) = callers.join_next().await {
        stories.extend(joined(ended)??);
    }
    let mut report = Report { rows, ..Report::default() };
    drop(running);
    if options.plant == Some(Plant::Forgets) {
        site.forget()?;
    }
    let running = site.start_again()?;
    site.judge(&mut stories, &mut report).await?;
    drop(running);
    site.verify()?;
    report.took = began.elapsed();
    Ok(report)
}

/// Has all blows fall on all sides at the same time. A caller that could not go on ends the run.
async fn strike(
    sides: Vec<Side>,
    running: Vec<Gateway>,
    callers: &mut JoinSet<Result<Vec<Story>, OutsideError>>,
) -> Result<(Vec<Gateway>, Vec<Row>), OutsideError> {
    let mut suffering = JoinSet::new();
    for (side, first) in sides.into_iter().zip(running) {
        suffering.spawn_blocking(move || side.suffer(first));
    }
    let (mut gateways, mut rows) = (Vec::new(), Vec::new());
    loop {
        tokio::select! {
            suffered = suffering.join_next() => match suffered {
                Some(ended) => {
                    let (gateway, of_side) = joined(ended)??;
                    gateways.push(gateway);
                    rows.extend(of_side);
                }
                None => return Ok((gateways, rows)),
            },
            Some(ended) = callers.join_next() => {
                joined(ended)??;
                return Err(OutsideError::answered("a caller", "ended before it was told to"));
            }
        }
    }
}

fn joined<T>(ended: Result<T, JoinError>) -> Result<T, OutsideError> {
    ended.map_err(|error| OutsideError::answered("a task", error.to_string()))
}
