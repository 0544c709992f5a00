//! Stores of the queue's items under their suite: the embedded one, also with a fault planted between it and its callers, and
//! the one in PostgreSQL, alone and as three nodes, also with answers that get lost.

use crate::ledger::World;
use crate::postgres_world::Cutter;
use holdfast_adapters::SystemClock;
use holdfast_adapters::postgres::{Database, Limits};
use holdfast_adapters::queue::{NotedQueue, PostgresQueue};
use holdfast_domain::queue::{Intake, Item, State, Verdict, enqueue};
use holdfast_domain::{CreditUnit, EscrowId, ItemId, PayeeId, Timestamp};
use holdfast_engine::queue::{Answered, Counts, Filter, Put, QueueFailed, QueueStore};
use holdfast_engine::recovery::{self, OpenConfig};
use holdfast_engine::{Engine, Policy};
use holdfast_journal::{Config, JournalId, LocalDisk};
use holdfast_simulator::contract::queue;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

/// An engine in a data directory, and the queue in its journal.
fn beside(data: &Path) -> (Engine<LocalDisk>, NotedQueue) {
    let disk = LocalDisk::at(data).unwrap();
    let journal = Config { segment_bytes: 256 * 1_024, id: JournalId([5; 16]), verify_threads: 1 };
    let config = OpenConfig { journal, limits: holdfast_engine::Limits { open_holds: 1_000 }, keys_in_memory: None };
    let opened = recovery::open(disk.clone(), &config, &mut |_| {}).unwrap();
    let engine = Engine::start(opened, disk, Arc::new(SystemClock::start()), Policy::STANDARD);
    let queue = NotedQueue::open(data, engine.margin(), |_| false).unwrap();
    (engine, queue)
}

