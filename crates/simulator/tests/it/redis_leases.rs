//! Leases in a real Redis: two who claim never hold the same, a stale one completes nothing, and no client's clock matters.

use crate::redis_world::{
    LONG, Told, id, obligation, obligations, redis_at, redis_by, redis_telling, temp_dir, worker,
};
use holdfast_adapters::SystemClock;
use holdfast_adapters::obligations::{Notice, RedisStore};
use holdfast_domain::{ObligationId, Span, Timestamp};
use holdfast_engine::Clock;
use holdfast_engine::obligations::{Claimed, Count, LeaseLost, ObligationStore, Outcome, Standing};
use holdfast_simulator::servers::{Mode, RedisServer};
use std::collections::HashSet;
use std::sync::{Arc, Mutex};

const COUNT: u32 = 10_000;
const BATCH: usize = 97;

/// What is in somebody's hands now, as the claimers see it.
#[derive(Default)]
struct Hands(Mutex<HashSet<ObligationId>>);

impl Hands {
    fn take(&self, claimed: &[Claimed]) {
        let mut held = self.0.lock().unwrap();
        for claimed in claimed {
            assert!(held.insert(claimed.lease.id), "{} is in two hands", claimed.lease.id);
        }
    }

    fn let_go(&self, claimed: &[Claimed]) {
        let mut held = self.0.lock().unwrap();
        for claimed in claimed {
            assert!(held.remove(&claimed.lease.id));
        }
    }
}

/// Claims and completes until nothing is left; every third batch is given back first. Returns how many it delivered.
async fn work(store: RedisStore, hands: Arc<Hands>, name: &str) -> usize {
    let mut delivered = 0;
    for round in 0.. {
        let claimed = store.claim_ready(worker(name), BATCH, LONG).await.unwrap();
        if claimed.is_empty() {
            if store.count().await.unwrap().pending == 0 {
                break;
            }
            tokio::task::yield_now().await;
            continue;
        }
        hands.take(&claimed);
        tokio::task::yield_now().await;
        // Let go before it is completed: from then on another may have it.
        hands.let_go(&claimed);
        let outcome = || if round % 3 == 0 { Outcome::Returned { at: Timestamp::EPOCH } } else { Outcome::Delivered };
        let done: Vec<_> = claimed.iter().map(|claimed| (claimed.lease, outcome())).collect();
        assert!(store.complete(&done).await.unwrap().iter().all(Result::is_ok));
        delivered += if outcome() == Outcome::Delivered { claimed.len() } else { 0 };
    }
    delivered
}

