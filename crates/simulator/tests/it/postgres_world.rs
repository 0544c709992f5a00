//! What the tests with obligations in a real PostgreSQL share.

use crate::redis_world::Told;
use holdfast_adapters::SystemClock;
use holdfast_adapters::obligations::PostgresStore;
use holdfast_adapters::postgres::{self, Database, Limits};
use holdfast_engine::Clock;
use holdfast_simulator::servers::PostgresServer;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
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

/// A way to the server that can be cut when an answer is on it: what was asked has been done by then.
pub(crate) struct Cutter {
    port: u16,
    /// How many of the next answers do not come through.
    cuts: Arc<AtomicUsize>,
}

impl Cutter {
    pub(crate) async fn to(server: &PostgresServer) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let (port, cuts) = (listener.local_addr().unwrap().port(), Arc::new(AtomicUsize::new(0)));
        let (server, counted) = (server.port(), Arc::clone(&cuts));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass(client, server, Arc::clone(&counted)));
            }
        });
        Self { port, cuts }
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://node@127.0.0.1:{}/postgres", self.port)
    }

    pub(crate) fn cut(&self, answers: usize) {
        self.cuts.store(answers, Ordering::SeqCst);
    }
}

/// Passes bytes on, until the answer of a function of ours is complete that is not to come through.
async fn pass(client: TcpStream, server: u16, cuts: Arc<AtomicUsize>) {
    /// The server is done with what it was asked, and waits for the next.
    const READY: [u8; 6] = [b'Z', 0, 0, 0, 5, b'I'];
    let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else { return };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let is_ours = Arc::new(AtomicBool::new(false));
    let asks_ours = Arc::clone(&is_ours);
    let asking = tokio::spawn(async move {
        let mut piece = vec![0; 65_536];
        while let Ok(length @ 1..) = from_client.read(&mut piece).await {
            let words = String::from_utf8_lossy(&piece[..length]);
            asks_ours.fetch_or(words.contains("holdfast."), Ordering::SeqCst);
            if to_server.write_all(&piece[..length]).await.is_err() {
                break;
            }
        }
    });
    let (mut answer, mut piece) = (Vec::new(), vec![0; 65_536]);
    while let Ok(length @ 1..) = from_server.read(&mut piece).await {
        answer.extend_from_slice(&piece[..length]);
        let is_to_be_cut = is_ours.load(Ordering::SeqCst) && cuts.load(Ordering::SeqCst) > 0;
        if is_to_be_cut && answer.ends_with(&READY) {
            cuts.fetch_sub(1, Ordering::SeqCst);
            break;
        }
        if !is_to_be_cut {
            is_ours.fetch_and(!answer.ends_with(&READY), Ordering::SeqCst);
            if to_client.write_all(&answer).await.is_err() {
                break;
            }
            answer.clear();
        }
    }
    asking.abort();
}
