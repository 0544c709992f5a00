//! Where planted bugs strike. Without one, every function here does nothing.

use super::damage::segment_name;
use super::{HOUR_MS, World};
use crate::check::Found;
use crate::node::{self, Reply};
use crate::plant::Planted;
use crate::workload::credits;
use holdfast_domain::Timestamp;
use holdfast_domain::charge::{self, Actual};
use holdfast_engine::{Answer, Command, Outcome, Request};
use holdfast_journal::{Batch, Cursor, Disk, DiskFile};

impl World {
    fn is_planted(&self, bug: Planted) -> bool {
        self.planted == Some(bug)
    }

    /// The request as it reaches the engine.
    pub(super) fn passed_on(&mut self, request: &Request) -> Request {
        let mut asked = request.clone();
        if self.is_planted(Planted::MintMore)
            && let Command::Mint { amount, .. } = &mut asked.command
        {
            *amount = credits(amount.units() + 1);
        }
        if self.is_planted(Planted::ChargeMore)
            && let Command::Charge { command: charge::Command::Commit { actual: Actual::Credits(cost), .. }, .. } =
                &mut asked.command
        {
            *cost = credits(cost.units() + 1);
        }
        if self.is_planted(Planted::ForgetKey) && asked.key.is_some() && self.rng.one_in(4) {
            asked.key = Some(self.workload.fresh_key());
        }
        asked
    }

    /// The answer as it reaches the caller.
    pub(super) fn told_instead(&mut self, answer: Answer) -> Answer {
        match answer {
            Ok(Outcome::Applied(mut receipt)) if self.is_planted(Planted::TellWrongBalance) && self.rng.one_in(8) => {
                receipt.available = credits(receipt.available.units() + 1);
                Ok(Outcome::Applied(receipt))
            }
            answer if self.is_planted(Planted::SwapAnswers) && self.rng.one_in(8) => {
                let other = self.node().replies.last().and_then(|reply| reply.answer.as_ref());
                other.map_or(answer, |(_, answer)| answer.clone())
            }
            answer => answer,
        }
    }

    /// Does a request a second time, under a new key.
    pub(super) fn apply_twice(&mut self, asked: &Request) {
        if self.is_planted(Planted::ApplyTwice) && asked.key.is_some() && self.rng.one_in(8) {
            let again = Request { key: Some(self.workload.fresh_key()), ..asked.clone() };
            let now = Timestamp::from_millis(self.clock_ms);
            let node = self.node();
            let _nobody_asked = node.ledger.decide(&again, now, &mut node.batch);
        }
    }

    /// How far ahead of the clock holds are given back; `None` if they never are.
    pub(super) fn expiry_ahead(&self) -> Option<u64> {
        match self.planted {
            Some(Planted::NeverExpire) => None,
            Some(Planted::ExpireEarly) => Some(HOUR_MS),
            Some(_) | None => Some(0),
        }
    }

    /// The batch as it reaches the disk.
    pub(super) fn written_instead(&mut self, batch: Batch) -> Batch {
        let strikes = matches!(self.planted, Some(Planted::DropRecord | Planted::SwapRecords | Planted::SplitBatch));
        if !strikes || batch.count() < 2 || self.keepsake.struck {
            return batch;
        }
        self.keepsake.struck = true;
        let mut bodies: Vec<Vec<u8>> = node::records(&batch).into_iter().map(|(_, body)| body).collect();
        if self.is_planted(Planted::SwapRecords) {
            bodies.swap(0, 1);
        } else {
            bodies.pop();
            // The next batch would not fit behind this one.
            self.keepsake.crash_next = true;
        }
        let next_offset = batch.next().1 - u64::from(batch.count());
        let cursor = Cursor { location: batch.start(), next_offset, ..batch.end() };
        let mut other = Batch::begin(cursor, Vec::new());
        for body in bodies {
            let _fits = other.push(|bytes| bytes.extend(body));
        }
        other
    }

    /// Callers are told although they should not be yet.
    pub(super) fn told_anyway(&mut self, replies: &[Reply]) {
        for Reply { saw, answer } in replies {
            let offset =
                answer.as_ref().and_then(|(_, answer)| answer.as_ref().ok()).map(|outcome| outcome.receipt().offset);
            self.told = self.told.max(*saw);
            self.acknowledged = self.acknowledged.max(offset.unwrap_or(0));
        }
    }

    /// Only a part of a batch was written: whether its callers are told is what makes two bugs of it.
    pub(super) fn crash_after_part(&mut self, replies: &[Reply]) -> Result<(), Found> {
        if self.is_planted(Planted::DropRecord) {
            self.told_anyway(replies);
        } else {
            // The other part is still on its way.
            self.in_flight = Some(self.durable + 1);
            self.durable = self.acknowledged;
        }
        self.crash()
    }

    /// Mends what was just damaged.
    pub(super) fn mend_quietly(&self) {
        if self.is_planted(Planted::MendQuietly)
            && let Some(image) = &self.keepsake.image
        {
            self.disk.restore(image);
        }
    }

    /// A process that goes on after its journal has failed.
    pub(super) fn touch_after_failure(&self) {
        if self.is_planted(Planted::TouchAfterFailure)
            && let Ok(file) = self.disk.open(&segment_name(1))
        {
            let _again = file.sync();
        }
    }

    /// Bugs that strike beside the steps.
    pub(super) fn plant_between_steps(&mut self) -> Result<(), Found> {
        if !self.is_planted(Planted::SecondWriter) || self.keepsake.struck || self.disk.is_off() {
            return Ok(());
        }
        match self.keepsake.replaced.take() {
            None => {
                let is_idle = self.node().turn.is_none() && self.node().replies.is_empty();
                if is_idle && self.durable > 0 {
                    let old = self.node.take().map(|node| (Box::new(node), self.durable));
                    self.keepsake.replaced = old;
                    return self.restart();
                }
            }
            Some((mut old, then)) if self.durable > then => {
                self.keepsake.struck = true;
                let command = self.workload.next(&self.model);
                let now = Timestamp::from_millis(self.clock_ms);
                let _answer = old.ledger.decide(&command, now, &mut old.batch);
                let _written = old.journal.append(&mut old.batch);
            }
            waiting @ Some(_) => self.keepsake.replaced = waiting,
        }
        Ok(())
    }

    /// Bugs that strike between two starts.
    pub(super) fn plant_at_rest(&mut self) {
        if self.keepsake.struck || self.durable == 0 {
            return;
        }
        let odds = self.disk.quiet();
        self.keepsake.struck = match self.planted {
            Some(Planted::CutTail) => self.cut_tail(),
            Some(Planted::RewriteRecord) => self.rewrite_record(),
            Some(Planted::ForgeSnapshot) => self.forge_snapshot(1),
            Some(Planted::ForgeSnapshotOutright) => self.forge_snapshot(0),
            Some(Planted::Rollback) => match self.keepsake.image.take() {
                Some(image) => {
                    self.disk.restore_directory(&image, "journal");
                    true
                }
                None => {
                    self.keepsake.image = Some(self.disk.image());
                    false
                }
            },
            Some(_) | None => false,
        };
        self.disk.set_odds(odds);
    }
}
