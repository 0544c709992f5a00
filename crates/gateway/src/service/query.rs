//! Questions: balances and holds from the books as they stand, histories from the read model, entries from the journal.
//!
//! # Invariants
//! - An answer is never stale: what needs the read model waits until it has applied what was durable when the question came.

use super::Service;
use crate::journal_files::JournalFiles;
use crate::wire::Shown;
use crate::wire::answer::{
    AccountBody, AccountsBody, AsOfBody, EscrowBody, HealthBody, HistoryBody, HoldBody, HoldsBody, OwnerBody,
    RecoveredBody, ReservationBody, TermsBody, TotalsBody, line, stage_name,
};
use crate::wire::entry::{EntryBody, FrameBody};
use crate::wire::error::{Problem, WireError};
use crate::wire::parse::{self, Whom};
use crate::wire::question::{QuestionBody, page};
use crate::wire::time::Moment;
use holdfast_adapters::read_model::{AsOf, Lookup, QueryError};
use holdfast_domain::charge::Charge;
use holdfast_domain::{Account, ChargeId, CreditUnit, EscrowId, OwnerId};
use holdfast_engine::{Balance, HistoryEnd, Record, Refusal, Totals, View};
use std::time::{Duration, Instant};

/// How long a question waits for the read model.
const CATCH_UP_MAX: Duration = Duration::from_secs(5);
const CATCH_UP_STEP: Duration = Duration::from_millis(2);
/// Rows read at once while a history is searched for where a page begins.
const SEARCH_ROWS: usize = 512;

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
            QuestionBody::Health {} => line(Ok(self.health())),
        }
    }

    /// Looks at the books.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        look: impl FnOnce(&View<'_>) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        Ok(self.engine.ask(look).await?)
    }

    /// The sums over the whole book.
    pub(crate) async fn totals(&self) -> Result<Totals, Problem> {
        self.ask(|view| view.totals()).await
    }

    /// An owner's balances now.
    pub(crate) async fn owner_balance(&self, owner: OwnerId) -> Result<Balance, Problem> {
        Ok(self.ask(move |view| view.balance(owner)).await?.ok_or(Refusal::UnknownAccount)?)
    }

    async fn balance(&self, owner: OwnerId) -> Result<OwnerBody, Problem> {
        let balance = self.owner_balance(owner).await?;
        Ok(OwnerBody::new(owner, &balance).with_limits(self.limits_of(owner).await?))
    }

    async fn account(&self, account: Account) -> Result<AccountBody, Problem> {
        let balance = self.ask(move |view| view.account(&account)).await?.ok_or(Refusal::UnknownAccount)?;
        Ok(AccountBody { account: account.to_string(), balance_cu: Shown(balance) })
    }

    async fn accounts(&self, after: Option<&str>, limit: Option<u64>) -> Result<AccountsBody, Problem> {
        let (after, limit) = (parse::id_if_any("after", after)?, page(limit)?);
        let mut owners = self.ask(move |view| view.owners(after, limit + 1)).await?;
        let more = owners.len() > limit;
        owners.truncate(limit);
        let next = owners.last().filter(|_| more).map(|(owner, _)| Shown(*owner));
        let accounts = owners.iter().map(|(owner, balance)| OwnerBody::new(*owner, balance)).collect();
        Ok(AccountsBody { accounts, next })
    }

    async fn reservations(&self, account: Option<&str>, limit: Option<u64>) -> Result<HoldsBody, Problem> {
        let (owner, limit) = (parse::id_if_any("account", account)?, page(limit)?);
        let holds = self.ask(move |view| view.open_charges(owner, limit)).await?;
        Ok(HoldsBody { reservations: holds.iter().map(|(id, owner, hold)| HoldBody::new(*id, *owner, hold)).collect() })
    }

    pub(crate) async fn reservation(&self, id: &str) -> Result<ReservationBody, Problem> {
        let id: ChargeId = parse::id("id", id)?;
        let (charge, life) = self.ask(move |view| (view.charge(id), view.life(id))).await?;
        let (charge, owner) = charge?.ok_or(Refusal::UnknownCharge)?;
        Ok(reservation_body(id, owner, &charge, &life?))
    }

    async fn escrow(&self, id: &str) -> Result<EscrowBody, Problem> {
        let id: EscrowId = parse::id("escrow_id", id)?;
        let found = self.ask(move |view| view.escrow(id)).await??;
        let (escrow, owner) = found.ok_or(Refusal::UnknownEscrow)?;
        let escrowed = escrow.escrowed();
        Ok(EscrowBody {
            escrow_id: id.to_string(),
            account: Shown(owner),
            state: escrow.state().name(),
            amount_cu: Shown(escrowed.amount),
            feature: escrowed.feature.to_string(),
        })
    }

    /// Waits until the read model has applied entry `through`.
    pub(super) async fn caught_up(&self, through: u64) -> Result<(), Problem> {
        let asked = Instant::now();
        loop {
            let health = self.engine.health();
            if let Some(reason) = health.read_model_failed {
                return Err(Problem::ReadModelFailed(reason));
            }
            if health.applied >= through {
                return Ok(());
            }
            if asked.elapsed() > CATCH_UP_MAX {
                return Err(Problem::ReadModelBehind { behind: through - health.applied });
            }
            tokio::time::sleep(CATCH_UP_STEP).await;
        }
    }

    /// The end of the history of an account as it stands, and the last durable entry, both applied by the read model.
    async fn history_end(&self, account: Account) -> Result<(Option<HistoryEnd>, u64), Problem> {
        let end = self.ask(move |view| view.history_end(&account)).await?;
        let durable = self.engine.health().durable;
        self.caught_up(durable).await?;
        Ok((end, durable))
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
        let (end, _) = self.history_end(account).await?;
        let end = match (end, account) {
            (Some(end), _) => end,
            (None, Account::Available(_) | Account::Held(_) | Account::Payee(_)) => {
                return Err(Refusal::UnknownAccount.into());
            }
            // The look-up says that these have no history of their own.
            (None, Account::Escrow(_) | Account::Revenue | Account::Treasury) => HistoryEnd { last: 0, entries: 0 },
        };
        let data = self.disk.root().to_owned();
        let rows = blocking(move || {
            let lookup = Lookup::open(&data)?;
            let from = newest_before(&lookup, &account, end.last, before)?;
            Ok(lookup.history(&account, from, limit)?)
        })
        .await?;
        let next = rows.last().filter(|row| row.previous != 0).map(|row| row.offset);
        let entries = rows.into_iter().map(Into::into).collect();
        Ok(HistoryBody { account: account.to_string(), entries, next })
    }

    pub(crate) async fn balance_as_of(
        &self,
        account: &str,
        offset: Option<u64>,
        at: Option<String>,
    ) -> Result<AsOfBody, Problem> {
        let whom = parse::whom(account)?;
        let as_of = as_of(offset, at.as_deref())?;
        let one = match whom {
            Whom::Owner(owner) => Account::Available(owner),
            Whom::Account(account) => account,
        };
        let (end, durable) = self.history_end(one).await?;
        if let AsOf::Offset(offset) = as_of
            && offset > durable
        {
            return Err(Problem::NoSuchEntry { offset, last: durable });
        }
        let last = match one {
            Account::Available(_) | Account::Held(_) | Account::Payee(_) => end.ok_or(Refusal::UnknownAccount)?.last,
            Account::Escrow(_) | Account::Revenue | Account::Treasury => 0,
        };
        let data = self.disk.root().to_owned();
        let (first, held) = blocking(move || {
            let lookup = Lookup::open(&data)?;
            let held = match whom {
                Whom::Owner(owner) => Some(lookup.balance_as_of(&Account::Held(owner), last, as_of)?),
                Whom::Account(_) => None,
            };
            Ok((lookup.balance_as_of(&one, last, as_of)?, held))
        })
        .await?;
        let at = match as_of {
            AsOf::Offset(_) => None,
            AsOf::Time(at) => Some(Moment(at)),
        };
        let (available_cu, balance_cu) = if held.is_some() { (Some(first), None) } else { (None, Some(first)) };
        Ok(AsOfBody {
            account: account.to_owned(),
            offset,
            at,
            available_cu: available_cu.map(Shown),
            held_cu: held.map(Shown),
            balance_cu: balance_cu.map(Shown),
        })
    }

    pub(crate) async fn entry(&self, offset: u64) -> Result<EntryBody, Problem> {
        let last = self.ask(|_| ()).await.map(|()| self.engine.health().durable)?;
        if offset == 0 || offset > last {
            return Err(Problem::NoSuchEntry { offset, last });
        }
        let disk = self.disk.clone();
        blocking(move || {
            let (record, location, hash) = JournalFiles::open(&disk, Some(last))?.entry(offset)?;
            Ok(EntryBody::of(&record, Some(FrameBody::new(location, hash))))
        })
        .await
    }

    fn health(&self) -> HealthBody {
        let health = self.engine.health();
        HealthBody {
            status: if health.failed.is_some() { "failed" } else { "ok" },
            failed: health.failed,
            version: env!("CARGO_PKG_VERSION"),
            pid: std::process::id(),
            durable: health.durable,
            applied: health.applied,
            read_model_failed: health.read_model_failed,
            waiting: health.waiting,
            recovered: RecoveredBody::from(&self.report),
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

/// The newest entry of a history before `before`: histories are chains, so the way there is to walk.
fn newest_before(lookup: &Lookup, account: &Account, last: u64, before: Option<u64>) -> Result<u64, QueryError> {
    let Some(before) = before else { return Ok(last) };
    let mut from = last;
    while from >= before && from != 0 {
        let rows = lookup.history(account, from, SEARCH_ROWS)?;
        let older = rows.iter().map(|row| row.previous).find(|previous| *previous < before);
        from = older.or_else(|| rows.last().map(|row| row.previous)).unwrap_or(0);
    }
    Ok(from)
}

fn reservation_body(id: ChargeId, owner: OwnerId, charge: &Charge, life: &[Record]) -> ReservationBody {
    let (account, state) = (Shown(owner), charge.state().name());
    let life = life.iter().map(|record| EntryBody::of(record, None)).collect();
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
