//! The key index: from every key ever used, and every charge and escrow ever closed, to its newest record.
//!
//! It is derived from the journal and remembers for ever in bounded memory. New keys collect in a map; a full map is
//! frozen, and, once its entries are durable, written as a sorted [`Run`]; runs of one size are merged four at a time. A key
//! is looked up in the map, in what is frozen, and in the runs, newest first, whose filters turn nearly all of them away.
//!
//! # Invariants
//! - A run becomes visible only after the journal is durable up to its last entry: the index is never ahead of the truth.
//! - The runs cover the journal from its first entry without a gap; if they do not, they are thrown away and made anew.
//! - Newest wins: a key that moved on is found at its newest place.

mod filter;
mod run;

use holdfast_domain::{ChargeId, EscrowId, Key};
use holdfast_journal::{Disk, Location, failpoint};
use run::{DIRECTORY, Run};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::io;
use std::sync::Arc;

/// How many keys collect before they are written out: a map of them takes 13 MB. With 220,000 one run of `bench growth` had 0.88 of the
/// speed of empty books after a long history, where two with 400,000 had 1.02 and 1.04. Why was not looked into.
const FRESH_MAX: usize = 400_000;
/// How many runs of one tier are merged into one of the next.
const MERGE_WIDTH: usize = 4;
/// The most keys of a merged run: a larger merge would need too much memory for its filter.
const RUN_KEYS_MAX: u64 = 64 * FRESH_MAX as u64;
/// Keys that come slowly are written out when there is this part of the most: until then they are only memory.
const EARLY_PART: usize = 8;
/// The memory that filters may take; beyond it they are read from the file.
const FILTER_BYTES_MAX: usize = 64 * 1_024 * 1_024;

/// A key's hash: half of a blake3, over a namespace and the key's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHash(pub(crate) u128);

impl KeyHash {
    /// Of a caller's key.
    pub(crate) fn of_key(key: &Key) -> Self {
        Self::of(b'k', key.as_bytes())
    }

    /// Of a charge.
    pub(crate) fn of_charge(charge: ChargeId) -> Self {
        Self::of(b'c', charge.as_bytes())
    }

    /// Of an escrow.
    pub(crate) fn of_escrow(escrow: EscrowId) -> Self {
        Self::of(b'e', escrow.as_bytes())
    }

    /// The hash of `text` in the namespace `space`.
    fn of(space: u8, text: &[u8]) -> Self {
        let mut bytes = [0; 1 + holdfast_domain::ID_BYTES_MAX];
        bytes[0] = space;
        bytes[1..=text.len()].copy_from_slice(text);
        let hash = blake3::hash(&bytes[..=text.len()]);
        Self(u128::from_be_bytes(*hash.as_bytes().first_chunk().expect("a hash has 32 bytes")))
    }
}

/// A hash as it stands in a map. A number of 128 bits stands at a multiple of 16 bytes, and a quarter of the map would be gaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Halves {
    high: u64,
    low: u64,
}

impl From<KeyHash> for Halves {
    fn from(KeyHash(hash): KeyHash) -> Self {
        Self { high: (hash >> 64) as u64, low: hash as u64 }
    }
}

impl From<Halves> for KeyHash {
    fn from(Halves { high, low }: Halves) -> Self {
        Self(u128::from(high) << 64 | u128::from(low))
    }
}

impl Hash for Halves {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_u64(self.low);
    }
}

/// A hasher for keys that are hashes already.
#[derive(Default)]
pub(crate) struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("only halves of hashes are hashed")
    }
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// A map by hash.
pub(crate) type HashedMap<V> = HashMap<Halves, V, BuildHasherDefault<Identity>>;

/// The entries that a run covers: above `after`, up to and with `through`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    after: u64,
    through: u64,
}

impl Range {
    const fn contains(self, other: Self) -> bool {
        self.after <= other.after && other.through <= self.through
    }
}

struct Frozen {
    entries: Arc<HashedMap<Location>>,
    range: Range,
}

/// The index.
pub(crate) struct Keys<D: Disk> {
    fresh: HashedMap<Location>,
    /// A map that was written out, for the next keys to collect in: its memory is already there.
    spare: Option<HashedMap<Location>>,
    /// Oldest first.
    frozen: Vec<Frozen>,
    /// Oldest first.
    runs: Vec<Arc<Run<D::File>>>,
    /// Up to which entry keys have been frozen.
    frozen_through: u64,
    fresh_max: usize,
    /// Whether a part of the most is enough to be written out.
    is_early: bool,
}

/// A piece of work on the files of the index, done beside the writer.
pub(crate) struct Job<F> {
    work: Work<F>,
    /// What the new run's filter may take of the memory for filters.
    filter_budget: usize,
}

