//! Where the money does not reach, and where a provider's word does not count.

use crate::inference_world::{
    Buyer, CHAT, EMBEDDINGS, MESSAGES, RESPONSES, Shop, Told, amount, chat, credits, millionths, streamed, with,
};
use holdfast_domain::CreditUnit;
use serde_json::{Value, json};
use std::sync::mpsc;
use std::thread;

const WORDS: &str = "one two three";
/// Three words are ten tokens with what stands around them, and a provider may write 16 more.
const INPUT: u64 = 10;
const INPUT_BOUND: u64 = INPUT + 16;

fn three_words() -> Value {
    with(chat(WORDS), json!({ "max_tokens": 3 }))
}

/// Asserts that a request is refused as told and that nothing came of it.
fn check_nothing_done(shop: &Shop, buyer: &Buyer<'_>, ask: impl FnOnce() -> Told) -> Told {
    let before = (shop.entries(), shop.calls().len(), buyer.balance());
    let told = ask();
    assert_eq!((shop.entries(), shop.calls().len(), buyer.balance()), before, "{told:?}");
    told
}

#[test]
fn a_key_stops_at_its_limits_to_the_millionth() {
    let shop = Shop::open();
    // 0.0125 is held and 0.00375 charged for each, so the third would come to exactly 0.02 and the fourth to more.
    let held = INPUT_BOUND * 250 + 3 * 2_000;
    assert_eq!(millionths(2 * 3_750 + held), credits("0.02"));
    for limit in ["daily_limit_cu", "total_limit_cu"] {
        let buyer = shop.limited_buyer("100", json!({ limit: "0.02" }));
        for _ in 0..3 {
            let answer = buyer.ask(CHAT, &three_words(), &[]);
            assert_eq!((answer.status, answer.header("x-holdfast-cost-cu")), (200, "0.00375"), "{limit} {answer:?}");
        }
        let told = check_nothing_done(&shop, &buyer, || buyer.ask(CHAT, &three_words(), &[]));
        let error = told.refused(402, "insufficient_budget");
        assert_eq!(error["type"], "insufficient_quota");
        assert_eq!(told.header("x-should-retry"), "false");
        let told = check_nothing_done(&shop, &buyer, || buyer.ask(MESSAGES, &three_words(), &[]));
        let error = told.refused(402, "insufficient_budget");
        assert_eq!((&told.json()["type"], &error["type"]), (&json!("error"), &json!("billing_error")));
        assert_eq!(told.header("x-should-retry"), "false");
        // It is the key's limit, not the account's.
        let other = shop.key_of(buyer.account.clone(), json!({}));
        assert_eq!(other.ask(CHAT, &three_words(), &[]).status, 200);
    }
}

#[test]
fn without_money_the_figures_are_told_in_both_shapes() {
    let shop = Shop::open();
    // What is required: the input, and 4,096 tokens where no limit is named. 3,500 are left for output at 2,000 each.
    let buyer = shop.buyer("0.01");
    let required = millionths(INPUT_BOUND * 250 + 4_096 * 2_000);
    for (path, kind) in [(CHAT, "insufficient_quota"), (MESSAGES, "billing_error")] {
        let told = check_nothing_done(&shop, &buyer, || buyer.ask(path, &chat(WORDS), &[]));
        let error = told.refused(402, "insufficient_balance");
        assert_eq!((&error["type"], told.header("x-should-retry")), (&json!(kind), "false"));
        assert_eq!(amount(&error["required"]), required);
        assert_eq!(amount(&error["available"]), credits("0.01"));
        assert_eq!(amount(&error["deficit"]), required.checked_sub(credits("0.01")).unwrap());
        assert_eq!(error["max_affordable_output_tokens"], 1);
    }
    // Not even the input is covered, or that and no token of output.
    for (balance, affordable) in [("0.006499", Value::Null), ("0.0065", json!(0)), ("0.008499", json!(0))] {
        let poor = shop.buyer(balance);
        let fit: &[(&str, &str)] = &[("x-holdfast-fit", "true")];
        for headers in [&[], fit] {
            let told = check_nothing_done(&shop, &poor, || poor.ask(CHAT, &chat(WORDS), headers));
            let error = told.refused(402, "insufficient_balance");
            assert_eq!(error["max_affordable_output_tokens"], affordable, "{balance}");
        }
    }
}

