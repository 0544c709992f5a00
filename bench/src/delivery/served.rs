//! The real server, telling a fast peer beside it: how long a commit takes with a peer and without, and how many charges
//! reach the peer in a second.

use super::block_on;
use crate::error::BenchError;
use crate::latency::Latencies;
use crate::plan::Plan;
use crate::servers::holdfast::Served;
use crate::servers::line::{Line, commit, mint, reserve};
use crate::servers::postgres::Cluster;
use crate::servers::redis::Redis;
use holdfast_adapters::postgres;
use holdfast_simulator::peer::{Options, Peer};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// The peer must be told within this time of the last commit.
const TOLD_WITHIN: Duration = Duration::from_secs(600);
/// Whose holds they are.
const ACCOUNTS: u64 = 1_000;

/// Where charges wait for the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    NoPeer,
    Memory,
    Journal,
    Redis,
    Postgres,
}

impl Mode {
    pub(super) const ALL: [Self; 5] = [Self::NoPeer, Self::Memory, Self::Journal, Self::Redis, Self::Postgres];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::NoPeer => "no peer",
            Self::Memory => "memory",
            Self::Journal => "journal",
            Self::Redis => "redis",
            Self::Postgres => "postgres",
        }
    }
}

/// What a server did in one mode.
pub(super) struct Figures {
    pub(super) commit: (Duration, Duration),
    /// Charges that the peer was told of, in a second; `None` without one.
    pub(super) delivered_per_second: Option<f64>,
}

/// Commits one by one for a while, and then so many `charges` as fast as they go.
pub(super) fn measure(mode: Mode, charges: u64, dir: &Path, plan: &Plan) -> Result<Figures, BenchError> {
    let peer = Peer::start(Options::honest()).map_err(BenchError::io("start a peer"))?;
    let store_dir = dir.join("store");
    fs::create_dir(&store_dir).map_err(BenchError::io("make a directory"))?;
    let redis = if mode == Mode::Redis { Some(Redis::start(&store_dir)?) } else { None };
    let cluster = if mode == Mode::Postgres { Some(migrated(&store_dir)?) } else { None };
    let url = redis.as_ref().map(Redis::url).or_else(|| cluster.as_ref().map(Cluster::url));
    let store = url.unwrap_or_else(|| mode.name().to_owned());
    let settings = [("HOLDFAST_PEER_URL", peer.url.as_str()), ("HOLDFAST_BILLING_OBLIGATIONS", store.as_str())];
    let settings = if mode == Mode::NoPeer { &[][..] } else { &settings[..] };
    let served = Served::start(dir, &dir.join("data"), settings)?;
    let mut line = Line::connect(&served.socket)?;
    line.send_all(ACCOUNTS, 0, plan, mint)?;
    let payer = |pair: u64| pair % ACCOUNTS;
    let mut pairs = 0;
    let mut commits = |line: &mut Line, duration: Duration| {
        let (mut latencies, began) = (Latencies::default(), Instant::now());
        while began.elapsed() < duration {
            plan.stop.check()?;
            line.send_one(pairs, |text, pair| reserve(text, pair, payer(pair)))?;
            let sent = Instant::now();
            line.send_one(pairs, commit)?;
            latencies.record(sent.elapsed());
            pairs += 1;
        }
        Ok::<_, BenchError>(latencies)
    };
    commits(&mut line, plan.warm_up)?;
    let commit = commits(&mut line, plan.duration)?.p50_and_p99();
    if mode == Mode::NoPeer {
        return Ok(Figures { commit, delivered_per_second: None });
    }
    reached(&peer, pairs)?;
    let began = Instant::now();
    line.settle(pairs..pairs + charges, payer, plan)?;
    reached(&peer, pairs + charges)?;
    let delivered_per_second = Some(charges as f64 / began.elapsed().as_secs_f64());
    Ok(Figures { commit, delivered_per_second })
}

/// A cluster with the payment outbox in it.
fn migrated(dir: &Path) -> Result<Cluster, BenchError> {
    let cluster = Cluster::start(dir)?;
    block_on(async {
        let migrated = postgres::migrate(&mut cluster.connect().await?, &postgres::ALL).await;
        migrated.map(drop).map_err(|error| BenchError::NotApplied(error.to_string()))
    })?;
    Ok(cluster)
}

/// Waits until the peer was told of so many charges.
fn reached(peer: &Peer, charges: u64) -> Result<(), BenchError> {
    let told = async { tokio::time::timeout(TOLD_WITHIN, peer.wait_applied(charges)).await };
    let late = |_| BenchError::NotApplied(format!("the peer knows {} of {charges} charges", peer.applied()));
    block_on(async { told.await.map_err(late) })
}
