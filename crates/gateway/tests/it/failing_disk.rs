//! A disk that fails: the server says so, ends at once, and loses nothing that it had acknowledged.

use crate::world::{BINARY, SEGMENT_BYTES, World, mint};
use serde_json::json;
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn a_failed_write_is_told_and_ends_the_server_within_a_second() {
    let world = World::with_alice();
    // A first start writes more than the journal.
    world.serve().stop();
    // Writes beyond 48 KiB of any file fail from now on; the segment is there already, so it is the journal that fails.
    let mut limited = Command::new("bash");
    limited.args(["-c", &format!("trap '' XFSZ; ulimit -f 48; exec {BINARY} serve")]);
    limited.env("HOLDFAST_DATA", world.data()).env("HOLDFAST_SEGMENT_BYTES", SEGMENT_BYTES);
    limited.env("HOLDFAST_LISTEN", "127.0.0.1:0");
    let server = world.serve_with(limited);
    let mut client = server.client();
    let mut acknowledged = 0;
    let refusal = loop {
        let answer = client.ask(mint("bob", &format!("b{acknowledged}")));
        if answer["ok"] != json!(true) {
            break answer;
        }
        acknowledged += 1;
        assert!(acknowledged < 10_000, "the limit has no effect");
    };
    let failed = Instant::now();
    assert_eq!(refusal["error"]["code"], json!("SERVICE_JOURNAL_FAILED"));
    assert_eq!(refusal["error"]["action"], json!("retry_later"));
    let (status, said) = server.wait();
    assert!(failed.elapsed() < Duration::from_millis(1_500), "{:?}", failed.elapsed());
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("error[SERVICE_JOURNAL_FAILED]: "), "{said}");
    assert!(!world.data().join("holdfast.sock").exists());

    let server = world.serve();
    let mut client = server.client();
    for number in 0..acknowledged {
        assert_eq!(client.ok(mint("bob", &format!("b{number}")))["outcome"], json!("replayed"), "{number}");
    }
    assert_eq!(client.ok(json!({ "op": "totals" }))["imbalance"], json!("0"));
    server.stop();
    assert_eq!(world.run(&["journal", "verify"]).code, Some(0));
}
