//! Settings from the environment and from the tables `[server]`, `[peer]`, `[billing]` and `[queue]` of the configuration. A bad one names itself, what it was, and
//! what is allowed.
//!
//! A setting of the server is `HOLDFAST_RATE_FAILURES` in the environment and `rate_failures` in the file; one of the peer is
//! `HOLDFAST_PEER_URL` and `url`. The environment goes first. Those of the data directory are in the environment only, because commands without a configuration need them.

use crate::failure::Failure;
use holdfast_adapters::postgres::Database;
use holdfast_engine::Policy;
use holdfast_journal::SEGMENT_BYTES;
use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

/// A setting of the server, as it is described to people.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) variable: &'static str,
    /// What holds if it is not said, as it would be written in the file.
    pub(crate) usual: &'static str,
    pub(crate) about: &'static str,
}

const fn known(variable: &'static str, usual: &'static str, about: &'static str) -> Known {
    Known { variable, usual, about }
}

/// Every setting of the server.
pub(crate) const SERVER: [Known; 11] = [
    known("HOLDFAST_LISTEN", "\"127.0.0.1:8080\"", "where to listen for HTTP; port 0 takes any free one"),
    known(
        "HOLDFAST_JWKS",
        "\"\"",
        "a file or https URL of public keys (JWKS) whose tokens are trusted besides our own",
    ),
    known("HOLDFAST_JWKS_ISSUER", "\"holdfast\"", "the `iss` of those tokens"),
    known("HOLDFAST_RATE_PER_CREDENTIAL", "50000", "requests a second of one credential; twice as many at once"),
    known("HOLDFAST_RATE_PER_ADDRESS", "100000", "requests a second from one address; twice as many at once"),
    known("HOLDFAST_RATE_FAILURES", "500", "refused credentials a second from one address; twice as many at once"),
    known("HOLDFAST_CONNECTIONS_MAX", "4096", "connections at once"),
    known("HOLDFAST_CHAT_MODEL", "\"echo\"", "the model of a WebSocket's prompt that names none"),
    known("HOLDFAST_CREDITS_LOW_CU", "\"10\"", "an answer that takes a balance below this says so"),
    known("HOLDFAST_CHAT_RATE", "10", "messages a second on one WebSocket"),
    known("HOLDFAST_CHAT_CONNECTIONS_MAX", "1024", "WebSockets at once, and how many of them may be one key's"),
];

/// Every setting about telling the peer.
pub(crate) const PEER: [Known; 12] = [
    known(
        "HOLDFAST_PEER_URL",
        "\"\"",
        "who is told of every charge, at URL/api/internal/finalize; nobody, if not said",
    ),
    known("HOLDFAST_PEER_AUDIENCE", "\"billing\"", "the `aud` of our tokens for the peer"),
    known("HOLDFAST_PEER_CONNECT_TIMEOUT_MS", "5000", "the longest that connecting to it may take"),
    known("HOLDFAST_PEER_TIMEOUT_MS", "10000", "the longest that telling it may take, at most 10000"),
    known("HOLDFAST_PEER_AT_ONCE", "64", "how many charges it is told at once"),
    known("HOLDFAST_PEER_PRIVATE_ADDRESSES", "\"allow\"", "refuse: it must not be at a private address"),
    known(
        "HOLDFAST_PEER_RETRY_QUICK_MS",
        "\"1000,2000,4000,8000,16000\"",
        "the longest pauses after the first failures",
    ),
    known(
        "HOLDFAST_PEER_RETRY_SLOW_MS",
        "\"60000,120000,240000,480000,600000\"",
        "those after that; then it is given up",
    ),
    known("HOLDFAST_PEER_RETRY_AGE_MIN_S", "0", "nothing younger than this is given up"),
    known(
        "HOLDFAST_PEER_CIRCUIT_FAILURES",
        "5",
        "so many failures, and nothing that goes well between them, open the circuit",
    ),
    known("HOLDFAST_PEER_CIRCUIT_WINDOW_MS", "60000", "if they lie within this time"),
    known("HOLDFAST_PEER_CIRCUIT_REST_MS", "30000", "how long the peer is then left alone before one attempt"),
];

/// Every setting about settling charges.
pub(crate) const BILLING: [Known; 4] = [
    known("HOLDFAST_BILLING_REQUIRE_PEER", "false", "true: new paid work is refused while the peer is away"),
    known(
        "HOLDFAST_BILLING_OBLIGATIONS",
        "\"journal\"",
        "where what it is to be told waits: journal, memory, redis://HOST:PORT or postgres://USER@HOST/DATABASE",
    ),
    known(
        "HOLDFAST_BILLING_OBLIGATIONS_CA",
        "\"\"",
        "a PEM file of the authority that signed that PostgreSQL's certificate, if no public one did",
    ),
    known(
        "HOLDFAST_BILLING_OBLIGATIONS_PREFIX",
        "\"finn:hounfour:dlq\"",
        "what the keys in Redis begin with: another for each data directory",
    ),
];

