//! Escrows and wallets over HTTP: every state and every operation, keys, what is kept beside them, and secrets.

use crate::escrows_world::{Bank, ENGINES, Engine, OTHER_SECRET, SECRET, Says, Word, head, node, sign};
use crate::http_world::Answer;
use crate::settlement_world::until;
use crate::world::World;
use holdfast_adapters::postgres::Database;
use reqwest::Method;
use serde_json::{Value, json};
use std::thread;

const SAYS: [Says; 3] = [Says::Settle, Says::Refund, Says::Partial];

fn hold_body(key: &str, amount: Value) -> Value {
    json!({ "userId": "alice", "amount": amount, "featureType": "dance", "idempotencyKey": key })
}

fn is_replay(answer: &Answer) -> bool {
    answer.headers.get("idempotent-replayed").is_some_and(|value| value == "true")
}

#[test]
fn every_operation_in_every_state_does_what_it_says_or_is_refused_on_either_engine() {
    for engine in ENGINES {
        let bank = Bank::open(engine);
        let (mut spent, mut earned) = (0, 0);
        for (number, first) in SAYS.into_iter().enumerate() {
            let escrow = bank.held(&format!("hold-{number}"), "10");
            let held = bank.show(&escrow);
            assert_eq!((&held["status"], &held["amount"]), (&json!("held"), &json!("10")));
            assert!(held.get("processedAt").is_none() && held.get("reason").is_none(), "{held}");
            let word = Word::new(first, &escrow).by_key(&format!("first-{number}"));
            let done = bank.ask(&word);
            assert_eq!(done.status, 200, "{engine:?} {first:?} {done:?}");
            assert!(!is_replay(&done));
            let (status, settled, refunded, model, reason) = match first {
                Says::Settle => ("settled", json!("10"), Value::Null, json!("mia"), "performance_completed"),
                Says::Refund => ("refunded", Value::Null, json!("10"), Value::Null, "user_disconnected"),
                Says::Partial => ("partial", json!("7"), json!("3"), json!("mia"), "partial_delivery"),
            };
            (spent, earned) = match first {
                Says::Settle => (spent + 10, earned + 10),
                Says::Refund => (spent, earned),
                Says::Partial => (spent + 7, earned + 7),
            };
            assert_eq!(done.body["status"], status);
            assert_eq!((&done.body["settleAmount"], &done.body["refundAmount"]), (&settled, &refunded));
            assert_eq!((&done.body["modelId"], &done.body["reason"]), (&model, &json!(reason)));
            assert_eq!((&done.body["queueItemId"], &done.body["createdAt"]), (&json!("qi_1"), &held["createdAt"]));
            assert_eq!(bank.show(&escrow), done.body, "what is shown is what was answered");
            // The same word again has the first answer; any other, whatever it says, comes too late.
            let again = bank.ask(&word);
            assert_eq!((again.status, &again.body, is_replay(&again)), (200, &done.body, true));
            for (late, second) in SAYS.into_iter().enumerate() {
                let refused = bank.ask(&Word::new(second, &escrow).by_key(&format!("late-{number}-{late}")));
                assert_eq!((refused.status, refused.code()), (409, "ESCROW_ALREADY_PROCESSED"), "{first:?} {second:?}");
                assert_eq!(refused.body["error"]["details"]["state"], status);
            }
            let expected = (json!((100 - spent).to_string()), json!(earned.to_string()));
            assert_eq!(bank.money(), expected, "{engine:?} {first:?}");
        }
        for says in SAYS {
            let refused = bank.ask(&Word::new(says, "esc_nobody"));
            assert_eq!((refused.status, refused.code()), (404, "ESCROW_NOT_FOUND"), "{engine:?} {says:?}");
        }
        assert_eq!(bank.site.get("/api/v1/escrows/esc_nobody").code(), "ESCROW_NOT_FOUND");
        assert_eq!(bank.site.get("/api/v1/wallets/nobody").code(), "ACCOUNT_NOT_FOUND");
    }
}

