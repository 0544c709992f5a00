//! The desk: what waits and what has died, found by its key, put again, replayed and resolved; and how little is read for it.

use super::{World, ask, claim, complete, sqlstate};
use tokio_postgres::Client;

const OWE: &str =
    "SELECT holdfast.owe_payment_outbox_batch('{i,i}', '{p,p}', '{k1,new}', '{mock,mock}', '{\"1\",\"2\"}', '{7,5}')";

async fn first(client: &Client, sql: &str) -> String {
    ask(client, sql).await.unwrap().concat().concat()
}

#[tokio::test]
async fn what_died_is_on_the_desk_until_it_is_replayed_or_resolved_and_both_are_on_record() {
    let world = World::new().await;
    let executor = world.log_in("symphony_executor").await;
    let operator = world.log_in("symphony_admin").await;
    world.enqueue(3).await;
    for row in claim(&executor, 3, "w", 60).await {
        assert_eq!(complete(&executor, "w", &row, "FAILED").await.unwrap()[0], "FAILED");
    }
    let dead = "SELECT idempotency_key FROM holdfast.list_outbox('DEAD', NULL, 10) ORDER BY 1";
    assert_eq!(ask(&operator, dead).await.unwrap().concat(), ["k0", "k1", "k2"]);
    assert_eq!(first(&operator, "SELECT holdfast.resolve_outbox_key('k0', 'paid by hand')").await, "t");
    assert_eq!(first(&operator, "SELECT holdfast.resolve_outbox_key('k0', 'paid by hand')").await, "f", "once");
    assert_eq!(first(&operator, "SELECT holdfast.replay_outbox_key('k0')").await, "f", "it is over");
    let by_id = "SELECT holdfast.replay_outbox((SELECT outbox_id FROM holdfast.payment_outbox_resolutions))";
    assert_eq!(sqlstate(&operator, by_id).await, "P7003", "and by its id as well");
    let note = "SELECT note, resolved_by FROM holdfast.payment_outbox_resolutions";
    assert_eq!(ask(&operator, note).await.unwrap(), [["paid by hand", "symphony_admin"]]);
    for change in
        ["UPDATE holdfast.payment_outbox_resolutions SET note = 'x'", "DELETE FROM holdfast.payment_outbox_resolutions"]
    {
        assert_eq!(sqlstate(&world.admin, change).await, "P0001", "{change}");
    }

    assert_eq!(first(&operator, "SELECT holdfast.replay_outbox_key('k1')").await, "t");
    assert_eq!(first(&operator, "SELECT holdfast.replay_outbox_key('k1')").await, "t", "it waits, and is due");
    assert_eq!(ask(&operator, "SELECT * FROM holdfast.count_outbox()").await.unwrap(), [["1", "1"]]);
    let again = claim(&executor, 3, "w", 60).await;
    assert_eq!(again.iter().map(|row| row.key.as_str()).collect::<Vec<_>>(), ["k1"]);
    assert_eq!(first(&operator, "SELECT holdfast.replay_outbox_key('k1')").await, "f", "somebody has it");
    assert_eq!(complete(&executor, "w", &again[0], "RETRYABLE").await.unwrap()[..2], ["RETRYABLE", "1"]);
    // What was tried and waits begins anew as well, and its attempts stay.
    assert_eq!(first(&operator, "SELECT holdfast.replay_outbox_key('k1')").await, "t");
    let rounds = "SELECT count(*) FROM holdfast.payment_outbox_instructions WHERE idempotency_key = 'k1'";
    assert_eq!(world.value(rounds).await, "3");
    let tried = "SELECT coalesce(error_code, state::text) FROM holdfast.payment_outbox_attempts JOIN holdfast.payment_outbox_instructions \
                 USING (outbox_id) WHERE idempotency_key = 'k1' ORDER BY attempt_id";
    assert_eq!(world.ask(tried).await.concat(), ["FAILED", "RETRYABLE", "REPLAYED"]);
    assert_eq!(ask(&operator, "SELECT * FROM holdfast.count_outbox()").await.unwrap(), [["1", "1"]]);
}

