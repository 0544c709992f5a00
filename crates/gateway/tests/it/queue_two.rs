//! Queue and wallet through crashes and as two processes: whichever is killed wherever, the item ends as its escrow did, and the
//! money moves once.

use crate::queue_world::{Half, Mode, Site, intake, money, refused, with};
use crate::settlement_world::until;
use serde_json::{Value, json};

/// An operation, its body, the state that it leaves an item in, and what it costs alice, which mia earns.
type End = (&'static str, Value, &'static str, u64);

/// The ends of an item of ten, and what each leaves.
fn ends() -> [End; 3] {
    let partial = json!({ "settleAmount": "4", "refundAmount": "6", "reason": "quality_issue" });
    [
        ("finish", json!({}), "finished", 10),
        ("abandon", json!({ "reason": "user_disconnected" }), "abandoned", 0),
        ("partial", partial, "partial", 4),
    ]
}

/// Whether a process that is killed there has told the books of the end.
fn has_ended(failpoint: &str) -> bool {
    match failpoint {
        "queue.before_carry_out" | "wallet.before_order" => false,
        "wallet.after_order" | "queue.after_carry_out" | "queue.after_end" => true,
        _ => unreachable!("{failpoint} is not known here"),
    }
}

/// Kills the process at `failpoint` while an item ends, and looks what became of it.
fn killed_at(site: &mut Site, failpoint: &str, (what, body, state, cost): End) {
    let whole = |text: &str| text.parse::<u64>().unwrap();
    let (available, _, earned) = site.money();
    let (available, earned) = (whole(&available), whole(&earned));
    let id = site.started();
    let kills_the_wallet = failpoint.starts_with("wallet.");
    let half = if kills_the_wallet { &mut site.wallet } else { site.queue_half_mut() };
    half.crash();
    half.start(Some(failpoint));
    let path = format!("items/{id}/{what}");
    if site.queue.is_some() && kills_the_wallet {
        // The queue outlives its wallet, and says that it does not answer.
        let answer = site.post(&path, &body);
        refused(&answer, 503, "SERVICE_WALLET_UNREACHABLE");
        assert!(answer.headers.contains_key("retry-after"));
        site.wallet.killed();
        site.wallet.start(None);
    } else {
        assert!(!site.is_answered(&path, &body), "{failpoint}: it was killed before it could answer");
        site.queue_half_mut().killed();
        site.queue_half_mut().start(None);
    }
    let case = format!("{failpoint} {what}");
    if has_ended(failpoint) {
        until(|| site.status(&id), |status| status == state);
        let again = site.post(&path, &body);
        refused(&again, 409, "INVALID_QUEUE_STATE");
    } else {
        let held = money(&(available - 10).to_string(), "10", &earned.to_string());
        assert_eq!((site.status(&id), site.money()), ("in_progress".to_owned(), held), "{case}");
        site.done(&id, what, body);
    }
    let (item, left) = (site.item(&id), money(&(available - cost).to_string(), "0", &(earned + cost).to_string()));
    assert_eq!((item["status"].as_str().unwrap(), site.money()), (state, left), "{case}");
    assert_eq!(
        item["completedAt"],
        site.wallet_get(&format!("escrows/{}", item["escrowId"].as_str().unwrap())).body["processedAt"]
    );
    site.check_books();
}

/// Every end, killed at every failpoint between the queue's word and its own note of it.
fn killed_everywhere(mode: Mode) {
    let mut site = Site::open(mode, &[]);
    for failpoint in [
        "queue.before_carry_out",
        "wallet.before_order",
        "wallet.after_order",
        "queue.after_carry_out",
        "queue.after_end",
    ] {
        for end in ends() {
            killed_at(&mut site, failpoint, end);
        }
    }
}

#[test]
fn a_kill_between_the_wallets_act_and_the_queues_own_leaves_one_end_in_one_process() {
    killed_everywhere(Mode::One);
}

#[test]
fn a_kill_of_either_process_leaves_one_end_in_two() {
    killed_everywhere(Mode::Two);
}

#[test]
fn a_kill_of_a_node_leaves_one_end_in_postgres() {
    killed_everywhere(Mode::Node);
}

#[test]
fn error_propagation_from_a_wallet_that_is_away_and_back() {
    let mut site = Site::open(Mode::Two, &[]);
    let (id, waiting, escrow) = (site.started(), site.enqueue(), site.hold());
    site.wallet.crash();
    for (path, body) in [(format!("items/{id}/finish"), json!({})), ("items".to_owned(), intake(&escrow))] {
        let answer = site.post(&path, &body);
        refused(&answer, 503, "SERVICE_WALLET_UNREACHABLE");
        assert_eq!(answer.headers["retry-after"], "1");
    }
    // What needs no wallet goes on without one.
    assert_eq!(site.done(&waiting, "start", json!({}))["status"], "in_progress");
    assert_eq!(site.status(&id), "in_progress");
    site.wallet.start(None);
    site.done(&id, "finish", json!({}));
    assert_eq!(site.post("items", &intake(&escrow)).status, 201);
    assert_eq!(site.money(), money("70", "20", "10"));
}

