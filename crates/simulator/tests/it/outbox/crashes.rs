//! Workers that are not heard of again, and attempts that are used up.

use super::{World, ask, claim, complete};
use std::collections::BTreeMap;

#[tokio::test]
async fn a_message_that_kills_its_workers_fails_and_its_neighbours_are_delivered() {
    const KILLER: &str = "k4";
    let world = World::new().await;
    world.enqueue(10).await;
    let executor = world.log_in("symphony_executor").await;
    assert_eq!(claim(&executor, 10, "w0", 60).await.len(), 10, "all in one batch, and its worker dies");
    for round in 1..100 {
        world.expire().await;
        ask(&executor, "SELECT holdfast.repair_expired_leases(100, 'repairer')").await.unwrap();
        world.come_due().await;
        loop {
            let worker = format!("w{round}");
            let rows = claim(&executor, 10, &worker, 60).await;
            let [row] = &rows[..] else {
                assert!(rows.is_empty(), "whom a crash suspects is claimed alone");
                break;
            };
            if row.key != KILLER {
                complete(&executor, &worker, row, "DISPATCHED").await.unwrap();
            }
        }
        if world.value("SELECT count(*) FROM holdfast.payment_outbox_pending").await == "0" {
            break;
        }
    }
    let ends = "SELECT idempotency_key, state, (SELECT count(*) FROM holdfast.payment_outbox_attempts AS all_of_it \
                WHERE all_of_it.outbox_id = ended.outbox_id) FROM holdfast.payment_outbox_attempts AS ended \
                JOIN holdfast.payment_outbox_instructions USING (outbox_id) WHERE state IN ('DISPATCHED', 'FAILED')";
    let ends: BTreeMap<String, (String, String)> =
        world.ask(ends).await.into_iter().map(|row| (row[0].clone(), (row[1].clone(), row[2].clone()))).collect();
    assert_eq!(ends.len(), 10);
    for (key, end) in &ends {
        let expected = if key == KILLER { ("FAILED", "4") } else { ("DISPATCHED", "2") };
        assert_eq!((end.0.as_str(), end.1.as_str()), expected, "{key}");
    }
    let lost = "SELECT DISTINCT worker_id FROM holdfast.payment_outbox_attempts WHERE state = 'ZOMBIE_REQUEUE' AND attempt_no = 1";
    assert_eq!(world.value(lost).await, "w0", "a crash is on record with the lost worker's name");
}

#[tokio::test]
async fn a_lease_that_ran_out_is_taken_over_by_the_next_claim_and_the_crash_is_on_record() {
    let world = World::new().await;
    world.enqueue(1).await;
    let executor = world.log_in("symphony_executor").await;
    let first = claim(&executor, 5, "a", 60).await;
    world.expire().await;
    let second = claim(&executor, 5, "b", 60).await;
    assert_eq!(second[0].id, first[0].id);
    assert!(second[0].epoch > first[0].epoch && second[0].token != first[0].token);
    assert_eq!(complete(&executor, "a", &first[0], "DISPATCHED").await, Err("P7002".to_owned()), "its claim was lost");
    let done = complete(&executor, "b", &second[0], "DISPATCHED").await.unwrap();
    assert_eq!(done[1], "2");
    let attempts = "SELECT attempt_no || state::text || worker_id FROM holdfast.payment_outbox_attempts ORDER BY 1";
    assert_eq!(world.ask(attempts).await.concat(), ["1ZOMBIE_REQUEUEa", "2DISPATCHEDb"]);
}

#[tokio::test]
async fn the_twentieth_attempt_is_the_last_and_does_not_stop_the_others() {
    let world = World::new().await;
    world.enqueue(2).await;
    let executor = world.log_in("symphony_executor").await;
    for attempt in 1..20 {
        let rows = claim(&executor, 2, "a", 60).await;
        assert_eq!(rows.len(), 2, "attempt {attempt}");
        for row in &rows {
            assert_eq!(complete(&executor, "a", row, "RETRYABLE").await.unwrap()[0], "RETRYABLE");
        }
        world.come_due().await;
    }
    // The cache says nothing that matters: not even a wrong one, too high or too low, stops a claim or moves the ceiling.
    let wrong = "UPDATE holdfast.payment_outbox_queue SET attempt_count = CASE WHEN outbox_id = \
                 (SELECT outbox_id FROM holdfast.payment_outbox_queue ORDER BY 1 LIMIT 1) THEN 1000 ELSE 0 END";
    world.run(wrong).await;
    let rows = claim(&executor, 2, "a", 60).await;
    assert_eq!(complete(&executor, "a", &rows[0], "RETRYABLE").await.unwrap()[..2], ["FAILED", "20"]);
    world.expire().await;
    let repaired =
        ask(&executor, "SELECT state, attempt_no FROM holdfast.repair_expired_leases(10, 'r')").await.unwrap();
    assert_eq!(repaired.concat(), ["FAILED", "20"], "a crash counts too");
    world.enqueue(3).await;
    assert_eq!(claim(&executor, 9, "a", 60).await.len(), 1, "the others go on");
    assert_eq!(world.value("SELECT max(attempt_no) FROM holdfast.payment_outbox_attempts").await, "20");
}
