//! The wallet in another process, over HTTP: its own endpoints, with a short-lived service token of ours, every wait and every
//! size bounded, and no redirect followed.
//!
//! # Invariants
//! - A word whose answer was lost is said again with the same key, which the wallet knows: it is done once.
//! - Whatever the wallet does, asking it ends in an answer or in [`PurseFailed::Away`] within [`TRIES`] times [`ANSWER_MAX`].
//! - Both tokens, ours as a service and the queue's word, are in one request each and nowhere else.

use super::purse::PurseFailed;
use crate::failure::Failure;
use crate::identity::Identity;
use crate::wallet::{EscrowSeen, Instruction, Replayed, WalletFailed};
use crate::wire::escrows::{EscrowRead, OrderBody};
use holdfast_domain::{CreditUnit, EscrowId, Label, escrow};
use holdfast_engine::Refusal;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use reqwest::{Client, RequestBuilder, Response, Url, redirect};
use serde::Deserialize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// The longest that one answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(5);
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// How often a wallet that does not answer is asked.
const TRIES: u32 = 3;
/// How long it is waited after the first of them; twice as long each time.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest answer that is read: a page of escrows with all that was said about them.
const ANSWER_BYTES_MAX: usize = 8 * 1_048_576;
/// The most escrows that a wallet lists at once.
const PAGE_MAX: usize = 1_000;
/// How long our tokens for it are good, and how long one is used.
const TOKEN_LIFE_S: u64 = 300;
const TOKEN_USE_MAX: Duration = Duration::from_secs(60);

/// A wallet that is asked over HTTP.
pub(crate) struct RemoteWallet {
    client: Client,
    base: String,
    audience: String,
    identity: Arc<Identity>,
    /// The newest token, and until when it is used.
    token: Mutex<Option<(HeaderValue, Instant)>>,
}

/// An answer, read whole.
struct Answer {
    status: u16,
    replayed: Replayed,
    body: Vec<u8>,
}

#[derive(Deserialize)]
struct Refused {
    error: RefusedBody,
}

#[derive(Deserialize)]
struct RefusedBody {
    code: String,
    message: String,
    #[serde(default)]
    details: Details,
}

#[derive(Default, Deserialize)]
struct Details {
    state: Option<String>,
    amount_cu: Option<String>,
}

#[derive(Deserialize)]
struct Escrows {
    escrows: Vec<EscrowRead>,
}

impl RemoteWallet {
    /// The wallet at an address, for which our tokens say `audience`.
    pub(crate) fn at(url: &Url, audience: &str, identity: Arc<Identity>) -> Result<Self, Failure> {
        let builder = Client::builder()
            .redirect(redirect::Policy::none())
            .tcp_nodelay(true)
            .connect_timeout(CONNECT_MAX)
            .timeout(ANSWER_MAX)
            .pool_idle_timeout(Duration::from_secs(20))
            .user_agent(concat!("holdfast/", env!("CARGO_PKG_VERSION")));
        let client = builder.build().map_err(|error| Failure::Setting {
            name: "HOLDFAST_QUEUE_WALLET_URL".to_owned(),
            value: url.to_string(),
            allowed: format!("an address that a client can be made for: {error}"),
        })?;
        let (base, audience) = (url.as_str().trim_end_matches('/').to_owned(), audience.to_owned());
        Ok(Self { client, base, audience, identity, token: Mutex::default() })
    }

    /// An escrow, open or closed, however old.
    pub(super) async fn escrow(&self, id: EscrowId) -> Result<Option<EscrowSeen>, PurseFailed> {
        let url = format!("{}/api/v1/escrows/{id}", self.base);
        let answer = self.ask(|| self.client.get(&url)).await?;
        if answer.status == 200 {
            return read_escrow(&answer.body).map(Some);
        }
        match refusal(&answer) {
            PurseFailed::Wallet(WalletFailed::Refused(Refusal::UnknownEscrow)) => Ok(None),
            failed @ (PurseFailed::Wallet(_) | PurseFailed::NotAuthorized(_) | PurseFailed::Away(_)) => Err(failed),
        }
    }

