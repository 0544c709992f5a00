//! Questions: what is asked, put to the books, and shown.

use super::Service;
use crate::books::{AsOf, EscrowLife, Life, Overview, OwnerAsOf, TailRow};
use crate::wire::Shown;
use crate::wire::answer::{
    AccountBody, AccountsBody, AsOfBody, EscrowBody, HealthBody, HistoryBody, HoldBody, HoldsBody, OwnerBody,
    RecoveredBody, ReservationBody, TermsBody, TotalsBody, line, stage_name,
};
use crate::wire::entry::{Details, EntryBody};
use crate::wire::error::{Problem, WireError};
use crate::wire::parse::{self, Whom};
use crate::wire::question::{QuestionBody, page};
use crate::wire::time::Moment;
use holdfast_domain::charge::Charge;
use holdfast_domain::escrow::State;
use holdfast_domain::{Account, ChargeId, CreditUnit, EscrowId, OwnerId};
use holdfast_engine::{Balance, Refusal, Totals};
use holdfast_journal::Location;

impl Service {
    /// Answers one question.
    pub(super) async fn question(&self, question: QuestionBody) -> String {
        match question {
            QuestionBody::Balance { account } => match parse::whom(&account) {
                Ok(Whom::Owner(owner)) => line(self.balance(owner).await),
                Ok(Whom::Account(account)) => line(self.account(account).await),
                Err(error) => line::<()>(Err(error.into())),
            },
            QuestionBody::BalanceAsOf { account, offset, at } => line(self.balance_as_of(&account, offset, at).await),
            QuestionBody::Accounts { after, limit } => line(self.accounts(after.as_deref(), limit).await),
            QuestionBody::History { account, before, limit } => line(self.history(&account, before, limit).await),
            QuestionBody::Reservation { id } => line(self.reservation(&id).await),
            QuestionBody::Reservations { account, limit } => line(self.reservations(account.as_deref(), limit).await),
            QuestionBody::Escrow { escrow_id } => line(self.escrow(&escrow_id).await),
            QuestionBody::Entry { offset } => line(self.entry(offset).await),
            QuestionBody::Totals {} => line(self.totals().await.map(TotalsBody::from)),
            QuestionBody::Health {} => line(Ok(self.health_body().await)),
        }
    }

    /// The sums over the whole book.
    pub(crate) async fn totals(&self) -> Result<Totals, Problem> {
        Ok(self.books.totals().await?)
    }

    /// An owner's balances now.
    pub(crate) async fn owner_balance(&self, owner: OwnerId) -> Result<Balance, Problem> {
        Ok(self.books.balance(owner).await?.ok_or(Refusal::UnknownAccount)?)
    }

    async fn balance(&self, owner: OwnerId) -> Result<OwnerBody, Problem> {
        let balance = self.owner_balance(owner).await?;
        Ok(OwnerBody::new(owner, &balance).with_limits(self.limits_of(owner).await?))
    }

    async fn account(&self, account: Account) -> Result<AccountBody, Problem> {
        let balance = self.books.account(account).await?.ok_or(Refusal::UnknownAccount)?;
        Ok(AccountBody { account: account.to_string(), balance_cu: Shown(balance) })
    }

    async fn accounts(&self, after: Option<&str>, limit: Option<u64>) -> Result<AccountsBody, Problem> {
        let (after, limit) = (parse::id_if_any("after", after)?, page(limit)?);
        let mut owners = self.books.owners(after, limit + 1).await?;
        let more = owners.len() > limit;
        owners.truncate(limit);
        let next = owners.last().filter(|_| more).map(|(owner, _)| Shown(*owner));
        let accounts = owners.iter().map(|(owner, balance)| OwnerBody::new(*owner, balance)).collect();
        Ok(AccountsBody { accounts, next })
    }

    async fn reservations(&self, account: Option<&str>, limit: Option<u64>) -> Result<HoldsBody, Problem> {
        let (owner, limit) = (parse::id_if_any("account", account)?, page(limit)?);
        let holds = self.books.open_charges(owner, limit).await?;
        Ok(HoldsBody { reservations: holds.iter().map(|(id, owner, hold)| HoldBody::new(*id, *owner, hold)).collect() })
    }

    pub(crate) async fn reservation(&self, id: &str) -> Result<ReservationBody, Problem> {
        let id: ChargeId = parse::id("id", id)?;
        let life = self.books.life(id).await?.ok_or(Refusal::UnknownCharge)?;
        Ok(reservation_body(id, life))
    }

    async fn escrow(&self, id: &str) -> Result<EscrowBody, Problem> {
        let id: EscrowId = parse::id("escrow_id", id)?;
        let EscrowLife { escrow, owner, entries } = self.books.escrow_life(id).await?.ok_or(Refusal::UnknownEscrow)?;
        let escrowed = escrow.escrowed();
        let end = entries.last().filter(|_| escrow.state() != State::Held);
        Ok(EscrowBody {
            escrow_id: id.to_string(),
            account: Shown(owner),
            state: escrow.state().name(),
            amount_cu: Shown(escrowed.amount),
            feature: escrowed.feature.to_string(),
            held_at: Moment(escrowed.held_at),
            ended_at: end.map(|entry| Moment(entry.at)),
            end: end.map(|entry| Details::of(&entry.event)).unwrap_or_default(),
        })
    }

