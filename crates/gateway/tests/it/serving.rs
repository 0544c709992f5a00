//! The server: one per directory, in order per connection, and stopped in order.

use crate::world::{World, mint};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::thread;

#[test]
fn a_second_server_is_refused_with_the_holders_pid() {
    let world = World::with_alice();
    let server = world.serve();
    for words in [&["serve"][..], &["rebuild"]] {
        let run = world.run(words);
        assert_eq!(run.code, Some(1));
        assert!(run.stderr.starts_with("error[DATA_IN_USE]: "), "{}", run.stderr);
        assert!(run.stderr.contains(&format!("process {}", server.pid())), "{}", run.stderr);
    }
    assert_eq!(server.client().ok(json!({ "op": "health" }))["pid"], json!(server.pid()));
    server.stop();
}

#[test]
fn the_socket_is_its_owners_only_and_goes_with_its_server() {
    let world = World::with_alice();
    let socket = world.data().join("holdfast.sock");
    let server = world.serve();
    assert_eq!(socket.symlink_metadata().unwrap().permissions().mode() & 0o777, 0o600);
    server.crash();
    assert!(socket.exists(), "a crash leaves it behind");
    assert_eq!(world.json(&["accounts", "show", "alice"])["available_cu"], json!("100"));
    let server = world.serve();
    server.client().ok(json!({ "op": "health" }));
    server.stop();
    assert!(!socket.exists());
}

#[test]
fn pipelined_lines_are_answered_in_order_and_questions_see_what_came_before_them() {
    let world = World::with_alice();
    let server = world.serve();
    let mut client = server.client();
    let mut sender = client.another();
    let rounds = 300;
    // Beside the reading: a caller who does not read is not read from.
    let sending = thread::spawn(move || {
        for round in 0..rounds {
            sender.send(mint("bob", &format!("m{round}")).to_string().as_bytes());
            sender.send(br#"{"op":"balance","account":"bob"}"#);
            let id = format!("r{round}");
            let reserve = json!({ "op": "reserve", "account": "alice", "amount_cu": "1", "request_id": id });
            sender.send(reserve.to_string().as_bytes());
            sender.send(b"not json");
            sender.send(json!({ "op": "commit", "id": id, "actual_cu": "0.1" }).to_string().as_bytes());
        }
    });
    let mut last = 0;
    for round in 0..rounds {
        let mut offset = |answer: &Value| {
            let offset = answer["offset"].as_u64().unwrap();
            assert!(offset > last, "{answer}");
            last = offset;
        };
        offset(&client.next().unwrap());
        assert_eq!(client.next().unwrap()["available_cu"], json!((round + 1).to_string()));
        let reserved = client.next().unwrap();
        assert_eq!(reserved["id"], json!(format!("r{round}")));
        offset(&reserved);
        assert_eq!(client.next().unwrap()["error"]["code"], json!("INVALID_REQUEST"));
        let committed = client.next().unwrap();
        assert_eq!(
            (&committed["charged_cu"], &committed["returned_cu"], &committed["state"]),
            (&json!("0.1"), &json!("0.9"), &json!("FINALIZE_PENDING"))
        );
        offset(&committed);
    }
    sending.join().unwrap();
    assert_eq!(client.ok(json!({ "op": "balance", "account": "alice" }))["available_cu"], json!("70"));
    server.stop();
}

#[test]
fn many_connections_share_one_ledger_without_overdraft() {
    let world = World::with_alice();
    let server = world.serve();
    let admitted: u64 = thread::scope(|scope| {
        let reserve = |caller: u64| {
            let mut client = server.client();
            move || {
                for number in 0..25 {
                    let id = format!("c{caller}-{number}");
                    let request = json!({ "op": "reserve", "account": "alice", "amount_cu": "1", "request_id": id });
                    client.send(request.to_string().as_bytes());
                }
                (0..25).filter(|_| client.next().unwrap()["ok"] == json!(true)).count() as u64
            }
        };
        let callers: Vec<_> = (0..16).map(|caller| scope.spawn(reserve(caller))).collect();
        callers.into_iter().map(|caller| caller.join().unwrap()).sum()
    });
    assert_eq!(admitted, 100);
    let mut client = server.client();
    let balance = client.ok(json!({ "op": "balance", "account": "alice" }));
    assert_eq!((&balance["available_cu"], &balance["held_cu"]), (&json!("0"), &json!("100")));
    assert_eq!(client.ok(json!({ "op": "totals" }))["imbalance"], json!("0"));
    let page = client.ok(json!({ "op": "reservations", "account": "alice", "limit": 7 }));
    assert_eq!(page["reservations"].as_array().unwrap().len(), 7);
    server.stop();
}

#[test]
fn a_stop_answers_what_was_taken_and_the_next_start_has_it() {
    let world = World::with_alice();
    for signal in [Signal::TERM, Signal::INT] {
        let server = world.serve();
        let mut client = server.client();
        let mut idle = server.client();
        client.ok(json!({ "op": "health" }));
        idle.ok(json!({ "op": "health" }));
        for number in 0..500 {
            client.send(mint("bob", &format!("{signal:?}-{number}").replace(['(', ')'], "")).to_string().as_bytes());
        }
        server.signal(signal);
        // Some lines may not have been taken any more; those that were have their answer before the end.
        let answered = std::iter::from_fn(|| client.next()).filter(|answer| answer["ok"] == json!(true)).count();
        assert_eq!(idle.next(), None);
        let (status, said) = server.wait();
        assert_eq!(status.code(), Some(0), "{said}");
        let entries = world.entries();
        assert!(entries > answered as u64, "{entries} {answered}");
        assert_eq!(world.run(&["journal", "verify"]).code, Some(0));
    }
}

#[test]
fn an_answer_survives_a_crash_and_its_key_is_still_known() {
    let world = World::with_alice();
    let server = world.serve();
    let first = server.client().ok(mint("bob", "once"));
    assert_eq!(first["outcome"], json!("applied"));
    server.crash();
    let server = world.serve();
    let mut client = server.client();
    let again = client.ok(mint("bob", "once"));
    assert_eq!(
        (&again["outcome"], &again["offset"], &again["at"]),
        (&json!("replayed"), &first["offset"], &first["at"])
    );
    let reserve = json!({ "op": "reserve", "account": "bob", "amount_cu": "0.5", "key": "hold-once" });
    let held = client.ok(reserve.clone());
    let again = client.ok(reserve);
    assert_eq!((&again["outcome"], &again["id"]), (&json!("replayed"), &held["id"]));
    assert_eq!(client.ok(json!({ "op": "balance", "account": "bob" }))["available_cu"], json!("0.5"));
    server.stop();
}
