//! The model provider that all gateways are measured in front of: the simulator's `upstream`, with its answer prepared once.

use super::{Ending, Server, as_ourselves, beside};
use crate::error::BenchError;
use std::path::Path;

/// The model with the fixed answer.
pub const MODEL: &str = "mock-fixed";
/// How many chunks a stream of it has.
pub const CHUNKS: usize = 20;

/// A running upstream; stops it when dropped.
#[derive(Debug)]
pub struct Upstream {
    /// The process.
    pub server: Server,
    /// `http://ADDRESS`.
    pub url: String,
}

impl Upstream {
    /// Starts it and waits until it answers.
    ///
    /// # Errors
    /// If it is not built or does not start.
    pub fn start(dir: &Path) -> Result<Self, BenchError> {
        let mut command = as_ourselves(&beside("holdfast-simulator")?, Ending::Kill);
        command.args(["upstream", "--count-only"]);
        let mut server = Server::start(command, Ending::Kill, dir.join("log"))?;
        let url = server.wait_listening("upstream")?;
        Ok(Self { server, url })
    }
}
