//! API keys and signing keys on the wire.

use super::Shown;
use super::error::{Problem, WireError};
use super::parse;
use super::question::page;
use super::time::Moment;
use crate::identity::api_key::Kind;
use crate::identity::{IdentityError, KeyRecord, NewKey, Scopes, operator};
use holdfast_domain::{CreditUnit, Label, OwnerId, Span};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The longest life of a key: ten years, in seconds.
const LIFE_MAX_S: u64 = 10 * 366 * 24 * 60 * 60;

/// Everything about keys that can be asked for.
#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum KeysBody {
    KeyNew {
        #[serde(rename = "account_id", alias = "account")]
        account: Option<String>,
        name: Option<String>,
        expires_s: Option<u64>,
        daily_limit_cu: Option<Value>,
        total_limit_cu: Option<Value>,
        scopes: Option<Vec<String>>,
    },
    Keys {
        #[serde(rename = "account_id", alias = "account")]
        account: Option<String>,
        after: Option<String>,
        limit: Option<u64>,
    },
    Key {
        id: String,
    },
    KeyRevoke {
        id: String,
    },
    SigningKeyRotate {},
}

/// What is to be done with keys, well formed.
pub(crate) enum KeysTask {
    Make(NewKey),
    List { account: Option<OwnerId>, after: Option<Label>, at_most: usize },
    Show(Label),
    Revoke(Label),
    Rotate,
}

impl KeysBody {
    /// The task, if every word of this is well formed.
    pub(crate) fn into_task(self) -> Result<KeysTask, Problem> {
        Ok(match self {
            Self::KeyNew { account, name, expires_s, daily_limit_cu, total_limit_cu, scopes } => {
                let limit = |field, value: Option<Value>| value.map(|value| parse::amount(field, &value)).transpose();
                let scopes = Scopes::of(&scopes.unwrap_or_default())?;
                let account = holder(scopes.kind(), account.as_deref())?;
                if scopes.kind() == Kind::Admin && (daily_limit_cu.is_some() || total_limit_cu.is_some()) {
                    return Err(
                        IdentityError::BadKey("an admin key spends nothing, so it has no limits".to_owned()).into()
                    );
                }
                KeysTask::Make(NewKey {
                    account,
                    name: name.map(|name| name.parse().map_err(|error| bad("name", &error))).transpose()?,
                    scopes,
                    daily_limit: limit("daily_limit_cu", daily_limit_cu)?,
                    total_limit: limit("total_limit_cu", total_limit_cu)?,
                    life: expires_s.map(life).transpose()?,
                })
            }
            Self::Keys { account, after, limit } => KeysTask::List {
                account: parse::id_if_any("account", account.as_deref())?,
                after: parse::id_if_any("after", after.as_deref())?,
                at_most: page(limit)?,
            },
            Self::Key { id } => KeysTask::Show(parse::id("id", &id)?),
            Self::KeyRevoke { id } => KeysTask::Revoke(parse::id("id", &id)?),
            Self::SigningKeyRotate {} => KeysTask::Rotate,
        })
    }
}

/// Whose a key is.
fn holder(kind: Kind, account: Option<&str>) -> Result<OwnerId, Problem> {
    match (kind, account) {
        (Kind::Live, Some(account)) => Ok(parse::id("account", account)?),
        (Kind::Live, None) => Err(WireError::Malformed("`account_id` is missing".to_owned()).into()),
        (Kind::Admin, None) => Ok(operator()),
        (Kind::Admin, Some(_)) => {
            Err(IdentityError::BadKey("an admin key spends from no account: leave it out".to_owned()).into())
        }
    }
}

fn bad(field: &str, why: &impl std::fmt::Display) -> WireError {
    WireError::Malformed(format!("{field}: {why}"))
}

fn life(seconds: u64) -> Result<Span, WireError> {
    let refused = || bad("expires_s", &format!("a key lives from 1 to {LIFE_MAX_S} seconds"));
    let known = (1..=LIFE_MAX_S).contains(&seconds).then(|| seconds.checked_mul(1_000)).flatten();
    known.map(Span::from_millis).ok_or_else(refused)
}

/// What was done with keys.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum KeysAnswer {
    Made {
        /// The key itself, this once.
        api_key: String,
        #[serde(flatten)]
        record: KeyBody,
    },
    One(KeyBody),
    Many {
        keys: Vec<KeyBody>,
        /// What to ask for `after` to get the next page; null on the last.
        next: Option<Shown<Label>>,
    },
    Rotated {
        kid: String,
    },
}

/// An API key as it is shown.
#[derive(Serialize)]
pub(crate) struct KeyBody {
    pub(crate) id: Shown<Label>,
    hint: String,
    /// None of an admin key.
    account_id: Option<Shown<OwnerId>>,
    name: Option<String>,
    scopes: Vec<String>,
    daily_limit_cu: Option<Shown<CreditUnit>>,
    total_limit_cu: Option<Shown<CreditUnit>>,
    made_at: Moment,
    expires_at: Option<Moment>,
    revoked_at: Option<Moment>,
}

impl From<&KeyRecord> for KeyBody {
    fn from(record: &KeyRecord) -> Self {
        Self {
            id: Shown(record.id),
            hint: format!("{}…", record.hint),
            account_id: (record.scopes.kind() == Kind::Live).then_some(Shown(record.account)),
            name: record.name.as_ref().map(|name| name.as_str().to_owned()),
            scopes: record.scopes.names(),
            daily_limit_cu: record.daily_limit.map(Shown),
            total_limit_cu: record.total_limit.map(Shown),
            made_at: Moment(record.made_at),
            expires_at: record.expires_at.map(Moment),
            revoked_at: record.revoked_at.map(Moment),
        }
    }
}
