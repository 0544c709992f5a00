//! What goes on beside the writer: the key index's files, snapshots, the next segment, and those who follow the journal.
//!
//! None of it is on a caller's path. When the key index or a follower falls too far behind, the intake waits for it:
//! lag is bounded, nothing is dropped.

use crate::book::FrozenBook;
use crate::engine::Followed;
use crate::keys::Keys;
use crate::projection::{Applied, Located, Projection, ProjectionFailed, READ_MODEL};
use crate::record::Record;
use crate::snapshot::{self, Snapshot};
use crate::worker::{Desk, Shared, lock};
use holdfast_journal::{Disk, End, Frames, GENESIS, Journal, Location};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How often upkeep looks around when nothing wakes it.
const ROUND: Duration = Duration::from_millis(100);
const SHORT_ROUND: Duration = Duration::from_millis(2);
/// How often keys are written out though they are not many, so that a server with little to do takes little memory.
const KEYS_EVERY: Duration = Duration::from_secs(2);
/// How many rounds in a row the key index may fail to be written, while the intake waits for it.
const FAILURES_MAX: u32 = 10;
/// How much less important than the writer its helpers are to the scheduler.
const HELPER_NICE: i32 = 10;
/// A projection that has just taken entries lets more of them gather for this long: a transaction of SQLite's costs as much as
/// a hundred entries in it.
const GATHER: Duration = Duration::from_millis(10);
/// The read model lets them gather for longer: whoever asks it something says so, and is not kept waiting.
const GATHER_UNASKED: Duration = Duration::from_millis(100);
/// How many entries a projection takes at once.
const APPLY_MAX: usize = 16_384;
/// Entries that come faster than this, in a second, are a burst: no read model keeps up with it.
const BURST_ENTRIES: u64 = 300_000;
/// Over how long it is judged whether there is a burst: many frames, because they come in fits and starts.
const BURST_SPAN: Duration = Duration::from_millis(100);
/// How long a follower lets a burst go before it looks again.
const BURST_LOOK: Duration = Duration::from_millis(20);

/// When upkeep happens.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    /// A snapshot after this many entries.
    pub snapshot_entries: u64,
    /// A snapshot after this long, if there were any entries.
    pub snapshot_every: Duration,
    /// How many entries a follower may be behind before the intake waits for it.
    pub lag_max: u64,
    /// The size of segments, for preparing the next one.
    pub segment_bytes: u32,
}

impl Policy {
    /// What a server uses: a start replays at most two million entries.
    pub const STANDARD: Self = Self {
        snapshot_entries: 2_000_000,
        snapshot_every: Duration::from_secs(6 * 60 * 60),
        lag_max: 8_000_000,
        segment_bytes: holdfast_journal::SEGMENT_BYTES,
    };
}

/// What the writer and its helpers tell each other.
pub(crate) struct Upkeep {
    policy: Policy,
    durable: Mutex<End>,
    /// Wakes whoever follows the journal's tail.
    grown: Condvar,
    /// How many wait for that: to wake nobody costs a system call too.
    waiting: AtomicUsize,
    /// Wakes a follower that lets entries gather.
    wanted: Condvar,
    /// Wakes the upkeep before its round has passed.
    called: Condvar,
    stopping: AtomicBool,
    unsealed: AtomicBool,
    keys_behind: AtomicBool,
    snapshot_wanted: AtomicBool,
    frozen: Mutex<Option<Snapshot>>,
    snapshot_through: AtomicU64,
    followers: Mutex<Vec<Arc<Follower>>>,
}

/// How far one who follows has come.
struct Follower {
    name: &'static str,
    applied: AtomicU64,
    /// Whether somebody waits for it.
    is_wanted: AtomicBool,
    /// Why it does not follow any more.
    failed: OnceLock<String>,
}

impl Follower {
    fn is_behind(&self, end: End, lag_max: u64) -> bool {
        self.failed.get().is_none() && end.next_offset.saturating_sub(self.applied.load(Ordering::Relaxed)) > lag_max
    }
}

impl Upkeep {
    pub(crate) fn new(end: End, policy: Policy, snapshot_through: u64) -> Self {
        Self {
            policy,
            durable: Mutex::new(end),
            grown: Condvar::new(),
            waiting: AtomicUsize::new(0),
            wanted: Condvar::new(),
            called: Condvar::new(),
            stopping: AtomicBool::new(false),
            // A start may follow a crash that left the last frame without a seal.
            unsealed: AtomicBool::new(end.chain != GENESIS),
            keys_behind: AtomicBool::new(false),
            snapshot_wanted: AtomicBool::new(false),
            frozen: Mutex::new(None),
            snapshot_through: AtomicU64::new(snapshot_through),
            followers: Mutex::new(Vec::new()),
        }
    }

