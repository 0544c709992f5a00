//! `holdfast bench ledger`: reserve and commit in process, every answer synced, beside the floor that the disk sets.
//!
//! # Invariants
//! - The clock runs from the common start to the last answer, so nothing is counted whose time is not.
//! - The books must balance after the run: an engine that is fast and wrong has no figure.

use super::{Ended, Session};
use crate::books::Books;
use crate::failure::Failure;
use crate::node::{self, Node};
use crate::settings::Settings;
use crate::terminal;
use holdfast_domain::charge::{self, Actual, Finality, OnExpiry, Overrun, Reserve, Terms};
use holdfast_domain::{Budgets, ChargeId, CreditUnit, Label, OwnerId};
use holdfast_engine::{Answer, Command, Outcome, Request, TTL_DEFAULT};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::runtime::Builder;
use tokio::task::JoinSet;

/// About what one entry takes in the journal.
const RECORD_BYTES: usize = 160;
const FLOOR_FILE_BYTES: usize = 16 << 20;
/// Accounts that the work is spread over.
const OWNERS: u64 = 1_000;
const HELD: u64 = 1_000_000;
const FUNDS: u64 = 1_000_000_000_000_000;

/// What is measured.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    /// How long each measurement runs.
    pub(super) duration: Duration,
    /// How many ask at once.
    pub(super) callers: u32,
    /// How many requests each sends at once.
    pub(super) batch: u32,
}

/// What a run came to.
#[derive(Default)]
struct Tally {
    pairs: u64,
    took: Duration,
    /// Of each request, which is one reserve or commit, or a batch of them.
    nanos: Vec<u64>,
}

pub(super) fn ledger(session: &Session<'_>, plan: Plan) -> Result<(), Ended> {
    let home = beside(&session.cli.global.data);
    let directory = tempfile::Builder::new().prefix(".holdfast-bench-").tempdir_in(&home);
    let directory = directory.map_err(Failure::io(format!("make a directory in {}", home.display())))?;
    terminal::note(&format!("measuring for twice {} s in {}", plan.duration.as_secs(), home.display()));
    let floor = floor(directory.path(), plan).map_err(Failure::io("measure the disk"))?;
    let holdfast = holdfast(&directory.path().join("data"), &session.settings, plan)?;
    let rows = [row("append + fdatasync", 1, plan, floor), row("holdfast", plan.callers, plan, holdfast)];
    if session.output.is_json() {
        return rows.iter().try_for_each(|row| Ok(session.output.line(&row.to_string())?));
    }
    let fields = [
        ("subject", "subject"),
        ("callers", "callers"),
        ("batch", "batch"),
        ("pairs/s", "pairs_per_s"),
        ("p50 µs", "p50_us"),
        ("p99 µs", "p99_us"),
    ];
    Ok(session.output.rows(&rows, &fields)?)
}

/// The nearest directory around `data` that is there: the measured disk is the one that data would be on.
fn beside(data: &Path) -> PathBuf {
    let parent = data.parent().filter(|parent| !parent.as_os_str().is_empty() && parent.is_dir());
    parent.unwrap_or(Path::new(".")).to_owned()
}

fn row(subject: &str, callers: u32, plan: Plan, mut tally: Tally) -> Value {
    tally.nanos.sort_unstable();
    let percentile = |percent: usize| {
        let rank = (tally.nanos.len() * percent).div_ceil(100).saturating_sub(1);
        tally.nanos.get(rank).map_or(0, |nanos| nanos / 1_000)
    };
    let millis = u64::try_from(tally.took.as_millis()).unwrap_or(u64::MAX).max(1);
    json!({
        "subject": subject,
        "callers": callers,
        "batch": plan.batch,
        "pairs_per_s": tally.pairs * 1_000 / millis,
        "p50_us": percentile(50),
        "p99_us": percentile(99),
    })
}

/// One caller that writes as much as the journal would and syncs it, with no ledger on top.
fn floor(directory: &Path, plan: Plan) -> io::Result<Tally> {
    let mut file = File::create(directory.join("floor"))?;
    file.write_all(&vec![0; FLOOR_FILE_BYTES])?;
    file.sync_all()?;
    let record = vec![0x5a; RECORD_BYTES * plan.batch as usize];
    let (mut tally, mut at) = (Tally::default(), 0);
    let began = Instant::now();
    while began.elapsed() < plan.duration {
        for _half in ["reserve", "commit"] {
            let asked = Instant::now();
            file.write_all_at(&record, at)?;
            file.sync_data()?;
            tally.record(asked);
            at = (at + record.len() as u64) % (FLOOR_FILE_BYTES - record.len()) as u64;
        }
        tally.pairs += u64::from(plan.batch);
    }
    tally.took = began.elapsed();
    Ok(tally)
}

