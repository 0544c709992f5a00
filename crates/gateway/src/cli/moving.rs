//! `holdfast export` and `holdfast import`: the books of a data directory or a database in one file, and back.

use super::args::Cli;
use super::output::Field;
use super::{Ended, Session};
use crate::failure::Failure;
use crate::node;
use crate::terminal::Bar;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory};
use holdfast_adapters::moving::{self, Engine, Late, Moved};
use holdfast_adapters::postgres::Database;
use holdfast_adapters::postgres::ledger::{Settles, moving as in_database};
use holdfast_engine::moving::Sums;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tokio::runtime::{Builder, Runtime};

const EXPORT: &str = "\
Writes one line of JSON for each entry, how everybody stands, the sums, and a hash over all of it. Of a data directory the server
must be stopped; of a database, what is written is one moment, and nodes may go on.

  holdfast export --data ./holdfast-data books.jsonl
  HOLDFAST_DATABASE_URL=postgres://node:secret@db/payments holdfast export books.jsonl";

const IMPORT: &str = "\
Checks all of the file first, then takes every entry over by the rules, compares all balances, and only then keeps it. The target
must be empty: a new data directory, or a database after `holdfast migrate`, with no server on it. API keys, limits and prices are
not in the file. docs/moving.md says more.

  holdfast import --database-url postgres://node:secret@db/payments books.jsonl
  holdfast import --data ./new-data books.jsonl";

/// The books in question.
#[derive(Debug, Args)]
struct Where {
    /// The database, as postgres://USER:PASSWORD@HOST:PORT/DATABASE, instead of the data directory; what is given here is
    /// seen by all on this machine. From the environment it counts if no --data is given
    #[arg(long, env = "HOLDFAST_DATABASE_URL", value_name = "URL", hide_env_values = true)]
    database_url: Option<String>,
    /// A PEM file of the authority that signed the server's certificate, if no public one did
    #[arg(long, env = "HOLDFAST_DATABASE_CA", value_name = "FILE")]
    database_ca: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = EXPORT)]
pub(super) struct Export {
    #[command(flatten)]
    books: Where,
    /// Where to; it must not be there yet
    file: PathBuf,
}

#[derive(Debug, Args)]
#[command(after_help = IMPORT)]
pub(super) struct Import {
    #[command(flatten)]
    books: Where,
    /// There is no peer: nothing that is not acknowledged is put into the database's outbox
    #[arg(long)]
    without_peer: bool,
    /// Into a data directory: late results that the peer has not acknowledged may go by other ids, and be told again
    #[arg(long)]
    rename_late: bool,
    /// What `holdfast export` wrote
    file: PathBuf,
}

/// Whose books these are.
enum Place<'a> {
    Directory(&'a Path),
    Database(Box<Database>, Runtime),
}

impl<'a> Place<'a> {
    fn of(words: &Where, session: &'a Session<'_>) -> Result<Self, Failure> {
        let matches = Cli::command().get_matches();
        let url =
            words.database_url.as_deref().filter(|_| was_said(&matches, "database_url") || !was_said(&matches, "data"));
        let Some(url) = url else { return Ok(Self::Directory(&session.cli.global.data)) };
        let database = Database::at(url, words.database_ca.as_deref())?;
        let runtime = Builder::new_current_thread().enable_all().build().map_err(Failure::io("start the runtime"))?;
        Ok(Self::Database(Box::new(database), runtime))
    }
}

/// Whether an option stands on the command line, and not only in the environment.
fn was_said(matches: &ArgMatches, option: &str) -> bool {
    let knows = matches.ids().any(|id| id.as_str() == option);
    let is_here = knows && matches.value_source(option) == Some(ValueSource::CommandLine);
    is_here || matches.subcommand().is_some_and(|(_, within)| was_said(within, option))
}

