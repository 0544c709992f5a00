//! `money-behaviour`: what gateways get wrong with money, done to this one.

use clap::Args;
use holdfast_domain::{CreditsPerUsd, Price};
use holdfast_simulator::outside::money::{ROWS, World};
use holdfast_simulator::outside::operator::Operator;
use holdfast_simulator::outside::tariff::Tariff;
use std::path::PathBuf;
use std::process::ExitCode;
use tokio::runtime::Builder;

/// Does to a gateway what others get wrong with money; one line per row, and 1 if one does not hold.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The gateway, http://HOST:PORT.
    #[arg(long)]
    base_url: String,
    /// The mock upstream behind it.
    #[arg(long)]
    upstream_url: String,
    /// The program, to mint and to make keys and tokens with.
    #[arg(long)]
    holdfast: PathBuf,
    /// The data directory of the gateway that runs.
    #[arg(long)]
    data: PathBuf,
    /// What is asked for.
    #[arg(long, default_value = "mock")]
    model: String,
    /// Dollars per million tokens of the prompt.
    #[arg(long)]
    input_price: Price,
    /// Dollars per million tokens of the answer.
    #[arg(long)]
    output_price: Price,
}

pub(crate) fn main(arguments: Arguments) -> ExitCode {
    let world = World {
        base_url: arguments.base_url,
        upstream_url: arguments.upstream_url,
        operator: Operator::of(arguments.holdfast, arguments.data),
        model: arguments.model,
        tariff: Tariff {
            input: arguments.input_price,
            output: arguments.output_price,
            credits_per_usd: CreditsPerUsd::DEFAULT,
        },
        run: std::process::id().into(),
    };
    let runtime = match Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("money-behaviour: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut wrong = 0;
    for row in ROWS {
        match runtime.block_on(row.run(&world)) {
            Ok(seen) => println!("ok   {}: {seen}", row.name()),
            Err(error) => {
                wrong += 1;
                println!("FAIL {}: {error}", row.name());
            }
        }
    }
    println!("{} ok, {wrong} failed", ROWS.len() - wrong);
    if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
