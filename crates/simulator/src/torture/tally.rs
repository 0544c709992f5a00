//! What a run did, counted, and the table of it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::time::Duration;

/// The counts of a run.
#[derive(Default)]
pub(crate) struct Tally {
    /// Kill cycles.
    pub(crate) cycles: u64,
    /// Kills at a random moment under load.
    pub(crate) kills_under_load: u64,
    /// Kills at a random moment of the start.
    pub(crate) kills_at_start: u64,
    /// By failpoint.
    pub(crate) failpoints: BTreeMap<&'static str, Reached>,
    /// Checking servers that were told to stop, and did.
    pub(crate) clean_stops: u64,
    /// By `system call and failure`.
    pub(crate) syscalls: BTreeMap<String, Struck>,
    pub(crate) power_cuts: u64,
    /// Power cuts under a running server, which then ended by itself.
    pub(crate) power_cuts_noticed: u64,
    /// Disks that filled up under a server.
    pub(crate) full_disks: u64,
    /// Why there were no power cuts.
    pub(crate) power_skipped: Option<String>,
    /// What planted bugs were noticed by.
    pub(crate) planted: Vec<String>,
    pub(crate) acknowledged: u64,
    pub(crate) verified: u64,
    pub(crate) repeated: u64,
    pub(crate) unacknowledged_done: u64,
    pub(crate) unacknowledged_not_done: u64,
    pub(crate) audits: u64,
    pub(crate) audited_entries: u64,
    pub(crate) violations: u64,
}

/// How often a failpoint was armed, and how often it killed.
#[derive(Default, Clone, Copy)]
pub(crate) struct Reached {
    pub(crate) armed: u64,
    pub(crate) killed: u64,
}

/// What runs with a failing system call came to.
#[derive(Default, Clone, Copy)]
pub(crate) struct Struck {
    pub(crate) refused_to_start: u64,
    pub(crate) stopped: u64,
    pub(crate) killed: u64,
    pub(crate) went_on: u64,
    pub(crate) not_reached: u64,
}

impl Tally {
    /// Takes the counts of another part of the run in.
    pub(crate) fn add(&mut self, other: Self) {
        self.cycles += other.cycles;
        self.kills_under_load += other.kills_under_load;
        self.kills_at_start += other.kills_at_start;
        for (name, Reached { armed, killed }) in other.failpoints {
            let reached = self.failpoints.entry(name).or_default();
            (reached.armed, reached.killed) = (reached.armed + armed, reached.killed + killed);
        }
        self.clean_stops += other.clean_stops;
        // Only one part has these.
        self.syscalls.extend(other.syscalls);
        self.power_cuts += other.power_cuts;
        self.power_cuts_noticed += other.power_cuts_noticed;
        self.full_disks += other.full_disks;
        self.power_skipped = self.power_skipped.take().or(other.power_skipped);
        self.planted.extend(other.planted);
        self.acknowledged += other.acknowledged;
        self.verified += other.verified;
        self.repeated += other.repeated;
        self.unacknowledged_done += other.unacknowledged_done;
        self.unacknowledged_not_done += other.unacknowledged_not_done;
        self.audits += other.audits;
        self.audited_entries += other.audited_entries;
        self.violations += other.violations;
    }

    /// Notes what went wrong, and says so at once.
    pub(crate) fn violation(&mut self, place: &str, evidence: &[String], kept: &Path) {
        self.violations += 1;
        eprintln!("VIOLATION in {place}; the data is kept in {}", kept.display());
        for line in evidence {
            eprintln!("    {line}");
        }
    }
}

/// The table of a run.
pub(crate) struct Summary<'a> {
    pub(crate) tally: &'a Tally,
    pub(crate) took: Duration,
}

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { cycles, failpoints, syscalls, .. } = self.tally;
        let killed: u64 = failpoints.values().map(|reached| reached.killed).sum();
        let armed: u64 = failpoints.values().map(|reached| reached.armed).sum();
        let line = |f: &mut fmt::Formatter<'_>, name: &str, count: u64| writeln!(f, "  {name:<44}{count:>10}");
        line(f, "kill -9 cycles", *cycles)?;
        line(f, "  killed at a random moment under load", self.tally.kills_under_load)?;
        line(f, "  killed at a random moment of the start", self.tally.kills_at_start)?;
        line(f, "  killed at a failpoint", killed)?;
        line(f, "  failpoint not reached, killed under load", armed - killed)?;
        for (name, Reached { armed, killed }) in failpoints {
            writeln!(f, "    {name:<42}{killed:>10} of {armed}")?;
        }
        line(f, "servers that were told to stop, and did", self.tally.clean_stops)?;
        let runs = syscalls.values().map(Struck::runs).sum();
        line(f, "runs with a failing system call", runs)?;
        for (name, struck) in syscalls {
            writeln!(f, "    {name:<42}{:>10}  {struck}", struck.runs())?;
        }
        match &self.tally.power_skipped {
            Some(reason) => writeln!(f, "  {:<44}   skipped: {reason}", "power cuts")?,
            None => {
                line(f, "power cuts", self.tally.power_cuts)?;
                line(f, "  under a running server, which then ended", self.tally.power_cuts_noticed)?;
                line(f, "disks that filled up", self.tally.full_disks)?;
            }
        }
        for planted in &self.tally.planted {
            writeln!(f, "  planted bug noticed: {planted}")?;
        }
        line(f, "entries acknowledged", self.tally.acknowledged)?;
        line(f, "  verified after a restart", self.tally.verified)?;
        line(f, "  repeated under load, answered as before", self.tally.repeated)?;
        line(f, "not acknowledged, but done", self.tally.unacknowledged_done)?;
        line(f, "not acknowledged, and not done", self.tally.unacknowledged_not_done)?;
        line(f, "audits of the whole journal", self.tally.audits)?;
        line(f, "  entries audited", self.tally.audited_entries)?;
        line(f, "violations", self.tally.violations)?;
        line(f, "seconds", self.took.as_secs())
    }
}

impl Struck {
    fn runs(&self) -> u64 {
        let Self { refused_to_start, stopped, killed, went_on, not_reached } = self;
        refused_to_start + stopped + killed + went_on + not_reached
    }
}

impl fmt::Display for Struck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { refused_to_start, stopped, killed, went_on, not_reached } = *self;
        let parts = [
            (refused_to_start, "refused to start"),
            (stopped, "stopped with an error"),
            (killed, "killed"),
            (went_on, "went on"),
            (not_reached, "not reached"),
        ];
        let parts: Vec<String> =
            parts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
        f.write_str(&parts.join(", "))
    }
}
