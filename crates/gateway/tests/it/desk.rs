//! An operator and the queue: its commands, escrows that no item has, and the console's section.

use crate::console::{browser, cookie};
use crate::http_world;
use crate::queue_world::{Mode, Site, everywhere, intake, with};
use crate::world::World;
use reqwest::blocking::Response;
use serde_json::{Value, json};

/// Every held escrow without an item is an orphan at once.
const AT_ONCE: [(&str, &str); 1] = [("HOLDFAST_QUEUE_ORPHAN_AFTER", "0s")];

/// What one field of a list says, row by row.
fn fields<'a>(answer: &'a Value, list: &str, field: &str) -> Vec<&'a str> {
    answer[list].as_array().unwrap().iter().map(|row| row[field].as_str().unwrap()).collect()
}

/// An item of ten of alice's for a payee, with a priority.
fn item_for(site: &Site, payee: &str, priority: i32) -> String {
    let body = with(intake(&site.hold()), &json!({ "modelId": payee, "priority": priority }));
    let made = site.post("items", &body);
    assert_eq!(made.status, 201, "{made:?}");
    made.body["queueItemId"].as_str().unwrap().to_owned()
}

#[test]
fn an_operator_sees_who_waits_and_in_which_order() {
    everywhere(|site| {
        let world = &site.queue_half().world;
        assert_eq!(world.ok(&["queue", "list"]), "no such items\n");
        let (first, second, third) = (item_for(&site, "mia", 0), item_for(&site, "mia", 5), item_for(&site, "zoe", 0));
        let listed = world.json(&["queue", "list"]);
        assert_eq!(fields(&listed, "items", "queueItemId"), [&second, &first, &third]);
        assert_eq!(fields(&world.json(&["queue", "list", "--payee", "zoe"]), "items", "queueItemId"), [&third]);
        let shown = world.ok(&["queue", "list", "--limit", "1"]);
        assert!(shown.starts_with("item") && shown.contains(&second), "{shown}");
        assert!(shown.contains(&format!("more: --after {second}")), "{shown}");
        let rest = world.json(&["queue", "list", "--after", &second]);
        assert_eq!(fields(&rest, "items", "queueItemId"), [&first, &third]);

        let taken = world.ok(&["queue", "next", "mia"]);
        assert!(taken.contains(&format!("holdfast queue finish {second}")), "{taken}");
        assert_eq!(world.json(&["queue", "start", &first])["status"], "in_progress");
        assert_eq!(world.ok(&["queue", "next", "mia"]), "nothing waits\n");
        assert_eq!(world.json(&["queue", "next", "nobody"])["queueItemId"], Value::Null);
        let waiting = world.json(&["queue", "list", "--state", "queued"]);
        assert_eq!(fields(&waiting, "items", "queueItemId"), [&third]);
        assert_eq!(world.json(&["queue", "show", &first])["status"], "in_progress");
        assert!(world.ok(&["queue", "show", &first]).contains("in_progress"));
    });
}

#[test]
fn an_operator_ends_items_and_the_money_follows() {
    everywhere(|site| {
        let world = &site.queue_half().world;
        let [done, gone, divided, waits] = std::array::from_fn(|_| site.enqueue());
        for id in [&done, &divided] {
            world.ok(&["queue", "start", id]);
        }
        let finished = world.json(&["queue", "finish", &done]);
        assert_eq!((&finished["status"], &finished["settlement"]["status"]), (&json!("finished"), &json!("settled")));
        let shown = world.ok(&["queue", "abandon", &gone]);
        assert!(shown.contains("abandoned") && shown.contains("admin_cancelled"), "{shown}");
        let partial = world.json(&["queue", "partial", &divided, "6", "4", "--reason", "quality_issue"]);
        assert_eq!((&partial["settleAmount"], &partial["refundAmount"]), (&json!("6"), &json!("4")));
        assert_eq!(partial["statusReason"], "quality_issue");
        let (available, _, earned) = site.money();
        assert_eq!((available.as_str(), earned.as_str()), ("74", "16"), "10 wait, 16 were earned");
        let ended = world.json(&["queue", "list", "--state", "abandoned"]);
        assert_eq!(fields(&ended, "items", "statusReason"), ["admin_cancelled"]);

        assert_eq!(world.refused(&["queue", "show", "qi_none"]), "QUEUE_ITEM_NOT_FOUND");
        assert_eq!(world.refused(&["queue", "finish", &waits]), "INVALID_QUEUE_STATE");
        assert_eq!(world.refused(&["queue", "abandon", &done]), "INVALID_QUEUE_STATE");
        world.ok(&["queue", "start", &waits]);
        assert_eq!(world.refused(&["queue", "partial", &waits, "6", "5"]), "INVALID_SPLIT");
        assert_eq!(world.refused(&["queue", "partial", &waits, "six", "4"]), "INVALID_AMOUNT");
        for words in [
            &["queue", "abandon", &waits, "--reason", "performance_completed"][..],
            &["queue", "list", "--state", "gone"],
        ] {
            assert_eq!(world.run(words).code, Some(2), "{words:?}");
        }
        assert_eq!(site.status(&waits), "in_progress", "nothing was done");
        site.check_books();
    });
}

