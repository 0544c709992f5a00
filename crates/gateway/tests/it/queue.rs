//! The performance queue over HTTP, in one process, in two, and on PostgreSQL: its lifecycle, every refusal, and races.

use crate::queue_world::{Mode, SECRET, Site, everywhere, intake, money, refused, with};
use crate::settlement_world::until;
use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use holdfast_adapters::SystemClock;
use holdfast_engine::Clock;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

fn abandon(reason: &str) -> Value {
    json!({ "reason": reason })
}

fn partial(settle: &str, refund: &str) -> Value {
    json!({ "settleAmount": settle, "refundAmount": refund, "reason": "partial_delivery" })
}

#[test]
fn queue_item_creation() {
    everywhere(|site| {
        let escrow = site.hold();
        let body = with(intake(&escrow), &json!({ "priority": 3, "metadata": { "room": 7, "note": "é" } }));
        let made = site.post("items", &body);
        assert_eq!(made.status, 201, "{made:?}");
        let item = &made.body;
        assert!(item["queueItemId"].as_str().unwrap().starts_with("qi_"));
        for (field, expected) in [
            ("userId", json!("alice")),
            ("modelId", json!("mia")),
            ("escrowId", json!(escrow)),
            ("amount", json!("10")),
            ("featureType", json!("solo")),
            ("status", json!("queued")),
            ("statusReason", Value::Null),
            ("priority", json!(3)),
            ("startedAt", Value::Null),
            ("completedAt", Value::Null),
            ("metadata", json!({ "room": 7, "note": "é" })),
        ] {
            assert_eq!(item[field], expected, "{field}");
        }
        assert!(item["createdAt"].as_str().unwrap().ends_with('Z'));
        assert_eq!(site.item(item["queueItemId"].as_str().unwrap()), *item);
        // Whole numbers are amounts too, as the guide sends them; nothing else is.
        let number = with(intake(&site.hold()), &json!({ "amount": 10 }));
        assert_eq!(site.post("items", &number).status, 201);
        let float = with(intake(&site.hold()), &json!({ "amount": 10.0 }));
        refused(&site.post("items", &float), 400, "INVALID_AMOUNT");
    });
}

#[test]
fn an_intake_says_everything_and_nothing_else() {
    let site = Site::open(Mode::One, &[]);
    let good = intake(&site.hold());
    for field in ["userId", "modelId", "escrowId", "amount", "featureType"] {
        let mut missing = good.clone();
        missing.as_object_mut().unwrap().remove(field);
        refused(&site.post("items", &missing), 400, "INVALID_REQUEST");
    }
    for (fields, code) in [
        (json!({ "colour": "red" }), "INVALID_REQUEST"),
        (json!({ "priority": 1.5 }), "INVALID_REQUEST"),
        (json!({ "priority": 3_000_000_000_u64 }), "INVALID_REQUEST"),
        (json!({ "metadata": [1] }), "INVALID_REQUEST"),
        (json!({ "metadata": { "long": "x".repeat(1_024) } }), "INVALID_REQUEST"),
        (json!({ "userId": "al ice" }), "INVALID_ID"),
        (json!({ "idempotencyKey": "" }), "INVALID_ID"),
        (json!({ "amount": "-1" }), "INVALID_AMOUNT"),
    ] {
        refused(&site.post("items", &with(good.clone(), &fields)), 400, code);
    }
    let both_keys = with(good.clone(), &json!({ "idempotencyKey": "one" }));
    refused(&site.post_once("items", "two", &both_keys), 400, "INVALID_REQUEST");
    assert_eq!(site.post_once("items", "one", &both_keys).status, 201);
}

#[test]
fn the_escrow_of_an_intake_is_held_unlinked_and_of_the_same_user_amount_and_feature() {
    everywhere(|site| {
        let check = |body: &Value, expected: &str| {
            let answer = site.post("items", body);
            refused(&answer, 409, "ESCROW_LINKAGE_ERROR");
            assert_eq!(answer.body["error"]["details"]["check"], expected, "{answer:?}");
        };
        let escrow = site.hold();
        check(&intake("esc_none"), "not_found");
        check(&with(intake(&escrow), &json!({ "userId": "bob" })), "user");
        check(&with(intake(&escrow), &json!({ "amount": "9.999999" })), "amount");
        check(&with(intake(&escrow), &json!({ "featureType": "group" })), "feature_type");
        assert_eq!(site.post("items", &intake(&escrow)).status, 201);
        check(&intake(&escrow), "linked");
        check(&with(intake(&escrow), &json!({ "modelId": "max" })), "linked");
        let gone = site.hold();
        site.wallet.server().client().ok(json!({ "op": "escrow_refund", "escrow_id": gone, "key": "by-hand" }));
        check(&intake(&gone), "not_held");
    });
}

