//! The commands and their words.

mod work;

pub(super) use work::{Commit, Create, Escrows, OnExpiry, Overrun, Refund, Reservations};

use super::config::{ConfigCommand, Init};
use super::doctor::Doctor;
use super::limits::{AccountLimit, Limits, Organisations, Teams};
use super::migrate::Migrate;
use super::moving::{Export, Import};
use super::obligations::Obligations;
use super::prices::PricesCommand;
use super::queue::Queue;
use crate::role::Role;
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  holdfast serve                                    serve ./holdfast-data until stopped
  holdfast mint alice 100 --reason 'first credit'   give alice 100 credits
  holdfast reservations create alice 30 --id job-1  hold 30 of them
  holdfast reservations commit job-1 12.5           charge 12.5, give the rest back
  holdfast accounts show alice                      what alice has now
  holdfast accounts show alice --as-of 2            what alice had after entry 2
  holdfast journal verify                           check every byte and every balance
  holdfast queue list                               work that waits, the next first (docs/queue.md)
  holdfast escrows orphans                          credits that are held, and that no work has
  holdfast token --role service                     a bearer for the HTTP API
  holdfast keys new --account alice                 an API key that spends alice's credits
  holdfast init && holdfast serve --config holdfast.toml   with a configuration of your own
  holdfast doctor                                   whether all is ready

Commands ask the server of the data directory if one runs, and else open the directory themselves.
Exit codes: 0 done, 1 refused or failed (error[CODE] on standard error), 2 not understood,
3 from doctor: nothing fails, something should be looked at.";

const SERVE_SETTINGS: &str = "\
Prints one line `listening on http://ADDR` when it is ready to answer. The first start of a data directory then prints an
admin key, once. /docs describes the API, /console is the operator's page, /health, /ready and /metrics watch the server.

From the environment, or in small letters and without HOLDFAST_ under [server] in the file:
  HOLDFAST_JWKS                  a file or https URL of public keys (JWKS) whose tokens are trusted
  HOLDFAST_JWKS_ISSUER           the `iss` of those tokens (holdfast)
  HOLDFAST_RATE_PER_CREDENTIAL   requests a second of one credential (50000)
  HOLDFAST_RATE_PER_ADDRESS      requests a second from one address (100000)
  HOLDFAST_RATE_FAILURES         refused credentials a second from one address (500)
  HOLDFAST_CONNECTIONS_MAX       connections at once (4096)
  HOLDFAST_CHAT_MODEL            the model of a WebSocket's prompt that names none (echo)
  HOLDFAST_CREDITS_LOW_CU        an answer that takes a balance below this says so (10)
  HOLDFAST_CHAT_RATE             messages a second on one WebSocket (10)
  HOLDFAST_CHAT_CONNECTIONS_MAX  WebSockets at once (1024)
Under [queue] in the file, where queue.rope_drop is HOLDFAST_QUEUE_ROPE_DROP (docs/queue.md):
  HOLDFAST_QUEUE_ROPE_DROP       how long an item waits to be taken up: 10m, or solo=5m,group=30m,*=15m (for ever)
  HOLDFAST_QUEUE_ORPHAN_AFTER    an escrow that is held for longer without an item is told of (5m)
  HOLDFAST_QUEUE_SECRET          what queue and wallet share, if they are two processes: 32 random bytes or more
  HOLDFAST_QUEUE_WALLET_URL      with --role queue: where the wallet's process is
  HOLDFAST_QUEUE_WALLET_AUDIENCE with --role queue: the `aud` of our tokens for it (holdfast)
From the environment only:
  HOLDFAST_DATABASE_URL, HOLDFAST_DATABASE_CA  the PostgreSQL that has the books, for several nodes (docs/nodes.md);
                                               without it they are in the data directory
  HOLDFAST_KEYS_STALE_S          how long API keys are trusted while that database does not answer (60)
  HOLDFAST_SEGMENT_BYTES, HOLDFAST_SNAPSHOT_ENTRIES, HOLDFAST_KEYS_IN_MEMORY  the data directory's upkeep
  OPENAI_API_KEY, ANTHROPIC_API_KEY, and what the file names with key_env     providers' keys";

