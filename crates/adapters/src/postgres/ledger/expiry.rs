//! Holds whose time has come.

use super::PostgresLedger;
use super::session::Question;
use holdfast_domain::{ChargeId, Label, charge};
use holdfast_engine::{Answer, Command, Refusal, Request};

const DUE: &str = "SELECT substr(life, 3) FROM holdfast.ledger_lives \
                   WHERE expires_at <= coalesce($2, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) \
                   ORDER BY expires_at, life LIMIT $1";

impl PostgresLedger {
    /// The holds whose time has come, those that ended first before the others.
    pub async fn due(&self, at_most: u32) -> Result<Vec<ChargeId>, Refusal> {
        let at_most = i64::from(at_most);
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
        let requests = self.due(at_most).await?.into_iter().map(expire).collect();
        let ended = self.submit_each(requests).await?;
        Ok(ended.into_iter().filter(Result::is_ok).count())
    }

    /// Has requests decided each for itself, though most are in one round: one that the database will not have does not keep the
    /// others.
    pub async fn submit_each(&self, requests: Vec<Request>) -> Result<Vec<Answer>, Refusal> {
        let mut waiting = Vec::with_capacity(requests.len());
        for request in requests {
            waiting.push(self.put(request)?);
        }
        let mut answers = Vec::with_capacity(waiting.len());
        for answer in waiting {
            answers.push(answer.await.unwrap_or(Err(Refusal::Stopping)));
        }
        Ok(answers)
    }
}
