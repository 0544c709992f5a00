//! PostgreSQL as a ledger: one function per operation (`postgres.sql`), sets for batches, defaults with `fsync` on.

use super::drive::{Books, CONNECTIONS, Caller, drive, runtime};
use super::work::{FUNDS, HELD, Order, PAYERS};
use super::{Case, Measured, Outcome};
use crate::error::BenchError;
use crate::head::said;
use crate::plan::Plan;
use crate::servers::postgres::{Cluster, installed};
use std::path::Path;
use std::sync::Arc;
use tokio_postgres::{Client, Statement};

/// How many holds there were before the clock starts.
const PAST: u64 = 20_000;

/// What it is.
#[must_use]
pub fn about() -> String {
    let version = installed().map(|bin| said(&bin.join("postgres").to_string_lossy(), &["--version"], &bin));
    version.map_or_else(
        || "not installed".to_owned(),
        |version| {
            format!("{version}, a PL/pgSQL function per operation, loopback TCP, at most {CONNECTIONS} connections")
        },
    )
}

/// Runs one case in a cluster of its own.
///
/// # Errors
/// If the cluster fails, or its books do not balance.
pub fn measure(case: Case, dir: &Path, plan: &Plan) -> Result<Outcome, BenchError> {
    if installed().is_none() {
        return Ok(Outcome::Missing("PostgreSQL 15 or newer is not installed".to_owned()));
    }
    let cluster = Cluster::start(dir)?;
    runtime()?.block_on(run(&cluster, case, plan)).map(Outcome::Measured)
}

async fn run(cluster: &Cluster, case: Case, plan: &Plan) -> Result<Measured, BenchError> {
    let admin = cluster.connect().await?;
    found(&admin).await?;
    let mut connections = Vec::new();
    for _ in 0..case.callers.min(CONNECTIONS) {
        connections.push(Arc::new(Connection::prepare(cluster.connect().await?, case).await?));
    }
    // Callers that share a connection pipeline on it; each operation is still a transaction of its own.
    let callers = connections.iter().cycle().take(case.callers);
    let callers = callers.map(|connection| Asker { connection: Arc::clone(connection), batch: case.batch });
    let driven = drive(callers.collect(), case, plan).await?;
    driven.proven_by(books(&admin).await?)
}

pub(super) async fn found(admin: &Client) -> Result<(), BenchError> {
    for (setting, value) in [("fsync", "on"), ("synchronous_commit", "on"), ("full_page_writes", "on")] {
        let row = admin.query_one(&format!("SHOW {setting}"), &[]).await?;
        if row.try_get::<_, &str>(0)? != value {
            return Err(BenchError::NotApplied(format!("{setting} is not {value}")));
        }
    }
    admin.batch_execute(include_str!("postgres.sql")).await?;
    let fund = format!("INSERT INTO account SELECT payer, {FUNDS} FROM generate_series(0, {PAYERS} - 1) AS payer");
    admin.batch_execute(&fund).await?;
    // A past of holds that were given back: connections keep the plans of their first calls, and those made for an empty table
    // read all of it later.
    let past = format!(
        "INSERT INTO hold SELECT -past, past % {PAYERS}, {HELD}, 0 FROM generate_series(1, {PAST}) AS past;
         INSERT INTO entry SELECT -past, leg, past % {PAYERS}, {HELD}
             FROM generate_series(1, {PAST}) AS past, unnest('{{reserved,returned}}'::leg[]) AS leg"
    );
    admin.batch_execute(&past).await?;
    // Founding is not the work: its dirty pages and missing statistics must not weigh on the figures.
    admin.batch_execute("VACUUM ANALYZE").await?;
    Ok(admin.batch_execute("CHECKPOINT").await?)
}

async fn books(admin: &Client) -> Result<Books, BenchError> {
    let row = admin.query_one(
        "SELECT (SELECT sum(available)::bigint FROM account),
                (SELECT coalesce(sum(amount), 0)::bigint FROM entry WHERE leg = 'earned')",
        &[],
    );
    let row = row.await?;
    let [left, revenue] = [row.try_get::<_, i64>(0)?, row.try_get(1)?].map(i64::cast_unsigned);
    Ok(Books { left, revenue })
}

struct Connection {
    client: Client,
    reserve: Statement,
    commit: Statement,
}

