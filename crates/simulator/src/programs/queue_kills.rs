//! `queue-kills`: kills the queue and its wallet at every step of a settlement, and checks their books.

use clap::Args;
use holdfast_simulator::outside::OutsideError;
use holdfast_simulator::outside::queue_kills::{Books, Options, Plant, Report, Shape, run};
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use tokio::runtime::Builder;

/// Kills the queue and its wallet at every step of a settlement, and checks their books.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The program.
    #[arg(long)]
    holdfast: PathBuf,
    /// How often a process is killed, all in all.
    #[arg(long, default_value_t = 200)]
    kills: u64,
    /// Both services in one process, instead of two with HTTP between them.
    #[arg(long)]
    one_process: bool,
    /// The books and the items in a PostgreSQL of the run's own, which all processes share.
    #[arg(long)]
    postgres: bool,
    /// The queue loses its log on purpose, which must be found: the run succeeds if it is.
    #[arg(long, conflicts_with = "postgres")]
    forget: bool,
    /// What everything random follows from [default: another one each time].
    #[arg(long)]
    seed: Option<u64>,
    /// Where the run makes its directory.
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    directory: PathBuf,
}

pub(crate) fn main(arguments: Arguments) -> ExitCode {
    let Arguments { holdfast, kills, one_process, postgres, forget, seed, directory } = arguments;
    let seed = seed.unwrap_or_else(|| std::process::id().into());
    let shape = if one_process { Shape::One } else { Shape::Two };
    let books = if postgres { Books::Database } else { Books::Directories };
    let directory = directory.join(format!("holdfast-queue-kills-{}", std::process::id()));
    let plant = forget.then_some(Plant::Forgets);
    match kill(&Options { holdfast, kills, shape, books, plant, seed, directory: directory.clone() }) {
        Ok(report) if report.faults.is_empty() != forget => {
            let found = if forget { "the loss was found" } else { "nothing wrong" };
            println!("{report}seed {seed}: {found}");
            // What cannot be removed is only untidy.
            let _left = fs::remove_dir_all(&directory);
            ExitCode::SUCCESS
        }
        Ok(report) => {
            println!("{report}");
            report.faults.iter().take(50).for_each(|fault| println!("{fault}"));
            println!("seed {seed}: {} wrong; the data is kept in {}", report.faults.len(), directory.display());
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("queue-kills: seed {seed}: {error}; the data is kept in {}", directory.display());
            ExitCode::FAILURE
        }
    }
}

fn kill(options: &Options) -> Result<Report, OutsideError> {
    fs::create_dir_all(&options.directory).map_err(OutsideError::io("make a directory"))?;
    let runtime = Builder::new_multi_thread().enable_all().build().map_err(OutsideError::io("start a runtime"))?;
    runtime.block_on(run(options))
}
