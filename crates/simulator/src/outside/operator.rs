//! What an operator does on the command line: mint, make keys, make tokens. The one place that knows those commands' words.

use super::OutsideError;
use holdfast_domain::CreditUnit;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The program and the data directory of the server that runs.
#[derive(Debug, Clone)]
pub struct Operator {
    /// `holdfast`.
    pub program: PathBuf,
    /// `--data`.
    pub data: PathBuf,
    /// `HOLDFAST_DATABASE_URL`, if the books are in one.
    pub database: Option<String>,
}

impl Operator {
    /// Of books in a data directory.
    #[must_use]
    pub const fn of(program: PathBuf, data: PathBuf) -> Self {
        Self { program, data, database: None }
    }

    /// A copy of books in a database, as a journal in this directory. Both ends compare what they have.
    ///
    /// # Errors
    /// If one of them finds something wrong.
    pub fn copy_to(&self, data: PathBuf) -> Result<Self, OutsideError> {
        let file = data.with_extension("jsonl");
        let (file_name, url) = (file.display().to_string(), self.database.clone().unwrap_or_default());
        self.said(&["export", &file_name, "--database-url", &url])?;
        let copy = Self::of(self.program.clone(), data);
        copy.run(&["import", &file_name, "--without-peer"])?;
        Ok(copy)
    }

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

    /// A bearer token of a service, good for five minutes.
    ///
    /// # Errors
    /// If the command is refused or prints none.
    pub fn service_token(&self, subject: &str) -> Result<String, OutsideError> {
        let said = self.run(&["token", "--role", "service", "--sub", subject, "--ttl", "5m", "--json"])?;
        let value: Value = serde_json::from_str(said.trim()).unwrap_or_default();
        value["token"]
            .as_str()
            .map(str::to_owned)
            .ok_or_else(|| OutsideError::answered("token", "no token in its JSON"))
    }

    /// How many holds of an account are open, and what it can spend.
    ///
    /// # Errors
    /// If the command is refused or its answer makes no sense.
    pub fn account(&self, account: &str) -> Result<(u64, CreditUnit), OutsideError> {
        let said = self.run(&["accounts", "show", account, "--json"])?;
        let value: Value = serde_json::from_str(said.trim()).unwrap_or_default();
        let available = value["available_cu"].as_str().and_then(|text| text.parse().ok());
        value["open_holds"].as_u64().zip(available).ok_or_else(|| OutsideError::answered("accounts show", said))
    }

    /// Has the database made ready.
    ///
    /// # Errors
    /// If it cannot be.
    pub fn migrate(&self) -> Result<(), OutsideError> {
        self.said(&["migrate"]).map(drop)
    }

    /// Has every byte and every balance of the journal checked, from its files.
    ///
    /// # Errors
    /// If something is wrong with it.
    pub fn verify(&self) -> Result<(), OutsideError> {
        self.run(&["journal", "verify"]).map(drop)
    }

    /// Every entry of the journal, as it is printed.
    ///
    /// # Errors
    /// If the command is refused or prints something else than JSON.
    pub fn journal(&self) -> Result<Vec<Value>, OutsideError> {
        let said = self.run(&["journal", "cat"])?;
        let read = |line| {
            serde_json::from_str(line)
                .map_err(|error| OutsideError::answered("journal cat", format!("{error}: {line}")))
        };
        said.lines().map(read).collect()
    }

    /// Brings every dead letter back, and says how many there were.
    ///
    /// # Errors
    /// If the command is refused or does not say.
    pub fn replay_all(&self) -> Result<u64, OutsideError> {
        let said = self.run(&["obligations", "replay", "--all-since", "1970-01-01T00:00:00Z", "--json"])?;
        let value: Value = serde_json::from_str(said.trim()).unwrap_or_default();
        value["replayed"].as_u64().ok_or_else(|| OutsideError::answered("obligations replay", said))
    }

    /// Reads every entry of the journal, line by line: there may be more than fit into memory.
    ///
    /// # Errors
    /// If the command fails, or `take` refuses a line.
    pub fn each_entry(&self, mut take: impl FnMut(&str) -> Result<(), String>) -> Result<(), OutsideError> {
        let mut command = Command::new(&self.program);
        command.args(["journal", "cat", "--data"]).arg(&self.data).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(OutsideError::io(format!("run {}", self.program.display())))?;
        let lines = child.stdout.take().map(BufReader::new).into_iter().flat_map(BufRead::lines);
        let mut taken = Ok(());
        for line in lines {
            let line = line.map_err(OutsideError::io("read the journal"))?;
            // Read to its end all the same, so that the command ends by itself.
            taken = taken.and_then(|()| take(&line));
        }
        let status = child.wait().map_err(OutsideError::io("wait for journal cat"))?;
        match taken {
            Ok(()) if status.success() => Ok(()),
            Ok(()) => Err(OutsideError::answered("journal cat", status.to_string())),
            Err(said) => Err(OutsideError::answered("journal cat", said)),
        }
    }

    fn run(&self, arguments: &[&str]) -> Result<String, OutsideError> {
        let data = self.data.display().to_string();
        self.said(&[arguments, &["--data", &data]].concat())
    }

    /// What a command says that is told everything by its words.
    fn said(&self, arguments: &[&str]) -> Result<String, OutsideError> {
        let mut command = Command::new(&self.program);
        command.args(arguments).stdin(Stdio::null());
        command.envs(self.database.iter().map(|url| ("HOLDFAST_DATABASE_URL", url)));
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
