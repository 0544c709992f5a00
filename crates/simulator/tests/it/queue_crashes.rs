//! The queue's steps in a journal on a disk that dies: what comes back is what was durable, or that and the frame that was on its way.
//! Its file is damaged in between, and is as the journal says all the same.

use holdfast_adapters::SystemClock;
use holdfast_adapters::queue::NotedQueue;
use holdfast_adapters::queue::embedded::{Core, Decided, NoRoom, path};
use holdfast_domain::queue::{Cause, Intake, Item, Stage, State, Verdict, enqueue};
use holdfast_domain::{CreditUnit, ItemId, Span, Timestamp};
use holdfast_engine::queue::{Filter, Put, QueueFailed, QueueStore};
use holdfast_engine::recovery::{self, OpenConfig};
use holdfast_engine::{Engine, Limits, Policy};
use holdfast_journal::{Batch, Config, Disk, Journal, JournalId, LocalDisk};
use holdfast_simulator::SimDisk;
use holdfast_simulator::disk::Lie;
use holdfast_simulator::rng::Rng;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::path::Path;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// The least, so that segments are begun often.
const JOURNAL: Config = Config { segment_bytes: 64 * 1_024, id: JournalId([1; 16]), verify_threads: 1 };
const LIVES: u32 = 12;
const STEPS: u32 = 120;

type Items = BTreeMap<ItemId, Item>;

/// What must be there, and what may be.
struct World {
    disk: SimDisk,
    data: tempfile::TempDir,
    rng: Rng,
    /// As of the last frame that is known to be durable.
    durable: Items,
    /// With everything that has been decided since.
    decided: Items,
    named: u32,
    now: u64,
}

/// What a run came to.
#[derive(Debug, Default, Clone, Copy)]
struct Came {
    crashes: u32,
    lost: u32,
    kept: u32,
    anew: u32,
}

impl World {
    fn new(seed: u64, lie: Option<Lie>) -> Self {
        let mut rng = Rng::new(seed);
        let disk = SimDisk::new(rng.fork());
        disk.set_lie(lie);
        let data = tempfile::tempdir().unwrap();
        let (durable, decided) = (Items::new(), Items::new());
        Self { disk, data, rng, durable, decided, named: 0, now: 1_000 }
    }

    fn run(&mut self) -> Result<Came, String> {
        let mut came = Came::default();
        let (mut journal, mut core) = self.open()?;
        for _ in 0..LIVES {
            self.disk.set_fuse(Some(self.rng.below(60)));
            for _ in 0..STEPS {
                if !self.step(&mut journal, &core)? {
                    break;
                }
            }
            drop((journal, core));
            if self.rng.one_in(2) {
                self.disk.kill();
            } else {
                self.disk.power_cut();
            }
            came.crashes += 1;
            came.anew += u32::from(self.damage());
            if self.rng.one_in(4) {
                // The next start dies as well, somewhere.
                self.disk.set_fuse(Some(self.rng.below(6)));
                drop(opened(&self.disk, self.data.path()));
                self.disk.power_cut();
            }
            (journal, core) = self.open()?;
            self.recovered(&journal, &core, &mut came)?;
        }
        Ok(came)
    }

    fn open(&self) -> Result<(Journal<SimDisk>, Core<SimDisk>), String> {
        opened(&self.disk, self.data.path()).map_err(|error| format!("a start failed: {error}"))
    }

    /// One step of a life. Whether the disk still works.
    fn step(&mut self, journal: &mut Journal<SimDisk>, core: &Core<SimDisk>) -> Result<bool, String> {
        self.now += self.rng.below(50);
        let now = Timestamp::from_millis(self.now);
        match self.rng.below(10) {
            0..=2 => self.put(core, now)?,
            3 | 4 => {
                let id = self.some_id();
                let expected = self.decided.get(&id).map(|item| item.start(now).map_err(QueueFailed::Refused));
                self.decide(core.start(id, now), expected.unwrap_or(Err(QueueFailed::Unknown)))?;
            }
            5 | 6 => {
                let (id, verdict) = (self.some_id(), self.some_verdict());
                let end = |item: &Item| match item.stage {
                    Stage::Ended(end) if end.verdict == verdict => Ok(item.clone()),
                    Stage::Queued { .. } | Stage::InProgress { .. } | Stage::Ended(_) => {
                        item.end(verdict, now).map_err(QueueFailed::Refused)
                    }
                };
                let expected = self.decided.get(&id).map_or(Err(QueueFailed::Unknown), end);
                self.decide(core.end(id, verdict, now), expected)?;
            }
            7 => {
                if core.file(journal.end()).is_err() && !self.disk.is_off() {
                    return Err("filing failed on a disk that works".to_owned());
                }
            }
            _ => return self.write(journal, core),
        }
        Ok(true)
    }

