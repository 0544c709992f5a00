//! Several nodes, one book.

use super::{World, available, code, commit, done, mint, of_charge, reserve};
use holdfast_adapters::postgres::PostgresLedger;
use holdfast_domain::{Span, charge};
use holdfast_engine::part::Wanted;
use holdfast_engine::{Command, Outcome, Request};
use std::collections::HashSet;
use std::sync::Arc;
use tokio::task::JoinSet;

/// Submits all of these at once, in turns to each node.
async fn at_once(nodes: &[Arc<PostgresLedger>], requests: Vec<Request>) -> Vec<holdfast_engine::Answer> {
    let mut running = JoinSet::new();
    for (number, request) in requests.into_iter().enumerate() {
        let node = Arc::clone(&nodes[number % nodes.len()]);
        running.spawn(async move { node.submit(request).await });
    }
    running.join_all().await
}

async fn three(world: &World) -> Vec<Arc<PostgresLedger>> {
    let mut nodes = Vec::new();
    for _ in 0..3 {
        nodes.push(Arc::new(world.node().await));
    }
    nodes
}

#[tokio::test(flavor = "multi_thread")]
async fn a_charge_goes_its_way_and_the_peer_is_owed_it_by_the_same_commit() {
    let world = World::new().await;
    let node = world.node().await;
    let minted = node.submit(mint("alice", 1_000, "m1")).await.unwrap();
    assert!(matches!(minted, Outcome::Applied(_)));
    assert_eq!(node.submit(mint("alice", 1_000, "m1")).await.unwrap().receipt(), minted.receipt());
    assert_eq!(code(&node.submit(mint("alice", 999, "m1")).await), "ALREADY_USED_KEY");
    assert_eq!(code(&node.submit(reserve("bob", "c0", 1)).await), "ACCOUNT_NOT_FOUND");
    let held = node.submit(reserve("alice", "c1", 600)).await.unwrap();
    assert_eq!((held.receipt().available.units(), held.receipt().held.units()), (400, 600));
    assert_eq!(code(&node.submit(reserve("alice", "c2", 401)).await), "INSUFFICIENT_BALANCE");
    assert_eq!(world.number("SELECT count(*) FROM holdfast.payment_outbox_queue").await, 0);
    let charged = node.submit(commit("c1", 450)).await.unwrap();
    assert_eq!((charged.receipt().available.units(), charged.receipt().held.units()), (550, 0));
    assert_eq!(node.submit(commit("c1", 450)).await.unwrap().receipt(), charged.receipt());
    assert_eq!(code(&node.submit(commit("c1", 451)).await), "INVALID_STATE");
    assert_eq!(code(&node.submit(of_charge("c9", charge::Command::Release)).await), "RESERVATION_NOT_FOUND");
    let owed = world
        .admin
        .query_one(
            "SELECT instruction_id, participant_id, payload->>'actual_cost_micro' \
                                        FROM holdfast.payment_outbox_pending",
            &[],
        )
        .await
        .unwrap();
    assert_eq!((owed.get::<_, &str>(0), owed.get::<_, &str>(1), owed.get::<_, &str>(2)), ("c1", "alice", "450"));
    let totals = node.totals().await.unwrap();
    assert_eq!((totals.revenue.units(), totals.treasury.units(), totals.imbalance), (450, -1_000, 0));
    assert_eq!((totals.owners, totals.open_charges), (1, 0));
    let wanted = Wanted { charges: vec!["c1".parse().unwrap()], ..Wanted::default() };
    let life = node.look(&wanted, |view| view.life("c1".parse().unwrap())).await.unwrap().unwrap();
    assert_eq!(life.iter().map(|record| record.state.name()).collect::<Vec<_>>(), ["RESERVE_HELD", "FINALIZE_PENDING"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn three_nodes_admit_exactly_what_a_balance_covers() {
    let world = World::new().await;
    let nodes = three(&world).await;
    done(&nodes[0], mint("alice", 100, "m")).await;
    let requests = (0..1_000).map(|number| reserve("alice", &format!("c{number}"), 1)).collect();
    let answers = at_once(&nodes, requests).await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 100);
    assert_eq!(answers.iter().filter(|answer| code(answer) == "INSUFFICIENT_BALANCE").count(), 900);
    assert_eq!(available(&nodes[1], "alice").await, 0);
    assert_eq!(nodes[2].totals().await.unwrap().imbalance, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_key_sent_to_three_nodes_at_once_has_one_effect_and_equal_answers() {
    let world = World::new().await;
    let nodes = three(&world).await;
    let answers = at_once(&nodes, (0..300).map(|_| mint("alice", 7, "once")).collect()).await;
    let receipts: Vec<_> = answers.iter().map(|answer| answer.as_ref().unwrap().receipt()).collect();
    assert!(receipts.iter().all(|receipt| *receipt == receipts[0]));
    let applied = answers.iter().filter(|answer| matches!(answer, Ok(Outcome::Applied(_)))).count();
    assert_eq!((applied, available(&nodes[0], "alice").await), (1, 7));
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_decided_first_wins_and_the_others_are_told() {
    let world = World::new().await;
    let nodes = three(&world).await;
    done(&nodes[0], mint("alice", 100_000, "m")).await;
    for number in 0..30 {
        let id = format!("c{number}");
        done(&nodes[0], reserve("alice", &id, 100)).await;
        let ways = vec![commit(&id, 60), of_charge(&id, charge::Command::Release), commit(&id, 61)];
        let answers = at_once(&nodes, ways).await;
        let codes: Vec<_> = answers.iter().map(code).collect();
        assert_eq!(codes.iter().filter(|code| **code == "done").count(), 1, "{codes:?}");
        assert_eq!(codes.iter().filter(|code| **code == "INVALID_STATE").count(), 2, "{codes:?}");
    }
    let totals = nodes[0].totals().await.unwrap();
    assert_eq!((totals.imbalance, totals.open_charges), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_accounts_on_three_nodes_end_where_one_book_would() {
    let world = World::new().await;
    let nodes = three(&world).await;
    let funds = (0..20).map(|number| mint(&format!("o{number}"), 1_000, &format!("m{number}"))).collect();
    assert!(at_once(&nodes, funds).await.iter().all(Result::is_ok));
    let reserves = (0..600).map(|number| reserve(&format!("o{}", number % 20), &format!("c{number}"), 10)).collect();
    assert!(at_once(&nodes, reserves).await.iter().all(Result::is_ok));
    let commits = (0..600).map(|number| commit(&format!("c{number}"), number % 11)).collect();
    assert!(at_once(&nodes, commits).await.iter().all(Result::is_ok));
    let charged: u64 = (0..600_u64).map(|number| number % 11).sum();
    let totals = nodes[1].totals().await.unwrap();
    assert_eq!((totals.revenue.units().cast_unsigned(), totals.imbalance, totals.open_charges), (charged, 0, 0));
    let offsets = nodes[0].tail(0, 10_000).await.unwrap();
    assert_eq!(offsets.iter().map(|record| record.offset).collect::<HashSet<_>>().len(), 1_220);
    let deadlocks = world.number("SELECT deadlocks FROM pg_stat_database WHERE datname = 'postgres'").await;
    assert_eq!(deadlocks, 0);
    assert_eq!(world.number("SELECT count(*) FROM holdfast.payment_outbox_queue").await, 600);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_whose_time_has_come_is_given_back_by_any_node() {
    let world = World::new().await;
    let nodes = three(&world).await;
    done(&nodes[0], mint("alice", 100, "m")).await;
    done(&nodes[0], reserve("alice", "c0", 10)).await;
    assert_eq!(nodes[1].expire("expiry".parse().unwrap(), 10).await.unwrap(), 0);
    let mut soon = reserve("alice", "c1", 60);
    if let Command::Reserve { reserve, .. } = &mut soon.command {
        reserve.ttl = Span::from_millis(1);
    }
    done(&nodes[1], soon).await;
    let mut given_back = 0;
    while given_back == 0 {
        for node in &nodes {
            given_back += node.expire("expiry".parse().unwrap(), 10).await.unwrap();
        }
    }
    assert_eq!((given_back, available(&nodes[0], "alice").await), (1, 90));
    let open = nodes[0].open_charges(None, 10).await.unwrap();
    assert_eq!(open.iter().map(|(id, ..)| id.to_string()).collect::<Vec<_>>(), ["c0"]);
}
