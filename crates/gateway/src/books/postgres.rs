//! The books in a database that several nodes share: everything is asked of the database, so every node knows all that any has
//! acknowledged.
//!
//! # Invariants
//! - A hold is ended by its time alone, whichever node looks first: that another node has died is not for us to say. What the work
//!   of a paid request noted as delivered is charged then.

use super::found::{
    AsOf, DAYS, DatabaseHealth, Entry, EscrowLife, HOLDS, Health, HistoryEntry, HistoryPage, Life, NoAnswer, OpenHold,
    Overview, OwnerAsOf, ROWS, TAIL, TailRow,
};
use crate::inference::CHARGE_PREFIX;
use holdfast_adapters::postgres::PostgresLedger;
use holdfast_adapters::postgres::ledger::Until;
use holdfast_domain::budget::Used;
use holdfast_domain::charge::{Charge, Hold};
use holdfast_domain::escrow::{Escrow, Escrowed};
use holdfast_domain::{
    Account, BudgetId, Change, ChargeId, Day, EscrowId, Label, OwnerId, Place, Span, Timestamp, charge,
};
use holdfast_engine::part::Wanted;
use holdfast_engine::{Answer, Balance, Command, Record, Refusal, Request, Totals};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;

/// How often a node looks for holds whose time has come, and how the database is.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Holds that are ended at once.
const EXPIRE_MAX: u32 = 1_000;
/// The newest entries in which the owners of whom most was earned are looked for.
const WINDOW: Span = Span::from_millis(30 * Span::DAY.millis());

/// The books in a database.
pub(crate) struct Shared {
    ledger: Arc<PostgresLedger>,
    /// The newest entry that was seen.
    newest: Arc<AtomicU64>,
    tending: JoinHandle<()>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.tending.abort();
    }
}

impl Shared {
    /// Tends the books from now on, in the runtime that this is called in.
    pub(crate) fn start(ledger: Arc<PostgresLedger>) -> Self {
        let newest = Arc::new(AtomicU64::new(0));
        // May safely die: it changes nothing but by requests, which are done whole or not at all.
        let tending = tokio::spawn(tend(Arc::clone(&ledger), Arc::clone(&newest)));
        Self { ledger, newest, tending }
    }

    async fn look<T>(&self, wanted: Wanted, look: impl FnOnce(&holdfast_engine::View<'_>) -> T) -> Result<T, Refusal> {
        self.ledger.look(&wanted, look).await
    }
}

/// Commands, and questions about the books as they stand.
impl Shared {
    pub(super) async fn submit(&self, request: Request) -> Answer {
        self.ledger.submit(request).await
    }

    pub(super) async fn submit_batch(&self, requests: Vec<Request>) -> Result<Vec<Answer>, Refusal> {
        self.ledger.submit_batch(requests).await
    }

    pub(super) async fn balance(&self, owner: OwnerId) -> Result<Option<Balance>, Refusal> {
        self.look(Wanted { owners: vec![owner], ..Wanted::default() }, |view| view.balance(owner)).await
    }

    pub(super) async fn account(&self, account: Account) -> Result<Option<Change>, Refusal> {
        let wanted = match account {
            Account::Available(owner) | Account::Held(owner) => Wanted { owners: vec![owner], ..Wanted::default() },
            Account::Payee(payee) => Wanted { payees: vec![payee], ..Wanted::default() },
            Account::Escrow(escrow) => Wanted { escrows: vec![escrow], ..Wanted::default() },
            Account::Revenue => return Ok(Some(self.ledger.totals().await?.revenue)),
            Account::Treasury => return Ok(Some(self.ledger.totals().await?.treasury)),
        };
        self.look(wanted, |view| view.account(&account)).await
    }

    pub(super) async fn owners(
        &self,
        after: Option<OwnerId>,
        at_most: usize,
    ) -> Result<Vec<(OwnerId, Balance)>, Refusal> {
        self.ledger.owners(after, at_most).await
    }

    pub(super) async fn used(&self, budgets: Vec<BudgetId>) -> Result<Vec<Used>, Refusal> {
        let wanted = Wanted { budgets: budgets.clone(), ..Wanted::default() }.in_order();
        self.look(wanted, |view| budgets.into_iter().map(|budget| view.used(budget)).collect()).await
    }

    pub(super) async fn charge(&self, id: ChargeId) -> Result<Option<(Charge, OwnerId)>, Refusal> {
        self.look(Wanted { charges: vec![id], ..Wanted::default() }, |view| view.charge(id)).await?
    }

    pub(super) async fn life(&self, id: ChargeId) -> Result<Option<Life>, Refusal> {
        let wanted = Wanted { charges: vec![id], ..Wanted::default() };
        let (charge, life) = self.look(wanted, |view| (view.charge(id), view.life(id))).await?;
        let Some((charge, owner)) = charge? else { return Ok(None) };
        Ok(Some(Life { charge, owner, entries: life?.into_iter().map(Entry::from).collect() }))
    }

