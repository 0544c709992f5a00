//! How the HTTP server is set up: where it listens, whom it trusts, and what it allows.

use super::chat_socket::ChatSettings;
use crate::failure::Failure;
use crate::identity::{PeerKeys, Source};
use crate::settings::Said;
use holdfast_domain::CreditUnit;
use std::num::NonZeroU32;
use std::time::Duration;

/// The longest body of a billing or admin request.
pub(crate) const BODY_BYTES_MAX: usize = 1_048_576;
/// The longest body of a batch: 8,190 requests of some 500 bytes.
pub(crate) const BATCH_BYTES_MAX: usize = 4 * 1_048_576;
/// The longest body of an inference request.
pub(crate) const INFERENCE_BYTES_MAX: usize = 16 * 1_048_576;
/// The deepest nesting of a body.
pub(crate) const JSON_DEPTH_MAX: usize = 32;
/// The longest head of a request, in bytes and in headers.
pub(crate) const HEAD_BYTES_MAX: u32 = 65_536;
pub(crate) const HEADERS_MAX: usize = 64;
/// How long a connection may take to send a request's head, or be idle between two.
pub(crate) const HEAD_MAX: Duration = Duration::from_secs(30);
/// How long a billing request may take, its body included.
pub(crate) const REQUEST_MAX: Duration = Duration::from_secs(30);
/// How many requests one HTTP/2 connection may have open.
pub(crate) const STREAMS_MAX: u32 = 256;

/// Requests a second.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RateSettings {
    pub(crate) per_credential: NonZeroU32,
    pub(crate) per_address: NonZeroU32,
    pub(crate) failures: NonZeroU32,
}

/// Everything that can be said about the server.
#[derive(Debug, Clone)]
pub(crate) struct HttpSettings {
    pub(crate) listen: String,
    pub(crate) connections_max: usize,
    pub(crate) rates: RateSettings,
    pub(crate) chat: ChatSettings,
    /// An answer that takes a balance below this says so.
    pub(crate) credits_low: CreditUnit,
    jwks: Option<String>,
    jwks_issuer: String,
}

impl HttpSettings {
    /// Generous limits and no peer, changed by what is said; an address on the command line goes before that.
    pub(crate) fn read(said: &Said, listen: Option<&str>) -> Result<Self, Failure> {
        let rate = |name, usual: NonZeroU32| -> Result<NonZeroU32, Failure> {
            let rate = said.number(name, 1..=10_000_000)?;
            Ok(rate.and_then(|rate| u32::try_from(rate).ok()).and_then(NonZeroU32::new).unwrap_or(usual))
        };
        let count = |name, usual: usize| -> Result<usize, Failure> {
            Ok(said.number(name, 1..=1_000_000)?.and_then(|most| usize::try_from(most).ok()).unwrap_or(usual))
        };
        Ok(Self {
            listen: match listen {
                Some(listen) => listen.to_owned(),
                None => said.text("HOLDFAST_LISTEN")?.unwrap_or_else(|| LISTEN.to_owned()),
            },
            connections_max: count("HOLDFAST_CONNECTIONS_MAX", CONNECTIONS_MAX)?,
            rates: RateSettings {
                per_credential: rate("HOLDFAST_RATE_PER_CREDENTIAL", PER_CREDENTIAL)?,
                per_address: rate("HOLDFAST_RATE_PER_ADDRESS", PER_ADDRESS)?,
                failures: rate("HOLDFAST_RATE_FAILURES", FAILURES)?,
            },
            chat: ChatSettings {
                model: said.text("HOLDFAST_CHAT_MODEL")?.unwrap_or_else(|| "echo".to_owned()),
                rate: rate("HOLDFAST_CHAT_RATE", CHAT_RATE)?,
                connections_max: count("HOLDFAST_CHAT_CONNECTIONS_MAX", CHAT_CONNECTIONS_MAX)?,
            },
            credits_low: amount(said, "HOLDFAST_CREDITS_LOW_CU", CREDITS_LOW)?,
            jwks: said.text("HOLDFAST_JWKS")?,
            jwks_issuer: said.text("HOLDFAST_JWKS_ISSUER")?.unwrap_or_else(|| "holdfast".to_owned()),
        })
    }

    /// The peer's keys, if a set is configured.
    pub(crate) fn peer_keys(&self) -> Result<Option<PeerKeys>, Failure> {
        let open = |place: &String| PeerKeys::open(Source::of(place), self.jwks_issuer.clone());
        Ok(self.jwks.as_ref().map(open).transpose()?)
    }
}

const LISTEN: &str = "127.0.0.1:8080";
const CONNECTIONS_MAX: usize = 4_096;
// One busy service is one credential and one address: these stop a runaway loop, not a load test.
const PER_CREDENTIAL: NonZeroU32 = NonZeroU32::new(50_000).expect("not zero");
const PER_ADDRESS: NonZeroU32 = NonZeroU32::new(100_000).expect("not zero");
const FAILURES: NonZeroU32 = NonZeroU32::new(500).expect("not zero");
// Nobody types ten messages a second.
const CHAT_RATE: NonZeroU32 = NonZeroU32::new(10).expect("not zero");
const CHAT_CONNECTIONS_MAX: usize = 1_024;
/// Credits: ten of them are ten cents, unless the prices say otherwise.
const CREDITS_LOW: &str = "10";

fn amount(said: &Said, name: &'static str, usual: &str) -> Result<CreditUnit, Failure> {
    let allowed = || "an amount of credits such as 10 or 2.5".to_owned();
    let read = |text: &str| if text.is_empty() { usual.parse().ok() } else { text.parse().ok() };
    let said = said.parsed(name, read, allowed)?;
    Ok(said.unwrap_or_else(|| usual.parse().expect("the usual amount is one")))
}
