//! Kill cycles: load the server, kill it at a failpoint or at a random moment, start it again, check everything.

use super::check::{Depth, check_and, close};
use super::client::Pace;
use super::server::{Death, Layout, NotReady, Server};
use super::site::{Context, Load, Site};
use super::tally::{Reached, Tally};
use super::{Limits, Stop};
use holdfast_journal::failpoint;
use holdfast_simulator::rng::Rng;
use std::fs;
use std::time::Duration;

/// A data directory is used for so many cycles.
const CYCLES_PER_SITE: u64 = 50;
/// The whole journal is audited every so many cycles.
const AUDIT_EVERY: u64 = 10;
/// A failpoint that is not reached by then is not waited for.
const FAILPOINT_WINDOW: Duration = Duration::from_millis(300);
/// Each failpoint kills once in so many cycles: 20 times in 500.
const CYCLES_PER_KILL: u64 = 25;
/// How long a server that is told to stop may take.
const STOP_WITHIN: Duration = Duration::from_secs(10);

/// How a server is made to die.
enum Harm {
    Failpoint { name: &'static str, at: u64 },
    UnderLoad { after: Duration },
    AtStart { after: Duration },
}

impl std::fmt::Display for Harm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Failpoint { name, at } => write!(f, "a kill at {name}:{at}"),
            Self::UnderLoad { after } => write!(f, "a kill after {after:?} of load"),
            Self::AtStart { after } => write!(f, "a kill {after:?} after the start"),
        }
    }
}

/// Runs so many cycles, in directories whose names begin with `name`.
pub(crate) fn run(
    context: &Context,
    limits: &Limits,
    name: &str,
    cycles: u64,
    rng: &mut Rng,
    tally: &mut Tally,
) -> Result<(), Stop> {
    let mut site: Option<Site> = None;
    for cycle in 0..cycles {
        if limits.is_over(tally) {
            break;
        }
        if cycle.is_multiple_of(CYCLES_PER_SITE) {
            close(context, limits, site.take(), rng, tally)?;
        }
        let site_now = match &mut site {
            Some(site) => site,
            None => site.insert(new_site(context, &format!("{name}-{cycle}"), rng)?),
        };
        let harm = choose(rng, tally);
        tally.cycles += 1;
        let findings = one_cycle(context, site_now, &harm, Depth::of(cycle, AUDIT_EVERY), rng, tally)?;
        if !findings.is_empty() {
            context.janitor.keep();
            let place = format!("{name}, cycle {cycle} of seed {}, {harm}", limits.seed);
            tally.violation(&place, &findings, &site_now.directory);
            site = None;
        }
        limits.progress(name, cycle + 1, cycles, tally);
    }
    close(context, limits, site, rng, tally)
}

/// A new data directory, laid out in one of several ways.
pub(crate) fn new_site(context: &Context, name: &str, rng: &mut Rng) -> Result<Site, Stop> {
    let directory = context.janitor.directory().join(name);
    fs::create_dir_all(&directory).map_err(Stop::because("the run's directory cannot be made"))?;
    Ok(Site::new(&directory, directory.join("data"), layout(rng)))
}

/// Small sizes of several proportions: each site turns over something else most often.
pub(crate) fn layout(rng: &mut Rng) -> Layout {
    Layout {
        segment_bytes: rng.pick(&[65_536, 65_536, 65_536, 131_072]).unwrap_or(65_536),
        snapshot_entries: rng.pick(&[50, 200, 200, 400]).unwrap_or(200),
        keys_in_memory: rng.pick(&[16, 64, 64, 400]).unwrap_or(64),
    }
}

/// The failpoint that killed least often; one time in three, as long as all of them have had their share, a random moment.
fn choose(rng: &mut Rng, tally: &Tally) -> Harm {
    let reached = |name: &str| tally.failpoints.get(name).copied().unwrap_or_default();
    // One that cannot be reached does not keep the others from their turn for ever.
    let weight = |name: &str| reached(name).killed.max(reached(name).armed / 2);
    let least = failpoint::NAMES.iter().map(|name| (weight(name), rng.next(), *name)).min();
    let Some((kills, _, name)) = least.filter(|(kills, ..)| kills * CYCLES_PER_KILL < tally.cycles || !rng.one_in(3))
    else {
        return if rng.one_in(3) {
            Harm::AtStart { after: Duration::from_micros(rng.below(30_000)) }
        } else {
            Harm::UnderLoad { after: Duration::from_micros(rng.between(1_000, 150_000)) }
        };
    };
    let Reached { armed, .. } = reached(name);
    // One that was missed is first tried at its first passing.
    let at = if armed > kills { 1 } else { rng.between(1, passings(name)) };
    Harm::Failpoint { name, at }
}

