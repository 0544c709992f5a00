//! What a process and all it has started use: processor time and resident memory, read from `/proc`.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

/// Processor time of a process and its descendants, with that of children which have ended.
#[must_use]
pub fn processor_time(pid: u32) -> Duration {
    from_ticks(tree(pid).iter().filter_map(|pid| stat(*pid)).map(|stat| stat.own_ticks + stat.childrens_ticks).sum())
}

fn from_ticks(ticks: u64) -> Duration {
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    Duration::from_millis(ticks.saturating_mul(1_000) / per_second)
}

/// Processor time of a process alone: of one whose children are measured apart.
#[must_use]
pub fn processor_time_alone(pid: u32) -> Duration {
    from_ticks(stat(pid).map_or(0, |stat| stat.own_ticks))
}

/// Resident memory of a process and its descendants, in bytes; what they share counts for each.
#[must_use]
pub fn resident_bytes(pid: u32) -> u64 {
    let page = rustix::param::page_size() as u64;
    let pages = tree(pid).into_iter().filter_map(|pid| {
        let text = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
        text.split(' ').nth(1)?.parse::<u64>().ok()
    });
    pages.sum::<u64>() * page
}

/// The process and its descendants.
fn tree(root: u32) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parents: BTreeMap<u32, u32> = pids.filter_map(|pid| Some((pid, stat(pid)?.parent))).collect();
    descendants(root, &parents)
}

fn descendants(root: u32, parents: &BTreeMap<u32, u32>) -> Vec<u32> {
    let mut found = vec![root];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(parents.iter().filter(|(_, of)| **of == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    found
}

#[derive(Debug, PartialEq, Eq)]
struct Stat {
    parent: u32,
    own_ticks: u64,
    childrens_ticks: u64,
}

fn stat(pid: u32) -> Option<Stat> {
    parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// `PID (NAME) STATE PARENT …`; the name may hold brackets, so the fields begin after its last one. Fields 14 to 17 are the
/// ticks of the process and of its children that have ended, each in user and system mode.
fn parse(line: &str) -> Option<Stat> {
    let (_, fields) = line.rsplit_once(") ")?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let sum = |fields: &[&str]| fields.iter().map(|field| field.parse::<u64>()).sum::<Result<u64, _>>().ok();
    let (own_ticks, childrens_ticks) = (sum(fields.get(11..13)?)?, sum(fields.get(13..15)?)?);
    Some(Stat { parent: fields.get(1)?.parse().ok()?, own_ticks, childrens_ticks })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_read_whatever_the_name_of_the_process() {
        let line = "7 (a (b) c) S 3 7 7 0 -1 4194560 100 0 0 0 10 20 3 4 20 0 1 0 100 0 0";
        assert_eq!(parse(line), Some(Stat { parent: 3, own_ticks: 30, childrens_ticks: 7 }));
        assert_eq!(parse("7 (short) S 3"), None);
    }

    #[test]
    fn a_tree_has_grandchildren_and_no_strangers() {
        let parents = BTreeMap::from([(2, 1), (3, 2), (4, 3), (5, 1), (6, 5)]);
        assert_eq!(descendants(2, &parents), [2, 3, 4]);
        assert_eq!(descendants(9, &parents), [9]);
    }

    #[test]
    fn we_ourselves_use_memory() {
        assert!(resident_bytes(std::process::id()) > 0);
    }
}
