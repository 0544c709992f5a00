//! The queue's word to the wallet: a token that says what is to become of one escrow, on behalf of which item, and why.
//!
//! # Invariants
//! - A token is good for exactly what it says: **every** bound field is compared with the request's.
//! - The algorithm, the type, the issuer and the audience are pinned; a token names its secret, and brings nothing else along
//!   that is looked at.
//! - A token lives five minutes. That it is used once is not its own matter: money leaves an escrow once.

use super::Instruction;
pub(crate) use super::secrets::Secrets;
use crate::identity::head_of;
use crate::wire::object::Object;
use crate::wire::time::Moment;
use holdfast_domain::queue::Order;
use holdfast_domain::{CreditUnit, EscrowId, OwnerId, Timestamp, escrow};
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, Header, Validation};
use serde::{Deserialize, Deserializer, Serialize};
use std::sync::LazyLock;

/// How long a token is good for.
pub(crate) const LIFE_S: u64 = 300;
/// How far the clocks of queue and wallet may be apart.
const LEEWAY_S: u64 = 30;
/// Who signs, and for whom.
const ISSUER: &str = "holdfast-queue";
const AUDIENCE: &str = "holdfast-wallet";
/// A type of its own: no other kind of token passes for this one.
const TYPE: &str = "queue-authorization+jwt";
const NAME_BYTES_MAX: usize = 128;

// A token outlives what two clocks may differ by.
const _: () = assert!(LEEWAY_S < LIFE_S);

/// Why the wallet does not act on a word. It says what is wrong, and nothing secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the authorization token is refused: {0}")]
pub(crate) struct NotAuthorized(pub(super) &'static str);

impl NotAuthorized {
    /// Nothing was sent.
    pub(crate) const MISSING: Self = Self("none was sent: give the queue's token as `authorizationToken`");
    /// Several were sent, or none that is a text.
    pub(crate) const NOT_ONE: Self = Self("`authorizationToken` must be one text, said once");

    /// The stable code of this error.
    pub(crate) const fn code(self) -> &'static str {
        "INVALID_AUTHORIZATION"
    }
}

/// What a token says.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Claims {
    queue_item_id: String,
    escrow_id: String,
    /// Who is paid, if anybody is.
    #[serde(default, deserialize_with = "text", skip_serializing_if = "Option::is_none")]
    model_id: Option<String>,
    /// Who gets something back, if anybody does.
    #[serde(default, deserialize_with = "text", skip_serializing_if = "Option::is_none")]
    user_id: Option<String>,
    #[serde(default, deserialize_with = "text", skip_serializing_if = "Option::is_none")]
    amount: Option<String>,
    #[serde(default, deserialize_with = "text", skip_serializing_if = "Option::is_none")]
    refund_amount: Option<String>,
    #[serde(default, deserialize_with = "text", skip_serializing_if = "Option::is_none")]
    settle_amount: Option<String>,
    operation: String,
    reason: String,
    issued_at: String,
    expires_at: String,
    iss: String,
    aud: String,
    iat: u64,
    exp: u64,
    jti: String,
}

/// A claim that may be missing, and is a text if it is there: not even null.
fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    String::deserialize(deserializer).map(Some)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StrictHeader {
    alg: String,
    typ: String,
    kid: String,
}

impl Claims {
    /// What a token says about this, from this second on.
    fn of(escrow: EscrowId, user: OwnerId, amount: CreditUnit, order: &Order, iat: u64) -> Self {
        let exp = iat.saturating_add(LIFE_S);
        let (whole, user) = (Some(amount.to_string()), Some(user.to_string()));
        let (model_id, user_id, amount, settle_amount, refund_amount) = match order.command {
            escrow::Command::Settle { payee } => (Some(payee.to_string()), None, whole, None, None),
            escrow::Command::Refund => (None, user, whole, None, None),
            escrow::Command::PartialSettle { payee, settle, refund } => {
                (Some(payee.to_string()), user, None, Some(settle.to_string()), Some(refund.to_string()))
            }
        };
        Self {
            queue_item_id: order.ruling.item.to_string(),
            escrow_id: escrow.to_string(),
            model_id,
            user_id,
            amount,
            refund_amount,
            settle_amount,
            operation: operation(&order.command).to_owned(),
            reason: order.ruling.cause.to_string(),
            issued_at: moment(iat),
            expires_at: moment(exp),
            iss: ISSUER.to_owned(),
            aud: AUDIENCE.to_owned(),
            iat,
            exp,
            jti: String::new(),
        }
    }

    const fn amounts(&self) -> [&Option<String>; 3] {
        [&self.amount, &self.settle_amount, &self.refund_amount]
    }

