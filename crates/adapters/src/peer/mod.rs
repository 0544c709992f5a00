//! The peer over HTTP: `POST {peer}/api/internal/finalize`, with a short-lived token of ours, every wait and every size
//! bounded, and no redirect followed.
//!
//! # Invariants
//! - Whatever the peer does, telling it comes to one [`Verdict`] within its time.
//! - The token is in one header, marked sensitive, and nowhere else.

mod address;
mod retry_after;

pub use address::PrivateAddresses;

use address::Guarded;
use holdfast_domain::delivery::{Obligation, Verdict};
use holdfast_domain::{Reason, TEXT_BYTES_MAX};
use holdfast_engine::Clock;
use holdfast_engine::dispatcher::{DELIVERY_MAX, Peer, Told};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use reqwest::{Client, Response, Url, redirect};
use serde::Serialize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// How far an answer is read: it says nothing that its status does not.
pub const ANSWER_BYTES_MAX: usize = 64 * 1_024;
/// How long one waits for the rest of an answer whose status has come.
const REST_MAX: Duration = Duration::from_secs(1);
/// How long a token is used before another is made. Well below the five minutes that it is good for.
const TOKEN_USE_MAX: Duration = Duration::from_secs(60);
/// How much of a refusal is kept for people.
const WORDS_MAX: usize = 120;

/// Makes a bearer token for the peer.
pub type Sign = Arc<dyn Fn() -> Result<String, String> + Send + Sync>;

/// How the peer is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerSettings {
    /// Its address, without the path.
    pub url: String,
    /// The longest that connecting may take.
    pub connect_timeout: Duration,
    /// The longest that telling it may take.
    pub timeout: Duration,
    /// Whether it may be at a private address.
    pub private_addresses: PrivateAddresses,
}

/// Why a peer cannot be told anything.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerRefused {
    /// The address is none that can be asked.
    #[error("it must be an http or https URL without a user or password in it")]
    Address,
    /// It is at a private address, which is not allowed.
    #[error("it is a private address, and these are refused")]
    Private,
    /// No client can be made.
    #[error("no client can be made: {0}")]
    Client(String),
}

/// A peer that is reached over HTTP.
pub struct HttpPeer {
    client: Client,
    finalize: Url,
    timeout: Duration,
    clock: Arc<dyn Clock>,
    sign: Sign,
    /// The newest token, and until when it is used.
    token: Mutex<Option<(HeaderValue, Instant)>>,
}

#[derive(Serialize)]
struct Body<'a> {
    reservation_id: &'a str,
    tenant_id: &'a str,
    /// Millionths of a credit. A text, because JSON's numbers lose digits above 2^53.
    actual_cost_micro: String,
    trace_id: &'a str,
}

impl HttpPeer {
    /// A peer at an address.
    pub fn new(settings: &PeerSettings, clock: Arc<dyn Clock>, sign: Sign) -> Result<Self, PeerRefused> {
        let finalize = finalize_url(&settings.url)?;
        let mut builder = Client::builder()
            .redirect(redirect::Policy::none())
            .tcp_nodelay(true)
            .connect_timeout(settings.connect_timeout)
            .pool_idle_timeout(Duration::from_secs(90))
            .user_agent(concat!("holdfast/", env!("CARGO_PKG_VERSION")));
        if settings.private_addresses == PrivateAddresses::Refuse {
            address::check_literal(&finalize)?;
            builder = builder.no_proxy().dns_resolver(Arc::new(Guarded));
        }
        let client = builder.build().map_err(|error| PeerRefused::Client(error.to_string()))?;
        let timeout = settings.timeout.min(Duration::from_millis(DELIVERY_MAX.millis()));
        Ok(Self { client, finalize, timeout, clock, sign, token: Mutex::default() })
    }

    /// A token that is good for a while longer.
    fn token(&self) -> Result<HeaderValue, String> {
        let mut token = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((made, until)) = &*token
            && Instant::now() < *until
        {
            return Ok(made.clone());
        }
        let bearer = format!("Bearer {}", (self.sign)()?);
        let mut made = HeaderValue::from_str(&bearer).map_err(|_| "a token has strange characters".to_owned())?;
        made.set_sensitive(true);
        *token = Some((made.clone(), Instant::now() + TOKEN_USE_MAX));
        Ok(made)
    }

