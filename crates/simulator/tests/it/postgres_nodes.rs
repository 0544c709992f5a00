//! Several nodes that deliver from one PostgreSQL: each obligation once in effect, whoever is slow, lost or not told.

use crate::postgres_world::Outbox;
use crate::redis_world::{LONG, deliver_all, id, obligation, obligations, worker};
use holdfast_adapters::SystemClock;
use holdfast_adapters::obligations::PostgresStore;
use holdfast_adapters::obligations::postgres::{ATTEMPTS_MAX, CHANNEL, DEBOUNCE};
use holdfast_domain::delivery::{Chance, CircuitPolicy, Obligation, Schedule, Verdict};
use holdfast_domain::{ObligationId, Span, Timestamp};
use holdfast_engine::dispatcher::{self, Bell, CircuitView, Observer, Parts, Peer, Seen, Told};
use holdfast_engine::obligations::{Count, LeaseLost, ObligationStore, Outcome, Standing};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How often a peer was told each.
#[derive(Default)]
struct Book(Mutex<BTreeMap<ObligationId, u32>>);

/// One node's way to the peer.
struct Teller(Arc<Book>);

impl Peer for Teller {
    async fn tell(&self, obligation: &Obligation) -> Told {
        tokio::task::yield_now().await;
        *self.0.0.lock().unwrap().entry(obligation.id).or_default() += 1;
        Told { verdict: Verdict::Finalized, reason: "taken".parse().unwrap() }
    }
}

/// Keeps what went wrong.
#[derive(Default)]
struct Alarm(Mutex<Vec<String>>);

impl Observer for Alarm {
    fn see(&self, seen: &Seen<'_>) {
        if matches!(seen, Seen::LeaseLost(_) | Seen::StoreFailed(_) | Seen::Repaired(_)) {
            self.0.lock().unwrap().push(format!("{seen:?}"));
        }
    }
}

/// A node: a store, its dispatcher, and what wakes it.
struct Node {
    alarm: Arc<Alarm>,
    stop: watch::Sender<bool>,
    running: [JoinHandle<()>; 2],
}

impl Node {
    fn start(outbox: &Outbox, name: &str, book: &Arc<Book>) -> Self {
        let clock = Arc::new(SystemClock::start());
        let (store, alarm) = (Arc::new(outbox.store()), Arc::new(Alarm::default()));
        let (bell, (stop, stopping)) = (Arc::new(Bell::default()), watch::channel(false));
        let policy = CircuitPolicy { at_once: 32, ..CircuitPolicy::USUAL };
        let (waking, rung, waits) = (Arc::clone(&store), Arc::clone(&bell), stopping.clone());
        let waking = tokio::spawn(async move { waking.wake(&rung, waits).await });
        let parts = Parts {
            store,
            peer: Arc::new(Teller(Arc::clone(book))),
            clock: Arc::clone(&clock) as _,
            bell,
            circuit: Arc::new(CircuitView::new(policy, clock)),
            observer: Arc::clone(&alarm) as _,
            chance: || Chance(7),
            worker: worker(name),
            schedule: Schedule::usual(),
            at_once: policy.at_once,
        };
        Self { alarm, stop, running: [tokio::spawn(dispatcher::run(parts, stopping)), waking] }
    }

    async fn stop(self) -> Vec<String> {
        self.stop.send_replace(true);
        for task in self.running {
            task.await.unwrap();
        }
        self.alarm.0.lock().unwrap().clone()
    }
}

/// Counts the words on the channel, as anybody can.
async fn listen_too(outbox: &Outbox) -> Arc<AtomicUsize> {
    let config: tokio_postgres::Config = outbox.url().parse().unwrap();
    let (client, mut connection) = config.connect(tokio_postgres::NoTls).await.unwrap();
    let heard = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&heard);
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            let is_word = matches!(message, tokio_postgres::AsyncMessage::Notification(_));
            counted.fetch_add(usize::from(is_word), Ordering::SeqCst);
        }
    });
    client.batch_execute(&format!("LISTEN {CHANNEL}")).await.unwrap();
    // It listens as long as its client is there.
    std::mem::forget(client);
    heard
}