    fn put(&mut self, core: &Core<SimDisk>, now: Timestamp) -> Result<(), String> {
        self.named += 1;
        let rope_drop = self.rng.one_in(2).then(|| Span::from_millis(self.now));
        let item = enqueue(self.intake(self.named), now, rope_drop);
        let Ok(Decided { answer, .. }) = core.put(&item) else { return Ok(()) };
        if answer != Ok(Put::New(item.clone())) {
            return Err(format!("a put of {item:?} gave {answer:?}"));
        }
        self.decided.insert(item.intake.id, item);
        Ok(())
    }

    fn intake(&mut self, number: u32) -> Intake {
        Intake {
            id: format!("qi-{number}").parse().unwrap(),
            user: "alice".parse().unwrap(),
            payee: format!("model-{}", self.rng.below(3)).parse().unwrap(),
            escrow: format!("esc-{number}").parse().unwrap(),
            amount: CreditUnit::new(10).unwrap(),
            feature: "song".parse().unwrap(),
            priority: i32::try_from(self.rng.below(5)).unwrap(),
            metadata: self.rng.one_in(3).then(|| "x".repeat(self.rng.index(1_000)).into()),
        }
    }

    fn some_id(&mut self) -> ItemId {
        format!("qi-{}", self.rng.between(1, u64::from(self.named) + 1)).parse().unwrap()
    }

    fn some_verdict(&mut self) -> Verdict {
        let (settle, refund) = (CreditUnit::new(4).unwrap(), CreditUnit::new(6).unwrap());
        match self.rng.below(3) {
            0 => Verdict::Finish,
            1 => Verdict::Abandon { cause: Cause::UserDisconnected },
            _ => Verdict::Partial { settle, refund, cause: Cause::QualityIssue },
        }
    }

    fn decide(
        &mut self,
        answer: Result<Decided<Item>, NoRoom>,
        expected: Result<Item, QueueFailed>,
    ) -> Result<(), String> {
        let Ok(Decided { answer, .. }) = answer else { return Ok(()) };
        if answer != expected {
            return Err(format!("{answer:?}, and not {expected:?}"));
        }
        if let Ok(item) = answer {
            self.decided.insert(item.intake.id, item);
        }
        Ok(())
    }

    /// Writes a frame, with whatever else is in it. Whether the disk still works.
    fn write(&mut self, journal: &mut Journal<SimDisk>, core: &Core<SimDisk>) -> Result<bool, String> {
        let entries = if self.rng.one_in(2) { self.rng.below(80) } else { 0 };
        let mut frame = Batch::begin(journal.cursor(), Vec::new());
        for _ in 0..entries {
            let length = self.rng.index(1_000);
            if frame.has_room() {
                frame.push(|bytes| bytes.resize(bytes.len() + length, 7)).unwrap();
            }
        }
        let is_full = !frame.has_room();
        let on_its_way = core.write(&mut frame);
        match (journal.append(&mut frame), on_its_way) {
            (Ok(end), Some(on_its_way)) => {
                core.written(on_its_way, end);
                // Where the room was not enough, the rest is left for the next.
                if !core.has_open() {
                    self.durable = self.decided.clone();
                } else if frame.has_room() {
                    return Err("a step was left out of a frame that has room".to_owned());
                }
            }
            (Ok(_), None) if self.durable != self.decided && !is_full => {
                return Err("steps are not written".to_owned());
            }
            (Ok(_), None) => {}
            (Err(failed), _) if self.disk.is_off() => {
                core.fail(&failed.to_string());
                let refused = core.start("qi-1".parse().unwrap(), Timestamp::EPOCH);
                return match refused.map(|decided| decided.answer) {
                    Ok(Err(QueueFailed::Unavailable(_))) => Ok(false),
                    other => Err(format!("after a failure of the journal: {other:?}")),
                };
            }
            (Err(error), _) => return Err(format!("a write failed on a disk that works: {error}")),
        }
        Ok(true)
    }

