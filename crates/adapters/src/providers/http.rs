//! Providers over HTTP: clients with pooled connections for each, no redirects, every wait and every size bounded.
//!
//! # Invariants
//! - A key is in one header, marked sensitive, and nowhere else.
//! - Dropping a reply drops its request upstream.

use super::body::Body;
use super::call::{Call, Delivery, Dialect, Secret};
use super::config::{ConfigError, Kind, ProviderConfig, Responses};
use super::decode::Decoder;
use super::error::{ProviderError, Stage, error_body};
use super::reader;
use super::reply::{Piece, Whole};
use super::translate::{self, About, StreamTranslation};
use super::way::{Address, Arrived, Way};
use bytes::{Bytes, BytesMut};
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{StatusCode, Url};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

const OPENAI_URL: &str = "https://api.openai.com/v1";
const ANTHROPIC_URL: &str = "https://api.anthropic.com";
const ANTHROPIC_VERSION: &str = "2023-06-01";
/// An error's body is read this far.
const ERROR_MAX_BYTES: usize = 256 * 1_024;

/// A provider that is reached over HTTP.
#[derive(Debug)]
pub(crate) struct Upstream {
    way: Way,
    kind: Kind,
    addresses: Addresses,
    key: Option<Secret>,
    key_env: Option<String>,
    responses: Responses,
    first_byte_timeout: Duration,
    whole_timeout: Duration,
    idle_timeout: Duration,
    max_reply_bytes: usize,
}

/// Where each dialect is asked.
#[derive(Debug)]
struct Addresses {
    chat_completions: Address,
    responses: Address,
    messages: Address,
    embeddings: Address,
}

impl Addresses {
    /// Below `base`; `None` if that is no address that can be asked.
    fn below(base: &str) -> Option<Self> {
        // The base by itself: with a path after it, the path's first word would be the host that is missing.
        let plain = Url::parse(base).ok().filter(|url| matches!(url.scheme(), "http" | "https"))?;
        if !plain.username().is_empty() || plain.password().is_some() {
            return None;
        }
        let address = |path: &str| Address::parse(&format!("{base}{path}"));
        Some(Self {
            chat_completions: address("/chat/completions")?,
            responses: address("/responses")?,
            messages: address("/v1/messages")?,
            embeddings: address("/embeddings")?,
        })
    }
}

/// What a call over HTTP gives.
pub(crate) enum Received {
    Whole(Whole),
    Incoming(Box<Incoming>),
}

impl Upstream {
    pub(crate) fn new(name: &str, config: &ProviderConfig, key: Option<Secret>) -> Result<Self, ConfigError> {
        let own_url = match config.kind {
            Kind::Anthropic => ANTHROPIC_URL,
            Kind::OpenAi | Kind::Echo => OPENAI_URL,
        };
        let base_url = config.base_url.as_deref().unwrap_or(own_url).trim_end_matches('/').to_owned();
        let setting = |field: &str| format!("providers.{name}.{field}");
        let Some(addresses) = Addresses::below(&base_url) else {
            let problem = "it must be an http or https URL without a user or password in it";
            return Err(ConfigError::new(setting("base_url"), problem));
        };
        let way = Way::to(&addresses.chat_completions, Duration::from_millis(config.connect_timeout_ms))
            .map_err(|error| ConfigError::new(setting("base_url"), format!("no client can be made: {error}")))?;
        let by_url = if base_url == OPENAI_URL { Responses::Native } else { Responses::Translated };
        Ok(Self {
            way,
            kind: config.kind,
            addresses,
            key,
            key_env: config.key_env.clone(),
            responses: config.responses.unwrap_or(by_url),
            first_byte_timeout: Duration::from_millis(config.first_byte_timeout_ms),
            whole_timeout: Duration::from_millis(config.whole_timeout_ms),
            idle_timeout: Duration::from_millis(config.idle_timeout_ms),
            max_reply_bytes: config.max_reply_bytes,
        })
    }

    /// The dialect in which this provider is asked, and where.
    fn route(&self, caller: Dialect) -> (Dialect, &Address) {
        match (self.kind, caller) {
            (Kind::Anthropic, Dialect::Messages | Dialect::ChatCompletions | Dialect::Responses) => {
                (Dialect::Messages, &self.addresses.messages)
            }
            (_, Dialect::Embeddings) => (Dialect::Embeddings, &self.addresses.embeddings),
            (_, Dialect::Responses) if self.responses == Responses::Native => {
                (Dialect::Responses, &self.addresses.responses)
            }
            (_, Dialect::ChatCompletions | Dialect::Responses | Dialect::Messages) => {
                (Dialect::ChatCompletions, &self.addresses.chat_completions)
            }
        }
    }

