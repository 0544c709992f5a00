//! The real program with its obligations in a real Redis that is killed, stopped, emptied, filled, made read-only or made to
//! forget: the journal owes every charge, so every charge is told in the end, and `/health` says meanwhile how it stands.

use crate::settlement_world::{Peer, becomes, billing, charge, serve, state, status, until};
use crate::world::{Client, Server, World};
use holdfast_simulator::servers::{Mode, RedisServer};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// A world whose obligations are in a Redis, and whose peer is away until it is called back.
struct Site {
    world: World,
    redis: RedisServer,
    peer: Peer,
    is_away: Arc<AtomicBool>,
    /// Whether it says no for good once it is back.
    refuses: Arc<AtomicBool>,
    /// What the peer has taken, in order; what it has taken once it knows.
    taken: Arc<Mutex<Vec<String>>>,
    _files: tempfile::TempDir,
}

impl Site {
    fn new(settings: &[&str]) -> Self {
        let files = tempfile::tempdir().unwrap();
        let redis = RedisServer::start(files.path(), Mode::Plain, settings).unwrap();
        let is_away = Arc::new(AtomicBool::new(true));
        let (taken, refuses) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (away, no, book) = (Arc::clone(&is_away), Arc::clone(&refuses), Arc::clone(&taken));
        let peer = Peer::answering(move |told, _| {
            if away.load(Ordering::SeqCst) {
                return status(503);
            }
            if no.load(Ordering::SeqCst) {
                return status(422);
            }
            let (mut taken, id) = (book.lock().unwrap(), told.id().to_owned());
            if taken.contains(&id) {
                return status(409);
            }
            taken.push(id);
            status(200)
        });
        Self { world: World::with_alice(), redis, peer, is_away, refuses, taken, _files: files }
    }

    /// A server that gives nothing up while the peer is away.
    fn serve(&self, settings: &[(&str, &str)]) -> Server {
        let url = self.redis.url();
        let usual = [
            ("HOLDFAST_BILLING_OBLIGATIONS", url.as_str()),
            ("HOLDFAST_PEER_RETRY_QUICK_MS", "200"),
            ("HOLDFAST_PEER_RETRY_SLOW_MS", "200"),
            ("HOLDFAST_PEER_RETRY_AGE_MIN_S", "3600"),
            ("HOLDFAST_PEER_CIRCUIT_FAILURES", "1000000"),
        ];
        let all: Vec<(&str, &str)> = usual.iter().chain(settings).copied().collect();
        serve(&self.world, &self.peer.url, &all)
    }

    /// Waits until so many wait in a Redis that keeps them, and the server says so.
    fn await_stored(&self, server: &Server, many: usize) {
        let there = format!(":{many}\r\n");
        until(|| self.ask("ZCARD finn:hounfour:dlq:pending"), |count| *count == there);
        until(|| billing(server), |billing| billing["dlq_pending"] == many && billing["dlq_durable"] == true);
    }

    /// What Redis answers.
    fn ask(&self, words: &str) -> String {
        self.redis.command(words).unwrap()
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.redis.pid().unwrap()).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }

    fn call_back_the_peer(&self) {
        self.is_away.store(false, Ordering::SeqCst);
    }

    /// Waits until all of `charges` are acknowledged, and looks whether the peer took each once, for what it cost.
    /// What the server said.
    fn assert_settled(&self, server: Server, charges: &[String]) -> String {
        let mut client = server.client();
        for id in charges {
            becomes(&mut client, id, "FINALIZE_ACKED");
        }
        until(|| billing(&server), |billing| billing["dlq_size"] == 0 && billing["dlq_durable"] == true);
        let said = server.stop();
        let expected: BTreeSet<&String> = charges.iter().collect();
        let taken = self.taken.lock().unwrap();
        assert_eq!((taken.iter().collect(), taken.len()), (expected, charges.len()));
        assert!(self.peer.told(0).iter().all(|told| told.body["actual_cost_micro"] == "2500000"));
        let acks = self.world.journal().iter().filter(|entry| entry["kind"] == "billing_finalize_ack").count();
        assert_eq!(acks, charges.len(), "one word of the journal's for each");
        said
    }
}

/// Makes so many charges, and returns their names.
fn charge_many(client: &mut Client, name: &str, many: usize) -> Vec<String> {
    let ids: Vec<String> = (0..many).map(|number| format!("{name}-{number}")).collect();
    for id in &ids {
        charge(client, id);
    }
    ids
}

/// Waits until `/health` says whether what waits is durable, and whether the log of Redis is on.
fn await_said(server: &Server, durable: bool, aof_verified: &Value) -> Value {
    let is_said = |billing: &Value| billing["dlq_durable"] == durable && billing["dlq_aof_verified"] == *aof_verified;
    until(|| billing(server), is_said)
}