/// Runs `export`.
pub(super) fn export(session: &Session<'_>, words: &Export) -> Result<(), Ended> {
    let bar = Bar::entries("exporting");
    let moved = match Place::of(&words.books, session)? {
        Place::Directory(data) => {
            if !data.join("journal").is_dir() {
                return Err(Failure::NoData(data.to_owned()).into());
            }
            let _lock = node::lock(data)?;
            moving::export(data, &node::config(&session.settings)?, &words.file, &mut |progress| bar.set(progress))
        }
        Place::Database(database, runtime) => {
            runtime.block_on(in_database::export(&database, &words.file, &mut |progress| bar.set(progress)))
        }
    };
    bar.finish();
    let moved = moved.map_err(Failure::from)?;
    let mut result = summary(&moved, &words.file);
    merge(&mut result, sums(&moved.sums));
    show(session, &result, &[])
}

/// Runs `import`.
pub(super) fn import(session: &Session<'_>, words: &Import) -> Result<(), Ended> {
    let bar = Bar::entries("importing");
    let place = Place::of(&words.books, session)?;
    let to = match &place {
        Place::Directory(_) => Engine::Embedded,
        Place::Database(..) => Engine::Postgres,
    };
    let moved = match place {
        Place::Directory(data) => {
            let _lock = node::lock(data)?;
            let late = if words.without_peer || words.rename_late { Late::Rename } else { Late::Refuse };
            let config = node::config(&session.settings)?;
            moving::import(data, &config, (&words.file, late), &mut |progress| bar.set(progress))
        }
        Place::Database(database, runtime) => {
            let settles = if words.without_peer { Settles::No } else { Settles::Yes };
            let progress = &mut |progress| bar.set(progress);
            runtime.block_on(in_database::import(&database, settles, &words.file, progress))
        }
    };
    bar.finish();
    let moved = moved.map_err(Failure::from)?;
    let owed = moved.owed;
    let mut result = summary(&moved, &words.file);
    let books = json!({
        "to": to,
        "file_says": sums(&moved.sums),
        "books_say": sums(&moved.found),
        "obligations_pending": owed.pending,
        "obligations_renamed": owed.renamed,
        "given_up": owed.given_up,
    });
    merge(&mut result, books);
    if !session.output.is_json() {
        // People see both, line by line: that they are equal is what the import has found.
        merge(&mut result, sums(&moved.found));
    }
    let obligations = [
        ("obligations pending", "obligations_pending"),
        ("late results renamed", "obligations_renamed"),
        ("charges given up", "given_up"),
    ];
    show(session, &result, &obligations)
}

fn summary(moved: &Moved, file: &Path) -> Value {
    json!({
        "ok": true,
        "file": file.display().to_string(),
        "from": moved.head.engine,
        "id": moved.head.id,
        "entries": moved.sums.entries,
        "blake3": moved.blake3,
    })
}

fn sums(sums: &Sums) -> Value {
    json!({
        "entries": sums.entries,
        "owners": sums.owners,
        "payees": sums.payees,
        "available_cu": sums.available.to_string(),
        "held_cu": sums.held.to_string(),
        "escrowed_cu": sums.escrowed.to_string(),
        "paid_cu": sums.paid.to_string(),
        "revenue_cu": sums.revenue.to_string(),
        "treasury_cu": sums.treasury.to_string(),
    })
}

fn merge(into: &mut Value, more: Value) {
    if let (Value::Object(into), Value::Object(more)) = (into, more) {
        into.extend(more);
    }
}

fn show(session: &Session<'_>, result: &Value, more: &[Field]) -> Result<(), Ended> {
    if session.output.is_json() {
        return Ok(session.output.line(&result.to_string())?);
    }
    let fields: [Field; 14] = [
        ("file", "file"),
        ("from", "from"),
        ("to", "to"),
        ("id", "id"),
        ("blake3", "blake3"),
        ("entries", "entries"),
        ("owners", "owners"),
        ("payees", "payees"),
        ("available", "available_cu"),
        ("held", "held_cu"),
        ("escrowed", "escrowed_cu"),
        ("paid out", "paid_cu"),
        ("revenue", "revenue_cu"),
        ("treasury", "treasury_cu"),
    ];
    let fields: Vec<Field> = fields.into_iter().chain(more.iter().copied()).collect();
    Ok(session.output.object(result, &fields)?)
}
