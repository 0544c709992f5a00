//! What a request costs: every dialect, whole and streamed, to the millionth of a credit, on every side of the books.

use crate::inference_world::{
    Buyer, CHAT, EMBEDDINGS, MESSAGES, RESPONSES, Shop, Told, amount, chat, credits, millionths, streamed, with,
};
use holdfast_domain::CreditUnit;
use serde_json::{Value, json};

/// Asserts that a charge is this in the journal, that nothing is held for it any more, and what the account has left.
fn check_charge(shop: &Shop, buyer: &Buyer<'_>, id: &str, cost: CreditUnit, left: CreditUnit) {
    let charge = shop.charge(id);
    assert_eq!(amount(&charge["charged_cu"]), cost, "{charge}");
    assert_eq!(amount(&charge["held_cu"]), CreditUnit::ZERO, "{charge}");
    assert_eq!(amount(&charge["uncollected_cu"]), CreditUnit::ZERO, "{charge}");
    assert_eq!(charge["account_id"], buyer.account.as_str(), "{charge}");
    assert_eq!(buyer.balance(), (left, CreditUnit::ZERO));
}

/// Asks whole, and checks what is said of the cost.
fn check_whole(shop: &Shop, path: &str, body: &Value, cost: CreditUnit) -> Told {
    let buyer = shop.buyer("100");
    let left = credits("100").checked_sub(cost).unwrap();
    let answer = buyer.ask(path, body, &[]);
    assert_eq!(answer.status, 200, "{path} {answer:?}");
    assert_eq!(answer.header("x-holdfast-cost-cu"), cost.to_string(), "{path} {body}");
    assert_eq!(answer.header("x-holdfast-balance-cu"), left.to_string(), "{path}");
    check_charge(shop, &buyer, answer.id(), cost, left);
    answer
}

/// Asks for a stream, and checks the same.
fn check_stream(shop: &Shop, path: &str, body: &Value, cost: CreditUnit) -> Told {
    let buyer = shop.buyer("100");
    let left = credits("100").checked_sub(cost).unwrap();
    let answer = buyer.ask(path, body, &[]);
    assert_eq!((answer.status, answer.header("content-type")), (200, "text/event-stream"), "{path} {answer:?}");
    assert_eq!(answer.cost_comment(), (cost, left), "{path} {body}");
    check_charge(shop, &buyer, answer.id(), cost, left);
    answer
}

