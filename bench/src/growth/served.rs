//! The memory of `holdfast serve` itself over a long history, as the kernel sees it: no caller is in it, and no benchmark.
//!
//! Batches of reserves and of their commits go through the control socket, over all accounts in turn, and the memory is looked
//! at after every part of the history. What grows with the accounts has grown when the first of them are funded; what still
//! grows after that grows with history.

use super::{Page, Size, disk_use, payer_of};
use crate::error::BenchError;
use crate::plan::Plan;
use crate::servers::holdfast::Served;
use crate::servers::line::{Line, mint};
use std::fs;
use std::time::Instant;

/// The subject whose figures these are.
pub const SUBJECT: &str = "served";
/// The history is looked at in so many parts.
const PARTS: u64 = 20;

/// Fills the books of a server and looks at its memory on the way.
pub(super) fn run(size: &Size, plan: &Plan, page: &mut Page<'_>) -> Result<(), BenchError> {
    let dir = plan.sandbox.fresh(SUBJECT)?;
    let data = dir.join("data");
    let served = Served::start(&dir, &data, &[])?;
    let pid = served.server.pid();
    let mut line = Line::connect(&served.socket)?;
    page.memory("no accounts", &Memory::of(pid)?);
    line.send_all(size.accounts, 0, plan, mint)?;
    page.memory("accounts, no pairs", &Memory::of(pid)?);
    let part = size.pairs / PARTS;
    let mut resident = Vec::new();
    for number in 0..PARTS {
        let began = Instant::now();
        line.settle(number * part..(number + 1) * part, |pair| payer_of(pair, size.accounts), plan)?;
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

#[cfg(test)]
mod tests {
    use super::*;

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
