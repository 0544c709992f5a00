//! The real program, several times, on one real PostgreSQL that has the books.

use crate::settlement_postgres::{Outbox, away};
use crate::settlement_world::{Peer, becomes, billing, charge, serve, until};
use crate::world::{Server, World};
use holdfast_simulator::peer::{Options, Peer as HostilePeer};
use serde_json::{Value, json};
use std::sync::atomic::Ordering;
use std::thread;

/// A database with the books, and nodes with directories of their own.
pub(crate) struct Site {
    pub(crate) outbox: Outbox,
    pub(crate) worlds: Vec<World>,
}

impl Site {
    pub(crate) fn new(nodes: usize) -> Self {
        let worlds: Vec<World> = (0..nodes).map(|_| World::new()).collect();
        Self { outbox: Outbox::new(&worlds[0]), worlds }
    }

    fn serve(&self, node: usize, peer: Option<&str>) -> Server {
        let world = &self.worlds[node];
        let url = self.outbox.url();
        let settings = [
            ("HOLDFAST_DATABASE_URL", url.as_str()),
            ("HOLDFAST_PEER_CIRCUIT_FAILURES", "1"),
            ("HOLDFAST_PEER_CIRCUIT_REST_MS", "1000"),
            // However long a busy machine takes: what is only not answered is not given up within a test.
            ("HOLDFAST_PEER_RETRY_AGE_MIN_S", "600"),
        ];
        match peer {
            Some(peer) => serve(world, peer, &settings),
            None => self.serve_so(node, &settings[1..]),
        }
    }

    /// A server without a peer, with these settings.
    pub(crate) fn serve_so(&self, node: usize, settings: &[(&str, &str)]) -> Server {
        let world = &self.worlds[node];
        let mut command = world.command(&["serve"]);
        command.env("HOLDFAST_DATABASE_URL", self.outbox.url()).envs(settings.iter().copied());
        world.serve_with(command)
    }

