//! Redis as a ledger: one Lua script per operation, `appendfsync always`, pipelines for batches.

use super::drive::{Books, CONNECTIONS, Caller, drive, runtime};
use super::work::{FUNDS, HELD, Order, PAYERS};
use super::{Case, Measured, Outcome};
use crate::error::BenchError;
use crate::head::said;
use crate::plan::Plan;
use crate::servers::find_program;
use crate::servers::redis::Redis;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, cmd};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

const PROGRAM: &str = "redis-server";
const REVENUE: &str = "revenue";

/// What it is.
#[must_use]
pub fn about() -> String {
    if find_program(PROGRAM).is_none() {
        return "not installed".to_owned();
    }
    let version = said(PROGRAM, &["--version"], Path::new("/"));
    let version = version.split(' ').find_map(|word| word.strip_prefix("v=")).unwrap_or("unknown").to_owned();
    format!(
        "Redis {version}, a Lua script per operation, appendfsync always, loopback TCP, at most {CONNECTIONS} connections"
    )
}

/// Runs one case in a server of its own.
///
/// # Errors
/// If the server fails, or its books do not balance.
pub fn measure(case: Case, dir: &Path, plan: &Plan) -> Result<Outcome, BenchError> {
    if find_program(PROGRAM).is_none() {
        return Ok(Outcome::Missing(format!("{PROGRAM} is not installed")));
    }
    let server = Redis::start(dir)?;
    runtime()?.block_on(run(&server, case, plan)).map(Outcome::Measured)
}

async fn run(server: &Redis, case: Case, plan: &Plan) -> Result<Measured, BenchError> {
    let mut admin = server.connect().await?;
    let scripts = Arc::new(found(&mut admin).await?);
    let mut connections = Vec::new();
    for _ in 0..case.callers.min(CONNECTIONS) {
        connections.push(server.connect().await?);
    }
    let callers = connections.iter().cycle().take(case.callers);
    let callers = callers.map(|connection| Asker { connection: connection.clone(), scripts: Arc::clone(&scripts) });
    let driven = drive(callers.collect(), case, plan).await?;
    driven.proven_by(books(&mut admin).await?)
}

async fn found(admin: &mut MultiplexedConnection) -> Result<Scripts, BenchError> {
    let settings: HashMap<String, String> = cmd("CONFIG").arg("GET").arg("append*").query_async(admin).await?;
    for (setting, value) in [("appendonly", "yes"), ("appendfsync", "always")] {
        if settings.get(setting).is_none_or(|found| found != value) {
            return Err(BenchError::NotApplied(format!("{setting} is not {value}")));
        }
    }
    let mut fund = cmd("MSET");
    for payer in 0..PAYERS {
        fund.arg(account(payer)).arg(FUNDS);
    }
    fund.exec_async(admin).await?;
    let load = |script: &str| cmd("SCRIPT").arg("LOAD").arg(script).to_owned();
    let reserve = load(include_str!("reserve.lua")).query_async(admin).await?;
    let commit = load(include_str!("commit.lua")).query_async(admin).await?;
    Ok(Scripts { reserve, commit })
}

async fn books(admin: &mut MultiplexedConnection) -> Result<Books, BenchError> {
    let mut balances = cmd("MGET");
    for payer in 0..PAYERS {
        balances.arg(account(payer));
    }
    let balances: Vec<u64> = balances.query_async(admin).await?;
    let revenue: u64 = cmd("GET").arg(REVENUE).query_async(admin).await?;
    Ok(Books { left: balances.into_iter().sum(), revenue })
}

fn account(payer: u64) -> String {
    format!("a:{payer}")
}

/// The digests that `EVALSHA` takes.
struct Scripts {
    reserve: String,
    commit: String,
}

struct Asker {
    connection: MultiplexedConnection,
    scripts: Arc<Scripts>,
}

impl Caller for Asker {
    async fn reserve(&mut self, orders: &[Order]) -> Result<(), BenchError> {
        let sha = Arc::clone(&self.scripts);
        let request = |order: &Order| {
            let hold = format!("h:{}", order.hold);
            cmd("EVALSHA").arg(&sha.reserve).arg(2).arg(account(order.payer)).arg(hold).arg(HELD).to_owned()
        };
        self.ask(orders.iter().map(request)).await
    }

    async fn commit(&mut self, orders: &[Order]) -> Result<(), BenchError> {
        let sha = Arc::clone(&self.scripts);
        let request = |order: &Order| {
            let hold = format!("h:{}", order.hold);
            cmd("EVALSHA").arg(&sha.commit).arg(2).arg(hold).arg(REVENUE).arg(order.actual).to_owned()
        };
        self.ask(orders.iter().map(request)).await
    }
}

impl Asker {
    async fn ask(&mut self, requests: impl ExactSizeIterator<Item = Cmd>) -> Result<(), BenchError> {
        let mut pipeline = Pipeline::with_capacity(requests.len());
        for request in requests {
            pipeline.add_command(request);
        }
        let answers: Vec<u8> = pipeline.query_async(&mut self.connection).await?;
        let new = answers.iter().filter(|answer| **answer == 1).count();
        if new == pipeline.len() {
            return Ok(());
        }
        Err(BenchError::NotApplied(format!("{new} of {} were new", pipeline.len())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::Sandbox;

    /// The peer must do the same work as we do, or beating it means nothing.
    async fn check_is_a_ledger(asker: &mut Asker, batch: usize) {
        let order = |offset: usize| Order { hold: (batch * 100 + offset) as u64, payer: 7, actual: 400 };
        let orders: Vec<Order> = (0..batch).map(order).collect();
        let replay = format!("0 of {batch} were new");
        asker.reserve(&orders).await.unwrap();
        assert!(asker.reserve(&orders).await.unwrap_err().to_string().contains(&replay));
        let other: Vec<Order> = orders.iter().map(|order| Order { payer: 8, ..*order }).collect();
        assert!(asker.reserve(&other).await.unwrap_err().to_string().contains("another body"));

        asker.commit(&orders).await.unwrap();
        assert!(asker.commit(&orders).await.unwrap_err().to_string().contains(&replay));
        assert!(asker.reserve(&orders).await.unwrap_err().to_string().contains(&replay));
        let other: Vec<Order> = orders.iter().map(|order| Order { actual: 401, ..*order }).collect();
        assert!(asker.commit(&other).await.unwrap_err().to_string().contains("another amount"));

        let poor: Vec<Order> = (0..batch).map(|offset| Order { payer: PAYERS, ..order(50 + offset) }).collect();
        assert!(asker.reserve(&poor).await.unwrap_err().to_string().contains("too little"));
    }

    #[test]
    fn it_refuses_overdrafts_and_applies_each_operation_once() {
        let sandbox =
            Sandbox::new(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/bench-tests/redis"))).unwrap();
        let server = Redis::start(&sandbox.fresh("data").unwrap()).unwrap();
        runtime().unwrap().block_on(async {
            let mut admin = server.connect().await.unwrap();
            let scripts = Arc::new(found(&mut admin).await.unwrap());
            let mut asker = Asker { connection: server.connect().await.unwrap(), scripts };
            check_is_a_ledger(&mut asker, 1).await;
            check_is_a_ledger(&mut asker, 3).await;
            assert_eq!(books(&mut admin).await.unwrap(), Books { left: PAYERS * FUNDS - 4 * 400, revenue: 4 * 400 });
        });
    }
}
