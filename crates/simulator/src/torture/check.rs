//! A restart after a blow, and everything that is checked then.

use super::recheck::{full_audit, recheck};
use super::server::Server;
use super::site::{Context, Site};
use super::tally::Tally;
use super::{Limits, Stop};
use holdfast_simulator::rng::Rng;
use std::fs;

/// How much is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    /// What was acknowledged since the last check, some of what was before, and what was not acknowledged.
    Answers,
    /// The whole journal too.
    Journal,
}

impl Depth {
    /// The whole journal every so many times: the cost of that grows with the journal.
    pub(crate) const fn of(number: u64, every: u64) -> Self {
        if (number + 1).is_multiple_of(every) { Self::Journal } else { Self::Answers }
    }
}

/// Starts the server on what is left and checks it; `finish` has the last word, while the server runs. What is wrong, if
/// anything.
pub(crate) fn check_and(
    context: &Context,
    site: &mut Site,
    depth: Depth,
    rng: &mut Rng,
    tally: &mut Tally,
    finish: impl FnOnce(&mut Server<'_>, &mut Rng, &mut Tally) -> Option<String>,
) -> Result<Vec<String>, Stop> {
    let mut server = match site.launch(context).start().map_err(Stop::because("the server cannot be started"))? {
        Ok(server) => server,
        Err(not_ready) => return Ok(vec![format!("the server does not start again: {not_ready}")]),
    };
    let mut findings = recheck(site, &server, rng, tally);
    if depth == Depth::Journal && findings.is_empty() {
        findings.extend(full_audit(context, site, &server, rng, tally));
    }
    if findings.is_empty() {
        findings.extend(finish(&mut server, rng, tally));
    }
    if let Some(death) = server.kill().filter(|death| !death.status.success()) {
        findings.push(format!("the checking server ended by itself: {death}"));
    }
    Ok(findings)
}

/// [`check_and`] with nothing after it.
pub(crate) fn check(
    context: &Context,
    site: &mut Site,
    depth: Depth,
    rng: &mut Rng,
    tally: &mut Tally,
) -> Result<Vec<String>, Stop> {
    check_and(context, site, depth, rng, tally, |_, _, _| None)
}

/// The last check of a data directory: what the last retries did must have survived too. Then it is removed.
pub(crate) fn close(
    context: &Context,
    limits: &Limits,
    site: Option<Site>,
    rng: &mut Rng,
    tally: &mut Tally,
) -> Result<(), Stop> {
    let Some(mut site) = site else { return Ok(()) };
    let findings = check(context, &mut site, Depth::Journal, rng, tally)?;
    if findings.is_empty() {
        // What cannot be removed now is removed with the run's directory.
        let _later = fs::remove_dir_all(site.directory);
    } else {
        context.janitor.keep();
        tally.violation(&format!("the last check of a directory, seed {}", limits.seed), &findings, &site.directory);
    }
    Ok(())
}
