//! The database that has the books: whether this user may use it, whether it keeps what it acknowledges, and whose clock is right.

use super::Finding;
use crate::failure::Failure;
use holdfast_adapters::SystemClock;
use holdfast_adapters::postgres::{self, Database, DatabaseError, Limits, Pool};
use holdfast_engine::Clock;
use tokio::runtime::Builder;

const CHECK: &str = "database";
/// Whatever lies further apart is worth a word: tokens and certificates go by our clock, the books by the database's.
const SKEW_MAX_MS: u64 = 2_000;

const ASK: &str = "SELECT current_setting('fsync'), current_setting('synchronous_commit'), \
                   current_setting('full_page_writes'), (extract(epoch FROM clock_timestamp()) * 1000)::bigint, \
                   pg_is_in_recovery()";

/// What the database says of itself.
struct Said {
    fsync: String,
    synchronous_commit: String,
    full_page_writes: String,
    now_ms: i64,
    is_replica: bool,
}

/// Checks the database, if the books are in one.
pub(super) fn check(database: Option<&Database>) -> Vec<Finding> {
    let Some(database) = database else { return Vec::new() };
    let Ok(runtime) = Builder::new_current_thread().enable_all().build() else {
        return vec![Finding::warn(CHECK, "the database could not be asked", "try again")];
    };
    match runtime.block_on(ask(database)) {
        Ok(said) => vec![durability(&said), skew(said.now_ms)],
        Err(error) => vec![Finding::failed(CHECK, &Failure::Database(error))],
    }
}

async fn ask(database: &Database) -> Result<Said, DatabaseError> {
    let pool = Pool::new(database.clone(), Limits::USUAL);
    let mut lent = pool.lend().await?;
    postgres::check(&mut lent, &postgres::DECIDES).await?;
    let rows = lent.query(ASK, &[]).await?;
    let row = rows.first().ok_or_else(|| DatabaseError::Failed("no answer".to_owned()))?;
    Ok(Said {
        fsync: row.try_get(0)?,
        synchronous_commit: row.try_get(1)?,
        full_page_writes: row.try_get(2)?,
        now_ms: row.try_get(3)?,
        is_replica: row.try_get(4)?,
    })
}

fn durability(said: &Said) -> Finding {
    if said.is_replica {
        return Finding::fail(CHECK, "it is a replica, which takes no entries", "give the address of the primary");
    }
    if said.fsync != "on" || said.full_page_writes != "on" || said.synchronous_commit == "off" {
        let found = format!(
            "fsync is {}, full_page_writes {}, synchronous_commit {}: a crash of its machine loses what was acknowledged",
            said.fsync, said.full_page_writes, said.synchronous_commit
        );
        return Finding::fail(CHECK, found, "set all three to on");
    }
    let found =
        format!("its schema is ours, and it syncs before it answers (synchronous_commit {})", said.synchronous_commit);
    if said.synchronous_commit == "local" {
        let advice =
            "with a standby that may take over, set synchronous_commit to on and name it in synchronous_standby_names";
        return Finding::warn(CHECK, found, advice);
    }
    Finding::pass(CHECK, found)
}

fn skew(theirs: i64) -> Finding {
    const CHECK: &str = "database clock";
    let ours = SystemClock::start().now().millis();
    let apart = ours.abs_diff(u64::try_from(theirs).unwrap_or(0));
    let found = format!("{apart} ms from this machine's");
    if apart <= SKEW_MAX_MS {
        return Finding::pass(CHECK, found);
    }
    Finding::warn(CHECK, found, "set both clocks by NTP: holds end by the database's, tokens by this machine's")
}
