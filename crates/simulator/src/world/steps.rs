//! The steps of a run, each one thing that the engine's threads do between two others.

use super::{DAY_MS, HOUR_MS, SEGMENT_BYTES, World};
use crate::check::{Check, Found};
use crate::disk::Fault;
use crate::follower::Follower;
use crate::node::{self, Node, Reply, Seal, Turn};
use crate::plant::Planted;
use crate::tally::Count;
use holdfast_domain::{Event, Label, Timestamp};
use holdfast_engine::{Answer, Command, Outcome, Record, Refusal, Request};
use holdfast_journal::{Batch, Journal};

/// What can be next.
#[derive(Debug, Clone, Copy)]
enum Step {
    Decide,
    Look,
    Write,
    Seal,
    Tidy,
    SetAside,
    Save,
    PrepareSegment,
    Clock,
    Crash,
    Stop,
    ReadBack,
    Follow,
}

const STEPS: [(Step, u32); 13] = [
    (Step::Decide, 40),
    (Step::Look, 3),
    (Step::Write, 28),
    (Step::Seal, 3),
    (Step::Tidy, 6),
    (Step::SetAside, 3),
    (Step::Save, 3),
    (Step::PrepareSegment, 2),
    (Step::Clock, 6),
    (Step::Crash, 0),
    (Step::Stop, 1),
    (Step::ReadBack, 1),
    (Step::Follow, 3),
];

impl World {
    pub(super) fn one_step(&mut self) -> Result<(), Found> {
        if self.rng.one_in(16) {
            self.light_fuse(6);
        }
        let crash_percent = self.plan.crash_percent;
        let weights = STEPS.map(|(step, weight)| if matches!(step, Step::Crash) { crash_percent } else { weight });
        let (step, _) = STEPS[self.rng.weighted(&weights)];
        self.note(step as u64);
        self.say(|| format!("{step:?}, {} decided, {} durable", self.model.entries(), self.durable));
        match step {
            Step::Decide => self.decide_some()?,
            Step::Look => self.look()?,
            Step::Write => self.write()?,
            Step::Seal => self.seal()?,
            Step::Tidy => self.tidy(),
            Step::SetAside => self.set_aside(),
            Step::Save => self.save(),
            Step::PrepareSegment => {
                // Tried again later if it fails, as upkeep does.
                let _tried = Journal::prepare_next_segment(&self.disk, SEGMENT_BYTES);
            }
            Step::Clock => self.move_clock(),
            Step::Crash => self.crash()?,
            Step::Stop => self.stop()?,
            Step::ReadBack => self.read_back()?,
            Step::Follow => self.follow()?,
        }
        self.plant_between_steps()?;
        if self.disk.is_off() {
            self.crash_midway()?;
        }
        self.check_books()
    }

    /// Has the power go soon, where it may: within one of the next few operations.
    fn light_fuse(&mut self, most: u64) {
        if self.plan.fuse.is_some() && self.rng.one_in(2) {
            self.disk.set_fuse(Some(self.rng.below(most)));
        }
    }

    /// Fills the first segment up to where a run can reach its end.
    pub(super) fn prefill(&mut self) -> Result<(), Found> {
        let at_once = self.rng.pick(&[8, 32, u64::MAX]).unwrap_or(32);
        for number in 1..=self.plan.prefill {
            let request = self.workload.long_mint();
            self.decide(request)?;
            if number % at_once == 0 || !self.node().batch.has_room() {
                self.drain()?;
            }
            if self.disk.is_off() {
                self.crash_midway()?;
            }
        }
        Ok(())
    }

    pub(super) fn node(&mut self) -> &mut Node {
        self.node.as_mut().expect("a process runs between the steps")
    }

    fn move_clock(&mut self) {
        self.clock_ms = match self.rng.below(10) {
            0 if self.plan.wild_clock => {
                self.tally.one(Count::ClockBack);
                self.clock_ms.saturating_sub(self.rng.between(1, HOUR_MS))
            }
            1 if self.plan.wild_clock => {
                self.tally.one(Count::ClockForward);
                self.clock_ms + self.rng.between(DAY_MS, 400 * DAY_MS)
            }
            0..=2 => self.clock_ms + self.rng.between(HOUR_MS, 30 * HOUR_MS),
            _ => self.clock_ms + self.rng.below(90_000),
        };
    }

