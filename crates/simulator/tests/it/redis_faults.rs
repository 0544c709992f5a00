//! A real Redis that is killed, emptied, made read-only, filled, slowed down or cut off: what the store says and does, and how
//! memory stands in for it.

use crate::redis_world::{
    LONG, Told, deliver_all, id, obligation, obligations, redis_at, redis_telling, temp_dir, worker,
};
use holdfast_adapters::SystemClock;
use holdfast_adapters::obligations::{Failover, Notice, RedisStore, line};
use holdfast_domain::Timestamp;
use holdfast_engine::obligations::{Count, Durable, LeaseLost, ObligationStore, Outcome};
use holdfast_simulator::servers::{Mode, RedisServer};
use std::sync::Arc;
use tempfile::TempDir;

fn started(settings: &[&str]) -> (TempDir, RedisServer) {
    let dir = temp_dir();
    let server = RedisServer::start(dir.path(), Mode::Plain, settings).unwrap();
    (dir, server)
}

fn with_memory(server: &RedisServer) -> (Failover<RedisStore>, Arc<Told>) {
    let told = Arc::new(Told::default());
    let durable = redis_telling(&server.url(), Arc::clone(&told));
    let clock = Arc::new(SystemClock::start());
    (Failover::new(durable, clock, Arc::clone(&told) as Arc<_>), told)
}

/// Asks until the durable store is asked again and answers.
async fn wait_until_whole(store: &Failover<RedisStore>) {
    while store.is_degraded() {
        let _ = store.count().await;
        tokio::task::yield_now().await;
    }
}

