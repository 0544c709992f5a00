//! The control socket of a private server, and the requests that benchmarks send over it.

use crate::error::BenchError;
use crate::growth::FUNDS;
use crate::ledger::work::HELD;
use crate::plan::Plan;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::path::Path;

const BATCH: u64 = 4_096;
/// Lines on the way at once: the server reads the next while it does the last.
const LINES_AHEAD: usize = 4;

/// A connection to the control socket.
pub struct Line {
    stream: BufReader<UnixStream>,
    text: String,
    /// How many requests each line on the way has, oldest first.
    ahead: std::collections::VecDeque<u64>,
}

impl Line {
    /// Connects to a server's.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn connect(socket: &Path) -> Result<Self, BenchError> {
        let stream = UnixStream::connect(socket).map_err(BenchError::io("connect to the control socket"))?;
        Ok(Self { stream: BufReader::with_capacity(1 << 20, stream), text: String::new(), ahead: Default::default() })
    }

    /// Sends `count` requests, the first about `from`, and waits until all are applied.
    ///
    /// # Errors
    /// If one is refused.
    pub fn send_all(
        &mut self,
        count: u64,
        from: u64,
        plan: &Plan,
        request: fn(&mut String, u64),
    ) -> Result<(), BenchError> {
        for first in (from..from + count).step_by(BATCH as usize) {
            plan.stop.check()?;
            self.send(first..(from + count).min(first + BATCH), request)?;
        }
        self.hear_all()
    }

    /// Reserves and commits pairs, each of the account that `payer` names.
    ///
    /// # Errors
    /// If one is refused.
    pub fn settle(&mut self, pairs: Range<u64>, payer: impl Fn(u64) -> u64, plan: &Plan) -> Result<(), BenchError> {
        for first in pairs.clone().step_by(BATCH as usize) {
            plan.stop.check()?;
            let batch = first..pairs.end.min(first + BATCH);
            self.send(batch.clone(), |text, pair| reserve(text, pair, payer(pair)))?;
            self.send(batch, commit)?;
        }
        self.hear_all()
    }

    fn send(&mut self, numbers: Range<u64>, request: impl Fn(&mut String, u64)) -> Result<(), BenchError> {
        self.text.clear();
        self.text.push_str(r#"{"op":"batch","requests":["#);
        self.ahead.push_back(numbers.end - numbers.start);
        for number in numbers {
            request(&mut self.text, number);
            self.text.push(',');
        }
        self.text.pop();
        self.text.push_str("]}\n");
        let sent = self.stream.get_mut().write_all(self.text.as_bytes());
        sent.map_err(BenchError::io("write to the control socket"))?;
        if self.ahead.len() >= LINES_AHEAD { self.hear() } else { Ok(()) }
    }

    /// Sends one request by itself, and waits until it is applied.
    ///
    /// # Errors
    /// If it is refused.
    pub fn send_one(&mut self, number: u64, request: impl Fn(&mut String, u64)) -> Result<(), BenchError> {
        self.text.clear();
        request(&mut self.text, number);
        self.text.push('\n');
        self.ahead.push_back(1);
        let sent = self.stream.get_mut().write_all(self.text.as_bytes());
        sent.map_err(BenchError::io("write to the control socket"))?;
        self.hear_all()
    }

    fn hear_all(&mut self) -> Result<(), BenchError> {
        while !self.ahead.is_empty() {
            self.hear()?;
        }
        Ok(())
    }

    /// Reads the oldest answer; every request of it must have been applied.
    fn hear(&mut self) -> Result<(), BenchError> {
        let Some(expected) = self.ahead.pop_front() else { return Ok(()) };
        self.text.clear();
        self.stream.read_line(&mut self.text).map_err(BenchError::io("read from the control socket"))?;
        let applied = self.text.matches(r#""outcome":"applied""#).count() as u64;
        if applied == expected {
            return Ok(());
        }
        let at = self.text.find(r#""ok":false"#).unwrap_or(0);
        let said = self.text.get(at..).unwrap_or_default().chars().take(300).collect();
        Err(BenchError::NotApplied(said))
    }
}

/// Millionths of a credit as the wire has them: no zeros at the end of the fraction.
fn credits(units: u64) -> String {
    let text = format!("{}.{:06}", units / 1_000_000, units % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A line that credits an account.
pub fn mint(text: &mut String, account: u64) {
    let amount = credits(FUNDS);
    let _infallible = write!(
        text,
        r#"{{"op":"mint","account":"payer-{account:07}","amount_cu":"{amount}","reason":"benchmark funds","key":"fund-{account}"}}"#
    );
}

/// A line that reserves for a pair.
pub fn reserve(text: &mut String, pair: u64, payer: u64) {
    let amount = credits(HELD);
    let _infallible = write!(
        text,
        r#"{{"op":"reserve","account":"payer-{payer:07}","amount_cu":"{amount}","request_id":"req_{pair:022}"}}"#
    );
}

/// A line that commits a pair.
pub fn commit(text: &mut String, pair: u64) {
    let amount = credits(1 + pair % HELD);
    let _infallible = write!(text, r#"{{"op":"commit","id":"req_{pair:022}","actual_cu":"{amount}"}}"#);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_json_and_amounts_are_written_as_the_wire_wants_them() {
        let mut text = String::new();
        for (op, request) in [("mint", mint as fn(&mut String, u64)), ("commit", commit)] {
            text.clear();
            request(&mut text, 7);
            let value: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!(value["op"], op);
        }
        text.clear();
        reserve(&mut text, 8, 9);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&value["account"], &value["amount_cu"]), (&"payer-0000009".into(), &"0.001".into()));
        let written = [1_000, 2_000_001, 1_000_000_000].map(credits);
        assert_eq!(written, ["0.001", "2.000001", "1000"]);
    }
}