    /// Gives back what is due, then decides some requests, as the worker at the desk does.
    fn decide_some(&mut self) -> Result<(), Found> {
        self.clock_ms += self.rng.below(200);
        self.expire()?;
        let some = self.rng.between(1, self.plan.burst);
        for _ in 0..some {
            if !self.node().batch.has_room() {
                break;
            }
            let request = self.workload.next(&self.model);
            self.decide(request)?;
        }
        Ok(())
    }

    pub(super) fn decide(&mut self, request: Request) -> Result<(), Found> {
        self.tally.one(Count::Requests);
        let now = Timestamp::from_millis(self.clock_ms);
        let unreadable = self.disk.count(Fault::Read);
        let asked = self.passed_on(&request);
        let node = self.node.as_mut().expect("a process runs between the steps");
        let (location, offset) = node.batch.next();
        let answer = node.ledger.decide(&asked, now, &mut node.batch);
        if matches!(answer, Err(Refusal::Unreadable(_))) && self.disk.count(Fault::Read) > unreadable {
            self.tally.one(Count::Unreadable);
            let untouched = node.batch.next() == (location, offset);
            node.replies.push(Reply { saw: offset - 1, answer: Some((request, answer)) });
            return if untouched {
                Ok(())
            } else {
                Err((Check::WrongAnswer, "unreadable, and yet written".to_owned()))
            };
        }
        let answer = self.told_instead(answer);
        self.say(|| format!("  {:?} {:?}: {:?}", asked.key, asked.command, answer));
        let expected = self.model.decide(&request, self.clock_ms);
        if !is_same(&answer, &expected) {
            let what = format!("{request:?}\n  was answered {answer:?}\n  and not {expected:?}");
            return Err((Check::WrongAnswer, what));
        }
        let node = self.node.as_mut().expect("a process runs between the steps");
        if let Ok(Outcome::Applied(_)) = &answer {
            let body = holdfast_journal::record_in(node.batch.frame(), node.batch.start(), location);
            self.model.note_written(location, body.unwrap_or_default().to_vec());
        }
        let saw = node.decided();
        let (count, word) = match &answer {
            Ok(Outcome::Applied(receipt)) => (None, receipt.offset * 4 + receipt.available.units()),
            Ok(Outcome::Replayed(receipt)) => (Some(Count::Replayed), receipt.offset * 4 + 1),
            Err(refusal) => (Some(Count::Refused), refusal.code().len() as u64 * 4 + 2),
        };
        node.replies.push(Reply { saw, answer: Some((request, answer)) });
        self.note(word);
        if let Some(count) = count {
            self.tally.one(count);
        }
        self.apply_twice(&asked);
        Ok(())
    }

    /// Gives back the holds whose time has come.
    pub(super) fn expire(&mut self) -> Result<(), Found> {
        let durable = self.node().journal.end().location;
        self.node().ledger.durable(durable);
        let at_most = if self.rng.one_in(4) { self.rng.between(1, 3) as usize } else { 1_000 };
        let Some(ahead_ms) = self.expiry_ahead() else { return Ok(()) };
        let now = Timestamp::from_millis(self.clock_ms + ahead_ms);
        let unreadable = self.disk.count(Fault::Read);
        let actor = Label::from_bytes(b"expiry").map_err(|error| (Check::WrongAnswer, error.to_string()))?;
        let node = self.node.as_mut().expect("a process runs between the steps");
        if node.ledger.next_due().is_none_or(|due| due > now) {
            return Ok(());
        }
        let (first, _) = node.batch.next();
        let count = node.ledger.expire(now, actor, &mut node.batch, at_most);
        let records = node::records_from(&node.batch, first);
        let has_room = node.batch.has_room();
        if records.len() != count {
            return Err((Check::WrongAnswer, format!("{count} holds were given back by {} entries", records.len())));
        }
        for (location, body) in records {
            let record = Record::decode(&body).ok_or((Check::WrongEntry, "an expiry cannot be decoded".to_owned()))?;
            self.expired(&record, actor)?;
            self.model.note_written(location, body);
        }
        // What is due and was not given back must have a reason.
        let now_ms = self.clock_ms.max(self.model.system().last_at);
        let forgotten = self.model.next_due().is_some_and(|(due, _)| due <= now_ms);
        let excused = count == at_most || !has_room || self.disk.count(Fault::Read) > unreadable;
        if forgotten && !excused && !self.plan.profile.huge {
            return Err((Check::NotLive, "a hold is due and was not given back".to_owned()));
        }
        Ok(())
    }

