//! The command line: every command becomes a line of the wire, goes through a [`Door`], and is shown.

mod args;
mod bench;
mod config;
mod doctor;
mod door;
mod escrows;
mod journal;
mod keys;
mod limits;
mod migrate;
mod moving;
mod obligations;
mod output;
mod prices;
mod queue;
mod rebuild;
mod requests;
mod show;
mod token;

use crate::config::FileConfig;
use crate::control::{self, Plan};
use crate::failure::Failure;
use crate::http::HttpSettings;
use crate::queue::QueueSettings;
use crate::service;
use crate::settings::Settings;
use crate::settlement::SettlementSettings;
use crate::wallet::Secrets;
use args::{Accounts, Bench, Cli, Command};
use clap::{CommandFactory, Parser};
use clap_complete::Shell;
use door::{Door, IfMissing};
use output::Output;
use serde_json::Value;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

/// What is said on standard error about a command that did not do what was asked.
#[derive(Debug)]
struct Complaint {
    code: String,
    message: String,
    hint: String,
}

/// Why a command did not do what was asked.
#[derive(Debug)]
enum Ended {
    /// The ledger refused.
    Refused(Complaint),
    /// Something failed on the way.
    Failed(Failure),
    /// All was told; only the exit code is left to say.
    Told(u8),
    /// Whoever read the output has gone away, which is no failure.
    NobodyReads,
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<io::Error> for Ended {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Self::NobodyReads
        } else {
            Self::Failed(Failure::io("write the output")(error))
        }
    }
}

/// Runs the program with the arguments of the process.
pub(crate) fn main() -> ExitCode {
    let complaint = match run(&Cli::parse()) {
        Ok(()) | Err(Ended::NobodyReads) => return ExitCode::SUCCESS,
        Err(Ended::Told(code)) => return ExitCode::from(code),
        Err(Ended::Refused(complaint)) => complaint,
        Err(Ended::Failed(failure)) => {
            Complaint { code: failure.code().to_owned(), message: failure.to_string(), hint: failure.hint() }
        }
    };
    let Complaint { code, message, hint } = complaint;
    let _nobody_reads = writeln!(io::stderr().lock(), "error[{code}]: {message}\nhint: {hint}");
    ExitCode::FAILURE
}

fn run(cli: &Cli) -> Result<(), Ended> {
    let settings = Settings::from_environment()?;
    let output = if cli.global.json { Output::for_programs() } else { Output::for_people() };
    let session = Session { cli, settings: settings.clone(), output };
    match &cli.command {
        Command::Serve(serve) => {
            let config = FileConfig::read(serve.config.as_deref())?;
            let http = HttpSettings::read(&config.said()?, serve.listen.as_deref())?;
            let settlement = SettlementSettings::read(&config.said()?)?;
            let queue = QueueSettings::read(&config.said()?)?;
            let secrets = serve.role.secrets(Secrets::read(&config.said()?)?)?;
            serve.role.wallet_elsewhere(&queue)?;
            let plan = Plan { http, settlement, queue, secrets, role: serve.role };
            Ok(control::serve(&cli.global.data, &settings, plan, config, serve.prices.as_deref())?)
        }
        Command::Keys(command) => keys::run(&session, command),
        Command::Token(words) => token::run(&session, words),
        Command::Mint(mint) => session.change(requests::mint(mint)?, IfMissing::Make),
        Command::Accounts(Accounts::Limit(words)) => limits::account(&session, words),
        Command::Accounts(Accounts::Look(look)) => session.look(&requests::accounts(look), show::for_accounts(look)),
        Command::Teams(words) => limits::team(&session, words),
        Command::Organisations(words) => limits::organisation(&session, words),
        Command::Limits(words) => limits::list(&session, words),
        Command::Reservations(reservations) => match requests::reservations(reservations)? {
            requests::Asking::Change(request) => session.change(request, IfMissing::Refuse),
            requests::Asking::Look(request) => session.look(&request, show::for_reservations(reservations)),
        },
        Command::Escrows(words) => escrows::run(&session, words),
        Command::Queue(command) => queue::run(&session, command),
        Command::Obligations(command) => obligations::run(&session, command),
        Command::Journal(command) => journal::run(&session, command),
        Command::Prices(command) => prices::run(&session, command),
        Command::Rebuild => rebuild::run(&session),
        Command::Migrate(words) => migrate::run(&session, words),
        Command::Export(words) => moving::export(&session, words),
        Command::Import(words) => moving::import(&session, words),
        Command::Init(words) => config::init(&session, words),
        Command::Config(command) => config::run(&session, command),
        Command::Doctor(words) => doctor::run(&session, words),
        Command::Bench(Bench::Ledger { seconds, callers, batch }) => {
            let duration = Duration::from_secs(*seconds);
            bench::ledger(&session, bench::Plan { duration, callers: *callers, batch: *batch })
        }
        Command::Completions { shell } => completions(*shell),
    }
}

