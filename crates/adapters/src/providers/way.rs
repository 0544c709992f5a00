//! The way to a provider: plain connections where there is neither TLS nor a proxy, else a client that knows both.

use super::clients::Clients;
use super::error::ProviderError;
use super::plain::{self, NoAnswer, Plain};
use bytes::Bytes;
use hyper::header::HeaderMap;
use hyper::{StatusCode, Uri};
use reqwest::{Response, Url};
use std::time::Duration;

/// How a provider is reached.
#[derive(Debug)]
pub(super) enum Way {
    Plain(Plain),
    Client(Clients),
}

/// Where one dialect is asked: read once, because to read an address costs as much as to count a request's tokens.
#[derive(Debug)]
pub(super) struct Address {
    url: Url,
    /// The same without its host.
    path: Uri,
}

/// An answer, or its beginning. Dropping it drops its request.
#[derive(Debug)]
pub(super) enum Arrived {
    Plain(plain::Arrived),
    Client(Response),
}

impl Address {
    /// `None` if it is none.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let url = Url::parse(text).ok()?;
        let path = url.query().map_or_else(|| url.path().to_owned(), |query| format!("{}?{query}", url.path()));
        Some(Self { path: path.parse().ok()?, url })
    }
}

impl Way {
    pub(super) fn to(address: &Address, connect_timeout: Duration) -> Result<Self, reqwest::Error> {
        match Plain::new(&address.url, connect_timeout) {
            Some(plain) => Ok(Self::Plain(plain)),
            None => Clients::new(connect_timeout).map(Self::Client),
        }
    }

    /// Asks, and takes the beginning of the answer.
    pub(super) async fn ask(
        &self,
        address: &Address,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Arrived, ProviderError> {
        match self {
            Self::Plain(plain) => {
                let arrived = plain.ask(&address.path, headers, body).await;
                arrived.map(Arrived::Plain).map_err(unreachable)
            }
            Self::Client(clients) => {
                let request = clients.mine().post(address.url.clone()).headers(headers).body(body);
                let response = request.send().await.map_err(|error| match (error.is_connect(), error.is_timeout()) {
                    (true, true) => NoAnswer::SlowToConnect,
                    (true, false) => NoAnswer::NotConnected,
                    (false, _) => NoAnswer::Lost,
                });
                response.map(Arrived::Client).map_err(unreachable)
            }
        }
    }
}

impl Arrived {
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::Plain(arrived) => arrived.status,
            Self::Client(response) => response.status(),
        }
    }

    pub(super) fn headers(&self) -> &HeaderMap {
        match self {
            Self::Plain(arrived) => &arrived.headers,
            Self::Client(response) => response.headers(),
        }
    }

    /// Gives all bytes of the body that have come to `take`, and waits if there are none; `false` at its end. Dropping the future
    /// loses nothing.
    pub(super) async fn chunks(&mut self, mut take: impl FnMut(&[u8])) -> Result<bool, ProviderError> {
        match self {
            Self::Plain(arrived) => arrived.chunks(take).await.map_err(|_| broke_off()),
            Self::Client(response) => {
                let chunk = response.chunk().await.map_err(|_| broke_off())?;
                Ok(chunk.inspect(|chunk| take(chunk)).is_some())
            }
        }
    }

    /// Says that the answer's last word has come, and only its formal end may be missing.
    pub(super) const fn complete(&mut self) {
        match self {
            Self::Plain(arrived) => arrived.complete(),
            // It reads on by itself.
            Self::Client(_) => {}
        }
    }
}

fn broke_off() -> ProviderError {
    ProviderError::BrokeOff { reason: "the connection was lost".to_owned() }
}

/// What it means that there is no answer.
fn unreachable(why: NoAnswer) -> ProviderError {
    let reason = match why {
        NoAnswer::SlowToConnect => "it took too long to connect",
        NoAnswer::NotConnected => "no connection can be made",
        NoAnswer::Lost => "the connection was lost before an answer came",
    };
    ProviderError::Unavailable { reason: reason.to_owned(), retry_after: None }
}
