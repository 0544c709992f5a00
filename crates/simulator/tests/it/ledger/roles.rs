//! What each role may do with the ledger, tried over everything that the catalog knows of; and attempts to be cleverer than its
//! functions.

use super::{World as Ledger, available, checker, done, mint, reserve};
use crate::outbox::roles::{everything, is_done};
use crate::outbox::{World, ask, sqlstate};
use std::collections::BTreeSet;

/// Who reads the ledger, and what of it.
const READ: [&str; 9] = [
    "SELECT ledger_budgets",
    "SELECT ledger_entries",
    "SELECT ledger_escrow_metadata",
    "SELECT ledger_identity",
    "SELECT ledger_lives",
    "SELECT ledger_milestones",
    "SELECT ledger_owners",
    "SELECT ledger_payees",
    "SELECT ledger_postings",
];
/// What a node may do beside reading.
const NODE: [&str; 5] = ["ledger_admit", "ledger_fence", "ledger_look", "ledger_open", "ledger_put_metadata"];
/// What a node, and nobody else, may do with keys and limits.
const ACCESS: [&str; 10] = [
    "SELECT access_keys",
    "SELECT access_limits",
    "SELECT access_signing_keys",
    "SELECT access_state",
    "access_add_key",
    "access_add_signing_key",
    "access_claim_first_key",
    "access_revoke_key",
    "access_set_limit",
    "access_tell_first_key",
];
/// What a node may do with the queue's items.
const QUEUE: [&str; 6] =
    ["SELECT queue_items", "queue_end", "queue_list", "queue_put", "queue_start", "queue_start_next"];

#[tokio::test]
async fn each_role_may_do_with_the_ledger_what_is_granted_and_nothing_else() {
    let world = World::new().await;
    world.run("ALTER ROLE symphony_ledger LOGIN").await;
    let tries = everything(&world).await;
    assert!(tries.iter().filter(|(name, _)| name.contains("ledger")).count() > 70, "the catalog was not read");
    assert!(tries.iter().filter(|(name, _)| name.contains("access_")).count() > 40, "the catalog was not read");
    let node: BTreeSet<&str> =
        READ.into_iter().chain(NODE).chain(ACCESS).chain(QUEUE).chain(["schema_version"]).collect();
    for (role, may) in [
        ("symphony_ledger", node),
        ("symphony_auditor", BTreeSet::from(READ)),
        ("symphony_ingest", BTreeSet::new()),
        ("symphony_executor", BTreeSet::new()),
        ("symphony_admin", BTreeSet::new()),
        ("symphony_readonly", BTreeSet::new()),
    ] {
        let client = world.log_in(role).await;
        let mut could = BTreeSet::new();
        for (name, sql) in &tries {
            // A node is tried at everything, the others at what is a node's.
            let is_a_nodes = name.contains("ledger") || name.contains("access_");
            if (role == "symphony_ledger" || is_a_nodes) && is_done(&client, name, sql).await {
                could.insert(name.as_str());
            }
        }
        assert_eq!(could, may, "{role}");
    }
}

#[tokio::test]
async fn the_ledgers_functions_are_made_as_such_must_be_and_its_inner_ones_are_nobodys() {
    let world = World::new().await;
    let functions = "SELECT proname FROM pg_proc WHERE pronamespace = 'holdfast'::regnamespace \
                     AND starts_with(proname, 'ledger')";
    let definers = world.ask(&format!("{functions} AND prosecdef ORDER BY 1")).await.concat();
    assert_eq!(definers, NODE);
    let inner = world.ask(&format!("{functions} AND NOT prosecdef ORDER BY 1")).await.concat();
    assert_eq!(inner, ["ledger_claim", "ledger_of_lives", "ledger_rows"]);
    let loose = format!(
        "{functions} AND (NOT coalesce(proconfig @> ARRAY['search_path=pg_catalog, holdfast, pg_temp'], false) \
         OR has_function_privilege('public', pg_proc.oid, 'EXECUTE') OR prosrc ILIKE '%execute %' \
         OR proowner <> 'symphony_owner'::regrole \
         OR (NOT prosecdef AND EXISTS (SELECT FROM pg_roles WHERE NOT rolsuper AND rolname <> 'symphony_owner' \
                                       AND has_function_privilege(pg_roles.oid, pg_proc.oid, 'EXECUTE'))))"
    );
    assert_eq!(world.ask(&loose).await, Vec::<Vec<String>>::new());
    let owned = "SELECT relname FROM pg_class WHERE relnamespace = 'holdfast'::regnamespace \
                 AND starts_with(relname, 'ledger') AND relowner <> 'symphony_owner'::regrole";
    assert_eq!(world.ask(owned).await, Vec::<Vec<String>>::new());
}

