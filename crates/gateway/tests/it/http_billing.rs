//! The billing API: every route's success and its refusals, and that the same request is done once.

use crate::http_world::Site;
use reqwest::Method;
use serde_json::{Value, json};

const RESERVATIONS: &str = "/api/v1/reservations";

fn on(id: &str, op: &str) -> String {
    format!("{RESERVATIONS}/{id}/{op}")
}

#[test]
fn a_reservation_is_held_committed_and_shown() {
    let site = Site::open();
    let body = json!({ "account_id": "alice", "amount_cu": "30", "request_id": "job-1", "ttl_s": 600 });
    let held = site.post(RESERVATIONS, &body);
    assert_eq!(held.status, 201, "{held:?}");
    assert_eq!(held.body["billing_entry_id"], "job-1");
    assert_eq!(held.body["state"], "RESERVE_HELD");
    assert_eq!((&held.body["held_cu"], &held.body["balance_cu"]), (&json!("30"), &json!("70")));
    assert!(held.body["expires_at"].is_string() && held.body["offset"].is_u64());
    assert_eq!(held.headers.get("idempotent-replayed"), None);

    let again = site.post(RESERVATIONS, &body);
    assert_eq!((again.status, &again.body), (201, &held.body));
    assert_eq!(again.headers["idempotent-replayed"], "true");

    let committed = site.post(&on("job-1", "commit"), &json!({ "actual_cu": "12.5" }));
    assert_eq!(committed.status, 200, "{committed:?}");
    assert_eq!(committed.body["state"], "FINALIZE_PENDING");
    assert_eq!((&committed.body["charged_cu"], &committed.body["returned_cu"]), (&json!("12.5"), &json!("17.5")));
    assert_eq!((&committed.body["held_cu"], &committed.body["balance_cu"]), (&json!("0"), &json!("87.5")));

    let shown = site.get(&format!("{RESERVATIONS}/job-1"));
    assert_eq!((shown.status, &shown.body["charged_cu"]), (200, &json!("12.5")));
    assert_eq!((&shown.body["billing_entry_id"], &shown.body["account_id"]), (&json!("job-1"), &json!("alice")));
    assert_eq!(shown.body["life"].as_array().unwrap().len(), 2);
    assert_eq!(shown.body["life"][0]["actor"], "tester");
    assert_eq!(shown.body["offset"], committed.body["offset"]);

    let voided = site.post(&on("job-1", "void"), &json!({ "reason": "by mistake" }));
    assert_eq!(
        (voided.status, &voided.body["state"], &voided.body["balance_cu"]),
        (200, &json!("VOIDED"), &json!("100"))
    );
    site.server.stop();
}

#[test]
fn a_hold_grows_lives_on_pays_in_parts_and_is_released() {
    let site = Site::open();
    site.hold("long", "10");
    assert_eq!(site.post(&on("long", "start"), &json!({})).status, 200);
    let more = site.post_once(&on("long", "increase"), "more", &json!({ "amount_cu": "5" }));
    assert_eq!((more.status, &more.body["balance_cu"]), (200, &json!("85")));
    let again = site.post_once(&on("long", "increase"), "more", &json!({ "amount_cu": "5" }));
    assert_eq!((again.status, &again.body), (200, &more.body));
    assert_eq!(again.headers["idempotent-replayed"], "true");
    let other = site.post_once(&on("long", "increase"), "more", &json!({ "amount_cu": "6" }));
    assert_eq!((other.status, other.code()), (409, "ALREADY_USED_KEY"));
    assert_eq!(other.headers["x-should-retry"], "false");

    let extended = site.post_once(&on("long", "extend"), "on", &json!({ "ttl_s": 90_000 }));
    assert!(extended.status == 200 && extended.body["expires_at"].is_string(), "{extended:?}");
    let part = site.post_once(&on("long", "commit"), "part", &json!({ "actual_cu": "4", "final": false }));
    assert_eq!(
        (part.status, &part.body["charged_cu"], &part.body["state"]),
        (200, &json!("4"), &json!("RESERVE_HELD"))
    );
    let released = site.bare(Method::POST, &on("long", "release")).bearer_auth(&site.service);
    let released = site.send(released);
    assert_eq!((released.status, &released.body["returned_cu"]), (200, &json!("11")));
    assert_eq!(site.balance(), (json!("96"), json!("0")));
}

