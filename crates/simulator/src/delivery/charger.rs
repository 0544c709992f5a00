//! Makes the charges over the control socket, through every kill: what was not acknowledged is sent again.

use super::plan::{Plan, Planned};
use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// How many holds are made by one line.
const AT_ONCE: usize = 100;
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// A server that is being started again is asked again after this.
const AGAIN_AFTER: Duration = Duration::from_millis(20);

/// A line to the server, and the line that it answers.
pub(super) fn ask(socket: &Path, request: &Value) -> io::Result<Value> {
    let stream = UnixStream::connect(socket)?;
    exchange(&mut BufReader::new(stream), request)
}

fn exchange(stream: &mut BufReader<UnixStream>, request: &Value) -> io::Result<Value> {
    stream.get_ref().set_read_timeout(Some(ANSWER_WITHIN))?;
    stream.get_mut().write_all(format!("{request}\n").as_bytes())?;
    let mut line = String::new();
    stream.read_line(&mut line)?;
    // A line without its end was cut off by the server's death, and says nothing.
    let line = line.strip_suffix('\n').ok_or(io::ErrorKind::UnexpectedEof)?;
    serde_json::from_str(line).map_err(io::Error::other)
}

/// Who makes the charges.
pub(super) struct Charger {
    pub(super) socket: PathBuf,
    /// How many are made.
    pub(super) done: AtomicU64,
    pub(super) stop: AtomicBool,
}

impl Charger {
    /// Makes all of them.
    ///
    /// # Errors
    /// A refusal that no repetition betters, or a stop.
    pub(super) fn run(&self, plan: &Plan) -> Result<(), String> {
        let mut stream = None;
        for holds in plan.holds.chunks(AT_ONCE) {
            while !self.make(&mut stream, holds)? {
                if self.stop.load(Ordering::Relaxed) {
                    return Err("stopped".to_owned());
                }
                thread::sleep(AGAIN_AFTER);
            }
            self.done.fetch_add(holds.len() as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Whether these are made now; if not, they are to be sent again.
    fn make(&self, stream: &mut Option<BufReader<UnixStream>>, holds: &[Planned]) -> Result<bool, String> {
        let requests: Vec<Value> = holds.iter().flat_map(Planned::requests).collect();
        let asked = match stream.take() {
            Some(open) => Ok(open),
            None => UnixStream::connect(&self.socket).map(BufReader::new),
        };
        let answered = asked.and_then(|mut open| {
            let answer = exchange(&mut open, &json!({ "op": "batch", "requests": requests }))?;
            *stream = Some(open);
            Ok(answer)
        });
        let Ok(answer) = answered else { return Ok(false) };
        let answers = answer["answers"].as_array().map_or(std::slice::from_ref(&answer), Vec::as_slice);
        for answer in answers {
            match answer["error"]["code"].as_str() {
                None => {}
                Some(code) if code.starts_with("SERVICE_") => return Ok(false),
                Some(_) => return Err(answer.to_string()),
            }
        }
        Ok(true)
    }
}
