//! Runs in which the Nth system call of a kind fails, or kills: the program refuses to start, or stops, or goes on, and is
//! right in each case.

use super::check::{Depth, check, close};
use super::client::{Connection, Pace};
use super::kills::new_site;
use super::server::{Death, NotReady, Server};
use super::site::{Context, Load, Site};
use super::strace::{self, Call};
use super::tally::{Struck, Tally};
use super::{Limits, Stop};
use holdfast_simulator::rng::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

/// A data directory is used for so many runs, so that a third of them begin with an empty one or a young one.
const RUNS_PER_SITE: u64 = 12;
/// How long a server is loaded: under `strace` it gets through some thousand calls in that time.
const WINDOW: Duration = Duration::from_millis(400);
/// How long a server whose journal has failed may take to end.
const END_WITHIN: Duration = Duration::from_secs(5);

/// A kind of call and what happens to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    call: &'static str,
    effect: &'static str,
}

const KILL: &str = "signal=SIGKILL";
const EIO: &str = "error=EIO";
const ENOSPC: &str = "error=ENOSPC";

/// Every kind that is tried.
fn kinds() -> Vec<Kind> {
    let with = |call: &'static str| {
        let effects: &[&'static str] = match call {
            "pwritev2" | "pwrite64" | "write" | "openat" | "ftruncate" | "mkdir" => &[EIO, ENOSPC, KILL],
            _ => &[EIO, KILL],
        };
        effects.iter().map(move |effect| Kind { call, effect })
    };
    strace::TRACED.into_iter().flat_map(with).collect()
}

/// Which calls of each name touch the data directory, by their number within their thread.
type Points = BTreeMap<&'static str, Vec<u64>>;

/// Does the runs.
pub(crate) fn run(context: &Context, limits: &Limits, runs: u64, rng: &mut Rng, tally: &mut Tally) -> Result<(), Stop> {
    if runs == 0 {
        return Ok(());
    }
    strace::is_permitted().map_err(Stop)?;
    let points = probe(context, rng)?;
    let kinds = kinds();
    let mut site: Option<Site> = None;
    for run in 0..runs {
        if limits.is_over(tally) {
            break;
        }
        if run.is_multiple_of(RUNS_PER_SITE) {
            close(context, limits, site.take(), rng, tally)?;
        }
        let site_now = match &mut site {
            Some(site) => site,
            None => site.insert(new_site(context, &format!("syscall-{run}"), rng)?),
        };
        let kind = kinds[(run % kinds.len() as u64) as usize];
        let Some(when) = choose(&points, kind, run / kinds.len() as u64, rng) else { continue };
        let findings = one_run(context, site_now, kind, when, rng, tally)?;
        if !findings.is_empty() {
            context.janitor.keep();
            let Kind { call, effect } = kind;
            let place = format!("system call run {run} of seed {}, {call}:{effect}:when={when}", limits.seed);
            tally.violation(&place, &findings, &site_now.directory);
            site = None;
        }
        limits.progress("system call run", run + 1, runs, tally);
    }
    close(context, limits, site, rng, tally)
}

/// The call to strike: in turn the lowest ones, and any.
fn choose(points: &Points, kind: Kind, round: u64, rng: &mut Rng) -> Option<u64> {
    let candidates = points.get(kind.call)?;
    let low = candidates.get((round / 2) as usize).copied();
    if round.is_multiple_of(2) { low.or_else(|| rng.pick(candidates)) } else { rng.pick(candidates) }
}

/// Finds out which calls there are, on an empty directory and then on the same one, grown.
fn probe(context: &Context, rng: &mut Rng) -> Result<Points, Stop> {
    let mut site = new_site(context, "probe", rng)?;
    let mut found: BTreeMap<&'static str, BTreeSet<u64>> = BTreeMap::new();
    for round in 0..2 {
        let log = site.directory.join(format!("strace-{round}.txt"));
        let mut launch = site.launch(context);
        launch.strace = Some(strace::arguments(&log, None));
        let started = launch.start().map_err(Stop::because("the server cannot be started under strace"))?;
        let mut server = started.map_err(Stop::because("the server does not start under strace"))?;
        let pid = server.pid();
        let load = Load { pace: Pace::WithPauses, window: WINDOW };
        let gathered = site.load(&mut server, &load, rng, |server| server.kill());
        site.take_in(gathered);
        for call in strace::read(&log, pid).into_iter().filter(|call| call.touches(site.data())) {
            found.entry(call.name).or_default().insert(call.ordinal);
        }
    }
    let _later = fs::remove_dir_all(&site.directory);
    Ok(found.into_iter().map(|(name, ordinals)| (name, ordinals.into_iter().collect())).collect())
}