#[test]
fn an_idempotency_key_stands_for_a_missing_request_id() {
    let site = Site::open();
    let body = json!({ "account_id": "alice", "amount_cu": "1" });
    let first = site.post_once(RESERVATIONS, "once", &body);
    let again = site.post_once(RESERVATIONS, "once", &body);
    assert_eq!((first.status, again.status), (201, 201));
    assert_eq!(first.body, again.body);
    assert_eq!(again.headers["idempotent-replayed"], "true");
    let fresh = site.post(RESERVATIONS, &body);
    assert_ne!(fresh.body["billing_entry_id"], first.body["billing_entry_id"]);
    assert_eq!(site.balance(), (json!("98"), json!("2")));
    let two = site.bare(Method::POST, RESERVATIONS).bearer_auth(&site.service).json(&body);
    let two = site.send(two.header("idempotency-key", "a").header("x-idempotency-key", "b"));
    assert_eq!((two.status, two.code()), (400, "INVALID_REQUEST"));
}

#[test]
fn what_a_hold_cannot_do_is_refused_by_code_and_status() {
    let site = Site::open();
    site.hold("open", "10");
    let poor = site.post(RESERVATIONS, &json!({ "account_id": "alice", "amount_cu": "91" }));
    assert_eq!((poor.status, poor.code()), (402, "INSUFFICIENT_BALANCE"));
    let details = json!({ "action": "pay", "available_cu": "90", "required_cu": "91", "deficit_cu": "1" });
    assert_eq!(poor.body["error"]["details"], details);
    assert_eq!(poor.headers["x-should-retry"], "false");
    let usage = json!({ "usage": { "input_tokens": 1, "output_tokens": 1 } });
    for (path, body, status, code) in [
        (RESERVATIONS.to_owned(), json!({ "account_id": "nobody", "amount_cu": "1" }), 404, "ACCOUNT_NOT_FOUND"),
        (RESERVATIONS.to_owned(), json!({ "account_id": "a b", "amount_cu": "1" }), 400, "INVALID_ID"),
        (RESERVATIONS.to_owned(), json!({ "account_id": "alice", "amount_cu": 1 }), 400, "INVALID_AMOUNT"),
        (RESERVATIONS.to_owned(), json!({ "account_id": "alice" }), 400, "INVALID_REQUEST"),
        (RESERVATIONS.to_owned(), json!({ "account_id": "alice", "amount_cu": "1", "ttl_s": 0 }), 400, "INVALID_TTL"),
        (
            RESERVATIONS.to_owned(),
            json!({ "account_id": "alice", "model": "free", "input_tokens": 1, "max_tokens": 1 }),
            400,
            "INVALID_MODEL",
        ),
        (
            RESERVATIONS.to_owned(),
            json!({ "account_id": "alice", "amount_cu": "1", "model": "m" }),
            400,
            "INVALID_REQUEST",
        ),
        (
            RESERVATIONS.to_owned(),
            json!({ "account_id": "alice", "amount_cu": "9", "request_id": "open" }),
            409,
            "ALREADY_USED_KEY",
        ),
        (on("none", "commit"), json!({ "actual_cu": "1" }), 404, "RESERVATION_NOT_FOUND"),
        (on("a%20b", "commit"), json!({ "actual_cu": "1" }), 400, "INVALID_ID"),
        (on("open", "commit"), json!({}), 400, "INVALID_REQUEST"),
        (on("open", "commit"), usage, 409, "NO_FROZEN_RATES"),
        (on("open", "commit"), json!({ "actual_cu": "1", "final": false }), 400, "KEY_REQUIRED"),
        (on("open", "increase"), json!({ "amount_cu": "1" }), 400, "KEY_REQUIRED"),
        (on("open", "extend"), json!({ "ttl_s": 5 }), 400, "KEY_REQUIRED"),
        (on("open", "void"), json!({ "reason": "r" }), 409, "INVALID_STATE"),
        (on("open", "void"), json!({}), 400, "INVALID_REQUEST"),
        (on("open", "release"), json!({ "id": "other" }), 400, "INVALID_REQUEST"),
        (on("open", "release"), json!({ "op": "void" }), 400, "INVALID_REQUEST"),
    ] {
        let answer = site.post(&path, &body);
        assert_eq!((answer.status, answer.code()), (status, code), "{path} {body} {answer:?}");
        assert!(answer.body["error"]["message"].as_str().is_some_and(|text| !text.is_empty()));
    }
    for (path, status, code) in [
        ("/api/v1/reservations/none", 404, "RESERVATION_NOT_FOUND"),
        ("/api/v1/accounts/nobody/balance", 404, "ACCOUNT_NOT_FOUND"),
        ("/api/v1/accounts/alice/balance?as_of=99", 404, "ENTRY_NOT_FOUND"),
        ("/api/v1/accounts/alice/balance?as_of=yesterday", 400, "INVALID_TIME"),
        ("/api/v1/accounts/alice/balance?at=1", 400, "INVALID_REQUEST"),
        ("/api/v1/accounts/alice/balance?as_of=1&as_of=2", 400, "INVALID_REQUEST"),
        ("/api/v1/accounts/user:alice:held/balance", 400, "INVALID_ID"),
        ("/api/v1/accounts/nobody/history", 404, "ACCOUNT_NOT_FOUND"),
        ("/api/v1/accounts/alice/history?cursor=x", 400, "INVALID_REQUEST"),
        ("/api/v1/accounts/alice/history?limit=0", 400, "INVALID_REQUEST"),
        ("/api/v1/entries/99", 404, "ENTRY_NOT_FOUND"),
        ("/api/v1/entries/x", 400, "INVALID_REQUEST"),
        ("/api/v1/nothing", 404, "NOT_FOUND"),
        ("/api/v1/batch", 405, "METHOD_NOT_ALLOWED"),
    ] {
        let answer = site.get(path);
        assert_eq!((answer.status, answer.code()), (status, code), "{path} {answer:?}");
    }
    assert_eq!(site.balance(), (json!("90"), json!("10")));
    assert_eq!(site.world.entries(), 2);
}