    pub(super) async fn open_charges(
        &self,
        owner: Option<OwnerId>,
        at_most: usize,
    ) -> Result<Vec<(ChargeId, OwnerId, Hold)>, Refusal> {
        self.ledger.open_charges(owner, at_most).await
    }

    /// None: another node may work on any of them. They end by their time.
    pub(super) async fn orphans(&self, _prefix: &'static str) -> Result<Vec<ChargeId>, Refusal> {
        Ok(Vec::new())
    }

    pub(super) async fn escrow(&self, id: EscrowId) -> Result<Option<(Escrow, OwnerId)>, Refusal> {
        self.look(Wanted { escrows: vec![id], ..Wanted::default() }, |view| view.escrow(id)).await?
    }

    pub(super) async fn escrow_life(&self, id: EscrowId) -> Result<Option<EscrowLife>, Refusal> {
        let wanted = Wanted { escrows: vec![id], ..Wanted::default() };
        self.look(wanted, |view| EscrowLife::of(view, id)).await?
    }

    pub(super) async fn open_escrows(
        &self,
        after: Option<EscrowId>,
        at_most: usize,
    ) -> Result<Vec<(EscrowId, OwnerId, Escrowed)>, Refusal> {
        self.ledger.open_escrows(after, at_most).await
    }

    pub(super) async fn totals(&self) -> Result<Totals, Refusal> {
        self.ledger.totals().await
    }

    pub(super) fn health(&self) -> Health {
        let health = self.ledger.health();
        let newest = self.newest.load(Ordering::Relaxed);
        Health {
            engine: "postgres",
            failed: None,
            durable: newest,
            end: None,
            applied: newest,
            read_model_failed: None,
            waiting: health.waiting,
            database: Some(DatabaseHealth {
                reached: health.is_reached,
                connections: health.lanes,
                overtaken: health.overtaken,
                in_doubt: health.in_doubt,
            }),
        }
    }
}

/// Questions about entries.
impl Shared {
    pub(super) async fn history(
        &self,
        account: Account,
        before: Option<u64>,
        at_most: usize,
    ) -> Result<HistoryPage, NoAnswer> {
        let until = Until::Offset(before.map_or(u64::MAX, |before| before.saturating_sub(1)));
        // One more than is shown says whether there is a next page.
        let found = self.ledger.history(&account, until, at_most.saturating_add(1)).await?;
        let mut records = found.ok_or(NoAnswer::NoHistory(account))?;
        if records.is_empty() && before.is_none() {
            return Err(Refusal::UnknownAccount.into());
        }
        let more = records.len() > at_most;
        records.truncate(at_most);
        let next = records.last().filter(|_| more).map(|record| record.offset);
        Ok(HistoryPage { entries: records.iter().map(|record| history_entry(record, &account)).collect(), next })
    }

    /// The newest entry of a history as of a moment, if there is a moment such as is asked for.
    async fn newest_as_of(&self, account: Account, as_of: AsOf) -> Result<Option<Record>, NoAnswer> {
        let until = self.until(as_of).await?;
        let found = self.ledger.history(&account, until, 1).await?;
        let newest = found.ok_or(NoAnswer::NoHistory(account))?.pop();
        if newest.is_none() && self.account(account).await?.is_none() {
            return Err(Refusal::UnknownAccount.into());
        }
        Ok(newest)
    }

    async fn until(&self, as_of: AsOf) -> Result<Until, NoAnswer> {
        match as_of {
            AsOf::Time(at) => Ok(Until::Moment(at)),
            AsOf::Offset(offset) => {
                let last = self.ledger.last().await?;
                if offset > last { Err(NoAnswer::NoSuchEntry { offset, last }) } else { Ok(Until::Offset(offset)) }
            }
        }
    }

    pub(super) async fn account_as_of(&self, account: Account, as_of: AsOf) -> Result<Change, NoAnswer> {
        match account {
            Account::Available(_) => Ok(self.newest_as_of(account, as_of).await?.map_or(Change::ZERO, available)),
            Account::Held(_) => Ok(self.newest_as_of(account, as_of).await?.map_or(Change::ZERO, held)),
            Account::Payee(_) => {
                let newest = self.newest_as_of(account, as_of).await?;
                let balance = newest.and_then(|record| record.payee).map(|payee| Change::plus(payee.balance));
                Ok(balance.unwrap_or(Change::ZERO))
            }
            Account::Revenue | Account::Treasury | Account::Escrow(_) => {
                let until = self.until(as_of).await?;
                self.ledger.system_at(&account, until).await?.ok_or(NoAnswer::NoHistory(account))
            }
        }
    }

