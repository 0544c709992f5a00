//! `torture`: kills the real program in every way there is, and checks what it says afterwards.

use crate::torture;
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;

/// Kills the real program in every way there is, and checks what it says afterwards.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The program, built for release.
    #[arg(long)]
    holdfast: PathBuf,
    /// Cycles of load, kill and check.
    #[arg(long, default_value_t = 500)]
    cycles: u64,
    /// Runs in which one system call fails [default: 60, or 400 from 5,000 cycles on].
    #[arg(long)]
    syscalls: Option<u64>,
    /// Power cuts on a loop device.
    #[arg(long, default_value_t = 40)]
    power_cuts: u64,
    /// What everything random follows from [default: another one each time].
    #[arg(long)]
    seed: Option<u64>,
    /// Stop after so many seconds.
    #[arg(long)]
    seconds: Option<u64>,
    /// Where the run makes its directory.
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    directory: PathBuf,
}

pub(crate) fn main(arguments: Arguments) -> ExitCode {
    let Arguments { holdfast, cycles, syscalls, power_cuts, seed, seconds, directory } = arguments;
    let syscalls = syscalls.unwrap_or(if cycles >= 5_000 { 400 } else { 60 });
    let seed = seed.unwrap_or_else(|| std::process::id().into());
    torture::run(&torture::Options { holdfast, cycles, syscalls, power_cuts, seed, seconds, directory })
}
