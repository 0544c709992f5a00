//! Several real nodes on one real PostgreSQL: a caller is the same to all of them.

use crate::settlement_world::until;
use crate::shared_books::{Site, funds, health};
use crate::world::{Server, World};
use holdfast_adapters::postgres::Database;
use reqwest::blocking::Client;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::thread;

/// What a node answers to a credential: the status, and the code of a refusal.
fn get(server: &Server, path: &str, credential: &str) -> (u16, String) {
    let client = Client::builder().no_proxy().build().unwrap();
    let response = client.get(format!("{}{path}", server.url())).bearer_auth(credential).send().unwrap();
    let (status, body) = (response.status().as_u16(), response.json::<Value>().unwrap_or_default());
    (status, body["error"]["code"].as_str().unwrap_or_default().to_uppercase())
}

fn refused(code: &str) -> (u16, String) {
    (if code.starts_with("SERVICE") { 503 } else { 401 }, code.to_owned())
}

fn good() -> (u16, String) {
    (200, String::new())
}

/// A new key of alice's, and its id.
fn new_key(server: &Server) -> (String, String) {
    let made = server.client().ok(json!({ "op": "key_new", "account": "alice" }));
    let text = |field: &str| made[field].as_str().unwrap().to_owned();
    (text("api_key"), text("id"))
}

fn revoke(server: &Server, id: &str) -> Value {
    server.client().ok(json!({ "op": "key_revoke", "id": id }))
}

/// The names of the public keys that a node shows.
fn published(server: &Server) -> Vec<String> {
    let shown: Value =
        reqwest::blocking::get(format!("{}/.well-known/jwks.json", server.url())).unwrap().json().unwrap();
    shown["keys"].as_array().unwrap().iter().map(|key| key["kid"].as_str().unwrap().to_owned()).collect()
}

/// A number of the database's.
fn number(site: &Site, sql: &str) -> i64 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let url = site.outbox.server.url("postgres");
    runtime.block_on(async {
        let client = Database::at(&url, None).unwrap().connect().await.unwrap();
        client.query_one(sql, &[]).await.unwrap().get(0)
    })
}

#[test]
fn a_key_made_on_one_node_is_good_on_another_at_once_and_on_none_when_it_is_revoked() {
    let site = Site::new(2);
    let (one, two) = (site.serve_so(0, &[]), site.serve_so(1, &[]));
    one.client().ok(funds());
    let (key, id) = new_key(&one);
    assert_eq!(get(&two, "/v1/key", &key), good());
    let listed = |server: &Server| server.client().ok(json!({ "op": "keys", "account": "alice" }))["keys"].clone();
    assert_eq!(listed(&one), listed(&two));
    revoke(&one, &id);
    assert_eq!(get(&one, "/v1/key", &key), refused("AUTH_KEY_REVOKED"));
    until(|| get(&two, "/v1/key", &key), |answer| *answer == refused("AUTH_KEY_REVOKED"));

    // Whoever is asked to revoke it need not have heard of it, and says when that was, also the second time.
    let (key, id) = new_key(&two);
    let revoked = revoke(&one, &id)["revoked_at"].clone();
    assert!(revoked.is_string());
    assert_eq!(revoke(&two, &id)["revoked_at"], revoked);
    assert_eq!(get(&two, "/v1/key", &key), refused("AUTH_KEY_REVOKED"));

    // Also a change that nobody tells of is found.
    let (key, id) = new_key(&one);
    assert_eq!(get(&two, "/v1/key", &key), good());
    site.outbox.run(&format!(
        "BEGIN; UPDATE holdfast.access_state SET version = version + 1; \
         UPDATE holdfast.access_keys SET revoked_at = 1, version = (SELECT version FROM holdfast.access_state) \
         WHERE id = '{id}'; COMMIT"
    ));
    for node in [&one, &two] {
        until(|| get(node, "/v1/key", &key), |answer| *answer == refused("AUTH_KEY_REVOKED"));
    }
    let version = |server: &Server| health(server)["identity"]["version"].clone();
    until(|| (version(&one), version(&two)), |(one, two)| one == two && one.is_i64());
}