    /// Does something to the file, between two starts. Whether it did.
    fn damage(&mut self) -> bool {
        let file = path(self.data.path());
        let Ok(mut bytes) = std::fs::read(&file) else { return false };
        match self.rng.below(6) {
            0 => std::fs::remove_file(&file).unwrap(),
            1 => {
                bytes.truncate(self.rng.index(bytes.len()));
                std::fs::write(&file, bytes).unwrap();
            }
            2 => {
                bytes[..100].fill(7);
                std::fs::write(&file, bytes).unwrap();
            }
            3 => {
                // In the middle of an item: SQLite does not see it, the row's checksum does.
                let Some(at) = bytes.windows(5).position(|window| window == b"alice") else { return false };
                bytes[at] = b'A';
                std::fs::write(&file, bytes).unwrap();
            }
            _ => return false,
        }
        true
    }

    /// Looks whether what is there is one of the two things that may be, in every way in which it is asked.
    fn recovered(&mut self, journal: &Journal<SimDisk>, core: &Core<SimDisk>, came: &mut Came) -> Result<(), String> {
        let mut found = Items::new();
        for number in 1..=self.named {
            let id: ItemId = format!("qi-{number}").parse().unwrap();
            let mut answer = core.item(id).answer;
            if answer.is_err() {
                // A damaged row was read: the file is made anew.
                core.file(journal.end())?;
                answer = core.item(id).answer;
            }
            found.extend(answer.map_err(|failed| failed.to_string())?.map(|item| (id, item)));
        }
        if found == self.durable {
            came.lost += u32::from(self.decided != self.durable);
        } else if found == self.decided {
            came.kept += 1;
        } else {
            return Err(format!("{found:?} is neither {:?} nor {:?}", self.durable, self.decided));
        }
        listed(core, &found)?;
        (self.durable, self.decided) = (found.clone(), found);
        Ok(())
    }
}

/// A journal, and the queue in it.
fn opened<D: Disk>(disk: &D, data: &Path) -> Result<(Journal<D>, Core<D>), String> {
    let (journal, _) = Journal::open(disk.clone(), JOURNAL).map_err(|error| error.to_string())?;
    let core = Core::open(disk.clone(), data, (journal.id(), journal.end())).map_err(|error| error.to_string())?;
    Ok((journal, core))
}

/// Looks whether lists and counts tell of the same items.
fn listed(core: &Core<SimDisk>, items: &Items) -> Result<(), String> {
    for state in [None].into_iter().chain(State::ALL.map(Some)) {
        let is_wanted = |item: &&Item| state.map_or(!item.state().is_end(), |state| item.state() == state);
        let mut expected: Vec<&Item> = items.values().filter(is_wanted).collect();
        let listed =
            core.list(Filter { state, ..Filter::default() }, 10_000).answer.map_err(|error| error.to_string())?;
        if state.is_some_and(State::is_end) {
            let mut listed: Vec<&Item> = listed.iter().collect();
            listed.sort_by_key(|item| item.intake.id);
            if listed != expected {
                return Err(format!("{state:?}: {listed:?}, and not {expected:?}"));
            }
            continue;
        }
        expected.sort_by_key(|item| item.rank());
        if !listed.iter().eq(expected) {
            return Err(format!("{state:?}: {listed:?}"));
        }
    }
    let escrows: Vec<_> = items.values().map(|item| item.intake.escrow).collect();
    let linked = core.linked(&escrows).answer.map_err(|error| error.to_string())?;
    let counts = core.counts().answer.map_err(|error| error.to_string())?;
    let open = items.values().filter(|item| !item.state().is_end()).count();
    if linked != escrows || counts.queued + counts.in_progress != open as u64 {
        return Err(format!("{counts:?} and {} of {} links", linked.len(), escrows.len()));
    }
    Ok(())
}

