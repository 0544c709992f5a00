//! What each role may do, tried over everything that the catalog knows of; and attempts to be cleverer than the functions.

use super::{ROLES, World, ask, claim, complete, sqlstate};
use std::collections::BTreeSet;
use tokio_postgres::Client;

/// All that is granted; what is not in here must fail.
const MAY: [(&str, &[&str]); 5] = [
    (
        "symphony_ingest",
        &["enqueue_payment_outbox", "enqueue_payment_outbox_batch", "owe_payment_outbox_batch", "schema_version"],
    ),
    (
        "symphony_executor",
        &[
            "claim_outbox_batch",
            "complete_outbox_attempt",
            "complete_outbox_batch",
            "extend_outbox_lease",
            "next_outbox_due",
            "release_outbox",
            "repair_expired_leases",
            "reschedule_outbox",
            "schema_version",
            "set_outbox_lease",
        ],
    ),
    (
        "symphony_admin",
        &[
            "SELECT payment_outbox_attempts",
            "SELECT payment_outbox_dead_letters",
            "SELECT payment_outbox_pending",
            "SELECT payment_outbox_resolutions",
            "count_outbox",
            "find_outbox",
            "list_outbox",
            "replay_outbox",
            "replay_outbox_key",
            "resolve_outbox_key",
            "schema_version",
        ],
    ),
    (
        "symphony_auditor",
        &[
            "SELECT participant_outbox_sequences",
            "SELECT payment_outbox_attempts",
            "SELECT payment_outbox_dead_letters",
            "SELECT payment_outbox_pending",
            "SELECT payment_outbox_resolutions",
            "SELECT queue_items",
            "count_outbox",
            "find_outbox",
            "list_outbox",
            "schema_version",
        ],
    ),
    (
        "symphony_readonly",
        &[
            "SELECT payment_outbox_attempts",
            "SELECT payment_outbox_dead_letters",
            "SELECT payment_outbox_pending",
            "SELECT payment_outbox_resolutions",
            "count_outbox",
            "find_outbox",
            "list_outbox",
            "schema_version",
        ],
    ),
];

/// Everything that can be tried in the schema, with a name for it.
pub(crate) async fn everything(world: &World) -> Vec<(String, String)> {
    let mut tries = Vec::new();
    let relations = "SELECT relname, relkind, (SELECT quote_ident(attname) FROM pg_attribute WHERE attrelid = pg_class.oid AND attnum = 1) \
                     FROM pg_class WHERE relnamespace = 'holdfast'::regnamespace AND relkind IN ('r', 'p', 'v', 'm', 'S') ORDER BY 1";
    for row in world.ask(relations).await {
        let [name, kind, column] = &row[..] else { unreachable!("three columns") };
        if kind == "S" {
            tries.push((format!("NEXT OF {name}"), format!("SELECT nextval('holdfast.{name}')")));
        }
        tries.push((format!("SELECT {name}"), format!("SELECT * FROM holdfast.{name} LIMIT 0")));
        tries.push((format!("INSERT {name}"), format!("INSERT INTO holdfast.{name} DEFAULT VALUES")));
        tries.push((format!("UPDATE {name}"), format!("UPDATE holdfast.{name} SET {column} = DEFAULT")));
        tries.push((format!("DELETE {name}"), format!("DELETE FROM holdfast.{name}")));
        tries.push((format!("TRUNCATE {name}"), format!("TRUNCATE holdfast.{name}")));
        tries.push((format!("LOCK {name}"), format!("LOCK TABLE holdfast.{name} IN EXCLUSIVE MODE")));
        tries.push((format!("DROP {name}"), format!("DROP TABLE holdfast.{name}")));
        tries.push((format!("ALTER {name}"), format!("ALTER TABLE holdfast.{name} RENAME TO other")));
    }
    let functions = "SELECT proname, coalesce((SELECT string_agg('NULL::' || format_type(argument, NULL), ', ' ORDER BY place) \
                     FROM unnest(proargtypes) WITH ORDINALITY AS given (argument, place)), '') \
                     FROM pg_proc WHERE pronamespace = 'holdfast'::regnamespace ORDER BY 1";
    for row in world.ask(functions).await {
        tries.push((row[0].clone(), format!("SELECT holdfast.{}({})", row[0], row[1])));
        tries.push((format!("REPLACE {}", row[0]), format!("ALTER FUNCTION holdfast.{} RENAME TO other", row[0])));
    }
    for (name, sql) in [
        ("CREATE", "CREATE TABLE holdfast.mine ()"),
        ("BECOME OWNER", "SET ROLE symphony_owner"),
        ("GRANT", "GRANT symphony_owner TO CURRENT_USER"),
        ("EXECUTE TO ALL", "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA holdfast TO CURRENT_USER"),
        ("TRIGGER", "ALTER TABLE holdfast.payment_outbox_attempts DISABLE TRIGGER ALL"),
        ("REPLICA", "SET session_replication_role = replica"),
    ] {
        tries.push((name.to_owned(), sql.to_owned()));
    }
    tries
}

