//! The real program with its obligations in the payment outbox of a real PostgreSQL: what it asks of the database before it
//! serves, and that every charge is told once in effect though the database dies, the program is killed, or a node freezes.

use crate::settlement_world::{Peer, becomes, billing, charge, serve, state, status, until};
use crate::world::{Server, World};
use holdfast_adapters::postgres::Database;
use holdfast_simulator::servers::PostgresServer;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

const NODE: &str = "CREATE ROLE node LOGIN; GRANT symphony_ingest, symphony_executor, symphony_admin, \
                    symphony_ledger TO node";

/// A database with the outbox in it, as an operator makes it.
pub(crate) struct Outbox {
    pub(crate) server: PostgresServer,
    _files: tempfile::TempDir,
}

impl Outbox {
    pub(crate) fn bare() -> Self {
        let files = tempfile::tempdir().unwrap();
        Self { server: PostgresServer::start(files.path()).unwrap(), _files: files }
    }

    pub(crate) fn new(world: &World) -> Self {
        let outbox = Self::bare();
        world.ok(&["migrate", "--database-url", &outbox.server.url("postgres")]);
        outbox.run(NODE);
        outbox
    }

    /// Runs statements as the superuser.
    pub(crate) fn run(&self, sql: &str) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let url = self.server.url("postgres");
        runtime.block_on(async {
            let client = Database::at(&url, None).unwrap().connect().await.unwrap();
            client.batch_execute(sql).await.unwrap();
        });
    }

    pub(crate) fn url(&self) -> String {
        self.server.url_as("node", "postgres")
    }

    /// A server that leaves the peer alone for a second after one failure, so that attempts are not used up.
    fn serve(&self, world: &World, peer: &Peer) -> Server {
        let url = self.url();
        let settings = [
            ("HOLDFAST_BILLING_OBLIGATIONS", url.as_str()),
            ("HOLDFAST_PEER_CIRCUIT_FAILURES", "1"),
            ("HOLDFAST_PEER_CIRCUIT_REST_MS", "1000"),
        ];
        serve(world, &peer.url, &settings)
    }
}

/// A peer that is away until it is called back, and what it took, in order.
pub(crate) fn away() -> (Peer, Arc<AtomicBool>, Arc<Mutex<Vec<String>>>) {
    let (is_away, taken) = (Arc::new(AtomicBool::new(true)), Arc::new(Mutex::new(Vec::new())));
    let (away, book) = (Arc::clone(&is_away), Arc::clone(&taken));
    let peer = Peer::answering(move |told, _| {
        if away.load(Ordering::SeqCst) {
            return status(503);
        }
        let (mut taken, id) = (book.lock().unwrap(), told.id().to_owned());
        if taken.contains(&id) {
            return status(409);
        }
        taken.push(id);
        status(200)
    });
    (peer, is_away, taken)
}