#[test]
fn a_key_holds_once_and_its_first_answer_stays() {
    for engine in ENGINES {
        let bank = Bank::open(engine);
        let body = hold_body("h1", json!(10));
        let first = bank.hold(&body);
        assert_eq!((first.status, is_replay(&first)), (201, false), "{first:?}");
        let said = ["escrowId", "userId", "amount", "featureType", "status", "createdAt"];
        assert_eq!(first.body.as_object().unwrap().len(), said.len(), "{first:?}");
        assert!(said.iter().all(|field| first.body[*field].is_string()));
        assert_eq!((&first.body["amount"], &first.body["status"]), (&json!("10"), &json!("held")));
        let again = bank.hold(&hold_body("h1", json!("10")));
        assert_eq!((again.status, &again.body, is_replay(&again)), (201, &first.body, true));
        // The key may be said in a header, or in both if it is one.
        let mut bare = body.clone();
        bare.as_object_mut().unwrap().remove("idempotencyKey");
        assert_eq!(bank.site.post_once("/api/v1/escrows", "h1", &bare).body, first.body);
        assert_eq!(bank.site.post_once("/api/v1/escrows", "h1", &body).body, first.body);
        let two_keys = bank.site.post_once("/api/v1/escrows", "h2", &body);
        assert_eq!((two_keys.status, two_keys.code()), (400, "INVALID_REQUEST"));
        for other in [
            hold_body("h1", json!(11)),
            json!({ "userId": "alice", "amount": "10", "featureType": "song", "idempotencyKey": "h1" }),
        ] {
            let refused = bank.hold(&other);
            assert_eq!((refused.status, refused.code()), (409, "ALREADY_USED_KEY"), "{other}");
        }
        assert_eq!(bank.money().0, "90");
        // Its escrow ends, and the hold's first answer is still what it was.
        let word = Word::new(Says::Refund, first.body["escrowId"].as_str().unwrap());
        assert_eq!(bank.ask(&word).status, 200);
        assert_eq!(bank.hold(&body).body, first.body);
    }
}

#[test]
fn many_callers_with_one_key_hold_once() {
    for engine in ENGINES {
        let bank = Bank::open(engine);
        let ids: Vec<(u16, Value, bool)> = thread::scope(|scope| {
            let ask = || {
                let answer = bank.hold(&hold_body("one", json!("10")));
                (answer.status, answer.body["escrowId"].clone(), is_replay(&answer))
            };
            let asking: Vec<_> = (0..64).map(|_| scope.spawn(ask)).collect();
            asking.into_iter().map(|asking| asking.join().unwrap()).collect()
        });
        assert!(ids.iter().all(|(status, id, _)| *status == 201 && *id == ids[0].1), "{ids:?}");
        assert_eq!(ids.iter().filter(|(_, _, replayed)| !replayed).count(), 1, "{engine:?}");
        assert_eq!(bank.money().0, "90");
        let word = Word::new(Says::Settle, ids[0].1.as_str().unwrap());
        let settled: Vec<(u16, bool)> = thread::scope(|scope| {
            let ask = || {
                let answer = bank.ask(&word);
                (answer.status, is_replay(&answer))
            };
            let asking: Vec<_> = (0..32).map(|_| scope.spawn(ask)).collect();
            asking.into_iter().map(|asking| asking.join().unwrap()).collect()
        });
        assert_eq!(settled.iter().filter(|answer| **answer == (200, false)).count(), 1, "{settled:?}");
        assert_eq!(settled.iter().filter(|answer| **answer == (200, true)).count(), 31, "{settled:?}");
        assert_eq!(bank.money(), (json!("90"), json!("10")));
    }
}