#[test]
fn a_limit_set_on_one_node_binds_on_another_and_its_parts_can_be_set_on_both() {
    let site = Site::new(2);
    let (one, two) = (site.serve_so(0, &[]), site.serve_so(1, &[]));
    one.client().ok(funds());
    one.client().ok(json!({ "op": "limit_set", "of": "account", "id": "alice", "per_day_cu": "5" }));
    let shown = two.client().ok(json!({ "op": "limit", "of": "account", "id": "alice" }));
    assert_eq!(shown["per_day_cu"], "5");
    let reserve = |server: &Server, id: &str, amount: &str| {
        let answer = server
            .client()
            .ask(json!({ "op": "reserve", "account_id": "alice", "request_id": id, "amount_cu": amount }));
        if answer["ok"] == true { "done".to_owned() } else { answer["error"]["code"].as_str().unwrap().to_owned() }
    };
    assert_eq!(reserve(&two, "r1", "6"), "INSUFFICIENT_BUDGET");
    assert_eq!(reserve(&two, "r2", "4"), "done");
    assert_eq!(reserve(&one, "r3", "4"), "INSUFFICIENT_BUDGET", "what one uses counts for the other");
    thread::scope(|scope| {
        let set = |server: &Server, part: &str, value: &str| {
            server.client().ok(json!({ "op": "limit_set", "of": "account", "id": "alice", part: value }));
        };
        scope.spawn(move || set(&one, "in_total_cu", "7"));
        scope.spawn(move || set(&two, "team", "red"));
    });
    let three = site.command(1, &["accounts", "limit", "alice"]);
    let parts = ["per_day_cu", "in_total_cu", "team"].map(|part| three[part].as_str().unwrap().to_owned());
    assert_eq!(parts, ["5", "7", "red"]);
}

#[test]
fn a_token_signed_for_one_node_is_good_at_all_and_a_rotation_is_everybodys() {
    let site = Site::new(2);
    let (one, two) = (site.serve_so(0, &[]), site.serve_so(1, &[]));
    let token = |node: usize| {
        let signed = site.command(node, &["token", "--role", "admin"]);
        signed["token"].as_str().unwrap().to_owned()
    };
    let admin = "/api/v1/admin/keys";
    let before = token(0);
    assert_eq!((get(&one, admin, &before), get(&two, admin, &before)), (good(), good()));
    let first = published(&one);
    assert_eq!((first.len(), &published(&two)), (1, &first));
    let kid = one.client().ok(json!({ "op": "signing_key_rotate" }))["kid"].as_str().unwrap().to_owned();
    // The other node may not have heard of it; it asks before it refuses.
    let after = token(1);
    assert_ne!(before.split_once('.').unwrap().0, after.split_once('.').unwrap().0, "another key signs");
    assert_eq!((get(&two, admin, &after), get(&one, admin, &after)), (good(), good()));
    assert_eq!((published(&one), published(&two)), (vec![kid.clone(), first[0].clone()], vec![kid, first[0].clone()]));
    assert_eq!(get(&two, admin, &before), good());
    let files: Vec<_> =
        site.worlds.iter().map(|world| world.data().join("identity")).filter(|dir| dir.exists()).collect();
    assert_eq!(files, Vec::<std::path::PathBuf>::new(), "no private key is left on a node");
}

#[test]
fn of_nodes_that_start_at_once_one_tells_the_first_admin_key_and_all_sign_with_one() {
    const NODES: usize = 4;
    let site = Site::new(NODES);
    let nodes: Vec<Server> = thread::scope(|scope| {
        let site = &site;
        let starting: Vec<_> = (0..NODES).map(|node| scope.spawn(move || site.serve_so(node, &[]))).collect();
        starting.into_iter().map(|starting| starting.join().unwrap()).collect()
    });
    let told = "SELECT count(first_key_told_at) FROM holdfast.access_state";
    until(|| number(&site, told), |told| *told == 1);
    let keys: BTreeSet<Vec<String>> = nodes.iter().map(published).collect();
    assert_eq!((keys.len(), keys.first().unwrap().len()), (1, 1));
    let said: Vec<String> = nodes.into_iter().map(|node| node.stop_and_hear().0).collect();
    let told: BTreeSet<&str> = said
        .iter()
        .flat_map(|said| said.split_whitespace())
        .filter(|word| word.starts_with("hf_admin_") && word.len() == 58)
        .collect();
    assert_eq!(told.len(), 1, "{said:?}");
    assert_eq!(said.iter().filter(|said| said.contains("First start")).count(), 1);
    // Whoever comes later tells none, and takes the one that was told.
    let late = site.serve_so(0, &[]);
    assert_eq!(get(&late, "/api/v1/admin/keys", told.first().unwrap()), good());
    assert!(!late.stop_and_hear().0.contains("hf_admin_"));
    assert_eq!(number(&site, "SELECT count(*) FROM holdfast.access_keys"), 1);
    assert_eq!(number(&site, "SELECT count(*) FROM holdfast.access_signing_keys"), 1);
}

