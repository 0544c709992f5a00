//! `bench growth`: what a long history costs. Ten million settled reservations over a million accounts, then memory, disk, start-up,
//! rebuild, a minute at full load, and at last speed: books with all that history and books with the same accounts and none
//! take short turns, so that a noisy second of the machine hits them alike. The same history is then made through a
//! server, to see the memory of that process alone.

pub mod served;

use crate::error::BenchError;
use crate::ledger::drive::{Driven, drive, runtime};
use crate::ledger::holdfast::{Direct, Running, commit, config, reserve};
use crate::ledger::work::{Order, Work};
use crate::ledger::{Case, Choice, Measured};
use crate::plan::{Pace, Plan};
use crate::report::{Report, Row, readable};
use holdfast_adapters::ReadModel;
use holdfast_engine::recovery;
use holdfast_engine::{Policy, Projection, Tail};
use holdfast_journal::LocalDisk;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The name of the benchmark and of its file.
pub const NAME: &str = "growth";
/// The subject whose figures these are.
pub const OURS: &str = "holdfast";

/// How much history is made.
#[derive(Clone, Copy)]
struct Size {
    accounts: u64,
    pairs: u64,
    sustained: Duration,
}

const fn size(pace: Pace) -> Size {
    match pace {
        Pace::Full => Size { accounts: 1_000_000, pairs: 10_000_000, sustained: Duration::from_secs(60) },
        Pace::Quick => Size { accounts: 100_000, pairs: 500_000, sustained: Duration::from_secs(5) },
    }
}

/// Callers at once while speed is measured, one operation each.
const MANY: Case = Case { callers: 1_024, batch: 1 };
pub(crate) const FUNDS: u64 = 1_000_000_000;
/// How many turns the books with a history and those without take.
const TURNS: u32 = 10;
/// The lag that counts as keeping up: a second's worth.
const KEEPING_UP: u64 = 200_000;

/// Runs it.
///
/// # Errors
/// If an operation is refused or the disk fails.
pub fn run(pace: Pace, plan: &mut Plan, choice: &Choice, report: &mut Report) -> Result<(), BenchError> {
    let is_chosen = |name: &str| choice.subject.as_ref().is_none_or(|only| only == name);
    let size = size(pace);
    if is_chosen(OURS) {
        in_process(&size, plan, &mut Page { report, subject: OURS })?;
    }
    if is_chosen(served::SUBJECT) {
        served::run(&size, plan, &mut Page { report, subject: served::SUBJECT })?;
    }
    Ok(())
}

fn in_process(size: &Size, plan: &mut Plan, page: &mut Page<'_>) -> Result<(), BenchError> {
    let dir = plan.sandbox.fresh(NAME)?;
    let running = Running::start(&dir, Policy::STANDARD)?;
    running.fund(size.accounts, FUNDS)?;
    fill(&running, size, plan)?;
    running.catch_up()?;
    page.number("after history", "resident memory", resident_mb()?, "MB");
    fill(&running, &Size { pairs: size.pairs / 10, ..*size }, plan)?;
    running.catch_up()?;
    page.number("a tenth more history", "resident memory", resident_mb()?, "MB");
    let pairs = running.engine.health().durable.saturating_sub(size.accounts) / 2;
    running.stop()?;
    disk_use(&dir, pairs as f64, page)?;
    starts(&dir, page)?;
    let turn = plan.duration / 5;
    plan.duration = size.sustained;
    sustained(&dir, plan, page)?;
    (plan.warm_up, plan.duration) = (turn / 2, turn);
    speeds(&dir, size, plan, page)?;
    plan.sandbox.discard(NAME);
    Ok(())
}

