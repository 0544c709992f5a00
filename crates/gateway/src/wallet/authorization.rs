//! The queue's word to the wallet: a token that says what is to become of one escrow, on behalf of which item, and why.
//!
//! # Invariants
//! - A token is good for exactly what it says: **every** bound field is compared with the request's, one by one or all at once, by
//!   signing the request's and comparing the tokens.
//! - The algorithm, the type, the issuer and the audience are pinned; a token names its secret, and brings nothing else along
//!   that is looked at.
//! - A token lives five minutes. That it is used once is not its own matter: money leaves an escrow once.

use super::Instruction;
use super::secrets::Secret;
pub(crate) use super::secrets::Secrets;
use crate::identity::head_of;
use crate::wire::object::Object;
use crate::wire::time::Moment;
use aws_lc_rs::{constant_time, hmac};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use holdfast_domain::queue::Order;
use holdfast_domain::{CreditUnit, EscrowId, Label, OwnerId, Timestamp, escrow};
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer};
use std::borrow::Cow;
use std::fmt;

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
/// No token that we sign is longer: every text in it has at most 64 bytes.
const TOKEN_BYTES: usize = 1_536;
/// More than the last three claims take in a token that we sign, in characters of base64url.
const MADE_CHARS: usize = 128;

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

/// What a token says, as it is read. [`Word::claims`] writes it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Claims<'a> {
    #[serde(borrow)]
    queue_item_id: Text<'a>,
    escrow_id: Text<'a>,
    /// Who is paid, if anybody is.
    #[serde(default, deserialize_with = "some")]
    model_id: Option<Text<'a>>,
    /// Who gets something back, if anybody does.
    #[serde(default, deserialize_with = "some")]
    user_id: Option<Text<'a>>,
    #[serde(default, deserialize_with = "some")]
    amount: Option<Text<'a>>,
    #[serde(default, deserialize_with = "some")]
    refund_amount: Option<Text<'a>>,
    #[serde(default, deserialize_with = "some")]
    settle_amount: Option<Text<'a>>,
    operation: Text<'a>,
    reason: Text<'a>,
    issued_at: Text<'a>,
    expires_at: Text<'a>,
    iss: Text<'a>,
    aud: Text<'a>,
    iat: u64,
    exp: u64,
    jti: Text<'a>,
}

/// A text that is copied only if it must be.
#[derive(Debug, PartialEq, Eq)]
struct Text<'a>(Cow<'a, str>);

impl<'a> Text<'a> {
    const fn of(text: &'a str) -> Self {
        Self(Cow::Borrowed(text))
    }

    fn made(from: impl fmt::Display) -> Self {
        Self(Cow::Owned(from.to_string()))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AsItStands;

        impl<'de> Visitor<'de> for AsItStands {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text::of(text))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text::made(text))
            }
        }

        deserializer.deserialize_str(AsItStands)
    }
}

/// A claim that may be missing, and is a text if it is there: not even null.
fn some<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Text<'de>>, D::Error> {
    Text::deserialize(deserializer).map(Some)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StrictHeader {
    alg: String,
    typ: String,
    kid: String,
}

impl<'a> Claims<'a> {
    /// What a token says about this, from this second on.
    fn of(escrow: &'a EscrowId, user: &'a OwnerId, amount: CreditUnit, order: &'a Order, iat: u64) -> Self {
        let exp = iat.saturating_add(LIFE_S);
        let (whole, user) = (Some(Text::made(amount)), Some(Text::of(user.as_str())));
        let (model_id, user_id, amount, settle_amount, refund_amount) = match &order.command {
            escrow::Command::Settle { payee } => (Some(Text::of(payee.as_str())), None, whole, None, None),
            escrow::Command::Refund => (None, user, whole, None, None),
            escrow::Command::PartialSettle { payee, settle, refund } => {
                (Some(Text::of(payee.as_str())), user, None, Some(Text::made(settle)), Some(Text::made(refund)))
            }
        };
        Self {
            queue_item_id: Text::of(order.ruling.item.as_str()),
            escrow_id: Text::of(escrow.as_str()),
            model_id,
            user_id,
            amount,
            refund_amount,
            settle_amount,
            operation: Text::of(operation(&order.command)),
            reason: Text::of(order.ruling.cause.name()),
            issued_at: moment(iat),
            expires_at: moment(exp),
            iss: Text::of(ISSUER),
            aud: Text::of(AUDIENCE),
            iat,
            exp,
            jti: Text::of(""),
        }
    }

