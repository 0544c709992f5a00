//! What runs did, counted: a simulation that never crashed, failed or retried anything proves nothing.

use crate::disk::Fault;
use std::fmt;

/// Something that is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "each variant is named like the line that `name` gives")]
pub enum Count {
    Seeds,
    Steps,
    Requests,
    Applied,
    Replayed,
    Refused,
    Unreadable,
    Expired,
    Batches,
    Seals,
    PowerCuts,
    PowerCutsMidway,
    Kills,
    KillsMidway,
    CleanStops,
    JournalFailures,
    Starts,
    StartsThatFailed,
    TornTails,
    AdoptedEntries,
    DroppedEntries,
    Rolls,
    KeyFiles,
    Snapshots,
    StartsFromSnapshot,
    BadSnapshots,
    Reindexed,
    DamagedSegments,
    DamagedSnapshots,
    DamagedKeys,
    MissingSegments,
    SwappedSegments,
    ClockBack,
    ClockForward,
}

impl Count {
    const ALL: [(Self, &'static str); 34] = [
        (Self::Seeds, "seeds"),
        (Self::Steps, "steps"),
        (Self::Requests, "requests"),
        (Self::Applied, "entries"),
        (Self::Replayed, "replayed answers"),
        (Self::Refused, "refusals"),
        (Self::Unreadable, "unreadable answers"),
        (Self::Expired, "expired holds"),
        (Self::Batches, "frames"),
        (Self::Seals, "seals"),
        (Self::PowerCuts, "power cuts"),
        (Self::PowerCutsMidway, "power cuts within a disk operation"),
        (Self::Kills, "kills"),
        (Self::KillsMidway, "kills within a disk operation"),
        (Self::CleanStops, "clean stops"),
        (Self::JournalFailures, "journal failures"),
        (Self::Starts, "starts"),
        (Self::StartsThatFailed, "starts that a fault stopped"),
        (Self::TornTails, "torn tails cut"),
        (Self::AdoptedEntries, "unacknowledged entries found again"),
        (Self::DroppedEntries, "unacknowledged entries gone"),
        (Self::Rolls, "segments begun"),
        (Self::KeyFiles, "key files written"),
        (Self::Snapshots, "snapshots saved"),
        (Self::StartsFromSnapshot, "starts from a snapshot"),
        (Self::BadSnapshots, "bad snapshots passed over"),
        (Self::Reindexed, "starts that indexed keys anew"),
        (Self::DamagedSegments, "damaged segments"),
        (Self::DamagedSnapshots, "damaged snapshots"),
        (Self::DamagedKeys, "damaged key files"),
        (Self::MissingSegments, "missing segments"),
        (Self::SwappedSegments, "swapped segments"),
        (Self::ClockBack, "clock jumps back"),
        (Self::ClockForward, "clock jumps forward"),
    ];
}

/// The counts of one run, or of many.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tally {
    counts: [u64; Count::ALL.len()],
    faults: [u64; Fault::ALL.len()],
}

impl Tally {
    /// Nothing counted yet.
    pub const ZERO: Self = Self { counts: [0; Count::ALL.len()], faults: [0; Fault::ALL.len()] };

    /// Counts one.
    pub fn one(&mut self, count: Count) {
        self.add(count, 1);
    }

    /// Counts several.
    pub fn add(&mut self, count: Count, many: u64) {
        self.counts[count as usize] += many;
    }

    /// How often it was counted.
    #[must_use]
    pub const fn of(&self, count: Count) -> u64 {
        self.counts[count as usize]
    }

    /// How often a fault was injected.
    #[must_use]
    pub const fn of_fault(&self, fault: Fault) -> u64 {
        self.faults[fault as usize]
    }

    /// Takes over how often faults were injected.
    pub fn set_fault(&mut self, fault: Fault, many: u64) {
        self.faults[fault as usize] = many;
    }

    /// Adds the counts of another run.
    pub fn merge(&mut self, other: &Self) {
        self.counts.iter_mut().zip(other.counts).for_each(|(sum, more)| *sum += more);
        self.faults.iter_mut().zip(other.faults).for_each(|(sum, more)| *sum += more);
    }

    /// Every crash, of whatever kind.
    #[must_use]
    pub fn crashes(&self) -> u64 {
        [Count::PowerCuts, Count::PowerCutsMidway, Count::Kills, Count::KillsMidway]
            .map(|count| self.of(count))
            .iter()
            .sum()
    }

    /// Every injected fault, damage at rest included.
    #[must_use]
    pub fn faults(&self) -> u64 {
        let damage = [
            Count::DamagedSegments,
            Count::DamagedSnapshots,
            Count::DamagedKeys,
            Count::MissingSegments,
            Count::SwappedSegments,
        ];
        self.faults.iter().sum::<u64>() + damage.map(|count| self.of(count)).iter().sum::<u64>()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (count, name) in Count::ALL {
            writeln!(f, "{:>14}  {name}", self.of(count))?;
        }
        for fault in Fault::ALL {
            writeln!(f, "{:>14}  {} injected", self.of_fault(fault), fault.name())?;
        }
        Ok(())
    }
}
