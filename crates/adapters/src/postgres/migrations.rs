//! Brings a database's schema up to date: the files of `crates/adapters/sql`, in order, each in one transaction.
//!
//! # Invariants
//! - A migration that was applied never changes: its checksum is kept with it, and another one is refused.
//! - A schema that a newer program made is not touched.
//! - Two who migrate at once do not disturb each other: every step is taken under one lock that ends with its transaction, so
//!   it holds through a pool of connections too, and each looks again under it at what is there.

use super::DatabaseError;
use tokio_postgres::{Client, Transaction};

/// One file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Migration {
    /// Its place in the order, from 1 on without gaps.
    pub version: i32,
    /// What it is about.
    pub name: &'static str,
    /// What it does.
    pub sql: &'static str,
}

impl Migration {
    /// Stands for every byte of it.
    #[must_use]
    pub fn checksum(&self) -> String {
        blake3::hash(self.sql.as_bytes()).to_hex().to_string()
    }
}

macro_rules! migration {
    ($version:literal, $file:literal, $name:literal) => {
        Migration {
            version: $version,
            name: $name,
            sql: include_str!(concat!("../../sql/", $file, "_", $name, ".sql")),
        }
    };
}

/// Every migration, in order. Append-only.
pub const ALL: [Migration; 21] = [
    migration!(1, "0001", "roles"),
    migration!(2, "0002", "outbox"),
    migration!(3, "0003", "outbox_enqueue"),
    migration!(4, "0004", "outbox_claim"),
    migration!(5, "0005", "outbox_complete"),
    migration!(6, "0006", "outbox_replay"),
    migration!(7, "0007", "outbox_grants"),
    migration!(8, "0008", "ledger"),
    migration!(9, "0009", "ledger_open"),
    migration!(10, "0010", "ledger_admit"),
    migration!(11, "0011", "outbox_desk"),
    migration!(12, "0012", "open_escrows"),
    migration!(13, "0013", "escrow_metadata"),
    migration!(14, "0014", "queue"),
    migration!(15, "0015", "access"),
    migration!(16, "0016", "ledger_rounds"),
    migration!(17, "0017", "ledger_doubt"),
    migration!(18, "0018", "outbox_claims"),
    migration!(19, "0019", "ledger_at_once"),
    migration!(20, "0020", "ledger_new_names"),
    migration!(21, "0021", "ledger_milestones"),
];

/// Where a migration stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It was there before.
    There,
    /// This run applied it.
    Applied,
    /// It is still to be applied.
    Missing,
}

/// A migration, and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Which.
    pub migration: Migration,
    /// Where it stands.
    pub standing: Standing,
    /// When it was applied, as the database writes it.
    pub applied_at: Option<String>,
}

/// The oldest major version of PostgreSQL that will do.
const OLDEST_MAJOR: u32 = 15;
/// Whoever migrates holds this: "holdfast" in ASCII.
const LOCK: i64 = 0x686f_6c64_6661_7374;
/// How long another one's migration is waited for.
const LOCK_WITHIN: &str = "SET LOCAL lock_timeout = '60s'";

struct Applied {
    version: i32,
    checksum: String,
    at: String,
}

/// Applies what is missing of `migrations`, and says of each where it stands.
///
/// # Errors
/// If the schema is newer or a migration was changed, and then nothing was done; or if one fails, and then those before it
/// stay.
pub async fn migrate(client: &mut Client, migrations: &[Migration]) -> Result<Vec<Step>, DatabaseError> {
    let mut applied_now = Vec::new();
    loop {
        let transaction = client.transaction().await?;
        let history = locked_history(&transaction).await?;
        check(&history, migrations)?;
        let is_missing = |migration: &&Migration| history.iter().all(|applied| applied.version != migration.version);
        let Some(next) = migrations.iter().find(is_missing) else {
            transaction.rollback().await?;
            return Ok(steps(&history, migrations, &applied_now));
        };
        apply(&transaction, next).await.map_err(|error| DatabaseError::MigrationFailed {
            version: next.version,
            name: next.name.to_owned(),
            said: DatabaseError::said(&error),
        })?;
        transaction.commit().await?;
        applied_now.push(next.version);
    }
}

