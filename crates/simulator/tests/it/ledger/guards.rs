//! What the database itself refuses, whoever asks.

use super::{World, commit, done, mint, reserve};

/// The SQLSTATE of what is refused.
async fn refused(world: &World, sql: &str) -> String {
    let error = world.admin.batch_execute(sql).await.unwrap_err();
    error.code().map(|code| code.code().to_owned()).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_books_cannot_be_bent() {
    let world = World::new().await;
    let node = world.node().await;
    done(&node, mint("alice", 1_000, "m1")).await;
    done(&node, reserve("alice", "c1", 600)).await;
    done(&node, commit("c1", 450)).await;
    for (sql, state) in [
        ("UPDATE holdfast.ledger_entries SET available = available", "P0001"),
        ("DELETE FROM holdfast.ledger_entries", "P0001"),
        ("TRUNCATE holdfast.ledger_entries", "P0001"),
        // Even a superuser meets the checks.
        ("UPDATE holdfast.ledger_owners SET available = -1, revenue = revenue + available + 1", "23514"),
        ("UPDATE holdfast.ledger_owners SET available = available + 1", "23514"),
        (
            "INSERT INTO holdfast.ledger_entries SELECT entry_offset + 9, at, 1, 0, 0, 0, 0, 0, kind, owner, life, NULL, payee, \
          body, chain FROM holdfast.ledger_entries LIMIT 1",
            "23514",
        ),
        (
            "INSERT INTO holdfast.ledger_entries SELECT entry_offset + 9, at, 0, 0, 0, 0, 0, 0, kind, owner, life, 'm1', payee, \
          body, chain FROM holdfast.ledger_entries LIMIT 1",
            "23505",
        ),
        ("INSERT INTO holdfast.ledger_identity (ledger_id) VALUES (gen_random_uuid())", "23505"),
    ] {
        assert_eq!(refused(&world, sql).await, state, "{sql}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_decided_on_an_older_book_is_not_admitted() {
    let world = World::new().await;
    let node = world.node().await;
    done(&node, mint("alice", 1_000, "m1")).await;
    done(&node, reserve("alice", "c1", 100)).await;
    // An entry as a node would write it that has not seen the last one.
    let chain = "decode(repeat('00', 32), 'hex')";
    let release = |owner_seen: &str, life: &str, seen: &str, returned: u64| {
        format!(
            "SELECT holdfast.ledger_admit(ARRAY[ROW(99999999, 1, 'billing_release', 'alice', {life}, NULL, NULL, \
             100, -100, 0, 0, 0, 0, '\\x00', {chain})::holdfast.ledger_new_entry], \
             ARRAY[ROW('alice', {owner_seen}, {returned}, -{returned}, 0, 0, 0, 0, -1, 1, 99999999, 1, {chain})\
             ::holdfast.ledger_new_owner], \
             ARRAY[ROW({life}, {seen}, 'alice', 'RELEASED', 0, NULL, '{{}}', '{{99999999}}')::holdfast.ledger_new_life], \
             '{{}}', '{{}}', '{{}}')"
        )
    };
    let entry = |owner_seen: &str, life: &str, seen: &str| release(owner_seen, life, seen, 100);
    let last = "(SELECT last_offset FROM holdfast.ledger_owners)";
    let of_life = "(SELECT records[1] FROM holdfast.ledger_lives)";
    assert_eq!(refused(&world, &entry("1", "'c:c1'", of_life)).await, "P7101");
    assert_eq!(refused(&world, &entry(last, "'c:c1'", "1")).await, "P7101");
    assert_eq!(refused(&world, &entry(last, "'c:other'", of_life)).await, "P7101");
    assert_eq!(
        refused(&world, &entry("0", "'c:c1'", of_life)).await,
        "23514",
        "an owner who is there is not made anew"
    );
    assert_eq!(refused(&world, &entry(last, "'c:c1'", "0")).await, "23505", "a charge is not begun twice");
    assert_eq!(refused(&world, &release(last, "'c:c1'", of_life, 90)).await, "P7102", "balances are what entries say");
    assert_eq!(world.number("SELECT count(*) FROM holdfast.ledger_entries").await, 2);
    world.admin.batch_execute(&entry(last, "'c:c1'", of_life)).await.unwrap();
    assert_eq!(world.number("SELECT available FROM holdfast.ledger_owners").await, 1_000);
}