#[test]
fn orphans_are_found_and_given_back_by_command() {
    for mode in [Mode::One, Mode::Two] {
        let mut site = Site::open(mode, &AT_ONCE);
        let (linked, orphan) = (site.hold(), site.hold());
        assert_eq!(site.post("items", &intake(&linked)).status, 201);
        let world = &site.queue_half().world;
        let found = world.json(&["escrows", "orphans"]);
        assert_eq!(fields(&found, "orphans", "escrowId"), [&orphan]);
        let shown = world.ok(&["escrows", "orphans"]);
        assert!(shown.contains(&orphan) && shown.contains("holdfast escrows refund ID"), "{shown}");

        let refused = world.run(&["escrows", "refund", &linked]);
        assert!(refused.stderr.starts_with("error[ESCROW_LINKAGE_ERROR]"), "{refused:?}");
        assert!(refused.stderr.contains("holdfast queue abandon ITEM"), "{refused:?}");
        assert_eq!(world.refused(&["escrows", "refund", "esc_none"]), "ESCROW_NOT_FOUND");
        let given_back = world.json(&["escrows", "refund", &orphan, "--yes"]);
        assert_eq!(given_back["settlement"]["status"], "refunded", "{given_back}");
        assert_eq!(world.refused(&["escrows", "refund", &orphan]), "INVALID_QUEUE_STATE", "once only");
        assert!(world.ok(&["escrows", "orphans"]).starts_with("none"), "nothing is left");
        let late = site.post("items", &intake(&orphan));
        assert_eq!((late.status, late.code()), (409, "ESCROW_LINKAGE_ERROR"), "nobody can take it in any more");

        let escrow = site.wallet.world.json(&["escrows", "show", &orphan]);
        assert_eq!((&escrow["state"], &escrow["returned_cu"]), (&json!("refunded"), &json!("10")));
        assert_eq!(
            (&escrow["queue_item_id"], &escrow["reason"]),
            (&given_back["queueItemId"], &json!("admin_cancelled"))
        );
        assert!(escrow["held_at"].as_str() <= escrow["ended_at"].as_str(), "{escrow}");
        assert_eq!(site.money().0, "90");
        site.check_books();
        let said = site.queue_half_mut().server.take().unwrap().stop();
        assert!(said.contains(&format!("operator has given back escrow {orphan}, ")), "{said}");
    }
}

#[test]
fn without_a_queue_the_ledger_gives_escrows_back() {
    let world = World::with_alice();
    let hold = |id: &str| world.ok(&["escrows", "hold", "alice", "10", "--feature", "solo", "--id", id]);
    hold("one");
    for words in [&["queue", "list"][..], &["queue", "next", "mia"], &["escrows", "orphans"]] {
        assert_eq!(world.refused(words), "QUEUE_OFF");
        assert!(world.run(words).stderr.contains("hint: start the server"), "{words:?}");
    }
    assert_eq!(world.json(&["escrows", "refund", "one"])["state"], "refunded");
    let shown = world.json(&["escrows", "show", "one"]);
    assert_eq!((&shown["state"], shown.get("queue_item_id")), (&json!("refunded"), None));

    let site = Site::open(Mode::Two, &[]);
    let escrow = site.hold();
    // One line, though the wallet's process says first that it has no queue.
    assert_eq!(site.wallet.world.json(&["escrows", "refund", &escrow])["state"], "refunded");
}

#[test]
fn an_item_follows_an_escrow_that_was_ended_past_the_queue() {
    let site = Site::open(Mode::One, &[]);
    let id = site.started();
    let escrow = site.item(&id)["escrowId"].as_str().unwrap().to_owned();
    let world = &site.wallet.world;
    assert_eq!(world.json(&["escrows", "refund", &escrow, "--key", "by-hand"])["state"], "refunded");
    let item = world.json(&["queue", "show", &id]);
    assert_eq!((&item["status"], &item["statusReason"]), (&json!("abandoned"), &json!("admin_cancelled")));
    assert_eq!(site.money().0, "100");
}

