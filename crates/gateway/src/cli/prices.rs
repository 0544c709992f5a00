//! `holdfast prices`: what models cost, and where the prices come from.

use super::output::Field;
use super::{Ended, Session};
use crate::failure::Failure;
use crate::prices::litellm::{self, Choice, LeaveOut, Taken};
use crate::prices::{Above, IfMissing, ModelPrice, Prices, PricesError, own_models, write};
use crate::tokens::{self, Family, Shape};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

#[derive(Debug, Subcommand)]
pub(super) enum PricesCommand {
    /// All models that have a price
    List {
        #[command(flatten)]
        place: Place,
    },
    /// The price of one model, by any of its names
    Show {
        /// Which, such as gpt-4o or openai/gpt-4o
        model: String,
        #[command(flatten)]
        place: Place,
    },
    /// Check a file of prices as the server would read it
    Check {
        /// Which
        file: PathBuf,
    },
    /// Take prices over from LiteLLM's model_prices_and_context_window.json
    ///
    /// Of every price that could apply to a kind of token the dearest is taken, and a note says which. A model whose price
    /// cannot be told in tokens and requests is skipped, and why is told: nothing is undercharged silently. The list's
    /// prices replace those of the file; other models and all aliases stay, comments do not.
    Import(Import),
    /// The tokens of a request and the most that it can cost, which is what would be held
    Estimate(Estimate),
}