#[tokio::test(flavor = "multi_thread")]
async fn queue_items_in_the_journal() {
    let data = tempfile::tempdir().unwrap();
    let (engine, store) = beside(data.path());
    let store = Arc::new(store);
    queue::rules(Arc::clone(&store)).await.unwrap();
    store.put(item("last")).await.unwrap();
    store.stop().unwrap();
    engine.stop().unwrap();
    let (_engine, again) = beside(data.path());
    assert!(again.item(item("last").intake.id).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_whose_engine_has_stopped_says_so() {
    let data = tempfile::tempdir().unwrap();
    let (engine, store) = beside(data.path());
    store.put(item("early")).await.unwrap();
    store.end(item("early").intake.id, Verdict::Finish, Timestamp::from_millis(2)).await.unwrap();
    engine.stop().unwrap();
    assert!(matches!(store.put(item("late")).await, Err(QueueFailed::Unavailable(_))));
    drop(store);
    let (_engine, again) = beside(data.path());
    let early = again.item(item("early").intake.id).await.unwrap().unwrap();
    assert_eq!(early.state(), State::Finished, "what nobody waited for went with the engine");
}

/// Builds before the first release had a log of the queue's own; nothing that is in it is passed over in silence.
#[test]
fn a_data_directory_with_the_former_log_is_refused_and_says_what_to_do() {
    let data = tempfile::tempdir().unwrap();
    let (engine, store) = beside(data.path());
    drop(store);
    std::fs::create_dir_all(data.path().join("queue/journal")).unwrap();
    let refused = NotedQueue::open(data.path(), engine.margin(), |_| false).err().unwrap().to_string();
    assert!(refused.contains("queue/journal") && refused.contains("end its items"), "{refused}");
}

/// What is wrong between a store and its callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// Metadata gets lost.
    LostMetadata,
    /// An item that is known is told as new.
    AlwaysNew,
    /// A reused id is told as known.
    ReusedIsKnown,
    /// An escrow that another item has is taken for free: the item is put with another.
    FreeEscrow,
    /// What was taken up can be taken up again.
    StartsAgain,
    /// One that ended otherwise is told as ended so.
    AnyVerdict,
    /// Overdue items are taken up.
    TakesOverdue,
    /// Every eighth item is taken up by two.
    TakenTwice,
    /// A list forgets where it was.
    FirstPageOnly,
    /// One more than was asked for.
    OneMore,
    /// The oldest is the one that ended last.
    NoOldest,
    /// Of linked escrows, those whose item has ended are forgotten.
    ForgetsEnded,
    /// Those that are late by less than a moment are not late.
    LateByAMoment,
}

/// A store with a fault.
struct Faulty {
    /// Before the engine, so that it goes first.
    inner: NotedQueue,
    _engine: Engine<LocalDisk>,
    fault: Fault,
    taken: AtomicU32,
}

impl Faulty {
    fn open(data: &Path, fault: Fault) -> Arc<Self> {
        let (engine, inner) = beside(data);
        Arc::new(Self { inner, _engine: engine, fault, taken: AtomicU32::new(0) })
    }

    fn has(&self, fault: Fault) -> bool {
        self.fault == fault
    }
}

impl QueueStore for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }

    async fn put(&self, mut item: Item) -> Answered<Put> {
        let id = item.intake.id;
        if self.has(Fault::LostMetadata) {
            item.intake.metadata = None;
        }
        match self.inner.put(item.clone()).await {
            Ok(Put::Known(known)) if self.has(Fault::AlwaysNew) => Ok(Put::New(known)),
            Err(QueueFailed::Reused) if self.has(Fault::ReusedIsKnown) => {
                Ok(Put::Known(self.inner.item(id).await?.unwrap()))
            }
            Err(QueueFailed::Linked) if self.has(Fault::FreeEscrow) => {
                item.intake.escrow = format!("esc-of-{id}").parse().unwrap();
                self.inner.put(item).await
            }
            other => other,
        }
    }

    async fn item(&self, id: ItemId) -> Answered<Option<Item>> {
        self.inner.item(id).await
    }

    async fn start(&self, id: ItemId, now: Timestamp) -> Answered<Item> {
        let answer = self.inner.start(id, now).await;
        match (answer, self.inner.item(id).await?) {
            (Err(QueueFailed::Refused(_)), Some(item)) if self.has(Fault::StartsAgain) => Ok(item),
            (answer, _) => answer,
        }
    }

    async fn start_next(&self, payee: PayeeId, now: Timestamp) -> Answered<Option<Item>> {
        let is_early = self.has(Fault::TakesOverdue);
        let next = self.inner.start_next(payee, if is_early { Timestamp::EPOCH } else { now }).await?;
        if self.has(Fault::TakenTwice) && next.is_none() && self.taken.fetch_add(1, Ordering::Relaxed) == 10 {
            let filter = Filter { payee: Some(payee), ..Filter::default() };
            return Ok(self.inner.list(filter, 1).await?.pop());
        }
        Ok(next)
    }

    async fn end(&self, id: ItemId, verdict: Verdict, at: Timestamp) -> Answered<Item> {
        match self.inner.end(id, verdict, at).await {
            Err(QueueFailed::Refused(_)) if self.has(Fault::AnyVerdict) => Ok(self.inner.item(id).await?.unwrap()),
            other => other,
        }
    }

    async fn list(&self, mut filter: Filter, at_most: usize) -> Answered<Vec<Item>> {
        if self.has(Fault::FirstPageOnly) {
            filter.after = None;
        }
        self.inner.list(filter, at_most + usize::from(self.has(Fault::OneMore))).await
    }

    async fn overdue(&self, now: Timestamp, at_most: usize) -> Answered<Vec<Item>> {
        let early = Timestamp::from_millis(now.millis() - 1);
        self.inner.overdue(if self.has(Fault::LateByAMoment) { early } else { now }, at_most).await
    }

    async fn linked(&self, escrows: Vec<EscrowId>) -> Answered<Vec<EscrowId>> {
        let mut linked = self.inner.linked(escrows).await?;
        if self.has(Fault::ForgetsEnded) {
            let open: Vec<Item> = self.inner.list(Filter::default(), 1_000).await?;
            linked.retain(|escrow| open.iter().any(|item| item.intake.escrow == *escrow));
        }
        Ok(linked)
    }

    async fn counts(&self) -> Answered<Counts> {
        let mut counts = self.inner.counts().await?;
        if self.has(Fault::NoOldest) && counts.in_progress > 0 {
            let queued = Filter { state: Some(State::Queued), ..Filter::default() };
            counts.oldest = self.inner.list(queued, 1).await?.first().map(|item| item.queued_at);
        }
        Ok(counts)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_queues_suite_catches_every_planted_fault() {
    for (fault, rule) in [
        (Fault::LostMetadata, "what is put is there unchanged"),
        (Fault::AlwaysNew, "an id belongs to one intake"),
        (Fault::ReusedIsKnown, "an id belongs to one intake"),
        (Fault::FreeEscrow, "an escrow belongs to one item"),
        (Fault::ForgetsEnded, "an escrow belongs to one item"),
        (Fault::StartsAgain, "every state and every step"),
        (Fault::AnyVerdict, "every state and every step"),
        (Fault::NoOldest, "items are counted"),
        (Fault::FirstPageOnly, "items are listed by rank"),
        (Fault::OneMore, "items are listed by rank"),
        (Fault::TakesOverdue, "the next is the first that is not overdue"),
        (Fault::LateByAMoment, "overdue items come by their time"),
        (Fault::TakenTwice, "each item is taken up once in a crowd"),
    ] {
        let data = tempfile::tempdir().unwrap();
        let broken = queue::rules(Faulty::open(data.path(), fault)).await;
        assert_eq!(broken.map_err(|broken| broken.rule), Err(rule), "{fault:?}");
    }
}

/// Long, because many callers share few connections, and the machine with other tests.
const PATIENT: Limits =
    Limits { connections: 4, connect_within: Duration::from_secs(60), answer_within: Duration::from_secs(20) };

/// Nodes on one database, which take turns.
struct Nodes {
    nodes: Vec<PostgresQueue>,
    turn: AtomicUsize,
}

impl Nodes {
    fn next(&self) -> &PostgresQueue {
        &self.nodes[self.turn.fetch_add(1, Ordering::Relaxed) % self.nodes.len()]
    }
}

impl QueueStore for Nodes {
    fn name(&self) -> &'static str {
        self.next().name()
    }

    async fn put(&self, item: Item) -> Answered<Put> {
        self.next().put(item).await
    }

    async fn item(&self, id: ItemId) -> Answered<Option<Item>> {
        self.next().item(id).await
    }

    async fn start(&self, id: ItemId, now: Timestamp) -> Answered<Item> {
        self.next().start(id, now).await
    }

    async fn start_next(&self, payee: PayeeId, now: Timestamp) -> Answered<Option<Item>> {
        self.next().start_next(payee, now).await
    }

    async fn end(&self, id: ItemId, verdict: Verdict, at: Timestamp) -> Answered<Item> {
        self.next().end(id, verdict, at).await
    }

    async fn list(&self, filter: Filter, at_most: usize) -> Answered<Vec<Item>> {
        self.next().list(filter, at_most).await
    }

    async fn overdue(&self, now: Timestamp, at_most: usize) -> Answered<Vec<Item>> {
        self.next().overdue(now, at_most).await
    }

    async fn linked(&self, escrows: Vec<EscrowId>) -> Answered<Vec<EscrowId>> {
        self.next().linked(escrows).await
    }

    async fn counts(&self) -> Answered<Counts> {
        self.next().counts().await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn queue_items_in_postgresql() {
    let world = World::new().await;
    for (database, count) in [("queue_alone", 1), ("queue_three", 3)] {
        world.add_database(database).await;
        let nodes = (0..count).map(|_| PostgresQueue::new(world.database(database), PATIENT)).collect();
        queue::rules(Arc::new(Nodes { nodes, turn: AtomicUsize::new(0) })).await.unwrap();
    }
}

fn item(name: &str) -> Item {
    let intake = Intake {
        id: name.parse().unwrap(),
        user: "alice".parse().unwrap(),
        payee: "model".parse().unwrap(),
        escrow: format!("esc-{name}").parse().unwrap(),
        amount: CreditUnit::new(5).unwrap(),
        feature: "song".parse().unwrap(),
        priority: 0,
        metadata: None,
    };
    enqueue(intake, Timestamp::from_millis(1), None)
}

/// A call whose answer is lost on its way was done, and says so when it is made again.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_of_postgresql_is_resolved() {
    let world = World::new().await;
    let cutter = Cutter::to(&world.server).await;
    let store = PostgresQueue::new(Database::at(&cutter.url(), None).unwrap(), PATIENT);
    store.check().await.unwrap();
    let now = Timestamp::from_millis(7);
    for name in ["one", "two"] {
        cutter.cut(1);
        assert_eq!(store.put(item(name)).await, Ok(Put::New(item(name))));
    }
    cutter.cut(1);
    let started = store.start("two".parse().unwrap(), now).await.unwrap();
    assert_eq!(started, item("two").start(now).unwrap());
    cutter.cut(1);
    let next = store.start_next("model".parse().unwrap(), now).await.unwrap();
    assert_eq!(next, Some(item("one").start(now).unwrap()), "it was taken up once, by this call");
    assert_eq!(store.start_next("model".parse().unwrap(), now).await, Ok(None));
    cutter.cut(1);
    let ended = store.end("one".parse().unwrap(), Verdict::Finish, now).await.unwrap();
    assert_eq!(ended.state(), State::Finished);
    let counts = store.counts().await.unwrap();
    assert_eq!((counts.queued, counts.in_progress), (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_does_not_answer_is_said() {
    let nobody = Database::at("postgres://node@127.0.0.1:1/postgres", None).unwrap();
    let store = PostgresQueue::new(nobody, PATIENT);
    assert!(matches!(store.counts().await, Err(QueueFailed::Unavailable(_))));
    assert!(matches!(store.put(item("a")).await, Err(QueueFailed::Unavailable(_))));
}

/// What no program of ours does: the database refuses it all the same.
#[tokio::test(flavor = "multi_thread")]
async fn the_database_guards_the_items_itself() {
    let world = World::new().await;
    let store = PostgresQueue::new(world.database("postgres"), PATIENT);
    store.put(item("guarded")).await.unwrap();
    let node = world.database("postgres").connect().await.unwrap();
    for forbidden in [
        "UPDATE holdfast.queue_items SET priority = 9",
        "DELETE FROM holdfast.queue_items",
        "INSERT INTO holdfast.queue_items (id) VALUES ('mine')",
        "TRUNCATE holdfast.queue_items",
    ] {
        let refused = node.batch_execute(forbidden).await.unwrap_err();
        assert_eq!(refused.code().map(|code| code.code().to_owned()), Some("42501".to_owned()), "{forbidden}");
    }
    let end = |parts: &str| format!("SELECT holdfast.queue_end('guarded', 'partial', 'quality_issue', {parts}, 9)");
    for (wrong, code) in [
        (end("3, 3"), "23514"),
        (end("-1, 6"), "23514"),
        ("SELECT holdfast.queue_end('guarded', 'queued', NULL, NULL, NULL, 9)".to_owned(), "23514"),
        ("SELECT holdfast.queue_end('guarded', 'abandoned', NULL, NULL, NULL, 9)".to_owned(), "23514"),
    ] {
        let refused = node.batch_execute(&wrong).await.unwrap_err();
        assert_eq!(refused.code().map(|code| code.code().to_owned()), Some(code.to_owned()), "{wrong}");
    }
    store.end("guarded".parse().unwrap(), Verdict::Finish, Timestamp::from_millis(9)).await.unwrap();
    for (late, code) in [
        ("UPDATE holdfast.queue_items SET ended_at = 10", "P7003"),
        ("DELETE FROM holdfast.queue_items", "P0001"),
        ("TRUNCATE holdfast.queue_items", "P0001"),
    ] {
        let refused = world.admin.batch_execute(late).await.unwrap_err();
        assert_eq!(refused.code().map(|code| code.code().to_owned()), Some(code.to_owned()), "{late}");
    }
}