impl Connection {
    async fn prepare(client: Client, case: Case) -> Result<Self, BenchError> {
        let (reserve, commit) = match case.batch {
            1 => ("SELECT reserve($1, $2, $3)", "SELECT commit($1, $2)"),
            _ => ("SELECT reserve_batch($1, $2, $3)", "SELECT commit_batch($1, $2)"),
        };
        let reserve = client.prepare(reserve).await?;
        let commit = client.prepare(commit).await?;
        Ok(Self { client, reserve, commit })
    }
}

struct Asker {
    connection: Arc<Connection>,
    batch: usize,
}

impl Caller for Asker {
    async fn reserve(&mut self, orders: &[Order]) -> Result<(), BenchError> {
        let Connection { client, reserve, .. } = &*self.connection;
        let held = HELD.cast_signed();
        if let (1, [order]) = (self.batch, orders) {
            let row =
                client.query_one(reserve, &[&order.payer.cast_signed(), &order.hold.cast_signed(), &held]).await?;
            return all_new(i64::from(row.try_get::<_, bool>(0)?), 1);
        }
        let [payers, holds] = [column(orders, |order| order.payer), column(orders, |order| order.hold)];
        let row = client.query_one(reserve, &[&payers, &holds, &vec![held; orders.len()]]).await?;
        all_new(row.try_get(0)?, orders.len())
    }

    async fn commit(&mut self, orders: &[Order]) -> Result<(), BenchError> {
        let Connection { client, commit, .. } = &*self.connection;
        if let (1, [order]) = (self.batch, orders) {
            let row = client.query_one(commit, &[&order.hold.cast_signed(), &order.actual.cast_signed()]).await?;
            return all_new(i64::from(row.try_get::<_, bool>(0)?), 1);
        }
        let [holds, actuals] = [column(orders, |order| order.hold), column(orders, |order| order.actual)];
        let row = client.query_one(commit, &[&holds, &actuals]).await?;
        all_new(row.try_get(0)?, orders.len())
    }
}

fn column(orders: &[Order], field: fn(&Order) -> u64) -> Vec<i64> {
    orders.iter().map(|order| field(order).cast_signed()).collect()
}

fn all_new(new: i64, asked: usize) -> Result<(), BenchError> {
    if usize::try_from(new) == Ok(asked) {
        return Ok(());
    }
    Err(BenchError::NotApplied(format!("{new} of {asked} were new")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::Sandbox;

    async fn asker(cluster: &Cluster, batch: usize) -> Asker {
        let client = cluster.connect().await.unwrap();
        let connection = Connection::prepare(client, Case { callers: 1, batch }).await.unwrap();
        Asker { connection: Arc::new(connection), batch }
    }

    /// The peer must do the same work as we do, or beating it means nothing.
    async fn check_is_a_ledger(cluster: &Cluster, batch: usize) {
        let mut asker = asker(cluster, batch).await;
        let order = |offset: usize| Order { hold: (batch * 100 + offset) as u64, payer: 7, actual: 400 };
        let orders: Vec<Order> = (0..batch).map(order).collect();
        asker.reserve(&orders).await.unwrap();
        let again = asker.reserve(&orders).await.unwrap_err().to_string();
        assert!(again.contains(&format!("0 of {batch} were new")), "{again}");
        let other: Vec<Order> = orders.iter().map(|order| Order { payer: 8, ..*order }).collect();
        assert!(asker.reserve(&other).await.unwrap_err().to_string().contains("another body"));

        asker.commit(&orders).await.unwrap();
        let again = asker.commit(&orders).await.unwrap_err().to_string();
        assert!(again.contains(&format!("0 of {batch} were new")), "{again}");
        let other: Vec<Order> = orders.iter().map(|order| Order { actual: 401, ..*order }).collect();
        assert!(asker.commit(&other).await.unwrap_err().to_string().contains("cannot be committed"));

        let poor: Vec<Order> = (0..batch).map(|offset| Order { payer: PAYERS, ..order(50 + offset) }).collect();
        assert!(asker.reserve(&poor).await.unwrap_err().to_string().contains("too little"));
    }

    #[test]
    fn it_refuses_overdrafts_and_applies_each_operation_once() {
        let sandbox =
            Sandbox::new(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/bench-tests/postgres"))).unwrap();
        let cluster = Cluster::start(&sandbox.fresh("data").unwrap()).unwrap();
        runtime().unwrap().block_on(async {
            let admin = cluster.connect().await.unwrap();
            found(&admin).await.unwrap();
            check_is_a_ledger(&cluster, 1).await;
            check_is_a_ledger(&cluster, 3).await;
            assert_eq!(books(&admin).await.unwrap(), Books { left: PAYERS * FUNDS - 4 * 400, revenue: 4 * 400 });
        });
    }
}
