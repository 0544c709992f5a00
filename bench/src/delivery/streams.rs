//! A plain stream with one consumer group: what Redis itself offers for a queue.

use super::measure::{Filled, Queue, WORKERS};
use crate::error::BenchError;
use crate::plan::Plan;
use crate::servers::redis::Redis;
use holdfast_adapters::obligations::line;
use holdfast_domain::delivery::Obligation;
use redis::aio::MultiplexedConnection;
use redis::{Value, cmd, from_redis_value, pipe};

const STREAM: &str = "obligations";
const GROUP: &str = "workers";

/// The stream on a Redis that is empty, with so many pending.
pub(super) async fn filled(server: &Redis, pending: u32, plan: &Plan) -> Result<Filled<Stream>, BenchError> {
    let mut admin = server.connect().await?;
    let mut found = cmd("XGROUP");
    found.arg("CREATE").arg(STREAM).arg(GROUP).arg("0").arg("MKSTREAM").exec_async(&mut admin).await?;
    let mut queues = Vec::new();
    for number in 0..WORKERS {
        queues.push(Stream { connection: server.connect().await?, consumer: format!("worker-{number}") });
    }
    let filled = Filled::fill(queues, pending, plan).await?;
    server.rewrite_log().await?;
    Ok(filled)
}

pub(super) struct Stream {
    connection: MultiplexedConnection,
    consumer: String,
}

impl Queue for Stream {
    type Held = String;

    async fn put(&self, obligations: &[Obligation]) -> Result<(), BenchError> {
        let mut batch = pipe();
        for obligation in obligations {
            batch.cmd("XADD").arg(STREAM).arg("*").arg("json").arg(line::encode(obligation)).ignore();
        }
        Ok(batch.exec_async(&mut self.connection.clone()).await?)
    }

    async fn claim(&self, limit: usize) -> Result<Vec<String>, BenchError> {
        let mut read = cmd("XREADGROUP");
        read.arg("GROUP").arg(GROUP).arg(&self.consumer).arg("COUNT").arg(limit).arg("STREAMS").arg(STREAM).arg(">");
        // [[stream, [[id, [field, value]], …]]], or nothing.
        type Entries = Vec<(String, Vec<(String, Vec<String>)>)>;
        let answer: Value = read.query_async(&mut self.connection.clone()).await?;
        let streams: Entries = if answer == Value::Nil {
            Vec::new()
        } else {
            from_redis_value(answer).map_err(redis::RedisError::from)?
        };
        Ok(streams.into_iter().flat_map(|(_, entries)| entries).map(|(id, _)| id).collect())
    }

    async fn complete(&self, held: Vec<String>) -> Result<(), BenchError> {
        let count = held.len();
        let mut done = cmd("XACK");
        done.arg(STREAM).arg(GROUP).arg(held);
        let acknowledged: usize = done.query_async(&mut self.connection.clone()).await?;
        if acknowledged == count { Ok(()) } else { Err(BenchError::NotApplied(format!("{acknowledged} of {count}"))) }
    }

    /// What no worker was given yet.
    async fn pending(&self) -> Result<u64, BenchError> {
        let mut read = cmd("XINFO");
        let groups: Vec<std::collections::HashMap<String, Value>> =
            read.arg("GROUPS").arg(STREAM).query_async(&mut self.connection.clone()).await?;
        let lag = groups.into_iter().next().and_then(|mut group| group.remove("lag"));
        let lag = lag.ok_or_else(|| BenchError::NotApplied("the stream has no group".to_owned()))?;
        Ok(from_redis_value(lag).map_err(redis::RedisError::from)?)
    }
}