#[test]
fn an_intake_repeated_with_its_key_is_one_item() {
    everywhere(|site| {
        let body = intake(&site.hold());
        let first = site.post_once("items", "order-1", &body);
        let again = site.post_once("items", "order-1", &body);
        assert_eq!((first.status, again.status, &first.body), (201, 201, &again.body));
        assert!(first.headers.get("idempotent-replayed").is_none());
        assert_eq!(again.headers["idempotent-replayed"], "true");
        refused(&site.post_once("items", "order-1", &intake(&site.hold())), 409, "ALREADY_USED_KEY");
        // It is known as it is now, though its escrow has ended since.
        let id = first.body["queueItemId"].as_str().unwrap();
        site.done(id, "abandon", abandon("performer_declined"));
        let later = site.post_once("items", "order-1", &body);
        assert_eq!((later.status, &later.body["status"]), (201, &json!("abandoned")));
    });
}

#[test]
fn performance_start_and_finish() {
    everywhere(|site| {
        let id = site.enqueue();
        let started = site.done(&id, "start", json!({}));
        assert_eq!((&started["status"], &started["completedAt"]), (&json!("in_progress"), &Value::Null));
        assert!(started["startedAt"].is_string());
        let finished = site.done(&id, "finish", json!({ "modelId": "mia" }));
        assert_eq!((&finished["status"], &finished["startedAt"]), (&json!("finished"), &started["startedAt"]));
        assert_eq!(finished["statusReason"], "performance_completed");
        assert_eq!((&finished["settleAmount"], finished.get("refundAmount")), (&json!("10"), None));
        assert!(finished["completedAt"].is_string());
        assert_eq!(finished["settlement"]["processedAt"], finished["completedAt"]);
    });
}

#[test]
fn who_finishes_may_name_the_payee_and_then_it_is_the_items() {
    let site = Site::open(Mode::One, &[]);
    let id = site.started();
    refused(&site.post(&format!("items/{id}/finish"), &json!({ "modelId": "max" })), 400, "INVALID_REQUEST");
    assert_eq!(site.money(), money("90", "10", "0"));
    site.done(&id, "finish", json!({}));
}

