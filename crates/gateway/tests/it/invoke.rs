//! `POST /api/v1/invoke`: inference that a service asks for, at the expense of any account.

use crate::inference_world::{Shop, Told, amount, credits, millionths, with};
use holdfast_domain::CreditUnit;
use reqwest::Method;
use serde_json::{Value, json};

const WORDS: &str = "one two three";
const COST: u64 = 3 * 250 + 3 * 1_000;

fn invoke(shop: &Shop, token: &str, body: &Value, headers: &[(&str, &str)]) -> Told {
    let request = shop.site.bare(Method::POST, "/api/v1/invoke").bearer_auth(token).json(body);
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    Told::read(request.send().unwrap())
}

fn question(account: &str) -> Value {
    json!({ "account_id": account, "model": "gpt-4o", "messages": [{ "role": "user", "content": WORDS }] })
}

/// The kinds of a stream's events, in order. How many deltas its words come in is nobody's promise.
fn kinds(stream: &Told) -> Vec<&str> {
    let mut kinds: Vec<&str> = stream.text.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    kinds.dedup();
    kinds
}

#[test]
fn a_service_asks_for_an_account_whole_and_streamed() {
    let shop = Shop::open();
    let buyer = shop.buyer("100");
    let usage = json!({ "input_tokens": 1, "cached_input_tokens": 2, "cache_write_tokens": 0, "output_tokens": 3,
        "reasoning_tokens": 5 });
    let cost = millionths(250 + 2 * 125 + 3 * 1_000 + 5 * 2_000);
    let lines = json!([{ "do": "answer", "cached_tokens": 2, "reasoning_tokens": 5 }]);
    let mut left = credits("100");

    shop.script(lines.clone());
    let whole = invoke(&shop, &shop.site.service, &with(question(&buyer.account), json!({ "max_tokens": 20 })), &[]);
    assert_eq!(whole.status, 200, "{whole:?}");
    left = left.checked_sub(cost).unwrap();
    let told = whole.json();
    assert_eq!((&told["output"], &told["usage"]), (&json!(WORDS), &usage), "{told}");
    assert_eq!((amount(&told["cost_cu"]), amount(&told["balance_cu"])), (cost, left));
    assert_eq!(amount(&shop.charge(told["request_id"].as_str().unwrap())["charged_cu"]), cost);
    assert_eq!((buyer.balance(), shop.last_call().max_tokens), ((left, CreditUnit::ZERO), Some(20)));

    shop.script(lines);
    let stream = invoke(&shop, &shop.site.service, &with(question(&buyer.account), json!({ "stream": true })), &[]);
    assert_eq!((stream.status, stream.header("content-type")), (200, "text/event-stream"), "{stream:?}");
    left = left.checked_sub(cost).unwrap();
    assert_eq!(kinds(&stream), ["text_delta", "turn_end"], "{stream:?}");
    let events = stream.events();
    let text: String = events.iter().map(|event| event["delta"].as_str().unwrap_or_default()).collect();
    assert_eq!(text, WORDS);
    let end = events.last().unwrap();
    assert_eq!((amount(&end["cost_cu"]), amount(&end["balance_cu"]), &end["usage"]), (cost, left, &usage));
    assert_eq!(amount(&shop.charge(end["request_id"].as_str().unwrap())["charged_cu"]), cost);
}

#[test]
fn only_a_service_may_and_a_bad_request_writes_nothing() {
    let shop = Shop::open();
    let buyer = shop.buyer("100");
    let poor = shop.buyer("0.01");
    let before = shop.entries();
    let service = shop.site.service.as_str();
    let ask = |token: &str, body: &Value| invoke(&shop, token, body, &[]);
    let good = question(&buyer.account);
    ask(&shop.site.admin, &good).refused(403, "ACCESS_ROLE");
    ask(&buyer.key, &good).refused(401, "AUTH_WRONG_KIND");
    ask("nonsense", &good).refused(401, "AUTH_INVALID_TOKEN");
    for (fields, status, code) in [
        (json!({ "account_id": "no such account" }), 400, "INVALID_ID"),
        (json!({ "account_id": "nobody" }), 404, "ACCOUNT_NOT_FOUND"),
        (json!({ "model": "gpt-nothing" }), 400, "INVALID_MODEL"),
        (json!({ "max_tokens": -1 }), 400, "INVALID_REQUEST"),
        (json!({ "max_tokens": 1.5 }), 400, "INVALID_REQUEST"),
        (json!({ "temperature": 1 }), 400, "INVALID_REQUEST"),
        (json!({ "nft_id": "7" }), 400, "INVALID_REQUEST"),
        (json!({ "stream": 1 }), 400, "INVALID_REQUEST"),
    ] {
        ask(service, &with(good.clone(), fields)).refused(status, code);
    }
    let error = ask(service, &question(&poor.account)).refused(402, "INSUFFICIENT_BALANCE");
    let details = &error["details"];
    assert_eq!(
        (amount(&details["available_cu"]), &details["max_affordable_output_tokens"]),
        (credits("0.01"), &json!(1))
    );
    assert_eq!((shop.entries(), shop.calls().len()), (before, 0));
    assert_eq!(buyer.balance(), (credits("100"), CreditUnit::ZERO));
}

#[test]
fn it_is_answered_once_for_a_key_and_tells_of_a_failure() {
    let shop = Shop::open();
    let (one, two) = (shop.buyer("100"), shop.buyer("100"));
    let service = shop.site.service.as_str();
    let key: &[(&str, &str)] = &[("idempotency-key", "k")];
    let first = invoke(&shop, service, &question(&one.account), key);
    let again = invoke(&shop, service, &question(&one.account), key);
    assert_eq!((first.status, &first.text), (200, &again.text));
    // The key belongs to the account that pays.
    let other = invoke(&shop, service, &question(&two.account), key);
    assert_ne!(first.json()["request_id"], other.json()["request_id"]);
    invoke(&shop, service, &with(question(&one.account), json!({ "max_tokens": 3 })), key)
        .refused(409, "ALREADY_USED_KEY");
    let left = credits("100").checked_sub(millionths(COST)).unwrap();
    assert_eq!((one.balance().0, two.balance().0, shop.calls().len()), (left, left, 2));

    shop.script(json!([{ "do": "status", "status": 500 }]));
    invoke(&shop, service, &question(&one.account), &[]).refused(502, "PROVIDER_FAILED");
    assert_eq!(one.balance(), (left, CreditUnit::ZERO));

    // In the middle of a stream the caller must be able to tell a broken answer from a whole one.
    shop.script(json!([{ "do": "break_off", "after_chunks": 2 }]));
    let broken = invoke(&shop, service, &with(question(&one.account), json!({ "stream": true })), &[]);
    assert_eq!(kinds(&broken), ["text_delta", "error", "turn_end"], "{broken:?}");
    let end = broken.events().pop().unwrap();
    assert_eq!(amount(&end["cost_cu"]), millionths(10 * 250 + 2 * 1_000), "{end}");
}
