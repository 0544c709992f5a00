//! A real PostgreSQL that is restarted, cut off in the middle of an answer, short of connections, blocked or hung: what the store
//! says and does, and that nothing is lost or done twice.

use crate::postgres_world::{Cutter, LIMITS, Outbox, store_at};
use crate::redis_world::{LONG, deliver_all, id, obligation, obligations, worker};
use holdfast_adapters::SystemClock;
use holdfast_adapters::obligations::PostgresStore;
use holdfast_adapters::postgres::Limits;
use holdfast_domain::{Span, Timestamp};
use holdfast_engine::obligations::{Claimed, Count, Durable, LeaseLost, ObligationStore, Outcome, Standing};
use rustix::process::{Pid, Signal, kill_process};
use std::sync::Arc;
use std::time::Duration;

fn through(cutter: &Cutter) -> PostgresStore {
    store_at(&cutter.url(), Arc::new(SystemClock::start()), LIMITS)
}

fn all_as(claimed: &[Claimed], outcome: &Outcome) -> Vec<(holdfast_engine::obligations::Lease, Outcome)> {
    claimed.iter().map(|claimed| (claimed.lease, outcome.clone())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_killed_has_everything_after_its_start_and_leases_outlive_it() {
    let mut outbox = Outbox::new().await;
    let store = outbox.store();
    assert_eq!(store.durable().await, Durable::Yes);
    store.put(&obligations(1..=50)).await.unwrap();
    let claimed = store.claim_ready(worker("a"), 30, LONG).await.unwrap();
    let outcome = |number: usize| match number {
        0..10 => Outcome::Delivered,
        10..20 => Outcome::Dead { reason: "422".parse().unwrap() },
        _ => Outcome::Retry { at: Timestamp::EPOCH, reason: "503".parse().unwrap() },
    };
    let done: Vec<_> = claimed.iter().take(25).enumerate().map(|(number, one)| (one.lease, outcome(number))).collect();
    assert!(store.complete(&done).await.unwrap().iter().all(Result::is_ok));

    outbox.server.kill();
    assert!(store.count().await.is_err());
    assert_eq!(store.durable().await, Durable::Unknown);
    outbox.server.start_again().unwrap();
    assert_eq!(store.count().await.unwrap(), Count { pending: 30, dead: 10 });
    assert_eq!(store.oldest().await.unwrap(), Some(obligation(21).created_at));
    let again = store.get(claimed[20].lease.id).await.unwrap().unwrap();
    assert_eq!((again.attempts, again.obligation), (1, claimed[20].obligation));
    let held = (claimed[25].lease, Outcome::Delivered);
    assert_eq!(store.complete(&[held]).await.unwrap(), [Ok(())], "a lease outlives the server");
    let dead = store.list_dead(None, 100).await.unwrap();
    assert_eq!(dead.len(), 10);
    for dead in dead {
        assert!(store.replay(dead.obligation.id).await.unwrap());
    }
    // 20 that nobody had, 5 that were tried, 10 replayed; 4 are leased still.
    assert_eq!(deliver_all(&store).await.len(), 35);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_lost_on_its_way_changes_nothing_twice() {
    let outbox = Outbox::new().await;
    let cutter = Cutter::to(&outbox.server).await;
    let store = through(&cutter);
    store.check().await.unwrap();
    cutter.cut(1);
    store.put(&obligations(1..=5)).await.unwrap();
    assert_eq!(store.count().await.unwrap().pending, 5, "put once, though it was asked twice");

    // Asked again at once, and answered that it is recorded.
    let claimed = store.claim_ready(worker("a"), 3, LONG).await.unwrap();
    cutter.cut(1);
    let delivered = all_as(&claimed, &Outcome::Delivered);
    assert_eq!(store.complete(&delivered).await.unwrap(), [Ok(()), Ok(()), Ok(())]);
    assert_eq!(store.complete(&delivered).await.unwrap(), [Err(LeaseLost); 3], "a lease completes once");

    // Lost twice: whoever asks later is told the same.
    let claimed = store.claim_ready(worker("a"), 3, LONG).await.unwrap();
    assert_eq!(claimed.len(), 2);
    let dead = all_as(&claimed, &Outcome::Dead { reason: "422".parse().unwrap() });
    cutter.cut(2);
    assert!(store.complete(&dead).await.is_err(), "nobody knows");
    assert_eq!(store.complete(&dead).await.unwrap(), [Ok(()), Ok(())], "it was done");
    assert_eq!(store.complete(&dead).await.unwrap(), [Err(LeaseLost); 2]);
    assert_eq!(store.count().await.unwrap(), Count { pending: 0, dead: 2 });
    let tried = "SELECT state, count(*), max(attempt_no) FROM holdfast.payment_outbox_attempts GROUP BY 1 ORDER BY 1";
    assert_eq!(outbox.ask(tried).await, [["DISPATCHED", "3", "1"], ["FAILED", "2", "1"]], "each attempt once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_answer_is_lost_comes_back_when_its_lease_has_run_out() {
    let outbox = Outbox::new().await;
    let cutter = Cutter::to(&outbox.server).await;
    let store = through(&cutter);
    store.put(&obligations(1..=2)).await.unwrap();
    cutter.cut(1);
    assert!(store.claim_ready(worker("a"), 2, Span::from_secs(1)).await.is_err(), "it is not asked for twice");
    let standing = store.get(id(1)).await.unwrap().unwrap().standing;
    assert!(matches!(standing, Standing::Leased { worker: by, .. } if by == worker("a")), "{standing:?}");
    let until = store.next_due().await.unwrap().unwrap();
    assert_eq!(store.claim_ready(worker("b"), 2, LONG).await.unwrap(), []);
    let clock = SystemClock::start();
    while holdfast_engine::Clock::now(&clock) <= until {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(store.repair_expired(10).await.unwrap(), 2);
    assert_eq!(store.get(id(1)).await.unwrap().unwrap().attempts, 1, "somebody took it and was not heard of again");
    assert_eq!(deliver_all(&store).await, obligations(1..=2));
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_cut_or_not_to_be_had_are_opened_when_they_can_be() {
    let outbox = Outbox::new().await;
    let store = Arc::new(outbox.store());
    let admin = outbox.admin().await;
    let end_all = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'node'";
    let mut putting = Vec::new();
    for number in 1..=100 {
        let store = Arc::clone(&store);
        putting.push(tokio::spawn(async move { (number, store.put(&[obligation(number)]).await) }));
        if number % 20 == 0 {
            admin.batch_execute(end_all).await.unwrap();
        }
    }
    let mut failed = Vec::new();
    for put in putting {
        let (number, answer) = put.await.unwrap();
        if answer.is_err() {
            failed.push(obligation(number));
        }
    }
    // Whoever was told that it failed asks again: that is the same as once. Each connection may still have its last words to say.
    let mut last_words = 0;
    while let Err(error) = store.put(&failed).await {
        last_words += 1;
        assert!(last_words <= LIMITS.connections, "{error}");
    }
    assert_eq!(store.count().await.unwrap().pending, 100);

    admin.batch_execute("ALTER ROLE node CONNECTION LIMIT 0").await.unwrap();
    admin.batch_execute(end_all).await.unwrap();
    // The first may find a connection that does not know yet that it was ended, and each may have its last words to say.
    let mut last_words = 0;
    let refused = loop {
        let Err(error) = store.next_due().await else { continue };
        if error.to_string().contains("53300") {
            break error.to_string();
        }
        last_words += 1;
        assert!(last_words <= LIMITS.connections, "{error}");
    };
    assert!(refused.contains("DATABASE_UNREACHABLE"), "{refused}");
    admin.batch_execute("ALTER ROLE node CONNECTION LIMIT -1").await.unwrap();
    assert_eq!(deliver_all(&*store).await, obligations(1..=100));
    let open = outbox.ask("SELECT count(*) FROM pg_stat_activity WHERE usename = 'node'").await.concat().concat();
    assert!(open.parse::<usize>().unwrap() <= LIMITS.connections, "{open}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_that_hangs_is_given_up_and_the_next_one_answered() {
    let outbox = Outbox::new().await;
    let store = outbox.store();
    store.put(&obligations(1..=3)).await.unwrap();
    let admin = outbox.admin().await;
    admin.batch_execute("BEGIN; LOCK TABLE holdfast.payment_outbox_queue IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let blocked = store.put(&[obligation(4)]).await.unwrap_err().to_string();
    assert!(blocked.contains("55P03"), "the server gives up waiting for the lock: {blocked}");
    admin.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(store.count().await.unwrap().pending, 3, "nothing of it was kept");

    // A process of the server that is stopped: nobody tells us, so we go by our own clock.
    let one = Limits { connections: 1, ..LIMITS };
    let store = outbox.store_by(Arc::new(SystemClock::start()), one);
    store.check().await.unwrap();
    let its = "SELECT max(pid) FROM pg_stat_activity WHERE usename = 'node' AND backend_start = \
               (SELECT max(backend_start) FROM pg_stat_activity WHERE usename = 'node')";
    let pid = Pid::from_raw(outbox.ask(its).await.concat().concat().parse().unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let late = store.claim_ready(worker("a"), 1, LONG).await.unwrap_err().to_string();
    assert!(late.contains("no answer came within 1500 ms"), "{late}");
    assert_eq!(store.count().await.unwrap().pending, 3, "by a connection of its own, though there may be but one");
    kill_process(pid, Signal::CONT).unwrap();
    let told: usize = deliver_all(&store).await.len();
    assert!((2..=3).contains(&told), "the claim may have been done after all, and waits for its lease to run out");
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_are_dropped_half_way_confuse_no_answer() {
    let outbox = Outbox::new().await;
    let store = outbox.store();
    store.put(&obligations(1..=40)).await.unwrap();
    for number in 1..=40 {
        // Let it get under way, and drop it.
        let patience = Duration::from_micros(u64::from(number) * 20);
        let _ = tokio::time::timeout(patience, store.get(id(number))).await;
        let _ = tokio::time::timeout(patience, store.count()).await;
    }
    for number in 1..=40 {
        assert_eq!(store.get(id(number)).await.unwrap().unwrap().obligation, obligation(number));
    }
    // A completion that is dropped is as one whose answer was lost.
    let claimed = store.claim_ready(worker("a"), 40, LONG).await.unwrap();
    let delivered = all_as(&claimed, &Outcome::Delivered);
    let answers = match tokio::time::timeout(Duration::from_micros(200), store.complete(&delivered)).await {
        Ok(in_time) => in_time.unwrap(),
        Err(_) => store.complete(&delivered).await.unwrap(),
    };
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(store.count().await.unwrap(), Count::default());
    let tried = outbox.ask("SELECT count(*), max(attempt_no) FROM holdfast.payment_outbox_attempts").await;
    assert_eq!(tried, [["40", "1"]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_that_is_not_ours_and_a_user_who_may_not_are_refused_with_what_to_do() {
    let outbox = Outbox::new().await;
    let clock = || Arc::new(SystemClock::start());
    let admin = outbox.admin().await;
    admin.batch_execute("CREATE DATABASE bare").await.unwrap();
    let code = |url: String| async move { store_at(&url, clock(), LIMITS).check().await.map_err(|error| error.code()) };
    assert_eq!(code(outbox.server.url_as("node", "bare")).await, Err("SCHEMA_OLDER"));
    admin.batch_execute("CREATE ROLE nobody_much LOGIN; GRANT symphony_ingest TO nobody_much").await.unwrap();
    let refused =
        store_at(&outbox.server.url_as("nobody_much", "postgres"), clock(), LIMITS).check().await.unwrap_err();
    assert_eq!(refused.code(), "DATABASE_FORBIDDEN");
    assert!(refused.to_string().ends_with("symphony_executor, symphony_admin"), "{refused}");

    let change = |version: &str| {
        format!(
            "UPDATE holdfast.schema_migrations SET version = {version} WHERE version = \
         (SELECT max(version) FROM holdfast.schema_migrations)"
        )
    };
    admin.batch_execute(&change("1000")).await.unwrap();
    assert_eq!(code(outbox.url()).await, Err("SCHEMA_NEWER"));
    let error = outbox.store().put(&[obligation(1)]).await.unwrap_err().to_string();
    assert!(error.contains("SCHEMA_NEWER"), "nothing is written before it is checked: {error}");
    admin.batch_execute("DELETE FROM holdfast.schema_migrations WHERE version = 1000").await.unwrap();
    assert_eq!(code(outbox.url()).await, Err("SCHEMA_OLDER"));
}
