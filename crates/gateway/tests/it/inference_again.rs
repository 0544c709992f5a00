//! The same request again, and requests whose provider or caller fails on the way: one answer, one charge.

use crate::inference_world::{
    CHAT, MESSAGES, RESPONSES, Shop, Told, amount, chat, credits, millionths, streamed, with,
};
use crate::world::Server;
use holdfast_domain::CreditUnit;
use holdfast_simulator::upstream::Progress;
use serde_json::{Value, json};
use std::thread;

const WORDS: &str = "one two three four";
/// Four words in and out.
const COST: u64 = 4 * 250 + 4 * 1_000;

/// How many charges a journal has.
fn charges(journal: &[Value]) -> usize {
    journal.iter().filter(|entry| entry["kind"] == "billing_commit").count()
}

/// The text of a chat's stream.
pub(crate) fn text_of(stream: &str) -> String {
    let data = stream.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
    let events = data.map(|data| serde_json::from_str::<Value>(data).unwrap());
    events.map(|event| event["choices"][0]["delta"]["content"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn a_key_is_answered_once_and_charged_once_with_the_same_bytes() {
    let shop = Shop::open();
    for body in &[chat(WORDS), streamed(chat(WORDS))] {
        let buyer = shop.buyer("100");
        let calls = shop.calls().len();
        for header in ["idempotency-key", "x-idempotency-key"] {
            let first = buyer.ask(CHAT, body, &[(header, "k")]);
            let again = buyer.ask(CHAT, body, &[(header, "k")]);
            assert_eq!((first.status, again.status), (200, 200), "{first:?} {again:?}");
            assert_eq!((first.text.as_str(), first.id()), (again.text.as_str(), again.id()));
            assert_eq!(first.header("x-holdfast-cost-cu"), again.header("x-holdfast-cost-cu"));
        }
        assert_eq!(shop.calls().len(), calls + 1);
        assert_eq!(buyer.balance(), (credits("100").checked_sub(millionths(COST)).unwrap(), CreditUnit::ZERO));

        // Another body is refused, however little differs, and in another dialect too.
        let entries = shop.entries();
        for (path, other) in [(CHAT, with(body.clone(), json!({ "seed": 1 }))), (RESPONSES, body.clone())] {
            let refused = buyer.ask(path, &other, &[("idempotency-key", "k")]);
            refused.refused(409, "already_used_key");
            assert_eq!(refused.header("x-should-retry"), "false");
        }
        assert_eq!((shop.entries(), shop.calls().len()), (entries, calls + 1));

        // Another account may use the same key.
        let other = shop.buyer("100");
        assert_eq!(other.ask(CHAT, body, &[("idempotency-key", "k")]).status, 200);
        assert_eq!((other.balance(), shop.calls().len()), (buyer.balance(), calls + 2));
    }
}

#[test]
fn keys_that_are_none_or_differ_are_refused() {
    let shop = Shop::open();
    let buyer = shop.buyer("100");
    let entries = shop.entries();
    let long = "k".repeat(65);
    for key in ["", "a b", "schlüssel", long.as_str()] {
        let refused = buyer.ask(CHAT, &chat(WORDS), &[("idempotency-key", key)]);
        assert_eq!(refused.status, 400, "{key:?} {refused:?}");
    }
    let refused = buyer.ask(CHAT, &chat(WORDS), &[("idempotency-key", "a"), ("x-idempotency-key", "b")]);
    refused.refused(400, "invalid_request");
    assert_eq!((shop.entries(), shop.calls().len()), (entries, 0));
}

/// Begins a stream that waits in the middle, lets a second request join it there, and reads both: their two ids.
fn join(shop: &Shop, first: &[(&str, &str)], second: &[(&str, &str)]) -> [String; 2] {
    let buyer = shop.buyer("100");
    let calls = shop.calls().len();
    shop.script(json!([{ "do": "gate", "after_chunks": 2 }]));
    let body = streamed(chat(WORDS));
    let mut one = buyer.begin(CHAT, &body, first);
    let mut begun = one.event();
    let mut two = buyer.begin(CHAT, &body, second);
    let mut joined = two.event();
    while text_of(&joined) != "one two" {
        joined += &two.event();
    }
    assert_eq!(shop.last_call().progress, Progress::Running);
    shop.open_gate();
    let (one, two) = (one.rest(), two.rest());
    begun += &one.text;
    joined += &two.text;
    assert_eq!(text_of(&begun), WORDS);
    assert_eq!(begun, joined, "both read the whole answer");
    assert_eq!(shop.calls().len(), calls + 1);
    let left = credits("100").checked_sub(millionths(COST)).unwrap();
    assert_eq!(buyer.balance(), (left, CreditUnit::ZERO));
    [one.id().to_owned(), two.id().to_owned()]
}

#[test]
fn who_asks_while_it_is_answered_joins_and_reads_all_of_it() {
    let shop = Shop::open();
    let key: &[(&str, &str)] = &[("idempotency-key", "k")];
    let [one, two] = join(&shop, key, key);
    assert_eq!(one, two);
}

#[test]
fn an_sdks_own_retry_joins_or_repeats_what_it_has_asked() {
    let shop = Shop::open();
    let retry: &[(&str, &str)] = &[("x-stainless-retry-count", "1")];
    let [one, two] = join(&shop, &[("x-stainless-retry-count", "0")], retry);
    assert_eq!(one, two, "the same charge has the same id");

    let buyer = shop.buyer("100");
    let calls = shop.calls().len();
    let first = buyer.ask(CHAT, &chat(WORDS), &[]);
    let again = buyer.ask(CHAT, &chat(WORDS), retry);
    assert_eq!((first.text.as_str(), first.id()), (again.text.as_str(), again.id()));
    assert_eq!(shop.calls().len(), calls + 1);
    // What is not said to be a retry is asked and charged again; so is the same from another key.
    let twice = buyer.ask(CHAT, &chat(WORDS), &[("x-stainless-retry-count", "0")]);
    assert_ne!(twice.id(), first.id());
    let other = shop.key_of(buyer.account.clone(), json!({}));
    assert_ne!(other.ask(CHAT, &chat(WORDS), retry).id(), first.id());
    assert_eq!(shop.calls().len(), calls + 3);
    assert_eq!(buyer.balance().0, credits("100").checked_sub(millionths(3 * COST)).unwrap());
}

#[test]
fn many_at_once_with_one_key_are_one_request() {
    let shop = Shop::open();
    let buyer = shop.buyer("100");
    let ask = || buyer.ask(CHAT, &chat(WORDS), &[("idempotency-key", "k")]);
    let answers: Vec<Told> = thread::scope(|scope| {
        let asking: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
        asking.into_iter().map(|asked| asked.join().unwrap()).collect()
    });
    for answer in &answers {
        assert_eq!((answer.status, &answer.text, answer.id()), (200, &answers[0].text, answers[0].id()));
    }
    assert_eq!((shop.calls().len(), charges(&shop.close().1)), (1, 1));
}

#[test]
fn a_failure_before_the_first_token_is_given_back_and_can_be_tried_again() {
    let shop = Shop::open();
    for body in [chat(WORDS), streamed(chat(WORDS))] {
        let buyer = shop.buyer("100");
        let key: &[(&str, &str)] = &[("idempotency-key", "k")];
        shop.script(json!([{ "do": "status", "status": 500 }, { "do": "break_off", "after_chunks": 0 }]));
        let mut ids = Vec::new();
        for _ in 0..2 {
            let failed = buyer.ask(CHAT, &body, key);
            assert!([502, 503].contains(&failed.status), "{failed:?}");
            let state = buyer.get("/v1/requests/k").json();
            assert_eq!((&state["state"], &state["charged_cu"]), (&json!("RELEASED"), &json!("0")), "{state}");
            assert_eq!(buyer.balance(), (credits("100"), CreditUnit::ZERO));
            ids.push(state["id"].clone());
        }
        let good = buyer.ask(CHAT, &body, key);
        assert_eq!(good.status, 200, "{good:?}");
        let again = buyer.ask(CHAT, &body, key);
        assert_eq!((good.text.as_str(), good.id()), (again.text.as_str(), again.id()));
        let state = buyer.get("/v1/requests/k").json();
        assert_eq!(amount(&state["charged_cu"]), millionths(COST), "{state}");
        assert!(!ids.contains(&state["id"]), "an attempt that was given back is not charged: {state}");
        assert_eq!(state["id"], good.id(), "the id in the header is that of the charge");
        assert_eq!(buyer.balance(), (credits("100").checked_sub(millionths(COST)).unwrap(), CreditUnit::ZERO));
    }
    let (_, journal) = shop.close();
    assert_eq!(charges(&journal), 2);
}

#[test]
fn a_key_that_was_refused_for_want_of_money_can_be_used_when_there_is_some() {
    let shop = Shop::open();
    let buyer = shop.buyer("0.01");
    let ask = || buyer.ask(CHAT, &chat(WORDS), &[("idempotency-key", "k")]);
    ask().refused(402, "insufficient_balance");
    buyer.get("/v1/requests/k").refused(404, "reservation_not_found");
    shop.mint(&buyer.account, "100", "second");
    let (good, again) = (ask(), ask());
    assert_eq!((good.status, good.id(), &good.text), (200, again.id(), &again.text));
    assert_eq!(buyer.balance().0, credits("100.01").checked_sub(millionths(COST)).unwrap());
}

#[test]
fn a_key_is_never_charged_twice_even_if_the_server_has_forgotten_its_answer() {
    let shop = Shop::open();
    let buyer = shop.buyer("100");
    let key: &[(&str, &str)] = &[("idempotency-key", "k")];
    let first = buyer.ask(CHAT, &chat(WORDS), key);
    let (account, api_key) = (buyer.account, buyer.key);
    let shop = shop.again_after(|server| drop(server.stop()));
    let buyer = shop.buyer_with(account, api_key);
    let entries = shop.entries();
    for body in [chat(WORDS), chat("other words")] {
        let refused = buyer.ask(CHAT, &body, key);
        assert_eq!((refused.status, refused.header("x-should-retry")), (409, "false"), "{refused:?}");
    }
    assert_eq!(buyer.get("/v1/requests/k").json()["id"], first.id());
    assert_eq!((shop.entries(), shop.calls().len()), (entries, 1));
}

#[test]
fn a_crash_in_the_middle_is_settled_at_the_next_start_and_its_key_can_be_tried_again() {
    let shop = Shop::open();
    let buyer = shop.buyer("100");
    let key: &[(&str, &str)] = &[("idempotency-key", "k")];
    shop.script(json!([{ "do": "gate", "after_chunks": 2 }]));
    buyer.begin(CHAT, &streamed(chat(WORDS)), key).event();
    let (account, api_key) = (buyer.account, buyer.key);
    let shop = shop.again_after(Server::crash);
    let buyer = shop.buyer_with(account, api_key);
    // Nothing was noted yet in so short a stream.
    assert_eq!(buyer.balance(), (credits("100"), CreditUnit::ZERO));
    assert_eq!(buyer.get("/v1/requests/k").json()["charged_cu"], "0");
    let good = buyer.ask(CHAT, &streamed(chat(WORDS)), key);
    assert_eq!((good.status, text_of(&good.text).as_str()), (200, WORDS));
    assert_eq!(buyer.balance(), (credits("100").checked_sub(millionths(COST)).unwrap(), CreditUnit::ZERO));
    assert_eq!(charges(&shop.close().1), 1);
}

#[test]
fn the_next_target_answers_when_the_first_fails_before_its_first_token() {
    let shop = Shop::open();
    let pair = |body| with(body, json!({ "model": "pair" }));
    let failures = [
        json!({ "do": "status", "status": 503 }),
        json!({ "do": "status", "status": 429, "retry_after_s": 0 }),
        json!({ "do": "garbage" }),
        json!({ "do": "break_off", "after_chunks": 0 }),
    ];
    for (failure, body) in failures.iter().zip([chat(WORDS), streamed(chat(WORDS)), chat(WORDS), streamed(chat(WORDS))])
    {
        let buyer = shop.buyer("100");
        shop.script(json!([failure]));
        let answer = buyer.ask(CHAT, &pair(body), &[]);
        assert_eq!(answer.status, 200, "{failure} {answer:?}");
        let models: Vec<_> = shop.calls().iter().rev().take(2).map(|call| call.model.clone()).collect();
        assert_eq!(models, ["second", "first"], "{failure}");
        let cost = millionths(4 * 200 + 4 * 400);
        assert_eq!(amount(&shop.charge(answer.id())["charged_cu"]), cost);
        assert_eq!(buyer.balance(), (credits("100").checked_sub(cost).unwrap(), CreditUnit::ZERO));
        // A good answer of the first, so that it is not left alone after several failures.
        buyer.ask(CHAT, &pair(chat(WORDS)), &[]);
    }
    // What the caller did wrong is wrong everywhere, and told in the provider's words.
    let buyer = shop.buyer("100");
    let calls = shop.calls().len();
    shop.script(json!([{ "do": "status", "status": 400 }]));
    let refused = buyer.ask(CHAT, &pair(chat(WORDS)), &[]);
    assert_eq!((refused.status, &refused.json()["error"]["message"]), (400, &json!("the script says so")));
    assert_eq!((shop.calls().len(), buyer.balance()), (calls + 1, (credits("100"), CreditUnit::ZERO)));
}

#[test]
fn a_stream_that_breaks_off_is_charged_for_what_came_and_ends_with_an_error() {
    let shop = Shop::open();
    let messages = with(chat(WORDS), json!({ "model": "claude-x", "max_tokens": 50, "stream": true }));
    let responses = json!({ "model": "gpt-4o", "input": WORDS, "stream": true });
    // Eleven tokens of input as counted, where the provider did not tell; Claude tells its four words at the start.
    let broken = 11 * 250 + 2 * 1_000;
    for (path, body, units, (place, word)) in [
        (CHAT, streamed(chat(WORDS)), broken, ("/error/code", "PROVIDER_BROKE_OFF")),
        (RESPONSES, responses, broken, ("/code", "PROVIDER_BROKE_OFF")),
        (MESSAGES, messages, 4 * 300 + 2 * 1_500, ("/error/type", "api_error")),
    ] {
        let buyer = shop.buyer("100");
        shop.script(json!([{ "do": "break_off", "after_chunks": 2 }]));
        let answer = buyer.ask(path, &body, &[("idempotency-key", "k")]);
        assert_eq!(answer.status, 200, "{answer:?}");
        let error = answer.events().pop().unwrap();
        assert_eq!(error.pointer(place), Some(&json!(word)), "{path} {error}");
        assert!(!answer.text.contains("[DONE]") && !answer.text.contains("message_stop"), "{answer:?}");
        let left = credits("100").checked_sub(millionths(units)).unwrap();
        assert_eq!(amount(&shop.charge(answer.id())["charged_cu"]), millionths(units), "{path}");
        assert_eq!(answer.cost_comment(), (millionths(units), left));
        assert_eq!(buyer.balance(), (left, CreditUnit::ZERO));
        // It was charged, so the key is used up: the same bytes again, and nothing more.
        let calls = shop.calls().len();
        assert_eq!(buyer.ask(path, &body, &[("idempotency-key", "k")]).text, answer.text);
        assert_eq!((shop.calls().len(), buyer.balance().0), (calls, left));
    }
}
