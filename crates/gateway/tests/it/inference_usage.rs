//! What is counted beside the books: what models were charged, and who brought a key. By the real program, through its ends.

use crate::inference_world::{CHAT, MESSAGES, Shop, amount, chat, streamed, with};
use reqwest::Method;
use rusqlite::Connection;
use rustix::process::Signal;
use serde_json::json;

/// The console, as a program reads it.
fn console(shop: &Shop) -> String {
    let site = &shop.site;
    site.bare(Method::GET, "/console").bearer_auth(&site.admin).send().unwrap().text().unwrap()
}

fn usage(shop: &Shop) -> Connection {
    Connection::open(shop.site.world.data().join("usage.db")).unwrap()
}

#[test]
fn revenue_is_charted_by_day_and_model_and_the_chart_outlives_the_process() {
    let shop = Shop::open();
    let buyer = shop.buyer("100");
    let messages = with(chat("one two three"), json!({ "model": "claude-x", "max_tokens": 9 }));
    let whole = buyer.ask(CHAT, &chat("one two three"), &[]);
    let stream = buyer.ask(CHAT, &streamed(chat("four five")), &[]);
    let claude = buyer.ask(MESSAGES, &messages, &[]);
    let cost = |told: &crate::inference_world::Told| amount(&json!(told.header("x-holdfast-cost-cu")));
    let gpt = cost(&whole).checked_add(stream.cost_comment().0).unwrap();
    // What a service charges by itself is no model's.
    shop.site.hold("job", "1");
    assert_eq!(shop.site.post("/api/v1/reservations/job/commit", &json!({ "actual_cu": "0.01" })).status, 200);

    let expected =
        [format!(", gpt-4o: {gpt}<"), format!(", claude-x: {}<", cost(&claude)), ", everything else: 0.01<".into()];
    let charts = |page: &str| expected.iter().all(|part| page.contains(part.as_str()));
    let page = console(&shop);
    assert!(charts(&page), "{expected:?}: {page}");
    assert!(page.contains("<ul class=\"legend\">") && page.contains(">gpt-4o</li>"), "{page}");

    let account = buyer.account.clone();
    let shop = shop.again_after(|server| drop(server.stop()));
    assert!(charts(&console(&shop)), "after a stop in order");
    // Whatever is lost with a process that is killed is not lost to the books.
    let buyer = shop.key_of(account, json!({}));
    assert_eq!(buyer.ask(CHAT, &chat("six"), &[]).status, 200);
    let shop = shop.again_after(|server| {
        server.signal(Signal::KILL);
        drop(server.wait());
    });
    let page = console(&shop);
    assert!(page.contains(", gpt-4o: ") && page.contains(", claude-x: "), "{page}");
}

#[test]
fn who_brings_a_key_is_counted_through_restarts_and_kills() {
    let shop = Shop::with_upstream_key("sk-theirs");
    let own: &[(&str, &str)] = &[("x-holdfast-provider-key", "sk-theirs")];
    let (account, key) = {
        let buyer = shop.buyer("1");
        assert_eq!(buyer.ask(CHAT, &chat("one"), own).status, 200);
        (buyer.account.clone(), buyer.key.clone())
    };
    let count = |shop: &Shop| -> u32 {
        let asked = "SELECT requests FROM own_key_days WHERE account = ?1";
        usage(shop).query_row(asked, [&account], |row| row.get(0)).unwrap()
    };
    let shop = shop.again_after(|server| drop(server.stop()));
    assert_eq!(count(&shop), 1);
    let data = shop.site.world.data();
    let shop = shop.again_after(|server| {
        drop(server.stop());
        let many = Connection::open(data.join("usage.db")).unwrap();
        assert_eq!(many.execute("UPDATE own_key_days SET requests = 999", []).unwrap(), 1);
    });
    let buyer = shop.buyer_with(account.clone(), key.clone());
    assert_eq!(buyer.ask(CHAT, &chat("two"), own).status, 200);
    buyer.ask(CHAT, &chat("three"), own).refused(429, "rate_limited");
    while count(&shop) < 1_000 {
        std::thread::yield_now();
    }
    let shop = shop.again_after(|server| {
        server.signal(Signal::KILL);
        drop(server.wait());
    });
    let buyer = shop.buyer_with(account.clone(), key);
    buyer.ask(CHAT, &chat("four"), own).refused(429, "rate_limited");
    let other = shop.buyer("1");
    assert_eq!(other.ask(CHAT, &chat("five"), own).status, 200, "another account has its own count");
}
