//! What the peer is owed, derived from the journal of a real engine.

use holdfast_adapters::obligations::JournalStore;
use holdfast_adapters::obligations::journal;
use holdfast_domain::charge::{self, Actual, Finality, OnExpiry, Overrun, Reserve, State, Terms};
use holdfast_domain::{Budgets, ChargeId, Span, Timestamp};
use holdfast_engine::dispatcher::Bell;
use holdfast_engine::obligations::{Claimed, Count, ObligationStore, Outcome};
use holdfast_engine::recovery::{self, OpenConfig};
use holdfast_engine::{Clock, Command, Engine, Limits, Policy, Request};
use holdfast_journal::{Config, JournalId, LocalDisk};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

/// A clock that a test moves.
struct Hand(AtomicU64);

impl Clock for Hand {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.0.load(Ordering::Relaxed))
    }
}

struct World {
    engine: Arc<Engine<LocalDisk>>,
    store: JournalStore,
    bell: Arc<Bell>,
    clock: Arc<Hand>,
    following: JoinHandle<()>,
}

impl World {
    fn open(data: &Path) -> Self {
        let disk = LocalDisk::at(data).unwrap();
        let journal = Config { segment_bytes: 64 * 1_024, id: JournalId([5; 16]), verify_threads: 1 };
        let config = OpenConfig { journal, limits: Limits { open_holds: 1_000 }, keys_in_memory: Some(100) };
        let opened = recovery::open(disk.clone(), &config, &mut |_| {}).unwrap();
        let end = (opened.journal.id(), opened.journal.end().next_offset - 1);
        let clock = Arc::new(Hand(AtomicU64::new(1_700_000_000_000)));
        let engine = Arc::new(Engine::start(opened, disk, Arc::clone(&clock) as _, Policy::STANDARD));
        let bell = Arc::new(Bell::default());
        let (entries, follower_bell) = (Arc::clone(&engine) as _, Arc::clone(&bell));
        let (store, follower) = JournalStore::open(data, end, entries, Arc::clone(&clock) as _, follower_bell).unwrap();
        let following = engine.follow(follower);
        Self { engine, store, bell, clock, following }
    }

    fn stop(self) {
        let Self { engine, store, following, .. } = self;
        drop(store);
        Arc::into_inner(engine).unwrap().stop().unwrap();
        following.join().unwrap();
    }

    async fn run(&self, key: Option<&str>, command: Command) {
        let key = key.map(|key| key.parse().unwrap());
        let _done = self.engine.submit(Request { key, actor: "test".parse().unwrap(), command }).await.unwrap();
    }

    /// A hold that was charged 2 of 9, has expired, and was charged 3 more since: two obligations.
    async fn two_parts(&self, id: &str) -> ChargeId {
        let charge = id.parse().unwrap();
        self.first_part(charge).await;
        self.late(charge).await;
        self.pending(2).await;
        charge
    }

    async fn first_part(&self, charge: ChargeId) {
        let terms = Terms { rates: None, overrun: Overrun::Cap, on_expiry: OnExpiry::Release };
        let owner = "alice".parse().unwrap();
        let reason = "a credit".parse().unwrap();
        self.run(Some("mint"), Command::Mint { owner, amount: "100".parse().unwrap(), reason }).await;
        let ttl = Span::from_secs(1);
        let reserve = Reserve { owner, amount: "9".parse().unwrap(), terms, ttl, budgets: Budgets::NONE };
        self.run(None, Command::Reserve { charge, reserve }).await;
        self.commit(charge, "2", Finality::Partial, Some("part")).await;
        self.clock.0.fetch_add(2_000, Ordering::Relaxed);
        // The engine expires holds by itself when its time has come; this is refused if it was first.
        let command = Command::Charge { charge, command: charge::Command::Expire };
        let actor = "test".parse().unwrap();
        let _either = self.engine.submit(Request { key: None, actor, command }).await.is_ok();
        self.pending(1).await;
    }

    async fn late(&self, charge: ChargeId) {
        self.commit(charge, "3", Finality::Final, None).await;
    }

    async fn commit(&self, charge: ChargeId, amount: &str, finality: Finality, key: Option<&str>) {
        let actual = Actual::Credits(amount.parse().unwrap());
        let command = charge::Command::Commit { actual, finality };
        self.run(key, Command::Charge { charge, command }).await;
    }

    async fn pending(&self, count: u64) {
        while self.store.count().await.unwrap().pending != count {
            self.bell.rung().await;
        }
    }

    async fn state(&self, charge: ChargeId) -> State {
        self.engine.ask(move |view| view.charge(charge)).await.unwrap().unwrap().unwrap().0.state()
    }

    async fn claim(&self, count: usize) -> Vec<Claimed> {
        let claimed = self.store.claim_ready("test".parse().unwrap(), 10, Span::from_secs(60)).await.unwrap();
        assert_eq!(claimed.len(), count);
        claimed
    }

