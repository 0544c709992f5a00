//! Where API keys are kept, as a port: the store is the truth, what is in memory follows from it.

use super::IdentityError;
use super::api_key::{KeyHash, Kind};
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
    /// Operating the server, and nothing else.
    Admin,
}

impl Scope {
    const ALL: [Self; 3] = [Self::Inference, Self::Read, Self::Admin];
    /// Those of a key for which none is named.
    const USUAL: [Self; 2] = [Self::Inference, Self::Read];
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Inference => "inference",
            Self::Read => "read",
            Self::Admin => "admin",
        })
    }
}

impl FromStr for Scope {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        let found = Self::ALL.into_iter().find(|scope| scope.to_string() == text);
        let refused =
            || IdentityError::BadKey(format!("there is no scope {text:?}: they are inference, read and admin"));
        found.ok_or_else(refused)
    }
}

/// A set of scopes, never empty. `admin` stands alone: no credential both operates and spends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Scopes(Vec<Scope>);

impl Scopes {
    /// These scopes; those of a customer's key if none is named.
    pub(crate) fn of(names: &[impl AsRef<str>]) -> Result<Self, IdentityError> {
        let named = names.iter().map(|name| name.as_ref().parse()).collect::<Result<Vec<Scope>, _>>()?;
        let named = if named.is_empty() { Scope::USUAL.to_vec() } else { named };
        if named.contains(&Scope::Admin) && named.iter().any(|scope| *scope != Scope::Admin) {
            return Err(IdentityError::BadKey(
                "the scope admin stands alone: make another key for the others".to_owned(),
            ));
        }
        Ok(Self(Scope::ALL.into_iter().filter(|scope| named.contains(scope)).collect()))
    }

    pub(crate) fn allow(&self, scope: Scope) -> bool {
        self.0.contains(&scope)
    }

    /// What a key of these scopes is for.
    pub(crate) fn kind(&self) -> Kind {
        if self.allow(Scope::Admin) { Kind::Admin } else { Kind::Live }
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
    /// The account that it spends from. An admin's key spends nothing: of that it is who holds it.
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
    /// Adds a record. It is durable when this returns.
    fn add(&self, record: &KeyRecord) -> Result<(), IdentityError>;
    /// Marks a record as revoked, unless it is already. It is durable when this returns. What it is then; `None` if there is
    /// no such record.
    fn revoke(&self, id: Label) -> Result<Option<KeyRecord>, IdentityError>;
    /// Whether the caller is to tell the first admin key to somebody: of all who ask one, until it was told.
    fn claim_first_key(&self) -> Result<bool, IdentityError>;
    /// Remembers that it was. It is durable when this returns.
    fn tell_first_key(&self) -> Result<(), IdentityError>;
}
