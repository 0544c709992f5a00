//! LiteLLM's proxy from PyPI in a virtual environment of its own, in front of the upstream, without a database.

use super::upstream::MODEL;
use super::{Ending, LOOK_CLOSELY_EVERY, Server, as_ourselves, find_program, finish, private_port};
use crate::error::BenchError;
use holdfast_simulator::servers::ServerError;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The version that is measured: pinned, so that runs can be compared.
pub const VERSION: &str = "1.106.2";
/// It reads some thousand files before it answers.
const READY_WITHIN: Duration = Duration::from_secs(180);
/// Kept between runs: installing it takes a minute or more.
const HOME: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/peers");

/// A running proxy; stops it when dropped.
#[derive(Debug)]
pub struct LiteLlm {
    /// The process.
    pub server: Server,
    /// `http://ADDRESS`.
    pub url: String,
    /// What it was told to ask callers for: it does not start without a key that cannot be guessed.
    pub key: String,
    /// From the start of the process until it answered.
    pub ready_after: Duration,
}

/// The program, installed if it is not there yet.
///
/// # Errors
/// If it cannot be installed: the peer is missing.
pub fn ensure() -> Result<PathBuf, BenchError> {
    let home = Path::new(HOME).join(format!("litellm-{VERSION}"));
    let program = home.join("bin/litellm");
    // Written last, so that half an installation is done again.
    let installed = home.join("installed");
    if installed.is_file() {
        return Ok(program);
    }
    let none = || BenchError::program("litellm", "python3 is not installed");
    let python = find_program("python3").ok_or_else(none)?;
    eprintln!("installing litellm[proxy]=={VERSION}");
    let mut venv = Command::new(python);
    venv.args(["-m", "venv", "--clear"]).arg(&home);
    finish(venv, "python3 -m venv")?;
    let mut pip = Command::new(home.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    pip.arg(format!("litellm[proxy]=={VERSION}"));
    finish(pip, "pip install litellm[proxy]").map_err(last_line)?;
    fs::write(&installed, VERSION).map_err(BenchError::io(format!("write {}", installed.display())))?;
    Ok(program)
}

/// pip names every version there is before it says what is wrong.
fn last_line(error: ServerError) -> BenchError {
    let ServerError::Program { program, said } = error else { return error.into() };
    let last = said.rsplit(" | ").next().unwrap_or(&said);
    BenchError::program(program, last)
}

impl LiteLlm {
    /// Starts it in `dir` and waits until it answers.
    ///
    /// # Errors
    /// If it does not.
    pub fn start(program: &Path, dir: &Path, upstream_url: &str) -> Result<Self, BenchError> {
        let config = dir.join("config.yaml");
        let key = random_key().map_err(BenchError::io("read random bytes"))?;
        fs::write(&config, configuration(upstream_url, &key)).map_err(BenchError::io("write config.yaml"))?;
        let port = private_port()?;
        let mut command = as_ourselves(program, Ending::Terminate);
        command.arg("--config").arg(&config).args(["--host", "127.0.0.1", "--port", &port.to_string()]);
        command.args(["--num_workers", "1", "--telemetry", "False"]).current_dir(dir);
        // Else it asks the network for prices before it starts.
        command.env("LITELLM_LOCAL_MODEL_COST_MAP", "True").env("LITELLM_LOG", "ERROR");
        let began = Instant::now();
        let mut server = Server::start(command, Ending::Terminate, dir.join("log"))?;
        while !is_alive(port) {
            if began.elapsed() > READY_WITHIN || !server.is_running() {
                let said = server.last_words();
                return Err(ServerError::NotReady { server: "litellm", within: READY_WITHIN, said }.into());
            }
            std::thread::sleep(LOOK_CLOSELY_EVERY);
        }
        Ok(Self { server, url: format!("http://127.0.0.1:{port}"), key, ready_after: began.elapsed() })
    }
}

/// `sk-` and 32 random bytes.
fn random_key() -> std::io::Result<String> {
    let mut bytes = [0_u8; 32];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(format!("sk-{}", bytes.map(|byte| format!("{byte:02x}")).concat()))
}

fn configuration(upstream_url: &str, key: &str) -> String {
    format!(
        "model_list:\n  - model_name: {MODEL}\n    litellm_params:\n      model: openai/{MODEL}\n      \
         api_base: {upstream_url}/v1\n      api_key: bench\ngeneral_settings:\n  master_key: {key}\n"
    )
}

/// Whether `GET /health/liveliness` (so it is called) is answered with 200.
fn is_alive(port: u16) -> bool {
    let asked = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(b"GET /health/liveliness HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    asked().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
}