    /// Asks, and takes the answer or its beginning.
    pub(crate) async fn call(&self, call: &Call, model: &str) -> Result<Received, ProviderError> {
        if self.kind == Kind::Anthropic && call.dialect == Dialect::Embeddings {
            return Err(ProviderError::Untranslatable("it has no embeddings".to_owned()));
        }
        let (upstream, address) = self.route(call.dialect);
        let body = translate::request(call, upstream, model)?;
        let wait = match call.delivery {
            Delivery::Stream => self.first_byte_timeout,
            Delivery::Whole => self.whole_timeout,
        };
        let due = Due::new(wait, Stage::FirstByte, call.deadline);
        let response = due.wait(self.way.ask(address, self.headers(call)?, body)).await??;
        if !response.status().is_success() {
            return Err(self.failure(response, call, upstream).await);
        }
        let about = || About::of(call, model);
        match call.delivery {
            Delivery::Whole => {
                let status = response.status().as_u16();
                let body = self.read(response, self.max_reply_bytes, call.deadline).await?;
                let usage = reader::usage_of_whole(upstream, &body)?;
                let body = match upstream == call.dialect {
                    true => body,
                    false => translate::whole(&body, upstream, call.dialect, &about())?,
                };
                Ok(Received::Whole(Whole { status, body, dialect: call.dialect, usage }))
            }
            Delivery::Stream => {
                let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("");
                if kind.starts_with("application/json") {
                    return Err(ProviderError::Unreadable {
                        reason: "a stream was asked for, and it is none".to_owned(),
                    });
                }
                let translation =
                    (upstream != call.dialect).then(|| StreamTranslation::new(upstream, call.dialect, about()));
                let decoder = Decoder::new(upstream, translation, call.pieces);
                let (idle_timeout, deadline) = (self.idle_timeout, call.deadline);
                let left = self.max_reply_bytes;
                Ok(Received::Incoming(Box::new(Incoming {
                    response,
                    decoder,
                    first: Some(due),
                    idle_timeout,
                    deadline,
                    left,
                })))
            }
        }
    }

    fn headers(&self, call: &Call) -> Result<HeaderMap, ProviderError> {
        let mut headers = HeaderMap::with_capacity(6);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(
            ACCEPT,
            HeaderValue::from_static(match call.delivery {
                Delivery::Whole => "application/json",
                Delivery::Stream => "text/event-stream",
            }),
        );
        let key = call.key.as_ref().or(self.key.as_ref());
        match (self.kind, key) {
            (Kind::Anthropic, Some(key)) => drop(headers.insert("x-api-key", sensitive(key.expose(), call.dialect)?)),
            (Kind::OpenAi | Kind::Echo, Some(key)) => {
                headers.insert(AUTHORIZATION, sensitive(&format!("Bearer {}", key.expose()), call.dialect)?);
            }
            (_, None) => {
                if let Some(variable) = self.key_env.clone() {
                    return Err(ProviderError::KeyMissing { variable });
                }
            }
        }
        let mut pass = |name: &'static str, value: Option<&str>| {
            if let Some(value) = value.and_then(|value| HeaderValue::from_str(value).ok()) {
                headers.insert(HeaderName::from_static(name), value);
            }
        };
        match self.kind {
            Kind::Anthropic => {
                pass("anthropic-version", Some(call.headers.anthropic_version.as_deref().unwrap_or(ANTHROPIC_VERSION)));
                pass("anthropic-beta", call.headers.anthropic_beta.as_deref());
            }
            Kind::OpenAi | Kind::Echo => pass("x-client-request-id", Some(&call.request_id)),
        }
        Ok(headers)
    }

    /// What an answer with another status than 2xx means.
    async fn failure(&self, response: Arrived, call: &Call, upstream: Dialect) -> ProviderError {
        let status = response.status();
        let retry_after = retry_after(response.headers());
        let own_key = call.key.is_some();
        match status.as_u16() {
            401..=403 if !own_key => ProviderError::KeyRefused { status: status.as_u16() },
            408 => ProviderError::TimedOut(Stage::FirstByte),
            429 if !own_key => ProviderError::RateLimited { retry_after },
            400..=499 => self.refusal(response, call, upstream).await,
            500..=599 if retry_after.is_some() => ProviderError::Unavailable {
                reason: format!("it answers with status {}", status.as_u16()),
                retry_after,
            },
            500..=599 => ProviderError::Failed { status: status.as_u16() },
            other => {
                ProviderError::Unreadable { reason: format!("it has the status {other}; redirects are not followed") }
            }
        }
    }

    /// A refusal that is the caller's: its body is passed on, in the caller's dialect.
    async fn refusal(&self, response: Arrived, call: &Call, upstream: Dialect) -> ProviderError {
        let status = response.status();
        let body = self.read(response, ERROR_MAX_BYTES, call.deadline).await.unwrap_or_default();
        let native = upstream == call.dialect && Body::parse(&body).is_ok();
        let body = if native { body } else { translate::error(&body, call.dialect) };
        ProviderError::Refused { status: status.as_u16(), body }
    }

    /// Reads a body to its end.
    async fn read(&self, mut response: Arrived, max: usize, deadline: Option<Instant>) -> Result<Bytes, ProviderError> {
        // Copied, even if it is one piece: an answer is kept for a while, and a piece keeps all of the buffer that it came in.
        let mut whole = BytesMut::new();
        let mut is_too_long = false;
        loop {
            let take = |chunk: &[u8]| {
                is_too_long = is_too_long || whole.len() + chunk.len() > max;
                if !is_too_long {
                    whole.extend_from_slice(chunk);
                }
            };
            let has_come = Due::new(self.idle_timeout, Stage::Idle, deadline).wait(response.chunks(take)).await??;
            match (is_too_long, has_come) {
                (true, _) => return Err(too_long(max)),
                (false, true) => {}
                (false, false) => return Ok(whole.freeze()),
            }
        }
    }
}

