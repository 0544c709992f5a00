//! What tests have found: providers that say nothing was used, callers that leave early, and wishes that are misspelt.

use crate::inference_world::{CHAT, Shop, amount, chat, millionths, streamed};
use holdfast_simulator::upstream::Progress;
use serde_json::json;
use std::io::Write;
use std::net::TcpStream;

/// A provider that says it used nothing for an answer that has words is not to be believed, like one that says nothing.
#[test]
fn words_that_were_reported_as_nothing_are_counted() {
    let shop = Shop::open();
    let buyer = shop.buyer("100");
    let nothing = json!({ "prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0 });
    shop.script(json!([{ "do": "usage", "usage": nothing }]));
    let answer = buyer.ask(CHAT, &chat("one two three"), &[]);
    assert_eq!(amount(&shop.charge(answer.id())["charged_cu"]), millionths(10 * 250 + 3 * 1_000));
}

/// Who hangs up before the first token and asked for `cancel` stops the upstream too, and gets everything back.
#[test]
fn who_hangs_up_before_the_first_token_stops_the_upstream() {
    let shop = Shop::open();
    let buyer = shop.buyer("100");
    shop.script(json!([{ "do": "hang" }]));
    let (address, body) = (shop.site.server.url().strip_prefix("http://").unwrap(), streamed(chat("one")).to_string());
    let mut socket = TcpStream::connect(address).unwrap();
    let (key, length) = (&buyer.key, body.len());
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n\
         x-holdfast-on-disconnect: cancel\r\ncontent-length: {length}\r\n\r\n"
    );
    socket.write_all((head + &body).as_bytes()).unwrap();
    while shop.calls().is_empty() {
        std::thread::yield_now();
    }
    drop(socket);
    assert_eq!(shop.ended_call(1).progress, Progress::HungUp);
    let (_, journal) = shop.close();
    assert!(journal.iter().all(|entry| entry["kind"] != "billing_commit"), "{journal:?}");
}

/// The same key with another body is refused, also after an attempt that failed.
#[test]
fn a_key_whose_first_attempt_failed_keeps_its_body() {
    let shop = Shop::open();
    let buyer = shop.buyer("100");
    let key: &[(&str, &str)] = &[("idempotency-key", "k")];
    shop.script(json!([{ "do": "status", "status": 500 }]));
    assert_eq!(buyer.ask(CHAT, &chat("one"), key).status, 502);
    buyer.ask(CHAT, &chat("two words"), key).refused(409, "already_used_key");
}

/// A wish that is not understood is refused, as `x-holdfast-on-disconnect` is.
#[test]
fn a_fit_that_is_not_understood_is_refused() {
    let shop = Shop::open();
    let buyer = shop.buyer("0.01");
    for wish in ["yes", "1", "TRUE", ""] {
        buyer.ask(CHAT, &chat("one two three"), &[("x-holdfast-fit", wish)]).refused(400, "invalid_request");
    }
}
