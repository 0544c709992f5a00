//! The way to the database is cut, the database is restarted, a node stands still, an answer never comes: nothing is lost, nothing
//! is done twice, nobody waits for ever.

use super::load::Load;
use super::proxy::{Cut, Proxy};
use super::{Heard, World, available, checker, code, done, mint, reserve};
use holdfast_engine::Outcome;
use rustix::process::{Pid, Signal, kill_process};
use std::sync::Arc;

#[tokio::test(flavor = "multi_thread")]
async fn d1_a_commit_whose_answer_is_lost_is_found_out() {
    let world = World::new().await;
    let proxy = Proxy::to(&world.server).await;
    let heard = Arc::new(Heard::default());
    let node = world.node_with(&proxy.url(), 1, Arc::clone(&heard)).await;
    // Each is met by the lane's next connection. The second request meets both others.
    proxy.cut_next(&[Cut::AnswerOfCommit(1), Cut::BeforeCommit(1), Cut::AfterCommit(1)]);
    let minted = node.submit(mint("alice", 100, "m1")).await;
    assert!(matches!(minted, Ok(Outcome::Applied(_))), "this one did it: {minted:?}");
    assert_eq!((proxy.cuts(), node.health().in_doubt), ((1, 1), 1), "it was done, and its answer lost");
    assert_eq!(world.number("SELECT count(*) FROM holdfast.ledger_entries").await, 1);
    let held = node.submit(reserve("alice", "c1", 30)).await;
    assert!(matches!(held, Ok(Outcome::Applied(_))), "{held:?}");
    assert_eq!((proxy.cuts(), node.health().in_doubt), ((3, 3), 3), "not done, then done or not");
    assert_eq!(world.number("SELECT count(*) FROM holdfast.ledger_entries").await, 2);
    done(&node, mint("alice", 7, "m2")).await;
    assert_eq!(node.health().in_doubt, 3);
    assert_eq!(heard.0.lock().unwrap().iter().filter(|said| *said == "InDoubt").count(), 3);
    assert_eq!(available(&node, "alice").await, 77);
    checker::check(&world.admin).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn d1_what_comes_to_the_database_after_it_was_given_up_is_not_admitted_any_more() {
    let world = World::new().await;
    let proxy = Proxy::to(&world.server).await;
    let (there, here) = (world.node().await, world.node_with(&proxy.url(), 1, Arc::default()).await);
    // Its second round is decided on what the node knows, and is one statement without locks before it.
    proxy.cut_next(&[Cut::Late(2)]);
    done(&here, mint("alice", 100, "m1")).await;
    done(&there, mint("bob", 100, "m2")).await;
    done(&there, reserve("bob", "c1", 5)).await;
    // When it asks again it hears of bob's charge, and moves nothing of alice's.
    assert_ne!(code(&here.submit(reserve("alice", "c1", 30)).await), "done");
    assert_eq!((proxy.cuts(), here.health().in_doubt), ((1, 1), 1));
    // So the fence is the first thing that is in the way of what comes now; the second would be the charge (23505).
    let said = proxy.let_through_late().await;
    assert!(said.contains("P7101") && said.contains("an owner has moved on"), "{said}");
    assert_eq!(world.number("SELECT count(*) FROM holdfast.ledger_entries").await, 3);
    done(&here, reserve("alice", "c2", 30)).await;
    assert_eq!((available(&here, "alice").await, available(&here, "bob").await), (70, 95));
    checker::check(&world.admin).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn d1_a_commit_that_was_lost_is_not_taken_for_another_that_got_its_place_after_a_crash() {
    let world = World::new().await;
    let proxy = Proxy::to(&world.server).await;
    let (other, node) = (world.node().await, Arc::new(world.node_with(&proxy.url(), 1, Arc::default()).await));
    proxy.cut_next(&[Cut::BeforeCommit(1)]);
    proxy.hold();
    let asker = Arc::clone(&node);
    let asked = tokio::spawn(async move { asker.submit(mint("alice", 100, "m1")).await });
    proxy.holds(1).await;
    // What a crash does to a sequence: numbers that no commit has made durable are given again.
    let again = "SELECT setval('holdfast.ledger_blocks', (SELECT last_value FROM holdfast.ledger_blocks), false)";
    world.number(again).await;
    done(&other, mint("bob", 70, "m2")).await;
    proxy.release();
    let minted = asked.await.unwrap();
    assert_eq!(node.health().in_doubt, 1);
    let receipt = minted.expect("is done").receipt().clone();
    let lasts = format!(
        "SELECT count(*) FROM holdfast.ledger_entries WHERE owner = 'alice' AND entry_offset = {}",
        receipt.offset
    );
    assert_eq!(world.number(&lasts).await, 1, "what it was told of");
    assert_eq!((available(&node, "alice").await, available(&node, "bob").await), (100, 70));
    checker::check(&world.admin).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn d1_a_commit_in_doubt_is_found_out_even_if_the_database_refuses_for_a_while() {
    let world = World::new().await;
    let proxy = Proxy::to(&world.server).await;
    let heard = Arc::new(Heard::default());
    let node = Arc::new(world.node_with(&proxy.url(), 1, Arc::clone(&heard)).await);
    proxy.cut_next(&[Cut::AnswerOfCommit(3)]);
    let funds = ["alice", "bob", "carol"].map(|owner| mint(owner, 100, owner));
    assert!(node.submit_batch(funds.into()).await.unwrap().iter().all(Result::is_ok));

    // While one waits for carol two more collect, of different callers: they go together.
    let (carol, alice) = (world.lock("carol").await, world.lock("alice").await);
    let ask = |owner: &str| {
        let (node, request) = (Arc::clone(&node), mint(owner, 10, &format!("{owner}-2")));
        tokio::spawn(async move { node.submit(request).await })
    };
    let first = ask("carol");
    world.until("SELECT count(*) FROM pg_stat_activity WHERE usename = 'node' AND wait_event_type = 'Lock'").await;
    let both = [ask("alice"), ask("bob")];
    while node.health().waiting < 2 {
        tokio::task::yield_now().await;
    }
    // The first one's commit has passed already, and waits for carol.
    proxy.hold();
    carol.batch_execute("COMMIT").await.unwrap();
    assert_eq!(code(&first.await.unwrap()), "done");
    alice.batch_execute("COMMIT").await.unwrap();
    proxy.holds(1).await;
    let may = "EXECUTE ON FUNCTION holdfast.ledger_open(text[], text[], text[], text[], text[], bigint[])";
    world.admin.batch_execute(&format!("REVOKE {may} FROM symphony_ledger")).await.unwrap();
    proxy.release();
    while !heard.0.lock().unwrap().iter().any(|said| said.starts_with("Refused")) {
        tokio::task::yield_now().await;
    }
    world.admin.batch_execute(&format!("GRANT {may} TO symphony_ledger")).await.unwrap();
    for asked in both {
        let answer = asked.await.unwrap();
        assert!(matches!(answer, Ok(Outcome::Applied(_))), "this one did it: {answer:?}");
    }
    assert_eq!((proxy.cuts(), node.health().in_doubt), ((1, 1), 1));
    assert_eq!((available(&node, "alice").await, available(&node, "bob").await), (110, 110), "once each");
    checker::check(&world.admin).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn d1_connections_cut_at_random_places_lose_nothing_and_do_nothing_twice() {
    let (mut cuts, mut commits_cut, mut in_doubt) = (0, 0, 0);
    let world = World::new().await;
    for seed in 1..=4 {
        let proxy = Proxy::to(&world.server).await;
        proxy.cut_by(seed);
        // The first connection only reads: whoever opens a node asks again.
        let node = loop {
            if let Ok(node) = world.try_node(&proxy.url(), 2).await {
                break Arc::new(node);
            }
        };
        let load = Load::begin(&[Arc::clone(&node)], 6, &format!("s{seed}"));
        load.reaches(180).await;
        proxy.calm();
        load.end(&world).await;
        let (of_seed, of_commits) = proxy.cuts();
        (cuts, commits_cut, in_doubt) = (cuts + of_seed, commits_cut + of_commits, in_doubt + node.health().in_doubt);
    }
    checker::check(&world.admin).await.unwrap();
    assert!(cuts > 50 && commits_cut > 30, "{cuts} cuts, {commits_cut} at a commit");
    assert!(in_doubt > 30, "{in_doubt} commits in doubt");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_restarted_under_load_has_all_that_was_acknowledged_once() {
    let mut world = World::new().await;
    let mut nodes = Vec::new();
    for _ in 0..3 {
        nodes.push(Arc::new(world.node().await));
    }
    let load = Load::begin(&nodes, 12, "r");
    for round in 1..=3 {
        load.reaches(round * 150).await;
        // Without a checkpoint, as if the power had gone.
        world.server.kill();
        world.server.start_again().unwrap();
    }
    load.reaches(600).await;
    world.admin = world.log_in("postgres").await;
    load.end(&world).await;
    let checked = checker::check(&world.admin).await.unwrap();
    assert!(checked.entries >= 600, "{checked:?}");
    assert!(nodes.iter().all(|node| node.health().is_reached));
}

#[tokio::test(flavor = "multi_thread")]
async fn s16_a_node_that_stands_still_loses_its_locks_and_is_told() {
    let world = World::new().await;
    let proxy = Proxy::to(&world.server).await;
    let (heard, other) = (Arc::new(Heard::default()), world.node().await);
    let still = Arc::new(world.node_with(&proxy.url(), 1, Arc::clone(&heard)).await);
    done(&other, mint("alice", 100, "m")).await;
    proxy.hold();
    let slow = Arc::clone(&still);
    let asked = tokio::spawn(async move { slow.submit(reserve("alice", "c1", 60)).await });
    // It holds the locks on alice's account, and goes no further.
    proxy.holds(1).await;
    assert_eq!(available(&other, "alice").await, 100, "looking waits for nobody");
    done(&other, reserve("alice", "c2", 70)).await;
    proxy.release();
    // What it decided was on an older book, and is not admitted: it decides again.
    assert_eq!(code(&asked.await.unwrap()), "INSUFFICIENT_BALANCE");
    assert_eq!((heard.0.lock().unwrap().len(), still.health().in_doubt), (1, 1));
    done(&still, reserve("alice", "c3", 30)).await;
    assert_eq!(available(&other, "alice").await, 0);
    checker::check(&world.admin).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn s16_a_session_that_opened_and_went_silent_is_ended_and_its_admission_with_it() {
    let world = World::new().await;
    let node = world.node().await;
    done(&node, mint("alice", 100, "m")).await;
    let silent = world.database("postgres").connect().await.unwrap();
    silent.batch_execute("SET idle_in_transaction_session_timeout = '500ms'; BEGIN").await.unwrap();
    let open = "SELECT * FROM holdfast.ledger_open('{alice}', '{}', '{}', '{}', '{}', '{}')";
    assert_eq!(silent.query(open, &[]).await.unwrap().len(), 2, "the owner, the block");
    done(&node, reserve("alice", "c1", 10)).await;
    let admit = "SELECT holdfast.ledger_admit(0, '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}')";
    let told = silent.batch_execute(admit).await.unwrap_err();
    assert!(told.is_closed() || told.code().is_some_and(|code| code.code() == "25P03"), "{told:?}");
    checker::check(&world.admin).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn d5_a_server_process_that_never_answers_is_left_and_another_one_asked() {
    let world = World::new().await;
    let node = world.node().await;
    done(&node, mint("alice", 100, "m")).await;
    let pids = world.admin.query("SELECT pid FROM pg_stat_activity WHERE usename = 'node'", &[]).await.unwrap();
    let pids: Vec<Pid> = pids.iter().map(|row| Pid::from_raw(row.get(0)).unwrap()).collect();
    assert!(pids.len() >= 2, "the reader and a lane");
    for pid in &pids {
        kill_process(*pid, Signal::STOP).unwrap();
    }
    let wanted = holdfast_engine::part::Wanted { owners: vec!["alice".parse().unwrap()], ..Default::default() };
    let (read, asked) = tokio::join!(
        node.look(&wanted, |view| view.balance("alice".parse().unwrap())),
        // Several at once.
        five_holds(&node)
    );
    assert_eq!(read.map(|_| ()).map_err(|refusal| refusal.code()), Err("SERVICE_DATABASE_UNAVAILABLE"));
    assert!(asked.iter().all(|code| *code == "done"), "{asked:?}");
    assert_eq!(available(&node, "alice").await, 95, "by another connection");
    for pid in &pids {
        // Those whose connection was closed meanwhile end when they go on.
        let _gone = kill_process(*pid, Signal::CONT);
    }
    checker::check(&world.admin).await.unwrap();
}

/// Five holds at once: whether each was made.
async fn five_holds(node: &holdfast_adapters::postgres::PostgresLedger) -> [&'static str; 5] {
    let hold = async |id: &str| code(&node.submit(reserve("alice", id, 1)).await);
    tokio::join!(hold("c1"), hold("c2"), hold("c3"), hold("c4"), hold("c5")).into()
}
