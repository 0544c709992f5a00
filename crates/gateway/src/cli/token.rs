//! `holdfast token`: signed here with the key of the data directory, or of the database that has the books, whether a server
//! runs or not.

use super::args::{Token, TokenRole};
use super::{Ended, Session};
use crate::failure::Failure;
use crate::identity::{LIFE_MAX_S, Role, SigningKeys};
use crate::node;
use serde_json::json;
use std::path::Path;

/// Prints a bearer token.
pub(super) fn run(session: &Session<'_>, words: &Token) -> Result<(), Ended> {
    let setting = |name: &str, value: &dyn ToString, allowed: &str| Failure::Setting {
        name: name.to_owned(),
        value: value.to_string(),
        allowed: allowed.to_owned(),
    };
    let subject = words.sub.parse();
    let subject = subject.map_err(|_| setting("--sub", &words.sub, "1 to 64 characters of A-Z a-z 0-9 _ -"))?;
    if !(1..=LIFE_MAX_S).contains(&words.ttl) {
        return Err(setting("--ttl", &format!("{}s", words.ttl), "from 1s to 5m").into());
    }
    let role = match words.role {
        TokenRole::Service => Role::Service,
        TokenRole::Admin => Role::Admin,
    };
    let life_s = words.ttl;
    let token = match &session.settings.database {
        Some(database) => {
            node::with_shared_identity(database, move |identity| identity.signing.sign(subject, role, life_s))
        }
        None => signing_keys(&session.cli.global.data)?.sign(subject, role, life_s).map_err(Failure::from),
    }?;
    if session.output.is_json() {
        return Ok(session
            .output
            .line(&json!({ "ok": true, "token": token, "expires_in_s": words.ttl }).to_string())?);
    }
    Ok(session.output.line(&token)?)
}

/// The keys that are there; else a first one, made under the directory's lock so that no server makes another.
fn signing_keys(data: &Path) -> Result<SigningKeys, Failure> {
    if let Some(found) = SigningKeys::open(data)? {
        return Ok(found);
    }
    let _lock = node::lock(data)?;
    Ok(SigningKeys::open_or_make(data)?)
}