#[test]
fn nothing_but_ends_is_lost_and_nothing_is_half() {
    let mut all = Came::default();
    for seed in 0..40 {
        let Came { crashes, lost, kept, anew } =
            World::new(seed, None).run().unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        all = Came {
            crashes: all.crashes + crashes,
            lost: all.lost + lost,
            kept: all.kept + kept,
            anew: all.anew + anew,
        };
    }
    assert!(all.crashes > 400 && all.lost > 50 && all.kept > 10 && all.anew > 100, "{all:?}");
}

#[test]
fn a_journal_that_is_not_synced_is_noticed() {
    let noticed = (0..20).filter(|seed| World::new(*seed, Some(Lie::SkipsSync)).run().is_err()).count();
    assert!(noticed > 10, "{noticed} of 20");
}

/// A start reads what the file has not got, and not all that has been. `HOLDFAST_QUEUE_ITEMS` says how many items; the times are
/// printed.
#[test]
fn a_start_does_not_replay_what_is_filed() {
    let items: u32 = std::env::var("HOLDFAST_QUEUE_ITEMS").ok().and_then(|text| text.parse().ok()).unwrap_or(5_000);
    let data = tempfile::tempdir().unwrap();
    let began = std::time::Instant::now();
    grow(data.path(), items);
    println!("{items} items put, started, ended and filed in {:?}", began.elapsed());
    let began = std::time::Instant::now();
    let (_, core) = open(data.path());
    println!("started in {:?}: {} steps were replayed", began.elapsed(), core.replayed());
    assert_eq!(core.replayed(), 0);
    drop(core);
    std::fs::remove_file(path(data.path())).unwrap();
    let began = std::time::Instant::now();
    let (_, core) = open(data.path());
    println!("without its file in {:?}: {} steps were replayed", began.elapsed(), core.replayed());
    assert_eq!(core.replayed(), 3 * u64::from(items));
    let last = core.item(format!("qi-{items}").parse().unwrap()).answer.unwrap();
    assert_eq!(last.map(|item| item.state()), Some(State::Finished));
}

fn open(data: &Path) -> (Journal<LocalDisk>, Core<LocalDisk>) {
    opened(&LocalDisk::at(data).unwrap(), data).unwrap()
}

/// Has so many items live and end.
fn grow(data: &Path, items: u32) {
    let (mut journal, core) = open(data);
    for number in 1..=items {
        let id: ItemId = format!("qi-{number}").parse().unwrap();
        let now = Timestamp::from_millis(u64::from(number));
        assert!(matches!(core.put(&item(number)), Ok(Decided { answer: Ok(Put::New(_)), .. })));
        assert!(matches!(core.start(id, now), Ok(Decided { answer: Ok(_), .. })));
        assert!(matches!(core.end(id, Verdict::Finish, now), Ok(Decided { answer: Ok(_), .. })));
        if number % 1_000 == 0 || number == items {
            while core.has_open() {
                write(&mut journal, &core);
            }
            core.file(journal.end()).unwrap();
        }
    }
}

/// Writes a frame with what has been decided, as far as there is room.
fn write(journal: &mut Journal<LocalDisk>, core: &Core<LocalDisk>) {
    let mut frame = Batch::begin(journal.cursor(), Vec::new());
    let on_its_way = core.write(&mut frame).expect("a new frame has room");
    let end = journal.append(&mut frame).unwrap();
    core.written(on_its_way, end);
}

/// Decides more than waits for a frame at most, and says how many it took.
#[test]
fn steps_do_not_pile_up_without_a_frame() {
    let data = tempfile::tempdir().unwrap();
    let (mut journal, core) = open(data.path());
    let decided = (1..=10_000).take_while(|number| core.put(&item(*number)) != Err(NoRoom)).count();
    assert_eq!(decided, 4_096);
    write(&mut journal, &core);
    assert!(core.put(&item(5_000)).is_ok(), "there is room again");
}

