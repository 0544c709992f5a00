//! Limits of accounts, teams and organisations: nobody spends beyond one, whichever way they come and however many at once.

use crate::chat::{key_of, open};
use crate::http_world::{Answer, Site};
use crate::world::World;
use holdfast_domain::CreditUnit;
use reqwest::Method;
use serde_json::{Value, json};
use std::thread;

fn amount(value: &Value) -> CreditUnit {
    value.as_str().unwrap().parse().unwrap()
}

fn cu(text: &str) -> CreditUnit {
    text.parse().unwrap()
}

/// The code of a refusal, in whatever shape it came.
fn code(answer: &Answer) -> String {
    answer.body["error"]["code"].as_str().unwrap_or_default().to_uppercase()
}

fn limits_of(site: &Site, path: &str) -> Value {
    let answer = site.admin(Method::GET, &format!("/api/v1/admin/{path}/limits"), None);
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.body
}

#[test]
fn many_at_once_by_every_way_in_spend_no_more_than_the_accounts_limit() {
    let site = Site::open();
    site.world.ok(&["accounts", "limit", "alice", "--per-day", "3"]);
    let keys = [key_of(&site, "alice").0, key_of(&site, "alice").0];
    let chat = |key: &str| {
        // Some 0.4 credits are held for it, and next to nothing is charged.
        let body =
            json!({ "model": "echo", "max_tokens": 2_000, "messages": [{ "role": "user", "content": "hello" }] });
        site.send(site.bare(Method::POST, "/v1/chat/completions").bearer_auth(key).json(&body))
    };
    let invoke = || {
        let messages = json!([{ "role": "user", "content": "hello" }]);
        site.post(
            "/api/v1/invoke",
            &json!({ "account_id": "alice", "model": "echo", "max_tokens": 2_000, "messages": messages }),
        )
    };
    let reserve = |id: String| {
        site.post("/api/v1/reservations", &json!({ "account_id": "alice", "amount_cu": "0.3", "request_id": id }))
    };
    let answers: Vec<Answer> = thread::scope(|scope| {
        let (chat, invoke, reserve, keys) = (&chat, &invoke, &reserve, &keys);
        let callers: Vec<_> = (0..16)
            .map(|caller| {
                scope.spawn(move || {
                    let one = |round: usize| match (caller + round) % 4 {
                        0 | 1 => chat(&keys[caller % 2]),
                        2 => invoke(),
                        _ => reserve(format!("r-{caller}-{round}")),
                    };
                    (0..6).map(one).collect::<Vec<_>>()
                })
            })
            .collect();
        callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect()
    });
    let (done, refused): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status < 400);
    assert!(!done.is_empty() && !refused.is_empty(), "{} done, {} refused", done.len(), refused.len());
    for answer in refused {
        assert_eq!((answer.status, code(answer).as_str()), (402, "INSUFFICIENT_BUDGET"), "{answer:?}");
    }
    // Alice began with 100: at no entry has she less than 97.
    let entries = site.world.journal();
    let available =
        entries.iter().filter(|entry| entry["account"] == "alice").map(|entry| amount(&entry["available_cu"]));
    assert!(available.min().unwrap() >= cu("97"));
    // And nothing went past the count: what is missing from her balance is what was used.
    let limit = limits_of(&site, "accounts/alice");
    let used = amount(&limit["used_today_cu"]);
    assert!(used <= cu("3"), "{limit}");
    assert_eq!(amount(&site.balance().0).checked_add(used).unwrap(), cu("100"), "{limit}");
}

#[test]
fn a_conversation_is_limited_too() {
    let site = Site::open();
    site.world.ok(&["accounts", "limit", "alice", "--in-total", "0.001"]);
    let mut talk = open(&site, &key_of(&site, "alice").0);
    talk.prompt("one two three");
    let (_, blocked) = talk.answer();
    assert_eq!(blocked["type"], "billing_blocked", "{blocked}");
    site.world.ok(&["accounts", "limit", "alice", "--none"]);
    talk.prompt("one two three");
    assert_eq!(talk.answer().1["type"], "turn_end");
}

