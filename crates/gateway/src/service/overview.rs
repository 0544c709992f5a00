//! The books at a glance, for an operator: sums, the largest balances, open holds, what was earned, the newest entries.
//!
//! # Invariants
//! - Every part is bounded: so many rows, looked for in so many entries, whatever the size of the books.

use super::Service;
use super::query::blocking;
use crate::wire::error::Problem;
use holdfast_adapters::read_model::{Lookup, TailRow};
use holdfast_domain::charge::Hold;
use holdfast_domain::{Change, ChargeId, Day, OwnerId, Timestamp};
use holdfast_engine::{Refusal, Standing, Totals};

/// The rows of each table.
const ROWS: usize = 10;
const HOLDS: usize = 20;
/// The entries that are shown.
pub(crate) const TAIL: usize = 40;
/// The days of the chart.
const DAYS: u64 = 14;
/// What has no index is looked for in so many of the newest entries: some hundredths of a second.
const WINDOW_ENTRIES: u64 = 50_000;

/// The books at a glance.
pub(crate) struct Overview {
    pub(crate) at: Timestamp,
    /// The last entry that it knows.
    pub(crate) through: u64,
    pub(crate) totals: Totals,
    pub(crate) standing: Standing,
    /// Those that end first.
    pub(crate) holds: Vec<OpenHold>,
    pub(crate) by_day: Vec<(Day, Change)>,
    /// Of whom most was earned since `since`.
    pub(crate) by_owner: Vec<(String, Change)>,
    /// When the entries begin that `by_owner` was added up from; `None` if they are all there are.
    pub(crate) since: Option<Timestamp>,
    /// Oldest first.
    pub(crate) tail: Vec<TailRow>,
}

/// An open hold.
pub(crate) struct OpenHold {
    pub(crate) id: ChargeId,
    pub(crate) owner: OwnerId,
    pub(crate) hold: Hold,
    /// When it was made; `None` if that is longer ago than was looked.
    pub(crate) reserved_at: Option<Timestamp>,
}

impl Service {
    /// The books at a glance, with everything in it that was durable when it was asked for.
    pub(crate) async fn overview(&self) -> Result<Overview, Problem> {
        let look = self.ask(|view| (view.now(), view.totals(), view.standing(ROWS), view.open_charges(None, HOLDS)));
        let (at, totals, standing, open) = look.await?;
        let standing = standing.map_err(Refusal::from)?;
        self.caught_up(self.engine.health().durable).await?;
        let data = self.disk.root().to_owned();
        blocking(move || {
            let lookup = Lookup::open(&data)?;
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
        })
        .await
    }

    /// The newest entries after entry `after`, oldest first, as far as the read model has come.
    pub(crate) async fn tail(&self, after: u64) -> Result<Vec<TailRow>, Problem> {
        let data = self.disk.root().to_owned();
        blocking(move || Ok(Lookup::open(&data)?.tail(after, TAIL)?)).await
    }
}
