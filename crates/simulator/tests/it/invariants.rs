//! The conservation invariants of settlement, each as a property over more than a thousand charges: the real client and the
//! real dispatcher, against a real HTTP peer that misbehaves.

use crate::redis_world::{Told as Heard, redis_at, redis_telling, temp_dir};
use holdfast_adapters::SystemClock;
use holdfast_adapters::obligations::line::decode_line;
use holdfast_adapters::obligations::{Failover, MemoryStore, Notice};
use holdfast_adapters::peer::{HttpPeer, PeerSettings, PrivateAddresses};
use holdfast_domain::delivery::{Chance, CircuitPolicy, Obligation, Schedule, Verdict};
use holdfast_domain::{AMOUNT_MAX, CreditUnit, ObligationId, Span, Timestamp};
use holdfast_engine::Clock;
use holdfast_engine::dispatcher::{self, Bell, CircuitView, DELIVERY_MAX, Observer, Parts, Peer as _, Seen, Told};
use holdfast_engine::obligations::{Count, Durable, ObligationStore, Standing};
use holdfast_simulator::peer::{Manner, Mix, Options, Peer, Presence};
use holdfast_simulator::rng::Rng;
use holdfast_simulator::servers::{Mode, RedisServer};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

const CASES: u64 = 1_200;
const AT_ONCE: usize = 32;
/// Far longer than any of this takes: a test that waits for it has failed.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// What a caller of `finalize` learns, in the words of the invariants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Finalize {
    Finalized,
    Idempotent,
    Dlq,
}

fn outcome(told: &Told) -> Finalize {
    match told.verdict {
        Verdict::Finalized => Finalize::Finalized,
        Verdict::Known => Finalize::Idempotent,
        Verdict::TryAgain { .. } | Verdict::Terminal => Finalize::Dlq,
    }
}

/// Charges of every size, of many accounts.
fn obligations(seed: u64) -> Vec<Obligation> {
    let mut rng = Rng::new(seed);
    let mut one = |number| {
        let shift = rng.below(64);
        let cost = match rng.below(20) {
            0 => AMOUNT_MAX,
            // Doubles cannot tell this from its neighbour.
            1 => 9_007_199_254_740_993,
            _ => (rng.next() >> shift).min(AMOUNT_MAX),
        };
        let name = format!("p{seed}_{number}");
        Obligation {
            id: name.parse().unwrap(),
            charge: name.parse().unwrap(),
            owner: format!("tenant-{}", rng.below(50)).parse().unwrap(),
            cost: CreditUnit::new(cost).unwrap(),
            created_at: Timestamp::from_millis(1_700_000_000_000 + rng.below(1_000_000)),
        }
    };
    (0..CASES).map(&mut one).collect()
}

/// A client of the peer, not as patient as a server's.
fn client(peer: &Peer) -> Arc<HttpPeer> {
    let timeout = Duration::from_millis(300);
    let settings = PeerSettings {
        url: peer.url.clone(),
        connect_timeout: timeout,
        timeout,
        private_addresses: PrivateAddresses::Allow,
    };
    let sign = Arc::new(|| Ok("header.claims.signature".to_owned()));
    Arc::new(HttpPeer::new(&settings, Arc::new(SystemClock::start()), sign).unwrap())
}

/// Tells the peer of each of these once, many at a time.
async fn tell_all(client: &Arc<HttpPeer>, obligations: &[Obligation]) -> HashMap<ObligationId, Told> {
    let mut told = HashMap::new();
    for some in obligations.chunks(AT_ONCE) {
        let mut telling = JoinSet::new();
        for obligation in some.iter().copied() {
            let client = Arc::clone(client);
            telling.spawn(async move { (obligation.id, client.tell(&obligation).await) });
        }
        let in_time = Duration::from_millis(DELIVERY_MAX.millis());
        told.extend(tokio::time::timeout(in_time, telling.join_all()).await.expect("every call ends in its time"));
    }
    told
}

struct Unseen;

