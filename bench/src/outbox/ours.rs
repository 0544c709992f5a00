//! Our outbox: a thin client of its functions, as any worker would be.

use super::{Case, HUNG_AFTER, PAYLOAD, settle};
use crate::error::BenchError;
use crate::latency::Latencies;
use crate::plan::{Plan, Stop};
use crate::servers::postgres::Cluster;
use bytes::{BufMut, BytesMut};
use holdfast_adapters::postgres;
use std::error::Error;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, Statement};

/// How many claims are timed, of how many rows each.
const CLAIMS: usize = 300;
const CLAIM_OF: i32 = 100;
/// Before those, so that plans are made.
const WARM_UP: usize = 20;
/// Long enough that none runs out.
const LEASE_SECONDS: i32 = 600;
const PARTICIPANTS: u32 = 100;

const CLAIM: &str = "SELECT outbox_id, lease_token, payload::text FROM holdfast.claim_outbox_batch($1, $2, $3)";
const COMPLETE: &str = "SELECT status FROM holdfast.complete_outbox_batch($1, $2, $3, $4, $5)";
const RELEASE: &str = "SELECT outbox_id FROM holdfast.release_outbox($1, $2)";

/// A uuid, as the bytes that it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Uuid([u8; 16]);

impl<'a> FromSql<'a> for Uuid {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(raw.try_into()?))
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::UUID
    }
}

impl ToSql for Uuid {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.put_slice(&self.0);
        Ok(IsNull::No)
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::UUID
    }

    to_sql_checked!();
}

/// Drains `jobs`: how long it took.
pub(super) async fn drain(cluster: &Cluster, case: Case, jobs: u32, plan: &Plan) -> Result<Duration, BenchError> {
    let admin = found(cluster, jobs).await?;
    let mut workers = Vec::new();
    for number in 0..case.workers {
        workers.push(Worker::new(cluster, format!("worker-{number}"), case.batch).await?);
    }
    let began = Instant::now();
    let mut working = JoinSet::new();
    for worker in workers {
        working.spawn(worker.drain(plan.stop.clone()));
    }
    let all = async {
        while let Some(ended) = working.join_next().await {
            ended.map_err(|error| BenchError::NotApplied(error.to_string()))??;
        }
        Ok::<_, BenchError>(())
    };
    tokio::time::timeout(HUNG_AFTER, all).await.map_err(|_| BenchError::Hung { after: HUNG_AFTER })??;
    let took = began.elapsed();
    let books = "SELECT (SELECT count(*) FROM holdfast.payment_outbox_pending), \
                 (SELECT count(*) FROM holdfast.payment_outbox_attempts WHERE state = 'DISPATCHED' AND attempt_no = 1)";
    let row = admin.query_one(books, &[]).await?;
    let (pending, dispatched): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
    if (pending, dispatched) != (0, i64::from(jobs)) {
        let found = format!("{dispatched} dispatched and {pending} pending");
        return Err(BenchError::Books { expected: format!("{jobs} dispatched"), found });
    }
    Ok(took)
}

/// Times claims with so many pending; each is given back, so that as many stay.
pub(super) async fn claims(cluster: &Cluster, pending: u32, plan: &Plan) -> Result<Latencies, BenchError> {
    let _admin = found(cluster, pending).await?;
    let client = cluster.connect().await?;
    let (claim, release) = (client.prepare(CLAIM).await?, client.prepare(RELEASE).await?);
    let mut latencies = Latencies::default();
    for round in 0..WARM_UP + CLAIMS {
        plan.stop.check()?;
        let began = Instant::now();
        let rows = client.query(&claim, &[&CLAIM_OF, &"worker", &LEASE_SECONDS]).await?;
        if round >= WARM_UP {
            latencies.record(began.elapsed());
        }
        let ids = rows.iter().map(|row| row.try_get(0)).collect::<Result<Vec<Uuid>, _>>()?;
        let token: Uuid =
            rows.first().ok_or_else(|| BenchError::NotApplied("nothing is due".to_owned()))?.try_get(1)?;
        let released = client.query(&release, &[&ids, &token]).await?;
        if released.len() != ids.len() {
            return Err(BenchError::NotApplied(format!("{} of {} were given back", released.len(), ids.len())));
        }
    }
    Ok(latencies)
}

