//! The dispatcher over a store in memory and a peer by a script, in a time that passes when nobody has anything to do.

use holdfast_adapters::obligations::MemoryStore;
use holdfast_domain::delivery::{Chance, CircuitPolicy, CircuitState, Obligation, Schedule, Verdict};
use holdfast_domain::{CreditUnit, ObligationId, Span, Timestamp};
use holdfast_engine::Clock;
use holdfast_engine::dispatcher::{self, Bell, CircuitView, Observer, Parts, Peer, Seen, Told};
use holdfast_engine::obligations::{Count, ObligationStore};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

const TAKES: Duration = Duration::from_millis(100);

/// The time of the test.
struct TestClock(Instant);

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        let passed = u64::try_from(self.0.elapsed().as_millis()).unwrap();
        Timestamp::from_millis(1_700_000_000_000 + passed)
    }
}

/// What the peer was told, when, and how many were being told then.
#[derive(Default)]
struct Book {
    told: Vec<(ObligationId, Duration, usize)>,
    running: usize,
}

struct Script {
    book: Mutex<Book>,
    began: Instant,
    /// The answer, by the time and how often it was told before.
    answers: Box<dyn Fn(Duration, usize) -> Verdict + Send + Sync>,
}

impl Peer for Script {
    async fn tell(&self, obligation: &Obligation) -> Told {
        let now = self.began.elapsed();
        let before = {
            let mut book = self.book.lock().unwrap();
            book.running += 1;
            let running = book.running;
            book.told.push((obligation.id, now, running));
            book.told.iter().filter(|(id, ..)| *id == obligation.id).count() - 1
        };
        tokio::time::sleep(TAKES).await;
        self.book.lock().unwrap().running -= 1;
        Told { verdict: (self.answers)(now, before), reason: "as the script says".parse().unwrap() }
    }
}

#[derive(Default)]
struct Watched {
    returned: Mutex<usize>,
    circuit: Mutex<Vec<&'static str>>,
}

impl Observer for Watched {
    fn see(&self, seen: &Seen<'_>) {
        match seen {
            Seen::Returned(many) => *self.returned.lock().unwrap() += many,
            Seen::Circuit(state) => self.circuit.lock().unwrap().push(state.name()),
            Seen::Attempted { .. } | Seen::Repaired(_) | Seen::LeaseLost(_) | Seen::StoreFailed(_) => {}
        }
    }
}

struct World {
    store: Arc<MemoryStore>,
    peer: Arc<Script>,
    watched: Arc<Watched>,
    circuit: Arc<CircuitView>,
    bell: Arc<Bell>,
    stop: watch::Sender<bool>,
    running: JoinHandle<()>,
}

impl World {
    fn start(policy: CircuitPolicy, answers: impl Fn(Duration, usize) -> Verdict + Send + Sync + 'static) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(TestClock(Instant::now()));
        let store = Arc::new(MemoryStore::new(Arc::clone(&clock)));
        let peer = Arc::new(Script { book: Mutex::default(), began: Instant::now(), answers: Box::new(answers) });
        let (watched, bell) = (Arc::new(Watched::default()), Arc::new(Bell::default()));
        let circuit = Arc::new(CircuitView::new(policy, Arc::clone(&clock)));
        let (stop, stopping) = watch::channel(false);
        let parts = Parts {
            store: Arc::clone(&store),
            peer: Arc::clone(&peer),
            clock,
            bell: Arc::clone(&bell),
            circuit: Arc::clone(&circuit),
            observer: Arc::clone(&watched) as _,
            chance: || Chance(u64::MAX),
            worker: "test".parse().unwrap(),
            schedule: Schedule::usual(),
            at_once: policy.at_once,
        };
        let running = tokio::spawn(dispatcher::run(parts, stopping));
        Self { store, peer, watched, circuit, bell, stop, running }
    }

    async fn owe(&self, count: u32) {
        let obligation = |number: u32| Obligation {
            id: format!("o{number}").parse().unwrap(),
            charge: format!("o{number}").parse().unwrap(),
            owner: "alice".parse().unwrap(),
            cost: CreditUnit::new(5).unwrap(),
            created_at: Timestamp::from_millis(1_700_000_000_000),
        };
        let all: Vec<_> = (0..count).map(obligation).collect();
        self.store.put(&all).await.unwrap();
        self.bell.ring();
    }