#[tokio::test]
async fn keys_and_limits_are_changed_through_functions_that_are_made_as_such_must_be() {
    let world = World::new().await;
    let functions = "SELECT proname FROM pg_proc WHERE pronamespace = 'holdfast'::regnamespace \
                     AND starts_with(proname, 'access_')";
    let definers = world.ask(&format!("{functions} AND prosecdef ORDER BY 1")).await.concat();
    assert_eq!(definers, ACCESS[4..]);
    let inner = world.ask(&format!("{functions} AND NOT prosecdef ORDER BY 1")).await.concat();
    assert_eq!(inner, ["access_advance", "access_now"]);
    let nobodys = "NOT EXISTS (SELECT FROM pg_roles WHERE NOT rolsuper AND rolname <> 'symphony_owner' \
                   AND has_function_privilege(pg_roles.oid, pg_proc.oid, 'EXECUTE'))";
    assert_eq!(world.ask(&format!("{functions} AND NOT prosecdef AND {nobodys} ORDER BY 1")).await.concat(), inner);
    let fixed = "coalesce(proconfig @> ARRAY['search_path=pg_catalog, holdfast, pg_temp'], false)";
    assert_eq!(world.ask(&format!("{functions} AND NOT {fixed}")).await, Vec::<Vec<String>>::new());
}