#[test]
fn a_server_does_not_start_on_a_schema_that_is_not_its_own_nor_with_more_attempts_than_the_database_makes() {
    let (world, outbox) = (World::with_alice(), Outbox::bare());
    let refused = |settings: &[(&str, &str)]| {
        let mut command = world.command(&["--json", "serve"]);
        command.env("HOLDFAST_PEER_URL", "http://127.0.0.1:1").envs(settings.iter().copied());
        let output = command.output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let url = outbox.server.url("postgres");
    let said = refused(&[("HOLDFAST_BILLING_OBLIGATIONS", &url)]);
    assert!(said.contains("SCHEMA_OLDER") && said.contains("holdfast migrate"), "{said}");
    world.ok(&["migrate", "--database-url", &url]);
    outbox.run("CREATE ROLE nobody_much LOGIN");
    let said = refused(&[("HOLDFAST_BILLING_OBLIGATIONS", &outbox.server.url_as("nobody_much", "postgres"))]);
    assert!(said.contains("DATABASE_FORBIDDEN"), "{said}");
    let said = refused(&[("HOLDFAST_BILLING_OBLIGATIONS", "postgres://me:secret@host:port/db")]);
    assert!(said.contains("DATABASE_URL_INVALID") && !said.contains("secret"), "{said}");
    let many = vec!["1"; 20].join(",");
    for (name, value) in [("HOLDFAST_PEER_RETRY_SLOW_MS", many.as_str()), ("HOLDFAST_PEER_RETRY_AGE_MIN_S", "5")] {
        let said = refused(&[("HOLDFAST_BILLING_OBLIGATIONS", &url), (name, value)]);
        assert!(said.contains("INVALID_SETTING") && said.contains("PostgreSQL"), "{said}");
    }
    outbox.run("INSERT INTO holdfast.schema_migrations VALUES (1000, 'newer', '')");
    let said = refused(&[("HOLDFAST_BILLING_OBLIGATIONS", &url)]);
    assert!(said.contains("SCHEMA_NEWER"), "{said}");
}

#[test]
fn charges_go_on_while_the_database_is_dead_and_the_program_is_killed_and_each_is_told_once() {
    let world = World::with_alice();
    let mut outbox = Outbox::new(&world);
    let (peer, is_away, taken) = away();
    let server = outbox.serve(&world, &peer);
    let mut client = server.client();
    let mut charges: Vec<String> = (0..5).map(|number| format!("before-{number}")).collect();
    charges.iter().for_each(|id| charge(&mut client, id));
    let said = until(|| billing(&server), |billing| billing["dlq_pending"] == 5);
    assert_eq!((&said["dlq_store_type"], &said["dlq_durable"]), (&json!("postgres"), &json!(true)));

    outbox.server.kill();
    let meanwhile: Vec<String> = (0..5).map(|number| format!("meanwhile-{number}")).collect();
    meanwhile.iter().for_each(|id| charge(&mut client, id));
    charges.extend(meanwhile);
    let said = until(|| billing(&server), |billing| billing["dlq_size"] == Value::Null);
    assert_eq!(said["dlq_durable"], Value::Null, "nobody says");
    assert_eq!(state(&mut client, "meanwhile-4"), "FINALIZE_PENDING");
    server.crash();

    // It starts without the database, and finds it when it is there.
    is_away.store(false, Ordering::SeqCst);
    let server = outbox.serve(&world, &peer);
    outbox.server.start_again().unwrap();
    let mut client = server.client();
    outbox.run("UPDATE holdfast.payment_outbox_claims SET lease_expires_at = now()");
    for id in &charges {
        becomes(&mut client, id, "FINALIZE_ACKED");
    }
    until(|| billing(&server), |billing| billing["dlq_size"] == 0 && billing["dlq_durable"] == true);
    server.stop();
    let taken = taken.lock().unwrap();
    assert_eq!((taken.iter().collect::<BTreeSet<_>>(), taken.len()), (charges.iter().collect(), charges.len()));
    assert!(peer.told(0).iter().all(|told| told.body["actual_cost_micro"] == "2500000"));
    let acks = world.journal().iter().filter(|entry| entry["kind"] == "billing_finalize_ack").count();
    assert_eq!(acks, charges.len(), "one word of the journal's for each");
}

/// One who asks and waits until somebody lets it go on.
#[derive(Default)]
struct Latch {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Latch {
    fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    fn wait(&self) {
        let is_open = self.is_open.lock().unwrap();
        // Bounded, so that a test which fails ends.
        drop(self.opened.wait_timeout_while(is_open, Duration::from_secs(60), |is_open| !*is_open).unwrap());
    }
}

#[test]
fn a_node_that_freezes_while_it_tells_is_overtaken_and_what_it_then_says_changes_nothing() {
    let (world, other_world) = (World::with_alice(), World::with_alice());
    let outbox = Outbox::new(&world);
    let latch = Arc::new(Latch::default());
    let held_back = Arc::clone(&latch);
    let peer = Peer::answering(move |_, before| {
        if before == 0 {
            // The peer goes on with others meanwhile.
            tokio::task::block_in_place(|| held_back.wait());
            return status(200);
        }
        status(409)
    });
    let frozen = outbox.serve(&world, &peer);
    let mut client = frozen.client();
    charge(&mut client, "slow");
    peer.told(1);
    frozen.signal(Signal::STOP);
    // Its minute is over; another node takes what it had, and tells the peer, who knows it by then.
    outbox.run("UPDATE holdfast.payment_outbox_claims SET lease_expires_at = now()");
    let other = outbox.serve(&other_world, &peer);
    peer.told(2);
    until(|| billing(&other), |billing| billing["dlq_size"] == 0);
    latch.open();
    frozen.signal(Signal::CONT);
    // It comes too late, is told so, and settles by asking again: its own journal must know.
    becomes(&mut client, "slow", "FINALIZE_ACKED");
    let metrics = reqwest::blocking::get(format!("{}/metrics", frozen.url())).unwrap().text().unwrap();
    assert!(metrics.contains("finalize_leases_lost_total 1"), "{metrics}");
    let bodies: BTreeSet<String> = peer.told(0).iter().map(|told| told.body.to_string()).collect();
    assert_eq!(bodies.len(), 1, "always the same id and the same cost");
    frozen.stop();
    other.stop();
}
