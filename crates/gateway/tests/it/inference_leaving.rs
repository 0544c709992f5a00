//! Callers that hang up: what they said of it in `x-holdfast-on-disconnect` is what happens.

use crate::inference_again::text_of;
use crate::inference_world::{CHAT, Shop, amount, chat, credits, millionths, streamed};
use holdfast_domain::CreditUnit;
use holdfast_simulator::upstream::Progress;
use serde_json::{Value, json};

const WORDS: &str = "one two three four";
/// Four words in and out.
const COST: u64 = 4 * 250 + 4 * 1_000;

/// The one charge of a shop that closes.
fn only_charge(shop: Shop) -> CreditUnit {
    let (_, journal) = shop.close();
    let charges: Vec<&Value> = journal.iter().filter(|entry| entry["kind"] == "billing_commit").collect();
    assert_eq!(charges.len(), 1, "{charges:?}");
    amount(&charges[0]["charged_cu"])
}

#[test]
fn what_cannot_be_done_is_refused_at_once() {
    let shop = Shop::open();
    let buyer = shop.buyer("100");
    let entries = shop.entries();
    for wish in
        ["perhaps", "", "Cancel", "cancel,drain", "drain=", "drain=0", "drain=-1", "drain=1e3", "drain=0.0000001"]
    {
        buyer.ask(CHAT, &chat(WORDS), &[("x-holdfast-on-disconnect", wish)]).refused(400, "invalid_request");
    }
    assert_eq!((shop.entries(), shop.calls().len()), (entries, 0));
    assert_eq!(buyer.balance(), (credits("100"), CreditUnit::ZERO));
}

#[test]
fn who_hangs_up_and_said_so_stops_the_upstream() {
    let shop = Shop::open();
    let buyer = shop.buyer("100");
    // This upstream says no more after two words, and only a client that hangs up ends it.
    shop.script(json!([{ "do": "hang", "after_chunks": 2 }]));
    let headers: &[(&str, &str)] = &[("idempotency-key", "k"), ("x-holdfast-on-disconnect", "cancel")];
    let mut coming = buyer.begin(CHAT, &streamed(chat(WORDS)), headers);
    let mut read = coming.event();
    while text_of(&read) != "one two" {
        read += &coming.event();
    }
    drop(coming);
    let call = shop.ended_call(1);
    assert_eq!((call.progress, call.chunks_sent), (Progress::HungUp, 2));
    // Who asks for it again is told that it is not whole.
    let again = buyer.ask(CHAT, &streamed(chat(WORDS)), headers);
    assert!(again.text.contains("its caller went away") && !again.text.contains("[DONE]"), "{again:?}");
    assert_eq!((text_of(&again.text).as_str(), shop.calls().len()), ("one two", 1));
    assert_eq!(only_charge(shop), millionths(11 * 250 + 2 * 1_000));
}

#[test]
fn who_hangs_up_and_did_not_say_so_is_charged_for_all_of_it_and_can_ask_for_it() {
    let shop = Shop::open();
    for (wish, number) in [(None, 1), (Some("drain"), 2), (Some("drain=50"), 3)] {
        let buyer = shop.buyer("100");
        let wish = wish.map(|wish| ("x-holdfast-on-disconnect", wish));
        let headers: Vec<_> = wish.into_iter().chain([("idempotency-key", "k")]).collect();
        shop.script(json!([{ "do": "gate", "after_chunks": 2 }]));
        let mut coming = buyer.begin(CHAT, &streamed(chat(WORDS)), &headers);
        coming.event();
        drop(coming);
        shop.open_gate();
        assert_eq!(shop.ended_call(number).progress, Progress::Finished);
        let again = buyer.ask(CHAT, &streamed(chat(WORDS)), &headers);
        assert_eq!(text_of(&again.text), WORDS);
        assert_eq!(buyer.balance(), (credits("100").checked_sub(millionths(COST)).unwrap(), CreditUnit::ZERO));
    }
    assert_eq!(shop.calls().len(), 3);
}

#[test]
fn who_would_pay_so_much_stops_the_upstream_when_it_comes_to_that() {
    let shop = Shop::open();
    let buyer = shop.buyer("100");
    // So long that the server notices who has left while words still come.
    let words = "word ".repeat(3_000);
    shop.script(json!([{ "do": "answer", "chunk_delay_ms": 1 }]));
    let limit = millionths(3_000 * 250 + 10 * 1_000);
    let wish = format!("drain={limit}");
    let mut coming = buyer.begin(CHAT, &streamed(chat(&words)), &[("x-holdfast-on-disconnect", &wish)]);
    coming.event();
    drop(coming);
    assert_eq!(shop.ended_call(1).progress, Progress::HungUp);
    let charged = only_charge(shop);
    assert!(charged >= limit && charged < millionths(3_000 * 250 + 3_000 * 1_000), "{charged}");
}

#[test]
fn one_of_two_readers_may_leave_and_the_other_reads_on() {
    let shop = Shop::open();
    let buyer = shop.buyer("100");
    shop.script(json!([{ "do": "gate", "after_chunks": 2 }]));
    let headers: &[(&str, &str)] = &[("idempotency-key", "k"), ("x-holdfast-on-disconnect", "cancel")];
    let mut one = buyer.begin(CHAT, &streamed(chat(WORDS)), headers);
    one.event();
    let mut two = buyer.begin(CHAT, &streamed(chat(WORDS)), headers);
    let mut read = two.event();
    drop(one);
    shop.open_gate();
    read += &two.rest().text;
    assert_eq!(text_of(&read), WORDS);
    assert_eq!(shop.ended_call(1).progress, Progress::Finished);
    assert_eq!(buyer.balance().0, credits("100").checked_sub(millionths(COST)).unwrap());
}