fn item(number: u32) -> Item {
    let intake = Intake {
        id: format!("qi-{number}").parse().unwrap(),
        user: "alice".parse().unwrap(),
        payee: format!("model-{}", number % 100).parse().unwrap(),
        escrow: format!("esc-{number}").parse().unwrap(),
        amount: CreditUnit::new(10).unwrap(),
        feature: "song".parse().unwrap(),
        priority: 0,
        metadata: None,
    };
    enqueue(intake, Timestamp::from_millis(u64::from(number)), None)
}

/// Writes a note of any bytes into a journal, as no program of ours does.
fn forge(data: &Path, note: &[u8]) {
    let (mut journal, _) = Journal::open(LocalDisk::at(data).unwrap(), JOURNAL).unwrap();
    let mut batch = Batch::begin(journal.cursor(), Vec::new());
    batch.push_note(note).unwrap();
    journal.append(&mut batch).unwrap();
}

/// Why the queue of a data directory cannot be opened.
fn refused(data: &Path) -> String {
    let (journal, _) = Journal::open(LocalDisk::at(data).unwrap(), JOURNAL).unwrap();
    let opened = Core::open(LocalDisk::at(data).unwrap(), data, (journal.id(), journal.end()));
    let refused = opened.err().unwrap();
    assert!(refused.to_string().contains(&data.display().to_string()), "{refused}");
    format!("{}: {refused}", refused.code())
}

#[test]
fn steps_that_cannot_be_are_refused_and_their_place_named() {
    let tenth = |step: &[u8]| [&10_u64.to_le_bytes()[..], step].concat();
    let start_of_none: &[u8] = &[1, 2, 1, b'x', 0, 0, 0, 0, 0, 0, 0, 0];
    for note in [b"no".to_vec(), tenth(b"no step"), tenth(&[2, 1]), tenth(start_of_none)] {
        let data = tempfile::tempdir().unwrap();
        grow(data.path(), 3);
        forge(data.path(), &note);
        let said = refused(data.path());
        assert!(said.starts_with("JOURNAL_ENTRY_CORRUPT") && said.contains("entry 10 "), "{note:?}: {said}");
    }
    let data = tempfile::tempdir().unwrap();
    grow(data.path(), 3);
    forge(data.path(), &[&12_u64.to_le_bytes()[..], start_of_none].concat());
    let said = refused(data.path());
    assert!(said.starts_with("JOURNAL_ENTRY_CORRUPT") && said.contains("entry 12 "), "steps are missing: {said}");
}

#[test]
fn a_journal_that_ends_before_the_file_is_refused_and_another_one_is_not_mistaken_for_it() {
    let (data, older) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    grow(data.path(), 3);
    let segment = "journal/0000000001.seg";
    std::fs::copy(data.path().join(segment), older.path().join("segment")).unwrap();
    let (mut journal, core) = open(data.path());
    assert!(core.put(&item(9)).is_ok());
    write(&mut journal, &core);
    core.file(journal.end()).unwrap();
    drop((journal, core));
    std::fs::copy(older.path().join("segment"), data.path().join(segment)).unwrap();
    assert!(refused(data.path()).starts_with("JOURNAL_BEHIND"));
    // A copy of the same journal that has gone on in another way since: the file is made anew from it.
    forge(data.path(), &{
        let mut note = 10_u64.to_le_bytes().to_vec();
        note.extend([1, 2, 4, b'q', b'i', b'-', b'1', 0, 0, 0, 0, 0, 0, 0, 0]);
        note
    });
    assert!(refused(data.path()).starts_with("JOURNAL_ENTRY_CORRUPT"), "an item that has ended is not taken up");
}

/// An engine with its journal on a disk, and the queue in it.
fn beside<D: Disk>(disk: D, data: &Path) -> (Engine<D>, NotedQueue<D>) {
    let config = OpenConfig { journal: JOURNAL, limits: Limits { open_holds: 1_000 }, keys_in_memory: None };
    let opened = recovery::open(disk.clone(), &config, &mut |_| {}).unwrap();
    let policy = Policy { segment_bytes: JOURNAL.segment_bytes, ..Policy::STANDARD };
    let engine = Engine::start(opened, disk.clone(), Arc::new(SystemClock::start()), policy);
    let queue = NotedQueue::on(disk, data, engine.margin(), |_| false).unwrap();
    (engine, queue)
}

