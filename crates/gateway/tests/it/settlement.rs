//! The peer is told of every charge: by the real program, over HTTP, through crashes and whatever the peer answers.

use crate::settlement_world::{Peer, Told, becomes, billing, charge, serve, state, status, until};
use crate::world::World;
use axum::body::{Body, Bytes};
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use std::fs;
use std::time::Duration;

/// The claims of a token, unchecked.
fn claims(told: &Told) -> Value {
    let token = told.headers["authorization"].to_str().unwrap().strip_prefix("Bearer ").unwrap();
    let claims = token.split('.').nth(1).unwrap();
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).unwrap()).unwrap()
}

#[test]
fn a_charge_is_told_to_the_peer_and_acknowledged() {
    let (world, peer) = (World::with_alice(), Peer::good());
    let server = serve(&world, &peer.url, &[]);
    let mut client = server.client();
    charge(&mut client, "first");
    let told = &peer.told(1)[0];
    let expected = json!({
        "reservation_id": "first", "tenant_id": "alice", "actual_cost_micro": "2500000", "trace_id": "first",
    });
    assert_eq!(told.body, expected);
    let claims = claims(told);
    assert_eq!((&claims["iss"], &claims["aud"]), (&json!("holdfast"), &json!("billing")));
    assert!(claims["exp"].as_u64().unwrap() - claims["iat"].as_u64().unwrap() <= 300);
    becomes(&mut client, "first", "FINALIZE_ACKED");
    let billing = until(|| billing(&server), |billing| billing["dlq_size"] == 0);
    assert_eq!(billing["dlq_oldest_entry_age_ms"], Value::Null);
    assert_eq!((&billing["dlq_store_type"], &billing["dlq_durable"]), (&json!("journal"), &json!(true)));
    assert_eq!((&billing["dlq_aof_verified"], &billing["circuit"]), (&Value::Null, &json!("closed")));
    server.stop();
    let last = world.journal().pop().unwrap();
    assert_eq!((&last["kind"], &last["actor"]), (&json!("billing_finalize_ack"), &json!("dispatcher")));
    assert_eq!(peer.told(1).len(), 1);
}

#[test]
fn every_class_of_answer_has_its_consequence() {
    let (world, peer) = (
        World::with_alice(),
        Peer::answering(|told, before| match (told.id().split_once('_').unwrap().1.parse().unwrap(), before) {
            (code @ (400 | 401 | 403 | 404 | 410 | 422 | 409), _) => status(code),
            (code, 0) => status(code),
            (_, _) => status(200),
        }),
    );
    // Many of these are failures in a row, and the circuit is not what is looked at here.
    let server = serve(&world, &peer.url, &[("HOLDFAST_PEER_CIRCUIT_FAILURES", "1000")]);
    let mut client = server.client();
    let again = [301, 302, 307, 308, 408, 425, 429, 500, 502, 503, 504];
    let (terminal, at_once) = ([400, 401, 403, 404, 410, 422], [200, 201, 204, 409]);
    let id = |code: &u16| format!("c_{code}");
    for code in again.iter().chain(&terminal).chain(&at_once) {
        charge(&mut client, &id(code));
    }
    for code in again.iter().chain(&at_once) {
        becomes(&mut client, &id(code), "FINALIZE_ACKED");
    }
    for code in &terminal {
        becomes(&mut client, &id(code), "FINALIZE_FAILED");
    }
    let told = peer.told(0);
    let times = |code: &u16| told.iter().filter(|told| told.id() == id(code)).count();
    assert!(again.iter().all(|code| times(code) == 2), "{again:?}");
    assert!(terminal.iter().chain(&at_once).all(|code| times(code) == 1), "no retry that cannot help");
    let billing = until(|| billing(&server), |billing| billing["dlq_size"] == 6);
    assert_eq!((&billing["dlq_pending"], &billing["dlq_dead"]), (&json!(0), &json!(6)));
    let said = server.stop();
    assert!(said.contains("[billing-finalize] DLQ: reservation_id=c_503 reason=\"the peer answered 503\" attempt=1"));
    assert!(said.contains("[billing-finalize] DLQ terminal drop: reservation_id=c_422 attempts=1"), "{said}");
}

#[test]
fn after_its_retries_a_charge_is_given_up() {
    let (world, peer) = (World::with_alice(), Peer::answering(|_, _| status(503)));
    let server = serve(&world, &peer.url, &[("HOLDFAST_PEER_CIRCUIT_FAILURES", "1000")]);
    let mut client = server.client();
    charge(&mut client, "never");
    becomes(&mut client, "never", "FINALIZE_FAILED");
    assert_eq!(peer.told(0).len(), 5, "three quick pauses, a slow one, and the first attempt");
    server.stop();
}