/// The same question in every dialect to every kind of provider, and what its three words in and out cost.
fn questions() -> [(&'static str, Value, u64); 6] {
    let messages = json!([{ "role": "user", "content": "one two three" }]);
    let to = |model: &str| json!({ "model": model, "messages": messages });
    let input = |model: &str| json!({ "model": model, "input": "one two three" });
    let limit = |body| with(body, json!({ "max_tokens": 50 }));
    [
        (CHAT, to("gpt-4o"), 3 * 250 + 3 * 1_000),
        (CHAT, to("claude-x"), 3 * 300 + 3 * 1_500),
        (RESPONSES, input("gpt-4o"), 3 * 250 + 3 * 1_000),
        (RESPONSES, input("claude-x"), 3 * 300 + 3 * 1_500),
        (MESSAGES, limit(to("claude-x")), 3 * 300 + 3 * 1_500),
        (MESSAGES, limit(to("gpt-4o")), 3 * 250 + 3 * 1_000),
    ]
}

#[test]
fn every_dialect_is_charged_exactly_whole_and_streamed() {
    let shop = Shop::open();
    for (path, body, units) in questions() {
        let whole = check_whole(&shop, path, &body, millionths(units));
        assert!(whole.text.contains("one two three"), "{path} {whole:?}");
        let body = with(body, json!({ "stream": true }));
        let stream = check_stream(&shop, path, &body, millionths(units));
        let pieces: String = stream.events().iter().map(delta).collect();
        assert_eq!(pieces, "one two three", "{path} {stream:?}");
    }
    for (input, tokens) in [(json!("one two three"), 3), (json!(["one", "two three", "four"]), 4)] {
        let body = json!({ "model": "text-embedding-3-small", "input": input });
        check_whole(&shop, EMBEDDINGS, &body, millionths(tokens * 2));
    }
}

/// The text in an event of any dialect's stream.
fn delta(event: &Value) -> String {
    let places = ["/choices/0/delta/content", "/delta/text", "/delta"];
    let found = places.iter().find_map(|place| event.pointer(place)?.as_str());
    found.filter(|_| event["type"] != "response.output_text.done").unwrap_or_default().to_owned()
}

#[test]
fn cached_written_and_reasoning_tokens_have_prices_of_their_own() {
    let shop = Shop::open();
    let question = || chat("one two three");
    let responses = json!({ "model": "gpt-4o", "input": "one two three" });
    // Of three words two are cached; five tokens are thought beside the three that are said.
    let units = 250 + 2 * 125 + 3 * 1_000 + 5 * 2_000;
    for (path, body) in [
        (CHAT, question()),
        (CHAT, streamed(question())),
        (RESPONSES, responses.clone()),
        (RESPONSES, with(responses, json!({ "stream": true }))),
    ] {
        shop.script(json!([{ "do": "answer", "cached_tokens": 2, "reasoning_tokens": 5 }]));
        let check = if body["stream"] == true { check_stream } else { check_whole };
        check(&shop, path, &body, millionths(units));
    }
    let body = json!({ "model": "claude-x", "max_tokens": 50, "messages": question()["messages"] });
    let usage = json!({ "input_tokens": 5, "cache_read_input_tokens": 11, "cache_creation_input_tokens": 7, "output_tokens": 13 });
    let units = 5 * 300 + 11 * 30 + 7 * 375 + 13 * 1_500;
    for body in [body.clone(), with(body, json!({ "stream": true }))] {
        shop.script(json!([{ "do": "usage", "usage": usage }]));
        let check = if body["stream"] == true { check_stream } else { check_whole };
        check(&shop, MESSAGES, &body, millionths(units));
    }
}

#[test]
fn a_chat_tells_its_cost_with_its_usage_and_before_its_end() {
    let shop = Shop::open();
    let cost = millionths(3 * 250 + 3 * 1_000);
    let stream = check_stream(&shop, CHAT, &streamed(chat("one two three")), cost);
    let usage: Vec<Value> = stream.events().iter().filter_map(|event| event.get("usage").cloned()).collect();
    assert_eq!(usage.len(), 1, "{stream:?}");
    assert_eq!(usage[0]["cost"], cost.to_string().as_str());
    assert_eq!((&usage[0]["prompt_tokens"], &usage[0]["completion_tokens"]), (&json!(3), &json!(3)));
    // Many clients read no further than the formal end.
    assert!(stream.text.ends_with("data: [DONE]\n\n"), "{stream:?}");
    assert_eq!(stream.data().iter().filter(|data| **data == "[DONE]").count(), 1);

    // Who did not ask for usage does not get the chunk, and is charged the same.
    let stream = check_stream(&shop, CHAT, &with(chat("one two three"), json!({ "stream": true })), cost);
    assert!(stream.events().iter().all(|event| event.get("usage").is_none()), "{stream:?}");
}

#[test]
fn a_call_of_a_tool_is_passed_through_and_charged_like_words() {
    let shop = Shop::open();
    let question = json!([{ "role": "user", "content": "call weather {\"city\":\"Oslo\"}" }]);
    let schema = json!({ "type": "object", "properties": { "city": { "type": "string" } } });
    let chat = json!({ "model": "gpt-4o", "messages": question,
        "tools": [{ "type": "function", "function": { "name": "weather", "parameters": schema } }] });
    let messages = json!({ "model": "claude-x", "messages": question, "max_tokens": 50,
        "tools": [{ "name": "weather", "input_schema": schema }] });
    for (path, body, units) in [(CHAT, chat, 3 * 250 + 2 * 1_000), (MESSAGES, messages, 3 * 300 + 2 * 1_500)] {
        let whole = check_whole(&shop, path, &body, millionths(units));
        let stream = check_stream(&shop, path, &with(body, json!({ "stream": true })), millionths(units));
        for answer in [whole, stream] {
            assert!(answer.text.contains("weather") && answer.text.contains("Oslo"), "{path} {answer:?}");
        }
    }
}

#[test]
fn the_dearest_that_may_answer_is_the_price_of_a_name_without_one() {
    let shop = Shop::open();
    let body = with(chat("one two three"), json!({ "model": "pair" }));
    check_whole(&shop, CHAT, &body, millionths(3 * 200 + 3 * 400));
    assert_eq!(shop.last_call().model, "first");
    // Asked for by its own name, each has its own price.
    for (model, units) in [("mock/first", 3 * 100 + 3 * 300), ("mock/second", 3 * 200 + 3 * 400)] {
        check_whole(&shop, CHAT, &with(body.clone(), json!({ "model": model })), millionths(units));
    }
}

#[test]
fn several_answers_are_held_for_and_what_is_unknown_here_is_passed_on() {
    let shop = Shop::open();
    let buyer = shop.buyer("100");
    let fields = json!({ "n": 3, "max_completion_tokens": 7, "temperature": 0.25, "x-own": { "a": [1.50] } });
    let answer = buyer.ask(CHAT, &with(chat("one two three"), fields), &[]);
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(shop.last_call().max_tokens, Some(7));
    // 10 tokens as counted and 16 that a provider may write around them; three answers of seven, at the dearest.
    let held = millionths(26 * 250 + 3 * 7 * 2_000);
    let charge = shop.charge(answer.id());
    let reserve = charge["life"].as_array().unwrap().iter().find(|entry| entry["kind"] == "billing_reserve").unwrap();
    assert_eq!(amount(&reserve["amount_cu"]), held, "{charge}");
}

#[test]
fn a_key_learns_of_its_requests_its_credits_and_itself() {
    let shop = Shop::open();
    let buyer = shop.limited_buyer("5", json!({ "name": "laptop", "daily_limit_cu": "3", "total_limit_cu": "4" }));
    let asked = buyer.ask(CHAT, &with(chat("one two three"), json!({ "max_tokens": 9 })), &[("idempotency-key", "k1")]);
    assert_eq!(asked.status, 200, "{asked:?}");
    let cost = millionths(3_750);
    let left = credits("5").checked_sub(cost).unwrap();
    let found = buyer.get("/v1/requests/k1").json();
    assert_eq!((&found["id"], &found["state"]), (&json!(asked.id()), &json!("FINALIZE_PENDING")), "{found}");
    assert_eq!(amount(&found["charged_cu"]), cost);
    assert_eq!(buyer.balance(), (left, CreditUnit::ZERO));
    let key = buyer.get("/v1/key").json();
    assert_eq!((&key["account_id"], &key["name"]), (&json!(buyer.account), &json!("laptop")));
    assert_eq!((&key["daily_limit_cu"], &key["total_limit_cu"]), (&json!("3"), &json!("4")));
    assert_eq!(amount(&key["balance_cu"]), left);
    assert!(!key.to_string().contains(&buyer.key[16..]), "a key is shown once");

    // Keys are an account's own: another's request is not found by the same key.
    let stranger = shop.buyer("1");
    stranger.get("/v1/requests/k1").refused(404, "reservation_not_found");
    buyer.get("/v1/requests/k2").refused(404, "reservation_not_found");
    buyer.get("/v1/requests/k%201").refused(400, "invalid_id");

    // A key may be made before its account is credited.
    let early = shop.key_of("early".to_owned(), json!({}));
    assert_eq!(early.balance(), (CreditUnit::ZERO, CreditUnit::ZERO));
    let reader = shop.key_of(buyer.account.clone(), json!({ "scopes": ["read"] }));
    assert_eq!(reader.balance().0, left);
    reader.ask(CHAT, &chat("one"), &[]).refused(403, "access_scope");
    let asker = shop.key_of(buyer.account.clone(), json!({ "scopes": ["inference"] }));
    asker.get("/v1/credits").refused(403, "access_scope");
    assert_eq!(asker.ask(CHAT, &with(chat("one"), json!({ "max_tokens": 9 })), &[]).status, 200);
}
