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
        ("UPDATE holdfast.ledger_milestones SET at = at", "P0001"),
        ("DELETE FROM holdfast.ledger_milestones", "P0001"),
        ("TRUNCATE holdfast.ledger_milestones", "P0001"),
        // Even a superuser meets the checks.
        ("UPDATE holdfast.ledger_owners SET available = -1, revenue = revenue + available + 1", "23514"),
        ("UPDATE holdfast.ledger_owners SET available = available + 1", "23514"),
        (
            "INSERT INTO holdfast.ledger_entries SELECT entry_offset + 9, at, 1, 0, 0, 0, 0, 0, kind, owner, life, NULL, payee, \
          body, chain, 0 FROM holdfast.ledger_entries LIMIT 1",
            "23514",
        ),
        (
            "INSERT INTO holdfast.ledger_entries SELECT entry_offset + 9, at, 0, 0, 0, 0, 0, 0, kind, owner, life, 'm1', payee, \
          body, chain, 0 FROM holdfast.ledger_entries LIMIT 1",
            "23505",
        ),
        (
            "INSERT INTO holdfast.ledger_entries SELECT entry_offset + 9, at, 0, 0, 0, 0, 0, 0, kind, owner, life, NULL, payee, \
          body, chain, entry_offset + 9 FROM holdfast.ledger_entries LIMIT 1",
            "23514",
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
    let release = Release {
        place: "(SELECT ctid FROM holdfast.ledger_owners)",
        owner_seen: "(SELECT last_offset FROM holdfast.ledger_owners)",
        life: "c:c1",
        seen: "(SELECT records[1] FROM holdfast.ledger_lives)",
        returned: 100,
        previous: "(SELECT last_offset FROM holdfast.ledger_owners)",
        fence: "0",
        charge_place: "(SELECT ctid FROM holdfast.ledger_lives)",
        decided_at: "(extract(epoch FROM clock_timestamp()) * 1000)::bigint",
    };
    for (what, release, state) in [
        ("the owner has moved on", Release { owner_seen: "1", previous: "1", ..release }, "P7101"),
        ("the owner is elsewhere", Release { place: "'(7,7)'::tid", ..release }, "P7101"),
        ("the owner's fence was raised", Release { fence: "1", ..release }, "P7101"),
        ("the charge has moved on", Release { seen: "1", ..release }, "P7101"),
        ("the charge is elsewhere", Release { charge_place: "'(7,7)'::tid", ..release }, "P7101"),
        ("it was decided long ago", Release { decided_at: "1700000000000", ..release }, "P7101"),
        ("the charge is another", Release { life: "c:other", ..release }, "P7101"),
        ("an owner who is there is not made anew", Release { owner_seen: "0", previous: "0", ..release }, "P7101"),
        ("a charge is not begun twice", Release { seen: "0", ..release }, "23505"),
        ("balances are what entries say", Release { returned: 90, ..release }, "P7102"),
        ("a history has every entry", Release { previous: "1", ..release }, "P7102"),
    ] {
        assert_eq!(refused(&world, &release.sql()).await, state, "{what}");
    }
    assert_eq!(world.number("SELECT count(*) FROM holdfast.ledger_entries").await, 2);
    world.admin.batch_execute(&release.sql()).await.unwrap();
    assert_eq!(world.number("SELECT available FROM holdfast.ledger_owners").await, 1_000);
}

/// An entry as a node would write it, on a book as it saw it.
#[derive(Clone, Copy)]
struct Release {
    place: &'static str,
    owner_seen: &'static str,
    life: &'static str,
    seen: &'static str,
    returned: u64,
    previous: &'static str,
    fence: &'static str,
    charge_place: &'static str,
    decided_at: &'static str,
}

impl Release {
    fn sql(self) -> String {
        let Self { place, owner_seen, life, seen, returned, previous, fence, charge_place, decided_at } = self;
        let chain = "decode(repeat('00', 32), 'hex')";
        let begun = format!(
            "ARRAY[ROW('{life}', 0, 'alice', 'RELEASED', 0, NULL, '{{}}', '{{99999999}}')::holdfast.ledger_new_life]"
        );
        let moved = format!(
            "ARRAY[ROW('{life}', {charge_place}, {seen}, 'alice', 'RELEASED', 0, NULL, '{{99999999}}')\
             ::holdfast.ledger_moved_life]"
        );
        let (begun, moved) = if seen == "0" { (begun.as_str(), "'{}'") } else { ("'{}'", moved.as_str()) };
        format!(
            "SELECT holdfast.ledger_admit({decided_at}, ARRAY[ROW(99999999, 1, 'billing_release', 'alice', '{life}', NULL, \
             NULL, 100, -100, 0, 0, 0, 0, '\\x00', {chain}, {previous})::holdfast.ledger_new_entry], \
             ARRAY[ROW('alice', {place}, {owner_seen}, {returned}, -{returned}, 0, 0, 0, 0, -1, 1, 99999999, 1, {chain}, \
             {fence})::holdfast.ledger_moved_owner], '{{}}', {begun}, {moved}, '{{}}', '{{}}', '{{}}')"
        )
    }
}
