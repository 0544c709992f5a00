//! API keys: made, shown once, used, limited to their own routes, and revoked at once.

use crate::http_world::{Answer, Site};
use crate::world::World;
use reqwest::Method;
use serde_json::{Value, json};

fn with_key(site: &Site, key: &str) -> Answer {
    site.send(site.bare(Method::GET, "/v1/key").bearer_auth(key))
}

#[test]
fn a_key_is_made_used_and_revoked_over_http() {
    let site = Site::open();
    let body = json!({ "account_id": "alice", "name": "laptop", "expires_s": 3600, "daily_limit_cu": "5", "total_limit_cu": "50" });
    let made = site.admin(Method::POST, "/api/v1/admin/keys", Some(&body));
    assert_eq!(made.status, 201, "{made:?}");
    let (key, id) = (made.body["api_key"].as_str().unwrap().to_owned(), made.body["id"].as_str().unwrap().to_owned());
    assert!(key.starts_with("hf_live_") && key.len() == 57, "{key}");
    let used = with_key(&site, &key);
    assert_eq!(
        (used.status, &used.body["account_id"], &used.body["balance_cu"]),
        (200, &json!("alice"), &json!("100"))
    );
    assert_eq!((&used.body["daily_limit_cu"], &used.body["total_limit_cu"]), (&json!("5"), &json!("50")));
    let other_header = site.send(site.bare(Method::GET, "/v1/key").header("x-api-key", &key));
    assert_eq!(other_header.status, 200);

    let listed = site.admin(Method::GET, "/api/v1/admin/keys?account_id=alice", None);
    assert_eq!(listed.body["keys"].as_array().unwrap().len(), 1);
    assert!(!listed.body.to_string().contains(&key[12..]), "{listed:?}");
    assert_eq!(site.admin(Method::GET, &format!("/api/v1/admin/keys/{id}"), None).body["name"], "laptop");
    let revoked = site.admin(Method::DELETE, &format!("/api/v1/admin/keys/{id}"), None);
    assert!(revoked.status == 200 && revoked.body["revoked_at"].is_string(), "{revoked:?}");
    let refused = with_key(&site, &key);
    assert_eq!((refused.status, &refused.body["error"]["code"]), (401, &json!("auth_key_revoked")));

    for (method, path, body, status, code) in [
        (Method::POST, "/api/v1/admin/keys", Some(json!({})), 400, "INVALID_REQUEST"),
        (Method::POST, "/api/v1/admin/keys", Some(json!({ "account_id": "a b" })), 400, "INVALID_ID"),
        (Method::POST, "/api/v1/admin/keys", Some(json!({ "account_id": "a", "scopes": ["all"] })), 400, "INVALID_KEY"),
        (
            Method::POST,
            "/api/v1/admin/keys",
            Some(json!({ "account_id": "a", "expires_s": 0 })),
            400,
            "INVALID_REQUEST",
        ),
        (
            Method::POST,
            "/api/v1/admin/keys",
            Some(json!({ "account_id": "a", "daily_limit_cu": 5 })),
            400,
            "INVALID_AMOUNT",
        ),
        (Method::GET, "/api/v1/admin/keys/key_none", None, 404, "KEY_NOT_FOUND"),
        (Method::DELETE, "/api/v1/admin/keys/key_none", None, 404, "KEY_NOT_FOUND"),
        (Method::GET, "/api/v1/admin/keys?limit=0", None, 400, "INVALID_REQUEST"),
        (Method::PUT, "/api/v1/admin/keys", None, 405, "METHOD_NOT_ALLOWED"),
    ] {
        let answer = site.admin(method.clone(), path, body.as_ref());
        assert_eq!((answer.status, answer.code()), (status, code), "{method} {path} {body:?} {answer:?}");
    }
}

#[test]
fn an_admin_mints_once_for_each_key() {
    let site = Site::open();
    let body = json!({ "account_id": "bob", "amount_cu": "7.5", "reason": "invoice 12" });
    let mint = |key: Option<&str>| {
        let request = site.bare(Method::POST, "/api/v1/admin/mint").bearer_auth(&site.admin).json(&body);
        site.send(key.into_iter().fold(request, |request, key| request.header("idempotency-key", key)))
    };
    assert_eq!((mint(None).status, mint(None).code()), (400, "KEY_REQUIRED"));
    let first = mint(Some("invoice-12"));
    assert_eq!((first.status, &first.body["balance_cu"]), (201, &json!("7.5")));
    let again = mint(Some("invoice-12"));
    assert_eq!((again.status, &again.body), (201, &first.body));
    assert_eq!(again.headers["idempotent-replayed"], "true");
    assert_eq!(site.world.journal().last().unwrap()["actor"], "tester");
}

