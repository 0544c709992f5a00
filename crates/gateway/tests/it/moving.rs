//! `holdfast export` and `holdfast import`: the real program, a real PostgreSQL, and kills.

use crate::world::World;
use holdfast_simulator::servers::PostgresServer;
use serde_json::Value;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

const SIGKILL: i32 = 9;

/// A world with a little of everything.
fn lived() -> World {
    let world = World::with_alice();
    world.ok(&["mint", "bob", "7.25", "--reason", "more", "--key", "bob-1"]);
    world.ok(&["reservations", "create", "alice", "10", "--id", "chg_1"]);
    world.ok(&["reservations", "commit", "chg_1", "2.5", "--partial", "--key", "part"]);
    world.ok(&["reservations", "commit", "chg_1", "1", "--key", "rest"]);
    world.ok(&["reservations", "create", "alice", "3", "--id", "chg_2"]);
    world.ok(&["escrows", "hold", "bob", "4", "--feature", "art", "--id", "esc_1", "--key", "hold"]);
    world.ok(&["escrows", "partial", "esc_1", "carol", "1.5", "2.5", "--key", "split"]);
    world
}

/// A PostgreSQL with the schema, in a directory that must outlive it.
fn database(world: &World, dir: &Path) -> PostgresServer {
    let server = PostgresServer::start(dir).unwrap();
    world.ok(&["migrate", "--database-url", &server.url("postgres")]);
    server
}

/// Runs `words`, and expects the program to be killed at the failpoint.
fn killed(world: &World, failpoint: &str, words: &[&str]) {
    let output = world.command(words).env("HOLDFAST_FAILPOINT", failpoint).output().unwrap();
    assert_eq!(output.status.signal(), Some(SIGKILL), "{failpoint}: {output:?}");
}

/// What is shown of the accounts and lives in a data directory.
fn shown(world: &World, data: &str) -> Vec<Value> {
    let words: [&[&str]; 5] = [
        &["accounts", "list"],
        &["accounts", "show", "payee:carol:available"],
        &["accounts", "show", "system:revenue"],
        &["reservations", "show", "chg_1"],
        &["escrows", "show", "esc_1"],
    ];
    words.iter().map(|words| world.json(&[words, &["--data", data][..]].concat())).collect()
}

#[test]
fn books_move_to_a_database_and_back() {
    let (world, dir) = (lived(), tempfile::tempdir().unwrap());
    let server = database(&world, dir.path());
    let url = server.url("postgres");
    let data = world.data().display().to_string();
    let before = shown(&world, &data);

    let written = world.json(&["export", "books"]);
    assert_eq!((written["from"].as_str(), written["entries"].as_u64()), (Some("embedded"), Some(8)));
    assert_eq!(world.refused(&["export", "books"]), "FILE_EXISTS");
    let text = std::fs::read_to_string(world.home().join("books")).unwrap();
    assert!(text.starts_with("{\"holdfast_export\":1,\"engine\":\"embedded\""), "{text}");
    assert!(text.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()));

    let moved = world.json(&["import", "--database-url", &url, "books"]);
    assert_eq!((&moved["file_says"], &moved["to"]), (&moved["books_say"], &Value::from("postgres")));
    assert_eq!(moved["file_says"]["revenue_cu"], "3.5");
    assert_eq!(moved["obligations_pending"], 1);
    assert_eq!(world.refused(&["import", "--database-url", &url, "books"]), "IMPORT_TARGET_NOT_EMPTY");

    let table = world.ok(&["export", "--database-url", &url, "back"]);
    assert!(table.lines().any(|line| line.split_whitespace().eq(["from", "postgres"])), "{table}");
    world.ok(&["import", "--data", "new", "back"]);
    assert_eq!(shown(&world, "new"), before);
    world.ok(&["journal", "verify", "--data", "new"]);
    let words = ["mint", "alice", "100", "--reason", "start", "--key", "start", "--data", "new"];
    assert_eq!(world.json(&words)["outcome"], "replayed", "a key is known for ever");
    assert_eq!(world.refused(&["import", "--data", "new", "back"]), "IMPORT_TARGET_NOT_EMPTY");
}

#[test]
fn what_is_said_on_the_command_line_counts_before_the_environment() {
    let world = lived();
    let nowhere = "postgres://127.0.0.1:1/none";
    let said = |words: &[&str]| world.command(words).env("HOLDFAST_DATABASE_URL", nowhere).output().unwrap();
    let data = world.data().display().to_string();
    assert!(said(&["export", "--data", &data, "books"]).status.success());
    assert!(!said(&["export", "more"]).status.success());
    assert!(!world.home().join("more").exists());
}

#[test]
fn a_served_directory_is_not_exported_and_a_cut_file_not_imported() {
    let world = lived();
    let server = world.serve();
    assert_eq!(world.refused(&["export", "books"]), "DATA_IN_USE");
    drop(server);
    killed(&world, "export.mid_entries:3", &["export", "books"]);
    assert_eq!(world.refused(&["import", "--data", "new", "books"]), "EXPORT_DAMAGED");
    assert_eq!(world.refused(&["export", "--data", "nothing", "more"]), "DATA_NOT_FOUND");
    assert_eq!(world.refused(&["import", "--data", "new", "missing"]), "IO_FAILED");
}

#[test]
fn a_killed_import_into_a_directory_leaves_it_empty_or_whole() {
    let world = lived();
    let data = world.data().display().to_string();
    let before = shown(&world, &data);
    world.ok(&["export", "books"]);
    for failpoint in ["journal.mid_write:1", "journal.after_sync:1", "journal.before_seal:1", "import.before_commit:1"]
    {
        killed(&world, failpoint, &["import", "--data", "new", "books"]);
        assert!(!world.home().join("new/journal").exists(), "{failpoint}");
    }
    killed(&world, "import.after_commit:1", &["import", "--data", "new", "books"]);
    assert_eq!(shown(&world, "new"), before, "it was all there when it was killed");
    assert_eq!(world.refused(&["import", "--data", "new", "books"]), "IMPORT_TARGET_NOT_EMPTY");
}

#[test]
fn an_import_takes_the_place_of_a_journal_without_entries() {
    let world = lived();
    world.ok(&["export", "books"]);
    let data = world.data().display().to_string();
    let before = shown(&world, &data);
    // A server that nobody asked anything has made the directory, and what is in it besides the journal stays.
    let fresh = World::new();
    drop(fresh.serve());
    let books = world.home().join("books").display().to_string();
    fresh.ok(&["import", &books]);
    assert_eq!(shown(&fresh, &fresh.data().display().to_string()), before);
    assert!(fresh.data().join("identity.db").exists() && !fresh.data().join("import").exists());
}

#[test]
fn a_killed_import_into_a_database_leaves_it_empty_or_whole() {
    let (world, dir) = (lived(), tempfile::tempdir().unwrap());
    let server = database(&world, dir.path());
    let url = server.url("postgres");
    world.ok(&["export", "books"]);
    for failpoint in ["import.mid_entries:1", "import.before_commit:1"] {
        killed(&world, failpoint, &["import", "--database-url", &url, "books"]);
        let out = format!("out-{failpoint}");
        assert_eq!(world.json(&["export", "--database-url", &url, &out])["entries"], 0, "{failpoint}");
    }
    killed(&world, "import.after_commit:1", &["import", "--database-url", &url, "books"]);
    assert_eq!(world.json(&["export", "--database-url", &url, "whole"])["entries"], 8);
    assert_eq!(world.refused(&["import", "--database-url", &url, "books"]), "IMPORT_TARGET_NOT_EMPTY");
}