fn completions(shell: Shell) -> Result<(), Ended> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "holdfast", &mut script);
    Ok(io::stdout().lock().write_all(&script)?)
}

/// One run of the program.
struct Session<'a> {
    cli: &'a Cli,
    settings: Settings,
    output: Output,
}

impl Session<'_> {
    /// Has the books changed, and shows what was done.
    fn change(&self, request: Value, if_missing: IfMissing) -> Result<(), Ended> {
        let key = request.get("key").cloned();
        let (line, mut answer) = self.ask(&request, if_missing)?;
        if self.output.is_json() {
            return Ok(self.output.line(&line)?);
        }
        // The answer does not repeat the key, and a generated one is worth knowing.
        if let (Some(key), Some(fields)) = (key, answer.as_object_mut()) {
            fields.insert("key".to_owned(), key);
        }
        Ok(show::receipt(&self.output, &answer)?)
    }

    /// Looks at the books, and shows what was seen.
    fn look(&self, request: &Value, show: show::Show) -> Result<(), Ended> {
        self.show(request, IfMissing::Refuse, show)
    }

    /// Asks one thing, and shows the answer.
    fn show(&self, request: &Value, if_missing: IfMissing, show: show::Show) -> Result<(), Ended> {
        let answered = self.answer(request, if_missing)?;
        self.show_answer(answered, show)
    }

    /// Shows an answer, if it is no refusal.
    fn show_answer(&self, answered: (String, Value), show: show::Show) -> Result<(), Ended> {
        let (line, answer) = self.unless_refused(answered)?;
        if self.output.is_json() {
            return Ok(self.output.line(&line)?);
        }
        Ok(show(&self.output, &answer)?)
    }

    /// Asks one thing: the line that answers it, and what it says, if it is no refusal.
    fn ask(&self, request: &Value, if_missing: IfMissing) -> Result<(String, Value), Ended> {
        let answered = self.answer(request, if_missing)?;
        self.unless_refused(answered)
    }

    /// Asks one thing: the line that answers it, and what it says, a refusal too.
    fn answer(&self, request: &Value, if_missing: IfMissing) -> Result<(String, Value), Ended> {
        // What is badly said is refused before a data directory is opened, or even made, for it.
        let line = match service::refused_unasked(&request.to_string()) {
            Some(refusal) => refusal,
            None => {
                let mut door = Door::open(&self.cli.global.data, &self.settings, if_missing)?;
                let line = door.ask(request);
                door.close()?;
                line?
            }
        };
        let answer: Value = serde_json::from_str(&line).map_err(|error| Failure::ServerStrange(error.to_string()))?;
        Ok((line, answer))
    }

    fn unless_refused(&self, (line, answer): (String, Value)) -> Result<(String, Value), Ended> {
        if answer.get("ok") == Some(&Value::Bool(true)) {
            return Ok((line, answer));
        }
        if self.output.is_json() {
            self.output.line(&line)?;
        }
        Err(refusal(&answer))
    }
}

/// A refusal, from the answer that says so.
fn refusal(answer: &Value) -> Ended {
    let text = |field: &str| answer.pointer(&format!("/error/{field}")).and_then(Value::as_str).unwrap_or_default();
    let (code, message) = (text("code").to_owned(), text("message").to_owned());
    let hint = match (text("action"), code.as_str(), text("check")) {
        ("pay", ..) => "credit the account first: holdfast mint ACCOUNT AMOUNT_CU --reason TEXT".to_owned(),
        (_, "QUEUE_OFF", _) => "start the server of this data directory, or name the queue's with --data".to_owned(),
        (_, _, "linked") => {
            "find its item with holdfast queue list; holdfast queue abandon ITEM gives it back".to_owned()
        }
        ("retry_later", ..) => "ask again in a moment, with the same --key or id".to_owned(),
        _ => format!("change the request; docs/errors/{code}.md says more"),
    };
    Ended::Refused(Complaint { code, message, hint })
}
