//! Bearer tokens between services: ES256, short-lived, with every claim that we rely on.
//!
//! # Invariants
//! - The algorithm is pinned, and the header may name nothing but it, the type and a key of ours: no key, address or
//!   extension that a token brings along is ever looked at.
//! - `iss`, `aud`, `sub`, `iat`, `nbf`, `exp` and `role` are all required, and `exp - iat` is at most five minutes.

use super::{AuthError, now};
use crate::wire::object::Object;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use holdfast_domain::Label;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use serde::{Deserialize, Serialize};

/// The longest life of a token: a stolen one is worth little.
pub(crate) const LIFE_MAX_S: u64 = 300;
/// How far two machines' clocks may be apart.
pub(super) const LEEWAY_S: u64 = 5;
/// Whom tokens are for, and who signs our own.
pub(super) const NAME: &str = "holdfast";
/// The longest token that is looked at.
const BYTES_MAX: usize = 4_096;
const KID_BYTES_MAX: usize = 128;

/// What the bearer may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Role {
    /// Billing and inference for other services.
    Service,
    /// Operating the server.
    Admin,
}

/// What a token says.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Claims {
    iss: String,
    aud: Audience,
    pub(super) sub: String,
    pub(super) role: Role,
    iat: u64,
    pub(super) nbf: u64,
    pub(super) exp: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Many(Vec<String>),
}

impl Claims {
    /// The claims of a token of ours that is good from now on.
    pub(super) fn of(subject: Label, role: Role, life_s: u64) -> Self {
        Self::to(NAME, subject, role, life_s)
    }

    /// The same, of a token for somebody else.
    pub(super) fn to(audience: &str, subject: Label, role: Role, life_s: u64) -> Self {
        let iat = now().millis() / 1_000;
        let life_s = life_s.min(LIFE_MAX_S);
        let (iss, aud) = (NAME.to_owned(), Audience::One(audience.to_owned()));
        Self { iss, aud, sub: subject.to_string(), role, iat, nbf: iat, exp: iat.saturating_add(life_s) }
    }
}

/// Signs a token.
pub(super) fn sign(key: &EncodingKey, kid: &str, claims: Claims) -> Result<String, jsonwebtoken::errors::Error> {
    let header = Header { kid: Some(kid.to_owned()), ..Header::new(Algorithm::ES256) };
    jsonwebtoken::encode(&header, &claims, key)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StrictHeader {
    alg: String,
    typ: Option<String>,
    kid: String,
}

/// The head of a token of any kind, if it has the outside of one; else what is wrong with it.
pub(crate) fn head_of(token: &str) -> Result<Vec<u8>, &'static str> {
    if token.len() > BYTES_MAX {
        return Err("it is longer than 4096 bytes");
    }
    let parts: Vec<&str> = token.split('.').collect();
    let [head, claims, signature] = parts.as_slice() else { return Err("it does not have three parts") };
    if head.is_empty() || claims.is_empty() || signature.is_empty() {
        return Err("a part of it is empty");
    }
    URL_SAFE_NO_PAD.decode(head).map_err(|_| "its header is not base64url")
}

/// The name of the key that a token says it is signed with, if its outside is as it must be.
pub(super) fn key_name(token: &str) -> Result<String, AuthError> {
    let refused = AuthError::Token;
    let head = head_of(token).map_err(refused)?;
    let Object(head): Object<StrictHeader> = serde_json::from_slice(&head)
        .map_err(|_| refused("its header must say `alg` and `kid`, may say `typ`, and nothing else"))?;
    if head.alg != "ES256" {
        return Err(refused("its algorithm is not ES256"));
    }
    if head.typ.is_some_and(|kind| !kind.eq_ignore_ascii_case("JWT")) {
        return Err(refused("its type is not JWT"));
    }
    if head.kid.is_empty() || head.kid.len() > KID_BYTES_MAX {
        return Err(refused("its `kid` is empty or too long"));
    }
    Ok(head.kid)
}

/// What a token says, if `key` signed it for us, it comes from `issuer`, and now is its time.
pub(super) fn claims(token: &str, key: &DecodingKey, issuer: &str) -> Result<Claims, AuthError> {
    let mut validation = Validation::new(Algorithm::ES256);
    validation.set_required_spec_claims(&["exp", "nbf", "aud", "iss", "sub"]);
    validation.set_audience(&[NAME]);
    validation.set_issuer(&[issuer]);
    validation.validate_nbf = true;
    validation.leeway = LEEWAY_S;
    let claims: Claims = jsonwebtoken::decode(token, key, &validation).map_err(|error| refusal(&error))?.claims;
    if claims.exp <= claims.iat || claims.exp - claims.iat > LIFE_MAX_S {
        return Err(AuthError::Token("its life (`exp` less `iat`) is not from 1 to 300 seconds"));
    }
    if claims.iat > now().millis() / 1_000 + LEEWAY_S {
        return Err(AuthError::Token("it was issued in the future"));
    }
    Ok(claims)
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the library may add kinds, and an unknown one is refused too")]
fn refusal(error: &jsonwebtoken::errors::Error) -> AuthError {
    let why = match error.kind() {
        ErrorKind::ExpiredSignature => return AuthError::TokenExpired,
        ErrorKind::ImmatureSignature => "its time has not come (`nbf`)",
        ErrorKind::InvalidIssuer => "its issuer (`iss`) is not known",
        ErrorKind::InvalidAudience => "it is for somebody else (`aud`)",
        ErrorKind::MissingRequiredClaim(_) | ErrorKind::InvalidClaimFormat(_) | ErrorKind::Json(_) => {
            "a claim is missing or of the wrong type: `iss`, `aud`, `sub`, `role`, `iat`, `nbf` and `exp` are needed"
        }
        _ => "its signature is not that of the key that it names",
    };
    AuthError::Token(why)
}
