//! The memory of `holdfast serve` itself over a long history, as the kernel sees it: no caller is in it, and no benchmark.
//!
//! Batches of reserves and of their commits go through the control socket, over all accounts in turn, and the memory is looked
//! at after every part of the history. What grows with the accounts has grown when the first of them are funded; what still
//! grows after that grows with history.

use super::{FUNDS, Page, Size, disk_use, payer_of};
use crate::error::BenchError;
use crate::ledger::work::HELD;
use crate::plan::Plan;
use crate::servers::holdfast::Served;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

/// The subject whose figures these are.
pub const SUBJECT: &str = "served";
/// The history is looked at in so many parts.
const PARTS: u64 = 20;
const BATCH: u64 = 4_096;
/// Lines on the way at once: the server reads the next while it does the last.
const LINES_AHEAD: usize = 4;

/// Fills the books of a server and looks at its memory on the way.
pub(super) fn run(size: &Size, plan: &Plan, page: &mut Page<'_>) -> Result<(), BenchError> {
    let dir = plan.sandbox.fresh(SUBJECT)?;
    let data = dir.join("data");
    let served = Served::start(&dir, &data)?;
    let pid = served.server.pid();
    let mut line = Line::connect(&served.socket)?;
    page.memory("no accounts", &Memory::of(pid)?);
    line.send_all(size.accounts, 0, plan, mint)?;
    page.memory("accounts, no pairs", &Memory::of(pid)?);
    let part = size.pairs / PARTS;
    let mut resident = Vec::new();
    for number in 0..PARTS {
        let began = Instant::now();
        line.settle(number * part..(number + 1) * part, size.accounts, plan)?;
        let case = format!("after {} k pairs", (number + 1) * part / 1_000);
        page.number(&case, "throughput", part as f64 / began.elapsed().as_secs_f64(), "pairs/s");
        let memory = Memory::of(pid)?;
        page.memory(&case, &memory);
        resident.push(memory.resident);
    }
    page.number("last quarter", "growth of resident memory", growth(&resident), "MB");
    drop((line, served));
    disk_use(&data, (part * PARTS) as f64, page)?;
    plan.sandbox.discard(SUBJECT);
    Ok(())
}

/// By how much the memory of the last quarter is above that of the quarter before, each on average: one look may fall into the
/// writing of a snapshot or of a run of keys.
fn growth(resident: &[f64]) -> f64 {
    let quarter = resident.len() / 4;
    let average = |looks: &[f64]| looks.iter().sum::<f64>() / looks.len().max(1) as f64;
    let (before, last) = resident[resident.len() - 2 * quarter..].split_at(quarter);
    average(last) - average(before)
}

/// What of a process is in memory, in MB.
struct Memory {
    resident: f64,
    /// Of that, what it allocated.
    anonymous: f64,
    /// Of that, pages of files: its own code.
    files: f64,
    /// The most it ever had.
    peak: f64,
}

impl Memory {
    fn of(pid: u32) -> Result<Self, BenchError> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).map_err(BenchError::io("look at the server"))?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
            kilobytes.map(|kilobytes| kilobytes / 1_024.0).ok_or_else(|| BenchError::NotApplied(format!("no {name}")))
        };
        Ok(Self {
            resident: field("VmRSS")?,
            anonymous: field("RssAnon")?,
            files: field("RssFile")?,
            peak: field("VmHWM")?,
        })
    }
}

impl Page<'_> {
    fn memory(&mut self, case: &str, memory: &Memory) {
        self.number(case, "resident memory", memory.resident, "MB");
        self.number(case, "of it allocated", memory.anonymous, "MB");
        self.number(case, "of it files", memory.files, "MB");
        self.number(case, "most so far", memory.peak, "MB");
    }
}

/// A connection to the control socket.
struct Line {
    stream: BufReader<UnixStream>,
    text: String,
    /// How many requests each line on the way has, oldest first.
    ahead: std::collections::VecDeque<u64>,
}

impl Line {
    fn connect(socket: &Path) -> Result<Self, BenchError> {
        let stream = UnixStream::connect(socket).map_err(BenchError::io("connect to the control socket"))?;
        Ok(Self { stream: BufReader::with_capacity(1 << 20, stream), text: String::new(), ahead: Default::default() })
    }