#[tokio::test(flavor = "multi_thread")]
async fn two_who_claim_never_hold_the_same_of_ten_thousand() {
    let dir = temp_dir();
    let server = RedisServer::start(dir.path(), Mode::Plain, &[]).unwrap();
    redis_at(&server.url()).put(&obligations(1..=COUNT)).await.unwrap();
    let hands = Arc::new(Hands::default());
    let workers = ["one", "two"].map(|name| {
        let (store, hands) = (redis_at(&server.url()), Arc::clone(&hands));
        tokio::spawn(async move { work(store, hands, name).await })
    });
    let mut delivered = 0;
    for worker in workers {
        delivered += worker.await.unwrap();
    }
    assert_eq!(delivered, usize::try_from(COUNT).unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_lease_completes_nothing_though_the_same_worker_has_it_again() {
    let dir = temp_dir();
    let server = RedisServer::start(dir.path(), Mode::Plain, &[]).unwrap();
    let store = redis_at(&server.url());
    store.put(&[obligation(1)]).await.unwrap();
    let stale = store.claim_ready(worker("a"), 1, Span::from_millis(0)).await.unwrap();
    assert_eq!(store.repair_expired(10).await.unwrap(), 1);
    let good = store.claim_ready(worker("a"), 1, LONG).await.unwrap();
    let answers = store.complete(&[(stale[0].lease, Outcome::Delivered), (good[0].lease, Outcome::Delivered)]).await;
    assert_eq!(answers.unwrap(), [Err(LeaseLost), Ok(())]);
}

/// A clock that is off by some time.
struct Wrong {
    right: SystemClock,
    off_by_ms: i64,
}

impl Clock for Wrong {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.right.now().millis().saturating_add_signed(self.off_by_ms))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_wrong_by_years_changes_nothing() {
    const YEARS_MS: i64 = 10 * 365 * 86_400 * 1_000;
    let dir = temp_dir();
    let server = RedisServer::start(dir.path(), Mode::Plain, &[]).unwrap();
    for (number, off_by_ms) in [(1, YEARS_MS), (2, -YEARS_MS)] {
        let clock = Arc::new(Wrong { right: SystemClock::start(), off_by_ms });
        let wrong = redis_by(&server.url(), Arc::clone(&clock) as Arc<dyn Clock>, Arc::new(Told::default()));
        let right = redis_at(&server.url());

        wrong.put(&[obligation(number)]).await.unwrap();
        let claimed = right.claim_ready(worker("right"), 1, LONG).await.unwrap();
        assert_eq!(claimed.len(), 1, "what a wrong clock puts is due at once");
        assert_eq!(wrong.repair_expired(10).await.unwrap(), 0, "and a wrong clock does not end the lease of another");
        assert_eq!(
            right.complete(&[(claimed[0].lease, Outcome::Returned { at: Timestamp::EPOCH })]).await.unwrap(),
            [Ok(())]
        );

        let claimed = wrong.claim_ready(worker("wrong"), 1, LONG).await.unwrap();
        let hour = Span::from_secs(3_600);
        let later = Outcome::Retry { at: clock.now().after(hour), reason: "503".parse().unwrap() };
        assert_eq!(wrong.complete(&[(claimed[0].lease, later)]).await.unwrap(), [Ok(())]);
        assert_eq!(right.claim_ready(worker("right"), 1, LONG).await.unwrap(), [], "an hour is an hour on any clock");
        for (store, now) in [(&right, SystemClock::start().now()), (&wrong, clock.now())] {
            let due = store.next_due().await.unwrap().unwrap();
            let Standing::Due { at } = store.get(id(number)).await.unwrap().unwrap().standing else {
                panic!("it waits")
            };
            for moment in [due, at] {
                assert!(moment.millis().abs_diff(now.after(hour).millis()) < 60_000, "each is told by its own clock");
            }
        }
        assert!(right.replay(id(number)).await.unwrap());
        let claimed = right.claim_ready(worker("right"), 1, LONG).await.unwrap();
        assert_eq!(right.complete(&[(claimed[0].lease, Outcome::Delivered)]).await.unwrap(), [Ok(())]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn orphans_are_taken_out_counted_and_told() {
    let dir = temp_dir();
    let server = RedisServer::start(dir.path(), Mode::Plain, &[]).unwrap();
    let told = Arc::new(Told::default());
    let store = redis_telling(&server.url(), Arc::clone(&told));
    store.put(&obligations(1..=4)).await.unwrap();
    server.command("DEL finn:hounfour:dlq:entry:chg_1 finn:hounfour:dlq:entry:chg_2").unwrap();
    let claimed = store.claim_ready(worker("a"), 10, Span::from_millis(0)).await.unwrap();
    assert_eq!(claimed.iter().map(|claimed| claimed.lease.id).collect::<Vec<_>>(), [id(3), id(4)]);
    server.command("DEL finn:hounfour:dlq:entry:chg_3 finn:hounfour:dlq:entry:chg_4").unwrap();
    let late = Outcome::Retry { at: Timestamp::EPOCH, reason: "503".parse().unwrap() };
    assert_eq!(store.complete(&[(claimed[1].lease, late)]).await.unwrap(), [Err(LeaseLost)], "no ghost is counted up");
    assert_eq!(store.repair_expired(10).await.unwrap(), 0);
    assert_eq!(store.orphans_removed(), 3);
    let ids = |numbers: &[u32]| numbers.iter().map(|number| id(*number).to_string()).collect();
    assert_eq!(told.all(), [Notice::Orphans { ids: ids(&[1, 2]) }, Notice::Orphans { ids: ids(&[3]) }]);
    assert_eq!(store.count().await.unwrap(), Count::default());
    assert_eq!(server.command("DBSIZE").unwrap(), ":0\r\n", "nothing of them is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_cannot_be_read_is_a_dead_letter_and_stops_nobody() {
    let dir = temp_dir();
    let server = RedisServer::start(dir.path(), Mode::Plain, &[]).unwrap();
    let told = Arc::new(Told::default());
    let store = redis_telling(&server.url(), Arc::clone(&told));
    store.put(&obligations(1..=2)).await.unwrap();
    server.command("SET finn:hounfour:dlq:entry:chg_1 rubbish").unwrap();
    let claimed = store.claim_ready(worker("a"), 10, LONG).await.unwrap();
    assert_eq!(claimed.iter().map(|claimed| claimed.obligation).collect::<Vec<_>>(), [obligation(2)]);
    assert_eq!(store.count().await.unwrap(), Count { pending: 1, dead: 1 });
    assert_eq!(told.all(), [Notice::Unreadable { id: id(1) }]);
    assert!(store.get(id(1)).await.is_err(), "it is there, and cannot be read");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_lost_its_place_gets_it_again_when_it_is_put_again() {
    let dir = temp_dir();
    let server = RedisServer::start(dir.path(), Mode::Plain, &[]).unwrap();
    let store = redis_at(&server.url());
    store.put(&[obligation(1)]).await.unwrap();
    server.command("DEL finn:hounfour:dlq:schedule finn:hounfour:dlq:pending").unwrap();
    assert_eq!(store.claim_ready(worker("a"), 10, LONG).await.unwrap(), []);
    store.put(&[obligation(1)]).await.unwrap();
    assert_eq!(store.claim_ready(worker("a"), 10, LONG).await.unwrap().len(), 1);
    store.put(&[obligation(1)]).await.unwrap();
    assert_eq!(store.claim_ready(worker("b"), 10, LONG).await.unwrap(), [], "what is leased is in its place");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_delivered_twice_in_one_call_is_good_once() {
    let dir = temp_dir();
    let server = RedisServer::start(dir.path(), Mode::Plain, &[]).unwrap();
    let store = redis_at(&server.url());
    store.put(&obligations(1..=3)).await.unwrap();
    let claimed = store.claim_ready(worker("a"), 10, LONG).await.unwrap();
    let done: Vec<_> = [0, 1, 0, 2, 1].map(|one| (claimed[one].lease, Outcome::Delivered)).into();
    let answers = store.complete(&done).await.unwrap();
    assert_eq!(answers, [Ok(()), Ok(()), Err(LeaseLost), Ok(()), Err(LeaseLost)]);
    assert!(store.complete(&done).await.unwrap().iter().all(Result::is_err), "all are gone");
    assert_eq!(server.command("DBSIZE").unwrap(), ":0\r\n", "nothing of them is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_stale_lease_among_good_ones_is_lost_alone() {
    let dir = temp_dir();
    let server = RedisServer::start(dir.path(), Mode::Plain, &[]).unwrap();
    let store = redis_at(&server.url());
    store.put(&obligations(1..=3)).await.unwrap();
    let claimed = store.claim_ready(worker("a"), 10, LONG).await.unwrap();
    server.command("DEL finn:hounfour:dlq:lock:chg_2").unwrap();
    let done: Vec<_> = claimed.iter().map(|claimed| (claimed.lease, Outcome::Delivered)).collect();
    assert_eq!(store.complete(&done).await.unwrap(), [Ok(()), Err(LeaseLost), Ok(())]);
    assert_eq!(store.count().await.unwrap(), Count { pending: 1, dead: 0 });
}