    /// The first thing that a token says otherwise than it should.
    fn differs_from(&self, asked: &Self) -> Option<&'static str> {
        let differences = [
            (self.operation != asked.operation, "it is for another operation (settle, refund or partial)"),
            (self.escrow_id != asked.escrow_id, "it is for another escrow"),
            (self.queue_item_id != asked.queue_item_id, "it is for another queue item"),
            (self.model_id != asked.model_id, "it is for another payee (`modelId`)"),
            (self.user_id != asked.user_id, "it is for another user (`userId`)"),
            (self.amounts() != asked.amounts(), "it is for another amount"),
            (self.reason != asked.reason, "it is for another reason"),
        ];
        differences.into_iter().find_map(|(differs, why)| differs.then_some(why))
    }

    /// What is wrong with who made it, for whom and when.
    fn is_out_of_place(&self, now_s: u64) -> Option<&'static str> {
        let at = |text: &str| text.parse().ok().map(|Moment(at)| at.millis() / 1_000);
        let life_s = self.exp.checked_sub(self.iat);
        let faults = [
            (self.iss != ISSUER, "its issuer (`iss`) is not the queue"),
            (self.aud != AUDIENCE, "it is for somebody else (`aud`)"),
            (self.jti.is_empty() || self.jti.len() > NAME_BYTES_MAX, "its `jti` is empty or too long"),
            (
                life_s.is_none_or(|life_s| life_s == 0 || life_s > LIFE_S),
                "its life (`exp` less `iat`) is not from 1 to 300 seconds",
            ),
            (at(&self.issued_at) != Some(self.iat), "its `issuedAt` and `iat` are not the same second"),
            (at(&self.expires_at) != Some(self.exp), "its `expiresAt` and `exp` are not the same second"),
            (self.iat > now_s.saturating_add(LEEWAY_S), "it was issued in the future"),
            (self.exp.saturating_add(LEEWAY_S) <= now_s, "it has expired: have the queue sign a new one"),
        ];
        faults.into_iter().find_map(|(is_so, why)| is_so.then_some(why))
    }
}

const fn operation(command: &escrow::Command) -> &'static str {
    match command {
        escrow::Command::Settle { .. } => "settle",
        escrow::Command::Refund => "refund",
        escrow::Command::PartialSettle { .. } => "partial",
    }
}

fn moment(second: u64) -> String {
    Moment(Timestamp::from_millis(second.saturating_mul(1_000))).to_string()
}

/// The claims are checked here, all of them and by their types: the library sees to the signature.
static VALIDATION: LazyLock<Validation> = LazyLock::new(|| {
    let mut validation = Validation::new(Algorithm::HS256);
    validation.required_spec_claims.clear();
    validation.validate_exp = false;
    validation.validate_aud = false;
    validation
});

impl Secrets {
    /// The token that has the wallet carry out `order` on an escrow.
    pub(crate) fn sign(
        &self,
        escrow: EscrowId,
        user: OwnerId,
        amount: CreditUnit,
        order: &Order,
        now: Timestamp,
    ) -> String {
        let (name, key) = self.signer();
        let header =
            Header { typ: Some(TYPE.to_owned()), kid: Some(name.to_string()), ..Header::new(Algorithm::HS256) };
        let claims =
            Claims { jti: self.next_token_name(), ..Claims::of(escrow, user, amount, order, now.millis() / 1_000) };
        jsonwebtoken::encode(&header, &claims, key).expect("texts and numbers are signed with any secret")
    }

    /// Whether a token says just what is asked for, one of our secrets signed it, and now is its time.
    pub(crate) fn verify(&self, instruction: &Instruction, now: Timestamp) -> Result<(), NotAuthorized> {
        let Instruction { escrow, user, amount, order, key: _, token } = instruction;
        let now_s = now.millis() / 1_000;
        let claims = self.claims(token)?;
        let asked = Claims::of(*escrow, *user, *amount, order, now_s);
        claims
            .is_out_of_place(now_s)
            .or_else(|| claims.differs_from(&asked))
            .map_or(Ok(()), |why| Err(NotAuthorized(why)))
    }

    /// What a token says, if one of our secrets signed it.
    fn claims(&self, token: &str) -> Result<Claims, NotAuthorized> {
        let key = self.find(&key_name(token)?).ok_or(NotAuthorized("the secret that it names (`kid`) is not known"))?;
        let decoded = jsonwebtoken::decode::<Object<Claims>>(token, key, &VALIDATION);
        decoded.map(|data| data.claims.0).map_err(|error| refusal(&error))
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the library may add kinds, and an unknown one is refused too")]
fn refusal(error: &jsonwebtoken::errors::Error) -> NotAuthorized {
    NotAuthorized(match error.kind() {
        ErrorKind::Json(_) | ErrorKind::MissingRequiredClaim(_) | ErrorKind::InvalidClaimFormat(_) => {
            "a claim is missing, doubled, unknown or of the wrong type"
        }
        ErrorKind::Base64(_) | ErrorKind::Utf8(_) => "a part of it is not base64url",
        _ => "its signature is not that of the secret that it names",
    })
}

/// The name of the secret that a token says it is signed with, if its outside is as it must be.
fn key_name(token: &str) -> Result<String, NotAuthorized> {
    let refused = NotAuthorized;
    let head = head_of(token).map_err(refused)?;
    let Object(head): Object<StrictHeader> = serde_json::from_slice(&head)
        .map_err(|_| refused("its header must say `alg`, `typ` and `kid`, as texts, and nothing else"))?;
    if head.alg != "HS256" {
        return Err(refused("its algorithm is not HS256"));
    }
    if head.typ != TYPE {
        return Err(refused("its type (`typ`) is not queue-authorization+jwt"));
    }
    Ok(head.kid)
}

#[cfg(test)]
mod tests;
