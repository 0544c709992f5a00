//! `delivery`: charges on the real server, told to a peer that misbehaves, through kills; then both books are compared.

use clap::{Args, ValueEnum};
use holdfast_simulator::delivery::{Finding, Options, Report, Store, run};
use holdfast_simulator::outside::OutsideError;
use holdfast_simulator::peer::Plant;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

/// Charges on the real server, told to a peer that misbehaves, through kills; then both books are compared.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The program.
    #[arg(long)]
    holdfast: PathBuf,
    /// How many charges are made.
    #[arg(long, default_value_t = 10_000)]
    charges: u64,
    /// How often the server is killed (in Redis mode every second kill is the Redis's).
    #[arg(long, default_value_t = 6)]
    kills: u64,
    /// Where obligations wait.
    #[arg(long, value_enum, default_value_t = StoreName::Journal)]
    store: StoreName,
    /// A bug in the peer that must be found: the run succeeds if it is.
    #[arg(long, value_enum)]
    plant: Option<PlantName>,
    /// What everything random follows from [default: another one each time].
    #[arg(long)]
    seed: Option<u64>,
    /// Where the run makes its directory.
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    directory: PathBuf,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum StoreName {
    Journal,
    Memory,
    Redis,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PlantName {
    /// The peer applies what it knows again.
    AppliesAgain,
    /// The peer says that it has taken some, and has not.
    Loses,
    /// The peer books another amount for some.
    Misreads,
}

impl PlantName {
    const fn plant(self) -> Plant {
        match self {
            Self::AppliesAgain => Plant::AppliesAgain,
            Self::Loses => Plant::Loses(50),
            Self::Misreads => Plant::Misreads(50),
        }
    }

    /// Whether this is what the bug must be found by.
    const fn is_found_by(self, finding: &Finding) -> bool {
        match self {
            Self::AppliesAgain => matches!(finding, Finding::AppliedTwice(..)),
            Self::Loses => matches!(finding, Finding::Lost(_)),
            Self::Misreads => matches!(finding, Finding::Differs(..)),
        }
    }
}

pub(crate) fn main(arguments: Arguments) -> ExitCode {
    let Arguments { holdfast, charges, kills, store, plant, seed, directory } = arguments;
    let seed = seed.unwrap_or_else(|| std::process::id().into());
    let directory = directory.join(format!("holdfast-delivery-{}", std::process::id()));
    let store = match store {
        StoreName::Journal => Store::Journal,
        StoreName::Memory => Store::Memory,
        StoreName::Redis => Store::Redis,
    };
    let planted = plant.map(PlantName::plant);
    let options = Options { holdfast, charges, kills, store, seed, plant: planted, directory: directory.clone() };
    match deliver(&options) {
        Ok(report) => {
            println!("{report}");
            report.findings.iter().take(20).for_each(|finding| println!("{finding}"));
            let is_good = match plant {
                None => report.findings.is_empty(),
                Some(plant) => report.findings.iter().any(|finding| plant.is_found_by(finding)),
            };
            if is_good {
                println!(
                    "seed {seed}: {}",
                    if plant.is_some() { "the planted bug was found" } else { "nothing wrong" }
                );
                // What cannot be removed is only untidy.
                let _left = fs::remove_dir_all(&directory);
                return ExitCode::SUCCESS;
            }
            println!("seed {seed}: not as it must be; the data is kept in {}", directory.display());
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("delivery: seed {seed}: {error}; the data is kept in {}", directory.display());
            ExitCode::FAILURE
        }
    }
}

fn deliver(options: &Options) -> Result<Report, OutsideError> {
    fs::create_dir_all(&options.directory).map_err(OutsideError::io("make a directory"))?;
    run(options)
}