#[test]
fn a_commit_by_usage_takes_the_frozen_rates() {
    let site = Site::open();
    let rates = json!({ "input_usd_per_mtok": "2.5", "output_usd_per_mtok": "10" });
    let body = json!({ "account_id": "alice", "amount_cu": "5", "request_id": "priced", "rates": rates });
    assert_eq!(site.post(RESERVATIONS, &body).status, 201);
    let usage = json!({ "usage": { "input_tokens": 1_000, "output_tokens": 500 } });
    let committed = site.post(&on("priced", "commit"), &usage);
    // 0.0025 + 0.005 dollars, at 100 credits a dollar.
    assert_eq!((committed.status, &committed.body["charged_cu"]), (200, &json!("0.75")));
}

#[test]
fn a_batch_is_answered_in_order_each_with_its_status() {
    let site = Site::open();
    let requests = json!([
        { "op": "reserve", "account_id": "alice", "amount_cu": "60", "request_id": "b1" },
        { "op": "reserve", "account_id": "alice", "amount_cu": "60", "request_id": "b2" },
        { "op": "reserve", "account_id": "alice", "amount_cu": "60", "request_id": "b1" },
        { "op": "mint", "account_id": "alice", "amount_cu": "60", "reason": "greed", "key": "k" },
        { "op": "commit", "id": "b1", "actual_cu": "1" },
        { "op": "commit", "id": "b1", "actual_cu": "1", "note": "x" },
        7,
    ]);
    let answer = site.post("/api/v1/batch", &json!({ "requests": requests }));
    assert_eq!(answer.status, 200, "{answer:?}");
    let statuses: Vec<&Value> = answer.body["answers"].as_array().unwrap().iter().map(|item| &item["status"]).collect();
    assert_eq!(statuses, [201, 402, 201, 400, 200, 400, 400]);
    let answers = &answer.body["answers"];
    assert_eq!((&answers[2]["replayed"], &answers[0]["replayed"]), (&json!(true), &Value::Null));
    assert_eq!(answers[1]["error"]["code"], "INSUFFICIENT_BALANCE");
    assert_eq!(answers[4]["charged_cu"], "1");
    assert_eq!(site.balance(), (json!("99"), json!("0")));

    let one = |number: u32| json!({ "op": "reserve", "account_id": "alice", "amount_cu": "0.001", "request_id": format!("m{number}") });
    let many: Vec<Value> = (0..8_191).map(one).collect();
    let refused = site.post("/api/v1/batch", &json!({ "requests": many }));
    assert_eq!((refused.status, refused.code()), (413, "BATCH_TOO_LARGE"));
    let most = site.post("/api/v1/batch", &json!({ "requests": many[..8_190] }));
    let statuses = most.body["answers"].as_array().unwrap().iter().map(|item| item["status"].as_u64().unwrap());
    // Open holds of one account are capped at 1,000.
    assert_eq!(statuses.filter(|status| *status == 201).count(), 1_000);
    assert_eq!(most.body["answers"].as_array().unwrap().len(), 8_190);
}

