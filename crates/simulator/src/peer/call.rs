//! One call: read from the connection byte by byte, because the peer must be able to answer with anything.

use serde::Deserialize;
use std::io;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};

const HEAD_BYTES_MAX: u64 = 16 * 1_024;
const BODY_BYTES_MAX: usize = 64 * 1_024;

/// A request, as it came.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) method: String,
    pub(super) path: String,
    /// Names in small letters.
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

/// What the peer is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finalize {
    pub(super) id: String,
    pub(super) tenant: String,
    pub(super) cost: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    reservation_id: String,
    tenant_id: String,
    actual_cost_micro: String,
    trace_id: String,
}

/// What is wrong with a call: the status that says so, and a complaint.
pub(super) type Wrong = (u16, String);

impl Call {
    /// The next request of a connection; `None` if it has ended.
    pub(super) async fn read(reader: &mut BufReader<impl AsyncRead + Unpin>) -> io::Result<Option<Self>> {
        let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        let mut head = (&mut *reader).take(HEAD_BYTES_MAX);
        let mut first = String::new();
        if head.read_line(&mut first).await? == 0 {
            return Ok(None);
        }
        let mut words = first.split_ascii_whitespace();
        let (Some(method), Some(path)) = (words.next(), words.next()) else { return Err(wrong("no request line")) };
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            if head.read_line(&mut line).await? == 0 {
                return Err(wrong("a head without its end"));
            }
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let mut call = Self { method: method.to_owned(), path: path.to_owned(), headers, body: Vec::new() };
        let length = call.header("content-length").map_or(Ok(0), str::parse).map_err(|_| wrong("no length"))?;
        if length > BODY_BYTES_MAX {
            return Err(wrong("too much"));
        }
        call.body.resize(length, 0);
        reader.read_exact(&mut call.body).await?;
        Ok(Some(call))
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// What the peer is told, if the call is as it must be.
    pub(super) fn finalize(&self) -> Result<Finalize, Wrong> {
        let token = self.header("authorization").and_then(|value| value.strip_prefix("Bearer "));
        if token.is_none_or(|token| token.split('.').filter(|part| !part.is_empty()).count() != 3) {
            return Err((401, "a call without a token of three parts".to_owned()));
        }
        if self.header("content-type").is_none_or(|kind| !kind.starts_with("application/json")) {
            return Err((400, "a call that does not say it is JSON".to_owned()));
        }
        let wrong = |what: String| (400, what);
        let body: Body = serde_json::from_slice(&self.body).map_err(|error| wrong(format!("a body that {error}")))?;
        let Body { reservation_id, tenant_id, actual_cost_micro, trace_id } = body;
        for (name, text) in [("reservation_id", &reservation_id), ("tenant_id", &tenant_id), ("trace_id", &trace_id)] {
            if !is_id(text) {
                return Err(wrong(format!("{name} is {text:?}")));
            }
        }
        if !is_canonical(&actual_cost_micro) {
            return Err(wrong(format!("actual_cost_micro is {actual_cost_micro:?}")));
        }
        Ok(Finalize { id: reservation_id, tenant: tenant_id, cost: actual_cost_micro })
    }
}

fn is_id(text: &str) -> bool {
    !text.is_empty() && text.len() <= 128 && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Whole millionths in one way only: digits, and no zero in front.
fn is_canonical(cost: &str) -> bool {
    cost.parse::<u64>().is_ok_and(|value| value.to_string() == cost)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"reservation_id":"a","tenant_id":"b","actual_cost_micro":"7","trace_id":"c"}"#;

    async fn told(authorization: &str, body: &str) -> Result<Finalize, u16> {
        let length = body.len();
        let text = format!(
            "POST /x HTTP/1.1\r\nAuthorization: {authorization}\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n{body}"
        );
        let call = Call::read(&mut BufReader::new(text.as_bytes())).await.unwrap().unwrap();
        assert_eq!((call.method.as_str(), call.path.as_str()), ("POST", "/x"));
        call.finalize().map_err(|(status, _)| status)
    }

    #[tokio::test]
    async fn a_call_is_read_and_held_to_every_word_of_it() {
        let finalize = Finalize { id: "a".to_owned(), tenant: "b".to_owned(), cost: "7".to_owned() };
        assert_eq!(told("Bearer x.y.z", GOOD).await, Ok(finalize));
        for authorization in ["", "Basic x.y.z", "Bearer", "Bearer x", "Bearer x..z"] {
            assert_eq!(told(authorization, GOOD).await, Err(401), "{authorization}");
        }
        for (from, to) in [
            (r#""7""#, "7"),
            (r#""7""#, r#""07""#),
            (r#""7""#, r#""-7""#),
            (r#""7""#, r#""7.0""#),
            (r#""7""#, r#""1e3""#),
            (r#""7""#, r#""""#),
            (r#""a""#, r#""""#),
            (r#","trace_id":"c""#, ""),
            (r#""trace_id":"c""#, r#""trace_id":"c","more":1"#),
            (r#""trace_id":"c""#, r#""trace_id":"c","tenant_id":"d""#),
            ("{", "["),
        ] {
            assert_eq!(told("Bearer x.y.z", &GOOD.replacen(from, to, 1)).await, Err(400), "{from} as {to}");
        }
    }

    #[tokio::test]
    async fn a_connection_ends_or_breaks_off() {
        let read = async |text: &str| Call::read(&mut BufReader::new(text.as_bytes())).await.map(|call| call.is_some());
        assert!(!read("").await.unwrap());
        for text in ["\r\n", "POST / HTTP/1.1\r\n", "POST / HTTP/1.1\r\ncontent-length: 3\r\n\r\nab"] {
            assert!(read(text).await.is_err(), "{text:?}");
        }
    }
}
