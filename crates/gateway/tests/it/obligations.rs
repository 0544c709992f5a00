//! An operator and the charges that the peer refuses: looked at, replayed, resolved and imported, by every way in.

use crate::console::{browser, cookie};
use crate::http_world::Site;
use crate::settlement_world::{becomes, charge, until};
use holdfast_simulator::peer::{Options, Peer};
use reqwest::Method;
use serde_json::{Value, json};
use std::fs;

/// A server whose peer refuses everything, until it relents, and dead letters of these names.
fn refused(ids: &[&str]) -> (Site, Peer) {
    let peer = Peer::start(Options { refuses_one_in: Some(1), ..Options::honest() }).unwrap();
    let site = Site::with_settings(&[("HOLDFAST_PEER_URL", &peer.url)]);
    let mut client = site.server.client();
    for id in ids {
        charge(&mut client, id);
        becomes(&mut client, id, "FINALIZE_FAILED");
    }
    until(|| dead(&site), |dead| dead["dead"] == ids.len());
    (site, peer)
}

fn dead(site: &Site) -> Value {
    let answer = site.admin(Method::GET, "/api/v1/admin/dead-letters", None);
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.body
}

fn post(site: &Site, path: &str, body: Option<&Value>) -> (u16, Value) {
    let answer = site.admin(Method::POST, &format!("/api/v1/admin/{path}"), body);
    (answer.status, answer.body)
}

fn code(answer: &(u16, Value)) -> (u16, &str) {
    (answer.0, answer.1["error"]["code"].as_str().unwrap_or_default())
}

#[test]
fn dead_letters_are_listed_replayed_and_resolved_over_http() {
    let (site, peer) = refused(&["one", "two", "three"]);
    let listed = dead(&site);
    assert_eq!((&listed["pending"], &listed["next"]), (&json!(0), &Value::Null));
    let first = &listed["obligations"][0];
    let fields = ["reservation_id", "billing_entry_id", "tenant_id", "amount_cu", "actual_cost_micro", "state"];
    let shown: Vec<&str> = fields.iter().map(|field| first[*field].as_str().unwrap()).collect();
    assert_eq!(shown, ["one", "one", "alice", "2.5", "2500000", "dead"]);
    assert!(first["reason"].as_str().unwrap().contains("422"), "{first}");
    let page = site.admin(Method::GET, "/api/v1/admin/dead-letters?limit=2", None).body;
    assert_eq!((page["obligations"].as_array().unwrap().len(), &page["next"]), (2, &json!("two")));
    let rest = site.admin(Method::GET, "/api/v1/admin/dead-letters?limit=2&after=two", None).body;
    assert_eq!((&rest["obligations"][0]["reservation_id"], &rest["next"]), (&json!("three"), &Value::Null));

    assert_eq!(code(&post(&site, "dead-letters/one/resolve", Some(&json!({})))), (400, "INVALID_REQUEST"));
    assert_eq!(code(&post(&site, "dead-letters/one/resolve", Some(&json!({ "note": "" })))), (400, "INVALID_REASON"));
    let resolved = post(&site, "dead-letters/one/resolve", Some(&json!({ "note": "paid by hand" })));
    assert_eq!((resolved.0, &resolved.1["resolved"]), (200, &json!(true)));
    let again = post(&site, "dead-letters/one/resolve", Some(&json!({ "note": "paid by hand" })));
    assert_eq!(code(&again), (404, "OBLIGATION_NOT_FOUND"));

    peer.relent();
    assert_eq!(post(&site, "reconcile/two", None), (200, json!({ "reservation_id": "two", "replayed": true })));
    becomes(&mut site.server.client(), "two", "FINALIZE_ACKED");
    // The journal has the word before the row is gone: until then it is in delivery.
    until(|| post(&site, "reconcile/two", None), |answer| answer.0 != 409);
    assert_eq!(code(&post(&site, "reconcile/two", None)), (404, "OBLIGATION_NOT_FOUND"));
    let pending = site.admin(Method::GET, "/api/v1/admin/pending-reconciliations", None).body;
    assert_eq!((&pending["obligations"], &pending["dead"]), (&json!([]), &json!(1)));
    for path in ["pending-reconciliations", "dead-letters"] {
        assert_eq!(site.get(&format!("/api/v1/admin/{path}")).status, 403, "a service is no operator");
    }
    let book = peer.book();
    assert_eq!(book.rows["two"].applied, 1);
    assert_eq!(book.rows["one"].applied, 0, "what was resolved is not told");
}

