//! Claims and what becomes of them: every function, every SQLSTATE.

use super::{Claimed, World, claim, complete, complete_batch, sqlstate};
use tokio_postgres::error::SqlState;

const NOT_A_TOKEN: &str = "00000000-0000-4000-8000-000000000000";
const TERMINAL: &str = "payment_outbox_attempts_one_terminal_per_outbox";

fn ok(state: &str, number: u32, before: &str) -> Result<Vec<String>, String> {
    Ok([state, &number.to_string(), before].map(str::to_owned).to_vec())
}

#[tokio::test]
async fn only_a_good_lease_completes_and_a_lost_reply_is_answered_as_recorded() {
    let world = World::new().await;
    world.enqueue(3).await;
    let executor = world.log_in("symphony_executor").await;
    let [first, second, third] = &claim(&executor, 10, "a", 60).await[..] else { unreachable!("three are due") };
    assert_eq!(claim(&executor, 10, "b", 60).await, [], "they are leased");
    let lost = |code: &str| Err(code.to_owned());

    for state in ["ZOMBIE_REQUEUE", "DISPATCHING", "nonsense", ""] {
        assert_eq!(complete(&executor, "a", first, state).await, lost("P7003"), "{state}");
    }
    let forged = Claimed { token: NOT_A_TOKEN.to_owned(), ..first.clone() };
    assert_eq!(complete(&executor, "a", &forged, "DISPATCHED").await, lost("P7002"));
    assert_eq!(complete(&executor, "b", first, "DISPATCHED").await, lost("P7002"), "another worker's");

    assert_eq!(complete(&executor, "a", first, "DISPATCHED").await, ok("DISPATCHED", 1, "f"));
    assert_eq!(complete(&executor, "a", first, "DISPATCHED").await, ok("DISPATCHED", 1, "t"), "the reply was lost");
    assert_eq!(complete(&executor, "a", first, "FAILED").await, ok("DISPATCHED", 1, "t"), "it cannot be changed");
    assert_eq!(complete(&executor, "b", first, "DISPATCHED").await, lost("P7002"));

    assert_eq!(complete(&executor, "a", second, "RETRYABLE").await, ok("RETRYABLE", 1, "f"));
    assert_eq!(complete(&executor, "a", second, "RETRYABLE").await, ok("RETRYABLE", 1, "t"));
    let again = &claim(&executor, 10, "a", 60).await[0];
    assert_eq!(again.id, second.id);
    assert!(again.epoch > second.epoch && again.token != second.token, "the fence grows");
    assert_eq!(complete(&executor, "a", second, "DISPATCHED").await, ok("RETRYABLE", 1, "t"), "that claim is over");
    assert_eq!(complete(&executor, "a", again, "FAILED").await, ok("FAILED", 2, "f"));

    world.expire().await;
    assert_eq!(complete(&executor, "a", third, "DISPATCHED").await, lost("P7002"), "it has run out");
    assert_eq!(world.value("SELECT count(*) FROM holdfast.payment_outbox_attempts").await, "3");
    assert_eq!(world.value("SELECT idempotency_key FROM holdfast.payment_outbox_pending").await, "k2");
}

#[tokio::test]
async fn a_batch_answers_each_row_and_one_bad_row_spoils_no_other() {
    let world = World::new().await;
    world.enqueue(8).await;
    let executor = world.log_in("symphony_executor").await;
    let rows = claim(&executor, 8, "a", 60).await;
    let done = complete(&executor, "a", &rows[0], "DISPATCHED").await;
    assert_eq!(done, ok("DISPATCHED", 1, "f"));
    let end = format!(
        "INSERT INTO holdfast.payment_outbox_attempts (outbox_id, attempt_no, state, worker_id, lease_token, at) \
         VALUES ('{}', 1, 'FAILED', 'somebody', gen_random_uuid(), now())",
        rows[1].id
    );
    world.run(&end).await;
    let forged = Claimed { token: NOT_A_TOKEN.to_owned(), ..rows[2].clone() };
    let asked = [
        (rows[0].clone(), "DISPATCHED"),
        (rows[1].clone(), "DISPATCHED"),
        (forged, "DISPATCHED"),
        (rows[3].clone(), "nonsense"),
        (rows[4].clone(), "DISPATCHED"),
        (rows[5].clone(), "FAILED"),
        (rows[6].clone(), "RETRYABLE"),
        (rows[4].clone(), "DISPATCHED"),
    ];
    let expected = [
        "ALREADY_RECORDED",
        "TERMINAL_CONFLICT",
        "LEASE_LOST",
        "INVALID_STATE",
        "DISPATCHED",
        "FAILED",
        "RETRYABLE",
        "ALREADY_RECORDED",
    ];
    assert_eq!(complete_batch(&executor, "a", &asked).await, expected);
    let waits = world.ask("SELECT idempotency_key FROM holdfast.payment_outbox_pending ORDER BY 1").await.concat();
    assert_eq!(waits, ["k2", "k3", "k6", "k7"], "what ended no longer waits, nor does what had ended before");
    let short = "SELECT holdfast.complete_outbox_batch('a', ARRAY[gen_random_uuid()], '{}', '{}')";
    assert_eq!(sqlstate(&executor, short).await, "22023");
}