#[test]
fn who_dies_before_telling_the_first_admin_key_leaves_it_to_another() {
    let site = Site::new(1);
    site.outbox.run("UPDATE holdfast.access_state SET first_key_claimed_at = now() + interval '1 hour'");
    let server = site.serve_so(0, &[]);
    assert!(!server.stop_and_hear().0.contains("hf_admin_"), "another is about to tell it");
    site.outbox.run("UPDATE holdfast.access_state SET first_key_claimed_at = now() - interval '31 seconds'");
    let server = site.serve_so(0, &[]);
    until(|| number(&site, "SELECT count(first_key_told_at) FROM holdfast.access_state"), |told| *told == 1);
    assert!(server.stop_and_hear().0.contains("hf_admin_"));
}

#[test]
fn without_the_database_what_is_known_serves_for_a_while_nothing_changes_and_then_no_key_is_trusted() {
    let mut site = Site::new(1);
    let server = site.serve_so(0, &[("HOLDFAST_KEYS_STALE_S", "8")]);
    server.client().ok(funds());
    let (key, id) = new_key(&server);
    let token = site.command(0, &["token", "--role", "admin"])["token"].as_str().unwrap().to_owned();
    let identity = |field: &str| health(&server)["identity"][field].clone();
    assert_eq!((identity("reached"), identity("trusted")), (json!(true), json!(true)));
    site.outbox.server.kill();
    // What does not need the books is answered by what is known, and nothing is waited for.
    assert_eq!(get(&server, "/v1/models", &key), good());
    let seen = until(|| health(&server), |health| health["identity"]["reached"] == false);
    assert_eq!(seen["status"], "degraded");
    for request in [
        json!({ "op": "key_new", "account": "alice" }),
        json!({ "op": "key_revoke", "id": id }),
        json!({ "op": "limit_set", "of": "account", "id": "alice", "per_day_cu": "1" }),
        json!({ "op": "signing_key_rotate" }),
    ] {
        let answer = server.client().ask(request.clone());
        let said = (&answer["error"]["code"], &answer["error"]["action"]);
        assert_eq!(said, (&json!("SERVICE_DATABASE_UNAVAILABLE"), &json!("retry_later")), "{request}");
    }
    until(|| get(&server, "/v1/models", &key), |answer| *answer == refused("SERVICE_KEYS_STALE"));
    assert_eq!(identity("trusted"), false);
    let ready = reqwest::blocking::get(format!("{}/ready", server.url())).unwrap();
    assert_eq!(ready.status().as_u16(), 503);
    // A token says itself how long it is good.
    assert_eq!(get(&server, "/api/v1/admin/keys", &token), good());

    site.outbox.server.start_again().unwrap();
    until(|| get(&server, "/v1/models", &key), |answer| *answer == good());
    until(|| health(&server)["status"].clone(), |status| status == "ok");
    let unchanged = "SELECT count(*) FROM holdfast.access_keys WHERE revoked_at IS NULL";
    assert_eq!(number(&site, unchanged), 2, "the first admin key and alice's");
    assert_eq!(number(&site, "SELECT count(*) FROM holdfast.access_limits"), 0);
    let said = server.stop();
    assert!(said.contains("the keys in the database cannot be looked at"), "{said}");
    assert!(said.contains("the database with the keys answers again"), "{said}");
}