#[test]
fn who_wants_a_shorter_answer_gets_the_longest_that_is_covered() {
    let shop = Shop::open();
    for body in [chat(WORDS), streamed(chat(WORDS)), with(chat(WORDS), json!({ "max_tokens": 3 }))] {
        let buyer = shop.buyer("0.01");
        let answer = buyer.ask(CHAT, &body, &[("x-holdfast-fit", "true")]);
        assert_eq!(answer.status, 200, "{answer:?}");
        let call = shop.last_call();
        assert_eq!((call.max_tokens, call.usage.map(|usage| usage.output)), (Some(1), Some(1)));
        let cost = millionths(3 * 250 + 1_000);
        assert_eq!(amount(&shop.charge(answer.id())["charged_cu"]), cost);
        assert_eq!(buyer.balance(), (credits("0.01").checked_sub(cost).unwrap(), CreditUnit::ZERO));
    }
    // What is covered is not made shorter.
    let buyer = shop.buyer("100");
    buyer.ask(CHAT, &with(chat(WORDS), json!({ "max_tokens": 2 })), &[("x-holdfast-fit", "true")]);
    assert_eq!(shop.last_call().max_tokens, Some(2));
    // In the other dialects the limit has other names.
    let buyer = shop.buyer("0.01");
    let body = json!({ "model": "gpt-4o", "input": WORDS });
    assert_eq!(buyer.ask(RESPONSES, &body, &[("x-holdfast-fit", "true")]).status, 200);
    assert_eq!(shop.last_call().max_tokens, Some(1));
}

#[test]
fn eight_at_once_cannot_spend_what_covers_one() {
    let shop = Shop::open();
    let hold = millionths(INPUT_BOUND * 250 + 3 * 2_000).to_string();
    let one_by_limit = json!({ "daily_limit_cu": hold, "total_limit_cu": hold });
    for (buyer, code) in
        [(shop.buyer(&hold), "insufficient_balance"), (shop.limited_buyer("100", one_by_limit), "insufficient_budget")]
    {
        shop.script(json!([{ "do": "gate" }]));
        let calls = shop.calls().len();
        let (tell, told) = mpsc::channel();
        thread::scope(|scope| {
            for tell in vec![tell; 8] {
                let buyer = &buyer;
                scope.spawn(move || tell.send(buyer.ask(CHAT, &three_words(), &[])).unwrap());
            }
            // The one that is answered waits at the gate until all others are refused.
            for refused in told.iter().take(7) {
                refused.refused(402, code);
            }
            // It holds the money, and may still be on its way to the gate.
            while shop.calls().len() == calls {
                thread::yield_now();
            }
            shop.open_gate();
            assert_eq!(told.recv().unwrap().status, 200);
        });
        assert_eq!(shop.calls().len(), calls + 1);
    }
}

#[test]
fn usage_that_is_missing_or_cannot_be_is_counted_and_flagged() {
    let shop = Shop::open();
    let buyer = shop.buyer("100");
    let counted = millionths(INPUT * 250 + 3 * 1_000);
    let lines = [
        (json!({ "do": "no_usage" }), "no usage; charged the counted tokens"),
        (json!({ "do": "nonsense_usage", "kind": "negative" }), "usage that cannot be; charged the counted tokens"),
        (json!({ "do": "nonsense_usage", "kind": "strings" }), "usage that cannot be; charged the counted tokens"),
        (json!({ "do": "usage", "usage": { "prompt_tokens": 1e18, "completion_tokens": 1 } }), "usage that cannot be"),
        (json!({ "do": "usage", "usage": "lots" }), "no usage"),
        (json!({ "do": "usage", "usage": null }), "no usage"),
    ];
    let mut flags = Vec::new();
    for (line, flag) in lines {
        for body in [three_words(), streamed(three_words())] {
            shop.script(json!([line]));
            let answer = buyer.ask(CHAT, &body, &[]);
            assert_eq!(answer.status, 200, "{line} {answer:?}");
            let charge = shop.charge(answer.id());
            assert_eq!(amount(&charge["charged_cu"]), counted, "{line} {charge}");
            flags.push((answer.id().to_owned(), flag));
        }
    }
    let good = buyer.ask(CHAT, &three_words(), &[]);
    let (said, _) = shop.close();
    for (id, flag) in flags {
        let line = said.lines().find(|line| line.contains(&id)).unwrap_or_else(|| unreachable!("{id} {said}"));
        assert!(line.contains(flag) && !line.contains("one"), "{line}");
    }
    assert!(!said.contains(good.id()), "what is well is not flagged: {said}");
}