/// The speed of the books at `dir`, which have a history by now, and that of empty ones, in turns.
fn speeds(dir: &Path, size: &Size, plan: &Plan, page: &mut Page<'_>) -> Result<(), BenchError> {
    const EMPTY: &str = "growth-empty";
    let grown = Running::start(dir, Policy::STANDARD)?;
    let empty = Running::start(&plan.sandbox.fresh(EMPTY)?, Policy::STANDARD)?;
    empty.fund(size.accounts, FUNDS)?;
    let mut done = [Driven::default(), Driven::default()];
    for _ in 0..TURNS {
        for (running, done) in [&empty, &grown].into_iter().zip(&mut done) {
            done.add_turn(speed(running, plan)?);
            // What follows the journal is not left to run beside the other's turn.
            running.catch_up()?;
        }
    }
    let [empty_measured, grown_measured] = done.map(|done| done.measured());
    page.measured("empty start", &empty_measured);
    page.measured("after history", &grown_measured);
    let ratio = grown_measured.pairs_per_second / empty_measured.pairs_per_second;
    page.number("after history", "speed against the empty start", ratio, "×");
    empty.stop()?;
    grown.stop()?;
    plan.sandbox.discard(EMPTY);
    Ok(())
}

/// What is printed as it is found and goes into the report.
struct Page<'a> {
    report: &'a mut Report,
    subject: &'static str,
}

impl Page<'_> {
    fn number(&mut self, case: &str, metric: &'static str, value: f64, unit: &'static str) {
        eprintln!("{case:<22} {metric:<32} {} {unit}", readable(value));
        self.report.add(Row { subject: self.subject.to_owned(), case: case.to_owned(), metric, value, unit });
    }

    fn measured(&mut self, case: &str, measured: &Measured) {
        self.number(case, "throughput, 1,024 callers", measured.pairs_per_second, "pairs/s");
        self.number(case, "p50", measured.p50.as_secs_f64() * 1e3, "ms");
        self.number(case, "p99", measured.p99.as_secs_f64() * 1e3, "ms");
    }
}

/// Pairs a second by many callers at once, with ids that no other run uses.
fn speed(running: &Running, plan: &Plan) -> Result<Driven, BenchError> {
    let first = running.engine.health().durable;
    let callers = (0..MANY.callers).map(|_| Direct::starting(&running.engine, first << 12)).collect();
    runtime()?.block_on(drive(callers, MANY, plan))
}

/// Settles `pairs` reservations over all accounts, in large batches.
fn fill(running: &Running, size: &Size, plan: &Plan) -> Result<(), BenchError> {
    const BATCH: u64 = 4_096;
    let first = running.engine.health().durable << 12;
    let mut work = Work::of_caller(first);
    let mut orders: Vec<Order> = Vec::new();
    for done in (0..size.pairs).step_by(4_096) {
        plan.stop.check()?;
        work.fill(&mut orders, BATCH as usize);
        for (order, number) in orders.iter_mut().zip(done..) {
            order.hold = (first + number) | (1 << 62);
            order.payer = payer_of(number, size.accounts);
        }
        running.batch(&orders, reserve)?;
        running.batch(&orders, commit)?;
    }
    Ok(())
}

/// Who pays for a pair: a large odd step visits every account before any a second time, in no order that a cache would like.
const fn payer_of(pair: u64, accounts: u64) -> u64 {
    pair.wrapping_mul(7_368_787) % accounts
}

/// What the files of a data directory take a pair, by what they are.
fn disk_use(dir: &Path, pairs: f64, page: &mut Page<'_>) -> Result<(), BenchError> {
    let all = directory_bytes(dir)?;
    page.number("after history", "disk per pair, all files", all as f64 / pairs, "B");
    let mut rest = all;
    for (kind, metric) in
        [("journal", "journal per pair"), ("keys", "key index per pair"), ("snapshots", "snapshots per pair")]
    {
        let bytes = directory_bytes(&dir.join(kind))?;
        rest -= bytes;
        page.number("after history", metric, bytes as f64 / pairs, "B");
    }
    page.number("after history", "read model per pair", rest as f64 / pairs, "B");
    Ok(())
}