    pub(crate) fn durable(&self) -> End {
        *lock(&self.durable)
    }

    pub(crate) fn is_unsealed(&self) -> bool {
        self.unsealed.load(Ordering::Relaxed)
    }

    pub(crate) fn made_durable(&self, end: End, sealed: bool) {
        *lock(&self.durable) = end;
        self.unsealed.store(!sealed, Ordering::Relaxed);
        // Who began to wait before the lock was taken is counted; who comes after sees the new end.
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.grown.notify_all();
        }
    }

    /// Whether the intake must wait for a derived store.
    pub(crate) fn must_wait(&self) -> bool {
        let end = self.durable();
        self.keys_behind.load(Ordering::Relaxed)
            || lock(&self.followers).iter().any(|follower| follower.is_behind(end, self.policy.lag_max))
    }

    /// Whether a follower, which has come to entry `through`, may let some more entries come first.
    fn may_fall_behind(&self, through: u64) -> bool {
        !self.is_stopping() && self.durable().next_offset.saturating_sub(through) < self.policy.lag_max / 4 * 3
    }

    /// How the follower with this name is; the newest, if one was started again.
    pub(crate) fn followed(&self, name: &str) -> Option<Followed> {
        let followers = lock(&self.followers);
        let follower = followers.iter().rev().find(|follower| follower.name == name)?;
        let failed = follower.failed.get().cloned();
        Some(Followed { applied: follower.applied.load(Ordering::Relaxed), failed })
    }

    fn add_follower(&self, name: &'static str, applied: Applied) -> Arc<Follower> {
        let (applied, is_wanted) = (AtomicU64::new(applied.through), AtomicBool::new(false));
        let follower = Arc::new(Follower { name, applied, is_wanted, failed: OnceLock::new() });
        lock(&self.followers).push(Arc::clone(&follower));
        follower
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        // Under the lock, so that nobody checks the flag and then misses the call.
        let _guard = lock(&self.durable);
        self.grown.notify_all();
        self.wanted.notify_all();
        self.called.notify_all();
    }

    /// Has the follower with this name take what there is, without letting more of it gather.
    pub(crate) fn hurry(&self, name: &str) {
        for follower in lock(&self.followers).iter().filter(|follower| follower.name == name) {
            follower.is_wanted.store(true, Ordering::Relaxed);
        }
        // Under the lock, so that nobody checks the flag and then misses the call.
        let _guard = lock(&self.durable);
        self.wanted.notify_all();
    }

    /// Lets entries gather for a follower that was last fed at `fed_at`, unless somebody waits for it or it is time to stop.
    fn gather(&self, follower: &Follower, fed_at: Instant) {
        let span = if follower.name == READ_MODEL { GATHER_UNASKED } else { GATHER };
        let mut end = lock(&self.durable);
        while !self.is_stopping() && !follower.is_wanted.load(Ordering::Relaxed) {
            let left = span.saturating_sub(fed_at.elapsed());
            if left.is_zero() {
                break;
            }
            end = self.wanted.wait_timeout(end, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        follower.is_wanted.store(false, Ordering::Relaxed);
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Waits until the journal has grown beyond entry `through`, a round has passed, or it is time to stop.
    fn wait_beyond(&self, through: u64) -> End {
        let end = lock(&self.durable);
        if end.next_offset > through + 1 || self.is_stopping() {
            return *end;
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let waited = self.grown.wait_timeout(end, ROUND).unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        *waited.0
    }

    /// Waits until a round has passed, or it is time to stop. What upkeep does is not urgent, so the writer does not wake it;
    /// only while the intake waits for the key index, and its files can be written, are the rounds short.
    fn rest(&self, failures: u32) {
        let is_waited_for = failures == 0 && self.keys_behind.load(Ordering::Relaxed);
        let round = if is_waited_for { SHORT_ROUND } else { ROUND };
        let end = lock(&self.durable);
        if !self.is_stopping() {
            drop(self.called.wait_timeout(end, round).unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Sets the book aside for a snapshot, if one is wanted. The batch has just been closed.
    pub(crate) fn freeze_if_wanted<D: Disk>(&self, desk: &mut Desk<D>) {
        if self.snapshot_wanted.swap(false, Ordering::Relaxed) {
            *lock(&self.frozen) = Some(freeze(desk));
        }
    }
}

fn freeze<D: Disk>(desk: &mut Desk<D>) -> Snapshot {
    let through = desk.cursor.next_offset - 1;
    let book: FrozenBook = desk.ledger.freeze(through);
    Snapshot { location: desk.cursor.location, through, book }
}

/// Lets those who answer go first where they compete with this thread for a core. The bound on the lag brings a helper back to
/// its turn.
pub fn step_aside() {
    // Refused only by a sandbox, and then the helpers are merely as important as the writer.
    let _refused = rustix::process::nice(HELPER_NICE);
}

/// The upkeep thread: the key index, snapshots and the next segment.
pub(crate) fn run<D: Disk>(shared: &Shared<D>) {
    step_aside();
    let upkeep = &shared.upkeep;
    let mut snapshot_at = Instant::now();
    let mut keys_at = Instant::now();
    let mut failures = 0;
    loop {
        let stopping = upkeep.is_stopping();
        // Preparing ahead that fails is left to the writer, which makes the segment itself or fails for good.
        let _left_to_the_writer = Journal::<D>::prepare_next_segment(&shared.disk, upkeep.policy.segment_bytes);
        if keys_at.elapsed() >= KEYS_EVERY {
            keys_at = Instant::now();
            shared.desk().ledger.archive.keys.write_early();
        }
        match tidy_all_keys(shared) {
            Ok(()) => failures = 0,
            Err(error) => {
                failures += 1;
                // Keys that cannot be written out would fill the memory, and callers would wait for ever.
                if failures >= FAILURES_MAX && upkeep.keys_behind.load(Ordering::Relaxed) {
                    shared.fail(&format!("the key index cannot be written: {error}"));
                }
            }
        }
        let since = upkeep.durable().next_offset
            - 1
            - upkeep.snapshot_through.load(Ordering::Relaxed).min(upkeep.durable().next_offset - 1);
        let due = since >= upkeep.policy.snapshot_entries || snapshot_at.elapsed() >= upkeep.policy.snapshot_every;
        if since > 0 && (due || stopping) && snapshot(shared).is_ok() {
            snapshot_at = Instant::now();
        }
        if stopping {
            return;
        }
        upkeep.rest(failures);
    }
}

fn tidy_all_keys<D: Disk>(shared: &Shared<D>) -> std::io::Result<()> {
    while tidy_keys(shared)? {}
    Ok(())
}

/// Does one piece of work on the key index's files, the slow part of it without the desk.
fn tidy_keys<D: Disk>(shared: &Shared<D>) -> std::io::Result<bool> {
    let durable = shared.upkeep.durable().next_offset - 1;
    let job = {
        let desk = shared.desk();
        shared.upkeep.keys_behind.store(desk.ledger.archive.keys.is_behind(), Ordering::Relaxed);
        desk.ledger.keys_job(durable)
    };
    let Some(job) = job else { return Ok(false) };
    let run = Keys::execute(&shared.disk, &job)?;
    let obsolete = shared.desk().ledger.archive.keys.install(job, run);
    Keys::remove(&shared.disk, &obsolete)?;
    Ok(true)
}

/// Takes a snapshot: freeze, wait until what was frozen is durable and its keys are written, save.
fn snapshot<D: Disk>(shared: &Shared<D>) -> std::io::Result<()> {
    let upkeep = &shared.upkeep;
    let frozen = {
        let mut desk = shared.desk();
        if desk.batch.is_empty() { Some(freeze(&mut desk)) } else { None }
    };
    let frozen = match frozen {
        Some(frozen) => frozen,
        None => {
            upkeep.snapshot_wanted.store(true, Ordering::Relaxed);
            loop {
                if let Some(frozen) = lock(&upkeep.frozen).take() {
                    break frozen;
                }
                if upkeep.is_stopping() {
                    return Ok(());
                }
                upkeep.wait_beyond(upkeep.durable().next_offset);
            }
        }
    };
    while upkeep.durable().next_offset <= frozen.through {
        if upkeep.is_stopping() {
            return Ok(());
        }
        upkeep.wait_beyond(frozen.through);
    }
    while !shared.desk().ledger.archive.keys.covers(frozen.through) {
        tidy_keys(shared)?;
    }
    snapshot::save(&shared.disk, shared.journal_id, &frozen)?;
    upkeep.snapshot_through.store(frozen.through, Ordering::Relaxed);
    Ok(())
}

impl<D: Disk> crate::engine::Engine<D> {
    /// Has `projection` follow the journal on a thread of its own until the engine stops. The intake waits for it when it
    /// falls more than the policy's lag behind.
    pub fn follow(&self, mut projection: impl Projection) -> std::thread::JoinHandle<()> {
        let shared = Arc::clone(&self.shared);
        let name = projection.name();
        let follower = shared.upkeep.add_follower(name, projection.applied());
        let run = move || {
            step_aside();
            while let Err(failed) = follow(&shared, &mut projection, &follower) {
                if shared.upkeep.is_stopping() || !projection.recover() {
                    let _once = follower.failed.set(failed.0);
                    return;
                }
            }
        };
        std::thread::Builder::new().name(name.to_owned()).spawn(run).expect("a process can start a thread")
    }
}

fn follow<D: Disk>(
    shared: &Shared<D>,
    projection: &mut dyn Projection,
    follower: &Follower,
) -> Result<(), ProjectionFailed> {
    let upkeep = &shared.upkeep;
    let mut tail = Tail::new(shared.disk.clone(), projection.applied());
    let mut pace = Pace { at: Instant::now(), next_offset: upkeep.durable().next_offset, is_burst: false };
    let (mut fed_at, mut more) = (Instant::now(), false);
    loop {
        upkeep.wait_beyond(tail.applied.through);
        if !more {
            upkeep.gather(follower, fed_at);
        }
        let end = upkeep.durable();
        if pace.is_burst(end.next_offset, Instant::now()) && upkeep.may_fall_behind(tail.applied.through) {
            std::thread::sleep(BURST_LOOK);
            continue;
        }
        more = tail.feed(end.location, APPLY_MAX, projection)?;
        fed_at = Instant::now();
        follower.applied.store(tail.applied.through, Ordering::Relaxed);
        if !more && upkeep.is_stopping() && upkeep.durable() == end {
            return Ok(());
        }
    }
}

/// How far the journal had come when its follower last looked.
///
/// A follower that runs beside a burst takes half of the processor from those who ask, and falls behind all the same. So it
/// lets the burst go, within three quarters of the lag that it may have, and catches up afterwards.
struct Pace {
    at: Instant,
    next_offset: u64,
    is_burst: bool,
}

impl Pace {
    /// Whether the journal grows faster than a follower could follow it.
    fn is_burst(&mut self, next_offset: u64, now: Instant) -> bool {
        let span = now.saturating_duration_since(self.at);
        if span >= BURST_SPAN {
            let grown = u128::from(next_offset - self.next_offset);
            let is_burst = grown * 1_000_000 > u128::from(BURST_ENTRIES) * span.as_micros();
            *self = Self { at: now, next_offset, is_burst };
        }
        self.is_burst
    }
}

/// Feeds a projection from the journal.
pub struct Tail<D: Disk> {
    frames: Frames<D>,
    applied: Applied,
    waiting: Vec<Located>,
}

impl<D: Disk> Tail<D> {
    /// Reads on from where a projection has come to.
    pub fn new(disk: D, applied: Applied) -> Self {
        Self { frames: Frames::starting(disk, applied.location), applied, waiting: Vec::new() }
    }

    /// How far the projection has come.
    #[must_use]
    pub const fn applied(&self) -> Applied {
        self.applied
    }

    /// Applies whole frames before `end`, at least `at_most` entries if there are so many. Whether there may be more.
    pub fn feed(
        &mut self,
        end: Location,
        at_most: usize,
        projection: &mut dyn Projection,
    ) -> Result<bool, ProjectionFailed> {
        let failed = |error: &dyn std::fmt::Display| ProjectionFailed(error.to_string());
        self.waiting.clear();
        let mut more = false;
        let mut through = self.applied.through;
        while let Some(frame) = self.frames.next(end).map_err(|error| failed(&error))? {
            for stored in frame.records() {
                let stored = stored.map_err(|_| failed(&"a record does not add up"))?;
                let record = Record::decode(stored.body).ok_or_else(|| failed(&"a record cannot be decoded"))?;
                if record.offset > self.applied.through {
                    if record.offset != through + 1 {
                        return Err(failed(&format_args!("entry {} comes after entry {through}", record.offset)));
                    }
                    through = record.offset;
                    self.waiting.push(Located { location: stored.location, record });
                }
            }
            if self.waiting.len() >= at_most {
                more = true;
                break;
            }
        }
        let applied = Applied { through, location: self.frames.position() };
        if !self.waiting.is_empty() {
            projection.apply(&self.waiting, applied)?;
        }
        self.applied = applied;
        Ok(more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_judged_over_its_span_and_ends_with_it() {
        let start = Instant::now();
        let after = |millis| start + Duration::from_millis(millis);
        let mut pace = Pace { at: start, next_offset: 1, is_burst: false };
        assert!(!pace.is_burst(1_000_000, after(99)), "too early to tell");
        assert!(pace.is_burst(30_002, after(100)), "more than 300,000 a second");
        assert!(pace.is_burst(30_002, after(199)), "until it is judged again");
        assert!(!pace.is_burst(60_002, after(200)), "exactly 300,000 a second");
        assert!(!pace.is_burst(60_002, after(60_000)));
    }
}
