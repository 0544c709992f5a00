//! The operator's page, as a browser would use it: log in, look, follow, log out.

use crate::http_world::Site;
use reqwest::Method;
use reqwest::blocking::{Client, Response};
use reqwest::redirect::Policy;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};

/// A client that shows redirects instead of following them.
pub(crate) fn browser() -> Client {
    Client::builder().no_proxy().redirect(Policy::none()).build().unwrap()
}

fn log_in(site: &Site, token: &str) -> Response {
    let form = format!("token={token}%0D%0A");
    let request = browser().post(site.url("/console/login")).header("sec-fetch-site", "same-origin");
    request.header("content-type", "application/x-www-form-urlencoded").body(form).send().unwrap()
}

fn header<'a>(response: &'a Response, name: &str) -> &'a str {
    response.headers().get(name).map_or("", |value| value.to_str().unwrap())
}

/// The cookie of a good login, as it is sent back.
pub(crate) fn cookie(site: &Site) -> String {
    let response = log_in(site, &site.admin);
    assert_eq!((response.status().as_u16(), header(&response, "location")), (303, "/console"));
    let set = header(&response, "set-cookie");
    for attribute in ["; HttpOnly", "; SameSite=Strict", "; Path=/console", "; Max-Age=28800"] {
        assert!(set.contains(attribute), "{set}");
    }
    assert!(!set.contains("Secure"), "there is no TLS here: {set}");
    assert!(!set.contains(&site.admin), "the token does not stay in the browser");
    set.split_once(';').unwrap().0.to_owned()
}

fn get(site: &Site, path: &str, cookie: &str) -> Response {
    browser().get(site.url(path)).header("cookie", cookie).send().unwrap()
}

fn is_sent_to_log_in(response: &Response) -> bool {
    response.status().as_u16() == 303 && header(response, "location") == "/console/login"
}

#[test]
fn an_operator_logs_in_looks_and_logs_out() {
    let site = Site::open();
    assert!(is_sent_to_log_in(&browser().get(site.url("/console")).send().unwrap()));
    let form = browser().get(site.url("/console/login")).send().unwrap();
    assert_eq!((form.status().as_u16(), header(&form, "referrer-policy")), (200, "same-origin"));
    assert!(form.text().unwrap().contains("<label for=\"token\">Admin key or token</label>"));

    let cookie = cookie(&site);
    let page = get(&site, "/console", &cookie);
    assert_eq!((page.status().as_u16(), header(&page, "cache-control")), (200, "no-store"));
    let policy = header(&page, "content-security-policy").to_owned();
    assert!(policy.starts_with("default-src 'none'; style-src 'sha256-"), "{policy}");
    assert!(policy.contains("script-src 'sha256-") && !policy.contains("unsafe"), "{policy}");
    let page = page.text().unwrap();
    assert!(page.contains("tester") && !page.contains("http://") && !page.contains("https://"), "nothing from outside");
    assert!(!page.contains(" style=") && !page.contains(" onclick="), "the policy would not allow it");

    let log_out = |site_of: &str| {
        let request = browser().post(site.url("/console/logout")).header("cookie", &cookie);
        request.header("sec-fetch-site", site_of).send().unwrap()
    };
    assert_eq!(log_out("cross-site").status().as_u16(), 403);
    assert_eq!(get(&site, "/console", &cookie).status().as_u16(), 200, "another site cannot end it");
    let out = log_out("same-origin");
    assert!(is_sent_to_log_in(&out) && header(&out, "set-cookie").contains("Max-Age=0"));
    assert!(is_sent_to_log_in(&get(&site, "/console", &cookie)), "the cookie is worth nothing now");
    let events = get(&site, "/console/events", &cookie);
    assert_eq!(events.status().as_u16(), 401);
}

#[test]
fn only_an_admins_token_opens_a_session() {
    let site = Site::open();
    let api_key = site.admin(Method::POST, "/api/v1/admin/keys", Some(&json!({ "account_id": "alice" })));
    let api_key = api_key.body["api_key"].as_str().unwrap();
    let changed = format!("{}AAAA", &site.admin[..site.admin.len() - 4]);
    for (token, status) in [
        ("", 401),
        ("<script>alert(1)</script>", 401),
        (api_key, 401),
        (changed.as_str(), 401),
        (site.service.as_str(), 403),
    ] {
        let refused = log_in(&site, token);
        assert_eq!(refused.status().as_u16(), status, "{token}");
        assert_eq!(header(&refused, "set-cookie"), "");
        let page = refused.text().unwrap();
        assert!(page.contains("role=\"alert\"") && !page.contains("<script>alert"), "{page}");
        assert!(token.is_empty() || !page.contains(token), "what was sent does not come back");
    }
    for wrong in ["", "holdfast_console=", "holdfast_console=AAAA", &format!("holdfast_console={}", site.admin)] {
        assert!(is_sent_to_log_in(&get(&site, "/console", wrong)), "{wrong}");
    }
    let post = |headers: &[(&str, &str)], body: String| {
        let request = browser().post(site.url("/console/login")).body(body);
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        headers.iter().fold(request, |request, (name, value)| request.header(*name, *value)).send().unwrap()
    };
    let good = || format!("token={}", site.admin);
    let body = post(&[("sec-fetch-site", "cross-site")], good()).text().unwrap();
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap()["error"]["code"], "ACCESS_CROSS_SITE");
    assert_eq!(post(&[("origin", "https://evil.example")], good()).status().as_u16(), 403);
    assert_eq!(post(&[], "nothing=1".to_owned()).status().as_u16(), 400);
    assert_eq!(post(&[], "x".repeat(20_000)).status().as_u16(), 413);
    let by_tls = post(&[("x-forwarded-proto", "https")], good());
    assert!(header(&by_tls, "set-cookie").ends_with("; Secure"));
    // A program needs no session.
    let by_token = site.bare(Method::GET, "/console").bearer_auth(&site.admin).send().unwrap();
    assert_eq!(by_token.status().as_u16(), 200);
    let by_token = site.bare(Method::GET, "/console").bearer_auth(&site.service).send().unwrap();
    assert_eq!(by_token.status().as_u16(), 403);
}

