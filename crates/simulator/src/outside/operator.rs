//! What an operator does on the command line: mint, make keys, make tokens. The one place that knows those commands' words.

use super::OutsideError;
use holdfast_domain::CreditUnit;
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The program and the data directory of the server that runs.
#[derive(Debug, Clone)]
pub struct Operator {
    /// `holdfast`.
    pub program: PathBuf,
    /// `--data`.
    pub data: PathBuf,
}

impl Operator {
    /// Credits an account.
    ///
    /// # Errors
    /// If the command is refused.
    pub fn mint(&self, account: &str, amount: CreditUnit) -> Result<(), OutsideError> {
        self.run(&["mint", account, &amount.to_string(), "--reason", "test"]).map(drop)
    }

    /// A new API key of an account.
    ///
    /// # Errors
    /// If the command is refused or prints none.
    pub fn new_key(&self, account: &str) -> Result<String, OutsideError> {
        let said = self.run(&["keys", "new", "--account", account, "--json"])?;
        key_in(&said).ok_or_else(|| OutsideError::answered("keys new", "no key in its JSON"))
    }

    fn run(&self, arguments: &[&str]) -> Result<String, OutsideError> {
        let mut command = Command::new(&self.program);
        command.args(arguments).arg("--data").arg(&self.data).stdin(Stdio::null());
        let output = command.output().map_err(OutsideError::io(format!("run {}", self.program.display())))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(OutsideError::answered(arguments.join(" "), said))
    }
}

/// `hf_live_…` in a JSON object, whatever its field is called.
fn key_in(said: &str) -> Option<String> {
    let value: Value = serde_json::from_str(said.trim()).ok()?;
    let mut texts = value.as_object()?.values().filter_map(Value::as_str);
    texts.find(|text| text.starts_with("hf_live_")).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_in_the_answer_and_never_made_up() {
        assert_eq!(key_in(r#"{"id":"k","key":"hf_live_x"}"#).as_deref(), Some("hf_live_x"));
        assert_eq!(key_in(r#"{"id":"k"}"#), None);
    }
}
