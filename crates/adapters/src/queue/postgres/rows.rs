//! Rows of the database as items, and the other way round.

use holdfast_domain::queue::{Cause, End, Intake, Item, Stage, State, Verdict};
use holdfast_domain::{CreditUnit, Timestamp};
use holdfast_engine::queue::{Answered, QueueFailed};
use std::str::FromStr;
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

/// What [`Seen::read`] reads.
pub(super) const COLUMNS: &str = "id, user_id, payee, escrow, amount, feature, priority, metadata, queued_at, state, drop_at, \
     started_at, ended_at, cause, settled, refunded, token";

/// How many are listed at once at most.
const BATCH_MAX: usize = 10_000;

/// An item, and by whose call it was put or taken up.
pub(super) struct Seen {
    pub(super) item: Item,
    pub(super) token: String,
}

impl Seen {
    pub(super) fn read(row: &Row) -> Answered<Self> {
        let intake = Intake {
            id: parsed(row, 0)?,
            user: parsed(row, 1)?,
            payee: parsed(row, 2)?,
            escrow: parsed(row, 3)?,
            amount: amount(column(row, 4)?)?,
            feature: parsed(row, 5)?,
            priority: column(row, 6)?,
            metadata: column::<Option<String>>(row, 7)?.map(String::into_boxed_str),
        };
        let item = Item { intake, queued_at: moment(column(row, 8)?), stage: stage(row)? };
        Ok(Self { item, token: column(row, 16)? })
    }
}

fn stage(row: &Row) -> Answered<Stage> {
    let name: &str = column(row, 9)?;
    let state = State::ALL.into_iter().find(|state| state.name() == name).ok_or_else(|| strange("a state"))?;
    let (drop_at, started_at) = (maybe_moment(row, 10)?, maybe_moment(row, 11)?);
    let verdict = match state {
        State::Queued => return Ok(Stage::Queued { drop_at }),
        State::InProgress => {
            let started_at = started_at.ok_or_else(|| strange("when an item was taken up"))?;
            return Ok(Stage::InProgress { started_at });
        }
        State::Finished => Verdict::Finish,
        State::Abandoned => Verdict::Abandon { cause: cause(row)? },
        State::Partial => {
            let (settle, refund) = (amount(column(row, 14)?)?, amount(column(row, 15)?)?);
            Verdict::Partial { settle, refund, cause: cause(row)? }
        }
    };
    let ended_at = maybe_moment(row, 12)?.ok_or_else(|| strange("when an item ended"))?;
    Ok(Stage::Ended(End { verdict, started_at, ended_at }))
}

fn cause(row: &Row) -> Answered<Cause> {
    parsed(row, 13)
}

/// A verdict as columns.
pub(super) struct Ended {
    pub(super) state: &'static str,
    pub(super) cause: Option<&'static str>,
    pub(super) settled: Option<i64>,
    pub(super) refunded: Option<i64>,
}

impl Ended {
    pub(super) fn by(verdict: Verdict) -> Self {
        let (cause, settled, refunded) = match verdict {
            Verdict::Finish => (None, None, None),
            Verdict::Abandon { cause } => (Some(cause.name()), None, None),
            Verdict::Partial { settle, refund, cause } => {
                (Some(cause.name()), Some(settle.units().cast_signed()), Some(refund.units().cast_signed()))
            }
        };
        Self { state: verdict.state().name(), cause, settled, refunded }
    }
}

/// A moment as the database keeps it. One beyond its last number is its last: nobody will see either.
pub(super) fn millis(at: Timestamp) -> i64 {
    i64::try_from(at.millis()).unwrap_or(i64::MAX)
}

pub(super) const fn moment(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis.cast_unsigned())
}

fn maybe_moment(row: &Row, index: usize) -> Answered<Option<Timestamp>> {
    Ok(column::<Option<i64>>(row, index)?.map(moment))
}

fn amount(units: i64) -> Answered<CreditUnit> {
    CreditUnit::new(units.cast_unsigned()).map_err(|_| strange("an amount"))
}

/// A number that the functions take.
pub(super) fn bounded(limit: usize) -> i32 {
    i32::try_from(limit.min(BATCH_MAX)).unwrap_or(i32::MAX)
}

pub(super) fn column<'a, T: FromSql<'a>>(row: &'a Row, index: usize) -> Answered<T> {
    row.try_get(index).map_err(|_| strange("an answer"))
}

fn parsed<T: FromStr>(row: &Row, index: usize) -> Answered<T> {
    column::<&str>(row, index)?.parse().map_err(|_| strange("a name"))
}

pub(super) fn strange(what: &str) -> QueueFailed {
    QueueFailed::Unavailable(format!("postgres holds what was not written by us: {what} cannot be read"))
}