    /// Sends `count` requests, the first about `from`, and waits until all are applied.
    fn send_all(
        &mut self,
        count: u64,
        from: u64,
        plan: &Plan,
        request: fn(&mut String, u64),
    ) -> Result<(), BenchError> {
        for first in (from..from + count).step_by(BATCH as usize) {
            plan.stop.check()?;
            self.send(first..(from + count).min(first + BATCH), request)?;
        }
        self.hear_all()
    }

    /// Reserves and commits the pairs of a part of the history.
    fn settle(&mut self, pairs: Range<u64>, accounts: u64, plan: &Plan) -> Result<(), BenchError> {
        for first in pairs.clone().step_by(BATCH as usize) {
            plan.stop.check()?;
            let batch = first..pairs.end.min(first + BATCH);
            self.send(batch.clone(), |text, pair| reserve(text, pair, payer_of(pair, accounts)))?;
            self.send(batch, commit)?;
        }
        self.hear_all()
    }

    fn send(&mut self, numbers: Range<u64>, request: impl Fn(&mut String, u64)) -> Result<(), BenchError> {
        self.text.clear();
        self.text.push_str(r#"{"op":"batch","requests":["#);
        self.ahead.push_back(numbers.end - numbers.start);
        for number in numbers {
            request(&mut self.text, number);
            self.text.push(',');
        }
        self.text.pop();
        self.text.push_str("]}\n");
        let sent = self.stream.get_mut().write_all(self.text.as_bytes());
        sent.map_err(BenchError::io("write to the control socket"))?;
        if self.ahead.len() >= LINES_AHEAD { self.hear() } else { Ok(()) }
    }

    fn hear_all(&mut self) -> Result<(), BenchError> {
        while !self.ahead.is_empty() {
            self.hear()?;
        }
        Ok(())
    }

    /// Reads the oldest answer; every request of it must have been applied.
    fn hear(&mut self) -> Result<(), BenchError> {
        let Some(expected) = self.ahead.pop_front() else { return Ok(()) };
        self.text.clear();
        self.stream.read_line(&mut self.text).map_err(BenchError::io("read from the control socket"))?;
        let applied = self.text.matches(r#""outcome":"applied""#).count() as u64;
        if applied == expected {
            return Ok(());
        }
        let at = self.text.find(r#""ok":false"#).unwrap_or(0);
        let said = self.text.get(at..).unwrap_or_default().chars().take(300).collect();
        Err(BenchError::NotApplied(said))
    }
}

/// Millionths of a credit as the wire has them: no zeros at the end of the fraction.
fn credits(units: u64) -> String {
    let text = format!("{}.{:06}", units / 1_000_000, units % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn mint(text: &mut String, account: u64) {
    let amount = credits(FUNDS);
    let _infallible = write!(
        text,
        r#"{{"op":"mint","account":"payer-{account:07}","amount_cu":"{amount}","reason":"benchmark funds","key":"fund-{account}"}}"#
    );
}

fn reserve(text: &mut String, pair: u64, payer: u64) {
    let amount = credits(HELD);
    let _infallible = write!(
        text,
        r#"{{"op":"reserve","account":"payer-{payer:07}","amount_cu":"{amount}","request_id":"req_{pair:022}"}}"#
    );
}

fn commit(text: &mut String, pair: u64) {
    let amount = credits(1 + pair % HELD);
    let _infallible = write!(text, r#"{{"op":"commit","id":"req_{pair:022}","actual_cu":"{amount}"}}"#);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_json_and_amounts_are_written_as_the_wire_wants_them() {
        let mut text = String::new();
        for (op, request) in [("mint", mint as fn(&mut String, u64)), ("commit", commit)] {
            text.clear();
            request(&mut text, 7);
            let value: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!(value["op"], op);
        }
        text.clear();
        reserve(&mut text, 8, 9);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&value["account"], &value["amount_cu"]), (&"payer-0000009".into(), &"0.001".into()));
        let written = [1_000, 2_000_001, 1_000_000_000].map(credits);
        assert_eq!(written, ["0.001", "2.000001", "1000"]);
    }

    #[test]
    fn growth_is_the_last_quarter_above_the_one_before() {
        let check = |resident: &[f64], expected: f64| assert_eq!(growth(resident), expected);
        check(&[90.0, 1.0, 10.0, 12.0, 20.0, 30.0, 24.0, 30.0], 2.0);
        check(&[1.0], 0.0);
    }

    #[test]
    fn we_ourselves_have_memory() {
        let memory = Memory::of(std::process::id()).unwrap();
        assert!(memory.resident > 0.0 && memory.resident >= memory.anonymous && memory.peak >= memory.files);
    }
}
