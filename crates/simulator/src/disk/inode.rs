//! One file of the simulated disk: what reads see, and what a power cut would leave of it.
//!
//! Only what reads see is kept, with a list of the writes that no sync has covered and what stood there before each. So
//! a sync forgets the list, and a power cut takes back, sector by sector, what it decides was never written.

use crate::rng::Rng;
use std::collections::BTreeMap;
use std::ops::Range;

/// What a disk writes whole or not at all.
const SECTOR: usize = 512;

/// One file.
#[derive(Debug, Clone, Default)]
pub(super) struct Inode {
    bytes: Vec<u8>,
    /// The length that a power cut leaves at least.
    durable_length: usize,
    /// Oldest first.
    unsynced: Vec<Write>,
    /// Sectors whose sync failed, and what the platter has of them. They read as written, count as clean, and no later
    /// sync writes them unless they are written to again: what Linux does.
    lost: BTreeMap<usize, Vec<u8>>,
}

/// A write that no sync has covered.
#[derive(Debug, Clone)]
struct Write {
    at: usize,
    length: usize,
    /// What stood there; shorter where the file ended.
    before: Vec<u8>,
}

impl Write {
    fn sectors(&self) -> Range<usize> {
        self.at / SECTOR..(self.at + self.length).div_ceil(SECTOR)
    }

    /// The part of a sector that this write touched.
    fn part_of(&self, sector: usize) -> Range<usize> {
        let (start, end) = (sector * SECTOR, (sector + 1) * SECTOR);
        start.max(self.at)..end.min(self.at + self.length)
    }

    /// Puts back what stood in `range` of the file before this write.
    fn take_back(&self, bytes: &mut [u8], range: Range<usize>) {
        let known = range.end.min(self.at + self.before.len()).max(range.start);
        bytes[range.start..known]
            .copy_from_slice(self.before.get(range.start - self.at..known - self.at).unwrap_or(&[]));
        bytes[known..range.end].fill(0);
    }
}

