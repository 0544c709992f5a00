//! The program around the ledger: its wire format, its control socket, and its commands.
//!
//! ```text
//!  a command, or a line on the socket ──▶ wire (JSON) ──▶ service ──▶ books (an engine)
//!                                           ▲                │
//!                                           └─── one line ───┘
//! ```
//!
//! Commands say the same things as the socket, in the same words: they ask the server if one runs, and else are the server
//! for as long as one answer takes.

mod books;
mod cli;
mod config;
mod control;
mod failure;
mod http;
mod identity;
mod inference;
mod journal_files;
mod node;
mod prices;
mod queue;
mod rates;
mod role;
mod scratch_disk;
mod service;
mod settings;
mod settlement;
mod terminal;
mod tokens;
mod wallet;
mod wire;

use std::process::ExitCode;

/// Runs the program with the arguments of the process.
#[must_use]
pub fn main() -> ExitCode {
    cli::main()
}
