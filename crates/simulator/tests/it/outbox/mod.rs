//! The payment outbox on a real PostgreSQL, as an operator with psql meets it: in SQL, over connections of each role.

mod attempts;
mod claims;
mod crashes;
mod desk;
mod enqueueing;
mod migrating;
pub(crate) mod roles;
mod workers;

use holdfast_adapters::postgres::{self, Database};
use holdfast_simulator::servers::PostgresServer;
use tempfile::TempDir;
use tokio_postgres::{Client, Error, SimpleQueryMessage};

/// Who programs are.
const ROLES: [&str; 5] =
    ["symphony_ingest", "symphony_executor", "symphony_admin", "symphony_auditor", "symphony_readonly"];

/// A server with the outbox in it.
pub(crate) struct World {
    pub(crate) server: PostgresServer,
    /// The superuser, who plays time and accidents.
    admin: Client,
    _dir: TempDir,
}

impl World {
    /// A server with an empty database.
    async fn bare() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let server = PostgresServer::start(dir.path()).unwrap();
        let admin = connect(&server.url("postgres")).await;
        Self { server, admin, _dir: dir }
    }

    /// A server with the schema, whose roles may log in.
    pub(crate) async fn new() -> Self {
        let mut world = Self::bare().await;
        postgres::migrate(&mut world.admin, &postgres::ALL).await.unwrap();
        for role in ROLES {
            world.run(&format!("ALTER ROLE {role} LOGIN")).await;
        }
        world
    }

    pub(crate) async fn log_in(&self, role: &str) -> Client {
        connect(&self.server.url_as(role, "postgres")).await
    }

    /// Runs statements as the superuser.
    pub(crate) async fn run(&self, sql: &str) {
        self.admin.batch_execute(sql).await.unwrap();
    }

    /// Asks as the superuser.
    pub(crate) async fn ask(&self, sql: &str) -> Vec<Vec<String>> {
        ask(&self.admin, sql).await.unwrap()
    }

    /// Asks for one value as the superuser.
    pub(crate) async fn value(&self, sql: &str) -> String {
        self.ask(sql).await.concat().concat()
    }

    /// Enqueues so many for one participant.
    async fn enqueue(&self, count: usize) {
        let one =
            |number| format!("SELECT holdfast.enqueue_payment_outbox('i{number}', 'p', 'k{number}', 'mock', '{{}}')");
        self.run(&(0..count).map(one).collect::<Vec<_>>().join(";")).await;
    }

    /// Lets every lease run out.
    async fn expire(&self) {
        self.run("UPDATE holdfast.payment_outbox_claims SET lease_expires_at = now() - interval '1 s'").await;
    }

    /// Lets the time come for everything that waits.
    async fn come_due(&self) {
        self.run("UPDATE holdfast.payment_outbox_queue SET next_attempt_at = now() - interval '1 s'").await;
    }
}

async fn connect(url: &str) -> Client {
    Database::at(url, None).unwrap().connect().await.unwrap()
}

/// Every value as text; NULL is empty.
pub(crate) async fn ask(client: &Client, sql: &str) -> Result<Vec<Vec<String>>, Error> {
    let messages = client.simple_query(sql).await?;
    let rows = messages.iter().filter_map(|message| {
        let SimpleQueryMessage::Row(row) = message else { return None };
        Some((0..row.len()).map(|column| row.get(column).unwrap_or_default().to_owned()).collect())
    });
    Ok(rows.collect())
}

/// The SQLSTATE that a statement ends with.
pub(crate) async fn sqlstate(client: &Client, sql: &str) -> String {
    match client.batch_execute(sql).await {
        Ok(()) => "00000".to_owned(),
        Err(error) => error.code().map_or_else(|| error.to_string(), |code| code.code().to_owned()),
    }
}

/// A row in a worker's hands.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Claimed {
    id: String,
    token: String,
    key: String,
    epoch: u64,
}

async fn claim(client: &Client, batch: usize, worker: &str, lease_seconds: u32) -> Vec<Claimed> {
    let sql = format!(
        "SELECT outbox_id, lease_token, idempotency_key, epoch FROM holdfast.claim_outbox_batch({batch}, '{worker}', {lease_seconds})"
    );
    let rows = ask(client, &sql).await.unwrap();
    let claimed = |row: &Vec<String>| Claimed {
        id: row[0].clone(),
        token: row[1].clone(),
        key: row[2].clone(),
        epoch: row[3].parse().unwrap(),
    };
    rows.iter().map(claimed).collect()
}

/// Completes one: its state as recorded, its number, and whether it was recorded before; or the SQLSTATE.
async fn complete(client: &Client, worker: &str, claimed: &Claimed, state: &str) -> Result<Vec<String>, String> {
    let Claimed { id, token, .. } = claimed;
    let sql = format!(
        "SELECT state, attempt_no, already_recorded FROM holdfast.complete_outbox_attempt('{id}', '{worker}', '{token}', '{state}', \
         retry_delay_ms => 0)"
    );
    match ask(client, &sql).await {
        Ok(rows) => Ok(rows.concat()),
        Err(error) => Err(error.code().unwrap().code().to_owned()),
    }
}

/// Completes many: the status of each, in order.
async fn complete_batch(client: &Client, worker: &str, claimed: &[(Claimed, &str)]) -> Vec<String> {
    let list = |field: &dyn Fn(&(Claimed, &str)) -> String| {
        format!("'{{{}}}'", claimed.iter().map(field).collect::<Vec<_>>().join(","))
    };
    let (ids, tokens) = (list(&|(row, _)| row.id.clone()), list(&|(row, _)| row.token.clone()));
    let (states, delays) = (list(&|(_, state)| (*state).to_owned()), list(&|_| "0".to_owned()));
    let sql = format!(
        "SELECT status FROM holdfast.complete_outbox_batch('{worker}', {ids}, {tokens}, {states}, retry_delays_ms => {delays}) \
         ORDER BY ordinal"
    );
    ask(client, &sql).await.unwrap().concat()
}