/// Says of each of `migrations` where it stands, and changes nothing.
///
/// # Errors
/// As `migrate`.
pub async fn plan(client: &mut Client, migrations: &[Migration]) -> Result<Vec<Step>, DatabaseError> {
    let transaction = client.transaction().await?;
    let history = locked_history(&transaction).await?;
    transaction.rollback().await?;
    check(&history, migrations)?;
    Ok(steps(&history, migrations, &[]))
}

async fn apply(transaction: &Transaction<'_>, migration: &Migration) -> Result<(), tokio_postgres::Error> {
    transaction.batch_execute(migration.sql).await?;
    // The first file makes the role; whoever migrates can be it from then on.
    transaction.batch_execute("SET LOCAL ROLE symphony_owner").await?;
    let note = "INSERT INTO holdfast.schema_migrations (version, name, checksum) VALUES ($1, $2, $3)";
    transaction.execute(note, &[&migration.version, &migration.name, &migration.checksum()]).await?;
    Ok(())
}

/// What was applied so far; nobody else migrates until the transaction ends.
async fn locked_history(transaction: &Transaction<'_>) -> Result<Vec<Applied>, DatabaseError> {
    let version = transaction.query_one("SELECT current_setting('server_version')", &[]).await?;
    let found: String = version.try_get(0)?;
    let major = found.split(|character: char| !character.is_ascii_digit()).next().and_then(|major| major.parse().ok());
    if major.is_none_or(|major: u32| major < OLDEST_MAJOR) {
        return Err(DatabaseError::TooOld { found, needed: OLDEST_MAJOR });
    }
    transaction.batch_execute(LOCK_WITHIN).await?;
    transaction.execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK]).await?;
    // A look into the catalog itself: what a session remembers of names it did not find may be from before the lock was had.
    let there = "SELECT EXISTS (SELECT FROM pg_catalog.pg_class AS found JOIN pg_catalog.pg_namespace AS schema \
                 ON schema.oid = found.relnamespace \
                 WHERE schema.nspname = 'holdfast' AND found.relname = 'schema_migrations')";
    let there = transaction.query_one(there, &[]).await?;
    if !there.try_get::<_, bool>(0)? {
        return Ok(Vec::new());
    }
    let all = "SELECT version, checksum, applied_at::text FROM holdfast.schema_migrations ORDER BY version";
    let rows = transaction.query(all, &[]).await?;
    let applied =
        rows.iter().map(|row| Ok(Applied { version: row.try_get(0)?, checksum: row.try_get(1)?, at: row.try_get(2)? }));
    applied.collect::<Result<_, tokio_postgres::Error>>().map_err(DatabaseError::from)
}

fn check(history: &[Applied], migrations: &[Migration]) -> Result<(), DatabaseError> {
    let known = migrations.last().map_or(0, |migration| migration.version);
    if let Some(newest) = history.last().filter(|newest| newest.version > known) {
        return Err(DatabaseError::SchemaNewer { found: newest.version, known });
    }
    for migration in migrations {
        let applied = history.iter().find(|applied| applied.version == migration.version);
        if applied.is_some_and(|applied| applied.checksum != migration.checksum()) {
            return Err(DatabaseError::MigrationChanged {
                version: migration.version,
                name: migration.name.to_owned(),
            });
        }
    }
    Ok(())
}

fn steps(history: &[Applied], migrations: &[Migration], applied_now: &[i32]) -> Vec<Step> {
    let step = |migration: &Migration| {
        let applied = history.iter().find(|applied| applied.version == migration.version);
        let standing = match applied {
            None => Standing::Missing,
            Some(applied) if applied_now.contains(&applied.version) => Standing::Applied,
            Some(_) => Standing::There,
        };
        Step { migration: *migration, standing, applied_at: applied.map(|applied| applied.at.clone()) }
    };
    migrations.iter().map(step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_go_from_one_without_gaps_and_every_file_is_among_them() {
        let versions: Vec<i32> = ALL.iter().map(|migration| migration.version).collect();
        assert_eq!(versions, (1..).take(ALL.len()).collect::<Vec<_>>());
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/sql");
        let files = std::fs::read_dir(directory).unwrap().count();
        assert_eq!(files, ALL.len(), "a file in sql/ is not applied");
    }
}
