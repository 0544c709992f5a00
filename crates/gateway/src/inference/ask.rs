//! What is asked, by whom, and how the same request is known again.

use super::CHARGE_PREFIX;
use crate::http::ApiError;
use crate::wire::error::{Problem, WireError};
use crate::wire::ids;
use bytes::Bytes;
use holdfast_adapters::providers::{Body, Delivery, Dialect, Headers, InvalidBody, Secret};
use holdfast_domain::{Budgets, ChargeId, CreditUnit, Key, Label, OwnerId, Timestamp};

/// Who asks, and who pays.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) account: OwnerId,
    /// The credential, for the record: also what a retry must come with.
    pub(crate) credential: Label,
    pub(crate) budgets: Budgets,
}

/// What becomes of an answer whose caller has gone away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IfGone {
    /// The provider is read to its end, so that the usage is known.
    Drain,
    /// The same, until what came would cost so much.
    DrainUpTo(CreditUnit),
    /// The provider is cut off, and what was delivered is charged.
    Cancel,
}

/// What a caller says besides the body.
#[derive(Debug, Clone)]
pub(crate) struct Wish {
    /// The caller's idempotency key.
    pub(crate) key: Option<Key>,
    /// Whether this says that it repeats an earlier attempt.
    pub(crate) is_retry: bool,
    /// Whether a shorter answer is wanted rather than none, if the balance covers only that.
    pub(crate) fit: bool,
    pub(crate) if_gone: IfGone,
    /// The caller's own key for the provider.
    pub(crate) provider_key: Option<Secret>,
    pub(crate) headers: Headers,
}

/// A request, taken apart.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) caller: Caller,
    pub(crate) wish: Wish,
    pub(crate) dialect: Dialect,
    pub(crate) body: Body,
    /// Of the bytes as they came.
    pub(crate) fingerprint: [u8; 32],
    pub(crate) model: String,
    pub(crate) delivery: Delivery,
    pub(crate) charge: ChargeId,
    pub(crate) at: Timestamp,
}

/// The most answers to one question.
const CHOICES_MAX: u64 = 128;

fn invalid(error: InvalidBody) -> ApiError {
    ApiError::from(WireError::Malformed(error.to_string()))
}

impl Ask {
    /// Takes a body apart, as far as it matters here.
    pub(crate) fn read(
        caller: Caller,
        wish: Wish,
        dialect: Dialect,
        bytes: &Bytes,
        at: Timestamp,
    ) -> Result<Self, ApiError> {
        let body = Body::parse(bytes).map_err(invalid)?;
        let model: Option<String> = body.read("model").map_err(invalid)?;
        let model = model.ok_or_else(|| WireError::Malformed("`model` is missing".to_owned()))?;
        let stream: Option<bool> = body.read("stream").map_err(invalid)?;
        let streamed = stream.unwrap_or(false) && dialect != Dialect::Embeddings;
        let charge = match wish.key {
            Some(key) => charge_of(caller.account, key),
            None => ids::fresh(CHARGE_PREFIX, at).map_err(|error| Problem::NoRandomness(error.to_string()))?,
        };
        Ok(Self {
            dialect,
            delivery: if streamed { Delivery::Stream } else { Delivery::Whole },
            fingerprint: fingerprint(dialect, bytes),
            caller,
            wish,
            body,
            model,
            charge,
            at,
        })
    }

    /// The most tokens of output that the caller asks for, for each answer.
    pub(crate) fn asked_output(&self) -> Result<Option<u64>, ApiError> {
        let names: &[&str] = match self.dialect {
            Dialect::ChatCompletions => &["max_completion_tokens", "max_tokens"],
            Dialect::Responses => &["max_output_tokens"],
            Dialect::Messages => &["max_tokens"],
            Dialect::Embeddings => &[],
        };
        for name in names {
            if let Some(tokens) = self.body.read::<u64>(name).map_err(invalid)? {
                return Ok(Some(tokens));
            }
        }
        Ok(None)
    }

    /// How many answers are asked for.
    pub(crate) fn choices(&self) -> Result<u64, ApiError> {
        let asked = match self.dialect {
            Dialect::ChatCompletions => self.body.read::<u64>("n").map_err(invalid)?.unwrap_or(1),
            Dialect::Responses | Dialect::Messages | Dialect::Embeddings => 1,
        };
        if (1..=CHOICES_MAX).contains(&asked) {
            Ok(asked)
        } else {
            Err(WireError::Malformed(format!("`n` is a number from 1 to {CHOICES_MAX}")).into())
        }
    }
}

fn fingerprint(dialect: Dialect, bytes: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(match dialect {
        Dialect::ChatCompletions => b"c",
        Dialect::Responses => b"r",
        Dialect::Messages => b"m",
        Dialect::Embeddings => b"e",
    });
    hasher.update(bytes);
    *hasher.finalize().as_bytes()
}

/// The charge that belongs to an account's idempotency key: two accounts may use the same one.
pub(crate) fn charge_of(account: OwnerId, key: Key) -> ChargeId {
    let mut hasher = blake3::Hasher::new_derive_key("holdfast 2026-11 charge of an account's idempotency key");
    hasher.update(account.as_bytes());
    hasher.update(b"\0");
    hasher.update(key.as_bytes());
    ids::of_hash(CHARGE_PREFIX, hasher.finalize().as_bytes())
}
