//! Forgeries that every checksum calls sound: only somebody who knows what was said can tell.

use super::World;
use super::damage::segment_name;
use crate::disk::SimDisk;
use crate::rng::Rng;
use holdfast_domain::Label;
use holdfast_engine::Record;
use holdfast_journal::{Batch, Frames, Journal, Location};

impl World {
    /// Cuts off the last frame that has records, as if it had never been written.
    pub(super) fn cut_tail(&mut self) -> bool {
        let frames = self.frames();
        let Some(frame) = frames.iter().rfind(|frame| frame.count > 0) else { return false };
        let is_newest = frames.last().is_some_and(|last| last.location.segment == frame.location.segment);
        if !is_newest || frame.through > self.acknowledged {
            return false;
        }
        self.disk.damage(&segment_name(frame.location.segment), |bytes| {
            bytes[frame.location.byte as usize..].fill(0);
        });
        true
    }

    /// Changes who gave one command, and makes a new journal of all records, sound in every frame.
    pub(super) fn rewrite_record(&mut self) -> bool {
        let Some(mut frames) = self.bodies() else { return false };
        let Some(body) = frames.iter_mut().flatten().last() else { return false };
        let Some(mut record) = Record::decode(body) else { return false };
        let actor = format!("z{}", record.actor.as_str().get(1..).unwrap_or_default());
        let Ok(actor) = actor.parse::<Label>() else { return false };
        record.actor = actor;
        body.clear();
        record.encode(body);
        let scratch = SimDisk::new(Rng::new(1));
        let Ok((mut journal, _)) = Journal::open(scratch.clone(), self.config().journal) else { return false };
        for bodies in &frames {
            let mut batch = Batch::begin(journal.cursor(), Vec::new());
            for body in bodies {
                let _fits = batch.push(|bytes| bytes.extend(body));
            }
            if journal.append(&mut batch).is_err() {
                return false;
            }
        }
        self.disk.restore_directory(&scratch.image(), "journal");
        true
    }

    /// The bodies of every record, frame by frame.
    fn bodies(&self) -> Option<Vec<Vec<Vec<u8>>>> {
        let end =
            self.frames().last().map(|last| Location { byte: last.location.byte + last.bytes, ..last.location })?;
        let mut frames = Frames::starting(self.disk.clone(), Location::START);
        let mut found = Vec::new();
        while let Some(frame) = frames.next(end).ok()? {
            found.push(frame.records().filter_map(Result::ok).map(|record| record.body.to_vec()).collect());
        }
        Some(found)
    }

    /// Gives the first owner of the newest snapshot a unit more, takes `from_treasury` from the treasury for it, and
    /// makes the hash right.
    pub(super) fn forge_snapshot(&mut self, from_treasury: i64) -> bool {
        let names = self.disk.names("snapshots");
        let Some(name) = names.iter().rfind(|name| name.ends_with(".snap")) else { return false };
        let name = format!("snapshots/{name}");
        let mut forged = false;
        self.disk.damage(&name, |bytes| forged = forge(bytes, from_treasury).is_some());
        forged
    }
}

fn forge(bytes: &mut Vec<u8>, from_treasury: i64) -> Option<()> {
    const MAGIC_AND_JOURNAL: usize = 8 + 16;
    const HASH: usize = 32;
    let mut at = MAGIC_AND_JOURNAL;
    for _place_through_and_time in 0..3 {
        number(bytes, &mut at)?;
    }
    let treasury = at + 8;
    at += 3 * 8;
    let owners = number(bytes, &mut at)?;
    for _payees_charges_and_escrows in 0..3 {
        number(bytes, &mut at)?;
    }
    let name = usize::from(*bytes.get(at)?);
    at += 1 + name;
    let start = at;
    let available = number(bytes, &mut at)?;
    if owners == 0 {
        return None;
    }
    let held = i64::from_le_bytes(*bytes.get(treasury..)?.first_chunk()?);
    bytes.get_mut(treasury..treasury + 8)?.copy_from_slice(&(held - from_treasury).to_le_bytes());
    bytes.splice(start..at, encoded(available + 1));
    bytes.truncate(bytes.len() - HASH);
    let hash = blake3::hash(bytes);
    bytes.extend(hash.as_bytes());
    Some(())
}

/// Reads a number in groups of seven bits, and moves on.
fn number(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(*at)?;
        *at += 1;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn encoded(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number > 0x7f {
        bytes.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}