#[test]
fn a_database_that_was_put_back_to_an_earlier_state_is_believed() {
    let site = Site::new(1);
    let server = site.serve_so(0, &[]);
    server.client().ok(funds());
    let (kept, _) = new_key(&server);
    let (revoked, revoked_id) = new_key(&server);
    let (lost, lost_id) = new_key(&server);
    revoke(&server, &revoked_id);
    assert_eq!(get(&server, "/v1/key", &revoked), refused("AUTH_KEY_REVOKED"));
    // As a backup from before the last two changes has it.
    site.outbox.run(&format!(
        "BEGIN; UPDATE holdfast.access_state SET version = version - 2; \
         DELETE FROM holdfast.access_keys WHERE id = '{lost_id}'; \
         UPDATE holdfast.access_keys SET revoked_at = NULL WHERE id = '{revoked_id}'; COMMIT"
    ));
    until(|| get(&server, "/v1/key", &lost), |answer| *answer == refused("INVALID_API_KEY"));
    assert_eq!((get(&server, "/v1/key", &kept), get(&server, "/v1/key", &revoked)), (good(), good()));
}

#[test]
fn what_a_directory_knew_before_it_shared_a_database_is_said_to_be_unused_and_can_be_copied() {
    let site = Site::new(2);
    let world: &World = &site.worlds[0];
    let old = world.serve();
    old.client().ok(json!({ "op": "limit_set", "of": "team", "id": "red", "per_day_cu": "9" }));
    let (key, _) = new_key(&old);
    let (gone, id) = new_key(&old);
    revoke(&old, &id);
    old.stop();

    let (one, two) = (site.serve_so(0, &[]), site.serve_so(1, &[]));
    one.client().ok(funds());
    assert_eq!(get(&one, "/v1/key", &key), refused("INVALID_API_KEY"));
    // The first admin key of the directory, alice's two, and the limit; beside the servers.
    let copied = site.command(0, &["keys", "import"]);
    assert_eq!((&copied["keys"], &copied["limits"]), (&json!(3), &json!(1)));
    for node in [&one, &two] {
        assert_eq!(get(node, "/v1/key", &key), good());
        assert_eq!(get(node, "/v1/key", &gone), refused("AUTH_KEY_REVOKED"));
        assert_eq!(node.client().ok(json!({ "op": "limit", "of": "team", "id": "red" }))["per_day_cu"], "9");
    }
    let again = site.command(0, &["keys", "import"]);
    assert_eq!((&again["keys"], &again["limits"]), (&json!(0), &json!(0)));
    let said = one.stop();
    assert!(said.contains("2 API keys and 1 limits") && said.contains("holdfast keys import"), "{said}");
    assert!(!two.stop().contains("are not used"));
    assert!(!site.serve_so(0, &[]).stop().contains("are not used"), "all of it is there now");
    let nowhere = world.run(&["keys", "import"]);
    assert!(nowhere.stderr.contains("HOLDFAST_DATABASE_URL"), "{nowhere:?}");
}

#[test]
fn commands_without_a_server_change_what_all_nodes_know() {
    let site = Site::new(2);
    let made = site.command(0, &["keys", "new", "--account", "alice"]);
    site.command(0, &["mint", "alice", "10", "--reason", "funds"]);
    site.command(0, &["accounts", "limit", "alice", "--per-day", "3"]);
    let two = site.serve_so(1, &[]);
    let key = made["api_key"].as_str().unwrap();
    assert_eq!(get(&two, "/v1/key", key), good());
    // Another node's directory, without a server there: the one that runs hears of it.
    site.command(0, &["keys", "revoke", made["id"].as_str().unwrap()]);
    until(|| get(&two, "/v1/key", key), |answer| *answer == refused("AUTH_KEY_REVOKED"));
    let reserve = json!({ "op": "reserve", "account_id": "alice", "request_id": "r1", "amount_cu": "4" });
    assert_eq!(two.client().ask(reserve)["error"]["code"], "INSUFFICIENT_BUDGET");
    let kid = site.command(0, &["keys", "rotate"])["kid"].as_str().unwrap().to_owned();
    until(|| published(&two), |keys| keys.first() == Some(&kid));
    let mut doctor = site.worlds[0].command(&["--json", "doctor"]);
    let output = doctor.env("HOLDFAST_DATABASE_URL", site.outbox.url()).output().unwrap();
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    let found = said["checks"].as_array().unwrap().iter().find(|check| check["check"] == "signing key").unwrap();
    assert_eq!((&found["verdict"], found["found"].as_str().unwrap().contains("database")), (&json!("pass"), true));
}