#[test]
fn balances_histories_and_entries_tell_the_same_story() {
    let site = Site::open();
    for number in 0..5 {
        site.hold(&format!("h{number}"), "1");
    }
    let now = site.get("/api/v1/accounts/alice/balance");
    assert_eq!(
        (&now.body["balance_cu"], &now.body["available_cu"], &now.body["held_cu"]),
        (&json!("95"), &json!("95"), &json!("5"))
    );
    assert_eq!((&now.body["open_holds"], &now.body["offset"]), (&json!(5), &json!(6)));
    let then = site.get("/api/v1/accounts/alice/balance?as_of=3");
    assert_eq!((&then.body["balance_cu"], &then.body["held_cu"]), (&json!("98"), &json!("2")));
    let long_ago = site.get("/api/v1/accounts/alice/balance?as_of=2001-01-01T00:00:00Z");
    assert_eq!((long_ago.status, &long_ago.body["balance_cu"]), (200, &json!("0")));

    let mut offsets = Vec::new();
    let mut path = "/api/v1/accounts/alice/history?limit=4".to_owned();
    loop {
        let page = site.get(&path);
        assert_eq!(page.status, 200, "{page:?}");
        offsets.extend(page.body["entries"].as_array().unwrap().iter().map(|entry| entry["offset"].as_u64().unwrap()));
        let Some(next) = page.body["next_cursor"].as_str() else { break };
        path = format!("/api/v1/accounts/alice/history?limit=4&cursor={next}");
    }
    assert_eq!(offsets, [6, 5, 4, 3, 2, 1]);
    let entry = site.get("/api/v1/entries/2");
    assert_eq!((entry.status, &entry.body["kind"], &entry.body["offset"]), (200, &json!("billing_reserve"), &json!(2)));
    assert_eq!(entry.body["postings"].as_array().unwrap().len(), 2);
}

#[test]
fn parallel_reserves_never_overdraw() {
    let site = Site::open();
    let admitted: usize = std::thread::scope(|scope| {
        let caller = |caller: u32| {
            let site = &site;
            move || {
                let reserve = |number: u32| {
                    let body =
                        json!({ "account_id": "alice", "amount_cu": "1", "request_id": format!("p{caller}-{number}") });
                    site.post(RESERVATIONS, &body).status
                };
                (0..20).map(reserve).filter(|status| *status == 201).count()
            }
        };
        let callers: Vec<_> = (0..8).map(|number| scope.spawn(caller(number))).collect();
        callers.into_iter().map(|caller| caller.join().unwrap()).sum()
    });
    assert_eq!(admitted, 100);
    assert_eq!(site.balance(), (json!("0"), json!("100")));
    site.server.stop();
}
