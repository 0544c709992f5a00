//! The queue's steps as an operator sees them in the journal, beside a server and without one.

use crate::queue_world::{Mode, Site, intake};
use crate::settlement_world::until;
use serde_json::{Value, json};
use std::collections::HashSet;

/// What `journal cat` prints, line by line.
fn lines(site: &Site, words: &[&str]) -> Vec<Value> {
    let words = [&["journal", "cat"], words].concat();
    let said = site.queue_half().world.ok(&words);
    said.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn kinds(lines: &[Value]) -> Vec<&str> {
    lines.iter().map(|line| line["kind"].as_str().unwrap()).collect()
}

#[test]
fn steps_stand_where_they_were_taken_and_only_who_asks_sees_them() {
    let mut site = Site::open(Mode::One, &[]);
    let escrow = site.hold();
    let first = site.post("items", &intake(&escrow));
    let first = first.body["queueItemId"].as_str().unwrap().to_owned();
    // The step is the newest of all: a server that writes says how far it may be read.
    let seen = lines(&site, &["--queue"]);
    assert!(kinds(&seen).ends_with(&["escrow_hold", "queue_item_queued"]), "{seen:?}");
    let put = seen.last().unwrap();
    for (field, expected) in [
        ("step", json!(1)),
        ("queue_item_id", json!(first)),
        ("account", json!("alice")),
        ("payee", json!("mia")),
        ("escrow_id", json!(escrow)),
        ("amount_cu", json!("10")),
    ] {
        assert_eq!(put[field], expected, "{field}");
    }
    site.done(&first, "start", json!({}));
    site.done(&first, "finish", json!({}));
    let second = site.started();
    site.done(&second, "partial", json!({ "settleAmount": "4", "refundAmount": "6", "reason": "partial_delivery" }));
    let third = site.enqueue();
    site.done(&third, "abandon", json!({ "reason": "user_disconnected" }));

    let check = |site: &Site| {
        let all = lines(site, &["--queue"]);
        let entries = lines(site, &[]);
        let is_step = |line: &&Value| line["kind"].as_str().unwrap().starts_with("queue_item_");
        let steps: Vec<Value> = all.iter().filter(is_step).cloned().collect();
        assert_eq!(all.len(), steps.len() + entries.len());
        assert!(entries.iter().all(|entry| !is_step(&entry)), "who does not ask sees entries alone");
        let expected = [
            "queue_item_queued",
            "queue_item_started",
            "queue_item_finished",
            "queue_item_queued",
            "queue_item_started",
            "queue_item_partial",
            "queue_item_queued",
            "queue_item_abandoned",
        ];
        assert_eq!(kinds(&steps), expected);
        let numbers: Vec<u64> = steps.iter().map(|step| step["step"].as_u64().unwrap()).collect();
        assert_eq!(numbers, (1..=8).collect::<Vec<_>>());
        assert_eq!((&steps[5]["settle_cu"], &steps[5]["refund_cu"]), (&json!("4"), &json!("6")));
        assert_eq!(steps[7]["reason"], json!("user_disconnected"));
        // A step never stands before what it rests on.
        let place = |kind: &str| kinds(&all).iter().position(|seen| *seen == kind);
        assert!(place("escrow_hold") < place("queue_item_queued"));
        assert!(place("escrow_settle") < place("queue_item_finished"));

        assert_eq!(lines(site, &["--queue", "--limit", "3"]).len(), 3);
        let last = entries.last().unwrap()["offset"].to_string();
        let end = lines(site, &["--queue", "--from", &last]);
        assert_eq!(kinds(&end), ["escrow_refund", "queue_item_abandoned"]);
        let stat = site.queue_half().world.json(&["journal", "stat"]);
        assert_eq!((&stat["notes"], &stat["entries"]), (&json!(8), &json!(entries.len())));
        // What has only steps in it is no seal.
        let frames: HashSet<u64> = all.iter().map(|line| line["frame"]["byte"].as_u64().unwrap()).collect();
        let number = |name: &str| stat[name].as_u64().unwrap();
        assert_eq!(number("frames") - number("seals"), frames.len() as u64);
    };
    // Who ends an item is told when its escrow's end is durable; the item's own may be on its way.
    until(|| lines(&site, &["--queue"]), |seen| kinds(seen).last() == Some(&"queue_item_abandoned"));
    check(&site);
    site.queue_half_mut().server.take().unwrap().stop();
    check(&site);
}
