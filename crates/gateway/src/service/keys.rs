//! API keys and signing keys: asked for in the same words on the socket and over HTTP.

use super::Service;
use super::query::blocking;
use crate::identity::Identity;
use crate::wire::Shown;
use crate::wire::error::Problem;
use crate::wire::keys::{KeyBody, KeysAnswer, KeysBody, KeysTask};

impl Service {
    /// Does what is asked about keys.
    pub(crate) async fn keys(&self, body: KeysBody) -> Result<KeysAnswer, Problem> {
        let task = body.into_task()?;
        let identity = self.identity()?;
        identity.look_again().await;
        blocking(move || perform(&identity, task)).await
    }
}

fn perform(identity: &Identity, task: KeysTask) -> Result<KeysAnswer, Problem> {
    Ok(match task {
        KeysTask::Make(new) => {
            let (api_key, record) = identity.keys.make(new)?;
            KeysAnswer::Made { api_key, record: KeyBody::from(record.as_ref()) }
        }
        KeysTask::List { account, after, at_most } => {
            let mut found = identity.keys.list(account, after, at_most + 1);
            let more = found.len() > at_most;
            found.truncate(at_most);
            let next = found.last().filter(|_| more).map(|record| Shown(record.id));
            KeysAnswer::Many { keys: found.iter().map(|record| KeyBody::from(record.as_ref())).collect(), next }
        }
        KeysTask::Show(id) => KeysAnswer::One(KeyBody::from(identity.keys.find(id)?.as_ref())),
        KeysTask::Revoke(id) => KeysAnswer::One(KeyBody::from(identity.keys.revoke(id)?.as_ref())),
        KeysTask::Rotate => KeysAnswer::Rotated { kid: identity.signing.rotate()? },
    })
}
