//! A disk whose syncs hang or fail on command, and an engine on it.

use crate::world::{HandClock, SEGMENT_BYTES, config};
use holdfast_engine::recovery;
use holdfast_engine::{Clock, Engine, Policy};
use holdfast_journal::{Disk, DiskFile, LocalDisk};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// A disk whose syncs can be made to hang, or to fail.
#[derive(Clone)]
pub(crate) struct HangingDisk {
    files: LocalDisk,
    gate: Arc<Gate>,
}

#[derive(Default)]
pub(crate) struct Gate {
    is_shut: Mutex<bool>,
    opened: Condvar,
    pub(crate) hanging: AtomicU64,
    syncs: AtomicU64,
    /// Whether syncs fail from now on.
    pub(crate) fails: AtomicBool,
}

pub(crate) struct HangingFile {
    file: <LocalDisk as Disk>::File,
    gate: Arc<Gate>,
}

impl HangingDisk {
    fn wrap(&self, file: io::Result<<LocalDisk as Disk>::File>) -> io::Result<HangingFile> {
        file.map(|file| HangingFile { file, gate: Arc::clone(&self.gate) })
    }
}

impl Gate {
    pub(crate) fn shut(&self) {
        *self.is_shut.lock().unwrap() = true;
    }

    pub(crate) fn open(&self) {
        *self.is_shut.lock().unwrap() = false;
        self.opened.notify_all();
    }

    /// Waits until nothing is synced by itself any more: a frame is sealed when nothing has followed it for 5 ms, and a seal that
    /// hangs would keep from the disk what is to hang there.
    pub(crate) fn rest(&self) {
        let syncs = || self.syncs.load(Ordering::SeqCst);
        let mut before = None;
        while before != Some(syncs()) {
            before = Some(syncs());
            std::thread::sleep(Duration::from_millis(300));
        }
    }

    fn pass(&self) {
        self.syncs.fetch_add(1, Ordering::SeqCst);
        let mut is_shut = self.is_shut.lock().unwrap();
        self.hanging.fetch_add(1, Ordering::SeqCst);
        while *is_shut {
            is_shut = self.opened.wait(is_shut).unwrap();
        }
        self.hanging.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Disk for HangingDisk {
    type File = HangingFile;

    fn open(&self, name: &str) -> io::Result<HangingFile> {
        self.wrap(self.files.open(name))
    }

    fn create(&self, name: &str) -> io::Result<HangingFile> {
        self.wrap(self.files.create(name))
    }

    fn list(&self, directory: &str) -> io::Result<Vec<String>> {
        self.files.list(directory)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.files.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.files.remove(name)
    }

    fn create_directory(&self, directory: &str) -> io::Result<()> {
        self.files.create_directory(directory)
    }

    fn sync_directory(&self, directory: &str) -> io::Result<()> {
        self.files.sync_directory(directory)
    }
}

impl DiskFile for HangingFile {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        DiskFile::read_at(&self.file, buffer, position)
    }

    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        DiskFile::write_at(&self.file, bytes, position)
    }

    fn sync(&self) -> io::Result<()> {
        self.gate.pass();
        if self.gate.fails.load(Ordering::SeqCst) {
            return Err(io::Error::other("the disk is gone"));
        }
        DiskFile::sync(&self.file)
    }

    fn length(&self) -> io::Result<u64> {
        DiskFile::length(&self.file)
    }
}

pub(crate) fn start(directory: &std::path::Path, gate: &Arc<Gate>) -> Engine<HangingDisk> {
    let disk = HangingDisk { files: LocalDisk::at(directory).unwrap(), gate: Arc::clone(gate) };
    let opened = recovery::open(disk.clone(), &config(), &mut |_| {}).unwrap();
    let clock = Arc::new(HandClock(AtomicU64::new(1_000))) as Arc<dyn Clock>;
    let never = Duration::from_secs(3_600);
    let policy =
        Policy { snapshot_entries: 100_000, snapshot_every: never, lag_max: 100_000, segment_bytes: SEGMENT_BYTES };
    Engine::start(opened, disk, clock, policy)
}
