//! Holds whose time has come.

use super::PostgresLedger;
use super::session::Question;
use holdfast_domain::{ChargeId, Label, charge};
use holdfast_engine::{BATCH_MAX, Command, Refusal, Request};

const DUE: &str = "SELECT substr(life, 3) FROM holdfast.ledger_lives \
                   WHERE expires_at <= coalesce($2, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) \
                   ORDER BY expires_at, life LIMIT $1";

impl PostgresLedger {
    /// The holds whose time has come, those that ended first before the others.
    pub async fn due(&self, at_most: u32) -> Result<Vec<ChargeId>, Refusal> {
        let at_most = i64::from(at_most).min(i64::try_from(BATCH_MAX).unwrap_or(i64::MAX));
        let now = self.shared.time.given().map(|now| i64::try_from(now.millis()).unwrap_or(i64::MAX));
        let due = self.read(Question::Words(DUE), &[&at_most, &now]).await?;
        let id = |row: &tokio_postgres::Row| row.try_get::<_, &str>(0).ok()?.parse::<ChargeId>().ok();
        Ok(due.iter().filter_map(id).collect())
    }

    /// Gives back, or charges, up to `at_most` holds whose time has come, and says how many. Any node may, at any moment: what
    /// another one has just ended is refused, and not counted.
    pub async fn expire(&self, actor: Label, at_most: u32) -> Result<usize, Refusal> {
        let expire = |charge| Request {
            key: None,
            actor,
            command: Command::Charge { charge, command: charge::Command::Expire },
        };
        let requests: Vec<Request> = self.due(at_most).await?.into_iter().map(expire).collect();
        let answers = self.submit_batch(requests).await?;
        Ok(answers.iter().filter(|answer| answer.is_ok()).count())
    }
}
