//! The disk's own floor: what one caller can have synced at all, with no ledger on top.

use super::{Case, Measured, Outcome};
use crate::error::BenchError;
use crate::latency::Latencies;
use crate::plan::{Plan, Stop};
use crate::usage::processor_time_alone;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// About what one operation takes in a compact journal.
const RECORD_BYTES: usize = 200;
const FILE_BYTES: usize = 64 << 20;
const CHUNK_BYTES: usize = 1 << 20;

/// What it is.
#[must_use]
pub fn about() -> String {
    format!("pwrite of {RECORD_BYTES} B per operation into a zero-filled file, fdatasync per request; no ledger")
}

/// Writes and syncs twice a pair.
///
/// # Errors
/// If the disk fails.
pub fn measure(case: Case, dir: &Path, plan: &Plan) -> Result<Outcome, BenchError> {
    if case.callers > 1 {
        return Ok(Outcome::Missing("a bare loop has one caller".to_owned()));
    }
    let mut floor = Floor::new(case.batch, dir)?;
    floor.run(plan.warm_up, &plan.stop)?;
    let Bare { latencies, elapsed, .. } = floor.run(plan.duration, &plan.stop)?;
    let pairs = latencies.len() / 2 * case.batch;
    Ok(Outcome::Measured(Measured::new(pairs as u64, elapsed, &latencies)))
}

/// What the bare loop did.
#[derive(Debug, Default)]
pub struct Bare {
    /// Of each write with its sync.
    pub latencies: Latencies,
    /// Of all of them.
    pub elapsed: Duration,
    /// What the kernel, and next to nothing else, took of the processor for all of them.
    pub processor_time: Duration,
}

impl Bare {
    /// Adds what another turn did.
    pub fn add(&mut self, of_turn: Self) {
        let Self { latencies, elapsed, processor_time } = of_turn;
        self.latencies.merge(latencies);
        self.elapsed += elapsed;
        self.processor_time += processor_time;
    }
}

/// Written, not `fallocate`d: the first write into allocated space converts extents, and the sync then pays for it.
fn zero_filled(path: &Path) -> io::Result<File> {
    let mut file = File::create(path)?;
    let zeros = vec![0; CHUNK_BYTES];
    for _ in 0..FILE_BYTES / CHUNK_BYTES {
        file.write_all(&zeros)?;
    }
    file.sync_all()?;
    Ok(file)
}

/// The bare loop's file, and where in it the next record goes.
#[derive(Debug)]
pub struct Floor {
    file: File,
    offset: usize,
    record: Vec<u8>,
}

impl Floor {
    /// Makes a file in `dir` for records of `batch` operations each.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn new(batch: usize, dir: &Path) -> Result<Self, BenchError> {
        let path = dir.join("floor");
        let file = zero_filled(&path).map_err(BenchError::io(format!("fill {}", path.display())))?;
        Ok(Self { file, offset: 0, record: vec![0x5a; RECORD_BYTES * batch] })
    }

    /// Writes and syncs for so long.
    ///
    /// # Errors
    /// If interrupted, or if the disk fails.
    pub fn run(&mut self, duration: Duration, stop: &Stop) -> Result<Bare, BenchError> {
        let used = || processor_time_alone(std::process::id());
        let mut latencies = Latencies::default();
        let (before, began) = (used(), Instant::now());
        while began.elapsed() < duration {
            stop.check()?;
            for _half in ["reserve", "commit"] {
                let asked = Instant::now();
                self.write().map_err(BenchError::io("write and sync"))?;
                latencies.record(asked.elapsed());
            }
        }
        Ok(Bare { latencies, elapsed: began.elapsed(), processor_time: used().saturating_sub(before) })
    }

    fn write(&mut self) -> io::Result<()> {
        if self.offset + self.record.len() > FILE_BYTES {
            self.offset = 0;
        }
        self.file.write_all_at(&self.record, self.offset as u64)?;
        self.offset += self.record.len();
        self.file.sync_data()
    }
}