    /// What a command on a node's directory says, with the books in the database.
    pub(crate) fn command(&self, node: usize, words: &[&str]) -> Value {
        let mut command = self.worlds[node].command(&[&["--json"], words].concat());
        let output = command.env("HOLDFAST_DATABASE_URL", self.outbox.url()).output().unwrap();
        assert!(output.status.success(), "{words:?} {output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

pub(crate) fn funds() -> Value {
    json!({ "op": "mint", "account_id": "alice", "amount_cu": "1000", "reason": "funds", "key": "m1" })
}

fn balance(server: &Server, account: &str) -> (String, String) {
    let answer = server.client().ok(json!({ "op": "balance", "account": account }));
    let text = |field: &str| answer[field].as_str().unwrap().to_owned();
    (text("available_cu"), text("held_cu"))
}

pub(crate) fn health(server: &Server) -> Value {
    reqwest::blocking::get(format!("{}/health", server.url())).unwrap().json().unwrap()
}

#[test]
fn what_one_node_acknowledges_every_node_knows_and_a_kill_loses_nothing() {
    let site = Site::new(2);
    let (one, two) = (site.serve(0, None), site.serve(1, None));
    assert_eq!((&health(&one)["engine"], &health(&one)["database"]["reached"]), (&json!("postgres"), &json!(true)));
    one.client().ok(funds());
    let funds = balance(&two, "alice").0;
    two.client().ok(json!({ "op": "reserve", "account_id": "alice", "request_id": "r1", "amount_cu": "5" }));
    assert_eq!(balance(&one, "alice").1, "5");
    one.client().ok(json!({ "op": "commit", "id": "r1", "actual_cu": "2.5" }));
    one.crash();
    // The same request again, to another node, has its first answer.
    let again = two.client().ok(json!({ "op": "commit", "id": "r1", "actual_cu": "2.5" }));
    assert_eq!((&again["outcome"], &again["charged_cu"]), (&json!("replayed"), &json!("2.5")));
    let one = site.serve(0, None);
    let left = funds.parse::<u64>().unwrap() - 3;
    assert_eq!(balance(&one, "alice"), (format!("{left}.5"), "0".to_owned()));
    let totals = one.client().ok(json!({ "op": "totals" }));
    assert_eq!((&totals["imbalance"], &totals["revenue_cu"]), (&json!("0"), &json!("2.5")));
    let history = two.client().ok(json!({ "op": "history", "account": "alice" }));
    let kinds: Vec<_> = history["entries"].as_array().unwrap().iter().map(|entry| entry["kind"].clone()).collect();
    assert_eq!(kinds, ["billing_commit", "billing_reserve", "credit_mint"]);
    // Commands without a server open the same books.
    let world = &site.worlds[0];
    one.stop();
    let mut command = world.command(&["--json", "accounts", "show", "alice"]);
    let output = command.env("HOLDFAST_DATABASE_URL", site.outbox.url()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(shown["available_cu"], format!("{left}.5"), "{shown}");
}

#[test]
fn a_journal_from_before_the_database_is_read_beside_a_node_that_does_not_write_it() {
    let site = Site::new(1);
    let world = &site.worlds[0];
    let alone = world.serve();
    alone.client().ok(funds());
    alone.stop();
    let written = world.ok(&["journal", "cat"]);
    assert!(written.contains("credit_mint"), "{written}");
    let node = site.serve(0, None);
    node.client().ok(json!({ "op": "mint", "account_id": "bob", "amount_cu": "1", "reason": "funds", "key": "m2" }));
    assert_eq!(world.ok(&["journal", "cat"]), written, "what is in the database is not in it");
    assert_eq!(world.json(&["journal", "verify"])["entries"], json!(1));
    node.stop();
}

#[test]
fn charges_of_three_nodes_are_told_once_though_nodes_are_killed_and_the_database_restarts() {
    let mut site = Site::new(3);
    let (peer, is_away, taken) = away();
    let mut nodes: Vec<Server> = (0..3).map(|node| site.serve(node, Some(&peer.url))).collect();
    nodes[0].client().ok(funds());
    let ids: Vec<String> = (0..30).map(|number| format!("c{number}")).collect();
    for (number, id) in ids.iter().enumerate() {
        charge(&mut nodes[number % 3].client(), id);
    }
    assert!(taken.lock().unwrap().is_empty());
    nodes.remove(0).crash();
    site.outbox.server.kill();
    site.outbox.server.start_again().unwrap();
    is_away.store(false, Ordering::SeqCst);
    nodes.insert(0, site.serve(0, Some(&peer.url)));
    for id in &ids {
        until(
            || nodes[1].client().ask(json!({ "op": "reservation", "id": id })),
            |answer| answer["state"] == "FINALIZE_ACKED",
        );
    }
    let mut told = taken.lock().unwrap().clone();
    told.sort();
    let mut expected = ids.clone();
    expected.sort();
    assert_eq!(told, expected);
    until(|| billing(&nodes[2]), |billing| billing["dlq_pending"] == 0 && billing["dlq_dead"] == 0);
}

#[test]
fn what_the_peer_refuses_is_a_dead_letter_of_all_nodes_and_a_void_is_not_told() {
    let site = Site::new(2);
    let peer = HostilePeer::start(Options { refuses_one_in: Some(1), ..Options::honest() }).unwrap();
    let (one, two) = (site.serve(0, Some(&peer.url)), site.serve(1, Some(&peer.url)));
    one.client().ok(funds());
    charge(&mut one.client(), "refused");
    becomes(&mut two.client(), "refused", "FINALIZE_FAILED");
    until(|| billing(&two), |billing| billing["dlq_dead"] == 1);
    peer.relent();
    two.client().ok(json!({ "op": "obligation_replay", "id": "refused" }));
    becomes(&mut one.client(), "refused", "FINALIZE_ACKED");
    one.client().ok(json!({ "op": "void", "id": "refused", "reason": "a mistake" }));
    assert_eq!(peer.book().rows["refused"].applied, 1);
}

#[test]
fn what_a_node_without_a_peer_charges_is_told_by_one_that_has_a_peer() {
    let site = Site::new(2);
    let peer = Peer::good();
    let alone = site.serve(0, None);
    alone.client().ok(funds());
    charge(&mut alone.client(), "c1");
    let telling = site.serve(1, Some(&peer.url));
    becomes(&mut alone.client(), "c1", "FINALIZE_ACKED");
    assert_eq!(peer.told(1)[0].id(), "c1");
    telling.stop();
}

#[test]
fn a_kill_before_or_after_a_commit_leaves_all_of_it_or_nothing() {
    let site = Site::new(2);
    let other = site.serve(1, None);
    other.client().ok(funds());
    let reserve = |id: &str| json!({ "op": "reserve", "account_id": "alice", "request_id": id, "amount_cu": "5" });
    for (name, there) in [("ledger.before_admit", false), ("ledger.after_commit", true)] {
        let mut command = site.worlds[0].command(&["serve"]);
        let killed = [("HOLDFAST_DATABASE_URL", site.outbox.url()), ("HOLDFAST_FAILPOINT", format!("{name}:1"))];
        let server = site.worlds[0].serve_with({
            command.envs(killed);
            command
        });
        let id = name.replace('.', "-");
        assert!(server.client().try_ask(&reserve(&id)).is_none(), "{name}: it was killed before it could answer");
        server.wait();
        let again = other.client().ok(reserve(&id));
        assert_eq!(again["outcome"], if there { "replayed" } else { "applied" }, "{name}");
    }
    assert_eq!(balance(&other, "alice"), ("990".to_owned(), "10".to_owned()));
}

#[test]
fn many_callers_of_three_nodes_spend_no_more_than_there_is() {
    let site = Site::new(3);
    let nodes: Vec<Server> = (0..3).map(|node| site.serve(node, None)).collect();
    nodes[0].client().ok(funds());
    let (available, _) = balance(&nodes[0], "alice");
    let each = available.parse::<u64>().unwrap() / 10;
    let admitted: usize = thread::scope(|scope| {
        let ask = |node: usize, caller: usize| {
            let mut client = nodes[node].client();
            let reserve = move |number: usize| {
                let id = format!("r-{node}-{caller}-{number}");
                json!({ "op": "reserve", "account_id": "alice", "request_id": id, "amount_cu": each.to_string() })
            };
            scope.spawn(move || (0..8).filter(|number| client.ask(reserve(*number))["ok"] == true).count())
        };
        let asking: Vec<_> = (0..12).map(|number| ask(number % 3, number)).collect();
        asking.into_iter().map(|asking| asking.join().unwrap()).sum()
    });
    assert_eq!(admitted, 10);
    assert_eq!(nodes[1].client().ok(json!({ "op": "totals" }))["imbalance"], "0");
}

#[test]
fn the_doctor_says_whether_the_database_keeps_what_it_acknowledges() {
    let site = Site::new(1);
    let checks = || {
        let mut command = site.worlds[0].command(&["--json", "doctor"]);
        let output = command.env("HOLDFAST_DATABASE_URL", site.outbox.url()).output().unwrap();
        let said: Value = serde_json::from_slice(&output.stdout).unwrap();
        let of = |name: &str| {
            let checks = said["checks"].as_array().unwrap().iter();
            checks.filter(|check| check["check"] == name).map(|check| check["verdict"].clone()).collect::<Vec<_>>()
        };
        (of("database"), of("database clock"), of("journal"))
    };
    assert_eq!(checks(), (vec![json!("pass")], vec![json!("pass")], vec![json!("pass")]));
    site.outbox.run("ALTER SYSTEM SET synchronous_commit = 'off'");
    site.outbox.run("SELECT pg_reload_conf()");
    until(checks, |checks| checks.0 == [json!("fail")]);
}

#[test]
fn a_server_needs_a_schema_of_its_own_and_the_right_to_the_books() {
    let world = World::new();
    let outbox = Outbox::bare();
    let refused = |url: &str, more: &[(&str, &str)]| {
        let mut command = world.command(&["serve"]);
        let output = command.env("HOLDFAST_DATABASE_URL", url).envs(more.iter().copied()).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let url = outbox.server.url("postgres");
    assert!(refused(&url, &[]).contains("SCHEMA_OLDER"));
    world.ok(&["migrate", "--database-url", &url]);
    outbox.run("CREATE ROLE stranger LOGIN");
    assert!(refused(&outbox.server.url_as("stranger", "postgres"), &[]).contains("DATABASE_FORBIDDEN"));
    let peer = Peer::good();
    let elsewhere = [("HOLDFAST_PEER_URL", peer.url.as_str()), ("HOLDFAST_BILLING_OBLIGATIONS", "memory")];
    let said = refused(&url, &elsewhere);
    assert!(said.contains("INVALID_SETTING") && said.contains("same database"), "{said}");
}
