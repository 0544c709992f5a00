//! A server that has nothing to do does next to nothing: no thread of it spins, and none wakes all the time.
//!
//! What is counted is what the kernel counts: ticks of processor time and how often a thread gave its core up. A loaded machine
//! makes neither larger for a process that sleeps, so these are no measurements of speed.

use crate::http_world::Site;
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

/// How long a server is watched at a time.
const WATCHED: Duration = Duration::from_secs(2);
/// A spinning thread has 200 of them in the time watched, and 20 if ten others want its core; an idle server has up to three.
const TICKS_MAX: u64 = 10;
/// A thread that looks around every millisecond has 2,000; all those of an idle server together have about 130.
const SLEEPS_MAX: u64 = 600;
/// What a start leaves to be done, and the last snapshot, may fill a few watches. A spin fills them all.
const WATCHES: usize = 15;

/// What a thread has used since it began.
#[derive(Debug, Clone, Copy, Default)]
struct Used {
    ticks: u64,
    sleeps: u64,
}

/// What every thread of a process has used, by its number and name.
fn used(pid: u32) -> BTreeMap<(u32, String), Used> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let ids = threads.map(|thread| thread.unwrap().file_name().into_string().unwrap().parse().unwrap());
    // A thread may end between being listed and being read; what it did is then not counted.
    ids.filter_map(|id: u32| {
        let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/task/{id}/{file}")).ok();
        let (stat, status) = (read("stat")?, read("status")?);
        let (name, fields) = stat.split_once(" (")?.1.rsplit_once(") ")?;
        // After the name: the state is field 3 of all, the ticks in user and system mode are fields 14 and 15.
        let ticks = fields.split(' ').skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum();
        let sleeps = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        Some(((id, name.to_owned()), Used { ticks, sleeps: sleeps.trim().parse().unwrap() }))
    })
    .collect()
}

/// What every thread uses while it is watched.
fn watch(pid: u32) -> BTreeMap<(u32, String), Used> {
    let before = used(pid);
    // Not waiting for anything: this is the time that is watched.
    std::thread::sleep(WATCHED);
    let mut after = used(pid);
    for (thread, used) in &mut after {
        let then = before.get(thread).copied().unwrap_or_default();
        *used = Used { ticks: used.ticks - then.ticks, sleeps: used.sleeps - then.sleeps };
    }
    after
}

/// Watches a process until it has been idle once.
#[track_caller]
fn assert_comes_to_rest(pid: u32) {
    let mut last = BTreeMap::new();
    let rests = (0..WATCHES).any(|_| {
        last = watch(pid);
        let ticks: u64 = last.values().map(|used| used.ticks).sum();
        let sleeps: u64 = last.values().map(|used| used.sleeps).sum();
        ticks <= TICKS_MAX && sleeps <= SLEEPS_MAX
    });
    last.retain(|_, used| used.ticks > 0 || used.sleeps > SLEEPS_MAX / 10);
    assert!(rests, "an idle server does not rest; in {WATCHED:?} its threads used {last:#?}");
}

#[test]
fn a_server_with_nothing_to_do_does_next_to_nothing() {
    let site = Site::open();
    let mut client = site.server.client();
    for number in 0..100 {
        let id = format!("r{number}");
        client.ok(json!({ "op": "reserve", "account": "alice", "amount_cu": "0.1", "request_id": id }));
        client.ok(json!({ "op": "commit", "id": id, "actual_cu": "0.1" }));
    }
    // Both doors stay open, and a hold waits for its end.
    site.hold("open", "1");
    assert_eq!(site.balance(), (json!("89"), json!("1")));
    assert_comes_to_rest(site.server.pid());
    client.ok(json!({ "op": "balance", "account": "alice" }));
    site.server.stop();
}