#[tokio::test]
async fn what_happened_stays_and_ends_once() {
    let world = World::new().await;
    world.enqueue(2).await;
    let executor = world.log_in("symphony_executor").await;
    let rows = claim(&executor, 2, "a", 60).await;
    complete(&executor, "a", &rows[0], "DISPATCHED").await.unwrap();

    // The superuser too, with and without rows to change, and even in the part of a replica.
    for table in ["payment_outbox_attempts", "payment_outbox_instructions"] {
        for change in ["UPDATE holdfast.@ SET outbox_id = outbox_id", "DELETE FROM holdfast.@", "TRUNCATE holdfast.@"] {
            for role in ["origin", "replica"] {
                let sql = format!("SET session_replication_role = {role}; {}", change.replace('@', table));
                assert_eq!(sqlstate(&world.admin, &sql).await, "P0001", "{sql}");
            }
        }
        assert_eq!(sqlstate(&world.admin, &format!("DELETE FROM holdfast.{table} WHERE false")).await, "P0001");
    }
    world.run("SET session_replication_role = origin").await;

    let insert = |id: &str, number: u32, state: &str| {
        format!(
            "INSERT INTO holdfast.payment_outbox_attempts (outbox_id, attempt_no, state, worker_id, lease_token, at) \
             VALUES ('{id}', {number}, '{state}', 'somebody', gen_random_uuid(), now())"
        )
    };
    let refused = world.admin.batch_execute(&insert(&rows[0].id, 2, "FAILED")).await.unwrap_err();
    assert_eq!(refused.code(), Some(&SqlState::UNIQUE_VIOLATION));
    assert_eq!(refused.as_db_error().unwrap().constraint(), Some(TERMINAL));
    assert_eq!(sqlstate(&world.admin, &insert(&rows[0].id, 1, "RETRYABLE")).await, "23505");
    assert_eq!(sqlstate(&world.admin, &insert(&rows[1].id, 1, "DISPATCHING")).await, "23514");
    let comment = format!("SELECT obj_description('holdfast.{TERMINAL}'::regclass) LIKE 'An outbox row ends once%'");
    assert_eq!(world.value(&comment).await, "t");

    // A second end is stopped, named, and then repaired away.
    world.run(&insert(&rows[1].id, 1, "FAILED")).await;
    let sql =
        format!("SELECT holdfast.complete_outbox_attempt('{}', 'a', '{}', 'DISPATCHED')", rows[1].id, rows[1].token);
    let refused = executor.batch_execute(&sql).await.unwrap_err();
    assert_eq!(refused.code(), Some(&SqlState::UNIQUE_VIOLATION));
    assert_eq!(refused.as_db_error().unwrap().constraint(), Some(TERMINAL));
    world.expire().await;
    let repaired = super::ask(&executor, "SELECT state FROM holdfast.repair_expired_leases(10, 'r')").await.unwrap();
    assert_eq!(repaired.concat(), ["TERMINAL_CONFLICT"]);
    assert_eq!(world.value("SELECT count(*) FROM holdfast.payment_outbox_pending").await, "0");

    let lease = |worker: &str, token: &str, until: &str, ids: &str| {
        format!(
            "INSERT INTO holdfast.payment_outbox_claims \
             (claimed_by, lease_token, lease_expires_at, crash_count, outbox_ids, next_attempts_at) \
             VALUES ({worker}, {token}, {until}, 0, {ids}, ARRAY[now()])"
        )
    };
    let (token, id) = ("gen_random_uuid()", "ARRAY[gen_random_uuid()]");
    for half in [lease("NULL", token, "now()", id), lease("'a'", "NULL", "now()", id), lease("'a'", token, "NULL", id)]
    {
        assert_eq!(sqlstate(&world.admin, &half).await, "23502", "half a lease: {half}");
    }
    for (ids, what) in [("'{}'", "a lease of nothing"), ("ARRAY[gen_random_uuid(), gen_random_uuid()]", "uneven")] {
        assert_eq!(sqlstate(&world.admin, &lease("'a'", token, "now()", ids)).await, "23514", "{what}");
    }
}