#[test]
fn authorization_validation_between_two_processes() {
    let mut site = Site::shut(Mode::Two, &[]);
    site.queue_half_mut().set("HOLDFAST_QUEUE_SECRET", "another-secret-that-the-wallet-does-not-have-0123456789");
    site.start();
    let id = site.started();
    for (what, body, _, _) in ends() {
        refused(&site.post(&format!("items/{id}/{what}"), &body), 403, "INVALID_AUTHORIZATION");
    }
    assert_eq!((site.status(&id), site.money()), ("in_progress".to_owned(), money("90", "10", "0")));
    // Secrets are exchanged one by one: the wallet learns the new one first.
    let both_secrets = format!(
        "old:{},queue:{}",
        crate::queue_world::SECRET,
        "another-secret-that-the-wallet-does-not-have-0123456789"
    );
    site.wallet.crash();
    site.wallet.set("HOLDFAST_QUEUE_SECRET", &both_secrets);
    site.wallet.start(None);
    site.done(&id, "finish", json!({}));
    assert_eq!(site.money(), money("90", "0", "10"));
}

#[test]
fn a_wallet_that_does_not_know_the_queue_is_told_of_and_nothing_moves() {
    let mut site = Site::shut(Mode::Two, &[]);
    site.queue_half_mut().set("HOLDFAST_QUEUE_WALLET_AUDIENCE", "somebody-else");
    site.start();
    let answer = site.post("items", &intake(&site.hold()));
    refused(&answer, 503, "SERVICE_WALLET_UNREACHABLE");
    let message = answer.body["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("HOLDFAST_JWKS") && message.contains("AUTH_INVALID_TOKEN"), "{message}");
}

#[test]
fn each_role_serves_its_own_part_and_says_what_it_needs() {
    let site = Site::open(Mode::Two, &[]);
    let status = |half: &Half, path: &str| {
        let url = format!("{}{path}", half.server().url());
        reqwest::blocking::Client::new().get(url).bearer_auth(&half.token).send().unwrap().status().as_u16()
    };
    let queue = site.queue.as_ref().unwrap();
    for (path, at_queue, at_wallet) in [
        ("/api/v1/queue/items", 200, 404),
        ("/api/v1/escrows", 404, 200),
        ("/api/v1/accounts/alice/balance", 404, 200),
        ("/v1/models", 404, 401),
        ("/health", 200, 200),
        ("/metrics", 200, 200),
        ("/docs", 200, 200),
        ("/.well-known/jwks.json", 200, 200),
    ] {
        assert_eq!((status(queue, path), status(&site.wallet, path)), (at_queue, at_wallet), "{path}");
    }
    let off = site.wallet.server().client().ask(json!({ "op": "queue_list" }));
    assert_eq!(off["error"]["code"], "QUEUE_OFF");
    for (role, missing) in [
        ("queue", "HOLDFAST_QUEUE_SECRET"),
        ("queue", "HOLDFAST_QUEUE_WALLET_URL"),
        ("wallet", "HOLDFAST_QUEUE_SECRET"),
    ] {
        let mut site = Site::shut(Mode::Two, &[]);
        let half = if role == "queue" { site.queue_half_mut() } else { &mut site.wallet };
        half.set(missing, "");
        let said = half.refused();
        assert!(said.contains("INVALID_SETTING") && said.contains(missing), "{role} without {missing}: {said}");
    }
    let mut one = Site::shut(Mode::One, &[]);
    one.wallet.set("HOLDFAST_QUEUE_WALLET_URL", "http://127.0.0.1:1");
    assert!(one.wallet.refused().contains("--role queue"));
    one.wallet.set("HOLDFAST_QUEUE_WALLET_URL", "");
    one.wallet.set("HOLDFAST_QUEUE_ROPE_DROP", "soon");
    assert!(one.wallet.refused().contains("solo=5m"));
}

#[test]
fn items_wait_through_restarts_and_overdue_ones_are_dropped_after_one() {
    for mode in Mode::ALL {
        let mut site = Site::open(mode, &[("HOLDFAST_QUEUE_ROPE_DROP", "group=1s")]);
        let (waiting, started) = (site.enqueue(), site.started());
        let body = with(intake(&site.hold_of("alice", "10", "group")), &json!({ "featureType": "group" }));
        let dropped = site.post("items", &body).body["queueItemId"].as_str().unwrap().to_owned();
        site.queue_half_mut().crash();
        site.queue_half_mut().start(None);
        assert_eq!((site.status(&waiting), site.status(&started)), ("queued".to_owned(), "in_progress".to_owned()));
        until(|| site.status(&dropped), |status| status == "abandoned");
        site.done(&started, "finish", json!({}));
        site.queue_half_mut().server.take().unwrap().stop();
        site.queue_half_mut().start(None);
        assert_eq!((site.status(&waiting), site.status(&started)), ("queued".to_owned(), "finished".to_owned()));
    }
}

#[test]
fn what_a_node_was_killed_in_the_middle_of_another_node_finishes() {
    let mut site = Site::open(Mode::Node, &[]);
    let id = site.started();
    site.wallet.crash();
    site.wallet.start(Some("queue.after_carry_out"));
    assert!(!site.is_answered(&format!("items/{id}/finish"), &json!({})));
    site.wallet.killed();
    let mut second = Site::shut(Mode::One, &[]);
    second.wallet.set("HOLDFAST_DATABASE_URL", &site.database.as_ref().unwrap().url());
    second.wallet.start(None);
    until(|| second.status(&id), |status| status == "finished");
    assert_eq!(second.money(), money("90", "0", "10"));
    second.check_books();
}