/// The schema, and so many due rows in it. Written straight into the tables: enqueueing is not what is measured.
async fn found(cluster: &Cluster, jobs: u32) -> Result<Client, BenchError> {
    let mut admin = cluster.connect().await?;
    let migrated = postgres::migrate(&mut admin, &postgres::ALL).await;
    migrated.map_err(|error| BenchError::NotApplied(error.to_string()))?;
    let fill = format!(
        "WITH fresh AS (
             SELECT holdfast.time_ordered_uuid() AS outbox_id, number, clock_timestamp() AS at
               FROM generate_series(1, {jobs}) AS number
         ), instructed AS (
             INSERT INTO holdfast.payment_outbox_instructions
             SELECT outbox_id, 'instruction-' || number, 'participant-' || number % {PARTICIPANTS},
                    1 + number / {PARTICIPANTS}, 'key-' || number, 'mock', '{PAYLOAD}', at
               FROM fresh
         )
         INSERT INTO holdfast.payment_outbox_queue (outbox_id, next_attempt_at) SELECT outbox_id, at FROM fresh"
    );
    admin.batch_execute(&fill).await?;
    settle(&admin).await?;
    Ok(admin)
}

/// A worker with a connection of its own.
struct Worker {
    client: Client,
    name: String,
    batch: i32,
    claim: Statement,
    complete: Statement,
}

/// A batch that was claimed.
struct Batch {
    ids: Vec<Uuid>,
    tokens: Vec<Uuid>,
}

impl Worker {
    async fn new(cluster: &Cluster, name: String, batch: usize) -> Result<Self, BenchError> {
        let client = cluster.connect().await?;
        let (claim, complete) = (client.prepare(CLAIM).await?, client.prepare(COMPLETE).await?);
        let batch = i32::try_from(batch).unwrap_or(i32::MAX);
        Ok(Self { client, name, batch, claim, complete })
    }

    /// Until nothing is left to claim.
    async fn drain(self, stop: Stop) -> Result<(), BenchError> {
        let mut batch = self.claim().await?;
        while !batch.ids.is_empty() {
            stop.check()?;
            batch = self.turn(&batch).await?;
        }
        Ok(())
    }

    /// Completes a batch and claims the next one, by one commit and in one way there and back.
    async fn turn(&self, batch: &Batch) -> Result<Batch, BenchError> {
        let (begun, completed, claimed, committed) = tokio::join!(
            self.client.batch_execute("BEGIN"),
            self.complete(batch),
            self.claim(),
            self.client.batch_execute("COMMIT")
        );
        begun?;
        completed?;
        let claimed = claimed?;
        committed?;
        Ok(claimed)
    }

    async fn claim(&self) -> Result<Batch, BenchError> {
        let rows = self.client.query(&self.claim, &[&self.batch, &self.name, &LEASE_SECONDS]).await?;
        let ids = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        let tokens = rows.iter().map(|row| row.try_get(1)).collect::<Result<_, _>>()?;
        Ok(Batch { ids, tokens })
    }

    async fn complete(&self, batch: &Batch) -> Result<(), BenchError> {
        let Batch { ids, tokens } = batch;
        let (states, latencies) = (vec!["DISPATCHED"; ids.len()], vec![0_i32; ids.len()]);
        let statuses = self.client.query(&self.complete, &[&self.name, ids, tokens, &states, &latencies]).await?;
        for status in &statuses {
            let status: &str = status.try_get(0)?;
            if status != "DISPATCHED" {
                return Err(BenchError::NotApplied(status.to_owned()));
            }
        }
        if statuses.len() != ids.len() {
            return Err(BenchError::NotApplied(format!("{} of {} were answered", statuses.len(), ids.len())));
        }
        Ok(())
    }
}