#[tokio::test]
async fn what_is_owed_is_put_once_and_goes_round_again_when_it_has_ended() {
    let world = World::new().await;
    let ingest = world.log_in("symphony_ingest").await;
    let executor = world.log_in("symphony_executor").await;
    assert_eq!(first(&ingest, OWE).await, "2");
    assert_eq!(first(&ingest, OWE).await, "0", "both wait");
    let by_age = "SELECT idempotency_key FROM holdfast.list_outbox('PENDING', NULL, 10)";
    assert_eq!(world.ask(by_age).await.concat(), ["new", "k1"], "the older first, whatever was put first");
    let rows = claim(&executor, 2, "w", 60).await;
    assert_eq!(complete(&executor, "w", &rows[0], "DISPATCHED").await.unwrap()[0], "DISPATCHED");
    assert_eq!(complete(&executor, "w", &rows[1], "FAILED").await.unwrap()[0], "FAILED");
    assert_eq!(first(&ingest, OWE).await, "1", "the one that ended well; the dead one waits for somebody");
    assert_eq!(world.value("SELECT last_sequence_id FROM holdfast.participant_outbox_sequences").await, "3");
    let uneven = "SELECT holdfast.owe_payment_outbox_batch('{i}', '{p,p}', '{k}', '{mock}', '{\"1\"}', '{7}')";
    assert_eq!(sqlstate(&ingest, uneven).await, "22023");
    let gone = "SELECT holdfast.list_outbox('ALL', NULL, 10)";
    assert_eq!(sqlstate(&world.admin, gone).await, "22023");
}

#[tokio::test]
async fn the_desk_reads_no_more_than_it_is_asked_for_though_its_plans_were_made_for_empty_tables() {
    let world = World::new().await;
    // Here the plans are made, and kept for the session.
    let asked = [
        OWE,
        "SELECT holdfast.find_outbox('k77')",
        "SELECT holdfast.list_outbox('PENDING', 'k78', 10)",
        "SELECT holdfast.list_outbox('DEAD', 'k79', 10)",
        "SELECT holdfast.replay_outbox_key('k80')",
        "SELECT holdfast.resolve_outbox_key('k81', 'by hand')",
        "SELECT holdfast.next_outbox_due()",
    ];
    for sql in asked {
        world.run(&format!("BEGIN; {sql}; ROLLBACK")).await;
    }
    let fill = "WITH fresh AS (SELECT holdfast.time_ordered_uuid() AS id, number FROM generate_series(1, 20000) AS number), \
                instructed AS (INSERT INTO holdfast.payment_outbox_instructions \
                SELECT id, 'i', 'p', number, 'k' || number, 'mock', '{}', now() FROM fresh) \
                INSERT INTO holdfast.payment_outbox_queue (outbox_id, next_attempt_at) \
                SELECT id, now() - number * interval '1 ms' FROM fresh";
    world.run(fill).await;
    world.run("INSERT INTO holdfast.participant_outbox_sequences VALUES ('p', 20000)").await;
    for sql in asked {
        world.run(&format!("BEGIN; {sql}")).await;
        let read =
            // What this connection has migrated is counted too, until the server has collected it.
            "SELECT relname, seq_tup_read, idx_tup_fetch FROM pg_stat_xact_all_tables \
              WHERE schemaname = 'holdfast' AND relname <> 'schema_migrations'";
        for row in world.ask(read).await {
            let [walked, fetched] = [&row[1], &row[2]].map(|count| count.parse::<usize>().unwrap_or(0));
            assert!(walked == 0 && fetched <= 40, "{sql} walks over {walked} and reads {fetched} of {}", row[0]);
        }
        world.run("ROLLBACK").await;
    }
}