fn lines(told: &Told) -> Vec<String> {
    told.all().iter().filter(|notice| matches!(notice, Notice::NotStored(_))).map(Notice::line).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_killed_with_its_log_on_has_everything_after_its_start() {
    let (_dir, mut server) = started(&["--appendfsync", "always"]);
    let store = redis_at(&server.url());
    store.put(&obligations(1..=50)).await.unwrap();
    let claimed = store.claim_ready(worker("a"), 30, LONG).await.unwrap();
    let outcome = |number: usize| match number {
        0..10 => Outcome::Delivered,
        10..20 => Outcome::Dead { reason: "422".parse().unwrap() },
        _ => Outcome::Retry { at: Timestamp::EPOCH, reason: "503".parse().unwrap() },
    };
    let done: Vec<_> = claimed.iter().take(25).enumerate().map(|(number, one)| (one.lease, outcome(number))).collect();
    assert!(store.complete(&done).await.unwrap().iter().all(Result::is_ok));

    server.kill();
    assert!(store.count().await.is_err());
    server.start_again().unwrap();
    assert_eq!(store.count().await.unwrap(), Count { pending: 30, dead: 10 });
    let gone: Vec<_> = claimed.iter().take(20).map(|claimed| claimed.obligation).collect();
    let oldest = obligations(1..=50).into_iter().find(|one| !gone.contains(one)).map(|one| one.created_at);
    assert_eq!(store.oldest().await.unwrap(), oldest);
    let again = store.get(claimed[20].lease.id).await.unwrap().unwrap();
    assert_eq!((again.attempts, again.obligation), (1, claimed[20].obligation));
    assert_eq!(store.list_dead(None, 100).await.unwrap().len(), 10);
    let held = (claimed[25].lease, Outcome::Delivered);
    assert_eq!(store.complete(&[held]).await.unwrap(), [Ok(())], "a lease outlives the server");
    for dead in store.list_dead(None, 100).await.unwrap() {
        assert!(store.replay(dead.obligation.id).await.unwrap());
    }
    // 20 that nobody had, 5 that were tried, 10 replayed; 4 are leased still.
    assert_eq!(deliver_all(&store).await.len(), 35);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_delivered_from_memory_is_done_though_the_server_cannot_be_told_of_the_others() {
    let (_dir, mut server) = started(&["--appendfsync", "always"]);
    let (store, _told) = with_memory(&server);
    store.put(&[obligation(1)]).await.unwrap();
    let there = store.claim_ready(worker("a"), 1, LONG).await.unwrap().remove(0);
    server.kill();
    store.put(&[obligation(2)]).await.unwrap();
    let here = store.claim_ready(worker("a"), 1, LONG).await.unwrap().remove(0);
    assert_eq!(here.obligation, obligation(2));
    let (there, here) = ((there.lease, Outcome::Delivered), (here.lease, Outcome::Delivered));
    assert!(store.complete(std::slice::from_ref(&there)).await.is_err(), "whoever has nothing else asks again later");
    assert_eq!(store.complete(&[there.clone(), here]).await.unwrap(), [Err(LeaseLost), Ok(())]);
    server.start_again().unwrap();
    wait_until_whole(&store).await;
    assert_eq!(store.count().await.unwrap(), Count { pending: 1, dead: 0 });
    assert_eq!(store.complete(&[there]).await.unwrap(), [Ok(())], "its lease has not run out, and it is not lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_emptied_makes_no_ghosts_and_takes_all_again() {
    let (_dir, server) = started(&[]);
    let store = redis_at(&server.url());
    store.put(&obligations(1..=10)).await.unwrap();
    let claimed = store.claim_ready(worker("a"), 5, LONG).await.unwrap();
    server.command("FLUSHALL").unwrap();
    let late = |one: usize, outcome| (claimed[one].lease, outcome);
    let reason = || "503".parse().unwrap();
    let answers = store
        .complete(&[
            late(0, Outcome::Delivered),
            late(1, Outcome::Retry { at: Timestamp::EPOCH, reason: reason() }),
            late(2, Outcome::Returned { at: Timestamp::EPOCH }),
            late(3, Outcome::Dead { reason: reason() }),
        ])
        .await
        .unwrap();
    assert!(answers.iter().all(Result::is_err), "a lease on what is gone is lost");
    assert_eq!(server.command("DBSIZE").unwrap(), ":0\r\n");
    store.put(&obligations(1..=10)).await.unwrap();
    let again = store.claim_ready(worker("a"), 1, LONG).await.unwrap();
    assert_eq!(
        store.complete(&[late(0, Outcome::Delivered)]).await.unwrap().iter().filter(|one| one.is_ok()).count(),
        0
    );
    assert_eq!(store.complete(&[(again[0].lease, Outcome::Delivered)]).await.unwrap(), [Ok(())]);
    assert_eq!(deliver_all(&store).await.len(), 9);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_server_says_so_and_memory_takes_over_until_it_is_not() {
    for (spoil, mend, code) in [
        ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE", "READONLY"),
        ("CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0", "NOREPLICAS"),
    ] {
        let (_dir, server) = started(&[]);
        let store = redis_at(&server.url());
        store.put(&[obligation(1)]).await.unwrap();
        server.command(spoil).unwrap();
        let error = store.put(&[obligation(2)]).await.unwrap_err().to_string();
        assert!(error.contains(code), "{error}");
        let (both, told) = with_memory(&server);
        both.put(&[obligation(2)]).await.unwrap();
        assert_eq!(both.durable().await, Durable::No);
        assert_eq!(lines(&told).len(), 1);
        server.command(mend).unwrap();
        wait_until_whole(&both).await;
        assert_eq!(deliver_all(&both).await, obligations(1..=2));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_server_takes_no_more_and_gives_up_nothing() {
    let (_dir, server) = started(&["--maxmemory-policy", "noeviction"]);
    let store = redis_at(&server.url());
    store.put(&obligations(1..=100)).await.unwrap();
    let claimed = store.claim_ready(worker("a"), 10, LONG).await.unwrap();
    server.command("CONFIG SET maxmemory 1mb").unwrap();
    let error = store.put(&[obligation(101)]).await.unwrap_err().to_string();
    assert!(error.contains("OOM") && error.contains("out of memory"), "{error}");
    assert!(store.claim_ready(worker("a"), 10, LONG).await.is_err(), "a claim needs memory");
    let done: Vec<_> = claimed.iter().map(|claimed| (claimed.lease, Outcome::Delivered)).collect();
    assert!(store.complete(&done).await.unwrap().iter().all(Result::is_ok), "what is delivered needs none");
    assert_eq!(store.count().await.unwrap(), Count { pending: 90, dead: 0 });
    server.command("CONFIG SET maxmemory 0").unwrap();
    let delivered: Vec<_> = claimed.iter().map(|claimed| claimed.obligation).collect();
    let rest: Vec<_> = obligations(1..=100).into_iter().filter(|one| !delivered.contains(one)).collect();
    assert_eq!(deliver_all(&store).await, rest);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_server_says_of_its_persistence_is_what_is_told() {
    let (_dir, server) = started(&["--appendfsync", "everysec"]);
    let store = redis_at(&server.url());
    let persistence = store.persistence().await.unwrap();
    assert_eq!((persistence.aof_verified(), persistence.fsync.as_deref()), (Some(true), Some("everysec")));
    assert_eq!((store.durable().await, persistence.advice()), (Durable::Yes, None));

    server.command("CONFIG SET maxmemory-policy allkeys-lru").unwrap();
    assert_eq!(store.durable().await, Durable::No, "what evicts is not durable");
    assert!(store.persistence().await.unwrap().advice().unwrap().contains("noeviction"));
    server.command("CONFIG SET maxmemory-policy noeviction").unwrap();
    server.command("CONFIG SET appendonly no").unwrap();
    let persistence = store.persistence().await.unwrap();
    assert_eq!((persistence.durable(), persistence.aof_verified()), (Durable::No, Some(false)));
    server.command("CONFIG SET appendonly yes").unwrap();

    server.command("ACL SETUSER default -config").unwrap();
    let persistence = store.persistence().await.unwrap();
    assert_eq!((persistence.durable(), persistence.fsync), (Durable::Yes, None), "INFO says what CONFIG may not");
    server.command("ACL SETUSER default -info").unwrap();
    assert_eq!(store.durable().await, Durable::Unknown, "what nobody says is not known");
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_cut_are_opened_anew_whatever_was_under_way() {
    let (_dir, server) = started(&[]);
    let store = Arc::new(redis_at(&server.url()));
    let mut putting = Vec::new();
    for number in 1..=200 {
        let store = Arc::clone(&store);
        putting.push(tokio::spawn(async move { (number, store.put(&[obligation(number)]).await) }));
        if number % 20 == 0 {
            server.command("CLIENT KILL TYPE normal SKIPME yes").unwrap();
            tokio::task::yield_now().await;
        }
    }
    let mut failed = Vec::new();
    for put in putting {
        let (number, answer) = put.await.unwrap();
        if answer.is_err() {
            failed.push(obligation(number));
        }
    }
    // Whoever was told that it failed asks again: that is the same as once.
    store.put(&failed).await.unwrap();
    assert_eq!(deliver_all(&*store).await, obligations(1..=200));
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_are_dropped_half_way_confuse_no_answer() {
    let (_dir, server) = started(&[]);
    let store = Arc::new(redis_at(&server.url()));
    store.put(&obligations(1..=100)).await.unwrap();
    server.command("CLIENT PAUSE 1000 ALL").unwrap();
    let mut dropped = 0;
    for number in 1..=100 {
        // Polled once, so that it is under way, and dropped. Only who is slower than the pause is answered.
        let asked = tokio::time::timeout(std::time::Duration::ZERO, store.get(id(number))).await;
        dropped += u32::from(asked.is_err());
    }
    assert!(dropped > 0, "nothing was under way");
    for number in 1..=100 {
        assert_eq!(store.get(id(number)).await.unwrap().unwrap().obligation, obligation(number));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_forgets_its_scripts_is_told_them_again() {
    let (_dir, server) = started(&[]);
    let store = redis_at(&server.url());
    for number in 1..=3 {
        server.command("SCRIPT FLUSH").unwrap();
        store.put(&[obligation(number)]).await.unwrap();
    }
    server.command("SCRIPT FLUSH").unwrap();
    assert_eq!(deliver_all(&store).await, obligations(1..=3));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_server_is_not_waited_for_beyond_the_limit_and_memory_takes_over() {
    let (_dir, server) = started(&[]);
    let (store, told) = with_memory(&server);
    store.put(&[obligation(1)]).await.unwrap();
    server.command("CLIENT PAUSE 1000000 WRITE").unwrap();
    store.put(&[obligation(2)]).await.unwrap();
    assert!(store.is_degraded());
    assert!(matches!(&told.all()[0], Notice::Degraded { why } if why.contains("in time")), "{:?}", told.all());
    assert_eq!(deliver_all(&store).await, [obligation(2)], "what is in memory is delivered meanwhile");
    server.command("CLIENT UNPAUSE").unwrap();
    wait_until_whole(&store).await;
    // The put that was not waited for may have been done after all; then it is told again, which the peer takes for once.
    let delivered = deliver_all(&store).await;
    assert!(delivered == obligations(1..=1) || delivered == obligations(1..=2), "{delivered:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_stands_in_for_a_server_that_is_gone_and_gives_back_what_it_has() {
    let (_dir, mut server) = started(&["--appendfsync", "always"]);
    let (store, told) = with_memory(&server);
    store.put(&obligations(1..=2)).await.unwrap();
    assert_eq!(store.durable().await, Durable::Yes);
    let held = store.claim_ready(worker("a"), 1, LONG).await.unwrap();

    server.kill();
    assert_eq!(store.durable().await, Durable::No, "seen at once");
    store.put(&obligations(3..=6)).await.unwrap();
    let read: Vec<_> = lines(&told).iter().map(|line| line::decode_line(line).unwrap().unwrap()).collect();
    assert_eq!(read, obligations(3..=6), "the log has them whole");
    assert!(store.count().await.is_err(), "half of it is not told for the whole");
    assert!(
        store.complete(&[(held[0].lease, Outcome::Delivered)]).await.is_err(),
        "a lease of the server's is not ours to end"
    );
    assert!(store.next_due().await.unwrap().is_some(), "somebody looks again");
    let claimed = store.claim_ready(worker("a"), 3, LONG).await.unwrap();
    assert_eq!(claimed.iter().map(|one| one.obligation).collect::<Vec<_>>(), obligations(3..=5));
    let dead = Outcome::Dead { reason: "422".parse().unwrap() };
    let done = [(claimed[0].lease, Outcome::Delivered), (claimed[1].lease, dead)];
    assert_eq!(store.complete(&done).await.unwrap(), [Ok(()), Ok(())]);

    server.start_again().unwrap();
    wait_until_whole(&store).await;
    assert!(told.all().contains(&Notice::Recovered { moved: 2 }), "{:?}", told.all());
    assert_eq!(store.durable().await, Durable::No, "one is in memory, and in somebody's hands");
    assert_eq!(store.count().await.unwrap(), Count { pending: 5, dead: 0 });
    let late = Outcome::Retry { at: Timestamp::EPOCH, reason: "503".parse().unwrap() };
    assert_eq!(
        store.complete(&[(claimed[2].lease, late), (held[0].lease, Outcome::Delivered)]).await.unwrap(),
        [Ok(()), Ok(())]
    );
    assert_eq!(store.count().await.unwrap().pending, 4);
    assert_eq!(store.durable().await, Durable::Yes);
    assert_eq!(deliver_all(&store).await, [2, 4, 5, 6].map(obligation));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_not_there_at_the_start_is_found_later() {
    let (_dir, mut server) = started(&[]);
    server.kill();
    let (store, _told) = with_memory(&server);
    store.put(&[obligation(1)]).await.unwrap();
    assert!(store.is_degraded());
    server.start_again().unwrap();
    wait_until_whole(&store).await;
    assert_eq!(redis_at(&server.url()).count().await.unwrap(), Count { pending: 1, dead: 0 });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_tls_or_without_that_password_is_an_error_that_tells_no_secret() {
    let (_dir, server) = started(&["--requirepass", "right"]);
    let plain = server.url();
    let with = |login: &str| plain.replace("redis://", login);
    for (url, words) in [
        (with("rediss://"), "redis"),
        (plain.clone(), "login"),
        (with("redis://:hunter2@"), "login"),
        (with("redis+sentinel://:hunter2@") + "/main", "login"),
        (with("redis+cluster://:hunter2@"), ""),
    ] {
        let error = redis_at(&url).count().await.unwrap_err().to_string();
        assert!(error.contains(words) && !error.contains("hunter2"), "{error}");
    }
    assert_eq!(redis_at(&with("redis://:right@")).count().await.unwrap(), Count::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_and_a_server_that_a_sentinel_knows_are_found_again_after_a_restart() {
    for mode in [Mode::Cluster, Mode::Plain] {
        let (dir, beside) = (temp_dir(), temp_dir());
        let mut server = RedisServer::start(dir.path(), mode, &["--appendfsync", "always"]).unwrap();
        let sentinel = (mode == Mode::Plain).then(|| server.sentinel(beside.path()).unwrap());
        let url = sentinel.as_ref().map_or_else(|| server.url(), |(_, url)| url.clone());
        let store = redis_at(&url);
        store.put(&obligations(1..=3)).await.unwrap();
        assert_eq!(store.durable().await, Durable::Yes, "{mode:?}");
        server.kill();
        assert!(store.put(&[obligation(4)]).await.is_err(), "{mode:?}");
        server.start_again().unwrap();
        // A cluster takes nothing for a while after its start.
        while store.put(&[obligation(4)]).await.is_err() {
            tokio::task::yield_now().await;
        }
        assert_eq!(deliver_all(&store).await, obligations(1..=4), "{mode:?}");
    }
}