enum Work<F> {
    /// Write what was frozen.
    Flush { entries: Arc<HashedMap<Location>>, range: Range },
    /// Make one run of several.
    Merge { runs: Vec<Arc<Run<F>>> },
}

impl<D: Disk> Keys<D> {
    /// Opens the index, and says up to which entry it covers the journal. Damaged or missing files make it start anew.
    pub(crate) fn open(disk: D, fresh_max: Option<usize>) -> io::Result<(Self, u64)> {
        disk.create_directory(DIRECTORY)?;
        let names = disk.list(DIRECTORY)?;
        for leftover in names.iter().filter(|name| name.ends_with(".tmp")) {
            disk.remove(&format!("{DIRECTORY}/{leftover}"))?;
        }
        let mut ranges: Vec<Range> = names.iter().filter_map(|name| run::range_of(name)).collect();
        // A merged run begins where its first part does and reaches further: keep it, drop its parts.
        ranges.sort_unstable_by_key(|range| (range.after, std::cmp::Reverse(range.through)));
        let (mut runs, mut covered, mut budget) = (Vec::new(), 0, FILTER_BYTES_MAX);
        for range in &ranges {
            let within = runs.last().is_some_and(|run: &Arc<Run<D::File>>| run.range.contains(*range));
            if within {
                disk.remove(&run::file_name(*range))?;
                continue;
            }
            let opened = if range.after == covered { Run::open(&disk, *range, &mut budget)? } else { None };
            let Some(run) = opened else {
                return Self::restart(disk, &ranges, fresh_max);
            };
            covered = range.through;
            runs.push(Arc::new(run));
        }
        let fresh_max = fresh_max.unwrap_or(FRESH_MAX);
        let (fresh, frozen) = (HashedMap::default(), Vec::new());
        Ok((Self { fresh, spare: None, frozen, runs, frozen_through: covered, fresh_max, is_early: false }, covered))
    }

