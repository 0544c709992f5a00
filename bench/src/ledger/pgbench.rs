//! The same functions as the peer's (`postgres.sql`), driven by PostgreSQL's own `pgbench`: the least that asking can cost.

use super::drive::CONNECTIONS;
use super::postgres::found;
use super::work::{HELD, PAYERS};
use super::{Case, Outcome};
use crate::error::BenchError;
use crate::latency::Latencies;
use crate::ledger::Measured;
use crate::ledger::drive::runtime;
use crate::plan::Plan;
use crate::servers::postgres::{Cluster, installed};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// What it is.
#[must_use]
pub fn about() -> String {
    format!(
        "pgbench, a PL/pgSQL function per operation, prepared, at most {CONNECTIONS} connections; times are of pairs, halved"
    )
}

/// Runs one case in a cluster of its own.
///
/// # Errors
/// If the cluster or pgbench fails.
pub fn measure(case: Case, dir: &Path, plan: &Plan) -> Result<Outcome, BenchError> {
    let Some(bin) = installed() else {
        return Ok(Outcome::Missing("PostgreSQL 15 or newer is not installed".to_owned()));
    };
    if case.batch != 1 {
        return Ok(Outcome::Missing("it has no batches".to_owned()));
    }
    let cluster = Cluster::start(dir)?;
    runtime()?.block_on(async { found(&cluster.connect().await?).await })?;
    let logs = dir.join("pgbench");
    fs::create_dir(&logs).map_err(BenchError::io("make a directory for its log"))?;
    let script = format!(
        "\\set payer random(0, {})\n\\set hold random(1, 9000000000000000000)\n\\set actual random(1, {HELD})\n\
         SELECT reserve(:payer, :hold, {HELD});\nSELECT commit(:hold, :actual);\n",
        PAYERS - 1
    );
    fs::write(logs.join("pair.sql"), script).map_err(BenchError::io("write its script"))?;
    let seconds = plan.duration.as_secs().max(1);
    let mut pgbench = Command::new(bin.join("pgbench"));
    pgbench.args(["-n", "-M", "prepared", "-f", "pair.sql", "-l", "-j", "2"]).current_dir(&logs);
    pgbench.args(["-c", &case.callers.min(CONNECTIONS).to_string(), "-T", &seconds.to_string()]);
    let output = pgbench.arg(cluster.url()).stdin(Stdio::null()).output().map_err(BenchError::io("run pgbench"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let failed = || BenchError::program("pgbench", String::from_utf8_lossy(&output.stderr).trim().replace('\n', " | "));
    let rate = said.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse::<f64>().ok());
    let pairs_per_second = rate.filter(|_| output.status.success()).ok_or_else(failed)?;
    let (p50, p99) = latencies(&logs)?.p50_and_p99();
    Ok(Outcome::Measured(Measured { pairs_per_second, p50, p99 }))
}

/// From its log: client, number, microseconds, and so on. A pair is two operations.
fn latencies(logs: &Path) -> Result<Latencies, BenchError> {
    let mut latencies = Latencies::default();
    for entry in fs::read_dir(logs).map_err(BenchError::io("list its logs"))?.flatten() {
        if !entry.file_name().to_string_lossy().starts_with("pgbench_log") {
            continue;
        }
        let log = fs::read_to_string(entry.path()).map_err(BenchError::io("read its log"))?;
        let micros = |line: &str| line.split(' ').nth(2)?.parse::<u64>().ok();
        for pair in log.lines().filter_map(micros) {
            latencies.record(Duration::from_micros(pair) / 2);
        }
    }
    Ok(latencies)
}
