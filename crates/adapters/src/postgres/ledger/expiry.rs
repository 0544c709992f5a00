//! Holds whose time has come.

use super::PostgresLedger;
use super::session::Question;
use holdfast_domain::{ChargeId, Label, charge};
use holdfast_engine::{Command, Refusal, Request};

const DUE: &str = "SELECT substr(life, 3) FROM holdfast.ledger_lives \
                   WHERE expires_at <= coalesce($2, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) \
                   ORDER BY expires_at, life LIMIT $1";

impl PostgresLedger {
    /// Gives back, or charges, up to `at_most` holds whose time has come, and says how many. Any node may, at any moment: what
    /// another one has just ended is refused, and not counted.
    pub async fn expire(&self, actor: Label, at_most: u32) -> Result<usize, Refusal> {
        let at_most = i64::from(at_most);
        let now = self.shared.time.given().map(|now| i64::try_from(now.millis()).unwrap_or(i64::MAX));
        let due = self.read(Question::Words(DUE), &[&at_most, &now]).await?;
        let id = |row: &tokio_postgres::Row| row.try_get::<_, &str>(0).ok()?.parse::<ChargeId>().ok();
        let expire = |charge| Request {
            key: None,
            actor,
            command: Command::Charge { charge, command: charge::Command::Expire },
        };
        // Each for itself, though most are decided in one round: one that the database will not have must not keep the others.
        let mut answers = Vec::with_capacity(due.len());
        for request in due.iter().filter_map(id).map(expire) {
            answers.push(self.put(request)?);
        }
        let mut ended = 0;
        for answer in answers {
            ended += usize::from(answer.await.is_ok_and(|answer| answer.is_ok()));
        }
        Ok(ended)
    }
}
