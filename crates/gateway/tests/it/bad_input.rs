//! Whatever is wrong with a request, it gets its code, and nothing is written.

use crate::world::{World, mint};
use serde_json::json;

/// Lines that are refused, and the code of each. `alice` has 100 credits, `open` is an open reservation of 10.
const LINES: &[(&str, &str)] = &[
    // Not a request at all.
    ("", "INVALID_REQUEST"),
    ("hello", "INVALID_REQUEST"),
    ("null", "INVALID_REQUEST"),
    ("5", "INVALID_REQUEST"),
    ("[]", "INVALID_REQUEST"),
    (r#"["health"]"#, "INVALID_REQUEST"),
    ("{}", "INVALID_REQUEST"),
    (r#"{"op":"health""#, "INVALID_REQUEST"),
    (r#"{"op":"health"} {"op":"health"}"#, "INVALID_REQUEST"),
    (r#"{"op":5}"#, "INVALID_REQUEST"),
    (r#"{"op":"no_such_thing"}"#, "INVALID_REQUEST"),
    (r#"{"op":"Mint"}"#, "INVALID_REQUEST"),
    // Fields that are unknown, missing, doubled or of the wrong type.
    (r#"{"op":"health","x":1}"#, "INVALID_REQUEST"),
    (r#"{"op":"health","op":"health"}"#, "INVALID_REQUEST"),
    (r#"{"op":"mint","account":"alice","amount_cu":"1","reason":"r","key":"k","note":"n"}"#, "INVALID_REQUEST"),
    (r#"{"op":"mint","account":"alice","account":"bob","amount_cu":"1","reason":"r","key":"k"}"#, "INVALID_REQUEST"),
    (r#"{"op":"mint","amount_cu":"1","reason":"r","key":"k"}"#, "INVALID_REQUEST"),
    (r#"{"op":"mint","account":"alice","reason":"r","key":"k"}"#, "INVALID_REQUEST"),
    (r#"{"op":"mint","account":7,"amount_cu":"1","reason":"r","key":"k"}"#, "INVALID_REQUEST"),
    (r#"{"op":"mint","account":["alice"],"amount_cu":"1","reason":"r","key":"k"}"#, "INVALID_REQUEST"),
    (r#"{"op":"mint","account":"alice","amount_cu":"1","reason":"r","key":7}"#, "INVALID_REQUEST"),
    (r#"{"op":"start"}"#, "INVALID_REQUEST"),
    (r#"{"op":"start","id":null}"#, "INVALID_REQUEST"),
    (r#"{"op":"commit","id":"open"}"#, "INVALID_REQUEST"),
    (r#"{"op":"commit","id":"open","actual_cu":"1","usage":{"input_tokens":1,"output_tokens":1}}"#, "INVALID_REQUEST"),
    (r#"{"op":"commit","id":"open","usage":[1,1]}"#, "INVALID_REQUEST"),
    (r#"{"op":"commit","id":"open","usage":{"input_tokens":-1,"output_tokens":1}}"#, "INVALID_REQUEST"),
    (r#"{"op":"commit","id":"open","usage":{"input_tokens":1.5,"output_tokens":1}}"#, "INVALID_REQUEST"),
    (
        r#"{"op":"commit","id":"open","usage":{"input_tokens":1,"output_tokens":1,"cached_input_tokens":-1}}"#,
        "INVALID_REQUEST",
    ),
    (
        r#"{"op":"commit","id":"open","usage":{"input_tokens":1,"output_tokens":1,"cached_tokens":1}}"#,
        "INVALID_REQUEST",
    ),
    (r#"{"op":"commit","id":"open","actual_cu":"1","final":"yes"}"#, "INVALID_REQUEST"),
    (r#"{"op":"reserve","account":"alice","amount_cu":"1","overrun":"ignore"}"#, "INVALID_REQUEST"),
    (r#"{"op":"reserve","account":"alice","amount_cu":"1","rates":{"input_usd_per_mtok":"1"}}"#, "INVALID_REQUEST"),
    (r#"{"op":"batch"}"#, "INVALID_REQUEST"),
    (r#"{"op":"batch","requests":{}}"#, "INVALID_REQUEST"),
    (r#"{"op":"batch","requests":[],"x":1}"#, "INVALID_REQUEST"),
    (r#"{"op":"accounts","limit":0}"#, "INVALID_REQUEST"),
    (r#"{"op":"accounts","limit":1000000}"#, "INVALID_REQUEST"),
    (r#"{"op":"accounts","limit":-1}"#, "INVALID_REQUEST"),
    (r#"{"op":"entry","offset":"1"}"#, "INVALID_REQUEST"),
    (r#"{"op":"balance_as_of","account":"alice"}"#, "INVALID_REQUEST"),
    (r#"{"op":"balance_as_of","account":"alice","offset":1,"at":"2026-01-01T00:00:00Z"}"#, "INVALID_REQUEST"),
    // Ids, reasons, times, prices, lives.
    (r#"{"op":"mint","account":"","amount_cu":"1","reason":"r","key":"k"}"#, "INVALID_ID"),
    (r#"{"op":"mint","account":"al ice","amount_cu":"1","reason":"r","key":"k"}"#, "INVALID_ID"),
    (r#"{"op":"mint","account":"../alice","amount_cu":"1","reason":"r","key":"k"}"#, "INVALID_ID"),
    (r#"{"op":"mint","account":"älice","amount_cu":"1","reason":"r","key":"k"}"#, "INVALID_ID"),
    (r#"{"op":"mint","account":"alice\u0000","amount_cu":"1","reason":"r","key":"k"}"#, "INVALID_ID"),
    (r#"{"op":"mint","account":"user:alice:available","amount_cu":"1","reason":"r","key":"k"}"#, "INVALID_ID"),
    (
        r#"{"op":"mint","account":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa","amount_cu":"1","reason":"r","key":"k"}"#,
        "INVALID_ID",
    ),
    (r#"{"op":"mint","account":"alice","amount_cu":"1","reason":"r","key":""}"#, "INVALID_ID"),
    (r#"{"op":"reserve","account":"alice","amount_cu":"1","request_id":"a/b"}"#, "INVALID_ID"),
    (r#"{"op":"escrow_hold","account":"alice","amount_cu":"1","feature":"two words","key":"k"}"#, "INVALID_ID"),
    (r#"{"op":"balance","account":"user:alice"}"#, "INVALID_ACCOUNT"),
    (r#"{"op":"history","account":"system:nothing"}"#, "INVALID_ACCOUNT"),
    (r#"{"op":"mint","account":"alice","amount_cu":"1","reason":"","key":"k"}"#, "INVALID_REASON"),
    (r#"{"op":"mint","account":"alice","amount_cu":"1","reason":"a\nb","key":"k"}"#, "INVALID_REASON"),
    (r#"{"op":"balance_as_of","account":"alice","at":"yesterday"}"#, "INVALID_TIME"),
    (
        r#"{"op":"reserve","account":"alice","amount_cu":"1","rates":{"input_usd_per_mtok":"0","output_usd_per_mtok":"1"}}"#,
        "INVALID_PRICE",
    ),
    (
        r#"{"op":"reserve","account":"alice","amount_cu":"1","rates":{"input_usd_per_mtok":"1","output_usd_per_mtok":2.5}}"#,
        "INVALID_PRICE",
    ),
    (
        r#"{"op":"reserve","account":"alice","amount_cu":"1","rates":{"input_usd_per_mtok":"1","output_usd_per_mtok":"1","reasoning_usd_per_mtok":"0"}}"#,
        "INVALID_PRICE",
    ),
    (
        r#"{"op":"reserve","account":"alice","amount_cu":"1","rates":{"input_usd_per_mtok":"1","output_usd_per_mtok":"1","per_request_usd":"1001"}}"#,
        "INVALID_PRICE",
    ),
    (r#"{"op":"reserve","account":"alice","amount_cu":"1","ttl_s":0}"#, "INVALID_TTL"),
    (r#"{"op":"reserve","account":"alice","amount_cu":"1","ttl_s":-5}"#, "INVALID_TTL"),
    (r#"{"op":"reserve","account":"alice","amount_cu":"1","ttl_s":1.5}"#, "INVALID_TTL"),
    (r#"{"op":"reserve","account":"alice","amount_cu":"1","ttl_s":"60"}"#, "INVALID_TTL"),
    (r#"{"op":"reserve","account":"alice","amount_cu":"1","ttl_s":31622401}"#, "INVALID_TTL"),
    (r#"{"op":"extend","id":"open","ttl_s":99999999999999999999,"key":"k"}"#, "INVALID_TTL"),
    // Well formed, and not possible.
    (r#"{"op":"mint","account":"alice","amount_cu":"1","reason":"r"}"#, "KEY_REQUIRED"),
    (r#"{"op":"increase","id":"open","amount_cu":"1"}"#, "KEY_REQUIRED"),
    (r#"{"op":"commit","id":"open","actual_cu":"1","final":false}"#, "KEY_REQUIRED"),
    (r#"{"op":"mint","account":"alice","amount_cu":"7","reason":"start","key":"start"}"#, "ALREADY_USED_KEY"),
    (r#"{"op":"reserve","account":"nobody","amount_cu":"1"}"#, "ACCOUNT_NOT_FOUND"),
    (r#"{"op":"balance","account":"nobody"}"#, "ACCOUNT_NOT_FOUND"),
    (r#"{"op":"balance","account":"payee:nobody:available"}"#, "ACCOUNT_NOT_FOUND"),
    (r#"{"op":"history","account":"nobody"}"#, "ACCOUNT_NOT_FOUND"),
    (r#"{"op":"history","account":"system:revenue"}"#, "ACCOUNT_WITHOUT_HISTORY"),
    (r#"{"op":"balance_as_of","account":"nobody","offset":1}"#, "ACCOUNT_NOT_FOUND"),
    (r#"{"op":"balance_as_of","account":"alice","offset":99}"#, "ENTRY_NOT_FOUND"),
    (r#"{"op":"entry","offset":0}"#, "ENTRY_NOT_FOUND"),
    (r#"{"op":"entry","offset":99}"#, "ENTRY_NOT_FOUND"),
    (r#"{"op":"reserve","account":"alice","amount_cu":"90.000001"}"#, "INSUFFICIENT_BALANCE"),
    (r#"{"op":"escrow_hold","account":"alice","amount_cu":"1000","feature":"f","key":"k"}"#, "INSUFFICIENT_BALANCE"),
    (r#"{"op":"start","id":"nothing"}"#, "RESERVATION_NOT_FOUND"),
    (r#"{"op":"reservation","id":"nothing"}"#, "RESERVATION_NOT_FOUND"),
    (r#"{"op":"escrow_refund","escrow_id":"nothing"}"#, "ESCROW_NOT_FOUND"),
    (r#"{"op":"escrow","escrow_id":"nothing"}"#, "ESCROW_NOT_FOUND"),
    (r#"{"op":"ack","id":"open"}"#, "INVALID_STATE"),
    (r#"{"op":"commit","id":"open","usage":{"input_tokens":1,"output_tokens":1}}"#, "NO_FROZEN_RATES"),
];

/// Texts that are no amount, in any field that takes one.
const AMOUNTS: &[&str] = &[
    r#""0""#,
    r#""-1""#,
    r#""+1""#,
    r#""1e3""#,
    r#""1E3""#,
    r#""0x10""#,
    r#""007""#,
    r#""00""#,
    r#""1.50""#,
    r#""1.""#,
    r#"".5""#,
    r#"".""#,
    r#""""#,
    r#"" 1""#,
    r#""1,5""#,
    r#""1_000""#,
    r#""١""#,
    r#""NaN""#,
    r#""Infinity""#,
    r#""0.0000001""#,
    r#""1000000000000.000001""#,
    r#""99999999999999999999999999999999999999999999""#,
    "1",
    "0",
    "-1",
    "12.5",
    "1e400",
    "true",
    "[]",
    "{}",
];

#[test]
fn bad_lines_on_the_socket_are_refused_by_code_and_nothing_is_written() {
    let world = World::with_alice();
    world.ok(&["reservations", "create", "alice", "10", "--id", "open"]);
    let server = world.serve();
    let mut client = server.client();
    for (line, code) in LINES {
        assert_eq!(client.refused(line.as_bytes()), *code, "{line}");
    }
    for amount in AMOUNTS {
        for line in [
            format!(r#"{{"op":"mint","account":"alice","amount_cu":{amount},"reason":"r","key":"k"}}"#),
            format!(r#"{{"op":"reserve","account":"alice","amount_cu":{amount}}}"#),
            format!(r#"{{"op":"increase","id":"open","amount_cu":{amount},"key":"k"}}"#),
            format!(r#"{{"op":"escrow_hold","account":"alice","amount_cu":{amount},"feature":"f","key":"k"}}"#),
        ] {
            // A number that JSON itself cannot hold is no amount either, but fails earlier.
            let expected = if *amount == "1e400" { "INVALID_REQUEST" } else { "INVALID_AMOUNT" };
            assert_eq!(client.refused(line.as_bytes()), expected, "{line}");
        }
    }
    assert_eq!(client.refused(b"{\"op\":\"balance\",\"account\":\"\xff\xfe\"}"), "INVALID_REQUEST");
    assert_eq!(client.refused(&b"[".repeat(100_000)), "INVALID_REQUEST");
    let deep = [br#"{"op":"mint","amount_cu":"#.as_slice(), &b"[".repeat(100_000)].concat();
    assert_eq!(client.refused(&deep), "INVALID_REQUEST");
    let missing = client.ask(json!({ "op": "reserve", "account": "alice", "amount_cu": "500" }));
    assert_eq!(missing["error"]["deficit_cu"], json!("410"));
    assert_eq!(missing["error"]["action"], json!("pay"));
    assert_eq!(world.entries(), 2);
    server.stop();
    assert_eq!(world.entries(), 2);
}

#[test]
fn a_line_that_is_too_long_is_refused_and_the_connection_goes_on() {
    let world = World::with_alice();
    let server = world.serve();
    let mut client = server.client();
    let long = [br#"{"op":"balance","account":""#.as_slice(), &b"a".repeat(5 << 20), b"\"}"].concat();
    assert_eq!(client.refused(&long), "REQUEST_TOO_LARGE");
    assert_eq!(client.ok(json!({ "op": "balance", "account": "alice" }))["available_cu"], json!("100"));
}

#[test]
fn a_bad_request_in_a_batch_is_refused_alone_and_too_many_are_refused_together() {
    let world = World::of_one_segment();
    let server = world.serve();
    let mut client = server.client();
    let requests = [mint("bob", "b1"), json!({ "op": "health" }), json!(7), mint("bob", "b1"), mint("bob", "b2")];
    let answer = client.ok(json!({ "op": "batch", "requests": requests }));
    let outcomes: Vec<String> = answer["answers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|answer| answer["outcome"].as_str().or(answer["error"]["code"].as_str()).unwrap().to_owned())
        .collect();
    assert_eq!(outcomes, ["applied", "INVALID_REQUEST", "INVALID_REQUEST", "replayed", "applied"]);
    let many: Vec<_> = (0..8_191).map(|number| mint("bob", &format!("m{number}"))).collect();
    assert_eq!(client.ask(json!({ "op": "batch", "requests": many }))["error"]["code"], json!("BATCH_TOO_LARGE"));
    assert_eq!(client.ok(json!({ "op": "balance", "account": "bob" }))["available_cu"], json!("2"));
    let most: Vec<_> = (0..8_190).map(|number| mint("bob", &format!("m{number}"))).collect();
    let answer = client.ok(json!({ "op": "batch", "requests": most }));
    assert_eq!(answer["answers"].as_array().unwrap().len(), 8_190);
    assert_eq!(client.ok(json!({ "op": "balance", "account": "bob" }))["available_cu"], json!("8192"));
    server.stop();
}

#[test]
fn bad_words_on_the_command_line_are_refused_by_code_and_nothing_is_written() {
    let world = World::with_alice();
    for amount in ["0", "-1", "+1", "1e3", "007", "1.50", "ten", "", "0.0000001", "1000000000001"] {
        assert_eq!(world.refused(&["mint", "alice", amount, "--reason", "r"]), "INVALID_AMOUNT", "{amount}");
        assert_eq!(world.refused(&["reservations", "create", "alice", amount]), "INVALID_AMOUNT", "{amount}");
    }
    for (words, code) in [
        (["accounts", "show", "nobody"], "ACCOUNT_NOT_FOUND"),
        (["accounts", "show", "user:alice"], "INVALID_ACCOUNT"),
        (["accounts", "show", "al ice"], "INVALID_ID"),
        (["accounts", "show", ""], "INVALID_ID"),
        (["accounts", "history", "nobody"], "ACCOUNT_NOT_FOUND"),
        (["reservations", "show", "nothing"], "RESERVATION_NOT_FOUND"),
        (["reservations", "release", "nothing"], "RESERVATION_NOT_FOUND"),
        (["escrows", "refund", "nothing"], "ESCROW_NOT_FOUND"),
    ] {
        assert_eq!(world.refused(&words), code, "{words:?}");
    }
    assert_eq!(world.refused(&["accounts", "show", "alice", "--as-of", "yesterday"]), "INVALID_TIME");
    assert_eq!(world.refused(&["accounts", "show", "alice", "--as-of", "7"]), "ENTRY_NOT_FOUND");
    assert_eq!(world.refused(&["reservations", "create", "alice", "1", "--ttl", "0s"]), "INVALID_TTL");
    assert_eq!(world.refused(&["reservations", "create", "alice", "101"]), "INSUFFICIENT_BALANCE");
    assert_eq!(world.refused(&["accounts", "list", "--data", "nowhere"]), "DATA_NOT_FOUND");
    assert_eq!(world.refused(&["mint", "alice", "-5", "--reason", "r", "--data", "nowhere"]), "INVALID_AMOUNT");
    assert!(!world.home().join("nowhere").exists());
    for words in [&["mint", "alice"][..], &["frobnicate"], &["reservations", "create", "alice", "1", "--ttl", "1w"]] {
        assert_eq!(world.run(words).code, Some(2), "{words:?}");
    }
    assert_eq!(world.entries(), 1);
}

#[test]
fn a_bad_setting_names_itself_and_what_is_allowed() {
    let world = World::new();
    for (name, value) in [
        ("HOLDFAST_SEGMENT_BYTES", "12"),
        ("HOLDFAST_SEGMENT_BYTES", "lots"),
        ("HOLDFAST_SNAPSHOT_ENTRIES", "0"),
        ("HOLDFAST_KEYS_IN_MEMORY", "-1"),
    ] {
        let output = world.command(&["serve"]).env(name, value).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(said.starts_with(&format!("error[INVALID_SETTING]: {name} is {value:?}, and must be ")), "{said}");
    }
    assert!(!world.data().exists());
}
