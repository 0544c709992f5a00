//! The books of the engine in this process: balances and holds from its memory, histories from its read model, entries from
//! its journal.
//!
//! # Invariants
//! - What needs the read model waits until it has applied what was durable when the question came.
//! - What waits for a file waits where it holds nobody up.

use super::found::{
    AsOf, DAYS, Entry, EscrowLife, Frame, HOLDS, Health, HistoryEntry, HistoryPage, Life, NoAnswer, OpenHold, Overview,
    OwnerAsOf, ROWS, TAIL, TailRow,
};
use super::gather;
use crate::journal_files::JournalFiles;
use holdfast_adapters::read_model::{HistoryRow, Lookup, QueryError};
use holdfast_domain::budget::Used;
use holdfast_domain::charge::{Charge, Hold};
use holdfast_domain::escrow::{Escrow, Escrowed};
use holdfast_domain::{Account, BudgetId, Change, ChargeId, EscrowId, OwnerId, Timestamp};
use holdfast_engine::recovery::Report;
use holdfast_engine::{
    Answer, Balance, Engine, HistoryEnd, Prepared, READ_MODEL, Refusal, Request, Standing, Totals, View,
};
use holdfast_journal::LocalDisk;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a question waits for the read model.
const CATCH_UP_MAX: Duration = Duration::from_secs(5);
const CATCH_UP_STEP: Duration = Duration::from_millis(2);
/// Rows read at once while a history is searched for where a page begins.
const SEARCH_ROWS: usize = 512;
/// What has no index is looked for in so many of the newest entries: some hundredths of a second.
const WINDOW_ENTRIES: u64 = 50_000;

/// The engine in this process.
pub(crate) struct Embedded {
    engine: Arc<Engine<LocalDisk>>,
    disk: LocalDisk,
    report: Report,
}

/// What an overview has of the books as they stand.
struct Glance {
    at: Timestamp,
    totals: Totals,
    standing: Standing,
    open: Vec<(ChargeId, OwnerId, Hold)>,
}

/// Commands, and questions about the books as they stand.
impl Embedded {
    pub(crate) const fn new(engine: Arc<Engine<LocalDisk>>, disk: LocalDisk, report: Report) -> Self {
        Self { engine, disk, report }
    }

    pub(super) async fn submit(&self, request: Request) -> Answer {
        gather::begin(&self.engine, Prepared::new(request)).answer().await
    }

    pub(super) async fn submit_batch(&self, requests: Vec<Request>) -> Result<Vec<Answer>, Refusal> {
        self.engine.submit_batch(requests).await
    }

