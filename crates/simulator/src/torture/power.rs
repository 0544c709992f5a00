//! Power cuts: the server on a file system of its own, which is shut down under it as if the machine had lost its power.
//!
//! `kill -9` cannot see a missing sync: the kernel still has what was written. `EXT4_IOC_SHUTDOWN` without flushing the file
//! system's log can: what was not synced is gone at the next mount. What the disk itself still had in its own cache is not
//! lost this way, so a sync that does not reach the platter is beyond this check.

mod disk;

use super::check::{Depth, check};
use super::client::Pace;
use super::history::JOURNAL_FAILED;
use super::kills::layout;
use super::server::{Death, Layout, NotReady, Server};
use super::site::{Context, Load, Site};
use super::tally::Tally;
use super::{Limits, Stop};
use disk::Disk;
use holdfast_simulator::rng::Rng;
use std::fs;
use std::thread;
use std::time::Duration;

/// A file system is used for so many cuts.
const CUTS_PER_DISK: u64 = 20;
/// The whole journal is audited every so many cuts.
const AUDIT_EVERY: u64 = 5;
/// The size of the disk: enough for the segments of all cuts on it.
const DISK_BYTES: u64 = 256 * 1_024 * 1_024;
/// How long a server whose disk is gone may take to end.
const END_WITHIN: Duration = Duration::from_secs(5);
/// The size of a disk that is to be full soon, what is already taken of it, and how soon that is.
const SMALL_DISK_BYTES: u64 = 16 * 1_024 * 1_024;
const BALLAST_BYTES: usize = 8 * 1_024 * 1_024;
const FULL_WITHIN: Duration = Duration::from_secs(20);
/// How often the planted bug may be missed: a write may reach the disk in time by chance.
const PLANTED_TRIES: u64 = 3;

/// So large that nothing turns over: without syncs entries are missed then, and nothing looks corrupt.
const ROOMY: Layout =
    Layout { segment_bytes: 32 * 1_024 * 1_024, snapshot_entries: 1_000_000, keys_in_memory: 1_000_000 };

/// What is done to the server at the cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// It stands still before the power goes: nothing of it runs into the dead disk.
    Frozen,
    /// It runs on into the dead disk, and must notice and end.
    Running,
    /// It has only just been started, and recovers.
    AtStart,
}

/// Does the cuts.
pub(crate) fn run(context: &Context, limits: &Limits, cuts: u64, rng: &mut Rng, tally: &mut Tally) -> Result<(), Stop> {
    if cuts == 0 || limits.is_over(tally) {
        return Ok(());
    }
    if let Err(reason) = try_out(context) {
        tally.power_skipped = Some(reason);
        return Ok(());
    }
    planted(context, limits, rng, tally)?;
    full_disk(context, limits, rng, tally)?;
    let mut place: Option<(Disk, Site)> = None;
    for cut in 0..cuts {
        if limits.is_over(tally) {
            break;
        }
        if cut.is_multiple_of(CUTS_PER_DISK) {
            close(context, limits, place.take(), rng, tally)?;
        }
        let (disk, site) = match &mut place {
            Some(place) => place,
            None => place.insert(new_place(context, &format!("power-{cut}"), DISK_BYTES, layout(rng))?),
        };
        let how = rng.pick(&[Cut::Frozen, Cut::Frozen, Cut::Frozen, Cut::Running, Cut::Running, Cut::AtStart]);
        let how = how.unwrap_or(Cut::Frozen);
        let depth = Depth::of(cut, AUDIT_EVERY);
        tally.power_cuts += 1;
        let findings = one_cut(context, (disk, site), how, depth, rng, tally)?;
        if !findings.is_empty() {
            let at = format!("power cut {cut} of seed {} ({how:?})", limits.seed);
            end(context, place.take(), &at, &findings, tally);
        }
        limits.progress("power cut", cut + 1, cuts, tally);
    }
    close(context, limits, place, rng, tally)
}

/// The last check of a disk: what the last retries did must have survived too.
fn close(
    context: &Context,
    limits: &Limits,
    mut place: Option<(Disk, Site)>,
    rng: &mut Rng,
    tally: &mut Tally,
) -> Result<(), Stop> {
    let findings = match &mut place {
        Some((_, site)) => check(context, site, Depth::Journal, rng, tally)?,
        None => Vec::new(),
    };
    end(context, place, &format!("the last check of a disk, seed {}", limits.seed), &findings, tally);
    Ok(())
}

