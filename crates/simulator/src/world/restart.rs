//! Crashes and starts: what must be there afterwards, and what may not.

use super::{DAY_MS, HOUR_MS, World};
use crate::check::{Check, Found};
use crate::disk::Odds;
use crate::node::Node;
use crate::tally::Count;
use holdfast_engine::recovery::{self, Opened, StartError};
use holdfast_journal::{OpenError, ReadError};

/// After so many starts that a fault stopped, somebody repairs the disk.
const PATIENCE: u32 = 4;

impl World {
    /// The process or the machine ends between two disk operations, and another begins.
    pub(super) fn crash(&mut self) -> Result<(), Found> {
        self.forget_node();
        if self.rng.below(4) < self.plan.power_cuts {
            self.tally.one(Count::PowerCuts);
            self.say(|| "power cut".to_owned());
            self.disk.power_cut();
        } else {
            self.tally.one(Count::Kills);
            self.say(|| "kill".to_owned());
            self.disk.kill();
        }
        self.restart()
    }

    /// The fuse has blown: the process or the machine ended within a disk operation.
    pub(super) fn crash_midway(&mut self) -> Result<(), Found> {
        self.forget_node();
        self.end_midway();
        self.restart()
    }

    fn end_midway(&mut self) {
        if self.rng.below(4) < self.plan.power_cuts {
            self.tally.one(Count::PowerCutsMidway);
            self.say(|| "power cut within an operation".to_owned());
            self.disk.power_cut();
        } else {
            self.tally.one(Count::KillsMidway);
            self.say(|| "kill within an operation".to_owned());
            self.disk.kill();
        }
    }

    pub(super) fn forget_node(&mut self) {
        if let Some(node) = self.node.take() {
            self.forget(node.into_replies());
        }
    }

    /// Starts until it works. A start may crash, or fail because the disk does, and for no other reason.
    pub(super) fn restart(&mut self) -> Result<(), Found> {
        self.note(self.disk.operations());
        // A start takes its time, and now and then a long one.
        self.clock_ms += if self.rng.one_in(8) { self.rng.below(2 * HOUR_MS) } else { self.rng.below(3_000) };
        self.plant_at_rest();
        self.damage()?;
        for attempt in 0.. {
            self.arm(attempt);
            let faults = self.disk.faults();
            match recovery::open(self.disk.clone(), &self.config(), &mut |_| {}) {
                Ok(opened) => {
                    self.arm_space();
                    return self.adopt(opened);
                }
                Err(_) if self.disk.is_off() => self.end_midway(),
                Err(error) if self.disk.faults() > faults && is_io(&error) => {
                    self.tally.one(Count::StartsThatFailed);
                    self.say(|| format!("a start failed: {error}"));
                    if self.rng.one_in(4) {
                        self.say(|| "power cut".to_owned());
                        self.disk.power_cut();
                    }
                }
                Err(error) => return Err((Check::RefusedStart, error.to_string())),
            }
        }
        Ok(())
    }

    fn arm(&mut self, attempt: u32) {
        self.arm_space();
        if attempt >= PATIENCE {
            self.disk.set_odds(Odds::NONE);
        }
        let fuse = self.plan.fuse.filter(|_| attempt < PATIENCE && self.rng.one_in(3));
        let fuse = fuse.map(|most| self.rng.below(most));
        self.disk.set_fuse(fuse);
    }

    fn arm_space(&mut self) {
        let space = self.plan.space.map_or(u64::MAX, |space| self.rng.below(space));
        self.disk.set_odds(Odds { space, ..self.plan.odds });
    }

    /// Takes over a started ledger, after checking that it is what it must be.
    fn adopt(&mut self, opened: Opened<crate::disk::SimDisk>) -> Result<(), Found> {
        let end = opened.journal.end();
        let last = end.next_offset - 1;
        self.tally.one(Count::Starts);
        self.note(last);
        let report = opened.report;
        self.say(|| format!("started: {report:?}"));
        for (count, happened) in [
            (Count::TornTails, report.recovered.verified.tail.is_some()),
            (Count::StartsFromSnapshot, report.snapshot.is_some()),
            (Count::BadSnapshots, report.bad_snapshots > 0),
            (Count::Reindexed, report.reindexed > 0),
        ] {
            self.tally.add(count, u64::from(happened));
        }
        let lost = |of: u64| format!("the journal ends at {last}, and {of} was there");
        if last < self.acknowledged {
            return Err((Check::AcknowledgedLost, lost(self.acknowledged)));
        }
        if last < self.told {
            return Err((Check::ToldTooEarly, lost(self.told)));
        }
        if last < self.follower.through() {
            return Err((Check::ToldTooEarly, lost(self.follower.through())));
        }
        if last < self.durable {
            return Err((Check::DurableLost, lost(self.durable)));
        }
        if last != self.durable && self.in_flight != Some(last) {
            let what = format!("the journal ends at {last}: neither {} nor {:?}", self.durable, self.in_flight);
            return Err((Check::HalfBatch, what));
        }
        self.tally.add(Count::AdoptedEntries, last - self.durable);
        self.tally.add(Count::DroppedEntries, self.model.entries().saturating_sub(last));
        self.model.take_back(last);
        (self.durable, self.in_flight) = (last, None);
        let odds = self.disk.quiet();
        self.audit.read(&self.disk, end.location, &self.model)?;
        self.audit.compare(&self.model)?;
        self.disk.set_odds(odds);
        self.node = Some(Node::new(opened));
        self.check_books()?;
        self.check_lives()
    }

    /// The end of a run: the disk heals, everything ends that must, and a last power cut changes nothing.
    pub(super) fn finish(&mut self) -> Result<(), Found> {
        self.plan.odds = Odds::NONE;
        self.plan.space = None;
        self.plan.fuse = None;
        self.disk.set_odds(Odds::NONE);
        self.disk.set_fuse(None);
        self.drain()?;
        // No hold outlives a year and a day.
        self.clock_ms = self.clock_ms.max(self.model.system().last_at) + 400 * DAY_MS;
        loop {
            let before = self.model.entries();
            self.expire()?;
            let node = self.node();
            if !node.batch.is_empty() {
                node.close(crate::node::Seal::Not);
            }
            self.drain()?;
            if self.model.entries() == before {
                break;
            }
        }
        if self.model.open_charges() > 0 && !self.plan.profile.huge {
            return Err((Check::NotLive, format!("{} holds never end", self.model.open_charges())));
        }
        self.plan.power_cuts = 4;
        self.crash()?;
        self.ask_again()
    }
}

/// Whether a start failed because the disk did.
const fn is_io(error: &StartError) -> bool {
    matches!(error, StartError::Io(_) | StartError::Journal(OpenError::Io(_)) | StartError::Read(ReadError::Io(_)))
}