    /// Checks one hold that was given back by itself.
    fn expired(&mut self, record: &Record, actor: Label) -> Result<(), Found> {
        self.tally.one(Count::Expired);
        let Event::Charge { id, .. } = record.event else {
            return Err((Check::WrongAnswer, format!("an expiry of {:?}", record.event)));
        };
        let due = self.model.ends_at(id);
        let first = self.model.next_due().map(|(due, _)| due);
        let in_turn = due == first || self.plan.profile.huge;
        let now = self.clock_ms.max(self.model.system().last_at);
        if !in_turn || due.is_none_or(|due| due > now) {
            return Err((Check::WrongAnswer, format!("{id} was given back at {now}, and ends at {due:?}")));
        }
        let command = Command::Charge { charge: id, command: holdfast_domain::charge::Command::Expire };
        let expected = self.model.decide(&Request { key: None, actor, command }, self.clock_ms);
        let answer = Ok(Outcome::Applied(record.clone().into_receipt()));
        if is_same(&answer, &expected) {
            Ok(())
        } else {
            Err((Check::WrongAnswer, format!("{id} ran out: {answer:?}\n  and not {expected:?}")))
        }
    }

    /// Somebody looks at the books, and is told when what was seen is durable.
    fn look(&mut self) -> Result<(), Found> {
        self.check_books()?;
        let saw = self.node().decided();
        if self.planted == Some(Planted::LookBeforeDurable) {
            self.told = self.told.max(saw);
        } else {
            self.node().replies.push(Reply { saw, answer: None });
        }
        Ok(())
    }

    /// Whoever follows the journal reads on.
    fn follow(&mut self) -> Result<(), Found> {
        let unreadable = self.disk.count(Fault::Read);
        let end = self.node().journal.end().location;
        if self.follower.follow(&self.disk, end, self.durable)? {
            return Ok(());
        }
        if std::mem::take(&mut self.seal_cut) {
            // Its place was after the seal; it is built anew.
            self.follower = Follower::new();
        } else if self.disk.count(Fault::Read) == unreadable {
            return Err((Check::WrongEntry, "a follower cannot read on".to_owned()));
        }
        Ok(())
    }

    /// Closes the open batch, or brings the closed one to the disk.
    fn write(&mut self) -> Result<(), Found> {
        let node = self.node();
        if node.turn.is_none() {
            if node.batch.is_empty() && node.replies.is_empty() {
                return Ok(());
            }
            node.close(Seal::Not);
            if self.rng.one_in(2) {
                return Ok(());
            }
        }
        self.commit()
    }

    /// Seals the last frame, if nothing has followed it.
    fn seal(&mut self) -> Result<(), Found> {
        let node = self.node();
        if node.turn.is_some() || !node.batch.is_empty() || !node.replies.is_empty() || !node.unsealed {
            return Ok(());
        }
        self.tally.one(Count::Seals);
        self.node().close(Seal::Wanted);
        // A snapshot may be set aside, and even saved, while the seal is on its way.
        if self.rng.one_in(3) { Ok(()) } else { self.commit() }
    }

    /// Makes the closed batch durable, and answers.
    fn commit(&mut self) -> Result<(), Found> {
        let Some(turn) = self.node().turn.take() else { return Ok(()) };
        let Turn { batch, replies, seal } = turn;
        let mut batch = self.written_instead(batch);
        if self.planted == Some(Planted::TellBeforeSync) {
            self.told_anyway(&replies);
        }
        if batch.is_empty() && seal == Seal::Not {
            return self.tell(replies);
        }
        self.tally.one(Count::Batches);
        let segment = self.node().journal.end().location.segment;
        if batch.start().segment > segment {
            self.light_fuse(14);
        }
        self.in_flight = Some(batch.next().1 - 1);
        match self.node().journal.append(&mut batch) {
            Ok(end) => {
                self.in_flight = None;
                self.durable = end.next_offset - 1;
                self.node().unsealed = seal == Seal::Not;
                self.tally.add(Count::Rolls, u64::from(end.location.segment - segment));
                if std::mem::take(&mut self.keepsake.crash_next) {
                    return self.crash_after_part(&replies);
                }
                if self.rng.one_in(50) {
                    // The batch is durable and nobody has been told.
                    self.forget(replies);
                    return self.crash();
                }
                self.tell(replies)
            }
            Err(_) if self.planted == Some(Planted::TellAfterFailure) && !self.disk.is_off() => {
                self.told_anyway(&replies);
                self.journal_failed()
            }
            Err(_) => {
                self.forget(replies);
                if self.disk.is_off() { Ok(()) } else { self.journal_failed() }
            }
        }
    }

