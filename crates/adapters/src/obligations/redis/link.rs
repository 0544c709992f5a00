//! The connection to Redis: opened when it is needed, shared by all, given up when it breaks, and opened anew.
//!
//! # Invariants
//! - Every wait is bounded: opening by `connect_within`, an answer by `reply_within`.
//! - A connection that broke or was too slow is not used again: the next call opens another. One call opens it for all.
//! - What may have been done is not done again, except where doing it twice is the same as once ([`Again::Yes`]).

use super::address::{Address, Door};
use super::failure::{failed, is_unknown_script, is_worn_out};
use super::scripts::{Arguments, LuaScript};
use holdfast_engine::obligations::Answered;
use redis::aio::MultiplexedConnection;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr};
use redis::{AsyncConnectionConfig, Cmd, FromRedisValue, RedisError, Value};
use std::io;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::timeout;

/// How long is waited.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// For a connection.
    pub connect_within: Duration,
    /// For an answer.
    pub reply_within: Duration,
}

impl Limits {
    /// Two seconds for each.
    pub const USUAL: Self = Self { connect_within: Duration::from_secs(2), reply_within: Duration::from_secs(2) };
}

/// Whether a call that was cut off may be made again at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    Yes,
    No,
}

pub(super) struct Link {
    address: Address,
    limits: Limits,
    slot: Mutex<Slot>,
}

/// The connection that everybody shares, and how many there were before it.
struct Slot {
    number: u64,
    open: Option<Connection>,
}

#[derive(Clone)]
enum Connection {
    Single(MultiplexedConnection),
    Cluster(ClusterConnection),
}

/// Where a command goes in a cluster.
#[derive(Clone, Copy)]
enum To<'a> {
    /// Where its own keys are.
    ItsKeys,
    /// Where this key is.
    TheKey(&'a str),
}

impl Link {
    pub(super) fn new(address: Address, limits: Limits) -> Self {
        Self { address, limits, slot: Mutex::new(Slot { number: 0, open: None }) }
    }

    /// Runs a script by its hash, and whole if the server does not know it.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        script: &LuaScript,
        arguments: &Arguments<'_>,
        again: Again,
    ) -> Answered<T> {
        let by_hash = arguments.command("EVALSHA", script.hash());
        let mut answer = self.ask(&by_hash, To::ItsKeys).await;
        if again == Again::Yes && answer.as_ref().is_err_and(RedisError::is_connection_dropped) {
            answer = self.ask(&by_hash, To::ItsKeys).await;
        }
        if answer.as_ref().is_err_and(is_unknown_script) {
            answer = self.ask(&arguments.command("EVAL", script.code()), To::ItsKeys).await;
        }
        let read = |value| T::from_redis_value(value).map_err(RedisError::from);
        answer.and_then(read).map_err(|error| failed(&error))
    }

    /// Runs a command on the server that holds this key.
    pub(super) async fn command<T: FromRedisValue>(&self, command: &Cmd, key: &str) -> Answered<T> {
        let read = |value| T::from_redis_value(value).map_err(RedisError::from);
        self.ask(command, To::TheKey(key)).await.and_then(read).map_err(|error| failed(&error))
    }

    async fn ask(&self, command: &Cmd, to: To<'_>) -> Result<Value, RedisError> {
        // The wait for another who is opening the connection counts.
        let opened = timeout(self.limits.connect_within, self.connection()).await;
        let (number, mut connection) = opened.unwrap_or_else(|_| Err(too_late()))?;
        let answer = timeout(self.limits.reply_within, connection.send(command, to)).await;
        let answer = answer.unwrap_or_else(|_| Err(too_late()));
        if answer.as_ref().is_err_and(is_worn_out) {
            self.give_up(number).await;
        }
        answer
    }

    async fn connection(&self) -> Result<(u64, Connection), RedisError> {
        let mut slot = self.slot.lock().await;
        if let Some(connection) = &slot.open {
            return Ok((slot.number, connection.clone()));
        }
        let connection = self.connect().await?;
        slot.number += 1;
        slot.open = Some(connection.clone());
        Ok((slot.number, connection))
    }

    async fn connect(&self) -> Result<Connection, RedisError> {
        // The bounds are ours alone: two on one wait would only blur which of them ended it.
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        Ok(match self.address.door(self.limits.reply_within)? {
            Door::Plain(client) => {
                Connection::Single(client.get_multiplexed_async_connection_with_config(&config).await?)
            }
            Door::Sentinel(mut client) => Connection::Single(client.get_async_connection_with_config(&config).await?),
            Door::Cluster(client) => Connection::Cluster(client.get_async_connection().await?),
        })
    }

    /// Forgets this connection, if nobody has opened another meanwhile.
    async fn give_up(&self, number: u64) {
        let mut slot = self.slot.lock().await;
        if slot.number == number {
            slot.open = None;
        }
    }
}

impl Connection {
    async fn send(&mut self, command: &Cmd, to: To<'_>) -> Result<Value, RedisError> {
        match (self, to) {
            (Self::Single(connection), _) => command.query_async(connection).await,
            (Self::Cluster(connection), To::ItsKeys) => command.query_async(connection).await,
            (Self::Cluster(connection), To::TheKey(key)) => {
                let route = SingleNodeRoutingInfo::SpecificNode(Route::with_key(key, SlotAddr::Master));
                connection.route_command(command.clone(), RoutingInfo::SingleNode(route)).await
            }
        }
    }
}

fn too_late() -> RedisError {
    io::Error::from(io::ErrorKind::TimedOut).into()
}
