//! A small HTTP client: one connection, one request at a time, JSON or bytes.

use super::OutsideError;
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::HeaderMap;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::time::Duration;
use tokio::net::TcpStream;

/// No answer takes as long.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// Clients read no further: for them the answer is complete, whatever comes after it.
const STREAM_END: &[u8] = b"data: [DONE]\n\n";

/// `HOST:PORT` of an `http://HOST:PORT[/…]`.
#[must_use]
pub fn authority(url: &str) -> &str {
    let rest = url.strip_prefix("http://").unwrap_or(url);
    rest.split('/').next().unwrap_or(rest)
}

/// An answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Its headers.
    pub headers: HeaderMap,
    /// All of its body.
    pub body: Bytes,
}

impl Answer {
    /// The body as JSON; null if it is none.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// A header as text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The body as JSON, if the status is 200 or 201.
    ///
    /// # Errors
    /// Any other status.
    pub fn good(&self, who: &str) -> Result<Value, OutsideError> {
        if matches!(self.status, 200 | 201) {
            return Ok(self.json());
        }
        let said = format!("{} {}", self.status, String::from_utf8_lossy(&self.body));
        Err(OutsideError::answered(who, said))
    }
}

/// An answer as far as it came.
#[derive(Debug, Clone)]
pub struct Heard {
    /// What came.
    pub answer: Answer,
    /// Whether all of it was read: no stream is that ends with `[DONE]`, because nobody reads further.
    pub is_whole: bool,
}

/// How far a stream is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Until {
    /// To its end.
    End,
    /// To its `[DONE]`, as SDKs do.
    Done,
}

/// Opens its connection when it is needed, and again if it was closed.
#[derive(Debug)]
pub struct Client {
    authority: String,
    sender: Option<SendRequest<Full<Bytes>>>,
}

impl Client {
    /// A client of the server at this URL.
    #[must_use]
    pub fn new(url: &str) -> Self {
        Self { authority: authority(url).to_owned(), sender: None }
    }

    /// Sends a request and reads all of its answer.
    ///
    /// # Errors
    /// If there is none in time.
    pub async fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<Answer, OutsideError> {
        let heard = self.ask(method, path, headers, body, Until::End).await?;
        if heard.is_whole {
            return Ok(heard.answer);
        }
        Err(OutsideError::answered(format!("{method} {path}"), "an answer without its end"))
    }

    /// Sends a request and reads its answer as far as it comes, a stream up to its `[DONE]`.
    ///
    /// # Errors
    /// If not even its head comes, or the end does not come in time.
    pub async fn hear(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<Heard, OutsideError> {
        self.ask(method, path, headers, body, Until::Done).await
    }

    async fn ask(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
        until: Until,
    ) -> Result<Heard, OutsideError> {
        let mut request = Request::builder().method(method).uri(path).header("host", &self.authority);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let wrong = |error: hyper::http::Error| OutsideError::answered("the request", error.to_string());
        let request = request.body(Full::new(Bytes::copy_from_slice(body.as_bytes()))).map_err(wrong)?;
        let who = format!("{method} {path}");
        let exchange = tokio::time::timeout(ANSWER_WITHIN, self.exchange(request, until)).await;
        match exchange {
            Ok(answer) => answer,
            Err(_) => Err(OutsideError::TooLate { what: who, seconds: ANSWER_WITHIN.as_secs() }),
        }
    }

    async fn exchange(&mut self, request: Request<Full<Bytes>>, until: Until) -> Result<Heard, OutsideError> {
        let mut sender = match self.sender.take() {
            Some(sender) if !sender.is_closed() => sender,
            Some(_) | None => self.connect().await?,
        };
        sender.ready().await?;
        let (head, mut body) = sender.send_request(request).await?.into_parts();
        let mut read = BytesMut::new();
        let is_whole = loop {
            match body.frame().await {
                Some(Ok(frame)) => {
                    read.extend(frame.into_data());
                    if until == Until::Done && read.ends_with(STREAM_END) {
                        break false;
                    }
                }
                Some(Err(_broken)) => break false,
                None => break true,
            }
        };
        if is_whole {
            self.sender = Some(sender);
        }
        let answer = Answer { status: head.status.as_u16(), headers: head.headers, body: read.freeze() };
        Ok(Heard { answer, is_whole })
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, OutsideError> {
        let failed = || OutsideError::io(format!("connect to {}", self.authority));
        let stream = TcpStream::connect(&self.authority).await.map_err(failed())?;
        stream.set_nodelay(true).map_err(failed())?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        // May safely die: it ends with its sender.
        tokio::spawn(connection);
        Ok(sender)
    }
}