#[test]
fn dead_letters_are_shown_replayed_and_resolved_by_command() {
    let (site, peer) = refused(&["one", "two", "three"]);
    let world = &site.world;
    let shown = world.ok(&["obligations", "list", "--dead"]);
    assert!(shown.contains("422") && shown.ends_with("0 pending, 3 dead\n"), "{shown}");
    assert_eq!(world.json(&["obligations", "show", "two"])["state"], "dead");
    assert_eq!(world.refused(&["obligations", "show", "none"]), "OBLIGATION_NOT_FOUND");
    assert_eq!(world.refused(&["obligations", "resolve", "two", "--note", ""]), "INVALID_REASON");
    assert!(world.ok(&["obligations", "resolve", "two", "--note", "ticket 12"]).contains("ticket 12"));
    peer.relent();
    assert_eq!(world.refused(&["obligations", "replay", "--all-since", "yesterday"]), "INVALID_TIME");
    assert_eq!(
        world.ok(&["obligations", "replay", "--all-since", "2100-01-01T00:00:00Z"]),
        "0 obligations brought back\n"
    );
    world.ok(&["obligations", "replay", "one"]);
    let replayed = world.json(&["obligations", "replay", "--all-since", "1970-01-01T00:00:00Z"]);
    assert!(replayed["replayed"] == 1 || replayed["replayed"] == 2, "{replayed}");
    for id in ["one", "three"] {
        becomes(&mut site.server.client(), id, "FINALIZE_ACKED");
    }
    until(|| world.json(&["obligations", "list"]), |list| list["dead"] == 0 && list["pending"] == 0);
    assert_eq!(peer.applied(), 2);
    let said = site.server.stop();
    assert!(said.contains("operator has resolved obligation two: ticket 12"), "{said}");
}

#[test]
fn lines_of_a_log_are_imported_once_all_of_them_are_understood() {
    let (site, _peer) = refused(&["one"]);
    let line = |id: &str, cost: &str| {
        let obligation = json!({
            "reservation_id": id, "charge_id": id, "tenant_id": "alice", "actual_cost_micro": cost, "created_at_ms": 1,
        });
        json!({ "level": "ERROR", "event": "obligation_not_stored", "obligation": obligation }).to_string()
    };
    let log = site.world.home().join("server.log");
    let import = |text: String| {
        fs::write(&log, text).unwrap();
        site.world.run(&["obligations", "import", log.to_str().unwrap(), "--json"])
    };
    let broken = import(format!("all is well\n{}\nhost: {}\n", line("one", "2500000"), &line("two", "1")[..60]));
    assert!(broken.stderr.contains("line 3 ") && broken.stderr.contains("nothing was imported"), "{}", broken.stderr);
    let good = import(format!("all is well\nhost: {}\n", line("one", "2500000")));
    assert_eq!(good.stdout.trim(), r#"{"imported":1,"ok":true}"#, "{}", good.stderr);
    assert_eq!(dead(&site)["dead"], 1, "what is there stays as it is");
    assert_eq!(import("nothing\n".to_owned()).stdout.trim(), r#"{"imported":0,"ok":true}"#);
}

#[test]
fn without_a_peer_there_is_nothing_to_act_on() {
    let site = Site::open();
    let answer = site.admin(Method::GET, "/api/v1/admin/dead-letters", None);
    assert_eq!((answer.status, answer.code()), (409, "DELIVERY_OFF"));
    assert_eq!(site.world.refused(&["obligations", "list"]), "DELIVERY_OFF");
    let page = browser().get(site.url("/console")).header("cookie", cookie(&site)).send().unwrap().text().unwrap();
    assert!(page.contains("No peer is configured"), "{page}");
    site.server.stop();
    assert_eq!(site.world.refused(&["obligations", "list"]), "DELIVERY_OFF");
}

#[test]
fn the_console_shows_dead_letters_and_acts_on_them_for_its_operator_alone() {
    let (site, peer) = refused(&["one", "two"]);
    let session = cookie(&site);
    let look = || browser().get(site.url("/console")).header("cookie", &session).send().unwrap().text().unwrap();
    let page = look();
    assert!(
        page.contains("2 charges were given up") && page.contains("0 to be told to the peer, 2 given up"),
        "{page}"
    );
    assert!(page.contains("name=\"id\" value=\"one\"><button>Replay</button>"), "{page}");
    let act = |path: &str, form: &'static str, headers: &[(&str, &str)]| {
        let request = browser().post(site.url(&format!("/console/obligations/{path}"))).body(form);
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        headers.iter().fold(request, |request, (name, value)| request.header(*name, *value)).send().unwrap()
    };
    let ours = [("cookie", session.as_str()), ("sec-fetch-site", "same-origin")];
    let stranger = act("replay", "id=one", &[("sec-fetch-site", "same-origin")]);
    assert_eq!((stranger.status().as_u16(), stranger.headers()["location"].to_str().unwrap()), (303, "/console/login"));
    let foreign = act("resolve", "id=one&note=x", &[("cookie", &session), ("sec-fetch-site", "cross-site")]);
    assert_eq!(foreign.status().as_u16(), 403);
    assert_eq!(act("resolve", "id=one&note=", &ours).status().as_u16(), 400, "a note is needed");
    assert_eq!(dead(&site)["dead"], 2, "nothing was done");
    let resolved = act("resolve", "id=one&note=paid+by+hand", &ours);
    assert_eq!(
        (resolved.status().as_u16(), resolved.headers()["location"].to_str().unwrap()),
        (303, "/console#settlement")
    );
    peer.relent();
    assert_eq!(act("replay", "id=two", &ours).status().as_u16(), 303);
    becomes(&mut site.server.client(), "two", "FINALIZE_ACKED");
    until(look, |page| page.contains("0 to be told to the peer, 0 given up") && !page.contains("given up: the peer"));
}
