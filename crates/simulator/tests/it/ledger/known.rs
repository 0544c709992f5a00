//! What a node takes for known without asking: other nodes may have been there, and nobody may be told what is not so.

use super::proxy::Proxy;
use super::{World, available, checker, code, commit, done, mint, of_charge, reserve};
use holdfast_adapters::postgres::ledger::Until;
use holdfast_adapters::postgres::{self, PostgresLedger};
use holdfast_domain::{Account, charge};
use holdfast_engine::{Answer, Outcome};
use std::sync::Arc;

fn release(id: &str) -> holdfast_engine::Request {
    of_charge(id, charge::Command::Release)
}

fn is_replay(answer: &Answer) -> bool {
    matches!(answer, Ok(Outcome::Replayed(_)))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_charge_that_another_node_has_ended_is_not_ended_again() {
    let world = World::new().await;
    let (here, there) = (world.node().await, world.node().await);
    done(&here, mint("alice", 1_000, "m")).await;
    for id in ["c1", "c2", "c3"] {
        done(&here, reserve("alice", id, 100)).await;
        done(&there, commit(id, 40)).await;
    }
    assert!(is_replay(&here.submit(commit("c1", 40)).await), "the same again, of a charge that began here");
    assert_eq!(code(&here.submit(release("c2")).await), code(&there.submit(release("c2")).await));
    assert_ne!(code(&here.submit(commit("c3", 41)).await), "done", "another body");
    assert_eq!(available(&here, "alice").await, 1_000 - 3 * 40);
    checker::check(&world.admin).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_charge_that_is_there_is_not_taken_for_new() {
    let world = World::new().await;
    let (here, there) = (world.node().await, world.node().await);
    done(&here, mint("alice", 100, "m")).await;
    done(&there, reserve("alice", "c1", 90)).await;
    // There is no money for another one: only who looks sees that it is the same.
    assert!(is_replay(&here.submit(reserve("alice", "c1", 90)).await));
    assert_ne!(code(&here.submit(reserve("alice", "c1", 80)).await), "done", "another body");
    done(&there, commit("c1", 10)).await;
    assert!(is_replay(&here.submit(reserve("alice", "c1", 90)).await), "though there is money for another one now");
    let batch =
        vec![reserve("alice", "c2", 5), commit("c2", 5), reserve("alice", "c1", 90), reserve("alice", "c3", 86)];
    let answers = here.submit_batch(batch).await.unwrap();
    let codes: Vec<&str> = answers.iter().map(code).collect();
    assert_eq!(codes, ["done", "done", "done", "INSUFFICIENT_BALANCE"]);
    assert_eq!(answers.iter().map(is_replay).collect::<Vec<_>>(), [false, false, true, false]);
    assert_eq!(available(&here, "alice").await, 85);
    checker::check(&world.admin).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_that_another_node_moves_while_a_decision_on_it_is_on_its_way_is_decided_on_again() {
    let world = World::new().await;
    let proxy = Proxy::to(&world.server).await;
    let (there, here) = (world.node().await, Arc::new(world.node_with(&proxy.url(), 1, Arc::default()).await));
    done(&here, mint("alice", 100, "m")).await;
    done(&here, reserve("alice", "c1", 10)).await;
    proxy.hold();
    let asker = Arc::clone(&here);
    let asked = tokio::spawn(async move { asker.submit(reserve("alice", "c2", 60)).await });
    proxy.holds(1).await;
    done(&there, reserve("alice", "c3", 70)).await;
    proxy.release();
    assert_eq!(code(&asked.await.unwrap()), "INSUFFICIENT_BALANCE");
    assert_eq!(available(&here, "alice").await, 20);
    done(&here, commit("c1", 10)).await;
    checker::check(&world.admin).await.unwrap();
}

/// All of an owner's history, from the newest on, `at_most` at a time.
async fn in_pages(node: &PostgresLedger, owner: &str, at_most: usize) -> Vec<u64> {
    let account = Account::Available(owner.parse().unwrap());
    let (mut found, mut until) = (Vec::new(), Until::Offset(u64::MAX));
    loop {
        let page = node.history(&account, until, at_most).await.unwrap().unwrap();
        let Some(last) = page.last() else { return found };
        assert!(page.len() <= at_most);
        until = Until::Offset(last.offset - 1);
        found.extend(page.iter().map(|record| record.offset));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_history_is_found_whole_by_pages_of_any_size_and_as_of_any_moment() {
    let world = World::new().await;
    let node = world.node().await;
    for round in 0..90 {
        // Some rounds write one entry of hers, some many.
        let many = if round % 30 == 7 { 250 } else { 1 };
        let batch = (0..many).map(|number| mint("alice", 1, &format!("a{round}-{number}")));
        let batch = batch.chain([mint("bob", 1, &format!("b{round}"))]).collect();
        assert!(node.submit_batch(batch).await.unwrap().iter().all(Result::is_ok));
    }
    let all = "SELECT entry_offset FROM holdfast.ledger_entries WHERE owner = 'alice' ORDER BY entry_offset DESC";
    let all: Vec<u64> =
        world.admin.query(all, &[]).await.unwrap().iter().map(|row| row.get::<_, i64>(0).cast_unsigned()).collect();
    assert_eq!(all.len(), 87 + 3 * 250);
    for at_most in [7, 32, 100, 256, 257, 1_000] {
        assert_eq!(in_pages(&node, "alice", at_most).await, all, "by {at_most}");
    }
    assert_eq!(world.number("SELECT count(*) FROM holdfast.ledger_milestones WHERE owner = 'alice'").await, 837 / 256);
    let account = Account::Available("alice".parse().unwrap());
    for record in node.history(&account, Until::Offset(u64::MAX), 1_000).await.unwrap().unwrap().iter().step_by(20) {
        let then = node.history(&account, Until::Moment(record.at), 1).await.unwrap().unwrap();
        assert_eq!(then[0].at, record.at);
        assert!(then[0].offset >= record.offset);
    }
    checker::check(&world.admin).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_history_of_owners_from_before_it_was_a_chain_is_carried_over() {
    let world = World::new().await;
    world.admin.batch_execute("CREATE DATABASE older").await.unwrap();
    let mut older = world.log_in("older").await;
    let before = postgres::ALL.iter().position(|migration| migration.name == "ledger_rounds").unwrap();
    postgres::migrate(&mut older, &postgres::ALL[..before]).await.unwrap();
    let entries = "INSERT INTO holdfast.ledger_entries
        SELECT number, number, 1, 0, 0, 0, 0, -1, 'credit_mint', CASE WHEN number % 5 = 0 THEN 'bob' ELSE 'alice' END, NULL,
               'k' || number, NULL, '\\x00', decode(repeat('00', 32), 'hex') FROM generate_series(1, 700) AS number;
        INSERT INTO holdfast.ledger_owners
        SELECT owner, count(*), 0, 0, 0, 0, -count(*), 0, count(*), max(entry_offset), max(at), decode(repeat('00', 32), 'hex')
          FROM holdfast.ledger_entries GROUP BY owner";
    older.batch_execute(entries).await.unwrap();
    postgres::migrate(&mut older, &postgres::ALL).await.unwrap();
    let chained = "SELECT bool_and(entry.previous = known.previous) FROM holdfast.ledger_entries AS entry
        JOIN (SELECT entry_offset, lag(entry_offset, 1, 0::bigint) OVER (PARTITION BY owner ORDER BY entry_offset) AS previous
                FROM holdfast.ledger_entries) AS known USING (entry_offset)";
    assert!(older.query_one(chained, &[]).await.unwrap().get::<_, bool>(0));
    let milestones = "SELECT owner, entry_offset, at FROM holdfast.ledger_milestones ORDER BY entry_offset";
    let milestones = older.query(milestones, &[]).await.unwrap();
    let milestones: Vec<(String, i64, i64)> =
        milestones.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect();
    // Four of five are hers: her 256th is the 320th minus its fifths.
    assert_eq!(milestones, [("alice".to_owned(), 319, 319), ("alice".to_owned(), 639, 639)]);
    let change = "UPDATE holdfast.ledger_entries SET previous = 0";
    assert_eq!(older.batch_execute(change).await.unwrap_err().code().map(|code| code.code()), Some("P0001"));
}
