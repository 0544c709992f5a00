//! `hangups`: clients that hang up at random points of streams, and whether the books are right afterwards.

use clap::Args;
use holdfast_domain::{CreditsPerUsd, Price};
use holdfast_simulator::outside::OutsideError;
use holdfast_simulator::outside::hangups::{Options, Outcome, run};
use holdfast_simulator::outside::operator::Operator;
use holdfast_simulator::outside::tariff::Tariff;
use std::path::PathBuf;
use std::process::ExitCode;
use tokio::runtime::Builder;

/// Hangs up at random points of streams through a gateway, and compares its books with what the upstream did.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The gateway, http://HOST:PORT.
    #[arg(long)]
    base_url: String,
    /// The mock upstream behind it.
    #[arg(long)]
    upstream_url: String,
    /// The program, to mint and to make a key and a token with.
    #[arg(long)]
    holdfast: PathBuf,
    /// The data directory of the gateway that runs.
    #[arg(long)]
    data: PathBuf,
    /// How many requests.
    #[arg(long, default_value_t = 10_000)]
    requests: u64,
    /// How many at the same time.
    #[arg(long, default_value_t = 64)]
    clients: usize,
    /// What everything random follows from [default: another one each time].
    #[arg(long)]
    seed: Option<u64>,
    /// What is asked for.
    #[arg(long, default_value = "mock")]
    model: String,
    /// Dollars per million tokens of the prompt.
    #[arg(long)]
    input_price: Price,
    /// Dollars per million tokens of the answer.
    #[arg(long)]
    output_price: Price,
    /// The credits that the account is given.
    #[arg(long, default_value = "100000")]
    credits: String,
}

pub(crate) fn main(arguments: Arguments) -> ExitCode {
    let seed = arguments.seed.unwrap_or_else(|| std::process::id().into());
    let runtime = Builder::new_multi_thread().enable_all().build();
    let outcome = runtime.map_err(OutsideError::io("start a runtime")).and_then(|runtime| {
        let options = options(arguments, seed)?;
        runtime.block_on(run(&options))
    });
    match outcome {
        Ok(outcome) => report(&outcome, seed),
        Err(error) => {
            eprintln!("hangups: seed {seed}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn options(arguments: Arguments, seed: u64) -> Result<Options, OutsideError> {
    let operator = Operator::of(arguments.holdfast, arguments.data);
    let account = format!("hangups-{seed}");
    let credits = arguments.credits.parse();
    operator.mint(&account, credits.map_err(|error| OutsideError::answered("--credits", format!("{error}")))?)?;
    Ok(Options {
        api_key: operator.new_key(&account)?,
        base_url: arguments.base_url,
        upstream_url: arguments.upstream_url,
        model: arguments.model,
        tariff: Tariff {
            input: arguments.input_price,
            output: arguments.output_price,
            credits_per_usd: CreditsPerUsd::DEFAULT,
        },
        requests: arguments.requests,
        clients: arguments.clients,
        seed,
    })
}

fn report(outcome: &Outcome, seed: u64) -> ExitCode {
    print!("{outcome}");
    let faults = outcome.faults();
    for fault in faults.iter().take(20) {
        println!("{fault}");
    }
    println!("seed {seed}: {} requests, {} wrong", outcome.judged.len(), faults.len());
    if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