    /// Waits until nothing is pending.
    async fn settled(&self) -> Count {
        loop {
            let count = self.store.count().await.unwrap();
            if count.pending == 0 {
                return count;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn told(&self) -> Vec<(ObligationId, Duration, usize)> {
        self.peer.book.lock().unwrap().told.clone()
    }
}

fn at_once(at_once: usize) -> CircuitPolicy {
    CircuitPolicy { at_once, ..CircuitPolicy::USUAL }
}

const AGAIN: Verdict = Verdict::TryAgain { after: None };

#[tokio::test(start_paused = true)]
async fn each_is_told_once_and_no_more_at_once_than_may_be() {
    let world = World::start(at_once(8), |_, _| Verdict::Finalized);
    world.owe(1_000).await;
    assert_eq!(world.settled().await, Count::default());
    let told = world.told();
    let mut ids: Vec<_> = told.iter().map(|(id, ..)| *id).collect();
    ids.sort();
    ids.dedup();
    assert_eq!((told.len(), ids.len()), (1_000, 1_000));
    assert_eq!(told.iter().map(|(.., running)| *running).max(), Some(8));
    // Nobody waits for the store between two rounds: a thousand in eights, a tenth of a second each.
    assert!(told.iter().all(|(_, at, _)| *at <= TAKES * 130), "{:?}", told.last());
    world.owe(0).await;
    world.owe(2_000).await;
    world.settled().await;
    assert_eq!(world.told().len(), 3_000, "what was delivered is not there to be put, and woken by the bell alone");
}

#[tokio::test(start_paused = true)]
async fn after_its_last_pause_one_is_given_up() {
    let world = World::start(CircuitPolicy { failures: 1_000, ..at_once(8) }, |_, _| AGAIN);
    world.owe(3).await;
    assert_eq!(world.settled().await, Count { pending: 0, dead: 3 });
    let mut attempts: HashMap<ObligationId, usize> = HashMap::new();
    world.told().iter().for_each(|(id, ..)| *attempts.entry(*id).or_default() += 1);
    assert!(attempts.values().all(|attempts| *attempts == Schedule::usual().attempts_max()), "{attempts:?}");
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_is_away_is_left_alone_then_tried_once_then_loaded_step_by_step() {
    let world =
        World::start(at_once(4), |now, _| if now < Duration::from_secs(40) { AGAIN } else { Verdict::Finalized });
    world.owe(100).await;
    assert_eq!(world.settled().await, Count::default(), "what is given back is no attempt: none is given up");
    let told = world.told();
    let before: Vec<_> = told.iter().filter(|(_, at, _)| *at < Duration::from_secs(25)).collect();
    assert!((5..=8).contains(&before.len()), "two rounds, until five had failed: {}", before.len());
    let after = &told[before.len()..];
    let (first, second) = (after[0], after[1]);
    assert!(first.1 >= Duration::from_secs(30) && first.2 == 1, "one tries it: {first:?}");
    assert!(second.1 >= first.1 + Duration::from_secs(30) && second.2 == 1, "and once more: {second:?}");
    assert!(after[2].1 >= second.1 + TAKES, "the others wait for what it says");
    let load: Vec<usize> = after[2..6].iter().map(|(.., running)| *running).collect();
    assert!(load.iter().all(|running| *running <= 3), "not all at once: {load:?}");
    assert!(*world.watched.returned.lock().unwrap() > 0);
    assert_eq!(*world.watched.circuit.lock().unwrap(), ["open", "half_open", "open", "half_open", "closed"]);
    assert_eq!(world.circuit.state(), CircuitState::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_the_peer_asks_for_is_kept() {
    let asked = Verdict::TryAgain { after: Some(Span::from_secs(90)) };
    let world = World::start(at_once(4), move |_, before| if before == 0 { asked } else { Verdict::Known });
    world.owe(1).await;
    world.settled().await;
    let told = world.told();
    assert!(told.len() == 2 && told[1].1 - told[0].1 >= Duration::from_secs(90), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_stop_finishes_what_is_under_way_and_gives_the_rest_back() {
    let world = World::start(at_once(4), |_, _| Verdict::Finalized);
    world.owe(100).await;
    tokio::time::sleep(TAKES / 2).await;
    world.stop.send_replace(true);
    world.running.await.unwrap();
    assert_eq!(world.store.count().await.unwrap().pending, 96);
    let rest = world.store.claim_ready("other".parse().unwrap(), 100, Span::from_secs(9)).await.unwrap();
    assert_eq!(rest.len(), 96, "nothing is left leased");
    assert!(rest.iter().all(|claimed| claimed.attempts == 0));
}