/// The embedded engine as `serve` starts it, read model included.
fn holdfast(data: &Path, settings: &Settings, plan: Plan) -> Result<Tally, Failure> {
    let node = Node::start(node::lock(data)?, data, settings, &mut |_| {})?;
    let funds: Vec<Request> = (0..OWNERS).map(fund).collect();
    let runtime = Builder::new_multi_thread().enable_all().build().map_err(Failure::io("start threads"))?;
    all_applied(runtime.block_on(node.books.submit_batch(funds)).map_err(wrong)?)?;
    let tally = runtime.block_on(drive(&node.books, plan))?;
    let totals = runtime.block_on(node.books.totals()).map_err(wrong)?;
    drop(runtime);
    node.stop()?;
    let (open, imbalance) = (totals.open_charges, totals.imbalance);
    if (open, imbalance) != (0, 0) {
        return Err(wrong(format!("{open} holds are open and the books are off by {imbalance}")));
    }
    Ok(tally)
}

fn wrong(what: impl std::fmt::Display) -> Failure {
    Failure::io("measure")(io::Error::other(what.to_string()))
}

fn all_applied(answers: Vec<Answer>) -> Result<(), Failure> {
    answers.into_iter().try_for_each(|answer| match answer {
        Ok(Outcome::Applied(_)) => Ok(()),
        Ok(Outcome::Replayed(receipt)) => Err(wrong(format!("taken for a replay of entry {}", receipt.offset))),
        Err(refusal) => Err(wrong(refusal)),
    })
}

async fn drive(books: &Books, plan: Plan) -> Result<Tally, Failure> {
    let began = Instant::now();
    // Every caller is in this set, and the set is waited for.
    let mut callers = JoinSet::new();
    for caller in 0..u64::from(plan.callers) {
        callers.spawn(work(books.clone(), caller, plan, began));
    }
    let mut total = Tally::default();
    while let Some(ended) = callers.join_next().await {
        let tally = ended.map_err(wrong)??;
        total.pairs += tally.pairs;
        total.nanos.extend(tally.nanos);
    }
    total.took = began.elapsed();
    Ok(total)
}

async fn work(books: Books, caller: u64, plan: Plan, began: Instant) -> Result<Tally, Failure> {
    let mut tally = Tally::default();
    let mut next = caller << 40;
    while began.elapsed() < plan.duration {
        let holds = next..next + u64::from(plan.batch);
        for request in [reserve, commit] {
            let asked = Instant::now();
            let answers = if plan.batch == 1 {
                vec![books.submit(request(holds.start)).await]
            } else {
                books.submit_batch(holds.clone().map(request).collect()).await.map_err(wrong)?
            };
            all_applied(answers)?;
            tally.record(asked);
        }
        next = holds.end;
        tally.pairs += u64::from(plan.batch);
    }
    Ok(tally)
}

impl Tally {
    fn record(&mut self, asked: Instant) {
        self.nanos.push(u64::try_from(asked.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }
}

fn actor() -> Label {
    "bench".parse().expect("a plain word")
}

fn owner(number: u64) -> OwnerId {
    format!("owner-{:04}", number % OWNERS).parse().expect("a plain name")
}

fn hold(number: u64) -> ChargeId {
    format!("req_{number:022}").parse().expect("a plain name")
}

fn units(units: u64) -> CreditUnit {
    CreditUnit::new(units).expect("far below the largest amount")
}

fn fund(number: u64) -> Request {
    let reason = "benchmark".parse().expect("one word");
    let command = Command::Mint { owner: owner(number), amount: units(FUNDS), reason };
    Request { key: Some(format!("fund-{number}").parse().expect("a plain key")), actor: actor(), command }
}

fn reserve(number: u64) -> Request {
    let terms = Terms { rates: None, overrun: Overrun::Cap, on_expiry: OnExpiry::Release };
    // Spread by a multiplier, so that neighbours do not share an account.
    let owner = owner(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32);
    let reserve = Reserve { owner, amount: units(HELD), terms, ttl: TTL_DEFAULT, budgets: Budgets::NONE };
    Request { key: None, actor: actor(), command: Command::Reserve { charge: hold(number), reserve } }
}

fn commit(number: u64) -> Request {
    let actual = Actual::Credits(units(1 + number % HELD));
    let command = charge::Command::Commit { actual, finality: Finality::Final };
    Request { key: None, actor: actor(), command: Command::Charge { charge: hold(number), command } }
}