    async fn complete(&self, done: &[(&Claimed, Outcome)]) {
        let done: Vec<_> = done.iter().map(|(claimed, outcome)| (claimed.lease, outcome.clone())).collect();
        assert!(self.store.complete(&done).await.unwrap().iter().all(Result::is_ok));
    }
}

fn dead() -> Outcome {
    Outcome::Dead { reason: "no".parse().unwrap() }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_obligation_of_a_charge_has_the_word_for_all_of_them() {
    use Outcome::Delivered;
    let both = |first: Outcome, second: Outcome| [first, second];
    for (case, (outcomes, turned, together, expected)) in [
        (both(Delivered, Delivered), false, false, State::Acked),
        (both(Delivered, Delivered), true, false, State::Acked),
        (both(Delivered, Delivered), false, true, State::Acked),
        (both(Delivered, dead()), false, false, State::Failed),
        (both(dead(), Delivered), false, false, State::Failed),
        (both(dead(), Delivered), true, false, State::Failed),
        (both(dead(), dead()), false, true, State::Failed),
    ]
    .into_iter()
    .enumerate()
    {
        let data = tempfile::tempdir().unwrap();
        let world = World::open(data.path());
        let charge = world.two_parts("parts").await;
        let claimed = world.claim(2).await;
        let costs: Vec<_> = claimed.iter().map(|claimed| claimed.obligation.cost.to_string()).collect();
        assert_eq!(costs, ["2", "3"], "the older first");
        assert_eq!(claimed[0].obligation.id.as_str(), "parts");
        assert!(claimed[1].obligation.id.as_str().starts_with("late_"));
        let [first, second] = outcomes;
        let mut done = vec![(&claimed[0], first), (&claimed[1], second)];
        if turned {
            done.reverse();
        }
        if together {
            world.complete(&done).await;
        } else {
            world.complete(&done[..1]).await;
            assert_eq!(world.state(charge).await, State::Committed, "case {case}: there is more to tell");
            world.complete(&done[1..]).await;
        }
        assert_eq!(world.state(charge).await, expected, "case {case}");
        let died = u64::from(done.iter().filter(|(_, outcome)| *outcome != Delivered).count() as u32);
        assert_eq!(world.store.count().await.unwrap(), Count { pending: 0, dead: died }, "case {case}");
        world.stop();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_result_is_not_hidden_by_the_word_that_it_overtook() {
    let data = tempfile::tempdir().unwrap();
    let world = World::open(data.path());
    let charge = "parts".parse().unwrap();
    world.first_part(charge).await;
    let first = world.claim(1).await;
    world.late(charge).await;
    world.complete(&[(&first[0], Outcome::Delivered)]).await;
    assert_eq!(world.state(charge).await, State::Committed, "the peer does not know all of it");
    world.pending(1).await;
    let second = world.claim(1).await;
    world.complete(&[(&second[0], Outcome::Delivered)]).await;
    assert_eq!(world.state(charge).await, State::Acked);
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_died_is_dead_after_a_restart_and_after_the_file_was_lost_until_it_is_replayed_or_resolved() {
    let data = tempfile::tempdir().unwrap();
    let world = World::open(data.path());
    let charge = world.two_parts("parts").await;
    let claimed = world.claim(2).await;
    world.complete(&[(&claimed[0], dead()), (&claimed[1], dead())]).await;
    let late = claimed[1].obligation.id;
    world.stop();
    for lost in [false, true] {
        if lost {
            journal::remove(data.path()).unwrap();
        }
        let world = World::open(data.path());
        while world.store.count().await.unwrap().dead != 2 {
            world.bell.rung().await;
        }
        assert_eq!(world.store.get(late).await.unwrap().unwrap().obligation, claimed[1].obligation);
        world.claim(0).await;
        world.stop();
    }
    let world = World::open(data.path());
    assert!(world.store.replay(late).await.unwrap());
    let claimed = world.claim(1).await;
    world.complete(&[(&claimed[0], Outcome::Delivered)]).await;
    assert_eq!(world.state(charge).await, State::Failed, "the first part is dead");
    assert!(world.store.resolve(charge.as_str().parse().unwrap(), &"paid by hand".parse().unwrap()).await.unwrap());
    assert_eq!(world.state(charge).await, State::Acked);
    assert_eq!(world.store.count().await.unwrap(), Count::default());
    world.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_charge_that_is_taken_back_while_it_is_being_told_is_not_acknowledged() {
    let data = tempfile::tempdir().unwrap();
    let world = World::open(data.path());
    let charge = world.two_parts("parts").await;
    let claimed = world.claim(2).await;
    let reason = "by mistake".parse().unwrap();
    world.run(None, Command::Charge { charge, command: charge::Command::Void { reason } }).await;
    let answers = world.store.complete(&[(claimed[0].lease, Outcome::Delivered)]).await.unwrap();
    assert!(answers.len() == 1 && world.state(charge).await == State::Voided);
    world.stop();
    let world = World::open(data.path());
    world.claim(0).await;
    assert_eq!(world.store.count().await.unwrap(), Count::default());
    world.stop();
}
