//! `holdfast init` and `holdfast config`: the configuration written, tried, and taken over from another gateway.

use super::output::Field;
use super::{Ended, Session};
use crate::config::{FileConfig, ProviderSeen};
use crate::failure::Failure;
use crate::http::HttpSettings;
use crate::queue::QueueSettings;
use crate::settings::{BILLING, Known, PEER, QUEUE, SERVER};
use crate::settlement::SettlementSettings;
use crate::terminal;
use crate::wallet::Secrets;
use clap::{Args, Subcommand};
use holdfast_adapters::providers::config::{Kind, ProviderConfig};
use holdfast_adapters::providers::{Config, Imported, from_litellm};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
pub(super) struct Init {
    /// Where to; - for standard output
    #[arg(default_value = "holdfast.toml")]
    file: PathBuf,
    /// Write over a file that is there
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum ConfigCommand {
    /// Read a configuration as the server would, and say what is in it
    Check {
        /// Which
        file: PathBuf,
    },
    /// Take over another gateway's configuration
    #[command(subcommand)]
    Import(Import),
}

#[derive(Debug, Subcommand)]
pub(super) enum Import {
    /// Take over the `model_list` of LiteLLM's config.yaml
    Litellm {
        /// LiteLLM's file
        file: PathBuf,
        /// Where to; standard output if not said
        #[arg(long, value_name = "FILE")]
        to: Option<PathBuf>,
        /// Write over a file that is there
        #[arg(long, requires = "to")]
        force: bool,
    },
}

/// Writes a configuration in which everything is explained and nothing is changed.
pub(super) fn init(session: &Session<'_>, words: &Init) -> Result<(), Ended> {
    let text = commented();
    if words.file == Path::new("-") {
        return Ok(io::stdout().lock().write_all(text.as_bytes())?);
    }
    write(&words.file, &text, words.force)?;
    let file = words.file.display().to_string();
    if session.output.is_json() {
        return Ok(session.output.line(&json!({ "ok": true, "file": file }).to_string())?);
    }
    Ok(session.output.line(&format!("wrote {file}; use it with: holdfast serve --config {file}"))?)
}

pub(super) fn run(session: &Session<'_>, command: &ConfigCommand) -> Result<(), Ended> {
    match command {
        ConfigCommand::Check { file } => check(session, file),
        ConfigCommand::Import(Import::Litellm { file, to, force }) => import(session, file, to.as_deref(), *force),
    }
}

const HEAD: &str = "\
# The configuration of Holdfast: holdfast serve --config FILE (or HOLDFAST_CONFIG=FILE).
# A setting behind a # is what holds without it. `holdfast config check FILE` tries the file.
# No secret belongs into it: it names the variables of the environment that have them.

# What models cost, beside this file (HOLDFAST_PRICES); prices.toml in the data directory if not said.
# `holdfast prices import FILE` makes one from LiteLLM's list.
#prices = \"prices.toml\"

# Each of these is a variable of the environment too, which goes first.
[server]
";

const PROVIDERS: &str = "
# Who answers. Without any: the built-in model echo, and OpenAI and Anthropic if OPENAI_API_KEY or ANTHROPIC_API_KEY is set.
# With any: only those that are written here.
#[providers.echo]
#kind = \"echo\"                             # openai, anthropic or echo

#[providers.openai]
#kind = \"openai\"                           # or whatever speaks like it
#key_env = \"OPENAI_API_KEY\"                # the variable that has the key
#base_url = \"https://api.openai.com/v1\"

#[providers.anthropic]
#kind = \"anthropic\"
#key_env = \"ANTHROPIC_API_KEY\"
#base_url = \"https://api.anthropic.com\"
";

const MODELS: &str = "
# Names that callers may ask for besides PROVIDER/MODEL, and who answers for them.
#[[models]]
#name = \"fast\"
#targets = [
#  { provider = \"openai\", model = \"gpt-4o-mini\", weight = 3 },
#  { provider = \"anthropic\", model = \"claude-haiku-4-5\", priority = 1 },   # when those before fail
#]
";

const ABOUT_PEER: &str = "
# The service that is told of every charge, exactly once in effect. Charges from before it was configured are told too.
[peer]
";

fn commented() -> String {
    let mut text = HEAD.to_owned();
    let mut explain = |head: &str, settings: &[Known]| {
        text.push_str(head);
        for known in settings {
            let Known { variable, usual, about } = known;
            let said = format!("#{} = {usual}", known.field());
            let _never_fails = writeln!(text, "{said:<40} # {about} ({variable})");
        }
    };
    explain("", &SERVER);
    explain(ABOUT_PEER, &PEER);
    explain("\n[billing]\n", &BILLING);
    explain("\n[queue]\n", &QUEUE);
    text.push_str(PROVIDERS);
    text.push_str("\n# How long and how much, for each provider; times in milliseconds.\n");
    let usual = toml::Table::try_from(ProviderConfig::new(Kind::OpenAi)).unwrap_or_default();
    for (field, value) in usual.iter().filter(|(field, _)| *field != "kind") {
        let _never_fails = writeln!(text, "#{field} = {value}");
    }
    text.push_str(MODELS);
    text
}

/// Writes a file that is not there, unless it may be written over.
fn write(path: &Path, text: &str, force: bool) -> Result<(), Failure> {
    let mut options = OpenOptions::new();
    options.write(true);
    let options = if force { options.create(true).truncate(true) } else { options.create_new(true) };
    let written = options.open(path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| {
        if error.kind() == io::ErrorKind::AlreadyExists {
            return Failure::Exists(path.to_owned());
        }
        Failure::io(format!("write {}", path.display()))(error)
    })
}

const PROVIDER: [Field; 4] = [("provider", "name"), ("speaks", "kind"), ("key", "key"), ("at", "base_url")];

fn check(session: &Session<'_>, file: &Path) -> Result<(), Ended> {
    let config = FileConfig::read(Some(file))?;
    HttpSettings::read(&config.said()?, None)?;
    let settlement = SettlementSettings::read(&config.said()?)?;
    Secrets::read(&config.said()?)?;
    QueueSettings::read(&config.said()?)?;
    let peer = settlement.as_ref().map(|settlement| settlement.peer.url.clone());
    let prices = config.open_prices(&session.cli.global.data, None)?;
    let (models, unpriced) = (config.models(), config.unpriced(&prices));
    let seen: Vec<Value> = config.providers_seen().iter().map(shown).collect();
    config.providers()?;
    if session.output.is_json() {
        let answer = json!({ "ok": true, "providers": seen, "models": models, "unpriced": unpriced, "peer": peer });
        return Ok(session.output.line(&answer.to_string())?);
    }
    session.output.line(&format!("sound: {} can be served with {models} models", file.display()))?;
    session.output.rows(&seen, &PROVIDER)?;
    match peer {
        Some(url) => session.output.line(&format!("the peer at {url} is told of every charge"))?,
        None => session.output.line("no peer is told of charges; [peer] url names one")?,
    }
    for model in unpriced {
        session.output.line(&format!("the model {model} has no price, and is refused until it has one"))?;
    }
    Ok(())
}

fn shown(provider: &ProviderSeen) -> Value {
    let key = match (&provider.key_env, provider.has_key) {
        (None, _) => "none needed".to_owned(),
        (Some(variable), true) => format!("in {variable}"),
        (Some(variable), false) => format!("{variable} is not set"),
    };
    json!({ "name": provider.name, "kind": kind_name(provider.kind), "key": key, "base_url": provider.base_url })
}

/// A kind as it is written in the file.
pub(super) const fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::OpenAi => "openai",
        Kind::Anthropic => "anthropic",
        Kind::Echo => "echo",
    }
}