#[test]
fn a_peer_that_asks_for_time_gets_it() {
    let (world, peer) = (
        World::with_alice(),
        Peer::answering(|_, before| {
            let mut answer = status(if before == 0 { 429 } else { 200 });
            answer.headers_mut().insert("retry-after", "1".parse().unwrap());
            answer
        }),
    );
    let server = serve(&world, &peer.url, &[]);
    charge(&mut server.client(), "patient");
    let told = peer.told(2);
    assert!(told[1].at - told[0].at >= Duration::from_secs(1), "the schedule alone would have been 20 ms");
    server.stop();
}

#[test]
fn a_redirect_is_not_followed_and_a_long_answer_is_not_read() {
    let (world, elsewhere) = (World::with_alice(), Peer::good());
    let to = elsewhere.url.clone();
    let peer = Peer::answering(move |told, before| match (told.id(), before) {
        ("moved", 0) => {
            let mut answer = status(307);
            answer.headers_mut().insert("location", format!("{to}/api/internal/finalize").parse().unwrap());
            answer
        }
        ("endless", _) => {
            let chunk = Bytes::from(vec![b'x'; 65_536]);
            let endless = futures_util::stream::repeat_with(move || Ok::<_, std::io::Error>(chunk.clone()));
            Response::new(Body::from_stream(endless))
        }
        _ => status(200),
    });
    let server = serve(&world, &peer.url, &[]);
    let mut client = server.client();
    charge(&mut client, "moved");
    charge(&mut client, "endless");
    becomes(&mut client, "moved", "FINALIZE_ACKED");
    becomes(&mut client, "endless", "FINALIZE_ACKED");
    assert!(elsewhere.told(0).is_empty());
    server.stop();
}

#[test]
fn a_peer_that_does_not_answer_in_time_is_told_again() {
    let world = World::with_alice();
    // It accepts connections, and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let settings = [("HOLDFAST_PEER_TIMEOUT_MS", "50")];
    let server = serve(&world, &format!("http://{address}"), &settings);
    let mut client = server.client();
    charge(&mut client, "slow");
    becomes(&mut client, "slow", "FINALIZE_FAILED");
    let said = server.stop();
    assert!(said.contains("reason=\"the peer did not answer in time\""), "{said}");
}

#[test]
fn what_was_pending_when_the_program_was_killed_is_told_after_the_next_start() {
    let world = World::with_alice();
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let server = serve(&world, &format!("http://{gone}"), &[("HOLDFAST_PEER_CIRCUIT_FAILURES", "2")]);
    let mut client = server.client();
    for number in 0..20 {
        charge(&mut client, &format!("kept-{number}"));
    }
    let found = until(|| billing(&server), |billing| billing["circuit"] == "open" && billing["dlq_pending"] == 20);
    assert!(found["dlq_oldest_entry_age_ms"].as_u64().is_some());
    server.crash();
    let peer = Peer::good();
    let server = serve(&world, &peer.url, &[]);
    let told = peer.told(20);
    let mut ids: Vec<&str> = told.iter().map(Told::id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 20);
    until(|| billing(&server), |billing| billing["dlq_size"] == 0);
    assert_eq!(state(&mut server.client(), "kept-7"), "FINALIZE_ACKED");
    server.stop();
    assert_eq!(peer.told(20).len(), 20, "each once");
}

#[test]
fn a_file_of_obligations_that_is_lost_or_damaged_is_made_anew() {
    let (world, good) = (World::with_alice(), Peer::good());
    let file = world.data().join("obligations.db");
    let server = serve(&world, &good.url, &[]);
    let mut client = server.client();
    charge(&mut client, "known");
    becomes(&mut client, "known", "FINALIZE_ACKED");
    server.stop();
    let bad = Peer::answering(|_, _| status(422));
    let server = serve(&world, &bad.url, &[]);
    charge(&mut server.client(), "dead");
    until(|| billing(&server), |billing| billing["dlq_dead"] == 1);
    server.stop();
    for damage in [true, false] {
        for suffix in ["-wal", "-shm"] {
            let _not_there = fs::remove_file(world.data().join(format!("obligations.db{suffix}")));
        }
        if damage {
            fs::write(&file, vec![b'?'; 65_536]).unwrap();
        } else {
            fs::remove_file(&file).unwrap();
        }
        let server = serve(&world, &good.url, &[]);
        until(|| billing(&server), |billing| billing["dlq_dead"] == 1 && billing["dlq_pending"] == 0);
        let id = format!("after-{damage}");
        charge(&mut server.client(), &id);
        becomes(&mut server.client(), &id, "FINALIZE_ACKED");
        server.stop();
    }
    let told: Vec<String> = good.told(3).iter().map(|told| told.id().to_owned()).collect();
    assert_eq!(told, ["known", "after-true", "after-false"], "what the journal acknowledges is not told again");
}