/// Ends the use of a disk: without findings it is removed, else its file is the evidence.
fn end(context: &Context, place: Option<(Disk, Site)>, at: &str, findings: &[String], tally: &mut Tally) {
    let Some((disk, site)) = place else { return };
    // What is still mounted is left to the janitor.
    let unmounted = disk.unmount();
    if findings.is_empty() {
        let _later = unmounted.map(|()| fs::remove_dir_all(site.directory));
    } else {
        context.janitor.keep();
        tally.violation(at, findings, &site.directory);
    }
}

/// Whether power can be cut here, and if not, why.
fn try_out(context: &Context) -> Result<(), String> {
    let directory = context.janitor.directory().join("power-probe");
    let disk = Disk::make(&directory, DISK_BYTES)?;
    disk.mount()?;
    let written = fs::write(disk.root().join("unsynced"), "x").map_err(|error| error.to_string());
    let cut = written.and_then(|()| disk.shut_down()).and_then(|()| disk.unmount()).and_then(|()| disk.mount());
    let lost = !disk.root().join("unsynced").exists();
    let unmounted = disk.unmount();
    let _later = fs::remove_dir_all(&directory);
    cut.and(unmounted)?;
    if lost { Ok(()) } else { Err("a file that was not synced survived the shutdown of its file system".to_owned()) }
}

/// Every sync of a file is made to do nothing: acknowledged entries must then be missed after a cut, or this check checks
/// nothing.
fn planted(context: &Context, limits: &Limits, rng: &mut Rng, tally: &mut Tally) -> Result<(), Stop> {
    let mut aside = Tally::default();
    for attempt in 0..PLANTED_TRIES {
        let (disk, mut site) = new_place(context, &format!("planted-{attempt}"), DISK_BYTES, ROOMY)?;
        let load = Load { pace: Pace::Busy, window: Duration::from_millis(100) };
        let mut launch = site.launch(context);
        // First a sound life, so that what is missed later is entries and not the whole journal.
        let started = launch.start().map_err(Stop::because("the server cannot be started"))?;
        let mut server = started.map_err(Stop::because("the server does not start"))?;
        let gathered = site.load(&mut server, &load, rng, |server| server.kill());
        site.take_in(gathered);
        // A durable write in one call is refused, so that the sync of its own that takes its place can be made to do nothing.
        let refused = "inject=pwritev2:error=EOPNOTSUPP";
        let inject =
            ["-e", "trace=pwritev2,fdatasync", "-e", refused, "-e", "inject=fdatasync:retval=0", "-o", "/dev/null"];
        launch.strace = Some(inject.map(str::to_owned).into());
        let started = launch.start().map_err(Stop::because("the server cannot be started under strace"))?;
        let mut server = started.map_err(Stop::because("the server does not start without syncs"))?;
        let gathered = site.load(&mut server, &load, rng, |server| cut_power(&disk, server, Cut::Frozen));
        let loaded = site.take_in(gathered);
        loaded.finished.map_err(Stop)?;
        drop(server);
        disk.unmount().and_then(|()| disk.mount()).map_err(Stop)?;
        let findings = check(context, &mut site, Depth::Answers, rng, &mut aside)?;
        end(context, Some((disk, site)), "", &[], tally);
        if let Some(first) = findings.first() {
            let count = loaded.acknowledged;
            tally.planted.push(format!("syncs that do nothing, with {count} entries acknowledged: {first}"));
            return Ok(());
        }
    }
    let place = format!("the check itself, seed {}", limits.seed);
    let evidence = [format!("syncs that do nothing were not noticed by {PLANTED_TRIES} power cuts")];
    tally.violation(&place, &evidence, context.janitor.directory());
    Ok(())
}

