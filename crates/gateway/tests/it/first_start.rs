//! The first start of a data directory: one admin key, told once, that opens what an operator needs and nothing else.

use crate::world::{Server, World};
use reqwest::blocking::{Client, RequestBuilder};
use reqwest::redirect::Policy;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

fn client() -> Client {
    Client::builder().no_proxy().redirect(Policy::none()).build().unwrap()
}

/// The admin key that a first start tells.
fn told_key(server: &mut Server) -> String {
    loop {
        let line = server.next_line();
        assert!(!line.is_empty(), "no key was told");
        if line.trim_start().starts_with("hf_admin_") {
            return line.trim().to_owned();
        }
    }
}

fn answer(request: RequestBuilder) -> (u16, Value) {
    let response = request.send().unwrap();
    (response.status().as_u16(), serde_json::from_str(&response.text().unwrap()).unwrap_or_default())
}

fn code(answer: &Value) -> String {
    answer["error"]["code"].as_str().unwrap_or_default().to_uppercase()
}

/// Every file below a directory that holds a text.
fn files_with(dir: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap().flatten() {
        if entry.path().is_dir() {
            found.extend(files_with(&entry.path(), text));
        } else if let Ok(bytes) = fs::read(entry.path())
            && bytes.windows(text.len()).any(|window| window == text.as_bytes())
        {
            found.push(entry.path().display().to_string());
        }
    }
    found
}

#[test]
fn the_key_of_the_first_start_operates_the_server_and_spends_nothing() {
    let world = World::new();
    let mut server = world.serve();
    let key = told_key(&mut server);
    let (client, url) = (client(), server.url().to_owned());
    let mint = client.post(format!("{url}/api/v1/admin/mint")).header("idempotency-key", "one").bearer_auth(&key);
    let body = json!({ "account_id": "demo", "amount_cu": "100", "reason": "first credit" });
    assert_eq!(answer(mint.json(&body)).0, 201);
    let listed = world.json(&["keys", "list"]);
    let id = listed["keys"][0]["id"].as_str().unwrap();
    assert_eq!((&listed["keys"][0]["scopes"], &listed["keys"][0]["account_id"]), (&json!(["admin"]), &Value::Null));
    assert_eq!(world.journal().last().unwrap()["actor"], id, "the books say which key it was");

    // A credential of one kind is worth nothing elsewhere.
    for path in ["/v1/key", "/v1/models", "/api/v1/accounts/demo/balance"] {
        let (status, refused) = answer(client.get(format!("{url}{path}")).bearer_auth(&key));
        assert_eq!((status, code(&refused).as_str()), (401, "AUTH_WRONG_KIND"), "{path} {refused}");
    }
    let made = world.json(&["keys", "new", "--account", "demo"]);
    let live = made["api_key"].as_str().unwrap();
    for (credential, code_expected) in [
        (live.to_owned(), "AUTH_WRONG_KIND"),
        (live.replace("hf_live_", "hf_admin_"), "AUTH_INVALID_KEY"),
        (format!("{key}0"), "AUTH_INVALID_KEY"),
    ] {
        let (status, refused) = answer(client.get(format!("{url}/api/v1/admin/keys")).bearer_auth(credential));
        assert_eq!((status, code(&refused).as_str()), (401, code_expected), "{refused}");
    }

    // The console takes it, and lets go when it is revoked.
    let form = |token: &str| {
        let request = client.post(format!("{url}/console/login")).header("sec-fetch-site", "same-origin");
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        request.body(format!("token={token}")).send().unwrap()
    };
    assert_eq!(form(live).status().as_u16(), 401);
    let logged_in = form(&key);
    assert_eq!(logged_in.status().as_u16(), 303);
    let cookie = logged_in.headers()["set-cookie"].to_str().unwrap().split_once(';').unwrap().0.to_owned();
    let look = || client.get(format!("{url}/console")).header("cookie", &cookie).send().unwrap();
    assert_eq!(look().status().as_u16(), 200);
    world.ok(&["keys", "revoke", id]);
    assert_eq!(look().status().as_u16(), 303, "sent to log in again");
    let (status, refused) = answer(client.get(format!("{url}/api/v1/admin/keys")).bearer_auth(&key));
    assert_eq!((status, code(&refused).as_str()), (401, "AUTH_KEY_REVOKED"));
    server.stop();
}

#[test]
fn the_key_is_told_once_and_kept_nowhere() {
    let world = World::new();
    let mut server = world.serve();
    let key = told_key(&mut server);
    let (told, said) = server.stop_and_hear();
    assert!(told.contains("/console") && told.contains("keys new --admin"), "{told}");
    assert!(!said.contains(&key[13..]), "what goes on is logged, and a log is no place for a key: {said}");
    assert_eq!(files_with(&world.data(), &key[13..]), [""; 0], "only its hash is kept");
    for _ in 0..2 {
        let (told, said) = world.serve().stop_and_hear();
        assert!(!told.contains("hf_admin_") && !said.contains("hf_admin_"), "{told} {said}");
    }
    assert_eq!(world.json(&["keys", "list"])["keys"].as_array().unwrap().len(), 1);
}

#[test]
fn who_missed_the_key_makes_another_and_commands_need_none() {
    let world = World::new();
    world.ok(&["mint", "demo", "1", "--reason", "before any server"]);
    let mut server = world.serve();
    assert!(told_key(&mut server).starts_with("hf_admin_"), "a directory that commands made has its first start too");
    let made = world.json(&["keys", "new", "--admin", "--name", "second", "--expires", "1h"]);
    let key = made["api_key"].as_str().unwrap();
    assert_eq!(answer(client().get(format!("{}/api/v1/admin/keys", server.url())).bearer_auth(key)).0, 200);
    assert_eq!(answer(client().get(format!("{}/api/v1/admin/keys", server.url())).header("x-api-key", key)).0, 200);
    let admin = world.ok(&["token", "--role", "admin"]);
    let ask = |body: Value| {
        answer(client().post(format!("{}/api/v1/admin/keys", server.url())).bearer_auth(admin.trim()).json(&body))
    };
    for (body, expected) in [
        (json!({ "scopes": ["admin", "read"] }), "INVALID_KEY"),
        (json!({ "scopes": ["admin"], "account_id": "demo" }), "INVALID_KEY"),
        (json!({ "scopes": ["admin"], "daily_limit_cu": "1" }), "INVALID_KEY"),
        (json!({ "scopes": ["read"] }), "INVALID_REQUEST"),
    ] {
        let (status, refused) = ask(body.clone());
        assert_eq!((status, code(&refused).as_str()), (400, expected), "{body} {refused}");
    }
    assert_eq!(ask(json!({ "scopes": ["admin"] })).0, 201);
    server.stop();
}