#[tokio::test]
async fn leases_are_prolonged_and_given_back_by_their_token_alone() {
    let world = World::new().await;
    world.enqueue(3).await;
    let executor = world.log_in("symphony_executor").await;
    let rows = claim(&executor, 3, "a", 60).await;
    let ids = format!("ARRAY['{}', '{}', '{}']::uuid[]", rows[0].id, rows[1].id, rows[2].id);
    let count = async |sql: String| super::ask(&executor, &sql).await.unwrap().len();
    let token = &rows[0].token;
    assert_eq!(count(format!("SELECT * FROM holdfast.extend_outbox_lease({ids}, '{NOT_A_TOKEN}', 600)")).await, 0);
    assert_eq!(count(format!("SELECT * FROM holdfast.extend_outbox_lease({ids}, '{token}', 600)")).await, 3);
    let left = "SELECT min(lease_expires_at) > now() + interval '9 minutes' FROM holdfast.payment_outbox_pending";
    assert_eq!(world.value(left).await, "t");

    let first = format!("ARRAY['{}']::uuid[]", rows[0].id);
    assert_eq!(count(format!("SELECT * FROM holdfast.release_outbox({first}, '{NOT_A_TOKEN}')")).await, 0);
    assert_eq!(count(format!("SELECT * FROM holdfast.release_outbox({first}, '{token}')")).await, 1);
    assert_eq!(count(format!("SELECT * FROM holdfast.release_outbox({first}, '{token}')")).await, 0, "given back");
    let again = claim(&executor, 3, "b", 60).await;
    assert_eq!(again[0].id, rows[0].id);
    assert_eq!(
        complete(&executor, "b", &again[0], "DISPATCHED").await,
        ok("DISPATCHED", 1, "f"),
        "no attempt was counted"
    );

    world.expire().await;
    assert_eq!(count(format!("SELECT * FROM holdfast.extend_outbox_lease({ids}, '{token}', 600)")).await, 0, "run out");
    assert_eq!(count(format!("SELECT * FROM holdfast.release_outbox({ids}, '{token}')")).await, 0, "run out");
    for wrong in [
        "SELECT holdfast.claim_outbox_batch(0, 'a', 1)",
        "SELECT holdfast.claim_outbox_batch(1, '', 1)",
        "SELECT holdfast.claim_outbox_batch(1, NULL, 1)",
        "SELECT holdfast.claim_outbox_batch(1, 'a', 0)",
        "SELECT holdfast.claim_outbox_batch(NULL, 'a', 1)",
        "SELECT holdfast.extend_outbox_lease('{}', gen_random_uuid(), 0)",
        "SELECT holdfast.release_outbox('{}', gen_random_uuid(), -1)",
        "SELECT holdfast.repair_expired_leases(0, 'a')",
    ] {
        assert_eq!(sqlstate(&executor, wrong).await, "22023", "{wrong}");
    }
}

#[tokio::test]
async fn what_failed_goes_round_again_once_and_its_failure_stays() {
    let world = World::new().await;
    world.enqueue(2).await;
    let executor = world.log_in("symphony_executor").await;
    let operator = world.log_in("symphony_admin").await;
    let rows = claim(&executor, 2, "a", 60).await;
    let replay = |id: &str| format!("SELECT outbox_id, sequence_id, created FROM holdfast.replay_outbox('{id}')");
    assert_eq!(sqlstate(&operator, &replay(&rows[0].id)).await, "P7003", "still pending");
    complete(&executor, "a", &rows[0], "FAILED").await.unwrap();
    complete(&executor, "a", &rows[1], "DISPATCHED").await.unwrap();
    assert_eq!(sqlstate(&operator, &replay(&rows[1].id)).await, "P7003", "it was delivered");
    assert_eq!(sqlstate(&operator, &replay(NOT_A_TOKEN)).await, "P0002");

    let first = super::ask(&operator, &replay(&rows[0].id)).await.unwrap().concat();
    let second = super::ask(&operator, &replay(&rows[0].id)).await.unwrap().concat();
    assert_eq!((first[0].clone(), first[1].as_str(), first[2].as_str()), (second[0].clone(), "3", "t"));
    assert_eq!(second[2], "f", "once");
    let again = claim(&executor, 10, "a", 60).await;
    assert_eq!(again.len(), 1);
    assert_eq!((&again[0].id, &again[0].key), (&first[0], &rows[0].key), "the receiver knows it again");
    assert!(again[0].epoch > rows[0].epoch);
    complete(&executor, "a", &again[0], "FAILED").await.unwrap();
    let third = super::ask(&operator, &replay(&again[0].id)).await.unwrap().concat();
    assert_eq!(third[2], "t", "what went round may go round again");
    assert_eq!(world.value("SELECT count(*) FROM holdfast.payment_outbox_attempts WHERE state = 'FAILED'").await, "2");
}