/// Holds money before work is done, charges exactly what the work cost, and keeps the books through any crash.
#[derive(Debug, Parser)]
#[command(name = "holdfast", version, after_help = EXAMPLES, max_term_width = 110)]
pub(super) struct Cli {
    #[command(flatten)]
    pub(super) global: Global,
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Args)]
pub(super) struct Global {
    /// The data directory
    #[arg(long, global = true, env = "HOLDFAST_DATA", default_value = "./holdfast-data", value_name = "DIR")]
    pub(super) data: PathBuf,
    /// Print JSON, one object per line
    #[arg(long, global = true)]
    pub(super) json: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Serve the data directory over HTTP and on its control socket, until SIGTERM or SIGINT
    #[command(after_help = SERVE_SETTINGS)]
    Serve(Serve),
    /// Credit an account
    Mint(Mint),
    /// Look at accounts: balances now and as of any moment, histories; limit what they may spend
    #[command(subcommand)]
    Accounts(Accounts),
    /// Limit what the accounts of a team may spend together
    #[command(subcommand)]
    Teams(Teams),
    /// Limit what the teams of an organisation may spend together
    #[command(subcommand)]
    Organisations(Organisations),
    /// Every limit of an account, team or organisation, and what is used of it
    Limits(Limits),
    /// Hold credits for work to come, and charge what it cost
    #[command(subcommand)]
    Reservations(Reservations),
    /// Hold credits until somebody has earned them
    #[command(subcommand)]
    Escrows(Escrows),
    /// The performance queue: work that is paid for by escrows; look, take up, finish, abandon, divide
    #[command(subcommand)]
    Queue(Queue),
    /// What the peer is still to be told of: look, replay, resolve, import from a log
    #[command(subcommand)]
    Obligations(Obligations),
    /// API keys for callers, and the server's own signing keys
    #[command(subcommand)]
    Keys(Keys),
    /// Print a bearer token for the HTTP API, signed with the key of the data directory or database
    Token(Token),
    /// Print, check and export the journal's files; beside a server too
    #[command(subcommand)]
    Journal(Journal),
    /// What models cost: look prices up, check a file, take them over from LiteLLM's list
    #[command(subcommand)]
    Prices(PricesCommand),
    /// Throw away everything derived from the journal, and derive it anew
    Rebuild,
    /// Bring the schema of a PostgreSQL database up to date: the payment outbox, its functions and roles
    Migrate(Migrate),
    /// Write the books of a data directory or a database to one file, to move them
    Export(Export),
    /// Make the books of an empty data directory or database from such a file, checked and compared
    Import(Import),
    /// Write a configuration with everything explained, for `serve --config`
    Init(Init),
    /// Try a configuration, or take one over from another gateway
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Check whether all is ready to serve, and say what to do where it is not
    Doctor(Doctor),
    /// Measure on this machine and disk
    #[command(subcommand)]
    Bench(Bench),
    /// Print a completion script for a shell
    Completions {
        /// Which shell
        shell: Shell,
    },
}

#[derive(Debug, Args)]
pub(super) struct Serve {
    /// Where to listen for HTTP; port 0 takes any free one [default: 127.0.0.1:8080]
    #[arg(long, env = "HOLDFAST_LISTEN", value_name = "ADDR")]
    pub(super) listen: Option<String>,
    /// A TOML file with settings, providers, models and where the prices are (`holdfast init` writes one); without
    /// one, the built-in model `echo`
    #[arg(long, env = "HOLDFAST_CONFIG", value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// The file of prices, before what the configuration says (prices.toml in the data directory if nobody says)
    #[arg(long, env = "HOLDFAST_PRICES", value_name = "FILE")]
    pub(super) prices: Option<PathBuf>,
    /// Which part to serve, where queue and wallet are two processes (docs/queue.md)
    #[arg(long, env = "HOLDFAST_ROLE", value_enum, default_value_t = Role::All)]
    pub(super) role: Role,
}

#[derive(Debug, Subcommand)]
pub(super) enum Keys {
    /// Make an API key that spends from an account, or an admin key, and print it this once
    New(NewKey),
    /// API keys in the order in which they were made
    List {
        /// Of this account only
        #[arg(long)]
        account: Option<String>,
        /// Those after this key
        #[arg(long, value_name = "ID")]
        after: Option<String>,
        /// At most so many
        #[arg(long)]
        limit: Option<u64>,
    },
    /// One API key, by its id
    Show { id: String },
    /// Revoke an API key, at once and for ever
    Revoke { id: String },
    /// Make a new signing key for tokens; the old one verifies for an hour more
    Rotate,
    /// Copy the API keys and limits of the data directory to the database that has the books, for all nodes; what is there
    /// already stays as it is
    Import,
}

#[derive(Debug, Args)]
pub(super) struct NewKey {
    /// The account that it spends from
    #[arg(long, required_unless_present = "admin")]
    pub(super) account: Option<String>,
    /// An admin key: it operates the server and spends nothing
    #[arg(long, conflicts_with_all = ["account", "scope", "daily_limit_cu", "total_limit_cu"])]
    pub(super) admin: bool,
    /// To know it by
    #[arg(long)]
    pub(super) name: Option<String>,
    /// How long it lives, such as 12h or 30d (for ever if not said)
    #[arg(long, value_parser = seconds)]
    pub(super) expires: Option<u64>,
    /// The most credits that it may spend a day
    #[arg(long, value_name = "AMOUNT_CU", allow_hyphen_values = true)]
    pub(super) daily_limit_cu: Option<String>,
    /// The most credits that it may ever spend
    #[arg(long, value_name = "AMOUNT_CU", allow_hyphen_values = true)]
    pub(super) total_limit_cu: Option<String>,
    /// What it may do: inference, read (both if not said)
    #[arg(long)]
    pub(super) scope: Vec<String>,
}