#[test]
fn settlement_authorization_generation() {
    everywhere(|site| {
        let id = site.started();
        let settlement = site.done(&id, "finish", json!({}))["settlement"].clone();
        for (field, expected) in
            [("status", "settled"), ("modelId", "mia"), ("settleAmount", "10"), ("reason", "performance_completed")]
        {
            assert_eq!(settlement[field], expected, "{settlement}");
        }
        assert_eq!(settlement["queueItemId"], json!(id), "the escrow itself says which item ended it");
        assert_eq!(metric(&site.wallet, r#"holdfast_authorization_checks_total{result="accepted"}"#), 1);
    });
}

#[test]
fn refund_authorization_generation() {
    everywhere(|site| {
        let id = site.enqueue();
        let refund = site.done(&id, "abandon", abandon("performer_declined"))["settlement"].clone();
        for (field, expected) in [("status", "refunded"), ("refundAmount", "10"), ("reason", "performer_declined")] {
            assert_eq!(refund[field], expected, "{refund}");
        }
        assert_eq!(refund["queueItemId"], json!(id));
        assert_eq!(metric(&site.wallet, r#"holdfast_authorization_checks_total{result="accepted"}"#), 1);
    });
}

#[test]
fn partial_settlement_calculations() {
    everywhere(|site| {
        let mut earned = 0_u64;
        for (settle, refund) in [("10", "0"), ("0", "10"), ("0.000001", "9.999999"), ("3.999999", "6.000001")] {
            let id = site.started();
            let divided = site.done(&id, "partial", partial(settle, refund));
            assert_eq!((&divided["settleAmount"], &divided["refundAmount"]), (&json!(settle), &json!(refund)));
            earned += micro(settle);
            assert_eq!(micro(&site.money().2), earned);
        }
        site.check_books();
    });
}

fn micro(text: &str) -> u64 {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    format!("{whole}{part:0<6}").parse().unwrap()
}

#[test]
fn amount_mismatch_in_partial_settlement() {
    everywhere(|site| {
        let id = site.started();
        for (settle, refund) in [("5", "4"), ("5", "5.000001"), ("10", "10"), ("0", "0")] {
            let answer = site.post(&format!("items/{id}/partial"), &partial(settle, refund));
            refused(&answer, 400, "INVALID_SPLIT");
            assert_eq!(answer.body["error"]["details"]["amount_cu"], "10");
        }
        for (settle, refund) in [("-1", "11"), ("11", "-1"), ("1e1", "0"), ("", "10")] {
            refused(&site.post(&format!("items/{id}/partial"), &partial(settle, refund)), 400, "INVALID_AMOUNT");
        }
        assert_eq!((site.status(&id), site.money()), ("in_progress".to_owned(), money("90", "10", "0")));
    });
}

#[test]
fn end_to_end_escrow_flow_hold_to_settle() {
    everywhere(|site| {
        assert_eq!(site.money(), money("100", "0", "0"));
        let id = site.started();
        assert_eq!(site.money(), money("90", "10", "0"));
        site.done(&id, "finish", json!({}));
        assert_eq!(site.money(), money("90", "0", "10"));
        site.check_books();
    });
}

#[test]
fn end_to_end_refund_flow_hold_to_refund() {
    everywhere(|site| {
        let id = site.enqueue();
        assert_eq!(site.money(), money("90", "10", "0"));
        site.done(&id, "abandon", abandon("user_disconnected"));
        assert_eq!(site.money(), money("100", "0", "0"));
        site.check_books();
    });
}

#[test]
fn partial_settlement_flow() {
    everywhere(|site| {
        let id = site.started();
        let body = json!({ "settleAmount": 4, "refundAmount": 6, "reason": "quality_issue" });
        let divided = site.done(&id, "partial", body);
        assert_eq!((&divided["status"], &divided["statusReason"]), (&json!("partial"), &json!("quality_issue")));
        assert_eq!(divided["settlement"]["status"], "partial");
        assert_eq!(site.money(), money("96", "0", "4"));
        site.check_books();
    });
}

#[test]
fn idempotency_of_duplicate_settlement_attempts() {
    everywhere(|site| {
        let id = site.started();
        site.done(&id, "finish", json!({}));
        for _ in 0..3 {
            let answer = site.post(&format!("items/{id}/finish"), &json!({}));
            refused(&answer, 409, "INVALID_QUEUE_STATE");
            let details = &answer.body["error"]["details"];
            assert_eq!((&details["current"], &details["expected"]), (&json!("finished"), &json!(["in_progress"])));
        }
        assert_eq!(site.money(), money("90", "0", "10"));
    });
}

/// Every state × every operation, with the exact error, over HTTP.
#[test]
fn error_handling_for_all_scenarios() {
    everywhere(|site| {
        let operations = [
            ("start", json!({}), vec!["queued"]),
            ("finish", json!({}), vec!["in_progress"]),
            ("abandon", abandon("admin_cancelled"), vec!["queued", "in_progress"]),
            ("partial", partial("4", "6"), vec!["in_progress"]),
        ];
        let to_reach: [(&str, &[(&str, Value)]); 5] = [
            ("queued", &[]),
            ("in_progress", &[("start", json!({}))]),
            ("finished", &[("start", json!({})), ("finish", json!({}))]),
            ("abandoned", &[("abandon", abandon("user_disconnected"))]),
            ("partial", &[("start", json!({})), ("partial", partial("1", "9"))]),
        ];
        for (state, steps) in to_reach {
            for (operation, body, allowed) in &operations {
                let id =
                    site.post("items", &with(intake(&site.hold_of("alice", "1", "solo")), &json!({ "amount": "1" })));
                let id = id.body["queueItemId"].as_str().unwrap().to_owned();
                let body = if *operation == "partial" { partial("0.4", "0.6") } else { body.clone() };
                for (step, body) in steps {
                    let body = if *step == "partial" { partial("0.1", "0.9") } else { body.clone() };
                    site.done(&id, step, body);
                }
                let (before, item) = (site.money(), site.item(&id));
                let answer = site.post(&format!("items/{id}/{operation}"), &body);
                if allowed.contains(&state) {
                    assert_eq!(answer.status, 200, "{state} {operation}: {answer:?}");
                    if *operation == "start" {
                        site.done(&id, "finish", json!({}));
                    }
                } else {
                    refused(&answer, 409, "INVALID_QUEUE_STATE");
                    let details = &answer.body["error"]["details"];
                    assert_eq!((&details["current"], &details["expected"]), (&json!(state), &json!(allowed)));
                    assert_eq!(
                        (site.money(), site.item(&id)),
                        (before, item),
                        "{state} {operation}: nothing has changed"
                    );
                    site.post(&format!("items/{id}/abandon"), &abandon("admin_cancelled"));
                }
            }
        }
        site.check_books();
        for (path, body) in [("start", json!({})), ("finish", json!({})), ("abandon", abandon("admin_cancelled"))] {
            refused(&site.post(&format!("items/qi_none/{path}"), &body), 404, "QUEUE_ITEM_NOT_FOUND");
        }
        refused(&site.get("items/qi_none"), 404, "QUEUE_ITEM_NOT_FOUND");
        refused(&site.get(&format!("items/{}", "q".repeat(51))), 400, "INVALID_ID");
    });
}

#[test]
fn an_end_has_one_of_the_reasons_and_a_finish_has_its_own() {
    let site = Site::open(Mode::One, &[]);
    let id = site.started();
    for reason in ["", "because", "performance_completed", "Performer_Declined"] {
        refused(&site.post(&format!("items/{id}/abandon"), &abandon(reason)), 400, "INVALID_REASON");
    }
    refused(&site.post(&format!("items/{id}/abandon"), &json!({})), 400, "INVALID_REQUEST");
    assert_eq!(site.status(&id), "in_progress");
    let reasons = ["user_disconnected", "performer_declined", "rope_drop_timeout", "admin_cancelled", "quality_issue"];
    for reason in reasons {
        let id = site.enqueue();
        assert_eq!(site.done(&id, "abandon", abandon(reason))["statusReason"], reason);
    }
}

#[test]
fn items_are_listed_and_taken_by_priority_then_age() {
    everywhere(|site| {
        let put = |priority: i32, payee: &str| {
            let body = json!({ "amount": "1", "priority": priority, "modelId": payee });
            let made = site.post("items", &with(intake(&site.hold_of("alice", "1", "solo")), &body));
            made.body["queueItemId"].as_str().unwrap().to_owned()
        };
        let (low, first, second) = (put(-1, "mia"), put(5, "mia"), put(5, "mia"));
        let other = put(9, "max");
        let listed = |query: &str| {
            let answer = site.get(&format!("items?{query}"));
            let items = answer.body["items"].as_array().unwrap().iter();
            let ids: Vec<String> = items.map(|item| item["queueItemId"].as_str().unwrap().to_owned()).collect();
            (ids, answer.body["next"].as_str().map(str::to_owned))
        };
        assert_eq!(listed("modelId=mia"), (vec![first.clone(), second.clone(), low.clone()], None));
        assert_eq!(listed("").0, vec![other.clone(), first.clone(), second.clone(), low.clone()]);
        let (page, next) = listed("modelId=mia&limit=2");
        assert_eq!((page, next.as_deref()), (vec![first.clone(), second.clone()], Some(second.as_str())));
        assert_eq!(listed(&format!("modelId=mia&limit=2&after={second}")), (vec![low.clone()], None));
        let mut taken = Vec::new();
        for path in ["next", "items/next", "next"] {
            let next = site.post(path, &json!({ "modelId": "mia" }));
            assert_eq!((next.status, &next.body["status"]), (200, &json!("in_progress")));
            taken.push(next.body["queueItemId"].as_str().unwrap().to_owned());
        }
        assert_eq!(taken, [first, second.clone(), low]);
        let none = site.post("next", &json!({ "modelId": "mia" }));
        assert_eq!((none.status, none.body), (204, json!("")));
        assert_eq!(listed("status=queued").0, vec![other]);
        site.done(&second, "finish", json!({}));
        assert_eq!(listed("status=finished").0, vec![second]);
        refused(&site.get("items?status=lost"), 400, "INVALID_REQUEST");
        refused(&site.get("items?limit=0"), 400, "INVALID_REQUEST");
    });
}

#[test]
fn user_disconnects_during_performance() {
    everywhere(|site| {
        let id = site.started();
        let refund = site.done(&id, "abandon", abandon("user_disconnected"));
        assert_eq!((&refund["status"], &refund["statusReason"]), (&json!("abandoned"), &json!("user_disconnected")));
        assert_eq!(site.money(), money("100", "0", "0"));
        // The service that finishes an item goes away without waiting for the answer: once it was heard, the item is finished all
        // the same. A server that sees the end together with the request has heard nothing, so it goes away ever later.
        let id = site.started();
        let half = site.queue_half();
        let address = half.server().url().strip_prefix("http://").unwrap().to_owned();
        let head = format!("POST /api/v1/queue/items/{id}/finish HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n");
        let mut stays = Duration::ZERO;
        let mut hang_up = || {
            let mut stream = TcpStream::connect(&address).unwrap();
            write!(stream, "{head}authorization: Bearer {}\r\n\r\n", half.token).unwrap();
            std::thread::sleep(stays);
            stays += Duration::from_micros(100);
        };
        let tried = || {
            hang_up();
            site.status(&id)
        };
        until(tried, |status| status == "finished");
        assert_eq!(site.money(), money("90", "0", "10"));
    });
}

#[test]
fn queue_item_abandoned_after_settlement_call() {
    everywhere(|site| {
        let id = site.started();
        site.done(&id, "finish", json!({}));
        let answer = site.post(&format!("items/{id}/abandon"), &abandon("user_disconnected"));
        refused(&answer, 409, "INVALID_QUEUE_STATE");
        let details = &answer.body["error"]["details"];
        assert_eq!(
            (&details["current"], &details["expected"]),
            (&json!("finished"), &json!(["queued", "in_progress"]))
        );
        assert_eq!(site.money(), money("90", "0", "10"));
    });
}

#[test]
fn escrow_already_processed() {
    everywhere(|site| {
        let operator = |request: Value| site.wallet.server().client().ok(request);
        let id = site.started();
        let escrow = site.item(&id)["escrowId"].clone();
        operator(json!({ "op": "escrow_refund", "escrow_id": escrow, "key": "by-hand-1" }));
        let answer = site.post(&format!("items/{id}/finish"), &json!({}));
        refused(&answer, 409, "INVALID_QUEUE_STATE");
        assert_eq!(answer.body["error"]["details"]["current"], "abandoned");
        let item = site.item(&id);
        assert_eq!((&item["status"], &item["statusReason"]), (&json!("abandoned"), &json!("admin_cancelled")));
        assert_eq!(site.money(), money("100", "0", "0"));
        // One that waits follows too: it is not started, and not taken as the next.
        let id = site.enqueue();
        let escrow = site.item(&id)["escrowId"].clone();
        operator(json!({ "op": "escrow_settle", "escrow_id": escrow, "payee": "max", "key": "by-hand-2" }));
        assert_eq!(site.post("next", &json!({ "modelId": "mia" })).status, 204);
        refused(&site.post(&format!("items/{id}/start"), &json!({})), 409, "INVALID_QUEUE_STATE");
        assert_eq!(site.status(&id), "finished");
    });
}

/// A token with these claims, as the queue would sign it.
fn signed(claims: &Value) -> String {
    let head = json!({ "alg": "HS256", "typ": "queue-authorization+jwt", "kid": "queue" });
    let [head, claims] = [&head, claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string()));
    let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes());
    let signature = hmac::sign(&key, format!("{head}.{claims}").as_bytes());
    format!("{head}.{claims}.{}", URL_SAFE_NO_PAD.encode(signature))
}

#[test]
fn authorization_token_expired() {
    let site = Site::open(Mode::Two, &[]);
    let id = site.started();
    let escrow = site.item(&id)["escrowId"].as_str().unwrap().to_owned();
    let settle = |iat: u64| {
        let moment = |second: u64| {
            let (hours, minutes, seconds) = (second / 3_600 % 24, second / 60 % 60, second % 60);
            format!("{}T{hours:02}:{minutes:02}:{seconds:02}.000Z", day(second / 86_400))
        };
        let exp = iat + 300;
        let token = signed(&json!({
            "queueItemId": id, "escrowId": escrow, "modelId": "mia", "amount": "10", "operation": "settle",
            "reason": "performance_completed", "issuedAt": moment(iat), "expiresAt": moment(exp),
            "iss": "holdfast-queue", "aud": "holdfast-wallet", "iat": iat, "exp": exp, "jti": "j1",
        }));
        let body = json!({
            "modelId": "mia", "amount": "10", "queueItemId": id, "reason": "performance_completed",
            "authorizationToken": token, "idempotencyKey": format!("queue-{id}-settle"),
        });
        site.wallet_post(&format!("escrows/{escrow}/settle"), &body)
    };
    let now = SystemClock::start().now().millis() / 1_000;
    for (iat, why) in [(now - 331, "expired"), (now - 86_400, "expired"), (now + 40, "future")] {
        let answer = settle(iat);
        refused(&answer, 403, "INVALID_AUTHORIZATION");
        assert!(answer.body["error"]["message"].as_str().unwrap().contains(why), "{answer:?}");
        assert_eq!((site.status(&id), site.money()), ("in_progress".to_owned(), money("90", "10", "0")));
    }
    // The queue signs a new one for each word.
    site.done(&id, "finish", json!({}));
    assert_eq!(site.money(), money("90", "0", "10"));
    // A token that was good, used again: the first answer, and nothing moves.
    assert_eq!(settle(now).status, 200);
    assert_eq!(site.money(), money("90", "0", "10"));
}

/// The date so many days after the epoch.
fn day(days: u64) -> String {
    let (mut year, mut left) = (1970, days);
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    while left >= 365 + u64::from(is_leap(year)) {
        left -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let months = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while left >= months[month] {
        left -= months[month];
        month += 1;
    }
    format!("{year:04}-{:02}-{:02}", month + 1, left + 1)
}

/// A number of a process' metrics; 0 if it is not there.
fn metric(half: &crate::queue_world::Half, name: &str) -> u64 {
    let text = reqwest::blocking::get(format!("{}/metrics", half.server().url())).unwrap().text().unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map_or(0, |number| number.trim().parse().unwrap())
}

/// 1,000 at once on one item: one verdict, and every other caller is told so or gets its answer.
#[test]
fn a_thousand_ends_at_once_are_one_end() {
    everywhere(|site| {
        let id = site.started();
        let half = site.queue_half();
        let (url, token) = (format!("{}/api/v1/queue/items/{id}", half.server().url()), half.token.clone());
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let answers: Vec<(usize, u16, bool, Value)> = runtime.block_on(async {
            let client = reqwest::Client::builder().no_proxy().build().unwrap();
            let asking = (0..1_000).map(|number: usize| {
                let (what, body) = match number % 3 {
                    0 => ("finish", json!({})),
                    1 => ("abandon", abandon("user_disconnected")),
                    _ => ("partial", partial("4", "6")),
                };
                let request = client.post(format!("{url}/{what}")).bearer_auth(&token).json(&body);
                tokio::spawn(async move {
                    loop {
                        let answer = request.try_clone().unwrap().send().await.unwrap();
                        // A database with few connections may not come to all of them in time: those ask again, as they are told.
                        if answer.status().as_u16() == 503 && answer.headers().contains_key("retry-after") {
                            continue;
                        }
                        let replayed = answer.headers().contains_key("idempotent-replayed");
                        return (number % 3, answer.status().as_u16(), replayed, answer.json().await.unwrap());
                    }
                })
            });
            let asking: Vec<_> = asking.collect();
            let mut answers = Vec::new();
            for asked in asking {
                answers.push(asked.await.unwrap());
            }
            answers
        });
        let item = site.item(&id);
        let state = item["status"].as_str().unwrap();
        let verdict = ["finished", "abandoned", "partial"].iter().position(|name| *name == state).unwrap();
        let first = answers.iter().filter(|(_, status, replayed, _)| *status == 200 && !replayed).count();
        assert_eq!(first, 1, "exactly one did it");
        let mut seen: BTreeMap<u16, usize> = BTreeMap::new();
        for (asked, status, _, body) in &answers {
            *seen.entry(*status).or_default() += 1;
            match status {
                200 => {
                    assert_eq!((*asked, &body["status"]), (verdict, &item["status"]), "only the same word is answered")
                }
                409 => {
                    assert_eq!(body["error"]["code"], "INVALID_QUEUE_STATE", "{body}");
                    assert_eq!(body["error"]["details"]["current"], item["status"]);
                }
                _ => panic!("{status}: {body}"),
            }
        }
        assert_eq!(seen.values().sum::<usize>(), 1_000);
        let expected = [money("90", "0", "10"), money("100", "0", "0"), money("96", "0", "4")];
        assert_eq!(site.money(), expected[verdict], "{seen:?}");
        let ends = metric(half, &format!(r#"holdfast_queue_ends_total{{verdict="{state}"}}"#));
        assert_eq!(ends, 1, "an end is counted once");
        site.check_books();
    });
}

#[test]
fn what_nobody_takes_up_in_time_is_given_back_by_kind_of_work() {
    let settings = [("HOLDFAST_QUEUE_ROPE_DROP", "solo=300ms,group=1h,*=never")];
    for mode in Mode::ALL {
        let site = Site::open(mode, &settings);
        let put = |feature: &str| {
            let body = with(intake(&site.hold_of("alice", "10", feature)), &json!({ "featureType": feature }));
            site.post("items", &body).body
        };
        let id = |item: &Value| item["queueItemId"].as_str().unwrap().to_owned();
        let (solo, group, other) = (put("solo"), put("group"), put("other"));
        assert!(solo["dropAt"].is_string() && group["dropAt"].is_string() && other.get("dropAt").is_none());
        until(|| site.status(&id(&solo)), |status| status == "abandoned");
        assert_eq!(site.item(&id(&solo))["statusReason"], "rope_drop_timeout");
        assert_eq!((site.status(&id(&group)), site.status(&id(&other))), ("queued".to_owned(), "queued".to_owned()));
        assert_eq!(site.money(), money("80", "20", "0"));
        refused(&site.post(&format!("items/{}/start", id(&solo)), &json!({})), 409, "INVALID_QUEUE_STATE");
        // One that was taken up in time is not dropped, and an item that comes later has its own time.
        let taken = put("solo");
        site.done(&id(&taken), "start", json!({}));
        let later = put("solo");
        until(|| site.status(&id(&later)), |status| status == "abandoned");
        assert_eq!(site.status(&id(&taken)), "in_progress");
    }
}

#[test]
fn an_operator_sees_and_moves_items_on_the_control_socket() {
    everywhere(|site| {
        let operator = |request: Value| site.queue_half().server().client().ok(request);
        let (one, two, three) = (site.enqueue(), site.enqueue(), site.enqueue());
        let listed = operator(json!({ "op": "queue_list", "payee": "mia", "limit": 2 }));
        assert_eq!((listed["items"].as_array().unwrap().len(), &listed["next"]), (2, &json!(two)));
        assert_eq!(operator(json!({ "op": "queue_item", "id": one }))["status"], "queued");
        assert_eq!(operator(json!({ "op": "queue_start", "id": one }))["status"], "in_progress");
        assert_eq!(operator(json!({ "op": "queue_finish", "id": one }))["status"], "finished");
        assert_eq!(operator(json!({ "op": "queue_next", "payee": "mia" }))["queueItemId"], json!(two));
        let partial =
            json!({ "op": "queue_partial", "id": two, "settle_cu": "1", "refund_cu": "9", "reason": "quality_issue" });
        assert_eq!(operator(partial)["settlement"]["status"], "partial");
        let abandon = json!({ "op": "queue_abandon", "id": three, "reason": "admin_cancelled" });
        assert_eq!(operator(abandon)["status"], "abandoned");
        assert_eq!(operator(json!({ "op": "queue_next", "payee": "mia" }))["queueItemId"], Value::Null);
        let mut client = site.queue_half().server().client();
        for (line, code) in [
            (json!({ "op": "queue_item", "id": "qi_none" }), "QUEUE_ITEM_NOT_FOUND"),
            (json!({ "op": "queue_start", "id": one }), "INVALID_QUEUE_STATE"),
            (json!({ "op": "queue_abandon", "id": one, "reason": "x" }), "INVALID_REASON"),
            (json!({ "op": "queue_list", "state": "x" }), "INVALID_REQUEST"),
        ] {
            assert_eq!(client.refused(line.to_string().as_bytes()), code, "{line}");
        }
        assert_eq!(site.money(), money("89", "0", "11"));
    });
}

#[test]
fn an_escrow_that_no_item_has_is_an_orphan_and_is_given_back_once() {
    let settings = [("HOLDFAST_QUEUE_ORPHAN_AFTER", "0s")];
    for mode in Mode::ALL {
        let site = Site::open(mode, &settings);
        let (item, orphan) = (site.enqueue(), site.hold());
        let operator = |request: Value| site.queue_half().server().client().ask(request);
        let found = operator(json!({ "op": "escrow_orphans" }));
        assert_eq!((&found["orphans"][0]["escrowId"], &found["orphans"][1]), (&json!(orphan), &Value::Null));
        let refund = json!({ "op": "escrow_orphan_refund", "escrow_id": orphan });
        let given_back = operator(refund.clone());
        assert_eq!(
            (&given_back["status"], &given_back["statusReason"]),
            (&json!("abandoned"), &json!("admin_cancelled"))
        );
        assert_eq!(
            (&given_back["modelId"], &given_back["settlement"]["status"]),
            (&json!("nobody"), &json!("refunded"))
        );
        assert_eq!(site.money(), money("90", "10", "0"));
        // A late intake cannot have it, and a second word changes nothing.
        assert_eq!(site.post("items", &intake(&orphan)).body["error"]["details"]["check"], "not_held");
        assert_eq!(operator(refund)["error"]["code"], "INVALID_QUEUE_STATE");
        assert_eq!(operator(json!({ "op": "escrow_orphans" }))["orphans"], json!([]));
        let linked = site.item(&item)["escrowId"].clone();
        let refused = operator(json!({ "op": "escrow_orphan_refund", "escrow_id": linked }));
        assert_eq!(
            (&refused["error"]["code"], &refused["error"]["check"]),
            (&json!("ESCROW_LINKAGE_ERROR"), &json!("linked"))
        );
    }
}

#[test]
fn the_alert_rules_are_about_metrics_that_there_are() {
    // A peer that nobody is: the rules are about settlement too.
    let settings = [("HOLDFAST_QUEUE_ORPHAN_AFTER", "0s"), ("HOLDFAST_PEER_URL", "http://127.0.0.1:9")];
    let mut site = Site::open(Mode::One, &settings);
    let id = site.started();
    site.done(&id, "finish", json!({}));
    site.enqueue();
    site.hold();
    // What it finds at its start is what the metrics say first.
    site.wallet.server.take().unwrap().stop();
    site.start();
    until(|| metric(&site.wallet, "holdfast_escrow_orphans"), |orphans| *orphans == 1);
    assert_eq!(metric(&site.wallet, r#"holdfast_queue_items{state="queued"}"#), 1);
    let text = reqwest::blocking::get(format!("{}/metrics", site.wallet.server().url())).unwrap().text().unwrap();
    let rules = include_str!("../../../../deploy/alerts.yml");
    let words = rules.split(|character: char| !(character.is_ascii_alphanumeric() || character == '_'));
    let named: std::collections::BTreeSet<&str> = words.filter(|word| word.starts_with("holdfast_")).collect();
    assert!(named.len() >= 8, "{named:?}");
    for name in named {
        assert!(
            text.lines().any(|line| line.starts_with(&format!("{name} ")) || line.starts_with(&format!("{name}{{"))),
            "{name}"
        );
    }
    for name in ["holdfast_queue_processing_seconds_bucket", "holdfast_queue_settlements_total"] {
        assert!(text.contains(name), "{name}");
    }
}