#[test]
fn a_key_made_or_revoked_by_command_counts_at_once_in_a_running_server() {
    let site = Site::open();
    let made = site.world.json(&["keys", "new", "--account", "alice", "--scope", "inference", "--expires", "30d"]);
    let key = made["api_key"].as_str().unwrap();
    let refused = with_key(&site, key);
    assert_eq!((refused.status, &refused.body["error"]["code"]), (403, &json!("access_scope")));
    let printed = site.world.ok(&["keys", "new", "--account", "alice", "--name", "phone"]);
    let key = printed.lines().next().unwrap().to_owned();
    assert_eq!(with_key(&site, &key).status, 200);
    let listed = site.world.json(&["keys", "list"]);
    // The first start made one, then there are the two of above.
    let id = listed["keys"][2]["id"].as_str().unwrap();
    assert!(!listed.to_string().contains(&key[12..]));
    assert_eq!(site.world.json(&["keys", "show", id])["name"], "phone");
    site.world.ok(&["keys", "revoke", id]);
    assert_eq!(with_key(&site, &key).status, 401);
    let said = site.server.stop();
    assert!(!said.contains(&key[12..]) && !said.contains(&site.service), "{said}");
}

#[test]
fn keys_outlive_the_server_and_are_kept_without_one() {
    let world = World::with_alice();
    let key = world.ok(&["keys", "new", "--account", "alice"]).lines().next().unwrap().to_owned();
    assert_eq!(world.refused(&["keys", "show", "key_none"]), "KEY_NOT_FOUND");
    assert_eq!(world.refused(&["keys", "new", "--account", "alice", "--scope", "root"]), "INVALID_KEY");
    assert_eq!(world.refused(&["keys", "new", "--account", "alice", "--daily-limit-cu", "-5"]), "INVALID_AMOUNT");
    let server = world.serve();
    let client = reqwest::blocking::Client::builder().no_proxy().build().unwrap();
    let ask = |url: &str| client.get(format!("{url}/v1/key")).bearer_auth(&key).send().unwrap().status().as_u16();
    assert_eq!(ask(server.url()), 200);
    server.crash();
    let server = world.serve();
    assert_eq!(ask(server.url()), 200);
    server.stop();
}

#[test]
fn two_credentials_are_refused_and_a_key_opens_no_other_routes() {
    let site = Site::open();
    let made = site.world.json(&["keys", "new", "--account", "alice"]);
    let key = made["api_key"].as_str().unwrap();
    let balance = "/api/v1/accounts/alice/balance";
    let get = |path: &str| site.bare(Method::GET, path);
    let check = |answer: Answer, status: u16, code: &str| {
        let said = answer.body["error"]["code"].as_str().unwrap_or_default().to_uppercase();
        assert_eq!((answer.status, said.as_str()), (status, code), "{answer:?}");
    };
    check(site.send(get(balance).bearer_auth(key)), 401, "AUTH_WRONG_KIND");
    check(site.send(get(balance).header("x-api-key", key)), 401, "AUTH_WRONG_KIND");
    check(site.send(get("/api/v1/admin/keys").bearer_auth(key)), 401, "AUTH_WRONG_KIND");
    check(site.send(get(balance).bearer_auth(&site.service).header("x-api-key", key)), 401, "AUTH_SEVERAL_CREDENTIALS");
    check(site.send(get("/v1/key").bearer_auth(key).header("x-api-key", key)), 401, "AUTH_SEVERAL_CREDENTIALS");
    check(site.send(get("/v1/key").header("x-api-key", key).header("x-api-key", key)), 401, "AUTH_SEVERAL_CREDENTIALS");
    check(site.send(get("/v1/key")), 401, "AUTH_MISSING");
    check(site.send(get("/v1/key").header("x-api-key", &site.service)), 401, "INVALID_API_KEY");
    let mut wrong = key.to_owned();
    wrong.replace_range(20..21, if &key[20..21] == "x" { "y" } else { "x" });
    for bad in [wrong.as_str(), "hf_live_", "hf_live_short", &key.to_uppercase(), &key[..56]] {
        check(site.send(get("/v1/key").header("x-api-key", bad)), 401, "INVALID_API_KEY");
    }
    let no_error_shape: Value = site.send(get("/v1/messages/nowhere")).body;
    assert_eq!(
        (&no_error_shape["type"], &no_error_shape["error"]["type"]),
        (&json!("error"), &json!("not_found_error"))
    );
}
