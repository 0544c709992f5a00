//! Claims as rows of their own: what is held leaves the queue and comes back whole, whoever does what at the same moment.

use super::{Claimed, World, ask, claim, complete, complete_batch, sqlstate};
use holdfast_adapters::postgres;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The rows of the claims: how many each holds, the largest first.
const HELD: &str = "SELECT cardinality(outbox_ids) FROM holdfast.payment_outbox_claims ORDER BY 1 DESC";

fn ids(rows: &[Claimed]) -> String {
    let ids: Vec<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    format!("'{{{}}}'::uuid[]", ids.join(","))
}

#[tokio::test]
async fn a_claim_writes_a_row_for_fifty_and_a_job_is_written_into_the_queue_once() {
    let world = World::new().await;
    world.enqueue(120).await;
    let executor = world.log_in("symphony_executor").await;
    executor.batch_execute("BEGIN").await.unwrap();
    let rows = claim(&executor, 120, "a", 60).await;
    assert_eq!(ask(&world.admin, HELD).await.unwrap().len(), 0, "nobody sees it before the commit");
    let asked: Vec<_> = rows.iter().map(|row| (row.clone(), "DISPATCHED")).collect();
    assert_eq!(complete_batch(&executor, "a", &asked).await, vec!["DISPATCHED"; 120]);
    let written = "SELECT relname, n_tup_ins, n_tup_upd, n_tup_del FROM pg_stat_xact_all_tables \
                   WHERE relname IN ('payment_outbox_queue', 'payment_outbox_claims') ORDER BY 1";
    let written = ask(&executor, written).await.unwrap();
    assert_eq!(written, [["payment_outbox_claims", "3", "0", "3"], ["payment_outbox_queue", "0", "0", "120"]]);
    executor.batch_execute("COMMIT").await.unwrap();
}