    pub(super) async fn owner_as_of(&self, owner: OwnerId, as_of: AsOf) -> Result<OwnerAsOf, NoAnswer> {
        let newest = self.newest_as_of(Account::Available(owner), as_of).await?;
        let nothing = OwnerAsOf { available: Change::ZERO, held: Change::ZERO };
        Ok(newest.map_or(nothing, |record| OwnerAsOf {
            available: Change::plus(record.owner.available.balance),
            held: Change::plus(record.owner.held),
        }))
    }

    pub(super) async fn entry(&self, offset: u64) -> Result<Entry, NoAnswer> {
        match self.ledger.entry(offset).await? {
            Some((record, _)) => Ok(Entry::from(record)),
            None => Err(NoAnswer::NoSuchEntry { offset, last: self.ledger.last().await? }),
        }
    }

    pub(super) async fn newest(&self) -> u64 {
        if let Ok(last) = self.ledger.last().await {
            self.newest.fetch_max(last, Ordering::Relaxed);
        }
        self.newest.load(Ordering::Relaxed)
    }

    pub(super) async fn tail(&self, after: u64) -> Result<Vec<TailRow>, NoAnswer> {
        Ok(self.ledger.tail(after, TAIL).await?.iter().map(tail_row).collect())
    }

    pub(super) async fn overview(&self) -> Result<Overview, NoAnswer> {
        let ledger = &self.ledger;
        let at = ledger.now().await?;
        let since = Timestamp::from_millis(at.millis().saturating_sub(WINDOW.millis()));
        let (totals, standing, tail) = (ledger.totals().await?, ledger.standing(ROWS).await?, self.tail(0).await?);
        let open = ledger.open_charges(None, HOLDS).await?;
        let wanted = Wanted { charges: open.iter().map(|(id, ..)| *id).collect(), ..Wanted::default() }.in_order();
        let holds = ledger.look(&wanted, |view| {
            let reserved_at = |id| view.life(id).ok().and_then(|life| life.first().map(|record| record.at));
            let hold = |(id, owner, hold)| OpenHold { id, owner, hold, reserved_at: reserved_at(id) };
            open.into_iter().map(hold).collect()
        });
        Ok(Overview {
            at,
            through: tail.last().map_or(0, |row| row.offset),
            totals,
            standing,
            holds: holds.await?,
            by_day: ledger.revenue_by_day(Day::from_number(at.day().number()), DAYS).await?,
            by_owner: ledger.revenue_by_owner(since, ROWS).await?,
            since: Some(since),
            tail,
        })
    }
}

/// Ends holds whose time has come, and keeps an eye on the database, until the node stops.
async fn tend(ledger: Arc<PostgresLedger>, newest: Arc<AtomicU64>) {
    let actor: Label = Label::from_bytes(b"expiry").expect("a plain word");
    let end = |charge: ChargeId| {
        // Nobody works on it any more: what was noted as delivered is charged.
        let command = match charge.as_str().starts_with(CHARGE_PREFIX) {
            true => charge::Command::Abandon,
            false => charge::Command::Expire,
        };
        Request { key: None, actor, command: Command::Charge { charge, command } }
    };
    loop {
        // What fails now is looked for again; the ledger has said so.
        if let Ok(due) = ledger.due(EXPIRE_MAX).await
            && !due.is_empty()
        {
            let _tried = ledger.submit_each(due.into_iter().map(end).collect()).await.is_ok();
        }
        if let Ok(last) = ledger.last().await {
            newest.fetch_max(last, Ordering::Relaxed);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn available(record: Record) -> Change {
    Change::plus(record.owner.available.balance)
}

fn held(record: Record) -> Change {
    Change::plus(record.owner.held)
}

fn history_entry(record: &Record, account: &Account) -> HistoryEntry {
    let postings = record.event.postings();
    let change = |place| postings.as_ref().map_or(Change::ZERO, |postings| postings.at(place));
    let (change, held_change, balance, held) = match (account, record.payee) {
        (Account::Payee(_), Some(payee)) => {
            (change(Place::Payee), Change::ZERO, Change::plus(payee.balance), Change::ZERO)
        }
        (_, _) => (
            change(Place::Available),
            change(Place::Held),
            Change::plus(record.owner.available.balance),
            Change::plus(record.owner.held),
        ),
    };
    HistoryEntry {
        offset: record.offset,
        at: record.at,
        kind: record.event.kind().name().to_owned(),
        correlation: record.correlation(),
        state: record.state.name().to_owned(),
        change,
        held_change,
        balance,
        held,
    }
}

fn tail_row(record: &Record) -> TailRow {
    let postings = record.event.postings();
    let change = |place| postings.as_ref().map_or(Change::ZERO, |postings| postings.at(place));
    TailRow {
        offset: record.offset,
        at: record.at,
        kind: record.event.kind().name().to_owned(),
        owner: record.event.owner().to_string(),
        correlation: record.correlation(),
        state: record.state.name().to_owned(),
        actor: record.actor.to_string(),
        change: change(Place::Available),
        held_change: change(Place::Held),
        balance: Change::plus(record.owner.available.balance),
    }
}