#[test]
fn limits_are_a_tree_and_outlive_a_crash() {
    let world = World::new();
    for name in ["alice", "bob", "carol"] {
        world.ok(&["mint", name, "100", "--reason", "start"]);
    }
    world.ok(&["accounts", "limit", "alice", "--team", "red"]);
    world.ok(&["accounts", "limit", "bob", "--team", "red"]);
    world.ok(&["accounts", "limit", "carol", "--team", "blue"]);
    world.ok(&["teams", "limit", "red", "--in-total", "10", "--organisation", "acme"]);
    world.ok(&["teams", "limit", "blue", "--organisation", "acme"]);
    world.ok(&["organisations", "limit", "acme", "--per-day", "15"]);
    let server = world.serve();
    world.ok(&["reservations", "create", "alice", "6", "--id", "a-1"]);
    server.crash();
    let refused = world.run(&["reservations", "create", "bob", "5"]);
    assert!(refused.stderr.contains("error[INSUFFICIENT_BUDGET]: the budget team-red allows 10"), "{refused:?}");
    world.ok(&["reservations", "create", "bob", "4", "--id", "b-1"]);
    let refused = world.run(&["reservations", "create", "carol", "6"]);
    assert!(refused.stderr.contains("the budget organisation-acme allows 15"), "{refused:?}");
    world.ok(&["reservations", "create", "carol", "5", "--id", "c-1"]);

    // A hold grows under the limits that it was made under, and what it gives back is free again.
    assert_eq!(world.refused(&["reservations", "increase", "a-1", "1", "--key", "k1"]), "INSUFFICIENT_BUDGET");
    world.ok(&["reservations", "release", "b-1"]);
    world.ok(&["reservations", "increase", "a-1", "1", "--key", "k2"]);
    world.ok(&["reservations", "commit", "a-1", "2"]);
    let of = |what: &str, name: &str| world.json(&[what, "limit", name]);
    assert_eq!(of("teams", "red")["used_in_total_cu"], "2");
    assert_eq!(of("organisations", "acme")["used_today_cu"], "7");
    assert_eq!(world.json(&["limits"])["limits"].as_array().unwrap().len(), 6);

    // Out of the team, and without a limit, there is none.
    world.ok(&["accounts", "limit", "bob", "--team", "none"]);
    world.ok(&["reservations", "create", "bob", "50"]);
    world.ok(&["organisations", "limit", "acme", "--none"]);
    world.ok(&["reservations", "create", "carol", "50"]);
    let shown = world.ok(&["accounts", "show", "alice"]);
    assert!(shown.contains("used today") && shown.contains("red") && shown.contains("acme"), "{shown}");
    assert!(!world.ok(&["accounts", "show", "bob"]).contains("acme"));
}

#[test]
fn an_admin_sets_limits_over_http_and_what_is_not_said_stays() {
    let site = Site::open();
    let patch =
        |path: &str, body: Value| site.admin(Method::PATCH, &format!("/api/v1/admin/{path}/limits"), Some(&body));
    let set = patch("accounts/alice", json!({ "per_day_cu": "5", "team": "red" }));
    assert_eq!((set.status, &set.body["per_day_cu"], &set.body["team"]), (200, &json!("5"), &json!("red")));
    let set = patch("accounts/alice", json!({ "per_day_cu": "none", "in_total_cu": "7" })).body;
    assert_eq!((&set["per_day_cu"], &set["in_total_cu"], &set["team"]), (&Value::Null, &json!("7"), &json!("red")));
    assert_eq!(limits_of(&site, "accounts/alice"), set);
    assert_eq!(limits_of(&site, "teams/nobody")["set_at"], Value::Null);
    assert_eq!(patch("teams/red", json!({ "organisation": "acme" })).body["organisation"], "acme");
    let listed = site.admin(Method::GET, "/api/v1/admin/limits?limit=1", None).body;
    assert_eq!((listed["limits"].as_array().unwrap().len(), &listed["next"]), (1, &json!("account:alice")));
    let rest = site.admin(Method::GET, "/api/v1/admin/limits?after=account:alice", None).body;
    assert_eq!((&rest["limits"][0]["id"], &rest["next"]), (&json!("red"), &Value::Null));
    for (path, body, status, expected) in [
        ("accounts/alice", json!({}), 400, "INVALID_REQUEST"),
        ("accounts/alice", json!({ "per_day_cu": 5 }), 400, "INVALID_AMOUNT"),
        ("accounts/alice", json!({ "per_day_cu": "-5" }), 400, "INVALID_AMOUNT"),
        ("accounts/alice", json!({ "organisation": "acme" }), 400, "INVALID_REQUEST"),
        ("accounts/a%20b", json!({ "per_day_cu": "5" }), 400, "INVALID_ID"),
        ("teams/red", json!({ "team": "blue" }), 400, "INVALID_REQUEST"),
        ("organisations/acme", json!({ "organisation": "other" }), 400, "INVALID_REQUEST"),
        ("organisations/acme", json!({ "per_day": "1" }), 400, "INVALID_REQUEST"),
    ] {
        let answer = patch(path, body.clone());
        assert_eq!((answer.status, answer.code()), (status, expected), "{path} {body} {answer:?}");
    }
    let other = site.send(site.bare(Method::GET, "/api/v1/admin/limits").bearer_auth(&site.service));
    assert_eq!((other.status, other.code()), (403, "ACCESS_ROLE"));
    assert_eq!(site.admin(Method::GET, "/api/v1/admin/limits?after=alice", None).code(), "INVALID_REQUEST");
}

#[test]
fn limits_are_refused_where_they_make_no_sense() {
    let world = World::with_alice();
    assert_eq!(world.refused(&["accounts", "limit", "alice", "--per-day", "much"]), "INVALID_AMOUNT");
    assert_eq!(world.refused(&["accounts", "limit", "alice", "--per-day", "-1"]), "INVALID_AMOUNT");
    assert_eq!(world.refused(&["accounts", "limit", "a b", "--per-day", "1"]), "INVALID_ID");
    assert_eq!(world.refused(&["teams", "limit", "red", "--data", "nowhere"]), "DATA_NOT_FOUND");
    assert_eq!(world.run(&["accounts", "limit", "alice", "--none", "--per-day", "1"]).code, Some(2));
    let shown = world.json(&["accounts", "limit", "alice"]);
    assert_eq!((&shown["per_day_cu"], &shown["set_at"]), (&Value::Null, &Value::Null));
}
