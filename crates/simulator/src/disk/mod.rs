//! A disk in memory that does what real ones do at their worst, from one seed.
//!
//! It has two ways to die. A **kill** ends the process: what it wrote is in the kernel's cache and is read back, synced
//! or not. A **power cut** ends the machine: of what was not synced, each sector and each name is kept or lost by
//! itself.
//!
//! # Invariants
//! - What a sync covered survives a power cut; a name survives one after its directory was synced.
//! - After a failed sync the data reads as written and is gone after a power cut, although a later sync says that all
//!   is well.
//! - Everything is a function of the seed and of the order of the calls.

mod fault;
mod inode;

pub use fault::{Fault, Lie, Odds};

use crate::rng::Rng;
use holdfast_journal::{Disk, DiskFile};
use inode::Inode;
use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The disk. Clones are the same disk.
#[derive(Debug, Clone)]
pub struct SimDisk(Arc<Mutex<State>>);

/// An open file of a [`SimDisk`].
#[derive(Debug)]
pub struct SimFile {
    disk: SimDisk,
    inode: usize,
}

#[derive(Debug)]
struct State {
    files: Files,
    rng: Rng,
    odds: Odds,
    counts: [u64; Fault::ALL.len()],
    lie: Option<Lie>,
    power: Power,
    operations: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Power {
    On,
    /// The power goes during the operation after this many more.
    Fuse(u64),
    Off,
}

/// Every file, as the kernel sees it and as the platter has it.
#[derive(Debug, Clone, Default)]
struct Files {
    inodes: Vec<Inode>,
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    /// Changes of names that no directory sync has covered, oldest first.
    unsynced: Vec<NameChange>,
}

#[derive(Debug, Clone)]
enum NameChange {
    Put { name: String, inode: usize },
    Move { from: String, to: String, inode: usize },
    Remove { name: String, inode: usize },
}

/// All of a disk at one moment.
#[derive(Debug, Clone)]
pub struct Image(Files);

/// What an operation that changes the disk is to do.
enum Turn {
    Whole,
    /// The power goes during it.
    Last,
}

impl SimDisk {
    /// An empty disk without faults.
    #[must_use]
    pub fn new(rng: Rng) -> Self {
        Self(Arc::new(Mutex::new(State {
            files: Files::default(),
            rng,
            odds: Odds::NONE,
            counts: [0; Fault::ALL.len()],
            lie: None,
            power: Power::On,
            operations: 0,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on faults happen this often.
    pub fn set_odds(&self, odds: Odds) {
        self.lock().odds = odds;
    }

    /// Lets no fault happen until [`SimDisk::set_odds`] puts back what this gives.
    #[must_use]
    pub fn quiet(&self) -> Odds {
        std::mem::replace(&mut self.lock().odds, Odds::NONE)
    }

    /// From now on the disk is misused in this way.
    pub fn set_lie(&self, lie: Option<Lie>) {
        self.lock().lie = lie;
    }

    /// The power, or the process, goes during the operation after `operations` more changes of the disk; never, if
    /// `None`.
    pub fn set_fuse(&self, operations: Option<u64>) {
        self.lock().power = operations.map_or(Power::On, Power::Fuse);
    }

    /// Whether the fuse has blown: every call fails until a [`SimDisk::power_cut`] or a [`SimDisk::kill`].
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.lock().power == Power::Off
    }

    /// How often a fault has happened.
    #[must_use]
    pub fn count(&self, fault: Fault) -> u64 {
        self.lock().counts[fault as usize]
    }

    /// How often any fault has happened.
    #[must_use]
    pub fn faults(&self) -> u64 {
        self.lock().counts.iter().sum()
    }

    /// How many changes of the disk there were.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.lock().operations
    }

    /// The process has ended and another begins: what was written is still in the cache.
    pub fn kill(&self) {
        self.lock().power = Power::On;
    }

    /// The machine has lost its power and has it again: of what was not synced, some is left.
    pub fn power_cut(&self) {
        let mut state = self.lock();
        let State { files, rng, power, .. } = &mut *state;
        *power = Power::On;
        let keep = rng.below(5);
        files.inodes.iter_mut().for_each(|inode| inode.power_cut(rng, keep));
        files.power_cut(rng);
    }

    /// All of the disk as it is.
    #[must_use]
    pub fn image(&self) -> Image {
        Image(self.lock().files.clone())
    }

    /// Puts the disk back as it was.
    pub fn restore(&self, image: &Image) {
        self.lock().files = image.0.clone();
    }

    /// Puts the files of one directory back as they were, durably.
    pub fn restore_directory(&self, image: &Image, directory: &str) {
        let mut state = self.lock();
        let prefix = format!("{directory}/");
        let is_there = |name: &String| name.starts_with(&prefix);
        let old: Vec<(String, Inode)> = image
            .0
            .names
            .iter()
            .filter(|(name, _)| is_there(name))
            .map(|(name, inode)| (name.clone(), image.0.inodes[*inode].clone()))
            .collect();
        let files = &mut state.files;
        files.sync_names(&prefix);
        files.names.retain(|name, _| !is_there(name));
        files.durable_names.retain(|name, _| !is_there(name));
        for (name, inode) in old {
            files.inodes.push(inode);
            files.names.insert(name.clone(), files.inodes.len() - 1);
            files.durable_names.insert(name, files.inodes.len() - 1);
        }
    }

    /// The names in a directory, in order.
    #[must_use]
    pub fn names(&self, directory: &str) -> Vec<String> {
        let state = self.lock();
        state.files.within(directory).map(ToOwned::to_owned).collect()
    }

    /// A file's bytes as they are read now; empty if there is no such file.
    #[must_use]
    pub fn bytes(&self, name: &str) -> Vec<u8> {
        let state = self.lock();
        let inode = state.files.names.get(name).map(|inode| &state.files.inodes[*inode]);
        inode.map(|inode| inode.bytes().to_vec()).unwrap_or_default()
    }

    /// Changes a file where it lies, durably, as wear or a person does. Does nothing if there is no such file.
    pub fn damage(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.lock();
        if let Some(&inode) = state.files.names.get(name) {
            state.files.inodes[inode].damage(change);
        }
    }

    /// Takes a file away, durably, as a person does.
    pub fn take_away(&self, name: &str) {
        let mut state = self.lock();
        state.files.names.remove(name);
        state.files.durable_names.remove(name);
        state.files.unsynced.retain(|change| change.name() != name);
    }
}

impl NameChange {
    /// The name that it gives or takes.
    fn name(&self) -> &str {
        match self {
            Self::Put { name, .. } | Self::Remove { name, .. } => name,
            Self::Move { to, .. } => to,
        }
    }

    /// The file whose name it is.
    const fn inode(&self) -> usize {
        match self {
            Self::Put { inode, .. } | Self::Move { inode, .. } | Self::Remove { inode, .. } => *inode,
        }
    }

    fn apply(self, names: &mut BTreeMap<String, usize>) {
        match self {
            Self::Put { name, inode } => drop(names.insert(name, inode)),
            Self::Move { from, to, inode } => {
                names.remove(&from);
                names.insert(to, inode);
            }
            Self::Remove { name, .. } => drop(names.remove(&name)),
        }
    }
}

impl Files {
    fn within<'a>(&'a self, directory: &'a str) -> impl Iterator<Item = &'a str> {
        let name_in = move |name: &'a str| name.strip_prefix(directory)?.strip_prefix('/');
        let after = self.names.range::<str, _>((Bound::Excluded(directory), Bound::Unbounded));
        after.map_while(move |(name, _)| name_in(name))
    }

    /// Whether a file is a segment under its own name.
    fn is_segment(&self, inode: usize) -> bool {
        self.names.iter().any(|(name, other)| *other == inode && name.ends_with(".seg"))
    }

    fn change(&mut self, change: NameChange) {
        change.clone().apply(&mut self.names);
        self.unsynced.push(change);
    }

    fn sync_names(&mut self, prefix: &str) {
        let (synced, rest) =
            std::mem::take(&mut self.unsynced).into_iter().partition(|change| change.name().starts_with(prefix));
        self.unsynced = rest;
        let synced: Vec<NameChange> = synced;
        synced.into_iter().for_each(|change| change.apply(&mut self.durable_names));
    }

    /// Of the changes that were not synced, the oldest are kept, as a journalling file system does; or the oldest of
    /// each file, since no file system leaves a file with two names.
    fn power_cut(&mut self, rng: &mut Rng) {
        let changes = std::mem::take(&mut self.unsynced);
        let in_order = rng.one_in(2);
        let kept = rng.index(changes.len() + 1);
        let mut lost = Vec::new();
        for (position, change) in changes.into_iter().enumerate() {
            let is_kept = if in_order { position < kept } else { !lost.contains(&change.inode()) && rng.one_in(2) };
            if is_kept {
                change.apply(&mut self.durable_names);
            } else {
                lost.push(change.inode());
            }
        }
        self.names.clone_from(&self.durable_names);
    }
}

impl State {
    fn begin(&mut self) -> io::Result<Turn> {
        self.operations += 1;
        match self.power {
            Power::Off => Err(power_is_off()),
            Power::Fuse(0) => {
                self.power = Power::Off;
                Ok(Turn::Last)
            }
            Power::Fuse(left) => {
                self.power = Power::Fuse(left - 1);
                Ok(Turn::Whole)
            }
            Power::On => Ok(Turn::Whole),
        }
    }

    /// Begins an operation that is done whole or not at all. `Some(error)` if it fails, after it was done or not.
    fn begin_atomic(&mut self, fault: Fault) -> io::Result<Option<io::Error>> {
        match self.begin()? {
            Turn::Last if self.rng.one_in(2) => Err(power_is_off()),
            Turn::Last => Ok(Some(power_is_off())),
            Turn::Whole => self.fault(fault).map(|()| None),
        }
    }

    fn fires(&mut self, fault: Fault) -> bool {
        let odds = u64::from(self.odds.of[fault as usize]);
        let fires = odds > 0 && self.rng.below(1_024) < odds;
        self.counts[fault as usize] += u64::from(fires);
        fires
    }

    fn fault(&mut self, fault: Fault) -> io::Result<()> {
        if self.fires(fault) { Err(io::Error::other(fault.name())) } else { Ok(()) }
    }

    fn find(&self, name: &str) -> io::Result<usize> {
        let missing = || io::Error::new(io::ErrorKind::NotFound, "no such file");
        self.files.names.get(name).copied().ok_or_else(missing)
    }

    fn write(&mut self, inode: usize, bytes: &[u8], at: usize) -> io::Result<()> {
        let part = self.rng.index(bytes.len() + 1);
        if let Turn::Last = self.begin()? {
            self.files.inodes[inode].write(&bytes[..part], at);
            return Err(power_is_off());
        }
        self.fault(Fault::Write)?;
        if self.fires(Fault::ShortWrite) {
            self.files.inodes[inode].write(&bytes[..part], at);
            return Err(io::Error::other(Fault::ShortWrite.name()));
        }
        let inode = &mut self.files.inodes[inode];
        let growth = inode.growth(bytes.len(), at);
        let room = self.odds.space.min(growth as u64);
        self.odds.space -= room;
        let missing = growth - room as usize;
        inode.write(&bytes[..bytes.len().saturating_sub(missing)], at);
        if missing > 0 {
            self.counts[Fault::NoSpace as usize] += 1;
            return Err(io::Error::new(io::ErrorKind::StorageFull, Fault::NoSpace.name()));
        }
        Ok(())
    }

    fn sync(&mut self, inode: usize) -> io::Result<()> {
        let except = match self.lie {
            Some(Lie::SkipsSync) => usize::MAX,
            Some(Lie::SyncsBeforeTheWrite) => 1,
            Some(Lie::NamesBeforeSync) if !self.files.is_segment(inode) => usize::MAX,
            Some(Lie::RetriesSync | Lie::SkipsDirectorySync | Lie::NamesBeforeSync) | None => 0,
        };
        let turn = self.begin()?;
        let State { files, rng, .. } = self;
        let file = &mut files.inodes[inode];
        if let Turn::Last = turn {
            if rng.one_in(2) {
                file.sync(except);
            }
            return Err(power_is_off());
        }
        if self.fires(Fault::Sync) {
            self.files.inodes[inode].fail_sync(&mut self.rng);
            let believed = self.lie == Some(Lie::RetriesSync);
            return if believed { Ok(()) } else { Err(io::Error::other(Fault::Sync.name())) };
        }
        self.files.inodes[inode].sync(except);
        Ok(())
    }
}

fn power_is_off() -> io::Error {
    io::Error::other("the power is off")
}

fn done(failed: Option<io::Error>) -> io::Result<()> {
    failed.map_or(Ok(()), Err)
}

impl Disk for SimDisk {
    type File = SimFile;

    fn open(&self, name: &str) -> io::Result<SimFile> {
        let state = self.lock();
        if state.power == Power::Off {
            return Err(power_is_off());
        }
        Ok(SimFile { disk: self.clone(), inode: state.find(name)? })
    }

    fn create(&self, name: &str) -> io::Result<SimFile> {
        let mut state = self.lock();
        let failed = state.begin_atomic(Fault::Name)?;
        // An old file of that name keeps its inode: until the directory is synced, a power cut may bring it back.
        state.files.inodes.push(Inode::default());
        let inode = state.files.inodes.len() - 1;
        state.files.change(NameChange::Put { name: name.to_owned(), inode });
        done(failed)?;
        Ok(SimFile { disk: self.clone(), inode })
    }

    fn list(&self, directory: &str) -> io::Result<Vec<String>> {
        let mut state = self.lock();
        state.fault(Fault::Read)?;
        if state.power == Power::Off {
            return Err(power_is_off());
        }
        let mut names: Vec<String> = state.files.within(directory).map(ToOwned::to_owned).collect();
        // In no order, as the port says.
        let turned = state.rng.index(names.len());
        names.rotate_left(turned);
        Ok(names)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.lock();
        let failed = state.begin_atomic(Fault::Name)?;
        let inode = state.find(from)?;
        state.files.change(NameChange::Move { from: from.to_owned(), to: to.to_owned(), inode });
        done(failed)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.lock();
        let failed = state.begin_atomic(Fault::Name)?;
        let inode = state.find(name)?;
        state.files.change(NameChange::Remove { name: name.to_owned(), inode });
        done(failed)
    }

    fn create_directory(&self, _directory: &str) -> io::Result<()> {
        done(self.lock().begin_atomic(Fault::Name)?)
    }

    fn sync_directory(&self, directory: &str) -> io::Result<()> {
        let mut state = self.lock();
        let failed = state.begin_atomic(Fault::DirectorySync)?;
        if state.lie != Some(Lie::SkipsDirectorySync) {
            state.files.sync_names(&format!("{directory}/"));
        }
        done(failed)
    }
}

impl DiskFile for SimFile {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        let mut state = self.disk.lock();
        state.fault(Fault::Read)?;
        if state.power == Power::Off {
            return Err(power_is_off());
        }
        Ok(state.files.inodes[self.inode].read(buffer, position as usize))
    }

    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        self.disk.lock().write(self.inode, bytes, position as usize)
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.lock().sync(self.inode)
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.disk.lock().files.inodes[self.inode].length() as u64)
    }
}