#[test]
fn more_than_was_held_is_never_charged() {
    let shop = Shop::open();
    let held = millionths(INPUT_BOUND * 250 + 3 * 2_000);
    let ten_times = millionths(30 * 250 + 30 * 1_000);
    let largest = 1_u64 << 40;
    let absurd = json!({ "prompt_tokens": largest, "completion_tokens": largest });
    let mut flagged = Vec::new();
    for line in [json!({ "do": "nonsense_usage", "kind": "ten_times" }), json!({ "do": "usage", "usage": absurd })] {
        for body in [three_words(), streamed(three_words())] {
            // All that there is is held, so anything beyond it would have to come from nowhere.
            let buyer = shop.buyer(&held.to_string());
            shop.script(json!([line]));
            let answer = buyer.ask(CHAT, &body, &[]);
            assert_eq!(answer.status, 200, "{answer:?}");
            let charge = shop.charge(answer.id());
            assert_eq!(amount(&charge["charged_cu"]), held, "{charge}");
            if line["do"] == "nonsense_usage" {
                assert_eq!(amount(&charge["uncollected_cu"]), ten_times.checked_sub(held).unwrap());
            }
            assert_eq!(buyer.balance(), (CreditUnit::ZERO, CreditUnit::ZERO));
            flagged.push(answer.id().to_owned());
        }
    }
    let (said, _) = shop.close();
    for id in flagged {
        assert!(said.lines().any(|line| line.contains(&id) && line.contains("charged the hold")), "{id} {said}");
    }
}

#[test]
fn a_prompt_is_charged_by_how_long_it_really_was_and_held_for_by_how_long_it_may_be() {
    let shop = Shop::open();
    let buyer = shop.buyer("100");
    // Of words that are several tokens to us, and one to the upstream.
    let ask = |words: usize| {
        let text = vec!["incomprehensibilities"; words].join(" ");
        let body = with(chat(&text), json!({ "model": "tiered", "max_tokens": 200 }));
        let answer = buyer.ask(CHAT, &body, &[]);
        assert_eq!(answer.status, 200, "{answer:?}");
        let held = amount(&shop.charge(answer.id())["life"][0]["held_cu"]);
        (held, amount(&json!(answer.header("x-holdfast-cost-cu"))))
    };
    let longest_answer = millionths(200 * 300);
    let (held, cost) = ask(190);
    assert!(held > longest_answer, "it could have been a long one: {held}");
    assert_eq!(cost, millionths(190 * 100 + 190 * 100));
    let (held, cost) = ask(210);
    assert!(held >= cost && cost == millionths(210 * 200 + 200 * 300), "{held} {cost}");
    let (held, _) = ask(1);
    assert!(held < longest_answer, "no long prompt is possible: {held}");
}

#[test]
fn who_brings_a_key_pays_nothing_and_only_that_key_is_sent() {
    let shop = Shop::with_upstream_key("sk-theirs");
    let buyer = shop.buyer("0.000001");
    let own: &[(&str, &str)] = &[("x-holdfast-provider-key", "sk-theirs")];
    let entries = shop.entries();
    let messages = with(chat(WORDS), json!({ "model": "claude-x", "max_tokens": 9 }));
    for (path, body) in [(CHAT, chat(WORDS)), (CHAT, streamed(chat(WORDS))), (MESSAGES, messages)] {
        let answer = buyer.ask(path, &body, own);
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(answer.headers.get("x-holdfast-cost-cu").is_none() && !answer.text.contains("cost_cu="), "{answer:?}");
    }
    assert_eq!((shop.entries(), shop.calls().len()), (entries, 3));
    // A key that the provider refuses is the caller's affair, in the provider's words.
    let refused = buyer.ask(CHAT, &chat(WORDS), &[("x-holdfast-provider-key", "sk-wrong")]);
    assert_eq!((refused.status, refused.json()["error"]["code"].as_str()), (401, Some("invalid_api_key")));
    assert_eq!(shop.entries(), entries);

    // Without it ours is sent, which this upstream does not take: all is given back.
    let payer = shop.buyer("100");
    let refused = payer.ask(CHAT, &chat(WORDS), &[]);
    assert_eq!((refused.status, refused.json()["error"]["code"].as_str()), (502, Some("PROVIDER_KEY_REFUSED")));
    assert_eq!(payer.balance(), (credits("100"), CreditUnit::ZERO));
    let (said, _) = shop.close();
    assert!(!said.contains("sk-"), "no key is ever printed: {said}");
}

