//! `holdfast migrate` on a real PostgreSQL.

use crate::world::World;
use holdfast_adapters::postgres::ALL;
use holdfast_simulator::servers::PostgresServer;
use serde_json::Value;

fn states(said: &Value) -> Vec<&str> {
    let steps = said["migrations"].as_array().unwrap();
    steps.iter().map(|step| step["state"].as_str().unwrap()).collect()
}

#[test]
fn the_schema_is_brought_up_to_date_once_and_shown() {
    let (world, dir) = (World::new(), tempfile::tempdir().unwrap());
    let server = PostgresServer::start(dir.path()).unwrap();
    let url = server.url("postgres");
    let before = world.json(&["migrate", "--database-url", &url, "--dry-run"]);
    assert_eq!(states(&before), ["missing"; ALL.len()]);
    let table = world.ok(&["migrate", "--database-url", &url]);
    assert!(table.starts_with("version  name"), "{table}");
    assert!(table.lines().any(|line| line.contains("outbox_claim") && line.contains("applied")), "{table}");
    assert_eq!(states(&world.json(&["migrate", "--database-url", &url])), ["there"; ALL.len()]);
    assert!(!world.data().exists(), "it needs no data directory");
}

#[test]
fn what_stops_it_has_a_code_and_no_password_in_it() {
    let world = World::new();
    for (url, code) in [
        ("postgres://me:secret@127.0.0.1:1/none", "DATABASE_UNREACHABLE"),
        ("postgres://me:secret@host:port/none", "DATABASE_URL_INVALID"),
    ] {
        assert_eq!(world.refused(&["migrate", "--database-url", url]), code);
        assert!(!world.run(&["migrate", "--database-url", url]).stderr.contains("secret"), "{url}");
    }
    let unreadable = ["migrate", "--database-url", "postgres://127.0.0.1/x", "--database-ca", "nowhere.pem"];
    assert_eq!(world.refused(&unreadable), "DATABASE_CERTIFICATES_UNUSABLE");
}
