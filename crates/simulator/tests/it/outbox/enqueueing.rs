//! Enqueueing: once for each key, with numbers that leave nothing out.

use super::{World, ask};
use std::collections::BTreeMap;

#[tokio::test]
async fn a_key_is_enqueued_once_and_says_whether_the_body_is_the_same() {
    let world = World::new().await;
    let ingest = world.log_in("symphony_ingest").await;
    let enqueue = async |participant: &str, key: &str, payload: &str| {
        let sql = format!(
            "SELECT outbox_id, sequence_id, payload, created, same_body \
             FROM holdfast.enqueue_payment_outbox('i', '{participant}', '{key}', 'mock', '{payload}')"
        );
        ask(&ingest, &sql).await.unwrap().concat()
    };
    let first = enqueue("p", "k", r#"{"amount": "1"}"#).await;
    assert_eq!(first[1..], ["1", r#"{"amount": "1"}"#, "t", "t"]);
    let same = enqueue("p", "k", r#"{"amount": "1"}"#).await;
    assert_eq!((&same[0], &same[1..]), (&first[0], &["1", r#"{"amount": "1"}"#, "f", "t"].map(str::to_owned)[..]));
    let other = enqueue("p", "k", r#"{"amount": "2"}"#).await;
    assert_eq!((&other[0], &other[1..]), (&first[0], &["1", r#"{"amount": "1"}"#, "f", "f"].map(str::to_owned)[..]));
    assert_eq!(enqueue("p", "k2", "{}").await[1], "2");
    assert_eq!(enqueue("q", "k", "{}").await[1], "1", "another participant's key");

    // In a batch: one that is there, one new one twice, in the order of the batch.
    let batch = "SELECT sequence_id, created FROM holdfast.enqueue_payment_outbox_batch(ARRAY['i', 'i', 'i', 'i'], \
                 ARRAY['p', 'p', 'p', 'p'], ARRAY['k', 'k4', 'k3', 'k4'], ARRAY['mock', 'mock', 'mock', 'mock'], \
                 ARRAY['{}', '{}', '{}', '{}']::jsonb[]) ORDER BY ordinal";
    assert_eq!(ask(&ingest, batch).await.unwrap().concat(), ["1", "f", "3", "t", "4", "t", "3", "f"]);
    let executor = world.log_in("symphony_executor").await;
    let order = "SELECT sequence_id FROM holdfast.claim_outbox_batch(10, 'w', 60) WHERE participant_id = 'p'";
    assert_eq!(ask(&executor, order).await.unwrap().concat(), ["1", "2", "3", "4"], "claimed in that order");
}

#[tokio::test]
async fn many_at_once_make_each_row_once_and_leave_no_gap_whoever_rolls_back() {
    const CALLERS: usize = 16;
    const KEYS: usize = 40;
    let world = World::new().await;
    let mut callers = Vec::new();
    for caller in 0..CALLERS {
        let client = world.log_in("symphony_ingest").await;
        callers.push(tokio::spawn(async move {
            let mut seen = BTreeMap::new();
            for step in 0..KEYS {
                // Everybody in another order; one in four is rolled back at first, with a key of its own beside.
                let key = (step * 7 + caller * 11) % KEYS;
                let participant = key % 3;
                let enqueue = |name: &str| {
                    format!("SELECT outbox_id FROM holdfast.enqueue_payment_outbox('i', 'p{participant}', '{name}', 'mock', '{{}}')")
                };
                if (step + caller) % 4 == 0 {
                    let own = format!("own-{caller}-{step}");
                    client.batch_execute(&format!("BEGIN; {}; ROLLBACK", enqueue(&own))).await.unwrap();
                }
                let row = ask(&client, &enqueue(&format!("k{key}"))).await.unwrap().concat();
                seen.insert(key, row.concat());
            }
            seen
        }));
    }
    let mut seen = Vec::new();
    for caller in callers {
        seen.push(caller.await.unwrap());
    }
    assert!(seen.iter().all(|of_one| *of_one == seen[0]), "everybody was given the same row for a key");
    assert_eq!(world.value("SELECT count(*) FROM holdfast.payment_outbox_instructions").await, KEYS.to_string());
    let gaps = "SELECT count(*) FROM (SELECT count(*), min(sequence_id), max(sequence_id), max(last_sequence_id) AS last \
                FROM holdfast.payment_outbox_instructions JOIN holdfast.participant_outbox_sequences USING (participant_id) \
                GROUP BY participant_id) AS counted WHERE min <> 1 OR max <> count OR last <> count";
    assert_eq!(world.value(gaps).await, "0");
}