    /// Everybody whose batch is durable is told.
    fn tell(&mut self, replies: Vec<Reply>) -> Result<(), Found> {
        for Reply { saw, answer } in replies {
            let offset =
                answer.as_ref().and_then(|(_, answer)| answer.as_ref().ok()).map(|outcome| outcome.receipt().offset);
            self.told = self.told.max(saw);
            self.acknowledged = self.acknowledged.max(offset.unwrap_or(0));
            if self.told.max(self.acknowledged) > self.durable {
                return Err((Check::ToldTooEarly, format!("told of {saw}, and {} is durable", self.durable)));
            }
        }
        Ok(())
    }

    /// Nobody is told; callers will ask again.
    pub(super) fn forget(&mut self, replies: impl IntoIterator<Item = Reply>) {
        let requests = replies.into_iter().filter_map(|reply| reply.answer).map(|(request, _)| request);
        self.workload.unanswered(requests);
    }

    /// The journal has failed: it must do nothing more, and the process ends.
    fn journal_failed(&mut self) -> Result<(), Found> {
        self.tally.one(Count::JournalFailures);
        self.say(|| "the journal failed".to_owned());
        let operations = self.disk.operations();
        self.touch_after_failure();
        let cursor = self.node().journal.cursor();
        let again = self.node().journal.append(&mut Batch::begin(cursor, Vec::new()));
        if again.is_ok() || self.disk.operations() != operations {
            return Err((Check::TouchedAfterFailure, "the journal went on after a failure".to_owned()));
        }
        self.crash()
    }

    /// One piece of upkeep of the key index. Tried again later if it fails.
    fn tidy(&mut self) {
        if self.rng.one_in(3) {
            self.light_fuse(10);
        }
        let durable = if self.planted == Some(Planted::KeysAhead) { u64::MAX } else { self.durable };
        let disk = self.disk.clone();
        if self.node().ledger.tidy_keys(&disk, durable).is_ok_and(|done| done) {
            self.tally.one(Count::KeyFiles);
        }
    }

    /// Sets the book aside for a snapshot. The batch has just been closed, or there is nothing in it.
    fn set_aside(&mut self) {
        let mid_batch = self.planted == Some(Planted::SnapshotMidBatch);
        let node = self.node();
        if node.batch.is_empty() || mid_batch {
            node.frozen = Some(node.ledger.set_aside(&node.cursor));
        }
        if self.planted == Some(Planted::SnapshotAhead) {
            self.save();
        }
    }

    /// Saves what was set aside, once it is durable and its keys are written.
    fn save(&mut self) {
        if self.rng.one_in(3) {
            self.light_fuse(10);
        }
        let durable = if self.planted == Some(Planted::SnapshotAhead) { u64::MAX } else { self.durable };
        let disk = self.disk.clone();
        let node = self.node();
        let Some(frozen) = node.frozen.take() else { return };
        while node.ledger.tidy_keys(&disk, durable).is_ok_and(|done| done) {}
        match node.ledger.save(&disk, node.journal.id(), &frozen) {
            Ok(true) => self.tally.one(Count::Snapshots),
            Ok(false) | Err(_) => node.frozen = Some(frozen),
        }
    }

    /// Writes out everything that waits.
    pub(super) fn drain(&mut self) -> Result<(), Found> {
        while self.node.as_ref().is_some_and(|node| node.turn.is_some() || !node.replies.is_empty()) {
            if self.node().turn.is_none() {
                self.node().close(Seal::Not);
            }
            self.commit()?;
            if self.disk.is_off() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// A clean stop: everything written, sealed and set down in a snapshot, then a start.
    fn stop(&mut self) -> Result<(), Found> {
        self.drain()?;
        if self.disk.is_off() {
            return Ok(());
        }
        self.seal()?;
        self.drain()?;
        if self.disk.is_off() {
            return Ok(());
        }
        self.set_aside();
        self.save();
        if self.disk.is_off() {
            return Ok(());
        }
        self.tally.one(Count::CleanStops);
        self.forget_node();
        self.restart()
    }
}

/// Whether two answers are the same to a program; texts for people are not compared.
fn is_same(one: &Answer, two: &Answer) -> bool {
    match (one, two) {
        (Err(Refusal::InvalidAmount(_)), Err(Refusal::InvalidAmount(_))) => true,
        (_, _) => one == two,
    }
}