/// What one struck server came to.
enum Came {
    NotReady(NotReady),
    Ended(Death),
    /// It was still there at the end; whether it still answered.
    WentOn {
        answers: bool,
    },
}

fn one_run(
    context: &Context,
    site: &mut Site,
    kind: Kind,
    when: u64,
    rng: &mut Rng,
    tally: &mut Tally,
) -> Result<Vec<String>, Stop> {
    let Kind { call, effect } = kind;
    let log = site.directory.join("strace.txt");
    let _not_there = fs::remove_file(&log);
    let mut launch = site.launch(context);
    launch.strace = Some(strace::arguments(&log, Some(format!("{call}:{effect}:when={when}"))));
    let mut server = launch.spawn().map_err(Stop::because("the server cannot be started under strace"))?;
    let pid = server.pid();
    let mut findings = Vec::new();
    let came = match server.wait_ready() {
        Err(not_ready) => Came::NotReady(not_ready),
        Ok(()) => {
            let load = Load { pace: if rng.one_in(2) { Pace::WithPauses } else { Pace::Busy }, window: WINDOW };
            let gathered = site.load(&mut server, &load, rng, finish);
            let loaded = site.take_in(gathered);
            tally.acknowledged += loaded.acknowledged;
            tally.repeated += loaded.repeated;
            findings.extend(loaded.complaints);
            loaded.death.map_or(loaded.finished, Came::Ended)
        }
    };
    server.kill();
    let calls = strace::read(&log, pid);
    let struck = tally.syscalls.entry(format!("{call} {effect}")).or_default();
    findings.extend(judge(kind, &came, &calls, struck));
    if findings.is_empty() {
        findings.extend(check(context, site, Depth::Journal, rng, tally)?);
    }
    Ok(findings)
}

/// Waits for the end of a server that is about to end, and else asks it something.
fn finish(server: &mut Server<'_>) -> Came {
    let answer = Connection::open(&server.socket()).and_then(|mut connection| connection.ask(r#"{"op":"totals"}"#));
    let answers = answer.is_ok_and(|answer| answer.get("ok").is_some_and(|ok| ok == true));
    // One that does not answer has a failed journal, or is lost.
    let patience = if answers { Duration::ZERO } else { END_WITHIN };
    server.wait_end(patience).map_or(Came::WentOn { answers }, Came::Ended)
}

/// What is wrong with what a struck server came to.
fn judge(kind: Kind, came: &Came, calls: &[Call], struck: &mut Struck) -> Vec<String> {
    // Each thread counts its own calls, so more than one may have been struck.
    let hits: Vec<&Call> = calls.iter().filter(|call| call.injected).collect();
    let wrong = |what: String| std::iter::once(what).chain(hits.iter().map(|call| format!("struck: {call}"))).collect();
    match came {
        Came::NotReady(NotReady::Died(death)) | Came::Ended(death) if kind.effect == KILL && death.is_kill() => {
            struck.killed += 1;
            Vec::new()
        }
        Came::NotReady(NotReady::Died(death)) | Came::Ended(death)
            if death.is_of_runtime() && hits.iter().any(|call| call.is_of_runtime()) =>
        {
            struck.not_reached += 1;
            Vec::new()
        }
        Came::NotReady(NotReady::Died(death)) if death.is_clear_refusal() && !hits.is_empty() => {
            struck.refused_to_start += 1;
            Vec::new()
        }
        Came::NotReady(not_ready) => wrong(format!("at its start {not_ready}")),
        Came::Ended(death) => {
            let is_said = death.is_clear_refusal() && death.stderr.contains("SERVICE_JOURNAL_FAILED");
            if !is_said || !hits.iter().any(|call| call.is_of_journal()) {
                return wrong(format!("the server ended with {death}"));
            }
            struck.stopped += 1;
            written_again(calls)
                .map(|call| wrong(format!("after its failure the journal was written: {call}")))
                .unwrap_or_default()
        }
        Came::WentOn { .. } if hits.is_empty() => {
            struck.not_reached += 1;
            Vec::new()
        }
        Came::WentOn { .. } if hits.iter().any(|call| call.writes_segment()) => {
            wrong("the journal was struck, and the server goes on".to_owned())
        }
        Came::WentOn { answers: false } => wrong("the server neither answers nor ends".to_owned()),
        Came::WentOn { answers: true } => {
            struck.went_on += 1;
            Vec::new()
        }
    }
}

/// A write or sync of a segment after one that failed: what it would make durable may not be what was meant.
fn written_again(calls: &[Call]) -> Option<&Call> {
    calls.iter().skip_while(|call| !(call.injected && call.writes_segment())).skip(1).find(|call| call.writes_segment())
}
