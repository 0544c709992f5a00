//! Escrows that are told without waiting for the disk: only what is durable, and never what has been decided to end.

use crate::world::{HandClock, SEGMENT_BYTES, config, cu, mint, owner, request};
use holdfast_domain::escrow::{self, Escrow, Hold};
use holdfast_domain::{EscrowId, OwnerId};
use holdfast_engine::recovery;
use holdfast_engine::{Clock, Command, Engine, Policy, Refusal, Request};
use holdfast_journal::{Disk, DiskFile, LocalDisk};
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// A disk whose syncs can be made to hang, and how many of them do.
#[derive(Clone)]
struct HangingDisk {
    files: LocalDisk,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    is_shut: Mutex<bool>,
    opened: Condvar,
    hanging: AtomicU64,
}

struct HangingFile {
    file: <LocalDisk as Disk>::File,
    gate: Arc<Gate>,
}

impl HangingDisk {
    fn wrap(&self, file: io::Result<<LocalDisk as Disk>::File>) -> io::Result<HangingFile> {
        file.map(|file| HangingFile { file, gate: Arc::clone(&self.gate) })
    }
}

impl Gate {
    fn shut(&self) {
        *self.is_shut.lock().unwrap() = true;
    }

    fn open(&self) {
        *self.is_shut.lock().unwrap() = false;
        self.opened.notify_all();
    }

    fn pass(&self) {
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
        DiskFile::sync(&self.file)
    }

    fn length(&self) -> io::Result<u64> {
        DiskFile::length(&self.file)
    }
}

fn start(directory: &std::path::Path, gate: &Arc<Gate>) -> Engine<HangingDisk> {
    let disk = HangingDisk { files: LocalDisk::at(directory).unwrap(), gate: Arc::clone(gate) };
    let opened = recovery::open(disk.clone(), &config(), &mut |_| {}).unwrap();
    let clock = Arc::new(HandClock(AtomicU64::new(1_000))) as Arc<dyn Clock>;
    let never = Duration::from_secs(3_600);
    let policy =
        Policy { snapshot_entries: 100_000, snapshot_every: never, lag_max: 100_000, segment_bytes: SEGMENT_BYTES };
    Engine::start(opened, disk, clock, policy)
}

fn escrow(name: &str) -> EscrowId {
    name.parse().unwrap()
}

fn hold(name: &str) -> Request {
    let hold = Hold { owner: owner("alice"), amount: cu("5"), feature: "chat".parse().unwrap() };
    request(Some(name), Command::Hold { escrow: escrow(name), hold })
}

fn refund(name: &str) -> Request {
    let command = escrow::Command::Refund;
    request(Some("refund"), Command::Escrow { escrow: escrow(name), command, ruling: None })
}

type Told = Result<Option<(Escrow, OwnerId)>, Refusal>;

/// What is told at once, if anything is.
fn at_once(engine: &Engine<HangingDisk>, name: &str) -> Option<Told> {
    let asked = pin!(engine.escrow(escrow(name)));
    match asked.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(told) => Some(told),
        Poll::Pending => None,
    }
}

fn state(told: Told) -> Option<escrow::State> {
    told.unwrap().map(|(escrow, _)| escrow.state())
}

const HELD: Option<Option<escrow::State>> = Some(Some(escrow::State::Held));

/// Somebody may be at the desk for a moment, and then nothing is told at once.
fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(10);
    while !is_so() {
        assert!(Instant::now() < until, "not in ten seconds: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_durable_escrow_is_told_at_once_and_what_is_not_durable_is_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let gate = Arc::new(Gate::default());
    let engine = start(directory.path(), &gate);
    let _credited = engine.submit_blocking(mint("m", "alice", "100")).unwrap();
    let _held = engine.submit_blocking(hold("old")).unwrap();
    gate.shut();
    std::thread::scope(|scope| {
        let held = scope.spawn(|| engine.submit_blocking(hold("new")));
        eventually("the sync hangs", || gate.hanging.load(Ordering::SeqCst) > 0);
        eventually("what is durable is told", || at_once(&engine, "old").map(state) == HELD);
        assert_eq!(at_once(&engine, "new"), None, "it is decided and not durable");

        let refunded = scope.spawn(|| engine.submit_blocking(refund("old")));
        eventually("what is to end is not told", || at_once(&engine, "old").is_none());
        gate.open();
        let _held = held.join().unwrap().unwrap();
        let _refunded = refunded.join().unwrap().unwrap();
    });
    eventually("what has become durable is told", || at_once(&engine, "new").map(state) == HELD);
    let asked = engine.ask_blocking(|view| view.escrow(escrow("old"))).unwrap();
    assert_eq!(state(asked), Some(escrow::State::Refunded));
}