impl Observer for Unseen {
    fn see(&self, _seen: &Seen<'_>) {}
}

fn schedule(quick: usize, slow: usize) -> Schedule {
    let pauses = |many, millis| vec![Span::from_millis(millis); many];
    Schedule { quick: pauses(quick, 3), slow: pauses(slow, 15), age_min: Span::from_millis(0) }
}

/// A dispatcher at work on a store.
struct Delivering {
    stop: watch::Sender<bool>,
    running: JoinHandle<()>,
}

impl Delivering {
    fn start(store: &Arc<impl ObligationStore>, peer: &Peer, name: &str, schedule: Schedule) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
        // The circuit has its own tests: here it must not keep anything from being tried.
        let policy = CircuitPolicy { failures: u32::MAX, at_once: AT_ONCE, ..CircuitPolicy::USUAL };
        let parts = Parts {
            store: Arc::clone(store),
            peer: client(peer),
            circuit: Arc::new(CircuitView::new(policy, Arc::clone(&clock))),
            clock,
            bell: Arc::new(Bell::default()),
            observer: Arc::new(Unseen),
            chance: || Chance(u64::MAX / 3),
            worker: name.parse().unwrap(),
            schedule,
            at_once: AT_ONCE,
        };
        let (stop, stopping) = watch::channel(false);
        Self { stop, running: tokio::spawn(dispatcher::run(parts, stopping)) }
    }

    async fn stop(self) {
        self.stop.send_replace(true);
        self.running.await.unwrap();
    }
}

