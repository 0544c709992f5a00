//! `gateway-kills`: kills the real gateway at every step of a paid request, and checks its books.

use clap::Args;
use holdfast_simulator::outside::OutsideError;
use holdfast_simulator::outside::kills::{Options, Table, run};
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use tokio::runtime::Builder;

/// Kills the real gateway at every step of a paid request, and checks its books.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The program.
    #[arg(long)]
    holdfast: PathBuf,
    /// How often it is killed at each failpoint.
    #[arg(long, default_value_t = 20)]
    rounds: u64,
    /// What everything random follows from [default: another one each time].
    #[arg(long)]
    seed: Option<u64>,
    /// Where the run makes its directory.
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    directory: PathBuf,
}

pub(crate) fn main(arguments: Arguments) -> ExitCode {
    let Arguments { holdfast, rounds, seed, directory } = arguments;
    let seed = seed.unwrap_or_else(|| std::process::id().into());
    let directory = directory.join(format!("holdfast-gateway-kills-{}", std::process::id()));
    match kill(&Options { holdfast, rounds, seed, directory: directory.clone() }) {
        Ok(table) if table.faults().next().is_none() => {
            println!("{table}seed {seed}: nothing wrong");
            // What cannot be removed is only untidy.
            let _left = fs::remove_dir_all(&directory);
            ExitCode::SUCCESS
        }
        Ok(table) => {
            println!("{table}");
            table.faults().take(50).for_each(|fault| println!("{fault}"));
            println!("seed {seed}: {} wrong; the data is kept in {}", table.faults().count(), directory.display());
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("gateway-kills: seed {seed}: {error}; the data is kept in {}", directory.display());
            ExitCode::FAILURE
        }
    }
}

fn kill(options: &Options) -> Result<Table, OutsideError> {
    fs::create_dir_all(&options.directory).map_err(OutsideError::io("make a directory"))?;
    let runtime = Builder::new_multi_thread().enable_all().build().map_err(OutsideError::io("start a runtime"))?;
    runtime.block_on(run(options))
}
