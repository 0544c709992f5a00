//! Damage to files between two starts: what holds the truth must be refused and named, what is derived must not matter.

use super::{SEGMENT_BYTES, World};
use crate::check::{Check, Found};
use crate::tally::Count;
use holdfast_engine::recovery::{self, StartError};
use holdfast_journal::{FRAME_HEADER_BYTES, Frames, Location, OpenError, SEGMENT_HEADER_BYTES, verify};
use std::ops::Range;

/// A frame of the journal as it lies on the disk.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lying {
    pub(super) location: Location,
    pub(super) bytes: u32,
    pub(super) count: u32,
    /// The last entry up to and with this frame.
    pub(super) through: u64,
}

pub(super) fn segment_name(segment: u32) -> String {
    format!("journal/{segment:010}.seg")
}

impl World {
    /// Damages something now and then.
    pub(super) fn damage(&mut self) -> Result<(), Found> {
        if !self.plan.damage || self.rng.one_in(2) {
            return Ok(());
        }
        let odds = self.disk.quiet();
        self.disk.set_fuse(None);
        let done = match self.rng.below(8) {
            0..=2 if self.segments() > 1 => self.lose_segment(),
            0..=4 => self.flip_in_journal(),
            5 => self.damage_derived("snapshots", Count::DamagedSnapshots),
            _ => self.damage_derived("keys", Count::DamagedKeys),
        };
        self.disk.set_odds(odds);
        done
    }

    /// The frames of a sound journal; none if there is no journal or it is not sound.
    pub(super) fn frames(&self) -> Vec<Lying> {
        let Ok(Some(verified)) = verify(&self.disk, 1, &|_, _| {}) else { return Vec::new() };
        let mut frames = Frames::starting(self.disk.clone(), Location::START);
        let mut found = Vec::new();
        while let Ok(Some(frame)) = frames.next(verified.end.location) {
            let header = frame.header;
            found.push(Lying {
                location: frame.location,
                bytes: FRAME_HEADER_BYTES + header.length,
                count: header.count,
                through: header.first_offset + u64::from(header.count) - 1,
            });
        }
        found
    }

    /// How many segments the journal has.
    fn segments(&self) -> u32 {
        self.disk.names("journal").iter().filter(|name| name.ends_with(".seg")).count() as u32
    }

    fn flip_in_journal(&mut self) -> Result<(), Found> {
        let frames = self.frames();
        let Some((last, before)) = frames.split_last() else { return Ok(()) };
        self.tally.one(Count::DamagedSegments);
        let end_of = |frame: &Lying| frame.location.byte + frame.bytes;
        let last_segment = self.segments();
        // What a segment was begun after has been synced, with or without a seal.
        let is_open = last.location.segment == last_segment;
        let sealed = if is_open { before } else { &frames };
        match self.rng.below(8) {
            0 => {
                let segment = self.rng.between(1, u64::from(last_segment)) as u32;
                let header = Location { segment, byte: 0 };
                self.flip(segment, 0..SEGMENT_HEADER_BYTES);
                self.must_refuse(|error| names(error, header))
            }
            1 if is_open => {
                // Room that was never written to, at the very end: whatever is there was never acknowledged.
                self.flip(last_segment, end_of(last)..SEGMENT_BYTES);
                Ok(())
            }
            2 if is_open && last.count == 0 => {
                // A seal holds nothing.
                self.seal_cut = true;
                self.flip(last_segment, last.location.byte..end_of(last));
                Ok(())
            }
            3 if last_segment > 1 => {
                let finished = frames.iter().rfind(|frame| frame.location.segment < last_segment);
                let Some(finished) = finished else { return Ok(()) };
                let segment = finished.location.segment;
                self.flip(segment, end_of(finished)..SEGMENT_BYTES);
                let end = Location { segment, byte: end_of(finished) };
                self.must_refuse(|error| names(error, end))
            }
            _ => {
                let Some(frame) = self.rng.pick(sealed) else { return Ok(()) };
                self.flip(frame.location.segment, frame.location.byte..end_of(&frame));
                self.must_refuse(|error| names(error, frame.location))
            }
        }
    }