#[test]
fn the_page_says_what_the_books_say() {
    let site = Site::open();
    let evil = "<script>alert('reason')</script>";
    let minted = json!({ "account_id": "bob", "amount_cu": "12.25", "reason": evil });
    let mint = |key: &str, body: &Value| {
        let request = site.bare(Method::POST, "/api/v1/admin/mint").bearer_auth(&site.admin);
        site.send(request.header("idempotency-key", key).json(body)).status
    };
    assert!((200..300).contains(&mint("m1", &minted)));
    // An account cannot even be called so.
    assert_eq!(mint("m2", &json!({ "account_id": "<b>x</b>", "amount_cu": "1", "reason": "r" })), 400);
    site.hold("job-1", "30");
    site.hold("job-2", "5.5");
    let committed = site.post("/api/v1/reservations/job-1/commit", &json!({ "actual_cu": "20.125" }));
    assert_eq!(committed.status, 200, "{committed:?}");

    let page = get(&site, "/console", &cookie(&site)).text().unwrap();
    assert!(!page.contains("<script>alert"), "nothing in the books becomes markup");
    let card = |name: &str, value: &str| format!("<dt>{name}</dt><dd>{value}</dd>");
    for (name, value) in [("Accounts", "2"), ("Available", "86.625"), ("Held", "5.5"), ("Revenue", "20.125")] {
        assert!(page.contains(&card(name, value)), "{name} {value}: {page}");
    }
    let balance = "<tr><td>alice</td><td class=\"n\">74.375</td><td class=\"n\">5.5</td><td class=\"n extra\">1</td>";
    assert!(page.contains(balance), "{page}");
    assert!(page.find(balance) < page.find("<tr><td>bob</td><td class=\"n\">12.25</td>"), "the largest first");
    assert!(page.contains("<td class=\"id\">job-2</td><td>alice</td><td class=\"n\">5.5</td>"), "{page}");
    assert!(!page.contains("<td class=\"id\">job-1</td>"), "a closed hold is not open");
    assert!(page.contains(": 20.125</title>"), "today's bar: {page}");
    assert!(page.contains("<td>alice</td><td class=\"n\">20.125</td>"), "by account");
    assert!(page.contains("<td>billing_commit</td>") && page.contains("data-after=\"5\""), "{page}");
}

#[test]
fn of_many_accounts_the_largest_are_shown() {
    let site = Site::open();
    let mut client = site.server.client();
    for number in 1..=11 {
        let account = format!("a-{number:02}");
        let amount = number.to_string();
        client.ok(json!({ "op": "mint", "account": account, "amount_cu": amount, "reason": "r", "key": account }));
    }
    let page = get(&site, "/console", &cookie(&site)).text().unwrap();
    assert!(page.contains("<p class=\"note\">10 of 12</p>"), "{page}");
    let places: Vec<_> = (3..=11).rev().map(|number| page.find(&format!("<tr><td>a-{number:02}</td>"))).collect();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?}");
    assert!(!page.contains("<tr><td>a-02</td>") && !page.contains("<tr><td>a-01</td>"));
    assert!(page.contains("<dt>Available</dt><dd>166</dd>"), "the sum is over all: {page}");
}

#[test]
fn entries_are_told_as_they_are_made_and_a_stop_ends_it() {
    let site = Site::open();
    let cookie = cookie(&site);
    let follow = |last: Option<&str>| {
        let request = browser().get(site.url("/console/events?after=1")).header("cookie", &cookie);
        let response = last.map_or(request.try_clone().unwrap(), |id| request.header("last-event-id", id)).send();
        let response = response.unwrap();
        assert_eq!(header(&response, "content-type"), "text/event-stream");
        BufReader::new(response).lines().map(Result::unwrap)
    };
    let mut lines = follow(None);
    assert_eq!(lines.next().unwrap(), ": following");
    site.hold("job-1", "30");
    let mut entry = |offset: &str| {
        let mut told = lines.by_ref().skip_while(|line| line.is_empty() || line.starts_with(':'));
        assert_eq!(told.next().unwrap(), format!("id: {offset}"));
        assert_eq!(told.next().unwrap(), "event: entry");
        serde_json::from_str::<Value>(told.next().unwrap().strip_prefix("data: ").unwrap()).unwrap()
    };
    let reserved = entry("2");
    assert_eq!((&reserved["kind"], &reserved["account"]), (&json!("billing_reserve"), &json!("alice")));
    assert_eq!((&reserved["change"], &reserved["balance"]), (&json!("−30"), &json!("70")));
    site.post("/api/v1/reservations/job-1/release", &json!({}));
    assert_eq!(entry("3")["change"], "+30");
    // A page that was away gets what it missed, once.
    let mut again = follow(Some("2")).filter(|line| line.starts_with("id: "));
    assert_eq!(again.next().unwrap(), "id: 3");
    site.server.stop();
    assert_eq!(again.next(), None);
}