impl Inode {
    pub(super) fn length(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn read(&self, buffer: &mut [u8], at: usize) -> usize {
        let rest = self.bytes.get(at..).unwrap_or_default();
        let read = rest.len().min(buffer.len());
        buffer[..read].copy_from_slice(&rest[..read]);
        read
    }

    pub(super) fn write(&mut self, bytes: &[u8], at: usize) {
        let end = at + bytes.len();
        let known = at.min(self.bytes.len())..end.min(self.bytes.len());
        let before = self.bytes[known].to_vec();
        if at == self.bytes.len() {
            self.bytes.extend_from_slice(bytes);
        } else {
            self.bytes.resize(self.bytes.len().max(end), 0);
            self.bytes[at..end].copy_from_slice(bytes);
        }
        self.unsynced.push(Write { at, length: bytes.len(), before });
    }

    /// How many bytes a write would add to the file.
    pub(super) fn growth(&self, length: usize, at: usize) -> usize {
        (at + length).saturating_sub(self.bytes.len())
    }

    /// Makes what was written durable, the newest `except` writes left out.
    pub(super) fn sync(&mut self, except: usize) {
        let keep = self.unsynced.split_off(self.unsynced.len().saturating_sub(except));
        for write in std::mem::replace(&mut self.unsynced, keep) {
            if !self.lost.is_empty() {
                write.sectors().for_each(|sector| drop(self.lost.remove(&sector)));
            }
            self.durable_length = self.durable_length.max(write.at + write.length);
        }
    }

    /// A sync that fails: each sector is written or not, and all of them count as clean from now on.
    pub(super) fn fail_sync(&mut self, rng: &mut Rng) {
        let mut platter = self.bytes.clone();
        for write in self.unsynced.iter().rev() {
            write.take_back(&mut platter, write.at..write.at + write.length);
        }
        let mut sectors: Vec<usize> = self.unsynced.iter().flat_map(Write::sectors).collect();
        sectors.sort_unstable();
        sectors.dedup();
        for sector in sectors {
            let range = sector * SECTOR..((sector + 1) * SECTOR).min(self.bytes.len());
            if rng.one_in(2) {
                self.lost.remove(&sector);
                self.durable_length = self.durable_length.max(range.end);
            } else {
                self.lost.entry(sector).or_insert_with(|| platter[range].to_vec());
            }
        }
        self.unsynced.clear();
    }

    /// The power goes. Each sector that was not synced is left in one of the states it went through, `keep` times in
    /// four in the newest one, or torn between two.
    pub(super) fn power_cut(&mut self, rng: &mut Rng, keep: u64) {
        if self.unsynced.is_empty() && self.lost.is_empty() {
            return;
        }
        let mut settled = vec![false; self.bytes.len().div_ceil(SECTOR)];
        let mut length = self.durable_length;
        for write in std::mem::take(&mut self.unsynced).iter().rev() {
            for sector in write.sectors() {
                if settled[sector] {
                    continue;
                }
                let part = write.part_of(sector);
                if rng.below(4) < keep {
                    settled[sector] = true;
                    length = length.max(part.end);
                } else if rng.one_in(8) {
                    let torn = part.start + rng.index(part.len() + 1);
                    settled[sector] = true;
                    length = length.max(torn);
                    write.take_back(&mut self.bytes, torn..part.end);
                } else {
                    write.take_back(&mut self.bytes, part);
                }
            }
        }
        for (sector, platter) in std::mem::take(&mut self.lost) {
            if !settled[sector] {
                let start = sector * SECTOR;
                self.bytes[start..start + platter.len()].copy_from_slice(&platter);
            }
        }
        self.bytes.truncate(length);
        self.durable_length = length;
    }

    /// Changes the file where it lies, as wear or a person does.
    pub(super) fn damage(&mut self, change: impl FnOnce(&mut Vec<u8>)) {
        change(&mut self.bytes);
        self.durable_length = self.bytes.len();
        self.unsynced.clear();
        self.lost.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(bytes: &[u8]) -> Inode {
        let mut inode = Inode::default();
        inode.write(bytes, 0);
        inode.sync(0);
        inode
    }

    #[test]
    fn a_power_cut_leaves_what_was_synced_and_may_take_the_rest() {
        let mut inode = written(&[1; 2_000]);
        inode.write(&[2; 1_000], 1_500);
        assert_eq!((inode.length(), inode.growth(10, 2_495)), (2_500, 5));
        let mut none = inode.clone();
        none.power_cut(&mut Rng::new(1), 4);
        assert_eq!(none.bytes(), inode.bytes());
        let mut all = inode.clone();
        // Whatever else it does, it leaves the bytes before the write alone and invents none.
        all.power_cut(&mut Rng::new(1), 0);
        assert_eq!(all.bytes()[..1_500], [1; 1_500]);
        assert!(all.bytes().iter().all(|byte| [0, 1, 2].contains(byte)) && all.length() >= 2_000);
    }

    #[test]
    fn after_a_failed_sync_a_later_one_says_yes_and_the_data_is_gone() {
        let gone = (0..20).filter(|seed| {
            let mut inode = written(&[1; 512]);
            inode.write(&[2; 512], 0);
            inode.fail_sync(&mut Rng::new(*seed));
            inode.sync(0);
            assert_eq!(inode.bytes(), [2; 512], "it still reads as written");
            inode.power_cut(&mut Rng::new(9), 4);
            inode.bytes() == [1; 512]
        });
        assert!((5..15).contains(&gone.count()));
    }

    #[test]
    fn writing_again_brings_a_lost_sector_back() {
        for seed in 0..10 {
            let mut inode = written(&[1; 512]);
            inode.write(&[2; 512], 0);
            inode.fail_sync(&mut Rng::new(seed));
            inode.write(&[2; 512], 0);
            inode.sync(0);
            inode.power_cut(&mut Rng::new(9), 0);
            assert_eq!(inode.bytes(), [2; 512]);
        }
    }
}
