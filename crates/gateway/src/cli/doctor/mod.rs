//! `holdfast doctor`: whether all is ready to serve. Each line passes, warns or fails, and says what to do.
//!
//! It asks the server of the data directory if one runs, and else opens the directory as a server would. It changes nothing
//! but what every start does (a torn tail is cut, a snapshot is left), and writes one small file, which it removes.

mod books;
mod database;
mod disk;
mod peer;
mod providers;

use super::output::Field;
use super::{Ended, Session};
use crate::config::FileConfig;
use crate::failure::Failure;
use crate::http::{HttpSettings, Listener};
use clap::Args;
use serde_json::{Value, json};
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(super) struct Doctor {
    /// The configuration that the server is to be started with
    #[arg(long, env = "HOLDFAST_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// The file of prices that the server is to be started with
    #[arg(long, env = "HOLDFAST_PRICES", value_name = "FILE")]
    prices: Option<PathBuf>,
    /// Where the server is to listen
    #[arg(long, env = "HOLDFAST_LISTEN", value_name = "ADDR")]
    listen: Option<String>,
    /// Ask the providers too, whether they are there and take our keys
    #[arg(long)]
    online: bool,
}

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Pass,
    Warn,
    Fail,
}

impl Verdict {
    const fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// One line.
struct Finding {
    check: String,
    verdict: Verdict,
    found: String,
    advice: String,
}

impl Finding {
    fn pass(check: &str, found: impl Into<String>) -> Self {
        Self { check: check.to_owned(), verdict: Verdict::Pass, found: found.into(), advice: String::new() }
    }

    fn warn(check: &str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { verdict: Verdict::Warn, advice: advice.into(), ..Self::pass(check, found) }
    }

    fn fail(check: &str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { verdict: Verdict::Fail, advice: advice.into(), ..Self::pass(check, found) }
    }

    /// A failure of the program, with its own advice.
    fn failed(check: &str, failure: &Failure) -> Self {
        Self::fail(check, format!("{}: {failure}", failure.code()), failure.hint())
    }

    fn shown(&self) -> Value {
        json!({ "check": self.check, "verdict": self.verdict.name(), "found": self.found, "advice": self.advice })
    }
}

const LINE: [Field; 4] = [("", "verdict"), ("check", "check"), ("found", "found"), ("what to do", "advice")];

/// Runs every check, and ends with the code of the worst: 0 all pass, 3 something warns, 1 something fails.
pub(super) fn run(session: &Session<'_>, words: &Doctor) -> Result<(), Ended> {
    let data = &session.cli.global.data;
    let mut findings = disk::check(data);
    findings.extend(database::check(session.settings.database.as_ref()));
    let books = books::check(data, &session.settings);
    findings.extend(books.findings);
    let (config, about_config) = configuration(words);
    findings.extend(about_config);
    if let Some((config, http)) = config {
        findings.push(address(&http, books.is_served));
        findings.push(prices(session, words, &config));
        findings.extend(peer::check(&config, words.online));
        findings.extend(providers::check(&config, words.online));
    }
    let worst = findings.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Pass);
    let rows: Vec<Value> = findings.iter().map(Finding::shown).collect();
    if session.output.is_json() {
        let answer = json!({ "ok": worst != Verdict::Fail, "worst": worst.name(), "checks": rows });
        session.output.line(&answer.to_string())?;
    } else {
        session.output.rows(&rows, &LINE)?;
    }
    match worst {
        Verdict::Pass => Ok(()),
        Verdict::Warn => Err(Ended::Told(3)),
        Verdict::Fail => Err(Ended::Told(1)),
    }
}

fn configuration(words: &Doctor) -> (Option<(FileConfig, HttpSettings)>, Vec<Finding>) {
    let read = FileConfig::read(words.config.as_deref()).and_then(|config| {
        let http = HttpSettings::read(&config.said()?, words.listen.as_deref())?;
        http.peer_keys()?;
        config.clone().providers()?;
        Ok((config, http))
    });
    match read {
        Err(failure) => (None, vec![Finding::failed("configuration", &failure)]),
        Ok(read) => {
            let file = words.config.as_ref().map(|file| file.display().to_string());
            let found = file.unwrap_or_else(|| "none; the usual settings, and the environment's".to_owned());
            (Some(read), vec![Finding::pass("configuration", found)])
        }
    }
}

fn prices(session: &Session<'_>, words: &Doctor, config: &FileConfig) -> Finding {
    match config.open_prices(&session.cli.global.data, words.prices.as_deref()) {
        Err(failure) => Finding::failed("prices", &failure),
        Ok(prices) => match config.unpriced(&prices).as_slice() {
            [] => Finding::pass("prices", "readable, and every configured model has one"),
            unpriced => Finding::warn(
                "prices",
                format!("no price for {}", unpriced.join(", ")),
                "give them one: holdfast prices import FILE; until then they are refused",
            ),
        },
    }
}

/// Whether the server can have its address.
fn address(http: &HttpSettings, is_served: bool) -> Finding {
    let listen = &http.listen;
    match Listener::bind(http) {
        Ok(_) => Finding::pass("address", format!("{listen} is free")),
        Err(_) if is_served => Finding::pass("address", format!("{listen} is in use, most likely by the server")),
        Err(failure) => Finding::failed("address", &failure),
    }
}
