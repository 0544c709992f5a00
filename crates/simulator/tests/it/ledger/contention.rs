//! Others who want the same at the same time, strangers who hold it, and requests that the database will not have.

use super::load::{budgeted, hold, settle};
use super::{Heard, World, available, checker, code, commit, done, mint, reserve};
use holdfast_adapters::postgres::PostgresLedger;
use holdfast_domain::Span;
use holdfast_engine::{Command, Request};
use std::sync::Arc;
use tokio::task::JoinSet;

const DEADLOCKS: &str = "SELECT deadlocks FROM pg_stat_database WHERE datname = 'postgres'";
/// How many wait for a lock.
const WAITING: &str = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";

/// One batch on every account, budget and payee; by this caller from one end, by that from the other.
fn crossing(task: usize, round: usize) -> Vec<Request> {
    let mut requests = Vec::new();
    for place in 0..8 {
        let number = if task.is_multiple_of(2) { place } else { 7 - place };
        let (owner, id) = (format!("o{number}"), format!("t{task}-r{round}-{number}"));
        // Some are new to the books.
        requests.push(mint(&format!("new-{round}-{number}"), 5, &format!("m-{id}")));
        requests.push(budgeted(reserve(&owner, &id, 10), &format!("b{}", (number + 3) % 8)));
        requests.push(commit(&id, 4));
        requests.push(hold(&owner, &format!("e-{id}"), 3));
        requests.push(settle(&format!("e-{id}"), &format!("p{}-{}", round / 4, (number + 5) % 8)));
    }
    requests
}

#[tokio::test(flavor = "multi_thread")]
async fn d3_two_nodes_on_crossing_accounts_and_budgets_never_wait_in_a_circle() {
    let world = World::new().await;
    let nodes = [Arc::new(world.node().await), Arc::new(world.node().await)];
    let funds = (0..8).map(|number| mint(&format!("o{number}"), 1_000_000, &format!("f{number}"))).collect();
    assert!(nodes[0].submit_batch(funds).await.unwrap().iter().all(Result::is_ok));
    let mut running = JoinSet::new();
    for task in 0..8 {
        let node = Arc::clone(&nodes[task % 2]);
        running.spawn(async move {
            for round in 0..12 {
                let answers = node.submit_batch(crossing(task, round)).await.unwrap();
                assert!(answers.iter().all(Result::is_ok), "{answers:?}");
            }
        });
    }
    running.join_all().await;
    assert_eq!(world.number(DEADLOCKS).await, 0);
    let checked = checker::check(&world.admin).await.unwrap();
    assert_eq!(checked.entries, 8 + 8 * 12 * 40);
}