fn too_long(max: usize) -> ProviderError {
    ProviderError::Unreadable { reason: format!("it is longer than {max} bytes") }
}

/// A header with a key in it, which no log prints.
fn sensitive(text: &str, dialect: Dialect) -> Result<HeaderValue, ProviderError> {
    let mut value = HeaderValue::from_str(text).map_err(|_| {
        let message = "the provider's key has characters that no key has";
        let body = error_body(dialect, "authentication_error", "invalid_api_key", message);
        ProviderError::Refused { status: StatusCode::UNAUTHORIZED.as_u16(), body }
    })?;
    value.set_sensitive(true);
    Ok(value)
}

/// How long the provider asks to be left alone. A date is not read: it would need the provider's clock.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<u64>().ok();
    number("retry-after-ms").map(Duration::from_millis).or(number("retry-after").map(Duration::from_secs))
}

/// Until when one waits, and what it means if that passes.
#[derive(Debug, Clone, Copy)]
struct Due {
    at: Instant,
    stage: Stage,
}

impl Due {
    fn new(wait: Duration, stage: Stage, deadline: Option<Instant>) -> Self {
        let at = Instant::now() + wait;
        match deadline.filter(|deadline| *deadline < at) {
            Some(deadline) => Self { at: deadline, stage: Stage::Deadline },
            None => Self { at, stage },
        }
    }

    async fn wait<T>(self, future: impl Future<Output = T>) -> Result<T, ProviderError> {
        timeout_at(self.at, future).await.map_err(|_| ProviderError::TimedOut(self.stage))
    }
}

/// A stream that is coming in.
#[derive(Debug)]
pub(crate) struct Incoming {
    response: Arrived,
    decoder: Decoder,
    /// The first event is waited for like the first byte.
    first: Option<Due>,
    idle_timeout: Duration,
    deadline: Option<Instant>,
    /// How many bytes may still come.
    left: usize,
}

impl Incoming {
    /// The next piece. Dropping the future loses nothing: what was read is in the decoder.
    pub(crate) async fn next(&mut self) -> Result<Piece, ProviderError> {
        loop {
            if let Some(piece) = self.decoder.next()? {
                self.first = None;
                if piece.last {
                    self.response.complete();
                }
                return Ok(piece);
            }
            let due = self.first.unwrap_or_else(|| Due::new(self.idle_timeout, Stage::Idle, self.deadline));
            let (decoder, left) = (&mut self.decoder, &mut self.left);
            let mut is_too_long = false;
            let take = |chunk: &[u8]| match left.checked_sub(chunk.len()) {
                Some(rest) => {
                    *left = rest;
                    decoder.push(chunk);
                }
                None => is_too_long = true,
            };
            let has_come = due.wait(self.response.chunks(take)).await??;
            if is_too_long {
                return Err(too_long(self.left));
            }
            if !has_come {
                return self.decoder.finish();
            }
        }
    }
}