/// Waits until so many are left.
async fn until(store: &impl ObligationStore, expected: impl Fn(Count) -> bool) {
    let reached = async {
        while !expected(store.count().await.unwrap()) {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    tokio::time::timeout(PATIENCE, reached).await.expect("it comes to that");
}

fn memory() -> Arc<MemoryStore> {
    Arc::new(MemoryStore::new(Arc::new(SystemClock::start())))
}

/// Those that never take a charge.
fn failing() -> Mix {
    let failing: Vec<Manner> = Manner::all().filter(|manner| !manner.takes()).collect();
    Mix::of(&failing).without_hangs()
}

/// The peer's book has exactly these, once, to the last digit.
fn assert_booked(peer: &Peer, obligations: &[Obligation]) {
    let book = peer.book();
    assert_eq!(book.complaints, [""; 0]);
    assert_eq!(book.rows.len(), obligations.len());
    for obligation in obligations {
        let row = &book.rows[obligation.id.as_str()];
        assert_eq!((row.cost.clone(), row.applied), (obligation.cost.units().to_string(), 1), "{obligation:?}");
        assert_eq!(row.tenant, obligation.owner.as_str());
    }
}

/// INV-1 (Completeness): for every finalize(req), exactly one of finalized (money moved), idempotent (money already moved),
/// dlq (settlement deferred). No path exists where finalize() returns without one of these outcomes.
#[tokio::test(flavor = "multi_thread")]
async fn inv_1_every_finalize_has_exactly_one_of_three_outcomes_and_it_is_true() {
    // Away for moments only: whoever asks while nobody is there learns little.
    let presence = Presence::ComesAndGoes { calls: 200, away: Duration::from_millis(4) };
    let peer = Peer::start(Options { refuses_one_in: Some(20), presence, ..Options::hostile(1) }).unwrap();
    let (client, obligations) = (client(&peer), obligations(1));
    let mut seen: HashMap<Finalize, u64> = HashMap::new();
    for _ in 0..3 {
        let told = tell_all(&client, &obligations).await;
        assert_eq!(told.len(), obligations.len(), "one outcome for each");
        for obligation in &obligations {
            let outcome = outcome(&told[&obligation.id]);
            *seen.entry(outcome).or_default() += 1;
            let applied = peer.row(obligation.id.as_str()).map_or(0, |row| row.applied);
            match outcome {
                Finalize::Finalized | Finalize::Idempotent => assert_eq!(applied, 1, "money moved: {obligation:?}"),
                Finalize::Dlq => assert!(applied <= 1, "deferred, and moved at most once"),
            }
        }
    }
    let all = [Finalize::Finalized, Finalize::Idempotent, Finalize::Dlq];
    assert!(all.iter().all(|outcome| seen.get(outcome).is_some_and(|times| *times > 50)), "{seen:?}");
    assert_eq!(peer.book().complaints, [""; 0]);
}

/// INV-2 (Persistence, durable mode): if the outcome is dlq and the mode is durable, `get(reservation_id)` returns a
/// non-null entry, and the entry survives process restart. Here the store's restart too, both by `kill -9`.
#[tokio::test(flavor = "multi_thread")]
async fn inv_2_what_is_deferred_is_in_the_durable_store_and_survives_every_restart() {
    let directory = temp_dir();
    let settings = ["--appendfsync", "always", "--maxmemory-policy", "noeviction"];
    let mut redis = RedisServer::start(directory.path(), Mode::Plain, &settings).unwrap();
    let peer = Peer::start(Options { seed: 2, mix: failing(), ..Options::honest() }).unwrap();
    let obligations = obligations(2);
    let store = Arc::new(redis_at(&redis.url()));
    store.put(&obligations).await.unwrap();
    let delivering = Delivering::start(&store, &peer, "first", schedule(1, 1));
    until(&*store, |count| count.dead > CASES / 4).await;
    // The process ends in the middle of it: nothing of it is finished or given back.
    delivering.running.abort();
    drop((delivering, store));
    redis.kill();
    redis.start_again().unwrap();

    let store = Arc::new(redis_at(&redis.url()));
    assert_eq!(store.durable().await, Durable::Yes);
    for obligation in &obligations {
        let stored = store.get(obligation.id).await.unwrap().expect("it is there");
        assert_eq!(stored.obligation, *obligation);
    }
    peer.behave(Mix::honest());
    for obligation in &obligations {
        // What somebody had in hand when it ended is given back when its lease has run out.
        store.replay(obligation.id).await.unwrap();
    }
    let delivering = Delivering::start(&store, &peer, "second", schedule(1, 1));
    let left = tokio::time::timeout(PATIENCE, only_in_hand_of(&*store, "first")).await.expect("the rest is delivered");
    // Those that were being told, those that waited for it, and those that were told and not yet completed.
    assert!(left.len() <= AT_ONCE * 4, "{} were in hand", left.len());
    delivering.stop().await;
    let mut settled = obligations;
    settled.retain(|obligation| !left.contains(&obligation.id));
    for obligation in settled {
        assert_eq!(peer.row(obligation.id.as_str()).unwrap().applied, 1);
    }
}

/// Waits until nothing is pending but what a worker has in hand that was not heard of again.
async fn only_in_hand_of(store: &impl ObligationStore, name: &str) -> Vec<ObligationId> {
    let is_in_hand =
        |standing: &Standing| matches!(standing, Standing::Leased { worker, .. } if worker.as_str() == name);
    loop {
        let left = store.list_pending(None, 1_000).await.unwrap();
        if left.iter().all(|stored| is_in_hand(&stored.standing)) && store.count().await.unwrap().dead == 0 {
            return left.iter().map(|stored| stored.obligation.id).collect();
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// INV-2d (Persistence, degraded mode): if the outcome is dlq and the mode is degraded, the entry exists in memory, the full
/// entry is logged at ERROR level for manual recovery, and health reports dlq.durable = false.
#[tokio::test(flavor = "multi_thread")]
async fn inv_2d_what_is_deferred_while_the_store_is_away_is_in_memory_and_whole_in_the_log() {
    let directory = temp_dir();
    let mut redis = RedisServer::start(directory.path(), Mode::Plain, &[]).unwrap();
    let heard = Arc::new(Heard::default());
    let durable = redis_telling(&redis.url(), Arc::clone(&heard));
    let clock = Arc::new(SystemClock::start());
    let store = Arc::new(Failover::new(durable, clock, Arc::clone(&heard) as _));
    redis.kill();
    let peer = Peer::start(Options { seed: 3, mix: failing(), ..Options::honest() }).unwrap();
    let (client, obligations) = (client(&peer), obligations(3));
    for (some, told) in [(&obligations, tell_all(&client, &obligations).await)] {
        assert!(told.values().all(|told| outcome(told) == Finalize::Dlq), "the peer takes nothing");
        for some in some.chunks(100) {
            store.put(some).await.expect("the caller is not held up");
        }
    }
    assert_eq!(store.durable().await, Durable::No);
    for obligation in &obligations {
        let stored = store.get(obligation.id).await.unwrap().expect("it is in memory");
        assert_eq!(stored.obligation, *obligation);
    }
    let lines: Vec<String> = heard.all().iter().map(Notice::line).collect();
    let read = lines.iter().filter_map(|line| decode_line(line).unwrap().map(|read| (read.id, (read, line))));
    let logged: HashMap<ObligationId, (Obligation, &String)> = read.collect();
    assert_eq!(logged.len(), obligations.len());
    for obligation in &obligations {
        let (read, line) = &logged[&obligation.id];
        assert_eq!(read, obligation);
        assert!(line.contains(r#""level":"ERROR""#) && !line.contains('\n'), "{line}");
    }
    peer.behave(Mix::honest());
    let delivering = Delivering::start(&store, &peer, "degraded", schedule(3, 3));
    tokio::time::timeout(PATIENCE, peer.wait_applied(CASES)).await.expect("memory is delivered from");
    delivering.stop().await;
    assert_booked(&peer, &obligations);
}

/// INV-3 (Idempotency): for any reservation_id R, finalize(R) then finalize(R): the second call returns idempotent (via 409).
/// No double-billing occurs.
#[tokio::test(flavor = "multi_thread")]
async fn inv_3_a_second_finalize_is_idempotent_and_nothing_is_billed_twice() {
    let peer = Peer::start(Options::hostile(4)).unwrap();
    let (client, obligations) = (client(&peer), obligations(4));
    let mut left = obligations.clone();
    while !left.is_empty() {
        let told = tell_all(&client, &left).await;
        left.retain(|obligation| outcome(&told[&obligation.id]) == Finalize::Dlq);
    }
    assert_booked(&peer, &obligations);
    peer.behave(Mix::honest());
    let mut left = obligations.clone();
    while !left.is_empty() {
        let told = tell_all(&client, &left).await;
        // It still comes and goes; whoever is heard is told that it is known.
        left.retain(|obligation| outcome(&told[&obligation.id]) == Finalize::Dlq);
        assert!(told.values().all(|told| outcome(told) != Finalize::Finalized), "nothing is taken again");
    }
    assert_booked(&peer, &obligations);
}

/// INV-4 (Cost immutability): actual_cost_micro is never modified after initial computation: stored as a string-serialized
/// integer, and no floating-point operations in the settlement path.
#[tokio::test(flavor = "multi_thread")]
async fn inv_4_the_peer_is_told_the_cost_of_the_charge_to_the_last_digit_and_never_another() {
    let directory = temp_dir();
    let redis = RedisServer::start(directory.path(), Mode::Plain, &[]).unwrap();
    costs_stay(memory()).await;
    costs_stay(Arc::new(redis_at(&redis.url()))).await;
}

async fn costs_stay(store: Arc<impl ObligationStore>) {
    // At first it takes nothing, so that all of them wait.
    let peer = Peer::start(Options { mix: failing(), fair_after: u64::MAX, ..Options::hostile(5) }).unwrap();
    let obligations = obligations(5);
    store.put(&obligations).await.unwrap();
    let delivering = Delivering::start(&store, &peer, "one", schedule(400, 400));
    let mut rng = Rng::new(5);
    for _ in 0..5 {
        // Somebody puts them again with other costs, while they wait, are told, and fail.
        let mut other = |obligation: &Obligation| Obligation {
            cost: CreditUnit::new(rng.below(AMOUNT_MAX)).unwrap(),
            created_at: Timestamp::EPOCH,
            ..*obligation
        };
        let others: Vec<Obligation> = obligations.iter().map(&mut other).collect();
        store.put(&others).await.unwrap();
    }
    peer.behave(Mix::hostile());
    tokio::time::timeout(PATIENCE, peer.wait_applied(CASES)).await.expect("all are told");
    until(&*store, |count| count == Count::default()).await;
    delivering.stop().await;
    assert_booked(&peer, &obligations);
}

/// INV-5 (Bounded retry): every DLQ entry is replayed at most maxRetries times; after exhaustion it is a dead letter, and
/// kept. A claim lock prevents duplicate replay by several instances.
#[tokio::test(flavor = "multi_thread")]
async fn inv_5_every_obligation_is_tried_a_bounded_number_of_times_by_however_many_dispatchers() {
    let directory = temp_dir();
    let redis = RedisServer::start(directory.path(), Mode::Plain, &[]).unwrap();
    let in_redis = || Arc::new(redis_at(&redis.url()));
    let one = memory();
    tries_are_bounded([Arc::clone(&one), one]).await;
    tries_are_bounded([in_redis(), in_redis()]).await;
}

/// A dispatcher for each of the doors to one store.
async fn tries_are_bounded<S: ObligationStore>(doors: [Arc<S>; 2]) {
    let peer = Peer::start(Options { seed: 6, mix: failing(), ..Options::honest() }).unwrap();
    let (obligations, schedule) = (obligations(6), schedule(2, 3));
    let [store, other] = &doors;
    store.put(&obligations).await.unwrap();
    let attempts_max = schedule.attempts_max() as u64;
    let both = [(store, "one"), (other, "two")];
    let both = both.map(|(store, name)| Delivering::start(store, &peer, name, schedule.clone()));
    until(&**store, |count| count == Count { pending: 0, dead: CASES }).await;
    for delivering in both {
        delivering.stop().await;
    }
    let book = peer.book();
    for obligation in &obligations {
        let row = &book.rows[obligation.id.as_str()];
        assert!(row.asked <= attempts_max && row.applied == 0, "{row:?}");
        let stored = store.get(obligation.id).await.unwrap().expect("a dead letter is kept");
        assert_eq!((stored.standing, u64::from(stored.attempts)), (Standing::Dead, attempts_max));
        assert_eq!(stored.obligation, *obligation);
    }
    assert!(book.calls > CASES && book.calls <= attempts_max * CASES, "nobody makes another's attempt: {}", book.calls);
}