#[derive(Debug, Args)]
pub(super) struct Place {
    /// The file of prices (prices.toml in the data directory if not said)
    #[arg(long, env = "HOLDFAST_PRICES", value_name = "FILE")]
    prices: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct Import {
    /// LiteLLM's list
    file: PathBuf,
    #[command(flatten)]
    place: Place,
    /// Only models whose names begin so, such as gpt- or claude-; may be given several times
    #[arg(long, value_name = "PREFIX")]
    only: Vec<String>,
    /// Prices that cannot happen here, and so need not be looked at; may be given several times
    #[arg(long, value_name = "KIND")]
    leave_out: Vec<LeaveOutWord>,
    /// Say what would be written, and write nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LeaveOutWord {
    /// Priority, flex and batch prices: no request may ask for a service tier
    Tiers,
    /// Prices of audio, images and video: all requests are text
    Modalities,
    /// Prices of caches that live an hour: no request asks for one
    HourCache,
}

#[derive(Debug, Args)]
pub(super) struct Estimate {
    /// The request's body as JSON
    file: PathBuf,
    /// Which API it is for
    #[arg(long = "for", default_value = "chat")]
    shape: ShapeWord,
    /// The most tokens of output, if the request does not say
    #[arg(long, value_name = "N")]
    max_output: Option<u64>,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ShapeWord {
    /// /v1/chat/completions
    Chat,
    /// /v1/responses
    Responses,
    /// /v1/messages
    Messages,
    /// /v1/embeddings
    Embeddings,
}

pub(super) fn run(session: &Session<'_>, command: &PricesCommand) -> Result<(), Ended> {
    match command {
        PricesCommand::List { place } => list(session, &open(session, place)?),
        PricesCommand::Show { model, place } => {
            let model = open(session, place)?.find(model).map_err(Failure::Model)?;
            show(session, &model)
        }
        PricesCommand::Check { file } => {
            list(session, &Prices::open(file, IfMissing::Refuse).map_err(Failure::Prices)?)
        }
        PricesCommand::Import(words) => import(session, words),
        PricesCommand::Estimate(words) => estimate(session, words),
    }
}

fn path(session: &Session<'_>, place: &Place) -> PathBuf {
    place.prices.clone().unwrap_or_else(|| session.cli.global.data.join("prices.toml"))
}

fn open(session: &Session<'_>, place: &Place) -> Result<Prices, Failure> {
    let if_missing = if place.prices.is_some() { IfMissing::Refuse } else { IfMissing::UseBuiltIn };
    Prices::open(&path(session, place), if_missing).map_err(Failure::Prices)
}

const COLUMNS: [Field; 11] = [
    ("model", "model"),
    ("input", "input"),
    ("output", "output"),
    ("cached input", "cached_input"),
    ("cache write", "cache_write"),
    ("reasoning", "reasoning"),
    ("per request", "per_request"),
    ("long prompts", "above"),
    ("context", "context"),
    ("max output", "max_output"),
    ("notes", "notes"),
];

/// The prices of longer prompts, on one line.
fn longer(above: &[Above]) -> String {
    let one = |above: &Above| {
        let Above { input_tokens, rates } = above;
        format!("above {input_tokens} tokens: {} in, {} out", rates.input, rates.output)
    };
    above.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// A model on the wire: prices in dollars per million tokens, as strings.
fn shown(model: &ModelPrice, notes: &[String]) -> Value {
    let rates = &model.rates;
    let fields = [
        ("model", json!(model.name)),
        ("provider", json!(model.provider)),
        ("input", json!(rates.input.to_string())),
        ("output", json!(rates.output.to_string())),
        ("cached_input", json!(rates.cached_input.map(|price| price.to_string()))),
        ("cache_write", json!(rates.cache_write.map(|price| price.to_string()))),
        ("reasoning", json!(rates.reasoning.map(|price| price.to_string()))),
        ("per_request", json!(rates.per_request.map(|price| price.to_string()))),
        ("above", json!((!model.above.is_empty()).then(|| longer(&model.above)))),
        ("credits_per_usd", json!(rates.credits_per_usd.get())),
        ("context", json!(model.context)),
        ("max_output", json!(model.max_output)),
        ("aliases", json!((!model.aliases.is_empty()).then(|| model.aliases.join(", ")))),
        ("notes", json!((!notes.is_empty()).then(|| notes.join("; ")))),
    ];
    let there = fields.into_iter().filter(|(_, value)| !value.is_null());
    Value::Object(there.map(|(name, value)| (name.to_owned(), value)).collect())
}

fn list(session: &Session<'_>, prices: &Prices) -> Result<(), Ended> {
    let table = prices.table();
    let models: Vec<Value> = table.models().map(|model| shown(model, &[])).collect();
    let health = prices.health();
    if session.output.is_json() {
        let credits = table.credits_per_usd().get();
        let answer = json!({ "ok": true, "file": health.path, "credits_per_usd": credits, "models": models });
        return Ok(session.output.line(&answer.to_string())?);
    }
    session.output.rows(&models, COLUMNS.split_last().map_or(&COLUMNS, |(_notes, columns)| columns))?;
    let credits = table.credits_per_usd().get();
    Ok(session
        .output
        .line(&format!("{} models, in dollars per million tokens; a dollar is {credits} credits", health.models))?)
}

fn show(session: &Session<'_>, model: &ModelPrice) -> Result<(), Ended> {
    let model = shown(model, &[]);
    if session.output.is_json() {
        return Ok(session.output.line(&json!({ "ok": true, "model": model }).to_string())?);
    }
    let fields: Vec<Field> = COLUMNS.into_iter().chain([("provider", "provider"), ("aliases", "aliases")]).collect();
    Ok(session.output.object(&model, &fields)?)
}

fn import(session: &Session<'_>, words: &Import) -> Result<(), Ended> {
    let target = path(session, &words.place);
    let (own, credits_per_usd) = own_models(&target).map_err(Failure::Prices)?;
    let leave_out = words.leave_out.iter().map(|word| match word {
        LeaveOutWord::Tiers => LeaveOut::Tiers,
        LeaveOutWord::Modalities => LeaveOut::Modalities,
        LeaveOutWord::HourCache => LeaveOut::HourCache,
    });
    let choice = Choice { only: words.only.clone(), leave_out: leave_out.collect(), credits_per_usd };
    let taken = litellm::read(&words.file, &read(&words.file)?, &choice).map_err(Failure::Prices)?;
    let merged = litellm::merge(own, &taken);
    if !words.dry_run {
        write::replace(&target, &write::text(merged.values(), credits_per_usd)).map_err(Failure::Prices)?;
    }
    tell(session, &Done { target: &target, taken: &taken, models: merged.len(), is_written: !words.dry_run })
}

/// What an import did.
struct Done<'a> {
    target: &'a Path,
    taken: &'a [Taken],
    models: usize,
    is_written: bool,
}

fn tell(session: &Session<'_>, done: &Done<'_>) -> Result<(), Ended> {
    let mut imported = Vec::new();
    let mut skipped = Vec::new();
    for taken in done.taken {
        match taken {
            Taken::Imported { model, notes } => imported.push(shown(model, notes)),
            Taken::Skipped { name, why } => skipped.push(json!({ "model": name, "why": why })),
        }
    }
    if session.output.is_json() {
        let answer = json!({
            "ok": true,
            "file": done.target,
            "written": done.is_written,
            "models": done.models,
            "imported": imported,
            "skipped": skipped,
        });
        return Ok(session.output.line(&answer.to_string())?);
    }
    if !imported.is_empty() {
        session.output.rows(&imported, &COLUMNS)?;
    }
    if !skipped.is_empty() {
        session.output.rows(&skipped, &[("skipped", "model"), ("why", "why")])?;
    }
    let place = done.target.display();
    let whole = if done.is_written {
        format!("{place} now has {} models", done.models)
    } else {
        format!("{place} would have {} models; nothing is written", done.models)
    };
    Ok(session.output.line(&format!("{} imported, {} skipped; {whole}", imported.len(), skipped.len()))?)
}

fn read(file: &Path) -> Result<String, Failure> {
    fs::read_to_string(file).map_err(|error| Failure::Prices(PricesError::Unreadable { path: file.to_owned(), error }))
}

fn estimate(session: &Session<'_>, words: &Estimate) -> Result<(), Ended> {
    let refused = |why: String| Failure::Request { file: words.file.clone(), why };
    let body: Value = serde_json::from_str(&read(&words.file)?).map_err(|error| refused(error.to_string()))?;
    let name = body.get("model").and_then(Value::as_str).ok_or_else(|| refused("it names no model".to_owned()))?;
    let model = open(session, &words.place)?.find(name).map_err(Failure::Model)?;
    let shape = match words.shape {
        ShapeWord::Chat => Shape::Chat,
        ShapeWord::Responses => Shape::Responses,
        ShapeWord::Messages => Shape::Messages,
        ShapeWord::Embeddings => Shape::Embeddings,
    };
    let input = tokens::count(shape, Family::of_model(&model.name), &body);
    let bound = match (input.hidden, model.context) {
        (None, _) => input.bound,
        (Some(_), Some(context)) => context,
        (Some(field), None) => {
            return Err(
                refused(format!("{field} hides how long the input is, and the model has no context here")).into()
            );
        }
    };
    let said = ["max_completion_tokens", "max_output_tokens", "max_tokens"];
    let said = said.iter().find_map(|field| body.get(field).and_then(Value::as_u64));
    let max_output = match shape {
        Shape::Embeddings => Some(0),
        Shape::Chat | Shape::Responses | Shape::Messages => said.or(words.max_output).or(model.max_output),
    };
    let max_output =
        max_output.ok_or_else(|| refused("give the most tokens of output with --max-output".to_owned()))?;
    let (hold, _) = model.dearest(bound, max_output).map_err(|error| refused(error.to_string()))?;
    let answer = json!({
        "ok": true,
        "model": model.name,
        "input_tokens": input.counted,
        "input_tokens_max": bound,
        "output_tokens_max": max_output,
        "hold_cu": hold.to_string(),
    });
    if session.output.is_json() {
        return Ok(session.output.line(&answer.to_string())?);
    }
    let fields = [
        ("model", "model"),
        ("input tokens", "input_tokens"),
        ("at most", "input_tokens_max"),
        ("output at most", "output_tokens_max"),
        ("hold", "hold_cu"),
    ];
    Ok(session.output.object(&answer, &fields)?)
}