fn import(session: &Session<'_>, file: &Path, to: Option<&Path>, force: bool) -> Result<(), Ended> {
    let unusable = |why: String| Failure::Config { path: file.to_owned(), why };
    let yaml = fs::read_to_string(file).map_err(|error| unusable(error.to_string()))?;
    let Imported { config, notes } = from_litellm(&yaml).map_err(|error| unusable(error.to_string()))?;
    let text = taken_over(&config, &notes).map_err(|error| unusable(error.to_string()))?;
    if let Some(to) = to {
        write(to, &text, force)?;
    }
    if session.output.is_json() {
        return Ok(session.output.line(&json!({ "ok": true, "toml": text, "notes": notes }).to_string())?);
    }
    for note in &notes {
        terminal::note(note);
    }
    match to {
        None => Ok(io::stdout().lock().write_all(text.as_bytes())?),
        Some(to) => Ok(session.output.line(&format!(
            "wrote {} models of {} providers to {}; what they cost: holdfast prices import FILE",
            config.models.len(),
            config.providers.len(),
            to.display()
        ))?),
    }
}

/// The configuration as it would be written by hand: what is as usual is not said.
fn taken_over(config: &Config, notes: &[String]) -> Result<String, toml::ser::Error> {
    let mut table = toml::Table::try_from(config)?;
    for (name, settings) in &config.providers {
        let usual = toml::Table::try_from(ProviderConfig::new(settings.kind))?;
        let said = table.get_mut("providers").and_then(|all| all.get_mut(name)).and_then(toml::Value::as_table_mut);
        if let Some(said) = said {
            said.retain(|field, value| field == "kind" || usual.get(field) != Some(value));
        }
    }
    let mut text = "# Taken over from LiteLLM's config.yaml by `holdfast config import litellm`.\n".to_owned();
    for note in notes {
        let _never_fails = writeln!(text, "# {note}");
    }
    text.push('\n');
    text.push_str(&toml::to_string(&table)?);
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::TABLES;

    #[test]
    fn what_init_writes_is_a_configuration_commented_or_not() {
        let text = commented();
        let config: FileConfig = toml::from_str(&text).unwrap();
        HttpSettings::read(&config.said().unwrap(), None).unwrap();
        config.providers().unwrap();
        for known in TABLES.iter().flat_map(|(_, settings)| *settings) {
            assert!(text.contains(known.variable), "{}", known.variable);
        }
        // Whoever takes every # away that stands before a setting has a sound configuration too.
        let bare = |line: &str| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).unwrap_or(line).to_owned();
        let whole: Vec<String> = text.lines().map(bare).collect();
        let whole = whole.join("\n").replace("#  {", "  {").replace("#]", "]");
        let config: FileConfig = toml::from_str(&whole).unwrap();
        assert_eq!((config.providers_seen().len(), config.models()), (3, 1));
        HttpSettings::read(&config.said().unwrap(), None).unwrap();
        config.providers().unwrap();
    }
}
