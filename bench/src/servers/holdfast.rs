//! A private `holdfast serve` in front of the upstream, with durable billing: an account with money, and a key for it.

use super::upstream::MODEL;
use super::{Ending, Server, as_ourselves, beside};
use crate::error::BenchError;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// More than any run can spend.
const CREDITS: &str = "1000000000";
const ACCOUNT: &str = "bench";

/// A running gateway; stops it when dropped.
#[derive(Debug)]
pub struct Holdfast {
    /// The process.
    pub server: Server,
    /// `http://ADDRESS`.
    pub url: String,
    /// An API key of an account with enough money.
    pub key: String,
    /// From the start of the process until it said that it listens.
    pub ready_after: Duration,
}

impl Holdfast {
    /// Starts it in `dir`, and gives an account money and a key.
    ///
    /// # Errors
    /// If it is not built, does not start, or refuses.
    pub fn start(dir: &Path, upstream_url: &str) -> Result<Self, BenchError> {
        let program = beside("holdfast")?;
        let data = dir.join("data");
        let config = dir.join("holdfast.toml");
        fs::write(&config, configuration(upstream_url)).map_err(BenchError::io("write holdfast.toml"))?;
        fs::write(dir.join("prices.toml"), prices()).map_err(BenchError::io("write prices.toml"))?;
        let mut command = as_ourselves(&program, Ending::Kill);
        command.args(["serve", "--listen", "127.0.0.1:0"]).arg("--data").arg(&data).arg("--config").arg(&config);
        // The upstream takes any key, but a provider must have one.
        command.env("OPENAI_API_KEY", "bench");
        let began = Instant::now();
        let mut server = Server::start(command, Ending::Kill, dir.join("log"))?;
        let url = server.wait_listening("holdfast")?;
        let ready_after = began.elapsed();
        let operator = Operator { program, data };
        operator.run(&["mint", ACCOUNT, CREDITS, "--reason", "benchmark"])?;
        let key = operator.run(&["keys", "new", "--account", ACCOUNT, "--json"])?;
        Ok(Self { server, url, key: api_key(&key)?, ready_after })
    }
}

/// A running server without an upstream; stops it, in order, when dropped.
#[derive(Debug)]
pub struct Served {
    /// The process.
    pub server: Server,
    /// Its control socket.
    pub socket: PathBuf,
    /// `http://ADDRESS`.
    pub url: String,
    data: PathBuf,
}

impl Served {
    /// Starts it on the data directory `data`, with its log in `dir` and these settings in its environment.
    ///
    /// # Errors
    /// If it is not built or does not start.
    pub fn start(dir: &Path, data: &Path, settings: &[(&str, &str)]) -> Result<Self, BenchError> {
        let mut command = as_ourselves(&beside("holdfast")?, Ending::Terminate);
        command.args(["serve", "--listen", "127.0.0.1:0"]).arg("--data").arg(data).envs(settings.iter().copied());
        let mut server = Server::start(command, Ending::Terminate, dir.join("log"))?;
        let url = server.wait_listening("holdfast")?;
        Ok(Self { server, socket: data.join("holdfast.sock"), url, data: data.to_owned() })
    }

    /// Gives an account more than any run can spend.
    ///
    /// # Errors
    /// If the server refuses.
    pub fn mint(&self, account: &str) -> Result<(), BenchError> {
        self.operator()?.run(&["mint", account, CREDITS, "--reason", "benchmark"]).map(drop)
    }

    /// A bearer token of a service, good for five minutes.
    ///
    /// # Errors
    /// If none is made.
    pub fn service_token(&self) -> Result<String, BenchError> {
        Ok(self.operator()?.run(&["token", "--role", "service", "--sub", ACCOUNT])?.trim().to_owned())
    }

    fn operator(&self) -> Result<Operator, BenchError> {
        Ok(Operator { program: beside("holdfast")?, data: self.data.clone() })
    }
}

/// The one model, as Holdfast is told of it.
fn configuration(upstream_url: &str) -> String {
    format!(
        r#"prices = "prices.toml"

[providers.upstream]
kind = "openai"
base_url = "{upstream_url}/v1"
key_env = "OPENAI_API_KEY"

[[models]]
name = "{MODEL}"
targets = [{{ provider = "upstream", model = "{MODEL}" }}]
"#
    )
}

/// What it costs.
fn prices() -> String {
    format!("[models.\"{MODEL}\"]\ninput = \"0.4\"\noutput = \"1.6\"\n")
}

/// `hf_live_…` out of the answer, whatever its field is called.
fn api_key(answer: &str) -> Result<String, BenchError> {
    let value: Value = serde_json::from_str(answer.trim()).unwrap_or_default();
    let fields = value.as_object().into_iter().flatten();
    let key = fields.filter_map(|(_, value)| value.as_str()).find(|text| text.starts_with("hf_live_"));
    let none = || BenchError::program("holdfast keys new", "no key in its JSON");
    key.map(str::to_owned).ok_or_else(none)
}

/// Runs commands beside the server.
struct Operator {
    program: PathBuf,
    data: PathBuf,
}

impl Operator {
    fn run(&self, arguments: &[&str]) -> Result<String, BenchError> {
        let mut command = Command::new(&self.program);
        command.args(arguments).arg("--data").arg(&self.data).stdin(Stdio::null());
        let output = command.output().map_err(BenchError::io("run holdfast"))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', " | ");
        Err(BenchError::program(format!("holdfast {}", arguments[0]), said))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_found_under_any_name_and_never_made_up() {
        assert_eq!(api_key("{\"id\":\"k1\",\"key\":\"hf_live_abc\"}\n").unwrap(), "hf_live_abc");
        assert!(api_key("{\"id\":\"k1\"}").is_err());
        assert!(api_key("hf_live_abc").is_err());
    }
}
