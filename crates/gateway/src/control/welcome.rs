//! The first start of a data directory: an admin key, told once, and what to do with it.
//!
//! It is told on standard output, after the line that says that the server is ready, and nowhere else: what goes on is told
//! on standard error, and that is what is kept in logs.

use crate::identity::Identity;
use crate::terminal;
use std::path::Path;
use std::sync::Arc;

/// A first admin key that nobody was told yet.
pub(super) struct Welcome {
    key: String,
    identity: Arc<Identity>,
    /// How the program is called about this data directory.
    program: String,
}

impl Welcome {
    /// Makes the first admin key; `None` if one was told at an earlier start, or none can be made: whoever may read the
    /// data directory can do without.
    pub(super) fn prepare(data: &Path, identity: &Arc<Identity>) -> Option<Self> {
        let program = format!("holdfast --data {}", data.display());
        let made = identity.keys.first_admin_key().unwrap_or_else(|error| {
            terminal::note(&format!("no admin key could be made ({error}): make one with {program} keys new --admin"));
            None
        });
        made.map(|key| Self { key, identity: Arc::clone(identity), program })
    }

    /// Tells the key, and that it is never told again.
    pub(super) fn tell(self, url: &str) {
        terminal::say(&text(&self.key, &self.program, url));
        // If this is not remembered, the next start tells another key: better one too many than none.
        if let Err(error) = self.identity.keys.tell_first_key() {
            terminal::note(&format!("the next start will make another admin key: {error}"));
        }
    }
}

fn text(key: &str, program: &str, url: &str) -> String {
    format!(
        "
First start. This is the admin key; only its hash is kept, and it is never shown again:

    {key}

Log in with it at {url}/console, or operate from anywhere:

    curl {url}/api/v1/admin/mint -H 'authorization: Bearer {key}' \\
      -H 'idempotency-key: first-credit' -H 'content-type: application/json' \\
      -d '{{\"account_id\":\"demo\",\"amount_cu\":\"100\",\"reason\":\"first credit\"}}'

On this machine no key is needed:

    {program} mint demo 100 --reason 'first credit'   # credits for an account
    {program} keys new --account demo                 # an API key that spends them
    {program} keys new --admin                        # another admin key, if this one is lost
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_in_can_be_pasted() {
        let told = text("hf_admin_x", "holdfast --data d", "http://127.0.0.1:8080");
        assert!(told.contains("\n    hf_admin_x\n") && told.contains("http://127.0.0.1:8080/console"));
        assert!(told.contains("\"amount_cu\":\"100\"") && told.contains("holdfast --data d keys new --admin"));
    }
}