/// Whether it is not refused; what it did is undone.
pub(crate) async fn is_done(client: &Client, name: &str, sql: &str) -> bool {
    let state = sqlstate(client, &format!("BEGIN; {sql}")).await;
    client.batch_execute("ROLLBACK").await.unwrap();
    // A grant of nothing is a warning and no error; whether anything came of it, the other tries show.
    let refused = ["42501", "42809", "55000"].contains(&state.as_str());
    !refused && name != "EXECUTE TO ALL"
}

#[tokio::test]
async fn each_role_may_do_what_is_granted_and_nothing_else() {
    let world = World::new().await;
    let tries = everything(&world).await;
    assert!(tries.len() > 80, "the catalog was not read: {}", tries.len());
    for (role, may) in MAY {
        let client = world.log_in(role).await;
        let mut could = BTreeSet::new();
        for (name, sql) in &tries {
            if is_done(&client, name, sql).await {
                could.insert(name.as_str());
            }
        }
        // What is the ledger's has its own list.
        could.retain(|name| !name.contains("ledger"));
        assert_eq!(could, may.iter().copied().collect(), "{role}");
    }
    assert_eq!(MAY.map(|(role, _)| role), ROLES);
}

#[tokio::test]
async fn functions_with_their_owners_rights_are_made_as_such_must_be() {
    let world = World::new().await;
    let loose = "SELECT proname FROM pg_proc JOIN pg_roles ON pg_roles.oid = proowner \
                 WHERE pronamespace = 'holdfast'::regnamespace AND ( \
                   rolsuper OR rolcanlogin OR rolname <> 'symphony_owner' \
                   OR has_function_privilege('public', pg_proc.oid, 'EXECUTE') \
                   OR (prosecdef AND NOT coalesce(proconfig @> ARRAY['search_path=pg_catalog, holdfast, pg_temp'], false)) \
                   OR prosrc ILIKE '%execute %')";
    assert_eq!(world.ask(loose).await, Vec::<Vec<String>>::new());
    let definers = "SELECT count(*) FROM pg_proc WHERE pronamespace = 'holdfast'::regnamespace AND prosecdef \
                    AND proname !~ '^(ledger|access|queue)_'";
    assert_eq!(world.value(definers).await, "19");
    let clock = "SELECT indexrelid::regclass FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid \
                 WHERE relnamespace = 'holdfast'::regnamespace AND pg_get_expr(indpred, indrelid) ~ 'now|timestamp'";
    assert_eq!(world.ask(clock).await, Vec::<Vec<String>>::new(), "time in a predicate");
}

