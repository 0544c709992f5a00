//! `holdfast migrate`: brings the schema of a PostgreSQL database up to date.

use super::{Ended, Session};
use crate::failure::Failure;
use clap::Args;
use holdfast_adapters::postgres::{self, Database, Standing, Step};
use serde_json::{Value, json};
use std::path::PathBuf;
use tokio::runtime::Builder;

const EXAMPLES: &str = "\
Each migration is applied in one transaction, once; running it again does nothing, and two at once wait for each other.
The role needs CREATEROLE and CREATE on the database, or is a superuser; it is needed for this command only.

  HOLDFAST_DATABASE_URL=postgres://admin:secret@db/payments holdfast migrate
  holdfast migrate --dry-run      what is missing";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Migrate {
    /// The database, as postgres://USER:PASSWORD@HOST:PORT/DATABASE; what is given here is seen by all on this machine
    #[arg(long, env = "HOLDFAST_DATABASE_URL", value_name = "URL", hide_env_values = true)]
    database_url: String,
    /// A PEM file of the authority that signed the server's certificate, if no public one did
    #[arg(long, env = "HOLDFAST_DATABASE_CA", value_name = "FILE")]
    database_ca: Option<PathBuf>,
    /// Change nothing; only say what is missing
    #[arg(long)]
    dry_run: bool,
}

/// Runs it.
pub(super) fn run(session: &Session<'_>, words: &Migrate) -> Result<(), Ended> {
    let database = Database::at(&words.database_url, words.database_ca.as_deref()).map_err(Failure::Database)?;
    let runtime = Builder::new_current_thread().enable_all().build().map_err(Failure::io("start the runtime"))?;
    let steps = runtime.block_on(async {
        let mut client = database.connect().await?;
        if words.dry_run {
            postgres::plan(&mut client, &postgres::ALL).await
        } else {
            postgres::migrate(&mut client, &postgres::ALL).await
        }
    });
    let steps = steps.map_err(Failure::Database)?;
    let rows: Vec<Value> = steps.iter().map(row).collect();
    if session.output.is_json() {
        return Ok(session.output.line(&json!({ "ok": true, "migrations": rows }).to_string())?);
    }
    let fields = [("version", "version"), ("name", "name"), ("state", "state"), ("applied at", "applied_at")];
    Ok(session.output.rows(&rows, &fields)?)
}

fn row(step: &Step) -> Value {
    let state = match step.standing {
        Standing::There => "there",
        Standing::Applied => "applied",
        Standing::Missing => "missing",
    };
    json!({
        "version": step.migration.version,
        "name": step.migration.name,
        "checksum": step.migration.checksum(),
        "state": state,
        "applied_at": step.applied_at,
    })
}