/// Every setting about the performance queue and the wallet.
pub(crate) const QUEUE: [Known; 5] = [
    known(
        "HOLDFAST_QUEUE_SECRET",
        "\"\"",
        "what the queue signs its word to the wallet with, at least 32 random bytes, or NAME:SECRET,NAME:SECRET of which the \
         first signs; better in the environment; one of the process alone, if not said",
    ),
    known(
        "HOLDFAST_QUEUE_WALLET_URL",
        "\"\"",
        "with `serve --role queue`: where the process with the wallet is, such as http://127.0.0.1:8080",
    ),
    known("HOLDFAST_QUEUE_WALLET_AUDIENCE", "\"holdfast\"", "the `aud` of our tokens for it"),
    known(
        "HOLDFAST_QUEUE_ROPE_DROP",
        "\"\"",
        "an item that nobody takes up for so long is given up: 10m, or by featureType solo=5m,group=30m,*=15m; never, if not \
         said",
    ),
    known(
        "HOLDFAST_QUEUE_ORPHAN_AFTER",
        "\"5m\"",
        "an escrow that is held for longer than this without an item is told of as an orphan",
    ),
];

/// The tables, and the settings in each.
pub(crate) const TABLES: [(&str, &[Known]); 4] =
    [("server", &SERVER), ("peer", &PEER), ("billing", &BILLING), ("queue", &QUEUE)];

/// What is shown instead of a value that may be secret.
pub(crate) const HIDDEN: &str = "(not shown)";

impl Known {
    /// Its name in its table.
    pub(crate) fn field(&self) -> String {
        place(self.variable).1
    }
}

/// The table that a setting is in, and its name there.
fn place(variable: &str) -> (&'static str, String) {
    let name = variable.trim_start_matches("HOLDFAST_");
    let of_table = |table| {
        Some((
            table,
            name.strip_prefix(match table {
                "peer" => "PEER_",
                "queue" => "QUEUE_",
                _ => "BILLING_",
            })?,
        ))
    };
    let (table, field) = ["peer", "billing", "queue"].into_iter().find_map(of_table).unwrap_or(("server", name));
    (table, field.to_lowercase())
}

/// A table of the file.
pub(crate) type Table = BTreeMap<String, toml::Value>;

/// What was said about the server, the peer, settling and the queue. Some of it is secret, so it is not shown.
#[derive(Default)]
pub(crate) struct Said {
    file: BTreeMap<&'static str, Table>,
}

/// A value, and what to call it.
struct Value {
    name: String,
    text: OsString,
}

impl Said {
    /// What the tables say, whose fields must all be known.
    pub(crate) fn in_file(file: BTreeMap<&'static str, Table>) -> Result<Self, Failure> {
        for (table, known) in TABLES {
            let fields: Vec<String> = known.iter().map(Known::field).collect();
            let mut said = file.get(table).into_iter().flatten();
            if let Some((name, value)) = said.find(|(name, _)| !fields.contains(name)) {
                return Err(Failure::Setting {
                    name: format!("{table}.{name}"),
                    // It may be a secret whose name is misspelt.
                    value: if table == "queue" { HIDDEN.to_owned() } else { value.to_string() },
                    allowed: format!("one of {}", fields.join(", ")),
                });
            }
        }
        Ok(Self { file })
    }

    fn find(&self, variable: &'static str) -> Option<Value> {
        if let Some(text) = env::var_os(variable) {
            return Some(Value { name: variable.to_owned(), text });
        }
        let (table, name) = place(variable);
        let value = self.file.get(table)?.get(&name)?;
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned).into();
        Some(Value { name: format!("{table}.{name}"), text })
    }

    /// A whole number, if it is said.
    pub(crate) fn number(&self, variable: &'static str, allowed: RangeInclusive<u64>) -> Result<Option<u64>, Failure> {
        let within = |text: &str| text.parse().ok().filter(|number| allowed.contains(number));
        self.parsed(variable, within, || format!("a whole number from {} to {}", allowed.start(), allowed.end()))
    }

    /// A text, if one is said that is not empty.
    pub(crate) fn text(&self, variable: &'static str) -> Result<Option<String>, Failure> {
        let found = self.parsed(variable, |text| Some(text.to_owned()), || "plain text".to_owned())?;
        Ok(found.filter(|text| !text.is_empty()))
    }

    /// A text that is not to be shown, if one is said that is not empty, and what it is called.
    pub(crate) fn secret(&self, variable: &'static str) -> Result<Option<(String, String)>, Failure> {
        let Some(Value { name, text }) = self.find(variable) else { return Ok(None) };
        let refused = |name| Failure::Setting { name, value: HIDDEN.to_owned(), allowed: "plain text".to_owned() };
        match text.into_string() {
            Ok(text) if text.is_empty() => Ok(None),
            Ok(text) => Ok(Some((name, text))),
            Err(_) => Err(refused(name)),
        }
    }

    /// Whatever can be read from a text, if it is said.
    pub(crate) fn parsed<T>(
        &self,
        variable: &'static str,
        read: impl FnOnce(&str) -> Option<T>,
        allowed: impl FnOnce() -> String,
    ) -> Result<Option<T>, Failure> {
        let Some(Value { name, text }) = self.find(variable) else { return Ok(None) };
        let found = text.to_str().and_then(read);
        let refused = || Failure::Setting { name, value: text.to_string_lossy().into_owned(), allowed: allowed() };
        found.map(Some).ok_or_else(refused)
    }
}

