//! What the tests with obligations in a real PostgreSQL share.

use crate::redis_world::Told;
use holdfast_adapters::SystemClock;
use holdfast_adapters::obligations::PostgresStore;
use holdfast_adapters::postgres::{self, Database, Limits};
use holdfast_engine::Clock;
use holdfast_simulator::servers::PostgresServer;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio_postgres::{Client, SimpleQueryMessage};

/// Short, so that a test which waits for a slow server does not wait for long.
pub(crate) const LIMITS: Limits =
    Limits { connections: 4, connect_within: Duration::from_secs(2), answer_within: Duration::from_millis(1_500) };
/// Who the program is: nobody in particular, who was granted what it needs.
const NODE: &str = "CREATE ROLE node LOGIN; GRANT symphony_ingest, symphony_executor, symphony_admin TO node";

/// A server with the outbox in it.
pub(crate) struct Outbox {
    pub(crate) server: PostgresServer,
    _dir: TempDir,
}

impl Outbox {
    pub(crate) async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let server = PostgresServer::start(dir.path()).unwrap();
        let outbox = Self { server, _dir: dir };
        let mut admin = outbox.admin().await;
        postgres::migrate(&mut admin, &postgres::ALL).await.unwrap();
        admin.batch_execute(NODE).await.unwrap();
        outbox
    }

    /// The superuser, who plays time and accidents.
    pub(crate) async fn admin(&self) -> Client {
        Database::at(&self.server.url("postgres"), None).unwrap().connect().await.unwrap()
    }

    /// Every value as text; NULL is empty.
    pub(crate) async fn ask(&self, sql: &str) -> Vec<Vec<String>> {
        let messages = self.admin().await.simple_query(sql).await.unwrap();
        let rows = messages.iter().filter_map(|message| {
            let SimpleQueryMessage::Row(row) = message else { return None };
            Some((0..row.len()).map(|column| row.get(column).unwrap_or_default().to_owned()).collect())
        });
        rows.collect()
    }

    pub(crate) fn url(&self) -> String {
        self.server.url_as("node", "postgres")
    }

    pub(crate) fn store(&self) -> PostgresStore {
        self.store_by(Arc::new(SystemClock::start()), LIMITS)
    }

    pub(crate) fn store_by(&self, clock: Arc<dyn Clock>, limits: Limits) -> PostgresStore {
        store_at(&self.url(), clock, limits)
    }
}

pub(crate) fn store_at(url: &str, clock: Arc<dyn Clock>, limits: Limits) -> PostgresStore {
    PostgresStore::new(Database::at(url, None).unwrap(), limits, clock, Arc::new(Told::default()))
}