    /// Has it do what the queue has decided.
    pub(super) async fn carry_out(&self, instruction: &Instruction) -> Result<(EscrowSeen, Replayed), PurseFailed> {
        let (operation, body) = OrderBody::of(instruction);
        let url = format!("{}/api/v1/escrows/{}/{}", self.base, instruction.escrow, operation.path());
        let body = serde_json::to_vec(&body).expect("texts become JSON");
        let post = || self.client.post(&url).header(CONTENT_TYPE, "application/json").body(body.clone());
        let answer = self.ask(post).await?;
        if answer.status == 200 {
            return Ok((read_escrow(&answer.body)?, answer.replayed));
        }
        Err(refusal(&answer))
    }

    /// Escrows that hold money, in the order of their ids, after a given one, at most so many.
    pub(super) async fn held(&self, after: Option<EscrowId>, at_most: usize) -> Result<Vec<EscrowSeen>, PurseFailed> {
        let mut url = format!("{}/api/v1/escrows?status=held&limit={}", self.base, at_most.min(PAGE_MAX));
        if let Some(after) = after {
            // An id has no character that means something in a query.
            url.push_str(&format!("&after={after}"));
        }
        let answer = self.ask(|| self.client.get(&url)).await?;
        if answer.status != 200 {
            return Err(refusal(&answer));
        }
        let Escrows { escrows } = serde_json::from_slice(&answer.body).map_err(|_| strange())?;
        escrows.into_iter().map(|body| body.read().ok_or_else(strange)).collect()
    }

    /// Asks until there is an answer. One that was lost is asked for again: looking changes nothing, and a word has its key.
    async fn ask(&self, request: impl Fn() -> RequestBuilder) -> Result<Answer, PurseFailed> {
        let mut pause = FIRST_PAUSE;
        let mut tried = 1;
        loop {
            let token = self.token()?;
            let asked = timeout(ANSWER_MAX, answered(request().header(AUTHORIZATION, token))).await;
            let why = match asked {
                Ok(Ok(answer)) if answer.status < 500 && answer.status != 429 => return Ok(answer),
                Ok(Ok(answer)) => said(&answer),
                Ok(Err(why)) => why.to_owned(),
                Err(_) => "it took too long".to_owned(),
            };
            if tried == TRIES {
                return Err(PurseFailed::Away(why));
            }
            tokio::time::sleep(pause).await;
            tried += 1;
            pause *= 2;
        }
    }

    /// A token that is good for a while longer.
    fn token(&self) -> Result<HeaderValue, PurseFailed> {
        let mut token = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((made, until)) = &*token
            && Instant::now() < *until
        {
            return Ok(made.clone());
        }
        let unsigned = |why: String| PurseFailed::Away(format!("no token could be made: {why}"));
        let subject: Label = "queue".parse().expect("a plain word");
        let signed = self.identity.signing.sign_for(&self.audience, subject, TOKEN_LIFE_S);
        let bearer = format!("Bearer {}", signed.map_err(|error| unsigned(error.to_string()))?);
        let made = HeaderValue::from_str(&bearer).map_err(|_| unsigned("it has strange characters".to_owned()));
        let mut made = made?;
        made.set_sensitive(true);
        *token = Some((made.clone(), Instant::now() + TOKEN_USE_MAX));
        Ok(made)
    }
}

/// The whole answer to a request, or why there is none. The address is nobody's business.
async fn answered(request: RequestBuilder) -> Result<Answer, &'static str> {
    let mut response = request.send().await.map_err(|error| match (error.is_connect(), error.is_timeout()) {
        (true, _) => "no connection can be made",
        (false, true) => "it took too long",
        (false, false) => "the connection was lost before an answer came",
    })?;
    let status = response.status().as_u16();
    let replayed = response.headers().get("idempotent-replayed").is_some_and(|value| value == "true");
    let body = whole(&mut response).await?;
    Ok(Answer { status, replayed: if replayed { Replayed::Yes } else { Replayed::No }, body })
}