    /// Looks at the books between two requests.
    async fn ask<T: Send + 'static>(&self, look: impl FnOnce(&View<'_>) -> T + Send + 'static) -> Result<T, Refusal> {
        self.engine.ask(look).await
    }

    pub(super) async fn balance(&self, owner: OwnerId) -> Result<Option<Balance>, Refusal> {
        self.ask(move |view| view.balance(owner)).await
    }

    pub(super) async fn account(&self, account: Account) -> Result<Option<Change>, Refusal> {
        self.ask(move |view| view.account(&account)).await
    }

    pub(super) async fn owners(
        &self,
        after: Option<OwnerId>,
        at_most: usize,
    ) -> Result<Vec<(OwnerId, Balance)>, Refusal> {
        self.ask(move |view| view.owners(after, at_most)).await
    }

    pub(super) async fn used(&self, budgets: Vec<BudgetId>) -> Result<Vec<Used>, Refusal> {
        self.ask(move |view| budgets.into_iter().map(|budget| view.used(budget)).collect()).await
    }

    pub(super) async fn charge(&self, id: ChargeId) -> Result<Option<(Charge, OwnerId)>, Refusal> {
        self.ask(move |view| view.charge(id)).await?
    }

    pub(super) async fn life(&self, id: ChargeId) -> Result<Option<Life>, Refusal> {
        let (charge, life) = self.ask(move |view| (view.charge(id), view.life(id))).await?;
        let Some((charge, owner)) = charge? else { return Ok(None) };
        Ok(Some(Life { charge, owner, entries: life?.into_iter().map(Entry::from).collect() }))
    }

    pub(super) async fn open_charges(
        &self,
        owner: Option<OwnerId>,
        at_most: usize,
    ) -> Result<Vec<(ChargeId, OwnerId, Hold)>, Refusal> {
        self.ask(move |view| view.open_charges(owner, at_most)).await
    }

    /// A data directory has one process at a time, so at its start every open one is an orphan, however young.
    pub(super) async fn orphans(&self, prefix: &'static str) -> Result<Vec<ChargeId>, Refusal> {
        let find = move |view: &View<'_>| {
            let open = view.open_charges(None, usize::MAX).into_iter();
            open.map(|(id, _, _)| id).filter(|id| id.as_str().starts_with(prefix)).collect()
        };
        self.ask(find).await
    }

    pub(super) async fn escrow(&self, id: EscrowId) -> Result<Option<(Escrow, OwnerId)>, Refusal> {
        self.engine.escrow(id).await
    }

    pub(super) async fn escrow_life(&self, id: EscrowId) -> Result<Option<EscrowLife>, Refusal> {
        self.ask(move |view| EscrowLife::of(view, id)).await?
    }

    pub(super) async fn open_escrows(
        &self,
        after: Option<EscrowId>,
        at_most: usize,
    ) -> Result<Vec<(EscrowId, OwnerId, Escrowed)>, Refusal> {
        self.ask(move |view| view.open_escrows(after, at_most)).await
    }

    pub(super) async fn totals(&self) -> Result<Totals, Refusal> {
        self.ask(|view| view.totals()).await
    }

    pub(super) fn health(&self) -> Health {
        let holdfast_engine::Health { failed, durable, end, applied, read_model_failed, waiting } =
            self.engine.health();
        let (engine, end, database) = ("embedded", Some(end), None);
        Health { engine, failed, durable, end, applied, read_model_failed, waiting, database }
    }

    pub(super) const fn recovered(&self) -> Report {
        self.report
    }
}

/// Questions about entries.
impl Embedded {
    /// Waits until the read model has applied entry `through`.
    async fn caught_up(&self, through: u64) -> Result<(), NoAnswer> {
        let asked = Instant::now();
        loop {
            let health = self.engine.health();
            if let Some(reason) = health.read_model_failed {
                return Err(NoAnswer::Failed(reason));
            }
            if health.applied >= through {
                return Ok(());
            }
            if asked.elapsed() > CATCH_UP_MAX {
                return Err(NoAnswer::Behind { behind: through - health.applied });
            }
            self.engine.hurry(READ_MODEL);
            tokio::time::sleep(CATCH_UP_STEP).await;
        }
    }