#[tokio::test]
async fn a_hostile_search_path_and_temporary_tables_change_nothing() {
    let world = World::new().await;
    world.enqueue(2).await;
    let roles = "symphony_executor, symphony_ingest, symphony_admin";
    world.run(&format!("CREATE SCHEMA evil; GRANT ALL ON SCHEMA evil TO {roles}")).await;
    let executor = world.log_in("symphony_executor").await;
    let traps = "
        CREATE TABLE evil.payment_outbox_queue (LIKE pg_catalog.pg_class);
        CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ SELECT '2000-01-01'::timestamptz $$;
        CREATE FUNCTION evil.gen_random_uuid() RETURNS uuid LANGUAGE sql
            AS $$ SELECT '00000000-0000-4000-8000-000000000000'::uuid $$;
        CREATE FUNCTION evil.always(uuid, uuid) RETURNS boolean LANGUAGE sql AS $$ SELECT true $$;
        CREATE OPERATOR evil.= (LEFTARG = uuid, RIGHTARG = uuid, FUNCTION = evil.always);
        CREATE TEMP TABLE payment_outbox_queue (outbox_id uuid, next_attempt_at timestamptz, attempt_count int,
            crash_count smallint);
        INSERT INTO pg_temp.payment_outbox_queue VALUES (pg_catalog.gen_random_uuid(), '2000-01-01', 0, 0);
        CREATE TEMP TABLE payment_outbox_claims (claim_id bigint, lease_expires_at timestamptz, lease_token uuid,
            crash_count smallint, claimed_by text, outbox_ids uuid[], next_attempts_at timestamptz[]);
        CREATE TEMP TABLE payment_outbox_attempts (outbox_id uuid, attempt_no int, state text);
        CREATE TEMP TABLE payment_outbox_instructions (outbox_id uuid);
        CREATE TEMP TABLE participant_outbox_sequences (participant_id text, last_sequence_id bigint);
        SET search_path = pg_temp, evil, holdfast, pg_catalog";
    executor.batch_execute(traps).await.unwrap();
    let rows = claim(&executor, 10, "w", 60).await;
    assert_eq!(rows.iter().map(|row| row.key.as_str()).collect::<Vec<_>>(), ["k0", "k1"], "the real rows");
    assert_ne!(rows[0].token, "00000000-0000-4000-8000-000000000000", "a real token");
    assert_eq!(complete(&executor, "w", &rows[0], "DISPATCHED").await.unwrap()[0], "DISPATCHED");
    let forged = super::Claimed { token: rows[0].id.clone(), ..rows[1].clone() };
    assert_eq!(complete(&executor, "w", &forged, "DISPATCHED").await, Err("P7002".to_owned()), "a real comparison");
    assert_eq!(ask(&executor, "SELECT count(*) FROM pg_temp.payment_outbox_queue").await.unwrap().concat(), ["1"]);
    assert_eq!(ask(&executor, "SELECT count(*) FROM pg_temp.payment_outbox_claims").await.unwrap().concat(), ["0"]);
    assert_eq!(ask(&executor, "SELECT count(*) FROM pg_temp.payment_outbox_attempts").await.unwrap().concat(), ["0"]);

    let ingest = world.log_in("symphony_ingest").await;
    let traps = "
        CREATE TEMP TABLE payment_outbox_instructions (outbox_id uuid);
        CREATE TEMP TABLE participant_outbox_sequences (participant_id text, last_sequence_id bigint);
        SET search_path = pg_temp, evil, holdfast, pg_catalog;
        SELECT holdfast.enqueue_payment_outbox('i9', 'p', 'k9', 'mock', '{}')";
    ingest.batch_execute(traps).await.unwrap();
    assert_eq!(world.value("SELECT count(*) FROM holdfast.payment_outbox_instructions").await, "3");
    assert_eq!(world.value("SELECT last_sequence_id FROM holdfast.participant_outbox_sequences").await, "3");
    let owe = "SELECT holdfast.owe_payment_outbox_batch('{i9,i10}', '{p,p}', '{k9,k10}', '{mock,mock}', '{\"{}\",\"{}\"}', '{1,1}')";
    assert_eq!(ask(&ingest, owe).await.unwrap().concat(), ["1"], "the real one that is there");

    let operator = world.log_in("symphony_admin").await;
    let traps = "
        CREATE FUNCTION evil.session_user() RETURNS text LANGUAGE sql AS $$ SELECT 'somebody else' $$;
        CREATE TEMP TABLE payment_outbox_dead_letters (outbox_id uuid, died_at timestamptz);
        CREATE TEMP TABLE payment_outbox_instructions (outbox_id uuid, idempotency_key text, sequence_id bigint);
        CREATE TEMP TABLE payment_outbox_resolutions (outbox_id uuid);
        INSERT INTO pg_temp.payment_outbox_dead_letters SELECT outbox_id, now() FROM holdfast.payment_outbox_pending;
        SET search_path = pg_temp, evil, holdfast, pg_catalog";
    operator.batch_execute(traps).await.unwrap();
    assert_eq!(ask(&operator, "SELECT * FROM holdfast.count_outbox()").await.unwrap().concat(), ["3", "0"]);
    let resolve = "SELECT holdfast.resolve_outbox_key('k9', 'paid by hand')";
    assert_eq!(ask(&operator, resolve).await.unwrap().concat(), ["f"], "it waits, whatever a temporary table says");
    let found = ask(&operator, "SELECT standing FROM holdfast.find_outbox('k9')").await.unwrap();
    assert_eq!(found.concat(), ["DUE"]);
}