async fn whole(response: &mut Response) -> Result<Vec<u8>, &'static str> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|_| "the connection was lost within an answer")? {
        if body.len() + chunk.len() > ANSWER_BYTES_MAX {
            return Err("its answer is too long");
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

fn read_escrow(body: &[u8]) -> Result<EscrowSeen, PurseFailed> {
    let body: EscrowRead = serde_json::from_slice(body).map_err(|_| strange())?;
    body.read().ok_or_else(strange)
}

fn strange() -> PurseFailed {
    PurseFailed::Away("its answer is not understood; use the same version of holdfast for queue and wallet".to_owned())
}

/// What an answer that is no success says.
fn said(answer: &Answer) -> String {
    match serde_json::from_slice::<Refused>(&answer.body) {
        Ok(Refused { error }) => format!("it answered {} {}", answer.status, plain(&error.code)),
        Err(_) => format!("it answered {}", answer.status),
    }
}

/// The beginning of a text, without what a line of a log may not have.
fn plain(text: &str) -> String {
    text.chars().filter(|character| !character.is_control()).take(300).collect()
}

/// A refusal, as the wallet in this process would have given it.
fn refusal(answer: &Answer) -> PurseFailed {
    let Ok(Refused { error: RefusedBody { code, message, details } }) = serde_json::from_slice(&answer.body) else {
        return PurseFailed::Away(said(answer));
    };
    let refusal = match code.as_str() {
        "ESCROW_NOT_FOUND" => Refusal::UnknownEscrow,
        "ESCROW_ALREADY_PROCESSED" => match details.state.as_deref().and_then(state) {
            Some(state) => Refusal::EscrowAlreadyProcessed(state),
            None => return strange(),
        },
        "ALREADY_USED_KEY" => Refusal::KeyReused,
        "OPTIMISTIC_LOCK" => Refusal::Overtaken,
        "INVALID_SPLIT" => match details.amount_cu.and_then(|text| text.parse::<CreditUnit>().ok()) {
            Some(amount) => Refusal::InvalidSplit { amount },
            None => return strange(),
        },
        "INVALID_AUTHORIZATION" => return PurseFailed::NotAuthorized(plain(&message)),
        _ if matches!(answer.status, 401 | 403) => {
            let why =
                format!("it does not take our service token ({}): its HOLDFAST_JWKS must lead to us", plain(&code));
            return PurseFailed::Away(why);
        }
        _ => return PurseFailed::Away(said(answer)),
    };
    PurseFailed::Wallet(WalletFailed::Refused(refusal))
}

fn state(name: &str) -> Option<escrow::State> {
    use escrow::State::{Held, Partial, Refunded, Settled};
    [Held, Settled, Refunded, Partial].into_iter().find(|state| state.name() == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16, error: &str) -> PurseFailed {
        let body = format!(r#"{{"error":{error}}}"#).into_bytes();
        refusal(&Answer { status, replayed: Replayed::No, body })
    }

    #[test]
    fn the_wallets_refusals_are_the_same_from_afar() {
        let error = |code: &str, details: &str| format!(r#"{{"code":"{code}","message":"m","details":{details}}}"#);
        for (status, code, details, is_end, is_collision) in [
            (409, "ESCROW_ALREADY_PROCESSED", r#"{"state":"settled"}"#, true, false),
            (409, "ALREADY_USED_KEY", "{}", true, false),
            (409, "OPTIMISTIC_LOCK", "{}", false, true),
            (404, "ESCROW_NOT_FOUND", "{}", false, false),
            (400, "INVALID_SPLIT", r#"{"amount_cu":"10"}"#, false, false),
            (403, "INVALID_AUTHORIZATION", "{}", false, false),
        ] {
            let failed = refused(status, &error(code, details));
            assert_eq!((failed.code(), failed.says_it_has_ended()), (code, is_end));
            assert_eq!(failed.is_a_collision(), is_collision, "{code}");
        }
    }

    #[test]
    fn what_is_not_understood_is_no_answer() {
        for (status, error) in [
            (401, r#"{"code":"AUTH_INVALID_TOKEN","message":"m"}"#),
            (409, r#"{"code":"ESCROW_ALREADY_PROCESSED","message":"m","details":{"state":"gone"}}"#),
            (400, r#"{"code":"SOMETHING_NEW","message":"m"}"#),
            (404, "7"),
        ] {
            assert_eq!(refused(status, error).code(), "SERVICE_WALLET_UNREACHABLE", "{error}");
        }
    }
}