#[test]
fn a_hold_that_cannot_be_is_refused_with_what_is_wrong() {
    let bank = Bank::open(Engine::Embedded);
    let poor = bank.hold(&hold_body("h1", json!("100.5")));
    assert_eq!((poor.status, poor.code()), (402, "INSUFFICIENT_BALANCE"));
    let details = &poor.body["error"]["details"];
    let figures = [&details["available_cu"], &details["required_cu"], &details["deficit_cu"]];
    assert_eq!(figures, [&json!("100"), &json!("100.5"), &json!("0.5")]);
    let nobody = json!({ "userId": "nobody", "amount": "1", "featureType": "dance", "idempotencyKey": "h2" });
    assert_eq!(bank.hold(&nobody).code(), "ACCOUNT_NOT_FOUND");
    for (name, value, code) in [
        ("amount", json!(1.5), "INVALID_AMOUNT"),
        ("amount", json!(10.0), "INVALID_AMOUNT"),
        ("amount", json!(1e3), "INVALID_AMOUNT"),
        ("amount", json!(-1), "INVALID_AMOUNT"),
        ("amount", json!("-1"), "INVALID_AMOUNT"),
        ("amount", json!("1.50"), "INVALID_AMOUNT"),
        ("amount", json!(0), "INVALID_AMOUNT"),
        ("amount", json!(u64::MAX), "INVALID_AMOUNT"),
        ("amount", json!(null), "INVALID_AMOUNT"),
        ("amount", json!([1]), "INVALID_AMOUNT"),
        ("userId", json!("user:alice"), "INVALID_ID"),
        ("userId", json!(""), "INVALID_ID"),
        ("userId", json!(7), "INVALID_REQUEST"),
        ("featureType", json!("a b"), "INVALID_ID"),
        ("idempotencyKey", json!("k".repeat(65)), "INVALID_ID"),
        ("metadata", json!([]), "INVALID_REQUEST"),
        ("metadata", json!("text"), "INVALID_REQUEST"),
        ("metadata", json!({ "long": "x".repeat(4_090) }), "INVALID_REQUEST"),
        ("requestId", json!("r".repeat(201)), "INVALID_REQUEST"),
        ("escrowId", json!("mine"), "INVALID_REQUEST"),
    ] {
        let mut body = hold_body("h3", json!("1"));
        body[name] = value.clone();
        let refused = bank.hold(&body);
        assert_eq!((refused.status, refused.code()), (400, code), "{name} {value} {refused:?}");
    }
    let mut bare = hold_body("h4", json!("1"));
    bare.as_object_mut().unwrap().remove("idempotencyKey");
    assert_eq!(bank.hold(&bare).code(), "KEY_REQUIRED");
    assert_eq!(bank.money().0, "100");
}