fn location(response: &Response) -> (u16, &str) {
    (response.status().as_u16(), response.headers().get("location").map_or("", |to| to.to_str().unwrap()))
}

#[test]
fn the_console_shows_the_queue_and_refunds_for_its_operator_alone() {
    let site = http_world::Site::with_settings(&AT_ONCE);
    let hold = |key: &str| {
        let body = json!({ "userId": "alice", "amount": "10", "featureType": "solo", "idempotencyKey": key });
        site.post("/api/v1/escrows", &body).body["escrowId"].as_str().unwrap().to_owned()
    };
    let enqueue = |escrow: &str| {
        let item = site.post("/api/v1/queue/items", &intake(escrow));
        item.body["queueItemId"].as_str().unwrap().to_owned()
    };
    let session = cookie(&site);
    let look = || browser().get(site.url("/console")).header("cookie", &session).send().unwrap().text().unwrap();
    assert!(look().contains("0 queued, 0 in progress</p>"), "{}", look());
    let (orphan, waits, gone) = (hold("a"), enqueue(&hold("b")), enqueue(&hold("c")));
    let body = json!({ "reason": "performer_declined" });
    assert_eq!(site.post(&format!("/api/v1/queue/items/{gone}/abandon"), &body).status, 200);
    let page = look();
    assert!(page.contains("1 escrow is held, and no queue item has it."), "{page}");
    assert!(page.contains("1 queued, 0 in progress, the oldest for "), "{page}");
    assert!(page.contains(&format!("name=\"id\" value=\"{orphan}\"><button>Give 10 back to alice</button>")), "{page}");
    assert!(page.contains(&format!("<td class=\"id\">{waits}</td><td>mia</td>")), "{page}");
    assert!(page.contains("<td>abandoned</td><td>performer declined</td>"), "{page}");
    assert!(!page.contains(" style=") && !page.contains(" onclick="), "the policy would not allow it");

    let refund = |id: &str, headers: &[(&str, &str)]| {
        let request = browser().post(site.url("/console/escrows/refund")).body(format!("id={id}"));
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        headers.iter().fold(request, |request, (name, value)| request.header(*name, *value)).send().unwrap()
    };
    let stranger = refund(&orphan, &[("sec-fetch-site", "same-origin")]);
    assert_eq!(location(&stranger), (303, "/console/login"));
    let foreign = refund(&orphan, &[("cookie", &session), ("sec-fetch-site", "cross-site")]);
    assert_eq!(foreign.status().as_u16(), 403);
    let ours = [("cookie", session.as_str()), ("sec-fetch-site", "same-origin")];
    assert_eq!(refund("no%20id", &ours).status().as_u16(), 400);
    assert_eq!(refund("esc_none", &ours).status().as_u16(), 404);
    assert_eq!(site.balance().0, "80", "nothing was done");
    assert_eq!(location(&refund(&orphan, &ours)), (303, "/console#queue"));
    assert_eq!(site.balance().0, "90");
    let page = look();
    assert!(!page.contains("no queue item has it") && page.contains("<td>abandoned</td><td>admin cancelled</td>"));
    assert!(site.server.stop().contains(&format!("tester has given back escrow {orphan}, ")));
}

#[test]
fn a_queue_in_its_own_process_has_a_console_of_its_own() {
    let site = Site::open(Mode::Two, &AT_ONCE);
    let (orphan, item) = (site.hold(), site.enqueue());
    let queue = site.queue_half();
    let admin = queue.world.ok(&["token", "--role", "admin", "--sub", "tester"]).trim().to_owned();
    let url = |path: &str| format!("{}{path}", queue.server().url());
    let look = || browser().get(url("/console")).bearer_auth(&admin).send().unwrap().text().unwrap();
    let page = look();
    assert!(page.contains(&orphan) && page.contains(&item) && !page.contains("Revenue by day"), "{page}");
    let form = browser().post(url("/console/escrows/refund")).bearer_auth(&admin).body(format!("id={orphan}"));
    let given_back = form.header("content-type", "application/x-www-form-urlencoded").send().unwrap();
    assert_eq!(location(&given_back), (303, "/console#queue"));
    assert_eq!(site.money().0, "90");
    assert!(!look().contains("no queue item has it"));
    let wallet = &site.wallet;
    let admin = wallet.world.ok(&["token", "--role", "admin", "--sub", "tester"]).trim().to_owned();
    let page = browser().get(format!("{}/console", wallet.server().url())).bearer_auth(admin).send().unwrap();
    assert!(page.text().unwrap().contains("The queue is not in this process."));
}