    /// Throws the files away: the journal has everything they said.
    fn restart(disk: D, ranges: &[Range], fresh_max: Option<usize>) -> io::Result<(Self, u64)> {
        for range in ranges {
            match disk.remove(&run::file_name(*range)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        Self::open(disk, fresh_max)
    }

    /// Notes that `key`'s newest record stands at `location`.
    pub(crate) fn insert(&mut self, key: KeyHash, location: Location) {
        self.fresh.insert(key.into(), location);
    }

    /// Whether enough has collected to be written out.
    pub(crate) fn is_full(&self) -> bool {
        let enough = if self.is_early { self.fresh_max / EARLY_PART } else { self.fresh_max };
        self.fresh.len() >= enough.max(1)
    }

    /// Has the keys written out that have come since this was last said, unless they are few.
    pub(crate) fn write_early(&mut self) {
        self.is_early = true;
    }

    /// Whether writing out has fallen so far behind that the intake must wait for it.
    pub(crate) fn is_behind(&self) -> bool {
        self.frozen.len() > 2
    }

    /// Whether every key up to entry `through` is in a run.
    pub(crate) fn covers(&self, through: u64) -> bool {
        self.frozen.is_empty() && self.frozen_through >= through
    }

    /// Sets aside what has collected, up to and with entry `through`.
    pub(crate) fn freeze(&mut self, through: u64) {
        if through > self.frozen_through {
            let range = Range { after: self.frozen_through, through };
            let capacity = self.fresh_max.min(self.fresh.len());
            let new = || HashedMap::with_capacity_and_hasher(capacity, BuildHasherDefault::default());
            let fresh = self.spare.take().unwrap_or_else(new);
            let entries = Arc::new(std::mem::replace(&mut self.fresh, fresh));
            self.frozen.push(Frozen { entries, range });
            self.frozen_through = through;
        }
        self.is_early = false;
    }

    /// The place of a key's newest record.
    pub(crate) fn get(&self, key: KeyHash) -> io::Result<Option<Location>> {
        if let Some(location) = self.fresh.get(&key.into()) {
            return Ok(Some(*location));
        }
        for frozen in self.frozen.iter().rev() {
            if let Some(location) = frozen.entries.get(&key.into()) {
                return Ok(Some(*location));
            }
        }
        for run in self.runs.iter().rev() {
            if let Some(location) = run.get(key)? {
                return Ok(Some(location));
            }
        }
        Ok(None)
    }

    /// Brings nearer what [`Keys::get`] will look at, as far as it is in memory.
    pub(crate) fn approach(&self, key: KeyHash) {
        self.approach_insert(key);
        for frozen in &self.frozen {
            std::hint::black_box(frozen.entries.contains_key(&key.into()));
        }
        for run in &self.runs {
            std::hint::black_box(run.glance(key));
        }
    }

    /// Brings nearer where [`Keys::insert`] will write.
    pub(crate) fn approach_insert(&self, key: KeyHash) {
        std::hint::black_box(self.fresh.contains_key(&key.into()));
    }

    /// The next piece of work on the files, given that the journal is durable up to and with entry `durable`.
    pub(crate) fn job(&self, durable: u64) -> Option<Job<D::File>> {
        let used: usize = self.runs.iter().map(|run| run.filter_bytes()).sum();
        let filter_budget = FILTER_BYTES_MAX.saturating_sub(used);
        if let Some(Frozen { entries, range }) = self.frozen.first() {
            let work = Work::Flush { entries: Arc::clone(entries), range: *range };
            return (range.through <= durable).then_some(Job { work, filter_budget });
        }
        let tier = self.runs.last()?.tier;
        let mut runs: Vec<_> = self.runs.iter().rev().take_while(|run| run.tier == tier).cloned().collect();
        runs.reverse();
        let filter_budget = filter_budget + runs.iter().map(|run| run.filter_bytes()).sum::<usize>();
        let keys: u64 = runs.iter().map(|run| run.count()).sum();
        (runs.len() >= MERGE_WIDTH && keys <= RUN_KEYS_MAX).then_some(Job { work: Work::Merge { runs }, filter_budget })
    }

    /// Does a piece of work and opens the run that it made. Needs no lock: only [`Keys::install`] changes the index.
    pub(crate) fn execute(disk: &D, job: &Job<D::File>) -> io::Result<Run<D::File>> {
        let range = match &job.work {
            Work::Flush { entries, range } => {
                let mut sorted: Vec<_> = entries.iter().map(|(key, location)| (*key, *location)).collect();
                sorted.sort_unstable();
                let count = sorted.len() as u64;
                run::write(
                    disk,
                    *range,
                    0,
                    count,
                    sorted.into_iter().map(|(key, location)| Ok((key.into(), location))),
                )?;
                *range
            }
            Work::Merge { runs } => {
                let count = runs.iter().map(|run| run.count()).sum();
                let tier = runs.iter().map(|run| run.tier).max().map_or(0, |tier| tier.saturating_add(1));
                run::write(disk, merged_range(runs), tier, count, merge(runs))?;
                merged_range(runs)
            }
        };
        let run = Run::open(disk, range, &mut job.filter_budget.clone())?;
        run.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a run of the key index reads back wrong"))
    }

    /// Puts the run that a piece of work made in the place of what it was made from, and names the files that are now of no
    /// use.
    pub(crate) fn install(&mut self, job: Job<D::File>, run: Run<D::File>) -> Vec<String> {
        let obsolete = |old: &Arc<Run<D::File>>| run.range.contains(old.range);
        let at = self.runs.iter().position(obsolete).unwrap_or(self.runs.len());
        let parts: Vec<_> = self.runs.extract_if(.., |old| obsolete(old)).collect();
        self.runs.insert(at, Arc::new(run));
        if let Work::Flush { entries, .. } = job.work {
            self.frozen.remove(0);
            self.spare = Arc::into_inner(entries).map(|mut written| {
                written.clear();
                written
            });
        }
        parts.iter().map(|part| run::file_name(part.range)).collect()
    }

    /// Removes files that [`Keys::install`] named.
    pub(crate) fn remove(disk: &D, names: &[String]) -> io::Result<()> {
        failpoint::pass("keys.before_merge_swap");
        names.iter().try_for_each(|name| disk.remove(name))
    }
}

fn merged_range<F>(runs: &[Arc<Run<F>>]) -> Range {
    let (first, last) = runs.first().zip(runs.last()).expect("a merge has runs");
    Range { after: first.range.after, through: last.range.through }
}

/// All entries of several runs in order; of a key that is in more than one, the newest.
fn merge<F: holdfast_journal::DiskFile>(runs: &[Arc<Run<F>>]) -> impl Iterator<Item = io::Result<(KeyHash, Location)>> {
    // Newest first, so that the first of equals is the newest.
    let mut sources: Vec<_> = runs.iter().rev().map(|run| run.iter().peekable()).collect();
    std::iter::from_fn(move || {
        let mut least: Option<KeyHash> = None;
        for source in &mut sources {
            match source.peek() {
                Some(Ok((key, _))) => least = Some(least.map_or(*key, |least| least.min(*key))),
                Some(Err(_)) => return source.next(),
                None => {}
            }
        }
        let least = least?;
        let mut newest = None;
        for source in &mut sources {
            if let Some(entry) = source.next_if(|entry| entry.as_ref().is_ok_and(|(key, _)| *key == least)) {
                newest.get_or_insert(entry);
            }
        }
        newest
    })
}
