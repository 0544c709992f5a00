//! The official clients and schemathesis, tried on our gateway: with the built-in model and with one behind an upstream.

use crate::child::{Runner, StepError};
use crate::pair::{MODEL, PRICES, Pair};
use crate::sdk::{Sdks, Server};
use std::path::Path;

/// Tries them all.
///
/// # Errors
/// If a server does not start, or a check fails.
pub fn run(sdks: &Sdks, programs: &Path, runner: &Runner) -> Result<(), StepError> {
    let pair = Pair::start("clients", programs, runner)?;
    pair.operate(&["mint", "rich", "10000", "--reason", "test"])?;
    pair.operate(&["mint", "poor", "0.000001", "--reason", "test"])?;
    let (rich, poor) =
        (pair.operate(&["keys", "new", "--account", "rich"])?, pair.operate(&["keys", "new", "--account", "poor"])?);
    let [input, output] = PRICES;
    let usual = [
        ("HOLDFAST", "1"),
        ("POOR_KEY", poor.as_str()),
        ("INPUT_PRICE", input),
        ("OUTPUT_PRICE", output),
        ("USAGE", "words"),
    ];
    let behind = [&usual[..], &[("UPSTREAM_URL", pair.upstream.url.as_str())]].concat();
    for (model, embedding_model, settings) in
        [(MODEL, "mock-embedding", &behind[..]), ("echo", "echo-embedding", &usual[..])]
    {
        let (base_url, api_key) = (pair.gateway.url.as_str(), rich.as_str());
        let embedding_model = Some(embedding_model);
        sdks.run(&Server { base_url, api_key, model, embedding_model, settings }, runner)?;
    }
    let service = pair.operate(&["token", "--role", "service"])?;
    let admin = pair.operate(&["token", "--role", "admin"])?;
    for credential in [rich, service, admin] {
        sdks.run_schemathesis(&pair.gateway.url, &credential, runner)?;
    }
    Ok(())
}
