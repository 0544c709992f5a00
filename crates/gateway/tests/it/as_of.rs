//! Balances as of every entry and moment, against a replay of the journal's own postings.

use crate::world::{Client, World};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Credits as millionths, from their text.
fn units(text: &str) -> i64 {
    let (sign, digits) = text.strip_prefix('-').map_or((1, text), |digits| (-1, digits));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    sign * format!("{whole}{fraction:0<6}").parse::<i64>().unwrap()
}

/// Does a few hundred things of every kind.
fn live(client: &mut Client) {
    for owner in ["ann", "ben", "cem"] {
        let key = format!("fund-{owner}");
        client.ok(json!({ "op": "mint", "account": owner, "amount_cu": "1000.5", "reason": "fund", "key": key }));
    }
    for round in 0..60_u64 {
        let owner = ["ann", "ben", "cem"][usize::try_from(round * 7 % 3).unwrap()];
        let (id, deal) = (format!("r{round}"), format!("d{round}"));
        let amount = format!("{}.{}", 1 + round % 5, 1 + round % 9);
        client.ok(json!({ "op": "reserve", "account": owner, "amount_cu": amount, "request_id": id }));
        match round % 6 {
            0 => drop(client.ok(json!({ "op": "commit", "id": id, "actual_cu": "0.7" }))),
            1 => drop(client.ok(json!({ "op": "release", "id": id }))),
            2 => {
                client.ok(json!({ "op": "commit", "id": id, "actual_cu": "0.25", "final": false, "key": id }));
                client.ok(json!({ "op": "increase", "id": id, "amount_cu": "1.5", "key": format!("i{round}") }));
                client.ok(json!({ "op": "commit", "id": id, "actual_cu": "2" }));
            }
            3 => {
                client.ok(json!({ "op": "commit", "id": id, "actual_cu": "1" }));
                client.ok(json!({ "op": "void", "id": id, "reason": "test" }));
            }
            4 => drop(client.ok(json!({ "op": "commit", "id": id, "actual_cu": "99" }))),
            _ => {}
        }
        let hold = json!({ "op": "escrow_hold", "account": owner, "amount_cu": "3", "feature": "f", "escrow_id": deal, "key": deal });
        client.ok(hold);
        match round % 4 {
            0 => drop(client.ok(json!({ "op": "escrow_settle", "escrow_id": deal, "payee": "pat" }))),
            1 => drop(client.ok(json!({ "op": "escrow_refund", "escrow_id": deal }))),
            2 => drop(client.ok(
                json!({ "op": "escrow_partial", "escrow_id": deal, "payee": "pat", "settle_cu": "1", "refund_cu": "2" }),
            )),
            _ => {}
        }
    }
}

const ACCOUNTS: [&str; 9] = [
    "user:ann:available",
    "user:ann:held",
    "user:ben:available",
    "user:ben:held",
    "user:cem:available",
    "user:cem:held",
    "payee:pat:available",
    "system:revenue",
    "treasury:usdc_received",
];

/// The balances after each entry, folded from the postings.
fn fold(journal: &[Value]) -> Vec<BTreeMap<String, i64>> {
    let mut balances = BTreeMap::new();
    let mut after = vec![balances.clone()];
    for entry in journal {
        for posting in entry["postings"].as_array().unwrap() {
            let account = posting["account"].as_str().unwrap().to_owned();
            *balances.entry(account).or_insert(0) += units(posting["change_cu"].as_str().unwrap());
        }
        assert_eq!(balances.values().sum::<i64>(), 0, "{entry}");
        after.push(balances.clone());
    }
    after
}

#[test]
fn balances_as_of_every_entry_and_moment_agree_with_a_replay() {
    let world = World::new();
    let server = world.serve();
    let mut client = server.client();
    live(&mut client);
    let journal = world.journal();
    let folded = fold(&journal);
    let of = |offset: usize, account: &str| folded[offset].get(account).copied().unwrap_or(0);
    for offset in 0..=journal.len() {
        for account in ACCOUNTS {
            let answer = client.ok(json!({ "op": "balance_as_of", "account": account, "offset": offset }));
            assert_eq!(units(answer["balance_cu"].as_str().unwrap()), of(offset, account), "{account} after {offset}");
        }
        let both = client.ok(json!({ "op": "balance_as_of", "account": "ann", "offset": offset }));
        assert_eq!(units(both["available_cu"].as_str().unwrap()), of(offset, "user:ann:available"));
        assert_eq!(units(both["held_cu"].as_str().unwrap()), of(offset, "user:ann:held"));
    }
    for entry in &journal {
        let at = entry["at"].as_str().unwrap();
        // Entries of one moment count together: all of them are "by then".
        let by_then = journal.iter().filter(|other| other["at"].as_str().unwrap() <= at).count();
        for account in ["user:ben:available", "payee:pat:available", "system:revenue"] {
            let answer = client.ok(json!({ "op": "balance_as_of", "account": account, "at": at }));
            assert_eq!(units(answer["balance_cu"].as_str().unwrap()), of(by_then, account), "{account} at {at}");
        }
    }
    server.stop();
}

#[test]
fn a_history_in_pages_is_the_journal_filtered() {
    let world = World::new();
    let server = world.serve();
    let mut client = server.client();
    live(&mut client);
    let journal = world.journal();
    for (account, mine) in [("ben", "user:ben"), ("payee:pat:available", "payee:pat")] {
        let is_mine = |entry: &&Value| {
            entry["account"] == json!(account)
                || entry["postings"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .any(|posting| posting["account"].as_str().unwrap().starts_with(mine))
        };
        let expected: Vec<u64> =
            journal.iter().rev().filter(is_mine).map(|entry| entry["offset"].as_u64().unwrap()).collect();
        let mut found = Vec::new();
        let mut before = Value::Null;
        loop {
            let page = client.ok(json!({ "op": "history", "account": account, "limit": 7, "before": before }));
            found.extend(page["entries"].as_array().unwrap().iter().map(|entry| entry["offset"].as_u64().unwrap()));
            before = page["next"].clone();
            if before.is_null() {
                break;
            }
        }
        assert_eq!(found, expected, "{account}");
        for before in [1, 2, 50, 99, 100, 10_000] {
            let page = client.ok(json!({ "op": "history", "account": account, "limit": 1, "before": before }));
            let newest = page["entries"].get(0).map(|entry| entry["offset"].as_u64().unwrap());
            assert_eq!(newest, expected.iter().copied().find(|offset| *offset < before), "{account} before {before}");
        }
    }
    for entry in journal.iter().step_by(17) {
        let answer = client.ok(json!({ "op": "entry", "offset": entry["offset"] }));
        let mut answer = answer.as_object().unwrap().clone();
        answer.remove("ok");
        assert_eq!(Value::Object(answer), *entry);
    }
    server.stop();
}
