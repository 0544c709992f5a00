//! Limits: set, shown with what is used of them, and put on every reservation.
//!
//! # Invariants
//! - No reservation reaches the engine without the limits of its account: what comes over the wire passes
//!   [`Service::limited`], what comes from the models' routes [`Service::budgets`]. If the limits cannot be read, nothing is
//!   reserved.

use super::Service;
use super::query::blocking;
use crate::identity::Identity;
use crate::identity::limits::{LimitRecord, Spender};
use crate::wire::error::Problem;
use crate::wire::limits::{LimitBody, LimitsAnswer, LimitsBody, LimitsTask};
use holdfast_domain::{Budgets, OwnerId};
use holdfast_engine::{Clock, Command, Refusal, Request};
use std::sync::Arc;

impl Service {
    /// Does what is asked about limits.
    pub(crate) async fn limits(&self, body: LimitsBody) -> Result<LimitsAnswer, Problem> {
        match body.into_task()? {
            LimitsTask::Set(spender, new) => {
                let identity = self.identity()?;
                let record = blocking(move || Ok(identity.limits.change(spender, new)?)).await?;
                self.shown(spender, Some(record)).await
            }
            LimitsTask::Show(spender) => {
                let record = self.newest_limits().await?.and_then(|identity| identity.limits.find(spender));
                self.shown(spender, record).await
            }
            LimitsTask::List { after, at_most } => {
                let identity = self.newest_limits().await?;
                let mut found = identity.map(|identity| identity.limits.list(after, at_most + 1)).unwrap_or_default();
                let more = found.len() > at_most;
                found.truncate(at_most);
                let next = found.last().filter(|_| more).map(|(spender, _)| spender.to_string());
                Ok(LimitsAnswer::Many { limits: self.all_shown(known(found)).await?, next })
            }
        }
    }

    /// The limits that an account's reservations count against, its own first.
    pub(crate) async fn limits_of(&self, owner: OwnerId) -> Result<Vec<LimitBody>, Problem> {
        let identity = self.known_limits()?;
        let chain = identity.map(|identity| identity.limits.chain(Spender::account(owner))).unwrap_or_default();
        if chain.is_empty() { Ok(Vec::new()) } else { self.all_shown(known(chain)).await }
    }

    /// What a reservation of an account counts against, besides what its key says.
    pub(crate) fn budgets(&self, owner: OwnerId, of_key: &Budgets) -> Result<Budgets, Problem> {
        Ok(match self.known_limits()? {
            Some(identity) => identity.limits.budgets(owner, of_key),
            None => of_key.clone(),
        })
    }

    /// The same request, under the limits of its account if it reserves.
    pub(super) fn limited(&self, mut request: Request) -> Result<Request, Problem> {
        if let Command::Reserve { reserve, .. } = &mut request.command {
            if self.settlement().is_some_and(|settlement| settlement.must_wait()) {
                return Err(Problem::PeerAway);
            }
            reserve.budgets = self.budgets(reserve.owner, &reserve.budgets)?;
        }
        Ok(request)
    }

    /// The identity, if the directory has one: without, nobody has set a limit.
    fn known_limits(&self) -> Result<Option<Arc<Identity>>, Problem> {
        let is_there = self.identity.get().is_some() || self.data.join("identity.db").exists();
        Ok(if is_there { Some(self.identity()?) } else { None })
    }

    /// The same, with what other nodes have just changed.
    async fn newest_limits(&self) -> Result<Option<Arc<Identity>>, Problem> {
        let known = self.known_limits()?;
        if let Some(identity) = &known {
            identity.look_again().await;
        }
        Ok(known)
    }

    async fn shown(&self, spender: Spender, record: Option<LimitRecord>) -> Result<LimitsAnswer, Problem> {
        let shown = self.all_shown(vec![(spender, record)]).await?;
        let one = shown.into_iter().next().ok_or(Refusal::JournalFailed)?;
        Ok(LimitsAnswer::One(Box::new(one)))
    }

    /// Limits with what is used of each, all at one moment.
    async fn all_shown(&self, found: Vec<(Spender, Option<LimitRecord>)>) -> Result<Vec<LimitBody>, Problem> {
        let today = self.clock.now().day();
        let used = self.books.used(found.iter().map(|(spender, _)| spender.budget_id()).collect()).await?;
        let shown = found.into_iter().zip(used);
        Ok(shown.map(|((spender, record), used)| LimitBody::new(spender, record, &used, today)).collect())
    }
}

fn known(found: Vec<(Spender, LimitRecord)>) -> Vec<(Spender, Option<LimitRecord>)> {
    found.into_iter().map(|(spender, record)| (spender, Some(record))).collect()
}