    const fn amounts(&self) -> [&Option<Text<'a>>; 3] {
        [&self.amount, &self.settle_amount, &self.refund_amount]
    }

    /// The first thing that a token says otherwise than it should.
    fn differs_from(&self, asked: &Claims<'_>) -> Option<&'static str> {
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
            (self.iss.0 != ISSUER, "its issuer (`iss`) is not the queue"),
            (self.aud.0 != AUDIENCE, "it is for somebody else (`aud`)"),
            (self.jti.0.is_empty() || self.jti.0.len() > NAME_BYTES_MAX, "its `jti` is empty or too long"),
            (
                life_s.is_none_or(|life_s| life_s == 0 || life_s > LIFE_S),
                "its life (`exp` less `iat`) is not from 1 to 300 seconds",
            ),
            (at(&self.issued_at.0) != Some(self.iat), "its `issuedAt` and `iat` are not the same second"),
            (at(&self.expires_at.0) != Some(self.exp), "its `expiresAt` and `exp` are not the same second"),
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

fn moment(second: u64) -> Text<'static> {
    Text::made(Moment(Timestamp::from_millis(second.saturating_mul(1_000))))
}

/// The head of the tokens that the secret of this name signs, as it stands in them.
pub(super) fn head_for(name: Label) -> String {
    URL_SAFE_NO_PAD.encode(format!(r#"{{"typ":"{TYPE}","alg":"HS256","kid":"{name}"}}"#))
}

/// What the words of a token follow from.
#[derive(Clone, Copy)]
struct Word<'a> {
    escrow: EscrowId,
    user: OwnerId,
    amount: CreditUnit,
    order: &'a Order,
    made: Made<'a>,
}

/// When a token was made, and its own name.
#[derive(Clone, Copy)]
struct Made<'a> {
    iat: u64,
    jti: &'a str,
}

impl<'a> Made<'a> {
    /// As the end of a token's claims says it, if they were written by [`Word::claims`].
    fn read(end_of_claims: &'a [u8]) -> Option<Self> {
        let (_, end) = std::str::from_utf8(end_of_claims).ok()?.rsplit_once(r#","iat":"#)?;
        let (iat, rest) = end.split_once(',')?;
        let (_, jti) = rest.split_once(r#","jti":""#)?;
        Some(Self { iat: iat.parse().ok()?, jti: jti.strip_suffix(r#""}"#)? })
    }
}

impl Word<'_> {
    /// The claims that say it. No text in them has a character that JSON would escape: ids, names and numbers are plain.
    fn claims(&self) -> String {
        let Self { escrow, user, amount, order, made: Made { iat, jti } } = self;
        let exp = iat.saturating_add(LIFE_S);
        let mut claims = String::with_capacity(TOKEN_BYTES / 2);
        let mut say = |name: &str, value: &str| {
            for part in [r#",""#, name, r#"":""#, value, r#"""#] {
                claims.push_str(part);
            }
        };
        say("queueItemId", order.ruling.item.as_str());
        say("escrowId", escrow.as_str());
        match &order.command {
            escrow::Command::Settle { payee } => {
                say("modelId", payee.as_str());
                say("amount", &amount.to_string());
            }
            escrow::Command::Refund => {
                say("userId", user.as_str());
                say("amount", &amount.to_string());
            }
            escrow::Command::PartialSettle { payee, settle, refund } => {
                say("modelId", payee.as_str());
                say("userId", user.as_str());
                say("refundAmount", &refund.to_string());
                say("settleAmount", &settle.to_string());
            }
        }
        say("operation", operation(&order.command));
        say("reason", order.ruling.cause.name());
        say("issuedAt", &moment(*iat).0);
        say("expiresAt", &moment(exp).0);
        say("iss", ISSUER);
        say("aud", AUDIENCE);
        for part in [r#","iat":"#, &iat.to_string(), r#","exp":"#, &exp.to_string(), r#","jti":""#, jti, r#""}"#] {
            claims.push_str(part);
        }
        claims.replace_range(..1, "{");
        claims
    }

    /// The token that says it, signed.
    fn signed_with(&self, secret: &Secret) -> String {
        let mut token = Vec::with_capacity(TOKEN_BYTES);
        token.extend_from_slice(secret.head.as_bytes());
        token.push(b'.');
        encode(self.claims().as_bytes(), &mut token);
        let signature = hmac::sign(&secret.key, &token);
        token.push(b'.');
        encode(signature.as_ref(), &mut token);
        String::from_utf8(token).expect("a head, points and base64url are ASCII")
    }
}

/// Adds bytes to a token, as base64url.
fn encode(bytes: &[u8], token: &mut Vec<u8>) {
    let begin = token.len();
    // Four characters for three bytes, and as few as will do for the rest.
    token.resize(begin + (bytes.len() * 4).div_ceil(3), 0);
    URL_SAFE_NO_PAD.encode_slice(bytes, &mut token[begin..]).expect("there is just so much room");
}

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
        let (_, secret) = self.signer();
        let made = Made { iat: now.millis() / 1_000, jti: &self.next_token_name() };
        Word { escrow, user, amount, order, made }.signed_with(secret)
    }

    /// Whether a token says just what is asked for, one of our secrets signed it, and now is its time.
    pub(crate) fn verify(&self, instruction: &Instruction, now: Timestamp) -> Result<(), NotAuthorized> {
        let Instruction { escrow, user, amount, order, key: _, token } = instruction;
        let now_s = now.millis() / 1_000;
        if self.is_as_we_sign_it(instruction, now_s) {
            return Ok(());
        }
        let claims = self.claims(token)?;
        let Object(claims): Object<Claims<'_>> = serde_json::from_slice(&claims)
            .map_err(|_| NotAuthorized("a claim is missing, doubled, unknown or of the wrong type"))?;
        let asked = Claims::of(escrow, user, *amount, order, now_s);
        claims
            .is_out_of_place(now_s)
            .or_else(|| claims.differs_from(&asked))
            .map_or(Ok(()), |why| Err(NotAuthorized(why)))
    }

    /// Whether a token is, letter for letter, the one that we sign for just this, at a moment for which it is good now. Almost all
    /// are, and then there is nothing to read; what is not may still be good, or is refused for a reason.
    fn is_as_we_sign_it(&self, instruction: &Instruction, now_s: u64) -> bool {
        let Instruction { escrow, user, amount, order, key: _, token } = instruction;
        let parts = token.split_once('.').and_then(|(head, rest)| Some((head, rest.split_once('.')?.0)));
        let Some((secret, claims)) = parts.and_then(|(head, claims)| Some((self.find_by_head(head)?, claims))) else {
            return false;
        };
        // Four characters are three bytes.
        let end = claims.len().saturating_sub(MADE_CHARS).next_multiple_of(4);
        let mut decoded = [0; MADE_CHARS];
        let read = claims.as_bytes().get(end..).map(|end| URL_SAFE_NO_PAD.decode_slice(end, &mut decoded));
        let Some(made) = read.and_then(Result::ok).and_then(|length| Made::read(decoded.get(..length)?)) else {
            return false;
        };
        let is_named = !made.jti.is_empty() && made.jti.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let exp = made.iat.saturating_add(LIFE_S);
        let is_its_time = made.iat <= now_s.saturating_add(LEEWAY_S) && exp.saturating_add(LEEWAY_S) > now_s;
        let word = Word { escrow: *escrow, user: *user, amount: *amount, order, made };
        let is_same = || {
            let ours = word.signed_with(secret);
            constant_time::verify_slices_are_equal(ours.as_bytes(), token.as_bytes()).is_ok()
        };
        is_named && is_its_time && is_same()
    }

    /// What a token says, in JSON, if one of our secrets signed it.
    fn claims(&self, token: &str) -> Result<Vec<u8>, NotAuthorized> {
        let (signed, signature) = token.rsplit_once('.').unwrap_or_default();
        let (head, claims) = signed.split_once('.').unwrap_or_default();
        // Most have the outside that we give them ourselves: then nothing of the head need be read.
        let has_three_parts = !claims.is_empty() && !claims.contains('.') && !signature.is_empty();
        let is_usual = has_three_parts && token.len() <= TOKEN_BYTES;
        let secret = match self.find_by_head(head).filter(|_| is_usual) {
            Some(secret) => secret,
            None => {
                self.find(&key_name(token)?).ok_or(NotAuthorized("the secret that it names (`kid`) is not known"))?
            }
        };
        let decoded =
            |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| NotAuthorized("a part of it is not base64url"));
        hmac::verify(&secret.key, signed.as_bytes(), &decoded(signature)?)
            .map_err(|_| NotAuthorized("its signature is not that of the secret that it names"))?;
        decoded(claims)
    }
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
