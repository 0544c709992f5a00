//! Why a caller is not let in. Nothing here repeats what the caller sent.

use super::Scope;

/// A refusal at the door.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AuthError {
    #[error("no credential was sent: send `Authorization: Bearer …`")]
    Missing,
    #[error("more than one credential was sent: send exactly one")]
    Several,
    #[error("the credential is not understood: send `Authorization: Bearer`, one space, and the credential")]
    Malformed,
    #[error("this route takes {0}, and no other credential")]
    WrongKind(&'static str),
    #[error("the token is refused: {0}")]
    Token(&'static str),
    #[error("the token has expired: get a new one")]
    TokenExpired,
    #[error("the API key is not known")]
    UnknownKey,
    #[error("the API key has expired")]
    KeyExpired,
    #[error("the API key was revoked")]
    KeyRevoked,
    #[error(
        "the database with the keys has not answered for too long, so no key can be trusted here; ask again, or elsewhere"
    )]
    Stale,
    #[error("the token's role may not do this: {0} is needed")]
    Role(&'static str),
    #[error("the request came from another site's page: send it from the console itself")]
    CrossSite,
    #[error("the API key's scopes do not allow this: {0} is needed")]
    Scope(Scope),
}

impl AuthError {
    /// The stable code of this error.
    pub(crate) const fn code(&self) -> &'static str {
        match self {
            Self::Missing => "AUTH_MISSING",
            Self::Several => "AUTH_SEVERAL_CREDENTIALS",
            Self::Malformed => "AUTH_MALFORMED",
            Self::WrongKind(_) => "AUTH_WRONG_KIND",
            Self::Token(_) => "AUTH_INVALID_TOKEN",
            Self::TokenExpired => "AUTH_TOKEN_EXPIRED",
            Self::UnknownKey => "AUTH_INVALID_KEY",
            Self::KeyExpired => "AUTH_KEY_EXPIRED",
            Self::KeyRevoked => "AUTH_KEY_REVOKED",
            Self::Stale => "SERVICE_KEYS_STALE",
            Self::Role(_) => "ACCESS_ROLE",
            Self::Scope(_) => "ACCESS_SCOPE",
            Self::CrossSite => "ACCESS_CROSS_SITE",
        }
    }

    /// Whether the fault is ours, and says nothing of the caller.
    pub(crate) const fn is_ours(&self) -> bool {
        matches!(self, Self::Stale)
    }

    /// Whether the caller is known, and just may not do this.
    pub(crate) const fn is_about_access(&self) -> bool {
        matches!(self, Self::Role(_) | Self::Scope(_) | Self::CrossSite)
    }
}
