//! The simulator's programs in one: one is linked in the time of one.
//!
//! `holdfast-simulator NAME --help` says what each does.

mod programs;
mod torture;

use clap::Parser;
use programs::{delivery, gateway_kills, hangups, money_behaviour, queue_kills, simulate, upstream};
use std::path::PathBuf;
use std::process::ExitCode;

/// The world, faked: it plays, kills, misbehaves and compares.
#[derive(Parser)]
enum Program {
    /// Charges on the real server, told to a peer that misbehaves, through kills; then both books are compared.
    Delivery(delivery::Arguments),
    /// Kills the real gateway at every step of a paid request, and checks its books.
    GatewayKills(gateway_kills::Arguments),
    /// Hangs up at random points of streams through a gateway, and compares its books with what the upstream did.
    Hangups(hangups::Arguments),
    /// Does to a gateway what others get wrong with money; one line per row, and 1 if one does not hold.
    MoneyBehaviour(money_behaviour::Arguments),
    /// Kills the queue and its wallet at every step of a settlement, and checks their books.
    QueueKills(queue_kills::Arguments),
    /// Plays the ledger on a disk that fails in every way, one life per seed.
    Simulate(simulate::Arguments),
    /// Kills the real program in every way there is, and checks what it says afterwards.
    Torture(programs::torture::Arguments),
    /// A model provider for tests and benchmarks; prints `listening on http://…` and serves until SIGTERM.
    Upstream(upstream::Arguments),
}

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == torture::janitor::ARGUMENT) {
        let directory: PathBuf = arguments.next().unwrap_or_default().into();
        torture::janitor::be(&directory);
        return ExitCode::SUCCESS;
    }
    match Program::parse() {
        Program::Delivery(arguments) => delivery::main(arguments),
        Program::GatewayKills(arguments) => gateway_kills::main(arguments),
        Program::Hangups(arguments) => hangups::main(arguments),
        Program::MoneyBehaviour(arguments) => money_behaviour::main(arguments),
        Program::QueueKills(arguments) => queue_kills::main(arguments),
        Program::Simulate(arguments) => simulate::main(arguments),
        Program::Torture(arguments) => programs::torture::main(arguments),
        Program::Upstream(arguments) => upstream::main(arguments),
    }
}
