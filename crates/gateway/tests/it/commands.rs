//! The commands: the same with a server and without, and what each of them shows.

use crate::world::{World, mint};
use serde_json::json;
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::thread;

/// A small history with everything in it.
fn furnish(world: &World) {
    for words in [
        &["mint", "alice", "100", "--reason", "start", "--key", "k1"][..],
        &["mint", "bob", "7.25", "--reason", "start", "--key", "k2"],
        &["reservations", "create", "alice", "30", "--id", "job-1", "--ttl", "1h", "--overrun", "refuse"],
        &["reservations", "start", "job-1"],
        &["reservations", "commit", "job-1", "4", "--partial", "--key", "k3"],
        &["reservations", "increase", "job-1", "2.5", "--key", "k4"],
        &["reservations", "extend", "job-1", "2h", "--key", "k5"],
        &["reservations", "commit", "job-1", "12.5"],
        &["reservations", "ack", "job-1"],
        &["reservations", "create", "alice", "1", "--id", "job-2", "--input-price", "2.5", "--output-price", "10"],
        &["reservations", "commit", "job-2", "--input-tokens", "1000", "--output-tokens", "100"],
        &["reservations", "void", "job-2", "--reason", "wrong answer"],
        &["reservations", "create", "bob", "2", "--id", "open-1", "--ttl", "2d"],
        &["escrows", "hold", "alice", "9", "--feature", "review", "--id", "deal-1", "--key", "k6"],
        &["escrows", "partial", "deal-1", "carol", "6", "3"],
    ] {
        world.ok(words);
    }
}

#[test]
fn questions_get_the_same_answer_with_a_server_and_without() {
    let world = World::new();
    furnish(&world);
    let questions: &[&[&str]] = &[
        &["accounts", "list"],
        &["accounts", "list", "--limit", "1"],
        &["accounts", "list", "--after", "alice"],
        &["accounts", "show", "alice"],
        &["accounts", "show", "user:alice:held"],
        &["accounts", "show", "payee:carol:available"],
        &["accounts", "show", "system:revenue"],
        &["accounts", "show", "treasury:usdc_received"],
        &["accounts", "show", "alice", "--as-of", "5"],
        &["accounts", "show", "system:revenue", "--as-of", "8"],
        &["accounts", "history", "alice"],
        &["accounts", "history", "alice", "--limit", "3", "--before", "9"],
        &["accounts", "history", "payee:carol:available"],
        &["reservations", "list"],
        &["reservations", "list", "--account", "alice"],
        &["reservations", "show", "job-1"],
        &["reservations", "show", "job-2"],
        &["escrows", "show", "deal-1"],
        &["journal", "cat"],
        &["journal", "cat", "--from", "4", "--limit", "2"],
    ];
    let ask = |words: &[&str]| {
        let json: Vec<&str> = words.iter().copied().chain(["--json"]).collect();
        (world.ok(words), world.ok(&json))
    };
    let alone: Vec<_> = questions.iter().map(|words| ask(words)).collect();
    let server = world.serve();
    for (words, alone) in questions.iter().zip(&alone) {
        assert_eq!(&ask(words), alone, "{words:?}");
    }
    let refused = world.refused(&["accounts", "show", "nobody"]);
    server.stop();
    assert_eq!(world.refused(&["accounts", "show", "nobody"]), refused);
    assert_eq!(world.json(&["accounts", "show", "alice"])["available_cu"], json!("77.5"));
}

#[test]
fn changes_do_the_same_with_a_server_and_without() {
    let (alone, served) = (World::new(), World::new());
    let server = served.serve();
    furnish(&alone);
    furnish(&served);
    let without_times = |world: &World| {
        let mut entries = world.journal();
        for entry in &mut entries {
            let entry = entry.as_object_mut().unwrap();
            entry.retain(|field, _| !["at", "expires_at", "frame"].contains(&field.as_str()));
        }
        entries
    };
    assert_eq!(without_times(&alone), without_times(&served));
    assert!(served.ok(&["mint", "alice", "100", "--reason", "start", "--key", "k1"]).contains("replayed"));
    assert!(alone.ok(&["mint", "alice", "100", "--reason", "start", "--key", "k1"]).contains("replayed"));
    server.stop();
}

#[test]
fn commands_given_at_once_wait_for_each_other() {
    let world = World::with_alice();
    thread::scope(|scope| {
        for number in 0..6 {
            let world = &world;
            scope.spawn(move || world.ok(&["mint", "bob", "1", "--reason", "r", "--key", &format!("k{number}")]));
        }
    });
    assert_eq!(world.json(&["accounts", "show", "bob"])["available_cu"], json!("6"));
}

#[test]
fn a_reservations_whole_life_is_shown() {
    let world = World::new();
    furnish(&world);
    let shown = world.json(&["reservations", "show", "job-1"]);
    let kinds: Vec<&str> =
        shown["life"].as_array().unwrap().iter().map(|entry| entry["kind"].as_str().unwrap()).collect();
    assert_eq!(
        kinds,
        [
            "billing_reserve",
            "billing_start",
            "billing_commit",
            "billing_increase",
            "billing_extend",
            "billing_commit",
            "billing_finalize_ack"
        ]
    );
    assert_eq!((&shown["state"], &shown["charged_cu"]), (&json!("FINALIZE_ACKED"), &json!("16.5")));
    let priced = world.json(&["reservations", "show", "job-2"]);
    // 1,000 × $2.50/M + 100 × $10/M = $0.0035 = 0.35 credits.
    assert_eq!((&priced["state"], &priced["charged_cu"]), (&json!("VOIDED"), &json!("0.35")));
    assert_eq!(priced["rates"]["input_usd_per_mtok"], json!("2.5"));
}