#[test]
fn parts_are_told_together_late_ones_apart_and_what_was_taken_back_not_at_all() {
    let (world, peer) = (World::with_alice(), Peer::good());
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let server = serve(&world, &format!("http://{gone}"), &[]);
    let mut client = server.client();
    client.ok(json!({ "op": "reserve", "account_id": "alice", "request_id": "parts", "amount_cu": "9", "ttl_s": 1 }));
    client.ok(json!({ "op": "commit", "id": "parts", "actual_cu": "2", "final": false, "key": "a" }));
    client.ok(json!({ "op": "commit", "id": "parts", "actual_cu": "3", "final": false, "key": "b" }));
    charge(&mut client, "void");
    client.ok(json!({ "op": "void", "id": "void", "reason": "by mistake" }));
    becomes(&mut client, "parts", "FINALIZE_PENDING");
    client.ok(json!({ "op": "commit", "id": "parts", "actual_cu": "1" }));
    until(|| billing(&server), |billing| billing["dlq_pending"] == 2);
    server.stop();
    let server = serve(&world, &peer.url, &[]);
    becomes(&mut server.client(), "parts", "FINALIZE_ACKED");
    let told = peer.told(2);
    let mut costs: Vec<_> = told.iter().map(|told| told.body["actual_cost_micro"].as_str().unwrap()).collect();
    costs.sort_unstable();
    assert_eq!(costs, ["1000000", "5000000"]);
    let late = told.iter().find(|told| told.id() != "parts").unwrap();
    assert!(late.id().starts_with("late_") && late.body["trace_id"] == "parts", "{late:?}");
    server.stop();
    assert_eq!(peer.told(2).len(), 2);
}

#[test]
fn without_its_peer_a_server_that_needs_one_begins_no_paid_work() {
    let world = World::with_alice();
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let settings = [("HOLDFAST_BILLING_REQUIRE_PEER", "true"), ("HOLDFAST_PEER_CIRCUIT_FAILURES", "1")];
    let server = serve(&world, &format!("http://{gone}"), &settings);
    let mut client = server.client();
    charge(&mut client, "last");
    until(|| billing(&server), |billing| billing["circuit"] == "open");
    let refused =
        client.refused(json!({ "op": "reserve", "account_id": "alice", "amount_cu": "1" }).to_string().as_bytes());
    assert_eq!(refused, "SERVICE_PEER_AWAY");
    let key = world.ok(&["keys", "new", "--account", "alice"]).lines().next().unwrap().to_owned();
    let ask = reqwest::blocking::Client::new().post(format!("{}/v1/chat/completions", server.url())).bearer_auth(key);
    let asked =
        ask.json(&json!({ "model": "echo", "messages": [{ "role": "user", "content": "hi" }] })).send().unwrap();
    assert_eq!((asked.status().as_u16(), asked.headers().contains_key("retry-after")), (503, true));
    assert_eq!(asked.json::<Value>().unwrap()["error"]["code"], "service_peer_away");
    server.stop();
    let without = world.command(&["serve"]).env("HOLDFAST_BILLING_REQUIRE_PEER", "true").output().unwrap();
    assert!(String::from_utf8(without.stderr).unwrap().contains("INVALID_SETTING"));
}

#[test]
fn obligations_in_memory_are_told_and_put_again_after_a_restart() {
    let world = World::with_alice();
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let memory = ("HOLDFAST_BILLING_OBLIGATIONS", "memory");
    let server = serve(&world, &format!("http://{gone}"), &[memory, ("HOLDFAST_PEER_CIRCUIT_FAILURES", "1")]);
    charge(&mut server.client(), "kept");
    let found = until(|| billing(&server), |billing| billing["dlq_pending"] == 1);
    assert_eq!((&found["dlq_store_type"], &found["dlq_durable"]), (&json!("memory"), &json!(false)));
    server.crash();
    let peer = Peer::good();
    let server = serve(&world, &peer.url, &[memory]);
    assert_eq!(peer.told(1)[0].id(), "kept");
    becomes(&mut server.client(), "kept", "FINALIZE_ACKED");
    server.stop();
}