    async fn tell_by(&self, obligation: &Obligation, due: Instant) -> Told {
        let token = match self.token() {
            Ok(token) => token,
            Err(why) => return no_answer(&format!("no token could be made: {why}")),
        };
        let body = Body {
            reservation_id: obligation.id.as_str(),
            tenant_id: obligation.owner.as_str(),
            actual_cost_micro: obligation.cost.units().to_string(),
            trace_id: obligation.charge.as_str(),
        };
        let body = serde_json::to_vec(&body).expect("texts become JSON");
        let request = self.client.post(self.finalize.clone()).header(AUTHORIZATION, token);
        let request = request.header(CONTENT_TYPE, "application/json").body(body);
        match timeout_at(due, request.send()).await {
            Err(_) => no_answer("the peer did not answer in time"),
            Ok(Err(error)) => no_answer(lost(&error)),
            Ok(Ok(response)) => self.told(response, due).await,
        }
    }

    /// What an answer means. Its status alone says it; the rest is read so that the connection can be used again.
    async fn told(&self, response: Response, due: Instant) -> Told {
        let status = response.status().as_u16();
        let asked = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let asked = asked.and_then(|value| retry_after::read(value, self.clock.now()));
        let verdict = Verdict::of_status(status, asked);
        let rest = read(response, due.min(Instant::now() + REST_MAX)).await;
        let said = match verdict {
            Verdict::Terminal => words(&rest),
            Verdict::Finalized | Verdict::Known | Verdict::TryAgain { .. } => String::new(),
        };
        let reason = if said.is_empty() { format!("the peer answered {status}") } else { format!("{status}: {said}") };
        Told { verdict, reason: plain(&reason) }
    }
}

impl Peer for HttpPeer {
    async fn tell(&self, obligation: &Obligation) -> Told {
        self.tell_by(obligation, Instant::now() + self.timeout).await
    }
}

fn finalize_url(base: &str) -> Result<Url, PeerRefused> {
    let plain = Url::parse(base).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
    let plain = plain.filter(|url| url.username().is_empty() && url.password().is_none() && url.host().is_some());
    let bare = plain.filter(|url| url.query().is_none() && url.fragment().is_none()).ok_or(PeerRefused::Address)?;
    let base = bare.as_str().trim_end_matches('/');
    Url::parse(&format!("{base}/api/internal/finalize")).map_err(|_| PeerRefused::Address)
}

/// Reads an answer as far as it is allowed to be long.
async fn read(mut response: Response, due: Instant) -> Vec<u8> {
    let mut whole = Vec::new();
    while whole.len() < ANSWER_BYTES_MAX
        && let Ok(Ok(Some(chunk))) = timeout_at(due, response.chunk()).await
    {
        let left = ANSWER_BYTES_MAX - whole.len();
        whole.extend_from_slice(&chunk[..chunk.len().min(left)]);
    }
    whole
}

fn no_answer(why: &str) -> Told {
    Told { verdict: Verdict::NO_ANSWER, reason: plain(why) }
}

/// Why there was no answer, without the address: it may be nobody's business.
fn lost(error: &reqwest::Error) -> &'static str {
    match (error.is_connect(), error.is_timeout()) {
        (true, true) => "connecting to the peer took too long",
        (true, false) => "no connection to the peer can be made",
        (false, _) => "the connection to the peer was lost before an answer came",
    }
}

/// The beginning of a text, without what a line of a log may not have.
fn words(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(&text[..text.len().min(WORDS_MAX)]);
    let clean = |character: char| if character.is_control() { ' ' } else { character };
    text.chars().map(clean).collect::<String>().trim().to_owned()
}

/// A reason of a length that can be kept.
fn plain(text: &str) -> Reason {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].parse().unwrap_or_else(|_| "the peer refused".parse().expect("a short text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_plain_and_the_path_is_ours() {
        let finalize = |base| finalize_url(base).map(|url| url.to_string());
        for (base, expected) in [
            ("http://peer", "http://peer/api/internal/finalize"),
            ("https://peer:8443/", "https://peer:8443/api/internal/finalize"),
            ("https://peer/billing/", "https://peer/billing/api/internal/finalize"),
        ] {
            assert_eq!(finalize(base).as_deref(), Ok(expected));
        }
        for bad in ["", "peer", "ftp://peer", "http://user@peer", "http://:secret@peer", "http://peer?x=1", "file:///x"]
        {
            assert_eq!(finalize(bad), Err(PeerRefused::Address), "{bad}");
        }
    }

    #[test]
    fn what_a_peer_says_is_made_fit_for_a_line() {
        assert_eq!(words(b" no\nsuch\x1b[31m tenant\0 "), "no such [31m tenant");
        assert_eq!(words(&[0xff; 500]).chars().count(), WORDS_MAX);
        assert_eq!(plain(&"é".repeat(500)).as_str().len(), TEXT_BYTES_MAX);
        assert_eq!(plain("").as_str(), "the peer refused");
    }
}