#[tokio::test]
async fn those_of_a_claim_that_are_prolonged_outlive_the_others_and_all_are_completed_by_one_token() {
    let world = World::new().await;
    world.enqueue(60).await;
    let executor = world.log_in("symphony_executor").await;
    let rows = claim(&executor, 60, "a", 60).await;
    let token = &rows[0].token;
    assert_eq!(world.ask(HELD).await.concat(), ["50", "10"]);
    let extend = async |rows: &[Claimed], seconds: u32| {
        let sql = format!("SELECT outbox_id FROM holdfast.extend_outbox_lease({}, '{token}', {seconds})", ids(rows));
        ask(&executor, &sql).await.unwrap().concat().into_iter().collect::<HashSet<_>>()
    };
    let named: HashSet<String> = rows[..20].iter().map(|row| row.id.clone()).collect();
    assert_eq!(extend(&rows[..20], 600).await, named);
    assert_eq!(world.ask(HELD).await.concat(), ["30", "20", "10"], "parted");
    assert_eq!(extend(&rows[..20], 1_200).await, named);
    assert_eq!(world.ask(HELD).await.concat(), ["30", "20", "10"], "once");
    let twice = [&rows[..20], &rows[..20]].concat();
    assert_eq!(extend(&twice, 1_200).await, named, "named twice is named once");
    let short = format!("SELECT outbox_id FROM holdfast.set_outbox_lease({}, '{token}', 0)", ids(&rows[20..25]));
    assert_eq!(ask(&executor, &short).await.unwrap().len(), 5);

    let ends = "SELECT count(*) FILTER (WHERE lease_expires_at > now() + interval '10 minutes'), \
                count(*) FILTER (WHERE lease_expires_at BETWEEN now() AND now() + interval '10 minutes'), \
                count(*) FILTER (WHERE lease_expires_at <= now()) FROM holdfast.payment_outbox_pending";
    assert_eq!(world.ask(ends).await, [["20", "35", "5"]]);
    let asked: Vec<_> = rows.iter().map(|row| (row.clone(), "DISPATCHED")).collect();
    let expected: Vec<_> =
        (0..60).map(|place| if (20..25).contains(&place) { "LEASE_LOST" } else { "DISPATCHED" }).collect();
    assert_eq!(complete_batch(&executor, "a", &asked).await, expected);
    let repaired = ask(&executor, "SELECT outbox_id FROM holdfast.repair_expired_leases(3, 'r')").await.unwrap();
    assert_eq!(repaired.len(), 3, "no more than was asked for");
    assert_eq!(world.ask(HELD).await.concat(), ["2"]);
    assert_eq!(ask(&executor, "SELECT holdfast.repair_expired_leases(3, 'r')").await.unwrap().len(), 2);
    assert_eq!(world.ask(HELD).await.len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_row_that_is_completed_while_its_neighbours_are_prolonged_is_not_lost_and_is_recorded_once() {
    let world = World::new().await;
    world.enqueue(400).await;
    let executor = world.log_in("symphony_executor").await;
    let rows = claim(&executor, 400, "a", 600).await;
    let is_over = Arc::new(AtomicBool::new(false));
    let (heart, beaten, over) = (world.log_in("symphony_executor").await, rows.clone(), Arc::clone(&is_over));
    let heartbeat = tokio::spawn(async move {
        for step in 0.. {
            if over.load(Ordering::SeqCst) {
                return;
            }
            let some: Vec<Claimed> = beaten.iter().skip(step % 7).step_by(1 + step % 5).cloned().collect();
            let token = &beaten[0].token;
            let sql = format!("SELECT holdfast.extend_outbox_lease({}, '{token}', {})", ids(&some), 600 + step);
            heart.batch_execute(&sql).await.unwrap();
        }
    });
    // Two who complete the same at once: what one has recorded, the other is told of.
    let mut completing = Vec::new();
    for _ in 0..2 {
        let (client, rows) = (world.log_in("symphony_executor").await, rows.clone());
        completing.push(tokio::spawn(async move {
            let mut statuses = Vec::new();
            for part in rows.chunks(7) {
                let asked: Vec<_> = part.iter().map(|row| (row.clone(), "DISPATCHED")).collect();
                statuses.extend(complete_batch(&client, "a", &asked).await);
            }
            statuses
        }));
    }
    let mut statuses = Vec::new();
    for done in completing {
        statuses.push(done.await.unwrap());
    }
    is_over.store(true, Ordering::SeqCst);
    heartbeat.await.unwrap();
    assert_eq!((statuses[0].len(), statuses[1].len()), (400, 400));
    for (one, other) in statuses[0].iter().zip(&statuses[1]) {
        let mut both = [one.as_str(), other.as_str()];
        both.sort_unstable();
        assert_eq!(both, ["ALREADY_RECORDED", "DISPATCHED"]);
    }
    assert_eq!(world.value("SELECT count(*) FROM holdfast.payment_outbox_attempts").await, "400");
    assert_eq!(world.ask(HELD).await.len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nobody_is_given_what_another_has_at_any_level_of_isolation() {
    const ROWS: usize = 1_000;
    let world = World::new().await;
    world.enqueue(ROWS).await;
    let mut claiming = Vec::new();
    for number in 0..12 {
        let client = world.log_in("symphony_executor").await;
        claiming.push(tokio::spawn(async move {
            let level = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"][number % 3];
            let (mut mine, mut empty) = (Vec::new(), 0);
            // What others roll back is due again, so one look at nothing is not the end.
            while empty < 20 {
                let begin = format!("BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM pg_class");
                client.batch_execute(&begin).await.unwrap();
                let sql = format!("SELECT outbox_id FROM holdfast.claim_outbox_batch(7, 'w{number}', 600)");
                let claimed = ask(&client, &sql).await;
                let state = match &claimed {
                    Ok(_) => sqlstate(&client, "COMMIT").await,
                    Err(error) => error.code().unwrap().code().to_owned(),
                };
                match (state.as_str(), claimed) {
                    ("00000", Ok(rows)) if rows.is_empty() => empty += 1,
                    ("00000", Ok(rows)) => mine.extend(rows.concat()),
                    // It is told to try again, and has nothing.
                    ("40001", _) => client.batch_execute("ROLLBACK").await.unwrap(),
                    (other, _) => unreachable!("{level}: {other}"),
                }
            }
            mine
        }));
    }
    let mut given = Vec::new();
    for claimed in claiming {
        given.extend(claimed.await.unwrap());
    }
    assert_eq!(given.len(), ROWS);
    assert_eq!(given.iter().collect::<HashSet<_>>().len(), ROWS, "some were given to two");
    let held =
        "SELECT count(*), count(DISTINCT outbox_id) FROM holdfast.payment_outbox_pending WHERE lease_token IS NOT NULL";
    assert_eq!(world.ask(held).await, [[ROWS.to_string(), ROWS.to_string()]]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_goes_from_hand_to_hand_is_never_missing_from_the_desk_and_is_not_owed_again() {
    let world = World::new().await;
    world.enqueue(1).await;
    let is_over = Arc::new(AtomicBool::new(false));
    let (executor, over) = (world.log_in("symphony_executor").await, Arc::clone(&is_over));
    let passing = tokio::spawn(async move {
        let mut turns = 0;
        while !over.load(Ordering::SeqCst) {
            for row in claim(&executor, 1, "a", 60).await {
                let sql =
                    format!("SELECT holdfast.release_outbox({}, '{}')", ids(std::slice::from_ref(&row)), row.token);
                executor.batch_execute(&sql).await.unwrap();
                turns += 1;
            }
        }
        turns
    });
    let ingest = world.log_in("symphony_ingest").await;
    let owe = "SELECT holdfast.owe_payment_outbox_batch('{i0}', '{p}', '{k0}', '{mock}', '{\"{}\"}', '{1}')";
    for round in 0..300 {
        assert_eq!(world.ask("SELECT idempotency_key FROM holdfast.find_outbox('k0')").await, [["k0"]], "{round}");
        assert_eq!(world.ask("SELECT * FROM holdfast.count_outbox()").await, [["1", "0"]], "{round}");
        assert_eq!(world.value("SELECT count(*) FROM holdfast.payment_outbox_pending").await, "1", "{round}");
        assert_eq!(ask(&ingest, owe).await.unwrap().concat(), ["0"], "it waits, or somebody has it");
    }
    is_over.store(true, Ordering::SeqCst);
    assert!(passing.await.unwrap() > 10, "it was passed, or this showed nothing");
}

#[tokio::test]
async fn ten_thousand_in_hand_are_described_at_once() {
    let world = World::new().await;
    // The plans are made while there is nothing.
    assert_eq!(world.ask("SELECT * FROM holdfast.list_outbox('PENDING', NULL, 10000)").await.len(), 0);
    let fill = "WITH fresh AS (SELECT holdfast.time_ordered_uuid() AS id, number FROM generate_series(1, 10000) AS number), \
                instructed AS (INSERT INTO holdfast.payment_outbox_instructions \
                SELECT id, 'i', 'p', number, 'k' || number, 'mock', '{}', now() FROM fresh) \
                INSERT INTO holdfast.payment_outbox_queue (outbox_id, next_attempt_at) SELECT id, now() FROM fresh";
    world.run(fill).await;
    let executor = world.log_in("symphony_executor").await;
    assert_eq!(claim(&executor, 9_999, "a", 600).await.len(), 9_999);
    // A tenth of a second by a hash, and many seconds by a loop over both.
    world.run("SET statement_timeout = '3s'").await;
    let standings = "SELECT standing, count(*) FROM holdfast.list_outbox('PENDING', NULL, 10000) GROUP BY 1 ORDER BY 1";
    assert_eq!(world.ask(standings).await, [["DUE", "1"], ["LEASED", "9999"]]);
}

#[tokio::test]
async fn what_is_leased_when_the_claims_come_is_leased_afterwards() {
    let mut world = World::bare().await;
    postgres::migrate(&mut world.admin, &postgres::ALL[..17]).await.unwrap();
    world.enqueue(70).await;
    let rows = claim(&world.admin, 60, "a", 600).await;
    let others = claim(&world.admin, 5, "b", 600).await;
    assert_eq!(complete(&world.admin, "a", &rows[0], "RETRYABLE").await.unwrap()[0], "RETRYABLE");
    let expire = format!(
        "UPDATE holdfast.payment_outbox_queue SET lease_expires_at = now() - interval '1 s' WHERE lease_token = '{}'",
        others[0].token
    );
    world.run(&expire).await;
    let seen = "SELECT * FROM holdfast.payment_outbox_pending ORDER BY outbox_id";
    let before = world.ask(seen).await;
    postgres::migrate(&mut world.admin, &postgres::ALL).await.unwrap();
    assert_eq!(world.ask(seen).await, before, "the same rows, in the same hands, until the same moments");
    assert_eq!(world.value("SELECT count(*) FROM holdfast.payment_outbox_queue").await, "6");
    assert_eq!(world.ask(HELD).await.concat(), ["50", "9", "5"]);

    let asked: Vec<_> = rows[1..].iter().map(|row| (row.clone(), "DISPATCHED")).collect();
    assert_eq!(complete_batch(&world.admin, "a", &asked).await, vec!["DISPATCHED"; 59]);
    assert_eq!(complete(&world.admin, "b", &others[0], "DISPATCHED").await, Err("P7002".to_owned()), "it ran out");
    let repaired = "SELECT state, lost_worker_id FROM holdfast.repair_expired_leases(10, 'r')";
    assert_eq!(world.ask(repaired).await, vec![["ZOMBIE_REQUEUE", "b"]; 5]);
}
