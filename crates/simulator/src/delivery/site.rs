//! Where the run takes place: the server and its store, the peer, and the blows that fall.

use super::Options;
use super::charger::{Charger, ask};
use super::judge::Ours;
use super::plan::Plan;
use crate::outside::OutsideError;
use crate::outside::gateway::{Gateway, Launch};
use crate::outside::operator::Operator;
use crate::peer::{self, Book, Peer};
use crate::rng::Rng;
use crate::servers::{Mode, RedisServer};
use holdfast_domain::CreditUnit;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const MINTED: &str = "1000000";
/// One charge in so many is refused by the peer, until it relents.
const REFUSED_ONE_IN: u64 = 500;
/// If nothing moves for so long, nothing will.
const STALLED_AFTER: Duration = Duration::from_secs(90);
const LOOK_EVERY: Duration = Duration::from_millis(3);
const ASK_EVERY: Duration = Duration::from_millis(50);
const STOP_WITHIN: Duration = Duration::from_secs(40);
/// A blow falls up to so many milliseconds after it is due, so that it falls anywhere.
const BLOW_SPREAD_MS: u64 = 40;

/// Where obligations wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Store {
    /// In the file that is derived from the journal.
    Journal,
    /// In memory, which every kill empties.
    Memory,
    /// In a Redis, which is killed too.
    Redis,
}

/// The server and all that belongs to it.
pub(super) struct Site {
    launch: Launch,
    operator: Operator,
    gateway: Option<Gateway>,
    redis: Option<RedisServer>,
    peer: Peer,
    rng: Rng,
    is_planted: bool,
    pub(super) store_kills: u64,
}

impl Site {
    pub(super) fn start(options: &Options, rng: Rng) -> Result<Self, OutsideError> {
        let hostile = peer::Options::hostile(options.seed);
        // Memory forgets its dead letters with the process, so nobody could bring them back.
        let refuses_one_in = (options.store != Store::Memory).then_some(REFUSED_ONE_IN);
        let behaviour = peer::Options { refuses_one_in, plant: options.plant, ..hostile };
        let peer = Peer::start(behaviour).map_err(OutsideError::io("start the peer"))?;
        let redis = match options.store {
            Store::Redis => Some(start_redis(&options.directory.join("redis"))?),
            Store::Journal | Store::Memory => None,
        };
        let place = match (options.store, &redis) {
            (Store::Memory, _) => "memory".to_owned(),
            (Store::Journal | Store::Redis, None) => "journal".to_owned(),
            (Store::Journal | Store::Redis, Some(redis)) => redis.url(),
        };
        let config = configure(&options.directory, &peer.url, &place)?;
        let data = options.directory.join("data");
        let operator = Operator::of(options.holdfast.clone(), data.clone());
        let stderr = options.directory.join("stderr.txt");
        let launch = Launch::new(options.holdfast.clone(), data, config, stderr);
        let gateway = Some(launch.start()?);
        let minted = MINTED.parse().map_err(|_| OutsideError::answered("the mint", "an amount that is none"))?;
        for account in Plan::accounts() {
            operator.mint(&account, minted)?;
        }
        let is_planted = options.plant.is_some();
        Ok(Self { launch, operator, gateway, redis, peer, rng, is_planted, store_kills: 0 })
    }

    fn socket(&self) -> PathBuf {
        self.launch.data.join("holdfast.sock")
    }

    /// Makes all charges, with all blows while they are made and delivered. How long the making took.
    pub(super) fn charge_and_kill(&mut self, plan: &Plan, kills: u64) -> Result<Duration, OutsideError> {
        let charger = Charger { socket: self.socket(), done: AtomicU64::new(0), stop: AtomicBool::new(false) };
        let total = plan.holds.len() as u64 + plan.committed();
        let began = Instant::now();
        thread::scope(|scope| {
            let charging = scope.spawn(|| charger.run(plan).map(|()| began.elapsed()));
            let struck = (1..=kills).try_for_each(|number| {
                let moved = || charger.done.load(Ordering::Relaxed) + self.peer.applied();
                let due = total * number / (kills + 1);
                wait_while("the next kill", moved, |moved| moved < due)?;
                self.strike(number)
            });
            if struck.is_err() {
                charger.stop.store(true, Ordering::Relaxed);
            }
            let charged = charging.join().unwrap_or_else(|_| Err("the charger panicked".to_owned()));
            struck.and_then(|()| charged.map_err(|said| OutsideError::answered("the server", said)))
        })
    }

    /// Kills the server as `kill -9` does, and its Redis every second time, and starts them again.
    fn strike(&mut self, number: u64) -> Result<(), OutsideError> {
        thread::sleep(Duration::from_millis(self.rng.below(BLOW_SPREAD_MS)));
        if let Some(redis) = self.redis.as_mut().filter(|_| number.is_multiple_of(2)) {
            redis.kill();
            self.store_kills += 1;
            thread::sleep(Duration::from_millis(self.rng.below(BLOW_SPREAD_MS)));
            redis.start_again().map_err(|error| OutsideError::answered("redis", error.to_string()))?;
            return Ok(());
        }
        self.gateway = None;
        self.gateway = Some(self.launch.start()?);
        Ok(())
    }