/// How long API keys are trusted though the database that has them does not answer, if nobody says.
pub(crate) const KEYS_STALE_AFTER: Duration = Duration::from_secs(60);

/// Where the books are, and how a data directory is laid out and kept up.
#[derive(Clone)]
pub(crate) struct Settings {
    /// The database that has the books; they are in the data directory if not said.
    pub(crate) database: Option<Database>,
    /// How long API keys are trusted though the database that has them does not answer.
    pub(crate) keys_stale_after: Duration,
    /// The size of a segment file of the journal.
    pub(crate) segment_bytes: u32,
    /// A snapshot after so many entries.
    pub(crate) snapshot_entries: u64,
    /// Keys that collect in memory before they are written out; the engine's own number if not said.
    pub(crate) keys_in_memory: Option<usize>,
}

impl Settings {
    /// The usual ones, changed by `HOLDFAST_DATABASE_URL`, `HOLDFAST_DATABASE_CA`, `HOLDFAST_KEYS_STALE_S`,
    /// `HOLDFAST_SEGMENT_BYTES`, `HOLDFAST_SNAPSHOT_ENTRIES` and `HOLDFAST_KEYS_IN_MEMORY`.
    pub(crate) fn from_environment() -> Result<Self, Failure> {
        let said = Said::default();
        let segment_bytes = said.number("HOLDFAST_SEGMENT_BYTES", 65_536..=1 << 30)?;
        let snapshot_entries = said.number("HOLDFAST_SNAPSHOT_ENTRIES", 1..=1 << 62)?;
        let keys_in_memory = said.number("HOLDFAST_KEYS_IN_MEMORY", 1..=1 << 32)?;
        let text = |variable| Ok::<_, Failure>(said.text(variable)?.filter(|text| !text.is_empty()));
        let authorities = text("HOLDFAST_DATABASE_CA")?;
        let database = text("HOLDFAST_DATABASE_URL")?;
        let database = database.map(|url| Database::at(&url, authorities.as_deref().map(Path::new))).transpose()?;
        let keys_stale_s = said.number("HOLDFAST_KEYS_STALE_S", 2..=3_600)?;
        Ok(Self {
            database,
            keys_stale_after: keys_stale_s.map_or(KEYS_STALE_AFTER, Duration::from_secs),
            segment_bytes: segment_bytes.and_then(|bytes| u32::try_from(bytes).ok()).unwrap_or(SEGMENT_BYTES),
            snapshot_entries: snapshot_entries.unwrap_or(Policy::STANDARD.snapshot_entries),
            keys_in_memory: keys_in_memory.and_then(|keys| usize::try_from(keys).ok()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::HttpSettings;
    use crate::settlement::SettlementSettings;

    fn said_in(table: &'static str, text: &str) -> Result<Said, Failure> {
        Said::in_file(BTreeMap::from([(table, toml::from_str(text).unwrap())]))
    }

    fn said(text: &str) -> Result<Said, Failure> {
        said_in("server", text)
    }

    fn read(said: &Said) -> String {
        let (http, settlement) = (HttpSettings::read(said, None).unwrap(), SettlementSettings::read(said).unwrap());
        format!("{http:?} {settlement:?}")
    }

    #[test]
    fn every_setting_has_a_place_in_the_file_and_its_usual_value_is_allowed() {
        let peer = |file: &mut BTreeMap<&'static str, Table>| {
            file.entry("peer").or_default().entry("url".to_owned()).or_insert("http://peer".into());
            Said::in_file(file.clone()).unwrap()
        };
        for (table, settings) in TABLES {
            for known in settings {
                let line = format!("{} = {}", known.field(), known.usual);
                assert_eq!(read(&said_in(table, &line).unwrap()), read(&Said::default()), "{line}");
                let mut file = BTreeMap::from([(table, toml::from_str(&line).unwrap())]);
                if known.variable != "HOLDFAST_PEER_URL" {
                    assert_eq!(read(&peer(&mut file)), read(&peer(&mut BTreeMap::new())), "{line}");
                }
            }
        }
    }

    #[test]
    fn a_bad_setting_in_the_file_names_itself_what_it_was_and_what_is_allowed() {
        for (text, expected) in [
            ("rate_failures = 0", "server.rate_failures is \"0\", and must be a whole number from 1 to 10000000"),
            ("connections_max = \"many\"", "server.connections_max is \"many\", and must be a whole number from 1 to"),
            ("credits_low_cu = \"-1\"", "server.credits_low_cu is \"-1\", and must be an amount of credits"),
            ("rate = 5", "server.rate is \"5\", and must be one of listen, jwks"),
        ] {
            let settings = said(text).and_then(|said| HttpSettings::read(&said, None));
            let refused = settings.unwrap_err();
            assert!(refused.code() == "INVALID_SETTING" && refused.to_string().starts_with(expected), "{refused}");
        }
    }
}
