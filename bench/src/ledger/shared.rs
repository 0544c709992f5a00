//! Holdfast on PostgreSQL: one node, or three that share the database, each with a queue and connections of its own.

use super::drive::{Books, Caller, drive, runtime};
use super::holdfast::{applied, commit, mint, reserve};
use super::work::{FUNDS, Order, PAYERS};
use super::{Case, Measured, Outcome};
use crate::error::BenchError;
use crate::plan::Plan;
use crate::servers::postgres::{Cluster, installed};
use holdfast_adapters::postgres::ledger::{LANES, Observer, Rules, Settles, Trouble};
use holdfast_adapters::postgres::{self, Database, PostgresLedger};
use holdfast_engine::{Limits, Request};
use std::path::Path;
use std::sync::Arc;

/// What it is.
#[must_use]
pub fn about() -> String {
    format!("{} on PostgreSQL, {LANES} connections a node, no peer to tell", env!("CARGO_PKG_VERSION"))
}

/// What it is with a peer.
#[must_use]
pub fn about_owing() -> String {
    format!("{} on PostgreSQL, each commit owed to a peer by the same transaction", env!("CARGO_PKG_VERSION"))
}

/// Runs one case with one node.
///
/// # Errors
/// If the cluster or the engine fails, or its books do not balance.
pub fn one_node(case: Case, dir: &Path, plan: &Plan) -> Result<Outcome, BenchError> {
    measure(1, Settles::No, case, dir, plan)
}

/// Runs one case with one node that owes each commit to a peer, as one that is served does; nobody delivers it meanwhile.
///
/// # Errors
/// If the cluster or the engine fails, or its books do not balance.
pub fn one_node_owing(case: Case, dir: &Path, plan: &Plan) -> Result<Outcome, BenchError> {
    measure(1, Settles::Yes, case, dir, plan)
}

/// Runs one case with three nodes, to which callers go in turns.
///
/// # Errors
/// If the cluster or the engine fails, or its books do not balance.
pub fn three_nodes(case: Case, dir: &Path, plan: &Plan) -> Result<Outcome, BenchError> {
    measure(3, Settles::No, case, dir, plan)
}

fn measure(nodes: usize, settles: Settles, case: Case, dir: &Path, plan: &Plan) -> Result<Outcome, BenchError> {
    if installed().is_none() {
        return Ok(Outcome::Missing("PostgreSQL 15 or newer is not installed".to_owned()));
    }
    let cluster = Cluster::start(dir)?;
    runtime()?.block_on(run(&cluster, (nodes, settles), case, plan)).map(Outcome::Measured)
}

/// Nobody listens: what fails shows in the answers.
struct Deaf;

impl Observer for Deaf {
    fn trouble(&self, _: &Trouble) {}
}

fn failed(error: impl std::fmt::Display) -> BenchError {
    BenchError::NotApplied(error.to_string())
}

async fn run(
    cluster: &Cluster,
    (count, settles): (usize, Settles),
    case: Case,
    plan: &Plan,
) -> Result<Measured, BenchError> {
    let mut admin = cluster.connect().await?;
    postgres::migrate(&mut admin, &postgres::ALL).await.map_err(failed)?;
    let mut nodes = Vec::new();
    for _ in 0..count {
        let database = Database::at(&cluster.url(), None).map_err(failed)?;
        let rules = Rules { limits: Limits { open_holds: 1_000_000 }, settles, lanes: LANES };
        nodes.push(Arc::new(PostgresLedger::open(database, rules, Arc::new(Deaf)).await.map_err(failed)?));
    }
    let first = nodes.first().ok_or_else(|| failed("no node"))?;
    for from in (0..PAYERS).step_by(5_000) {
        let mints = (from..PAYERS.min(from + 5_000)).map(|payer| mint(payer, FUNDS)).collect();
        first.submit_batch(mints).await.map_err(failed)?.into_iter().try_for_each(applied)?;
    }
    // As for the peer: founding is not the work.
    admin.batch_execute("VACUUM ANALYZE").await?;
    admin.batch_execute("CHECKPOINT").await?;
    let callers = nodes.iter().cycle().take(case.callers).map(|node| Asker { node: Arc::clone(node) });
    let driven = drive(callers.collect(), case, plan).await?;
    let totals = first.totals().await.map_err(failed)?;
    let standing = first.standing(0).await.map_err(failed)?;
    driven.proven_by(Books { left: standing.available.units(), revenue: totals.revenue.units().unsigned_abs() })
}

struct Asker {
    node: Arc<PostgresLedger>,
}

impl Caller for Asker {
    async fn reserve(&mut self, orders: &[Order]) -> Result<(), BenchError> {
        self.send(orders, reserve).await
    }

    async fn commit(&mut self, orders: &[Order]) -> Result<(), BenchError> {
        self.send(orders, commit).await
    }
}

impl Asker {
    async fn send(&self, orders: &[Order], request: fn(&Order) -> Request) -> Result<(), BenchError> {
        if let [order] = orders {
            return applied(self.node.submit(request(order)).await);
        }
        let answers = self.node.submit_batch(orders.iter().map(request).collect()).await.map_err(failed)?;
        answers.into_iter().try_for_each(applied)
    }
}
