//! Where API keys are kept, as a port: the store is the truth, what is in memory follows from it.

use super::IdentityError;
use super::api_key::KeyHash;
use holdfast_domain::{CreditUnit, Label, OwnerId, Reason, Timestamp};
use std::fmt;
use std::str::FromStr;

/// What a key is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Model calls, billed to the account.
    Inference,
    /// Balances and the key itself.
    Read,
}

impl Scope {
    pub(crate) const ALL: [Self; 2] = [Self::Inference, Self::Read];
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Inference => "inference",
            Self::Read => "read",
        })
    }
}

impl FromStr for Scope {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        let found = Self::ALL.into_iter().find(|scope| scope.to_string() == text);
        found.ok_or_else(|| IdentityError::BadKey(format!("there is no scope {text:?}: they are inference and read")))
    }
}

/// A set of scopes, never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Scopes(Vec<Scope>);

impl Scopes {
    /// These scopes; all of them if none is named.
    pub(crate) fn of(names: &[impl AsRef<str>]) -> Result<Self, IdentityError> {
        let named = names.iter().map(|name| name.as_ref().parse()).collect::<Result<Vec<Scope>, _>>()?;
        let named = if named.is_empty() { Scope::ALL.to_vec() } else { named };
        Ok(Self(Scope::ALL.into_iter().filter(|scope| named.contains(scope)).collect()))
    }

    pub(crate) fn allow(&self, scope: Scope) -> bool {
        self.0.contains(&scope)
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.0.iter().map(ToString::to_string).collect()
    }
}

/// What is known of one API key. The key itself is not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyRecord {
    pub(crate) id: Label,
    pub(crate) hash: KeyHash,
    /// Its first characters, to know it by.
    pub(crate) hint: String,
    pub(crate) account: OwnerId,
    pub(crate) name: Option<Reason>,
    pub(crate) scopes: Scopes,
    pub(crate) daily_limit: Option<CreditUnit>,
    pub(crate) total_limit: Option<CreditUnit>,
    pub(crate) made_at: Timestamp,
    pub(crate) expires_at: Option<Timestamp>,
    pub(crate) revoked_at: Option<Timestamp>,
}

/// A durable store of key records.
pub(crate) trait KeyStore: Send + Sync {
    /// Every record, in the order in which they were made.
    fn load(&self) -> Result<Vec<KeyRecord>, IdentityError>;
    /// Adds a record. It is durable when this returns.
    fn add(&self, record: &KeyRecord) -> Result<(), IdentityError>;
    /// Marks a record as revoked, unless it is already. It is durable when this returns.
    fn revoke(&self, id: Label, at: Timestamp) -> Result<(), IdentityError>;
}