/// One caller after the other, as one connection asks. The times are printed.
#[tokio::test(flavor = "multi_thread")]
async fn a_lone_caller_finds_all_of_it_after_a_restart() {
    const ITEMS: u32 = 200;
    let data = tempfile::tempdir().unwrap();
    let disk = LocalDisk::at(data.path()).unwrap();
    let (engine, store) = beside(disk.clone(), data.path());
    let (now, mut spent) = (Timestamp::from_millis(5), [Duration::ZERO; 3]);
    for number in 1..=ITEMS {
        let id = item(number).intake.id;
        let began = std::time::Instant::now();
        store.put(item(number)).await.unwrap();
        let put = began.elapsed();
        store.start(id, now).await.unwrap();
        let started = began.elapsed();
        store.end(id, Verdict::Finish, now).await.unwrap();
        spent[0] += put;
        spent[1] += started - put;
        spent[2] += began.elapsed() - started;
    }
    println!("put, start, end of a lone caller: {:?}", spent.map(|spent| spent / ITEMS));
    store.put(item(ITEMS + 1)).await.unwrap();
    store.stop().unwrap();
    assert!(matches!(store.put(item(ITEMS + 2)).await, Err(QueueFailed::Unavailable(_))), "it has stopped");
    engine.stop().unwrap();
    let (_engine, store) = beside(disk, data.path());
    let finished = Filter { state: Some(State::Finished), ..Filter::default() };
    assert_eq!(store.list(finished, 1_000).await.unwrap().len(), ITEMS as usize);
    assert_eq!(store.list(Filter::default(), 1_000).await.unwrap(), [item(ITEMS + 1)]);
    assert_eq!(store.put(item(1)).await.map(|put| matches!(put, Put::Known(_))), Ok(true));
}

/// Some of them have decided what would have come with the next frame when the journal fails with the one before it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_journal_that_fails_leaves_nobody_waiting() {
    const CALLERS: u32 = 16;
    for seed in 0..60 {
        let (disk, data) = (SimDisk::new(Rng::new(seed)), tempfile::tempdir().unwrap());
        let (_engine, store) = beside(disk.clone(), data.path());
        let store = Arc::new(store);
        disk.set_fuse(Some(10 + 3 * seed));
        let call = |caller: u32| {
            let store = Arc::clone(&store);
            let numbers = (0..).map(move |round| 1 + caller + CALLERS * round);
            tokio::spawn(async move {
                for number in numbers {
                    if store.put(item(number)).await.is_err() {
                        return;
                    }
                }
            })
        };
        let callers: Vec<_> = (0..CALLERS).map(call).collect();
        for caller in callers {
            let told = tokio::time::timeout(Duration::from_secs(60), caller).await;
            told.unwrap_or_else(|_| panic!("seed {seed}: somebody waits for what is never written")).unwrap();
        }
    }
}

/// The first who waits for a frame has it written for all of them, after a moment in which it may go away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_to_call_for_a_frame_and_goes_away_leaves_nobody_waiting() {
    let data = tempfile::tempdir().unwrap();
    let disk = SimDisk::new(Rng::new(1));
    let (_engine, store) = beside(disk, data.path());
    let store = Arc::new(store);
    let (mut number, mut gone) = (0, 0);
    while gone < 3 {
        // In company nobody writes its own step.
        let company = (0..64).map(|_| {
            number += 1;
            let (store, item) = (Arc::clone(&store), item(number));
            tokio::spawn(async move { store.put(item).await.map(drop) })
        });
        for caller in company.collect::<Vec<_>>() {
            caller.await.unwrap().unwrap();
        }
        // By then the engine has sealed, and its workers sleep until they are called.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let mut first = Box::pin(store.put(item(number + 1)));
        let mut second = Box::pin(store.put(item(number + 2)));
        number += 2;
        assert!(number < 10_000, "everybody was alone");
        let is_waiting = poll_fn(|context| Poll::Ready(first.as_mut().poll(context).is_pending())).await;
        drop(first);
        gone += u32::from(is_waiting);
        let told = tokio::time::timeout(Duration::from_secs(60), second.as_mut()).await;
        told.expect("somebody waits for a frame that nobody calls for").unwrap();
    }
}