    /// Waits until nothing is owed any more of `committed` charges, and replays what died. How many those were. A server that
    /// was just started may not know yet of all that it owes, so the peer must have them too; one with a bug never does.
    pub(super) fn until_settled(&mut self, committed: u64) -> Result<u64, OutsideError> {
        let expected = if self.is_planted { 0 } else { committed };
        let applied = || self.peer.applied();
        self.wait_outstanding(|(pending, dead)| pending > 0 || applied() + dead < expected)?;
        self.peer.relent();
        let revived = self.operator.replay_all()?;
        self.wait_outstanding(|outstanding| outstanding != (0, 0) || applied() < expected)?;
        Ok(revived)
    }

    fn wait_outstanding(&self, still: impl Fn((u64, u64)) -> bool) -> Result<(), OutsideError> {
        let mut seen = (u64::MAX, u64::MAX, u64::MAX);
        let mut since = Instant::now();
        loop {
            // A store that is being started again does not answer for a while.
            let (pending, dead) = self.outstanding()?.unwrap_or((u64::MAX, u64::MAX));
            if pending < u64::MAX && !still((pending, dead)) {
                return Ok(());
            }
            let now = (pending, dead, self.peer.calls());
            if now != seen {
                (seen, since) = (now, Instant::now());
            } else if since.elapsed() > STALLED_AFTER {
                let what = format!("delivery of {pending} pending with {dead} dead");
                return Err(OutsideError::TooLate { what, seconds: STALLED_AFTER.as_secs() });
            }
            thread::sleep(ASK_EVERY);
        }
    }

    /// What is pending, and what is dead; `None` if the server cannot say now.
    fn outstanding(&self) -> Result<Option<(u64, u64)>, OutsideError> {
        let question = json!({ "op": "obligations", "list": "dead", "limit": 1 });
        let answer = ask(&self.socket(), &question).map_err(OutsideError::io("ask for obligations"))?;
        let count = |field| answer.get(field).and_then(Value::as_u64);
        match (count("pending").zip(count("dead")), answer["error"]["code"].as_str()) {
            (Some(outstanding), _) => Ok(Some(outstanding)),
            (None, Some(code)) if code.starts_with("SERVICE_") => Ok(None),
            (None, _) => Err(OutsideError::answered("obligations", answer.to_string())),
        }
    }

    /// Has the server stop in order, and its journal checked.
    pub(super) fn stop(&mut self) -> Result<(), OutsideError> {
        if let Some(mut gateway) = self.gateway.take() {
            gateway.stop(STOP_WITHIN)?;
        }
        self.operator.verify()
    }

    pub(super) fn book(&self) -> Book {
        self.peer.book()
    }

    /// Every charge, as the journal tells it.
    pub(super) fn journal(&self) -> Result<HashMap<String, Ours>, OutsideError> {
        let mut all: HashMap<String, Ours> = HashMap::new();
        self.operator.each_entry(|line| {
            let entry: Entry = serde_json::from_str(line).map_err(|error| format!("{error}: {line}"))?;
            entry.add_to(&mut all)
        })?;
        Ok(all)
    }
}

/// What of an entry the judge needs.
#[derive(Deserialize)]
struct Entry {
    kind: String,
    correlation_id: String,
    account: String,
    state: String,
    charged_cu: Option<String>,
}

impl Entry {
    fn add_to(self, all: &mut HashMap<String, Ours>) -> Result<(), String> {
        if !self.kind.starts_with("billing_") {
            return Ok(());
        }
        let ours = all.entry(self.correlation_id).or_default();
        (ours.account, ours.state) = (self.account, self.state);
        ours.acks += u64::from(self.kind == "billing_finalize_ack");
        if let Some(charged) = self.charged_cu {
            let charged: CreditUnit = charged.parse().map_err(|_| format!("{charged} is no amount"))?;
            ours.charged += charged.units();
        }
        Ok(())
    }
}

/// Waits while `still` holds of what `look` sees; not for ever if that does not change.
fn wait_while(what: &str, look: impl Fn() -> u64, still: impl Fn(u64) -> bool) -> Result<(), OutsideError> {
    let (mut seen, mut since) = (u64::MAX, Instant::now());
    loop {
        let now = look();
        if !still(now) {
            return Ok(());
        }
        if now != seen {
            (seen, since) = (now, Instant::now());
        } else if since.elapsed() > STALLED_AFTER {
            return Err(OutsideError::TooLate { what: what.to_owned(), seconds: STALLED_AFTER.as_secs() });
        }
        thread::sleep(LOOK_EVERY);
    }
}

fn start_redis(directory: &Path) -> Result<RedisServer, OutsideError> {
    fs::create_dir_all(directory).map_err(OutsideError::io("make a directory"))?;
    let settings = ["--appendfsync", "always", "--maxmemory-policy", "noeviction"];
    RedisServer::start(directory, Mode::Plain, &settings)
        .map_err(|error| OutsideError::answered("redis", error.to_string()))
}

/// Short pauses and a short patience: a run has seconds where a schedule has minutes. What is terminal dies all the same.
fn configure(directory: &Path, peer: &str, store: &str) -> Result<PathBuf, OutsideError> {
    let slow = ["200"; 80].join(",");
    let config = format!(
        "[peer]\nurl = \"{peer}\"\ntimeout_ms = 1000\nretry_quick_ms = \"5,10,20,50\"\nretry_slow_ms = \"{slow}\"\n\
         circuit_failures = 40\ncircuit_rest_ms = 50\n\n[billing]\nobligations = \"{store}\"\n"
    );
    let path = directory.join("holdfast.toml");
    fs::write(&path, config).map_err(OutsideError::io("write the configuration"))?;
    Ok(path)
}