#[test]
fn what_is_in_redis_when_the_program_is_killed_is_told_after_the_next_start() {
    let site = Site::new(&[]);
    let server = site.serve(&[("HOLDFAST_PEER_CIRCUIT_FAILURES", "1"), ("HOLDFAST_PEER_CIRCUIT_REST_MS", "1000")]);
    let charges = charge_many(&mut server.client(), "kept", 20);
    site.await_stored(&server, 20);
    // Killed when it has nothing in hand: a lease would have to run out first, which takes a minute.
    let stopped = || {
        server.signal(Signal::STOP);
        let leased = site.ask("ZCARD finn:hounfour:dlq:leased");
        if leased != ":0\r\n" {
            server.signal(Signal::CONT);
        }
        leased
    };
    until(stopped, |leased| leased == ":0\r\n");
    server.crash();
    assert_eq!(site.ask("ZCARD finn:hounfour:dlq:pending"), ":20\r\n");
    site.call_back_the_peer();
    site.assert_settled(site.serve(&[]), &charges);
}

#[test]
fn charges_go_on_while_redis_is_dead_and_none_is_lost() {
    let mut site = Site::new(&[]);
    let server = site.serve(&[]);
    let mut client = server.client();
    let before = charge_many(&mut client, "before", 5);
    site.await_stored(&server, 5);
    site.redis.kill();
    let meanwhile = charge_many(&mut client, "meanwhile", 5);
    let said = await_said(&server, false, &Value::Null);
    assert_eq!(
        (&said["dlq_size"], &said["dlq_store_type"]),
        (&Value::Null, &json!("redis")),
        "half is not told for all"
    );
    site.call_back_the_peer();
    for id in &meanwhile {
        becomes(&mut client, id, "FINALIZE_ACKED");
    }
    site.redis.start_again().unwrap();
    let said = site.assert_settled(server, &[before, meanwhile].concat());
    assert!(said.contains("[billing-finalize] DLQ store degraded: redis→memory (reason="), "{said}");
}

#[test]
fn health_does_not_wait_for_a_redis_that_hangs() {
    let site = Site::new(&[]);
    let server = site.serve(&[]);
    let mut client = server.client();
    let before = charge_many(&mut client, "before", 3);
    site.await_stored(&server, 3);
    site.signal(Signal::STOP);
    let said = billing(&server);
    assert_eq!((&said["dlq_size"], &said["dlq_aof_verified"]), (&Value::Null, &Value::Null), "{said}");
    assert_ne!(said["dlq_durable"], true);
    let meanwhile = charge_many(&mut client, "meanwhile", 3);
    await_said(&server, false, &Value::Null);
    site.signal(Signal::CONT);
    site.call_back_the_peer();
    site.assert_settled(server, &[before, meanwhile].concat());
}

#[test]
fn what_an_emptied_redis_has_lost_is_put_again_from_the_journal() {
    let site = Site::new(&[]);
    let server = site.serve(&[]);
    let charges = charge_many(&mut server.client(), "owed", 10);
    site.await_stored(&server, 10);
    assert_eq!(billing(&server)["dlq_losses"], 0);
    assert_eq!(site.ask("FLUSHALL"), "+OK\r\n");
    assert_eq!(billing(&server)["dlq_pending"], 10, "the journal owes them whatever Redis has");
    until(|| billing(&server), |billing| billing["dlq_losses"] == 1);
    site.await_stored(&server, 10);
    site.call_back_the_peer();
    let said = site.assert_settled(server, &charges);
    assert!(
        said.contains("[billing-finalize] DLQ STORE LOSS: redis does not have reservation_id=owed-0 any more"),
        "{said}"
    );
    assert!(said.contains("[billing-finalize] DLQ replay: replayed="), "{said}");
}

#[test]
fn dead_letters_that_redis_has_lost_are_tried_once_more_and_are_listed_again() {
    let site = Site::new(&[]);
    let server = site.serve(&[]);
    site.refuses.store(true, Ordering::SeqCst);
    let charges = charge_many(&mut server.client(), "owed", 3);
    site.call_back_the_peer();
    let are_dead = |billing: &Value| (&billing["dlq_pending"], &billing["dlq_dead"]) == (&json!(0), &json!(3));
    until(|| billing(&server), are_dead);
    assert_eq!(site.ask("FLUSHALL"), "+OK\r\n");
    assert_eq!(billing(&server)["dlq_dead"], 3, "the journal knows them whatever Redis has");
    until(|| site.ask("ZCARD finn:hounfour:dlq:dead"), |dead| dead == ":3\r\n");
    until(|| billing(&server), |billing| are_dead(billing) && billing["dlq_losses"] == 1);
    site.refuses.store(false, Ordering::SeqCst);
    assert_eq!(site.ask("FLUSHALL"), "+OK\r\n");
    let said = site.assert_settled(server, &charges);
    assert!(said.contains("DLQ STORE LOSS: redis does not have the dead letter reservation_id=owed-0"), "{said}");
}