    /// Looks something up in the read model.
    async fn look_up<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Lookup) -> Result<T, QueryError> + Send + 'static,
    ) -> Result<T, NoAnswer> {
        let data = self.disk.root().to_owned();
        blocking(move || Ok(look(&Lookup::open(&data)?)?)).await
    }

    /// The end of the history of an account as it stands, and the last durable entry, both applied by the read model.
    async fn history_end(&self, account: Account) -> Result<(Option<HistoryEnd>, u64), NoAnswer> {
        let end = self.ask(move |view| view.history_end(&account)).await?;
        let durable = self.engine.health().durable;
        self.caught_up(durable).await?;
        Ok((end, durable))
    }

    pub(super) async fn history(
        &self,
        account: Account,
        before: Option<u64>,
        at_most: usize,
    ) -> Result<HistoryPage, NoAnswer> {
        let (end, _) = self.history_end(account).await?;
        let last = last_of(account, end)?;
        let find = move |lookup: &Lookup| {
            let from = newest_before(lookup, &account, last, before)?;
            lookup.history(&account, from, at_most)
        };
        let rows = self.look_up(find).await?;
        let next = rows.last().filter(|row| row.previous != 0).map(|row| row.offset);
        Ok(HistoryPage { entries: rows.into_iter().map(HistoryEntry::from).collect(), next })
    }

    /// The last entry of an account's history, if there is a moment such as is asked for.
    async fn last_as_of(&self, account: Account, as_of: AsOf) -> Result<u64, NoAnswer> {
        let (end, durable) = self.history_end(account).await?;
        match as_of {
            AsOf::Offset(offset) if offset > durable => Err(NoAnswer::NoSuchEntry { offset, last: durable }),
            AsOf::Offset(_) | AsOf::Time(_) => last_of(account, end),
        }
    }

    pub(super) async fn account_as_of(&self, account: Account, as_of: AsOf) -> Result<Change, NoAnswer> {
        let last = self.last_as_of(account, as_of).await?;
        self.look_up(move |lookup| lookup.balance_as_of(&account, last, as_of)).await
    }

    pub(super) async fn owner_as_of(&self, owner: OwnerId, as_of: AsOf) -> Result<OwnerAsOf, NoAnswer> {
        let last = self.last_as_of(Account::Available(owner), as_of).await?;
        let find = move |lookup: &Lookup| {
            let of = |account| lookup.balance_as_of(&account, last, as_of);
            Ok(OwnerAsOf { available: of(Account::Available(owner))?, held: of(Account::Held(owner))? })
        };
        self.look_up(find).await
    }

    pub(super) async fn entry(&self, offset: u64) -> Result<Entry, NoAnswer> {
        // A look is answered when all before it is durable.
        let (last, end) = self.ask(|_| ()).await.map(|()| {
            let health = self.engine.health();
            (health.durable, health.end)
        })?;
        if offset == 0 || offset > last {
            return Err(NoAnswer::NoSuchEntry { offset, last });
        }
        let disk = self.disk.clone();
        blocking(move || {
            let (record, location, hash) = JournalFiles::open(&disk, Some(end))?.entry(offset)?;
            Ok(Entry::from(record).within(Frame { location, hash }))
        })
        .await
    }

    pub(super) async fn tail(&self, after: u64) -> Result<Vec<TailRow>, NoAnswer> {
        self.look_up(move |lookup| lookup.tail(after, TAIL)).await
    }

    pub(super) async fn overview(&self) -> Result<Overview, NoAnswer> {
        let look = self.ask(|view| (view.now(), view.totals(), view.standing(ROWS), view.open_charges(None, HOLDS)));
        let (at, totals, standing, open) = look.await?;
        let glance = Glance { at, totals, standing: standing.map_err(Refusal::from)?, open };
        self.caught_up(self.engine.health().durable).await?;
        self.look_up(move |lookup| glance.with_entries(lookup)).await
    }
}

impl Glance {
    fn with_entries(self, lookup: &Lookup) -> Result<Overview, QueryError> {
        let Self { at, totals, standing, open } = self;
        let window = lookup.window(WINDOW_ENTRIES)?;
        let ids: Vec<ChargeId> = open.iter().map(|(id, ..)| *id).collect();
        let made = lookup.reserved_at(&ids, window)?;
        let open = open.into_iter();
        let holds = open.map(|(id, owner, hold)| OpenHold { id, owner, hold, reserved_at: made.get(&id).copied() });
        let tail = lookup.tail(0, TAIL)?;
        Ok(Overview {
            at,
            through: tail.last().map_or(0, |row| row.offset),
            totals,
            standing,
            holds: holds.collect(),
            by_day: lookup.revenue_by_day(at.day(), DAYS)?,
            by_owner: lookup.revenue_by_owner(window, ROWS)?,
            since: window.began.filter(|_| !window.is_whole),
            tail,
        })
    }
}

/// Runs what waits for a disk where it holds nobody up.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, NoAnswer> + Send + 'static,
) -> Result<T, NoAnswer> {
    // It fails only if the work panicked or the program is ending: nothing was changed by it.
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(NoAnswer::Refused(Refusal::Stopping)))
}

/// The last entry of an account's history.
fn last_of(account: Account, end: Option<HistoryEnd>) -> Result<u64, NoAnswer> {
    match account {
        Account::Available(_) | Account::Held(_) | Account::Payee(_) => Ok(end.ok_or(Refusal::UnknownAccount)?.last),
        // The look-up says which of these have no history of their own.
        Account::Escrow(_) | Account::Revenue | Account::Treasury => Ok(0),
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

impl From<HistoryRow> for HistoryEntry {
    fn from(row: HistoryRow) -> Self {
        let HistoryRow { offset, at, kind, correlation, state, change, held_change, balance, held, previous: _ } = row;
        Self { offset, at, kind, correlation, state, change, held_change, balance, held }
    }
}

impl From<QueryError> for NoAnswer {
    fn from(error: QueryError) -> Self {
        match error {
            QueryError::NoHistory(account) => Self::NoHistory(account),
            QueryError::Unreadable(error) => Self::Unreadable(error.to_string()),
        }
    }
}