/// How often a failpoint is passed within its window, roughly.
fn passings(name: &str) -> u64 {
    match name {
        "engine.mid_answers" => 400,
        "journal.before_seal" | "keys.before_merge_swap" => 4,
        name if name.starts_with("journal.roll") => 2,
        name if name.starts_with("snapshot.") => 2,
        name if name.starts_with("keys.") || name.starts_with("read_model.") => 8,
        _ => 50,
    }
}

/// One cycle: what is wrong after it, if anything.
fn one_cycle(
    context: &Context,
    site: &mut Site,
    harm: &Harm,
    depth: Depth,
    rng: &mut Rng,
    tally: &mut Tally,
) -> Result<Vec<String>, Stop> {
    let findings = hurt(context, site, harm, rng, tally)?;
    if !findings.is_empty() {
        return Ok(findings);
    }
    // Most checking servers are killed, too; some are told to stop.
    check_and(
        context,
        site,
        depth,
        rng,
        tally,
        |server, rng, tally| {
            if rng.one_in(8) { stop_cleanly(server, tally) } else { None }
        },
    )
}

/// Starts a server, loads it and has it die.
fn hurt(
    context: &Context,
    site: &mut Site,
    harm: &Harm,
    rng: &mut Rng,
    tally: &mut Tally,
) -> Result<Vec<String>, Stop> {
    let mut launch = site.launch(context);
    let (window, pace) = match harm {
        Harm::AtStart { after } => {
            tally.kills_at_start += 1;
            let mut server = launch.spawn().map_err(Stop::because("the server cannot be started"))?;
            let death = server.wait_end(*after).or_else(|| server.kill());
            return Ok(death
                .map(|death| format!("the server ended by itself at its start: {death}"))
                .into_iter()
                .collect());
        }
        Harm::UnderLoad { after } => (*after, pace(rng)),
        Harm::Failpoint { name, at } => {
            launch.failpoint = Some(format!("{name}:{at}"));
            tally.failpoints.entry(name).or_default().armed += 1;
            (FAILPOINT_WINDOW, if *name == "journal.before_seal" { Pace::WithPauses } else { pace(rng) })
        }
    };
    let mut server = match launch.start().map_err(Stop::because("the server cannot be started"))? {
        Ok(server) => server,
        Err(NotReady::Died(death)) => return Ok(judge(harm, Some(death), tally)),
        Err(NotReady::Hung) => return Ok(vec![format!("the server hangs at its start: {}", NotReady::Hung)]),
    };
    let gathered = site.load(&mut server, &Load { pace, window }, rng, |server| server.kill());
    let loaded = site.take_in(gathered);
    tally.acknowledged += loaded.acknowledged;
    tally.repeated += loaded.repeated;
    let mut findings = judge(harm, loaded.death.or(loaded.finished), tally);
    findings.extend(loaded.complaints);
    Ok(findings)
}

fn pace(rng: &mut Rng) -> Pace {
    if rng.one_in(4) { Pace::WithPauses } else { Pace::Busy }
}

/// What is wrong with how a server died. `death` is how it ended by itself, if it did.
fn judge(harm: &Harm, death: Option<Death>, tally: &mut Tally) -> Vec<String> {
    match (harm, death) {
        (Harm::Failpoint { name, .. }, Some(death)) if death.is_kill() => {
            tally.failpoints.entry(name).or_default().killed += 1;
            Vec::new()
        }
        (Harm::UnderLoad { .. }, None) => {
            tally.kills_under_load += 1;
            Vec::new()
        }
        (Harm::Failpoint { .. } | Harm::AtStart { .. }, None) => Vec::new(),
        (_, Some(death)) => vec![format!("the server ended by itself: {death}")],
    }
}

/// Has a server stop in order.
fn stop_cleanly(server: &mut Server<'_>, tally: &mut Tally) -> Option<String> {
    tally.clean_stops += 1;
    let told = server.signal(rustix::process::Signal::TERM);
    match (told, server.wait_end(STOP_WITHIN)) {
        (Ok(()), Some(death)) if death.status.success() => None,
        (Ok(()), Some(death)) => Some(format!("told to stop, the server ended with {death}")),
        (Ok(()), None) => Some(format!("told to stop, the server still runs after {STOP_WITHIN:?}")),
        (Err(error), _) => Some(format!("the server cannot be told to stop: {error}")),
    }
}
