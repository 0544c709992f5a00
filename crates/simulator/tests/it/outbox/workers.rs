//! Sixteen workers at once, some of whom are lost: nobody ever holds what another holds, and every attempt has its number.

use super::{World, ask, claim, complete_batch};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use tokio_postgres::Client;

const WORKERS: usize = 16;
const ROWS: usize = 300;

/// Who holds what now, by id; what is held twice is found here.
type Held = Arc<Mutex<HashMap<String, String>>>;

/// What one worker does in one turn: whether anything was there to do.
async fn turn(worker: &Client, time: &Client, name: &str, step: usize, held: &Held) -> bool {
    let rows = claim(worker, 1 + step % 9, name, 60).await;
    let Some(token) = rows.first().map(|row| row.token.clone()) else { return false };
    for row in &rows {
        let before = held.lock().unwrap().insert(row.id.clone(), row.token.clone());
        assert_eq!(before, None, "{} is held twice", row.id);
    }
    let outcome = |number: usize| match (step + number) % 5 {
        0 | 1 => "RETRYABLE",
        2 => "FAILED",
        _ => "DISPATCHED",
    };
    let asked: Vec<_> = rows.iter().enumerate().map(|(number, row)| (row.clone(), outcome(number))).collect();
    let is_lost = step.is_multiple_of(7);
    // No longer held the moment that somebody else may have it.
    held.lock().unwrap().retain(|_, holder| *holder != token);
    if is_lost {
        let expire = format!(
            "UPDATE holdfast.payment_outbox_claims SET lease_expires_at = now() - interval '1 s' WHERE lease_token = '{token}'"
        );
        time.batch_execute(&expire).await.unwrap();
    }
    let statuses = complete_batch(worker, name, &asked).await;
    for (status, (_, state)) in statuses.iter().zip(&asked) {
        let expected = if is_lost { "LEASE_LOST" } else { state };
        // The ceiling makes the last retry a failure.
        assert!(status == expected || (expected == "RETRYABLE" && status == "FAILED"), "{status} for {expected}");
    }
    true
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nobody_holds_what_another_holds_and_attempts_are_numbered_without_gaps() {
    let world = Arc::new(World::new().await);
    world.enqueue(ROWS).await;
    let held = Held::default();
    let mut workers = Vec::new();
    for number in 0..WORKERS {
        let (world, held) = (Arc::clone(&world), Arc::clone(&held));
        workers.push(tokio::spawn(async move {
            let worker = world.log_in("symphony_executor").await;
            let time = super::connect(&world.server.url("postgres")).await;
            let name = format!("w{number}");
            for step in number.. {
                if step % 3 == 0 {
                    ask(&worker, "SELECT holdfast.repair_expired_leases(5, 'repairer')").await.unwrap();
                    // Time flies, for rows that no one is at this moment taking.
                    let due = "UPDATE holdfast.payment_outbox_queue SET next_attempt_at = now() WHERE ctid = ANY (ARRAY( \
                               SELECT ctid FROM holdfast.payment_outbox_queue \
                               WHERE next_attempt_at > now() FOR UPDATE SKIP LOCKED))";
                    time.batch_execute(due).await.unwrap();
                }
                if !turn(&worker, &time, &name, step, &held).await
                    && ask(&time, "SELECT count(*) FROM holdfast.payment_outbox_pending").await.unwrap().concat() == ["0"]
                {
                    return;
                }
            }
        }));
    }
    for worker in workers {
        worker.await.unwrap();
    }
    let wrong = "SELECT outbox_id FROM holdfast.payment_outbox_attempts GROUP BY outbox_id HAVING min(attempt_no) <> 1 \
                 OR max(attempt_no) <> count(*) OR count(DISTINCT attempt_no) <> count(*) OR max(attempt_no) > 20 \
                 OR count(*) FILTER (WHERE state IN ('DISPATCHED', 'FAILED')) <> 1 \
                 OR (array_agg(state ORDER BY attempt_no DESC))[1] NOT IN ('DISPATCHED', 'FAILED')";
    assert_eq!(world.ask(wrong).await, Vec::<Vec<String>>::new());
    let ended = "SELECT count(DISTINCT outbox_id) FROM holdfast.payment_outbox_attempts";
    assert_eq!(world.value(ended).await, ROWS.to_string());
    let lost = "SELECT count(*) > 10 FROM holdfast.payment_outbox_attempts WHERE state = 'ZOMBIE_REQUEUE'";
    assert_eq!(world.value(lost).await, "t", "some were lost, or this showed nothing");
}

#[tokio::test]
async fn a_claim_reads_no_more_than_its_batch_though_its_plan_was_made_for_an_empty_table() {
    const BATCH: usize = 100;
    let world = World::new().await;
    let executor = world.log_in("symphony_executor").await;
    // Here the plans are made, and kept for the session.
    assert_eq!(claim(&executor, BATCH, "w", 60).await, []);
    let nothing = "SELECT holdfast.complete_outbox_batch('w', '{}', '{}', '{}'); \
                   SELECT holdfast.repair_expired_leases(10, 'w')";
    executor.batch_execute(nothing).await.unwrap();
    let fill = "WITH fresh AS (SELECT gen_random_uuid() AS id, number FROM generate_series(1, 20000) AS number), \
                instructed AS (INSERT INTO holdfast.payment_outbox_instructions \
                SELECT id, 'i', 'p', number, 'k' || number, 'mock', '{}', now() FROM fresh) \
                INSERT INTO holdfast.payment_outbox_queue (outbox_id, next_attempt_at) \
                SELECT id, now() - number * interval '1 ms' FROM fresh";
    world.run(fill).await;
    // What others hold, and what has been tried, is not walked over either.
    let other = world.log_in("symphony_executor").await;
    assert_eq!(claim(&other, 5_000, "w", 60).await.len(), 5_000);
    for state in ["DISPATCHED", "RETRYABLE"] {
        executor.batch_execute("BEGIN").await.unwrap();
        let rows = claim(&executor, BATCH, "w", 60).await;
        let asked: Vec<_> = rows.into_iter().map(|row| (row, state)).collect();
        assert_eq!(complete_batch(&executor, "w", &asked).await, vec![state; BATCH]);
        let read =
            "SELECT relname, seq_tup_read, idx_tup_fetch FROM pg_stat_xact_all_tables WHERE schemaname = 'holdfast'";
        for row in ask(&executor, read).await.unwrap() {
            let [walked, fetched] = [&row[1], &row[2]].map(|count| count.parse::<usize>().unwrap_or(0));
            assert_eq!(walked, 0, "{} is walked", row[0]);
            assert!(fetched <= 4 * BATCH, "{fetched} rows of {} are read for {BATCH}", row[0]);
        }
        executor.batch_execute("COMMIT").await.unwrap();
    }
}