async fn settled(store: &PostgresStore) {
    while store.count().await.unwrap().pending > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_tell_each_obligation_once_whoever_put_it() {
    const COUNT: u32 = 3_000;
    let (outbox, book) = (Outbox::new().await, Arc::new(Book::default()));
    let nodes = ["one", "two"].map(|name| Node::start(&outbox, name, &book));
    // Somebody who delivers nothing: only the word on the channel wakes the nodes.
    let elsewhere = Arc::new(outbox.store());
    let (bell, (_keep, stopping)) = (Arc::new(Bell::default()), watch::channel(false));
    let waking = Arc::clone(&elsewhere);
    let telling = tokio::spawn(async move { waking.wake(&bell, stopping).await });
    for first in (1..=COUNT).step_by(100) {
        elsewhere.put(&obligations(first..=first + 99)).await.unwrap();
    }
    settled(&elsewhere).await;
    telling.abort();
    for node in nodes {
        assert_eq!(node.stop().await, Vec::<String>::new());
    }
    let book = book.0.lock().unwrap().clone();
    assert_eq!(book.len(), usize::try_from(COUNT).unwrap(), "none is lost");
    assert!(book.values().all(|times| *times == 1), "none is told twice");
    let workers = outbox.ask("SELECT worker_id FROM holdfast.payment_outbox_attempts GROUP BY 1 ORDER BY 1").await;
    assert_eq!(workers.concat(), ["one", "two"], "and both have told some");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_comes_back_after_its_lease_is_told_that_it_lost_it_and_changes_nothing() {
    let outbox = Outbox::new().await;
    let (frozen, other) = (outbox.store(), outbox.store());
    frozen.put(&obligations(1..=2)).await.unwrap();
    let stale = frozen.claim_ready(worker("frozen"), 2, Span::from_millis(50)).await.unwrap();
    assert_eq!(stale.len(), 2);
    while other.repair_expired(10).await.unwrap() == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // What came back is suspected, and claimed alone.
    let first = other.claim_ready(worker("other"), 10, LONG).await.unwrap();
    assert_eq!((first.len(), first[0].attempts), (1, 1));
    assert_eq!(other.complete(&[(first[0].lease, Outcome::Delivered)]).await.unwrap(), [Ok(())]);
    let late = |claimed: &holdfast_engine::obligations::Claimed| {
        (claimed.lease, Outcome::Dead { reason: "late".parse().unwrap() })
    };
    let late: Vec<_> = stale.iter().map(late).collect();
    assert_eq!(frozen.complete(&late).await.unwrap(), [Err(LeaseLost); 2]);
    assert_eq!(other.count().await.unwrap(), Count { pending: 1, dead: 0 }, "nothing was changed");
    assert_eq!(deliver_all(&other).await.len(), 1);
    let end = "SELECT state, worker_id FROM holdfast.payment_outbox_attempts ORDER BY outbox_id, attempt_no";
    let rounds =
        [["ZOMBIE_REQUEUE", "frozen"], ["DISPATCHED", "other"], ["ZOMBIE_REQUEUE", "frozen"], ["DISPATCHED", "last"]];
    assert_eq!(outbox.ask(end).await, rounds);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_word_that_is_missed_costs_a_moment_and_there_are_few_words() {
    let outbox = Outbox::new().await;
    let (here, there) = (Arc::new(outbox.store()), Arc::new(outbox.store()));
    let wake = |store: &Arc<PostgresStore>| {
        let (bell, (keep, stopping)) = (Arc::new(Bell::default()), watch::channel(false));
        let (store, rung) = (Arc::clone(store), Arc::clone(&bell));
        (tokio::spawn(async move { store.wake(&rung, stopping).await }), bell, keep)
    };
    let (waking, bell, _keep) = wake(&here);
    // It rings once when it has begun to listen.
    bell.rung().await;
    // The words of `there` are not sent: nobody says anything.
    there.put(&[obligation(1)]).await.unwrap();
    bell.rung().await;
    assert_eq!(deliver_all(&*here).await, obligations(1..=1), "a look now and then has found it");

    let admin = outbox.admin().await;
    let listener = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = 'LISTEN {CHANNEL}'");
    admin.batch_execute(&listener).await.unwrap();
    bell.rung().await;
    let (sending, _bell, _keep_too) = wake(&there);
    let (words, began) = (listen_too(&outbox).await, Instant::now());
    for number in 2..=200 {
        there.put(&[obligation(number)]).await.unwrap();
    }
    bell.rung().await;
    assert_eq!(deliver_all(&*here).await.len(), 199);
    // As many as fit into the time, and the one that was under way when it ended.
    let most = began.elapsed().as_millis() / DEBOUNCE.as_millis() + 2;
    let heard = u128::try_from(words.load(Ordering::SeqCst)).unwrap();
    assert!((1..=most).contains(&heard), "{heard} words for 199 puts in the time for {most}");
    waking.abort();
    sending.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_attempt_that_the_database_allows_makes_a_dead_letter_and_a_replay_begins_anew() {
    let outbox = Outbox::new().await;
    let store = outbox.store();
    store.put(&obligations(1..=1)).await.unwrap();
    let again = || Outcome::Retry { at: Timestamp::EPOCH, reason: "503".parse().unwrap() };
    for attempts in 0..u32::try_from(ATTEMPTS_MAX).unwrap() {
        let claimed = store.claim_ready(worker("a"), 1, LONG).await.unwrap();
        assert_eq!(claimed[0].attempts, attempts);
        assert_eq!(store.complete(&[(claimed[0].lease, again())]).await.unwrap(), [Ok(())]);
    }
    let stored = store.get(id(1)).await.unwrap().unwrap();
    assert_eq!((stored.standing, stored.attempts), (Standing::Dead, 20));
    assert_eq!(stored.reason.unwrap().as_str(), "503");
    assert!(store.replay(id(1)).await.unwrap());
    let claimed = store.claim_ready(worker("a"), 1, LONG).await.unwrap();
    assert_eq!((claimed[0].attempts, claimed[0].obligation), (0, obligation(1)));
    assert_eq!(store.complete(&[(claimed[0].lease, Outcome::Delivered)]).await.unwrap(), [Ok(())]);
    assert_eq!(store.count().await.unwrap(), Count::default());
    // What the journal owes still, because nobody could tell it, goes round again: the peer knows the id.
    store.put(&obligations(1..=1)).await.unwrap();
    assert_eq!(deliver_all(&store).await, obligations(1..=1));
    let rounds = "SELECT count(*), count(DISTINCT idempotency_key) FROM holdfast.payment_outbox_instructions";
    assert_eq!(outbox.ask(rounds).await, [["3", "1"]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_is_not_ours_to_read_is_a_dead_letter_and_stops_nobody() {
    let outbox = Outbox::new().await;
    let store = outbox.store();
    let foreign = "SELECT holdfast.enqueue_payment_outbox('i', 'p', 'chg_9', 'sepa', '{\"amount\": 1.5}')";
    outbox.admin().await.batch_execute(foreign).await.unwrap();
    store.put(&obligations(1..=2)).await.unwrap();
    assert_eq!(deliver_all(&store).await, obligations(1..=2));
    assert_eq!(store.count().await.unwrap(), Count { pending: 0, dead: 1 });
    assert!(store.get(id(9)).await.is_err(), "it is there, and cannot be read");
    assert_eq!(store.list_dead(None, 10).await.unwrap(), [], "and hides no other");
    assert!(store.resolve(id(9), &"not ours".parse().unwrap()).await.unwrap());
}