#[test]
fn every_kind_of_token_and_the_request_are_charged_by_the_frozen_prices() {
    let world = World::with_alice();
    let prices = ["--input-price", "2.5", "--output-price", "10", "--cached-input-price", "0.25"];
    let further = ["--cache-write-price", "3.75", "--reasoning-price", "20", "--request-price", "0.01"];
    world.ok(&[&["reservations", "create", "alice", "30", "--id", "job-9"], &prices[..], &further[..]].concat());
    let parts = ["--input-tokens", "100", "--output-tokens", "300", "--cached-input-tokens", "1000"];
    world.ok(&[&["reservations", "commit", "job-9", "--partial"], &parts[..]].concat());
    let rest =
        ["--input-tokens", "0", "--output-tokens", "0", "--cache-write-tokens", "200", "--reasoning-tokens", "400"];
    world.ok(&[&["reservations", "commit", "job-9"], &rest[..]].concat());
    let shown = world.json(&["reservations", "show", "job-9"]);
    // 250 + 3000 + 250 micro-dollars, then 750 + 8000 and a cent for the request: 2.225 credits.
    assert_eq!(shown["charged_cu"], json!("2.225"));
    assert_eq!(shown["rates"]["reasoning_usd_per_mtok"], json!("20"));
    assert_eq!(shown["rates"]["per_request_usd"], json!("0.01"));
}

#[test]
fn an_export_ends_with_the_hash_of_its_lines() {
    let world = World::new();
    furnish(&world);
    let server = world.serve();
    let file = world.home().join("all.jsonl");
    let said = world.json(&["journal", "export", file.to_str().unwrap()]);
    let text = std::fs::read_to_string(&file).unwrap();
    let (entries, trailer) = text.trim_end().rsplit_once('\n').unwrap();
    let trailer: serde_json::Value = serde_json::from_str(trailer).unwrap();
    assert_eq!(trailer["blake3"], json!(blake3::hash(format!("{entries}\n").as_bytes()).to_hex().as_str()));
    assert_eq!((&trailer["entries"], &said["entries"]), (&json!(15), &json!(15)));
    assert_eq!(format!("{entries}\n"), world.ok(&["journal", "cat"]));
    assert_eq!(world.ok(&["journal", "export", "-"]), text);
    server.stop();
}

#[test]
fn the_journal_is_verified_beside_a_busy_server() {
    let world = World::with_alice();
    let server = world.serve();
    let mut client = server.client();
    thread::scope(|scope| {
        let busy = scope.spawn(move || {
            for round in 0..60 {
                for number in 0..50 {
                    client.send(mint("bob", &format!("b{round}-{number}")).to_string().as_bytes());
                }
                for _ in 0..50 {
                    assert_eq!(client.next().unwrap()["ok"], json!(true));
                }
            }
        });
        while !busy.is_finished() {
            let verified = world.json(&["journal", "verify"]);
            assert_eq!(verified["torn_bytes"], json!(0));
            assert!(world.entries() >= verified["entries"].as_u64().unwrap());
        }
    });
    server.stop();
    assert!(world.json(&["journal", "stat"])["segments"].as_u64().unwrap() > 2);
    assert_eq!(world.json(&["journal", "verify"])["entries"], json!(3_001));
}

#[test]
fn rebuilding_gives_the_same_books_and_histories() {
    let world = World::new();
    furnish(&world);
    let server = world.serve();
    for round in 0..20 {
        let mints: Vec<_> = (0..50).map(|number| mint("dora", &format!("d{round}-{number}"))).collect();
        server.client().ok(json!({ "op": "batch", "requests": mints }));
    }
    server.stop();
    let look = || {
        [
            world.ok(&["accounts", "list"]),
            world.ok(&["accounts", "history", "alice"]),
            world.ok(&["accounts", "history", "dora", "--before", "700", "--limit", "9"]),
            world.ok(&["accounts", "show", "system:revenue", "--as-of", "9"]),
            world.ok(&["reservations", "list"]),
            world.ok(&["reservations", "show", "job-1"]),
        ]
    };
    let before = look();
    let rebuilt = world.json(&["rebuild"]);
    assert_eq!(rebuilt["entries"], json!(1_015));
    assert_eq!(look(), before);
    assert!(world.ok(&["mint", "dora", "1", "--reason", "test", "--key", "d0-0"]).contains("replayed"));
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let world = World::of_one_segment();
    let server = world.serve();
    let mints: Vec<_> = (0..8_000).map(|number| mint("bob", &format!("m{number}"))).collect();
    server.client().ok(json!({ "op": "batch", "requests": mints }));
    server.stop();
    let mut child = world.command(&["journal", "cat"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = String::new();
    BufReader::with_capacity(64, child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert!(first.starts_with(r#"{"offset":1,"#));
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!((child.wait().unwrap().code(), said.as_str()), (Some(0), ""));
}

#[test]
fn help_and_completions_are_there() {
    let world = World::new();
    assert!(world.ok(&["--help"]).contains("Examples:"));
    for shell in ["bash", "zsh", "fish"] {
        assert!(world.ok(&["completions", shell]).contains("holdfast"));
    }
    assert!(!world.data().exists());
}

#[test]
fn the_benchmark_measures_and_leaves_nothing_behind() {
    let world = World::of_one_segment();
    let run = world.run(&["bench", "ledger", "--seconds", "1", "--callers", "8", "--batch", "4", "--json"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    let rows: Vec<serde_json::Value> = run.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 2);
    assert!(rows.iter().all(|row| row["pairs_per_s"].as_u64().unwrap() > 0), "{run:?}");
    assert_eq!(std::fs::read_dir(world.home()).unwrap().count(), 0);
}