#[test]
fn what_is_said_of_an_escrow_is_kept_as_it_was_written_by_the_request_that_held_it() {
    for engine in ENGINES {
        let bank = Bank::open(engine);
        let say = |key: &str, amount: &str, metadata: &str| {
            let body = format!(
                r#"{{"userId":"alice","amount":"{amount}","featureType":"dance","idempotencyKey":"{key}","metadata":{metadata}}}"#
            );
            let request = bank.site.bare(Method::POST, "/api/v1/escrows").bearer_auth(&bank.site.service);
            bank.site.send(request.header("content-type", "application/json").body(body))
        };
        let first = say("m1", "10", r#"{"song": "a \u0000 b", "big": 12345678901234567}"#);
        assert_eq!(
            first.body["metadata"],
            json!({ "song": "a \u{0} b", "big": 12_345_678_901_234_567_u64 }),
            "{first:?}"
        );
        assert_eq!(say("m1", "10", r#"{"song":"another"}"#).body, first.body, "{engine:?}");
        assert_eq!(say("m1", "11", r#"{"song":"another"}"#).code(), "ALREADY_USED_KEY");
        let escrow = first.body["escrowId"].as_str().unwrap();
        assert_eq!(bank.show(escrow), first.body);
        assert_eq!(bank.ask(&Word::new(Says::Settle, escrow)).body["metadata"], first.body["metadata"]);
        // Of requests with one key, what was said by one that was refused does not stay.
        assert_eq!(say("m2", "1000", r#"{"by":"the refused"}"#).code(), "INSUFFICIENT_BALANCE");
        let second = say("m2", "10", r#"{"by":"the one that held"}"#);
        assert_eq!((second.status, &second.body["metadata"]["by"]), (201, &json!("the one that held")), "{second:?}");
        assert_eq!(bank.show(second.body["escrowId"].as_str().unwrap()), second.body);
        let listed = bank.site.get("/api/v1/escrows?status=held").body;
        assert_eq!(listed["escrows"], json!([second.body]));
    }
}

#[test]
fn held_escrows_are_listed_page_by_page() {
    for engine in ENGINES {
        let bank = Bank::open(engine);
        let mut ids: Vec<String> = (0..5).map(|number| bank.held(&format!("p{number}"), "1")).collect();
        let ended = ids.remove(2);
        let word = Word { amount: 1, ..Word::new(Says::Refund, &ended) };
        assert_eq!(bank.ask(&word).status, 200);
        ids.sort();
        let (mut seen, mut after) = (Vec::new(), String::new());
        loop {
            let page = bank.site.get(&format!("/api/v1/escrows?status=held&limit=3{after}")).body;
            let rows = page["escrows"].as_array().unwrap();
            assert!(rows.len() <= 3 && rows.iter().all(|row| row["status"] == "held"), "{page}");
            seen.extend(rows.iter().map(|row| row["escrowId"].as_str().unwrap().to_owned()));
            let Some(next) = page["next"].as_str() else { break };
            after = format!("&after={next}");
        }
        assert_eq!(seen, ids, "{engine:?}");
        for query in ["status=settled", "limit=0", "limit=1001", "after=a.b", "other=1"] {
            let refused = bank.site.get(&format!("/api/v1/escrows?{query}"));
            assert_eq!(refused.status, 400, "{query} {refused:?}");
        }
    }
}

#[test]
fn an_order_that_is_badly_said_is_refused_and_moves_nothing() {
    let bank = Bank::open(Engine::Embedded);
    let escrow = bank.held("h1", "10");
    for (says, name, value, code) in [
        (Says::Settle, "escrowId", json!("esc_other"), "INVALID_REQUEST"),
        (Says::Settle, "modelId", Value::Null, "INVALID_REQUEST"),
        (Says::Settle, "modelId", json!("a b"), "INVALID_ID"),
        (Says::Settle, "amount", Value::Null, "INVALID_REQUEST"),
        (Says::Settle, "amount", json!(10.5), "INVALID_AMOUNT"),
        (Says::Settle, "refundAmount", json!("0"), "INVALID_REQUEST"),
        (Says::Settle, "queueItemId", json!(""), "INVALID_ID"),
        (Says::Settle, "reason", json!("because"), "INVALID_REASON"),
        (Says::Settle, "idempotencyKey", Value::Null, "KEY_REQUIRED"),
        (Says::Settle, "other", json!(1), "INVALID_REQUEST"),
        (Says::Settle, "metadata", json!([]), "INVALID_REQUEST"),
        (Says::Refund, "userId", Value::Null, "INVALID_REQUEST"),
        (Says::Refund, "modelId", json!("mia"), "INVALID_REQUEST"),
        (Says::Partial, "settleAmount", Value::Null, "INVALID_REQUEST"),
        (Says::Partial, "refundAmount", json!("-1"), "INVALID_AMOUNT"),
        (Says::Partial, "amount", json!("10"), "INVALID_REQUEST"),
        (Says::Partial, "settleAmount", json!(u64::MAX), "INVALID_AMOUNT"),
    ] {
        let word = Word::new(says, &escrow);
        let mut body = word.body(&word.token());
        body[name] = value.clone();
        let refused = bank.site.post(&word.path(), &body);
        assert_eq!((refused.status, refused.code()), (400, code), "{says:?} {name} {value} {refused:?}");
    }
    // The parts of another whole: the queue has signed them, and the escrow does not allow them.
    let uneven = bank.ask(&Word { amount: 11, ..Word::new(Says::Partial, &escrow) });
    assert_eq!((uneven.status, uneven.code()), (400, "INVALID_SPLIT"), "{uneven:?}");
    assert_eq!(bank.money(), (json!("90"), Value::Null));
    assert_eq!(bank.show(&escrow)["status"], "held");
    // What the guide sends besides is taken: the escrow's name in the body too, a request's own name, words about it, numbers.
    let word = Word::new(Says::Settle, &escrow);
    let mut body = word.body(&word.token());
    body["escrowId"] = json!(escrow);
    body["userId"] = json!("alice");
    body["amount"] = json!(10);
    body["requestId"] = json!("req-1");
    body["metadata"] = json!({ "performanceDuration": 12 });
    let done = bank.site.post(&word.path(), &body);
    assert_eq!((done.status, &done.body["status"]), (200, &json!("settled")), "{done:?}");
}

#[test]
fn one_secret_follows_another_without_a_gap() {
    let both = format!("new:{OTHER_SECRET},old:{SECRET}");
    let bank = Bank::with(&[("HOLDFAST_QUEUE_SECRET", &both)]);
    let by = |kid: &str, secret: &str, word: &Word| {
        let mut head = head();
        head["kid"] = json!(kid);
        bank.site.post(&word.path(), &word.body(&sign(secret, &head, &word.claims())))
    };
    for (number, (kid, secret, status)) in [
        ("old", SECRET, 200),
        ("new", OTHER_SECRET, 200),
        ("old", OTHER_SECRET, 403),
        ("new", SECRET, 403),
        ("queue", SECRET, 403),
    ]
    .into_iter()
    .enumerate()
    {
        let word = Word::new(Says::Refund, &bank.held(&format!("h{number}"), "10"));
        let answer = by(kid, secret, &word);
        assert_eq!(answer.status, status, "{kid} {answer:?}");
    }
    let checks = |bank: &Bank| {
        let text = bank.site.send(bank.site.bare(Method::GET, "/metrics")).body.as_str().unwrap().to_owned();
        let of = |result: &str| {
            let head = format!("holdfast_authorization_checks_total{{result=\"{result}\"}} ");
            text.lines().find_map(|line| line.strip_prefix(&head)).unwrap().parse::<u64>().unwrap()
        };
        (of("accepted"), of("refused"))
    };
    assert_eq!(checks(&bank), (2, 3));
    // Without a secret in the settings, nobody outside of the process can sign.
    let alone = Bank::with(&[]);
    assert_eq!(checks(&alone), (0, 0));
    let escrow = alone.held("h1", "10");
    let refused = alone.ask(&Word::new(Says::Settle, &escrow));
    assert_eq!((refused.status, refused.code()), (403, "INVALID_AUTHORIZATION"));
    assert_eq!(checks(&alone), (0, 1));
}

#[test]
fn a_start_with_a_secret_that_could_be_guessed_is_refused_and_does_not_show_it() {
    for secret in ["short-0123", &"a".repeat(40), &"abc".repeat(20), &format!("new:{SECRET},old:hunter2hunter2")] {
        let world = World::new();
        let output = world.command(&["serve"]).env("HOLDFAST_QUEUE_SECRET", secret).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains("INVALID_SETTING"), "{said}");
        assert!(
            said.contains("HOLDFAST_QUEUE_SECRET") && !said.contains(secret) && !said.contains("hunter2"),
            "{said}"
        );
        assert!(!world.data().exists(), "it is refused before anything is made");
    }
}

#[test]
fn nodes_on_one_database_with_one_secret_are_one_wallet() {
    let bank = Bank::open(Engine::Postgres);
    let outbox = bank.outbox.as_ref().unwrap();
    let other = node(World::new(), &outbox.url());
    let body = json!({
        "userId": "alice", "amount": "10", "featureType": "dance", "idempotencyKey": "h1", "metadata": { "a": 1 },
    });
    let held = bank.hold(&body).body;
    let escrow = held["escrowId"].as_str().unwrap();
    assert_eq!(other.get(&format!("/api/v1/escrows/{escrow}")).body, held);
    let word = Word::new(Says::Settle, escrow);
    let settled = other.post(&word.path(), &word.body(&word.token()));
    assert_eq!(settled.status, 200, "{settled:?}");
    let again = bank.ask(&word);
    assert_eq!((again.status, &again.body, is_replay(&again)), (200, &settled.body, true));
}

#[test]
fn whoever_is_overtaken_at_every_try_is_told_to_ask_again() {
    let bank = Bank::open(Engine::Postgres);
    let escrow = bank.held("h1", "10");
    let word = Word::new(Says::Settle, &escrow);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let url = bank.outbox.as_ref().unwrap().server.url("postgres");
    let holder = runtime.block_on(async { Database::at(&url, None).unwrap().connect().await.unwrap() });
    let lock = "BEGIN; SELECT FROM holdfast.ledger_owners WHERE owner = 'alice' FOR UPDATE";
    runtime.block_on(holder.batch_execute(lock)).unwrap();
    let refused = bank.ask(&word);
    assert_eq!((refused.status, refused.code()), (409, "OPTIMISTIC_LOCK"), "{refused:?}");
    let header = |name: &str| refused.headers[name].to_str().unwrap();
    assert_eq!((header("retry-after"), header("x-should-retry")), ("1", "true"));
    runtime.block_on(holder.batch_execute("ROLLBACK")).unwrap();
    let done = until(|| bank.ask(&word), |answer| answer.status == 200);
    assert!(!is_replay(&done), "it was known to have done nothing");
    assert_eq!(bank.money(), (json!("90"), json!("10")));
}