#[tokio::test]
async fn a_hostile_search_path_and_temporary_tables_do_not_bend_who_may_do_what() {
    let world = World::new().await;
    world
        .run("ALTER ROLE symphony_ledger LOGIN; CREATE SCHEMA evil; GRANT ALL ON SCHEMA evil TO symphony_ledger")
        .await;
    let hostile = world.log_in("symphony_ledger").await;
    let add = "SELECT holdfast.access_add_key('key_1', decode(repeat('00', 32), 'hex'), 'hf_live_', 'alice', NULL, 'read', \
               NULL, NULL, 1, NULL, NULL)";
    assert_eq!(ask(&hostile, add).await.unwrap().concat(), ["t"]);
    let traps = "
        CREATE FUNCTION evil.access_advance() RETURNS bigint LANGUAGE sql AS $$ SELECT 0::bigint $$;
        CREATE FUNCTION evil.access_now() RETURNS bigint LANGUAGE sql AS $$ SELECT NULL::bigint $$;
        CREATE FUNCTION evil.never(text, text) RETURNS boolean LANGUAGE sql AS $$ SELECT false $$;
        CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.never);
        CREATE TEMP TABLE access_keys (id text, revoked_at bigint, version bigint);
        CREATE TEMP TABLE access_state (version bigint);
        SET search_path = pg_temp, evil, holdfast, pg_catalog";
    hostile.batch_execute(traps).await.unwrap();
    let revoke = "SELECT revoked_at > 1700000000000 FROM holdfast.access_revoke_key('key_1')";
    assert_eq!(ask(&hostile, revoke).await.unwrap().concat(), ["t"]);
    let really = "SELECT state.version, key.version, key.revoked_at IS NOT NULL \
                  FROM holdfast.access_state AS state, holdfast.access_keys AS key";
    assert_eq!(world.ask(really).await.concat(), ["2", "2", "t"]);
    // Neither adding it again nor anything else that a node may do makes it good again.
    assert_eq!(ask(&hostile, add).await.unwrap().concat(), ["f"]);
    let undo = "UPDATE holdfast.access_keys SET revoked_at = NULL";
    assert_eq!(sqlstate(&hostile, undo).await, "42501");
    assert_eq!(world.ask("SELECT revoked_at IS NOT NULL FROM holdfast.access_keys").await.concat(), ["t"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_search_path_and_temporary_tables_do_not_bend_the_books() {
    let world = Ledger::new().await;
    let node = world.node().await;
    done(&node, mint("alice", 1_000, "m")).await;
    done(&node, reserve("alice", "c1", 100)).await;
    world.admin.batch_execute("CREATE SCHEMA evil; GRANT ALL ON SCHEMA evil TO node").await.unwrap();
    let hostile = world.database("postgres").connect().await.unwrap();
    let traps = "
        CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ SELECT '2000-01-01'::timestamptz $$;
        CREATE FUNCTION evil.nextval(regclass) RETURNS bigint LANGUAGE sql AS $$ SELECT 1::bigint $$;
        CREATE FUNCTION evil.always(bigint, bigint) RETURNS boolean LANGUAGE sql AS $$ SELECT true $$;
        CREATE OPERATOR evil.= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = evil.always);
        CREATE FUNCTION evil.more(bigint, bigint) RETURNS bigint LANGUAGE sql AS $$ SELECT 1000000::bigint $$;
        CREATE OPERATOR evil.+ (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = evil.more);
        CREATE TEMP TABLE ledger_owners AS SELECT * FROM holdfast.ledger_owners;
        UPDATE pg_temp.ledger_owners SET available = 999999;
        CREATE TEMP TABLE ledger_lives AS SELECT * FROM holdfast.ledger_lives;
        CREATE TEMP TABLE ledger_entries AS SELECT * FROM holdfast.ledger_entries WHERE false;
        CREATE TEMP TABLE ledger_milestones (owner text); CREATE TEMP TABLE ledger_payees (payee text); CREATE TEMP TABLE ledger_budgets (budget text);
        CREATE TEMP SEQUENCE ledger_blocks;
        CREATE FUNCTION pg_temp.ledger_rows(text[], text[], text[], text[], text[]) RETURNS void LANGUAGE sql AS '';
        SET search_path = pg_temp, evil, holdfast, pg_catalog";
    hostile.batch_execute(traps).await.unwrap();
    let look =
        "SELECT numbers[1] FROM holdfast.ledger_look('{alice}', '{c:c1}', '{m}', '{}', '{}') WHERE what = 'owner'";
    assert_eq!(ask(&hostile, look).await.unwrap().concat(), ["900"], "what there really is");
    let open = "SELECT count(*) FROM holdfast.ledger_open('{alice}', '{c:c1}', '{m}', '{}', '{}', '{}')
                 WHERE what = 'life' OR what = 'key' OR (what = 'owner' AND numbers[1] = 900)
                    OR (what = 'block' AND numbers[1] >= 8192 AND numbers[2] > 1700000000000)";
    assert_eq!(ask(&hostile, open).await.unwrap().concat(), ["4"]);
    // A release on a book that was never seen: a real comparison says no.
    let release = |seen: &str| {
        format!(
            "SELECT holdfast.ledger_admit(9000000000000, ARRAY[ROW(99999999, 1, 'billing_release', 'alice', 'c:c1', NULL, NULL, \
             100, -100, 0, 0, 0, 0, '\\x00', decode(repeat('00', 32), 'hex'), {seen})::holdfast.ledger_new_entry], \
             ARRAY[ROW('alice', (SELECT ctid FROM holdfast.ledger_owners), {seen}, 100, -100, 0, 0, 0, 0, -1, 1, 99999999, 1, \
             decode(repeat('00', 32), 'hex'), 0)::holdfast.ledger_moved_owner], '{{}}', '{{}}', \
             ARRAY[ROW('c:c1', (SELECT ctid FROM holdfast.ledger_lives), {seen}, 'alice', 'RELEASED', 0, NULL, \
             '{{99999999}}')::holdfast.ledger_moved_life], \
             '{{}}', '{{}}', '{{}}')"
        )
    };
    assert_eq!(sqlstate(&hostile, &release("1")).await, "P7101");
    checker::check(&world.admin).await.unwrap();
    let last = world.number("SELECT last_offset FROM holdfast.ledger_owners").await;
    assert_eq!(sqlstate(&hostile, &release(&last.to_string())).await, "00000");
    assert_eq!(
        world.number("SELECT available FROM holdfast.ledger_owners").await,
        1_000,
        "a real sum, in the real table"
    );
    assert_eq!(ask(&hostile, "SELECT count(*) FROM pg_temp.ledger_entries").await.unwrap().concat(), ["0"]);
    assert_eq!(available(&node, "alice").await, 1_000);
}