    pub(crate) async fn history(
        &self,
        account: &str,
        before: Option<u64>,
        limit: Option<u64>,
    ) -> Result<HistoryBody, Problem> {
        let limit = page(limit)?;
        let account = match parse::whom(account)? {
            Whom::Owner(owner) => Account::Available(owner),
            Whom::Account(account) => account,
        };
        let page = self.books.history(account, before, limit).await?;
        let entries = page.entries.into_iter().map(Into::into).collect();
        Ok(HistoryBody { account: account.to_string(), entries, next: page.next })
    }

    pub(crate) async fn balance_as_of(
        &self,
        account: &str,
        offset: Option<u64>,
        at: Option<String>,
    ) -> Result<AsOfBody, Problem> {
        let whom = parse::whom(account)?;
        let as_of = as_of(offset, at.as_deref())?;
        let (available_cu, held_cu, balance_cu) = match whom {
            Whom::Owner(owner) => {
                let OwnerAsOf { available, held } = self.books.owner_as_of(owner, as_of).await?;
                (Some(Shown(available)), Some(Shown(held)), None)
            }
            Whom::Account(account) => (None, None, Some(Shown(self.books.account_as_of(account, as_of).await?))),
        };
        let at = match as_of {
            AsOf::Offset(_) => None,
            AsOf::Time(at) => Some(Moment(at)),
        };
        Ok(AsOfBody { account: account.to_owned(), offset, at, available_cu, held_cu, balance_cu })
    }

    pub(crate) async fn entry(&self, offset: u64) -> Result<EntryBody, Problem> {
        Ok(self.books.entry(offset).await?.into())
    }

    /// The books at a glance.
    pub(crate) async fn overview(&self) -> Result<Overview, Problem> {
        Ok(self.books.overview().await?)
    }

    /// The newest entry that [`Service::tail`] knows.
    pub(crate) async fn newest(&self) -> u64 {
        self.books.newest().await
    }

    /// The newest entries after entry `after`, oldest first.
    pub(crate) async fn tail(&self, after: u64) -> Result<Vec<TailRow>, Problem> {
        Ok(self.books.tail(after).await?)
    }

    async fn health_body(&self) -> HealthBody {
        let health = self.health().await;
        HealthBody {
            status: if health.failed.is_some() { "failed" } else { "ok" },
            failed: health.failed,
            version: env!("CARGO_PKG_VERSION"),
            pid: std::process::id(),
            durable: health.durable,
            journal_end: health.end.map(Location::pack),
            applied: health.applied,
            read_model_failed: health.read_model_failed,
            waiting: health.waiting,
            recovered: self.books.recovered().map(RecoveredBody::from),
        }
    }
}

/// Runs what waits for a disk or for another thread where it holds nobody up.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    // It fails only if the work panicked or the program is ending: nothing was changed by it.
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(Problem::Refused(Refusal::Stopping)))
}

fn as_of(offset: Option<u64>, at: Option<&str>) -> Result<AsOf, WireError> {
    match (offset, at) {
        (Some(offset), None) => Ok(AsOf::Offset(offset)),
        (None, Some(at)) => parse::moment(at).map(AsOf::Time),
        (Some(_), Some(_)) | (None, None) => {
            Err(WireError::Malformed("give exactly one of `offset` and `at`".to_owned()))
        }
    }
}

fn reservation_body(id: ChargeId, life: Life) -> ReservationBody {
    let Life { charge, owner, entries } = life;
    let (account, state) = (Shown(owner), charge.state().name());
    let life = entries.into_iter().map(EntryBody::from).collect();
    match charge {
        Charge::Held(hold) => ReservationBody {
            id: Shown(id),
            account,
            state,
            stage: Some(stage_name(hold.stage)),
            held_cu: Shown(hold.held),
            charged_cu: Shown(hold.charged),
            uncollected_cu: Shown(hold.uncollected),
            expires_at: Some(Moment(hold.expires_at)),
            terms: TermsBody::from(&hold.terms),
            life,
        },
        Charge::Committed(closed)
        | Charge::Acked(closed)
        | Charge::Failed(closed)
        | Charge::Voided(closed)
        | Charge::Released(closed)
        | Charge::AutoReleased(closed) => ReservationBody {
            id: Shown(id),
            account,
            state,
            stage: None,
            held_cu: Shown(CreditUnit::ZERO),
            charged_cu: Shown(closed.charged),
            uncollected_cu: Shown(closed.uncollected),
            expires_at: None,
            terms: TermsBody::from(&closed.terms),
            life,
        },
    }
}