#[derive(Debug, Args)]
pub(super) struct Token {
    /// What the bearer may do
    #[arg(long)]
    pub(super) role: TokenRole,
    /// Who the bearer is, for the record
    #[arg(long, default_value = "operator", value_name = "NAME")]
    pub(super) sub: String,
    /// How long it is good, such as 90s; at most 5m
    #[arg(long, default_value = "5m", value_parser = seconds)]
    pub(super) ttl: u64,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum TokenRole {
    /// Billing and inference for other services
    Service,
    /// Operating the server
    Admin,
}

#[derive(Debug, Subcommand)]
pub(super) enum Journal {
    /// Print entries as JSON lines
    Cat {
        /// From this entry on
        #[arg(long, value_name = "OFFSET", default_value_t = 1)]
        from: u64,
        /// At most so many
        #[arg(long)]
        limit: Option<u64>,
        /// The steps of the queue's items too, where they stand
        #[arg(long)]
        queue: bool,
    },
    /// Check every frame, the chain of hashes, and every entry's balances by replay
    Verify,
    /// Count segments, bytes, entries, notes and kinds
    Stat,
    /// Write all entries as JSON lines, with a last line that holds the blake3 hash of those before it
    Export {
        /// Where to; - for standard output
        file: PathBuf,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum Bench {
    /// Reserve and commit, in process, with real syncs, beside the bare floor of append + fdatasync
    Ledger {
        /// How long each measurement runs
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3_600))]
        seconds: u64,
        /// How many callers ask at once
        #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4_096))]
        callers: u32,
        /// How many requests a caller sends at once
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=8_190))]
        batch: u32,
    },
}

#[derive(Debug, Args)]
pub(super) struct Mint {
    /// Whose account, such as alice
    pub(super) account: String,
    /// How many credits, such as 12.5
    #[arg(allow_hyphen_values = true)]
    pub(super) amount_cu: String,
    /// Why, for the record
    #[arg(long, value_name = "TEXT")]
    pub(super) reason: String,
    #[command(flatten)]
    pub(super) once: Once,
}

#[derive(Debug, Args)]
pub(super) struct Once {
    /// An idempotency key: the same request with the same key is done once, for ever
    #[arg(long)]
    pub(super) key: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(super) enum Accounts {
    #[command(flatten)]
    Look(LookAtAccounts),
    /// Limit what an account may spend a day and in all, whatever its credential; or show its limits
    Limit(AccountLimit),
}

/// What changes nothing.
#[derive(Debug, Subcommand)]
pub(super) enum LookAtAccounts {
    /// All accounts in the order of their names
    List {
        /// Those after this one
        #[arg(long, value_name = "ACCOUNT")]
        after: Option<String>,
        /// At most so many
        #[arg(long)]
        limit: Option<u64>,
    },
    /// One account: an owner such as alice, or one balance such as user:alice:held, payee:bob:available, system:revenue
    Show {
        /// Which
        account: String,
        /// As of an entry (a number) or a moment (2026-01-31T09:30:00Z) instead of now
        #[arg(long, value_name = "OFFSET|TIME")]
        as_of: Option<String>,
    },
    /// What happened to an account, newest first
    History {
        /// Whose
        account: String,
        /// What was before this entry
        #[arg(long, value_name = "OFFSET")]
        before: Option<u64>,
        /// At most so many
        #[arg(long)]
        limit: Option<u64>,
    },
}

/// Reads a length of time such as `90s`, `15m`, `1h30m` or `2d`; a bare number counts seconds.
fn seconds(text: &str) -> Result<u64, String> {
    let refused = || "write a length of time such as 90s, 15m, 1h30m or 2d".to_owned();
    let mut rest = text;
    let mut total = 0_u64;
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|digit: char| digit.is_ascii_digit()).len();
        let (number, after) = rest.split_at(digits);
        let unit = after.chars().next();
        let scale = match unit {
            None | Some('s') => 1,
            Some('m') => 60,
            Some('h') => 60 * 60,
            Some('d') => 24 * 60 * 60,
            Some(_) => return Err(refused()),
        };
        let number: u64 = number.parse().map_err(|_| refused())?;
        total = number.checked_mul(scale).and_then(|part| total.checked_add(part)).ok_or_else(refused)?;
        rest = after.get(unit.map_or(0, char::len_utf8)..).unwrap_or_default();
    }
    if text.is_empty() { Err(refused()) } else { Ok(total) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_commands_are_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn lengths_of_time_are_read_exactly() {
        for (text, expected) in [("45", 45), ("90s", 90), ("15m", 900), ("1h30m", 5_400), ("2d", 172_800), ("0", 0)] {
            assert_eq!(seconds(text), Ok(expected), "{text}");
        }
        for bad in ["", "h", "1w", "-1s", "1.5h", "1h ", "99999999999999999999", "9999999999999999d"] {
            assert!(seconds(bad).is_err(), "{bad:?}");
        }
    }
}