/// A disk that fills up: the server stops and says so, and with room again everything acknowledged is there.
fn full_disk(context: &Context, limits: &Limits, rng: &mut Rng, tally: &mut Tally) -> Result<(), Stop> {
    let (disk, mut site) = new_place(context, "full", SMALL_DISK_BYTES, layout(rng))?;
    let ballast = disk.root().join("ballast");
    fs::write(&ballast, vec![1; BALLAST_BYTES]).map_err(Stop::because("the ballast cannot be written"))?;
    let started = site.launch(context).start().map_err(Stop::because("the server cannot be started"))?;
    let mut server = started.map_err(Stop::because("the server does not start on a small disk"))?;
    let load = Load { pace: Pace::Busy, window: FULL_WITHIN };
    let gathered = site.load(&mut server, &load, rng, |server| server.kill());
    drop(server);
    let loaded = site.take_in(gathered);
    tally.acknowledged += loaded.acknowledged;
    let mut findings = loaded.complaints;
    match loaded.death {
        Some(death) if death.is_clear_refusal() && death.stderr.contains(JOURNAL_FAILED) => {}
        Some(death) => findings.push(format!("its disk full, the server ended with {death}")),
        // It may also refuse everything and run on, as long as it says so to everybody.
        None if fs::write(disk.root().join("more"), [1; 65_536]).is_err() => {}
        None => findings.push(format!("the disk was to be full within {FULL_WITHIN:?}, and is not")),
    }
    match site.launch(context).start().map_err(Stop::because("the server cannot be started"))? {
        Ok(_) => {}
        Err(NotReady::Died(death)) if death.is_clear_refusal() => {}
        Err(not_ready) => findings.push(format!("on its full disk, at the start, {not_ready}")),
    }
    fs::remove_file(&ballast).map_err(Stop::because("the ballast cannot be removed"))?;
    // Twice: what the retries of the first check did must have survived it, too.
    for depth in [Depth::Journal, Depth::Answers] {
        findings.extend(check(context, &mut site, depth, rng, tally)?);
    }
    tally.full_disks += 1;
    end(context, Some((disk, site)), &format!("the full disk of seed {}", limits.seed), &findings, tally);
    Ok(())
}

fn new_place(context: &Context, name: &str, bytes: u64, layout: Layout) -> Result<(Disk, Site), Stop> {
    let directory = context.janitor.directory().join(name);
    let disk = Disk::make(&directory, bytes).map_err(Stop)?;
    disk.mount().map_err(Stop)?;
    let data = disk.root().join("data");
    Ok((disk, Site::new(&directory, data, layout)))
}

/// One cut: what is wrong after it, if anything.
fn one_cut(
    context: &Context,
    (disk, site): (&Disk, &mut Site),
    how: Cut,
    depth: Depth,
    rng: &mut Rng,
    tally: &mut Tally,
) -> Result<Vec<String>, Stop> {
    let mut findings = Vec::new();
    let mut server = site.launch(context).spawn().map_err(Stop::because("the server cannot be started"))?;
    if how == Cut::AtStart {
        thread::sleep(Duration::from_micros(rng.below(30_000)));
        cut_power(disk, &mut server, how).map_err(Stop)?;
    } else {
        if let Err(not_ready) = server.wait_ready() {
            return Ok(vec![format!("the server does not start: {not_ready}")]);
        }
        let window = Duration::from_micros(rng.between(5_000, 250_000));
        let pace = if rng.one_in(3) { Pace::WithPauses } else { Pace::Busy };
        let gathered = site.load(&mut server, &Load { pace, window }, rng, |server| cut_power(disk, server, how));
        let loaded = site.take_in(gathered);
        tally.acknowledged += loaded.acknowledged;
        tally.repeated += loaded.repeated;
        findings.extend(loaded.complaints);
        findings.extend(loaded.death.map(|death| format!("the server ended by itself: {death}")));
        match loaded.finished.map_err(Stop)? {
            After::WasFrozen => {}
            After::Ended(death) if death.is_clear_refusal() => tally.power_cuts_noticed += 1,
            After::Ended(death) => findings.push(format!("its disk gone, the server ended with {death}")),
            After::RanOn => findings.push(format!("its disk gone, the server ran on for {END_WITHIN:?}")),
        }
    }
    drop(server);
    disk.unmount().and_then(|()| disk.mount()).map_err(Stop)?;
    findings.extend(check(context, site, depth, rng, tally)?);
    Ok(findings)
}

/// What the server did after the cut.
enum After {
    WasFrozen,
    Ended(Death),
    RanOn,
}

/// Cuts the power while clients load the server, and has it end.
fn cut_power(disk: &Disk, server: &mut Server<'_>, how: Cut) -> Result<After, String> {
    if how != Cut::Running {
        server
            .signal(rustix::process::Signal::STOP)
            .map_err(|error| format!("the server cannot be stopped: {error}"))?;
    }
    disk.shut_down()?;
    let after = match how {
        Cut::Frozen | Cut::AtStart => After::WasFrozen,
        Cut::Running => server.wait_end(END_WITHIN).map_or(After::RanOn, After::Ended),
    };
    server.kill();
    Ok(after)
}
