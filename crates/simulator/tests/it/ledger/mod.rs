//! The engine on a real PostgreSQL: several nodes on one database, and what is done to them.

pub(crate) mod checker;
mod contention;
mod faults;
mod guards;
mod known;
mod load;
mod moving;
mod nodes;
mod proxy;
mod roles;

use holdfast_adapters::postgres::ledger::{LANES, Observer, Rules, Settles, Trouble};
use holdfast_adapters::postgres::{self, Database, DatabaseError, PostgresLedger};
use holdfast_domain::charge::{self, Actual, Finality, OnExpiry, Overrun, Reserve, Terms};
use holdfast_domain::{Budgets, CreditUnit, Key};
use holdfast_engine::part::Wanted;
use holdfast_engine::{Answer, Command, Limits, OPEN_HOLDS_MAX, Request, TTL_DEFAULT};
use holdfast_simulator::servers::PostgresServer;
use std::sync::{Arc, Mutex};
use tempfile::TempDir;
use tokio_postgres::Client;

/// A server with the schema.
pub(crate) struct World {
    pub(crate) server: PostgresServer,
    /// The superuser.
    pub(crate) admin: Client,
    _dir: TempDir,
}

/// Keeps what went wrong on the way.
#[derive(Default)]
pub(crate) struct Heard(pub(crate) Mutex<Vec<String>>);

impl Observer for Heard {
    fn trouble(&self, trouble: &Trouble) {
        self.0.lock().unwrap().push(format!("{trouble:?}"));
    }
}

impl World {
    pub(crate) async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let server = PostgresServer::start(dir.path()).unwrap();
        let mut admin = Database::at(&server.url("postgres"), None).unwrap().connect().await.unwrap();
        postgres::migrate(&mut admin, &postgres::ALL).await.unwrap();
        admin.batch_execute("CREATE ROLE node LOGIN; GRANT symphony_ledger TO node").await.unwrap();
        Self { server, admin, _dir: dir }
    }

    /// A node, which may do what a node may and no more.
    pub(crate) async fn node(&self) -> PostgresLedger {
        self.node_with(&self.server.url_as("node", "postgres"), LANES, Arc::default()).await
    }

    /// A node by another way, with so many lanes.
    pub(crate) async fn node_with(&self, url: &str, lanes: usize, heard: Arc<Heard>) -> PostgresLedger {
        open(url, lanes, heard).await.unwrap()
    }

    /// The same, where the way may be cut.
    pub(crate) async fn try_node(&self, url: &str, lanes: usize) -> Result<PostgresLedger, DatabaseError> {
        open(url, lanes, Arc::default()).await
    }

    /// Another database of the same server, with the schema.
    pub(crate) async fn add_database(&self, name: &str) {
        self.admin.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
        postgres::migrate(&mut self.log_in(name).await, &postgres::ALL).await.unwrap();
    }

    /// The superuser in a database.
    pub(crate) async fn log_in(&self, database: &str) -> Client {
        Database::at(&self.server.url(database), None).unwrap().connect().await.unwrap()
    }

    /// The way of a node to a database.
    pub(crate) fn database(&self, name: &str) -> Database {
        Database::at(&self.server.url_as("node", name), None).unwrap()
    }

    pub(crate) async fn number(&self, sql: &str) -> i64 {
        self.admin.query_one(sql, &[]).await.unwrap().get(0)
    }

    /// Returns when this is more than nothing.
    pub(crate) async fn until(&self, sql: &str) {
        while self.number(sql).await == 0 {
            tokio::task::yield_now().await;
        }
    }

    /// Somebody who keeps an owner's row locked, until `COMMIT`.
    pub(crate) async fn lock(&self, owner: &str) -> Client {
        let client = self.log_in("postgres").await;
        let lock = format!("BEGIN; SELECT FROM holdfast.ledger_owners WHERE owner = '{owner}' FOR UPDATE");
        client.batch_execute(&lock).await.unwrap();
        client
    }
}

async fn open(url: &str, lanes: usize, heard: Arc<Heard>) -> Result<PostgresLedger, DatabaseError> {
    let rules = Rules { limits: Limits { open_holds: OPEN_HOLDS_MAX }, settles: Settles::Yes, lanes };
    PostgresLedger::open(Database::at(url, None).unwrap(), rules, heard).await
}

pub(crate) fn credits(units: u64) -> CreditUnit {
    CreditUnit::new(units).unwrap()
}

pub(crate) fn request(key: Option<&str>, command: Command) -> Request {
    let key = key.map(|key| key.parse::<Key>().unwrap());
    Request { key, actor: "test".parse().unwrap(), command }
}

pub(crate) fn mint(owner: &str, units: u64, key: &str) -> Request {
    let (owner, reason) = (owner.parse().unwrap(), "funds".parse().unwrap());
    request(Some(key), Command::Mint { owner, amount: credits(units), reason })
}

pub(crate) fn reserve(owner: &str, id: &str, units: u64) -> Request {
    let terms = Terms { rates: None, overrun: Overrun::Cap, on_expiry: OnExpiry::Release };
    let owner = owner.parse().unwrap();
    let reserve = Reserve { owner, amount: credits(units), terms, ttl: TTL_DEFAULT, budgets: Budgets::NONE };
    request(None, Command::Reserve { charge: id.parse().unwrap(), reserve })
}

pub(crate) fn of_charge(id: &str, command: charge::Command) -> Request {
    request(None, Command::Charge { charge: id.parse().unwrap(), command })
}

pub(crate) fn commit(id: &str, units: u64) -> Request {
    of_charge(id, charge::Command::Commit { actual: Actual::Credits(credits(units)), finality: Finality::Final })
}

pub(crate) async fn available(node: &PostgresLedger, owner: &str) -> u64 {
    let wanted = Wanted { owners: vec![owner.parse().unwrap()], ..Wanted::default() };
    let balance = node.look(&wanted, |view| view.balance(owner.parse().unwrap())).await.unwrap();
    balance.unwrap().available.units()
}

pub(crate) fn code(answer: &Answer) -> &'static str {
    answer.as_ref().map_or_else(|refusal| refusal.code(), |_| "done")
}

/// Has it done.
pub(crate) async fn done(node: &PostgresLedger, request: Request) {
    let answer = node.submit(request).await;
    assert_eq!(code(&answer), "done", "{answer:?}");
}