/// A trigger on every entry, in whoever's name it is written.
async fn trap(world: &World, name: &str, body: &str) {
    let sql = format!(
        "CREATE SEQUENCE public.{name}_met; GRANT ALL ON SEQUENCE public.{name}_met TO PUBLIC;
         CREATE FUNCTION public.{name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} RETURN NEW; END $$;
         CREATE TRIGGER {name} BEFORE INSERT ON holdfast.ledger_entries
            FOR EACH ROW EXECUTE FUNCTION public.{name}()"
    );
    world.admin.batch_execute(&sql).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn d3_what_could_not_be_serialized_is_tried_again_and_answered_right() {
    let world = World::new().await;
    let node = world.node().await;
    let raise = "CASE nextval('public.once_met')
        WHEN 1 THEN RAISE EXCEPTION 'could not serialize' USING ERRCODE = '40001';
        WHEN 2 THEN RAISE EXCEPTION 'deadlock detected' USING ERRCODE = '40P01';
        WHEN 3 THEN RAISE EXCEPTION 'somebody moved it' USING ERRCODE = 'P7101';
        WHEN 4 THEN RAISE EXCEPTION 'canceled' USING ERRCODE = '57014';
        ELSE NULL; END CASE;";
    trap(&world, "once", raise).await;
    done(&node, mint("alice", 100, "m")).await;
    assert_eq!((node.health().overtaken, node.health().in_doubt), (4, 0));
    assert_eq!(available(&node, "alice").await, 100);
    assert_eq!(checker::check(&world.admin).await.unwrap().entries, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn d4_without_a_connection_callers_are_told_and_later_the_same_request_is_done_once() {
    let world = World::new().await;
    let heard = Arc::new(Heard::default());
    let node = world.node_with(&world.server.url_as("node", "postgres"), 1, Arc::clone(&heard)).await;
    done(&node, mint("alice", 100, "m")).await;
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'node'";
    world.admin.batch_execute("ALTER ROLE node CONNECTION LIMIT 0").await.unwrap();
    world.admin.batch_execute(end).await.unwrap();
    assert_eq!(code(&node.submit(mint("alice", 5, "m2")).await), "SERVICE_DATABASE_UNAVAILABLE");
    assert!(!node.health().is_reached);
    assert!(heard.0.lock().unwrap().iter().any(|said| said.contains("53300") || said.contains("too many")));
    world.admin.batch_execute("ALTER ROLE node CONNECTION LIMIT -1").await.unwrap();
    done(&node, mint("alice", 5, "m2")).await;
    assert!(node.health().is_reached);
    assert_eq!(available(&node, "alice").await, 105);
    assert_eq!(checker::check(&world.admin).await.unwrap().entries, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn d5_a_stranger_who_holds_an_account_keeps_only_those_waiting_who_want_it_and_not_for_ever() {
    let world = World::new().await;
    let node = Arc::new(world.node().await);
    let funds = vec![mint("alice", 100, "m1"), mint("bob", 100, "m2")];
    assert!(node.submit_batch(funds).await.unwrap().iter().all(Result::is_ok));
    let stranger = world.log_in("postgres").await;
    stranger.batch_execute("BEGIN; SELECT FROM holdfast.ledger_owners WHERE owner = 'alice' FOR UPDATE").await.unwrap();
    let waits = Arc::clone(&node);
    let waiting = tokio::spawn(async move { waits.submit(reserve("alice", "c1", 10)).await });
    while world.number(WAITING).await == 0 {
        tokio::task::yield_now().await;
    }
    done(&node, reserve("bob", "c2", 10)).await;
    assert_eq!(code(&waiting.await.unwrap()), "OPTIMISTIC_LOCK");
    stranger.batch_execute("ROLLBACK").await.unwrap();
    done(&node, reserve("alice", "c1", 10)).await;
    assert_eq!(available(&node, "alice").await, 90);
    assert_eq!(checker::check(&world.admin).await.unwrap().entries, 4);
}

/// What is not there cannot be locked in the order of names: whoever waited for it could wait in a circle.
#[tokio::test(flavor = "multi_thread")]
async fn d3_who_begins_what_another_has_claimed_waits_for_no_lock_and_is_done_once() {
    let world = World::new().await;
    let node = Arc::new(world.node().await);
    done(&node, mint("alice", 100, "m1")).await;
    let stranger = world.log_in("postgres").await;
    let claims = "BEGIN; SELECT pg_advisory_xact_lock(7101, place) FROM generate_series(0, 1023) AS place";
    stranger.batch_execute(claims).await.unwrap();
    let begins = Arc::clone(&node);
    let beginning = tokio::spawn(async move { begins.submit(mint("bob", 100, "m2")).await });
    while node.health().overtaken == 0 && !beginning.is_finished() {
        tokio::task::yield_now().await;
    }
    done(&node, mint("alice", 100, "m3")).await;
    assert!(!beginning.is_finished(), "it is another's");
    assert_eq!(world.number(WAITING).await, 0);
    stranger.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(code(&beginning.await.unwrap()), "done");
    assert_eq!(available(&node, "bob").await, 100);
    assert_eq!(checker::check(&world.admin).await.unwrap().entries, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_the_database_refuses_does_not_take_its_neighbours_with_it() {
    let world = World::new().await;
    let node = Arc::new(world.node_with(&world.server.url_as("node", "postgres"), 1, Arc::default()).await);
    trap(&world, "poison", "IF NEW.owner = 'mallory' THEN RAISE EXCEPTION 'not this one'; END IF;").await;
    let mut running = JoinSet::new();
    for number in 0..64 {
        let node = Arc::clone(&node);
        let owner = if number == 40 { "mallory".to_owned() } else { format!("o{number}") };
        running.spawn(async move { (number, code(&node.submit(mint(&owner, 9, &format!("m{number}"))).await)) });
    }
    for (number, code) in running.join_all().await {
        assert_eq!(code, if number == 40 { "SERVICE_DATABASE_UNAVAILABLE" } else { "done" }, "{number}");
    }
    // In one batch of one caller, they are one.
    let batch = vec![mint("p1", 9, "n1"), mint("mallory", 9, "n2")];
    let answers = node.submit_batch(batch.clone()).await.unwrap();
    assert!(answers.iter().all(|answer| code(answer) == "SERVICE_DATABASE_UNAVAILABLE"), "{answers:?}");
    assert_eq!(checker::check(&world.admin).await.unwrap().entries, 63);
    world.admin.batch_execute("DROP TRIGGER poison ON holdfast.ledger_entries").await.unwrap();
    assert!(node.submit_batch(batch).await.unwrap().iter().all(Result::is_ok));
    done(&node, mint("mallory", 9, "m40")).await;
    assert_eq!(checker::check(&world.admin).await.unwrap().entries, 66);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_cannot_be_ended_does_not_keep_the_others_from_ending() {
    let world = World::new().await;
    let node = world.node().await;
    for owner in ["alice", "bob", "mallory"] {
        done(&node, mint(owner, 100, &format!("m-{owner}"))).await;
        let mut soon = reserve(owner, &format!("c-{owner}"), 60);
        if let Command::Reserve { reserve, .. } = &mut soon.command {
            reserve.ttl = Span::from_millis(1);
        }
        done(&node, soon).await;
    }
    trap(&world, "poison", "IF NEW.owner = 'mallory' THEN RAISE EXCEPTION 'not this one'; END IF;").await;
    let mut ended = 0;
    while ended < 2 {
        ended += node.expire("expiry".parse().unwrap(), 10).await.unwrap();
    }
    assert_eq!((available(&node, "alice").await, available(&node, "bob").await), (100, 100));
    assert_eq!((node.expire("expiry".parse().unwrap(), 10).await.unwrap(), available(&node, "mallory").await), (0, 40));
    world.admin.batch_execute("DROP TRIGGER poison ON holdfast.ledger_entries").await.unwrap();
    assert_eq!(node.expire("expiry".parse().unwrap(), 10).await.unwrap(), 1);
    assert_eq!(checker::check(&world.admin).await.unwrap().entries, 9);
}

/// Has `first` wait for a lock on the account of `held`, `second` done meanwhile by another node, and then `first` go on.
async fn overtaken(world: &World, held: &str, first: Vec<Request>, second: Request) -> Vec<&'static str> {
    let nodes = [Arc::new(world.node().await), Arc::new(world.node().await)];
    let stranger = world.log_in("postgres").await;
    let lock = format!("BEGIN; SELECT FROM holdfast.ledger_owners WHERE owner = '{held}' FOR UPDATE");
    stranger.batch_execute(&lock).await.unwrap();
    let slow: Arc<PostgresLedger> = Arc::clone(&nodes[0]);
    let waiting = tokio::spawn(async move { slow.submit_batch(first).await.unwrap() });
    while world.number(WAITING).await == 0 {
        tokio::task::yield_now().await;
    }
    done(&nodes[1], second).await;
    stranger.batch_execute("ROLLBACK").await.unwrap();
    waiting.await.unwrap().iter().map(code).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_charge_that_is_made_while_its_commit_waits_is_committed_with_its_owner_and_its_budgets() {
    let world = World::new().await;
    let node = world.node().await;
    let funds = vec![mint("alice", 100, "m1"), mint("bea", 100, "m2"), mint("zoe", 100, "m3")];
    assert!(node.submit_batch(funds).await.unwrap().iter().all(Result::is_ok));
    // Nobody knew that it would be alice's.
    let first = vec![mint("zoe", 1, "m4"), commit("c1", 4)];
    assert_eq!(overtaken(&world, "zoe", first, reserve("alice", "c1", 10)).await, ["done", "done"]);
    assert_eq!(available(&node, "alice").await, 96);
    // Nor that it would count against a budget. Accounts are locked in the order of their names: bea's is free meanwhile.
    let first = vec![mint("alice", 1, "m5"), mint("bea", 1, "m6"), commit("c2", 4)];
    let second = budgeted(reserve("bea", "c2", 10), "team");
    assert_eq!(overtaken(&world, "alice", first, second).await, ["done", "done", "done"]);
    assert_eq!(available(&node, "bea").await, 97);
    assert_eq!(world.number("SELECT total FROM holdfast.ledger_budgets WHERE budget = 'team'").await, 4);
    assert_eq!(world.number(DEADLOCKS).await, 0);
    checker::check(&world.admin).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_checker_sees_one_planted_difference_in_every_table() {
    let world = World::new().await;
    let node = world.node().await;
    done(&node, mint("alice", 100, "m")).await;
    done(&node, budgeted(reserve("alice", "c1", 10), "team")).await;
    done(&node, commit("c1", 4)).await;
    done(&node, hold("alice", "e1", 10)).await;
    done(&node, settle("e1", "paul")).await;
    let checked = checker::check(&world.admin).await.unwrap();
    assert_eq!((checked.entries, checked.owners, checked.lives), (5, 1, 2));
    let triggers = "ALTER TABLE holdfast.ledger_entries DISABLE TRIGGER ledger_entries_append_only";
    let last = "entry_offset = (SELECT max(entry_offset) FROM holdfast.ledger_entries)";
    for (planted, said) in [
        (
            "UPDATE holdfast.ledger_owners SET available = available + 1, revenue = revenue - 1".to_owned(),
            "owner alice",
        ),
        ("UPDATE holdfast.ledger_owners SET open_holds = 1".to_owned(), "owner alice"),
        (
            "INSERT INTO holdfast.ledger_milestones SELECT owner, last_offset, 1 FROM holdfast.ledger_owners"
                .to_owned(),
            "owner alice",
        ),
        (format!("{triggers}; UPDATE holdfast.ledger_entries SET previous = previous - 1 WHERE {last}"), "before it"),
        ("UPDATE holdfast.ledger_payees SET balance = balance + 1".to_owned(), "payee paul"),
        ("UPDATE holdfast.ledger_budgets SET total = total + 1".to_owned(), "budget team"),
        ("UPDATE holdfast.ledger_lives SET held = 1 WHERE life = 'c:c1'".to_owned(), "life c:c1"),
        ("UPDATE holdfast.ledger_lives SET records = records[1:1] WHERE life = 'c:c1'".to_owned(), "life c:c1"),
        ("DELETE FROM holdfast.ledger_lives WHERE life = 'e:e1'".to_owned(), "the number of rows for each life"),
        (
            format!(
                "{triggers}; UPDATE holdfast.ledger_entries SET chain = decode(repeat('00', 32), 'hex') WHERE {last}"
            ),
            "its link",
        ),
        (
            format!(
                "{triggers}; UPDATE holdfast.ledger_entries SET available = 1, treasury = treasury - 1 WHERE {last}"
            ),
            "what it changes",
        ),
        (format!("{triggers}; DELETE FROM holdfast.ledger_entries WHERE {last}"), "owner alice"),
    ] {
        world.admin.batch_execute(&format!("BEGIN; {planted}")).await.unwrap();
        let found = checker::check_within(&world.admin).await.unwrap_err();
        assert!(found.contains(said), "{planted}: {found}");
        world.admin.batch_execute("ROLLBACK").await.unwrap();
    }
    checker::check(&world.admin).await.unwrap();
}