/// Start-up from the snapshot, and everything anew from the journal alone.
fn starts(dir: &Path, page: &mut Page<'_>) -> Result<(), BenchError> {
    let failed = |error: &dyn std::fmt::Display| BenchError::NotApplied(error.to_string());
    let disk = LocalDisk::at(dir).map_err(BenchError::io("open the data directory"))?;
    let began = Instant::now();
    let opened = recovery::open(disk.clone(), &config(), &mut |_| {}).map_err(|error| failed(&error))?;
    page.number("start", "from the snapshot, all verified", began.elapsed().as_secs_f64(), "s");
    let end = opened.journal.end();
    let id = opened.journal.id();
    drop(opened);
    recovery::forget_derived(&disk).map_err(BenchError::io("remove derived files"))?;
    let began = Instant::now();
    let rebuilt = std::thread::scope(|scope| {
        let books = scope.spawn(|| recovery::open(disk.clone(), &config(), &mut |_| {}).map(|_| began.elapsed()));
        let mut model = ReadModel::rebuild(dir, id).map_err(|error| failed(&error))?;
        let mut tail = Tail::new(disk.clone(), model.applied());
        while tail.feed(end.location, 65_536, &mut model).map_err(|error| failed(&error))? {}
        model.finish(dir).map_err(|error| failed(&error))?;
        let books = books.join().map_err(|_| failed(&"the rebuild panicked"))?.map_err(|error| failed(&error))?;
        Ok::<_, BenchError>((books, began.elapsed()))
    });
    let (books, all) = rebuilt?;
    let entries = (end.next_offset - 1) as f64;
    page.number("rebuild", "books and keys", entries / books.as_secs_f64(), "entries/s");
    page.number("rebuild", "books, keys and read model", entries / all.as_secs_f64(), "entries/s");
    Ok(())
}

/// A minute at full load with the derived stores never more than a second behind.
fn sustained(dir: &Path, plan: &Plan, page: &mut Page<'_>) -> Result<(), BenchError> {
    let running = Running::start(dir, Policy { lag_max: KEEPING_UP, ..Policy::STANDARD })?;
    let first = running.engine.health().durable << 12;
    let callers = (0..MANY.callers).map(|_| Direct::starting(&running.engine, first)).collect();
    let driven = runtime()?.block_on(drive(callers, MANY, plan))?;
    let health = running.engine.health();
    page.measured("sustained", &driven.measured());
    page.number("sustained", "duration", plan.duration.as_secs_f64(), "s");
    page.number("sustained", "read model behind at the end", (health.durable - health.applied) as f64, "entries");
    page.number("sustained", "resident memory", resident_mb()?, "MB");
    running.stop()
}

/// The memory of this process that is really in use, callers and all.
fn resident_mb() -> Result<f64, BenchError> {
    let status = fs::read_to_string("/proc/self/status").map_err(BenchError::io("read the process's status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
    kilobytes.map(|kilobytes| kilobytes / 1024.0).ok_or_else(|| BenchError::NotApplied("no VmRSS".to_owned()))
}

fn directory_bytes(dir: &Path) -> Result<u64, BenchError> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir).map_err(BenchError::io("list a directory"))? {
        let entry = entry.map_err(BenchError::io("list a directory"))?;
        let metadata = entry.metadata().map_err(BenchError::io("look at a file"))?;
        bytes += if metadata.is_dir() { directory_bytes(&entry.path())? } else { metadata.len() };
    }
    Ok(bytes)
}

impl Running {
    /// Waits until the read model has every entry.
    fn catch_up(&self) -> Result<(), BenchError> {
        loop {
            let health = self.engine.health();
            if let Some(failed) = health.read_model_failed.or(health.failed) {
                return Err(BenchError::NotApplied(failed));
            }
            if health.applied >= health.durable {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// So that `Direct` can be made here.
impl Direct {
    fn starting(engine: &Arc<holdfast_engine::Engine<LocalDisk>>, first: u64) -> Self {
        Self { engine: Arc::clone(engine), first }
    }
}