    /// Flips one bit in a range of a segment.
    fn flip(&mut self, segment: u32, range: Range<u32>) {
        if range.is_empty() {
            return;
        }
        let byte = range.start as usize + self.rng.index(range.len());
        let bit = self.rng.below(8);
        self.say(|| format!("a bit flips in segment {segment}, byte {byte}"));
        // Sound again after this start: what is checked is that the damage is noticed.
        self.keepsake.image = Some(self.disk.image());
        self.disk.damage(&segment_name(segment), |bytes| {
            if let Some(byte) = bytes.get_mut(byte) {
                *byte ^= 1 << bit;
            }
        });
    }

    /// Takes a segment away, or puts another in its place.
    fn lose_segment(&mut self) -> Result<(), Found> {
        let frames = self.frames();
        let last_segment = self.segments();
        if frames.is_empty() || last_segment < 2 {
            return Ok(());
        }
        self.keepsake.image = Some(self.disk.image());
        let segment = self.rng.between(1, u64::from(last_segment)) as u32;
        if self.rng.one_in(2) {
            self.tally.one(Count::SwappedSegments);
            let other = if segment == 1 { 2 } else { segment - 1 };
            let bytes = self.disk.bytes(&segment_name(other));
            self.disk.damage(&segment_name(segment), |content| *content = bytes);
            return self.must_refuse(
                |error| matches!(error, StartError::Journal(OpenError::Foreign { segment: found }) if *found == segment),
            );
        }
        self.tally.one(Count::MissingSegments);
        self.disk.take_away(&segment_name(segment));
        if segment < last_segment {
            return self.must_refuse(
                |error| matches!(error, StartError::Journal(OpenError::Missing { segment: found }) if *found == segment),
            );
        }
        // The newest segment can only be missed by what is derived from it.
        let before = frames.iter().rfind(|frame| frame.location.segment < segment).map_or(0, |frame| frame.through);
        if self.seen_by_derived() > before {
            return self.must_refuse(|error| matches!(error, StartError::JournalBehind { .. }));
        }
        self.put_back();
        Ok(())
    }

    /// The newest entry that a snapshot or a file of keys has seen, by their names.
    fn seen_by_derived(&self) -> u64 {
        let through = |name: &String| name.split(['-', '.']).rev().find_map(|part| part.parse().ok());
        let names = self.disk.names("snapshots").into_iter().chain(self.disk.names("keys"));
        names.filter(|name| !name.ends_with(".tmp")).filter_map(|name| through(&name)).max().unwrap_or(0)
    }

    /// Damages a derived file, cuts it short or takes it away: the start must go as if nothing had happened.
    fn damage_derived(&mut self, directory: &str, count: Count) -> Result<(), Found> {
        let names = self.disk.names(directory);
        let position = self.rng.index(names.len());
        let Some(name) = names.get(position) else { return Ok(()) };
        let name = format!("{directory}/{name}");
        self.tally.one(count);
        self.say(|| format!("damage to {name}"));
        let (way, place, bit) = (self.rng.below(4), self.rng.next(), self.rng.below(8));
        if way == 0 {
            self.disk.take_away(&name);
            return Ok(());
        }
        self.disk.damage(&name, |bytes| {
            let at = (place % (bytes.len() as u64).max(1)) as usize;
            match bytes.get_mut(at) {
                Some(byte) if way > 1 => *byte ^= 1 << bit,
                Some(_) | None => bytes.truncate(at),
            }
        });
        Ok(())
    }

    /// A start must be refused, and for the right reason. Then the damage is undone.
    fn must_refuse(&mut self, is_right: impl Fn(&StartError) -> bool) -> Result<(), Found> {
        self.mend_quietly();
        let opened = recovery::open(self.disk.clone(), &self.config(), &mut |_| {});
        self.put_back();
        match opened {
            Ok(_) => Err((Check::DamageMissed, "a start went well on a damaged journal".to_owned())),
            Err(error) if is_right(&error) => Ok(()),
            Err(error) => Err((Check::DamageMissed, format!("a start blamed the wrong thing: {error}"))),
        }
    }

    fn put_back(&mut self) {
        if let Some(image) = self.keepsake.image.take() {
            self.disk.restore(&image);
        }
    }
}

/// Whether an error says that the journal is corrupt at `place`.
fn names(error: &StartError, place: Location) -> bool {
    matches!(error, StartError::Journal(OpenError::Corrupt { location, .. }) if *location == place)
}