#[test]
fn a_bad_body_is_a_typed_error_and_nothing_is_written() {
    let shop = Shop::open();
    let buyer = shop.buyer("100");
    let before = (shop.site.world.entries(), shop.calls().len(), buyer.balance());
    let base = chat(WORDS).to_string();
    let field = |field: &str| format!("{},{field}}}", base.strip_suffix('}').unwrap());
    let bodies = [
        (String::new(), "invalid_request"),
        ("not json".to_owned(), "invalid_request"),
        ("{\"model\":\"gpt-4o\"".to_owned(), "invalid_request"),
        ("[]".to_owned(), "invalid_request"),
        ("null".to_owned(), "invalid_request"),
        ("\u{0}".to_owned(), "invalid_request"),
        (r#"{"messages":[]}"#.to_owned(), "invalid_request"),
        (r#"{"model":7,"messages":[]}"#.to_owned(), "invalid_request"),
        (r#"{"model":null,"messages":[]}"#.to_owned(), "invalid_request"),
        (r#"{"model":"","messages":[]}"#.to_owned(), "model_not_found"),
        (r#"{"model":"gpt-nothing","messages":[]}"#.to_owned(), "model_not_found"),
        (r#"{"model":"mock/unpriced","messages":[]}"#.to_owned(), "model_not_found"),
        (field(r#""max_tokens":-1"#), "invalid_request"),
        (field(r#""max_tokens":1.5"#), "invalid_request"),
        (field(r#""max_tokens":"3""#), "invalid_request"),
        (field(r#""max_tokens":1e30"#), "invalid_request"),
        (field(r#""max_tokens":18446744073709551615"#), "invalid_amount"),
        (field(r#""max_completion_tokens":-1"#), "invalid_request"),
        (field(r#""n":0"#), "invalid_request"),
        (field(r#""n":-1"#), "invalid_request"),
        (field(r#""n":2.5"#), "invalid_request"),
        (field(r#""n":129"#), "invalid_request"),
        (field(r#""n":18446744073709551615"#), "invalid_request"),
        (field(r#""stream":"yes""#), "invalid_request"),
    ];
    for (body, code) in bodies {
        let error = buyer.ask_text(CHAT, &body).refused(400, code);
        assert_eq!(error["type"], "invalid_request_error", "{body}");
    }
    for (path, body) in [
        (RESPONSES, r#"{"model":"gpt-4o","input":"a","max_output_tokens":-5}"#),
        (MESSAGES, r#"{"model":"gpt-4o","messages":[],"max_tokens":0.5}"#),
        (EMBEDDINGS, r#"{"input":"a"}"#),
        (EMBEDDINGS, "{"),
    ] {
        buyer.ask_text(path, body).refused(400, "invalid_request");
    }
    assert_eq!((shop.site.world.entries(), shop.calls().len(), buyer.balance()), before);
}

#[test]
fn a_field_that_stands_twice_is_counted_and_sent_as_its_last() {
    let shop = Shop::open();
    let buyer = shop.buyer("100");
    let long = "word ".repeat(1_000);
    let body = format!(
        r#"{{"model":"claude-x","model":"gpt-4o","max_tokens":9999,"messages":[{{"role":"user","content":"{long}"}}],
            "messages":[{{"role":"user","content":"one two three"}}],"max_tokens":2,"n":100,"n":1}}"#
    );
    let answer = buyer.ask_text(CHAT, &body);
    assert_eq!(answer.status, 200, "{answer:?}");
    let call = shop.last_call();
    assert_eq!((call.max_tokens, call.usage.map(|usage| usage.input)), (Some(2), Some(3)));
    assert_eq!(amount(&shop.charge(answer.id())["charged_cu"]), millionths(3 * 250 + 2 * 1_000));
}

#[test]
fn the_answer_that_takes_a_balance_below_the_threshold_says_so_once() {
    let shop = Shop::open();
    // Each answer costs 0.00375, and 10 credits are the usual threshold.
    let buyer = shop.buyer("10.0075");
    let is_low = |answer: &Told| (answer.status, answer.header("x-holdfast-credits-low") == "true");
    let balances = ["10.00375", "10", "9.99625", "9.9925"];
    for (balance, low) in balances.into_iter().zip([false, false, true, false]) {
        let answer = buyer.ask(CHAT, &three_words(), &[]);
        assert_eq!(answer.header("x-holdfast-balance-cu"), balance);
        assert_eq!(is_low(&answer), (200, low), "{answer:?}");
    }
    let buyer = shop.buyer("10");
    let answer = buyer.ask(CHAT, &streamed(three_words()), &[]);
    assert!(answer.text.contains(": cost_cu=0.00375 balance_cu=9.99625 credits_low\n"), "{answer:?}");
    let (notes, _) = shop.close();
    assert_eq!(notes.matches("credits_low: account").count(), 2, "{notes}");
}