#[test]
fn what_a_redis_has_lost_a_part_of_is_told_all_the_same() {
    for lost in ["schedule", "pending", "entry:owed-3", "entry:owed-0"] {
        let site = Site::new(&[]);
        let settings = [("HOLDFAST_PEER_CIRCUIT_FAILURES", "1"), ("HOLDFAST_PEER_CIRCUIT_REST_MS", "1000")];
        let server = site.serve(&settings);
        let charges = charge_many(&mut server.client(), "owed", 5);
        until(|| billing(&server), |billing| billing["circuit"] == "open" && billing["dlq_pending"] == 5);
        // The journal owes them before Redis has them all, and the one that was told is leased until it was given back.
        until(|| site.ask("ZCARD finn:hounfour:dlq:schedule"), |due| due == ":5\r\n");
        assert_eq!(site.ask(&format!("DEL finn:hounfour:dlq:{lost}")), ":1\r\n", "{lost}");
        site.call_back_the_peer();
        site.assert_settled(server, &charges);
    }
}

#[test]
fn a_redis_that_takes_nothing_is_not_durable_until_it_does_again() {
    for (spoil, mend) in
        [("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"), ("CONFIG SET maxmemory 1mb", "CONFIG SET maxmemory 0")]
    {
        let site = Site::new(&[]);
        let server = site.serve(&[]);
        let mut client = server.client();
        let before = charge_many(&mut client, "before", 5);
        site.await_stored(&server, 5);
        assert_eq!(site.ask(spoil), "+OK\r\n");
        let meanwhile = charge_many(&mut client, "meanwhile", 5);
        await_said(&server, false, &Value::Null);
        assert_eq!(state(&mut client, "meanwhile-4"), "FINALIZE_PENDING");
        assert_eq!(site.ask(mend), "+OK\r\n");
        site.await_stored(&server, 10);
        site.call_back_the_peer();
        site.assert_settled(server, &[before, meanwhile].concat());
    }
}

#[test]
fn a_redis_that_drops_what_does_not_fit_is_not_called_durable_and_loses_no_charge() {
    let site = Site::new(&["--maxmemory-policy", "allkeys-random"]);
    let server = site.serve(&[]);
    let charges = charge_many(&mut server.client(), "owed", 10);
    let said = until(|| billing(&server), |billing| billing["dlq_pending"] == 10);
    assert_eq!((&said["dlq_durable"], &said["dlq_aof_verified"]), (&json!(false), &json!(true)));
    // Less than it needs for itself: it drops all that it is asked to keep.
    assert_eq!(site.ask("CONFIG SET maxmemory 1mb"), "+OK\r\n");
    until(|| site.ask("DBSIZE"), |size| size == ":0\r\n");
    assert_eq!(site.ask("CONFIG SET maxmemory 0"), "+OK\r\n");
    assert_eq!(site.ask("CONFIG SET maxmemory-policy noeviction"), "+OK\r\n");
    until(|| billing(&server), |billing| billing["dlq_losses"].as_u64() > Some(0));
    site.await_stored(&server, 10);
    site.call_back_the_peer();
    site.assert_settled(server, &charges);
}

#[test]
fn a_redis_without_its_log_is_not_called_durable() {
    let site = Site::new(&["--appendonly", "no"]);
    let server = site.serve(&[]);
    let charges = charge_many(&mut server.client(), "owed", 3);
    await_said(&server, false, &json!(false));
    assert_eq!(site.ask("CONFIG SET appendonly yes"), "+OK\r\n");
    await_said(&server, true, &json!(true));
    site.call_back_the_peer();
    site.assert_settled(server, &charges);
}

#[test]
fn what_was_taken_back_before_the_peer_came_is_not_told_from_redis_either() {
    let site = Site::new(&[]);
    let server = site.serve(&[]);
    let mut client = server.client();
    let mut charges = charge_many(&mut client, "owed", 4);
    site.await_stored(&server, 4);
    let mistake = charges.remove(2);
    client.ok(json!({ "op": "void", "id": mistake, "reason": "by mistake" }));
    // What is in hand at this moment may be told yet; after a start, what the journal says is known before anything is.
    server.stop();
    assert_eq!(site.ask("ZCARD finn:hounfour:dlq:pending"), ":4\r\n", "Redis has it still");
    site.call_back_the_peer();
    site.assert_settled(site.serve(&[]), &charges);
}

#[test]
fn what_was_given_up_in_redis_by_a_program_that_died_at_once_is_given_up_in_the_journal_too() {
    let site = Site::new(&[]);
    let refusing = Peer::answering(|_, _| status(422));
    let redis = ("HOLDFAST_BILLING_OBLIGATIONS", &*site.redis.url());
    // Redis has the word, the journal has not.
    let server = serve(&site.world, &refusing.url, &[redis, ("HOLDFAST_FAILPOINT", "delivery.before_ack:1")]);
    charge(&mut server.client(), "torn");
    server.wait();
    assert_eq!(site.ask("ZCARD finn:hounfour:dlq:dead"), ":1\r\n");
    let server = serve(&site.world, &refusing.url, &[redis]);
    becomes(&mut server.client(), "torn", "FINALIZE_FAILED");
    until(|| billing(&server), |billing| billing["dlq_dead"] == 1 && billing["dlq_pending"] == 0);
    server.stop();
    assert_eq!(refusing.told(0).len(), 1, "a dead letter is not told by itself");
}
