//! Questions over the whole of the books: sums, lists, histories. Answered by what is committed when they are asked.

use super::PostgresLedger;
use super::entry::life_name;
use super::session::{Question, Values};
use holdfast_domain::charge::{Charge, Hold};
use holdfast_domain::escrow::{Escrow, Escrowed};
use holdfast_domain::{Account, Change, ChargeId, CreditUnit, Day, EscrowId, OwnerId, Span, Timestamp};
use holdfast_engine::part::{LifeId, Wanted};
use holdfast_engine::{Balance, Record, Refusal, Standing, Totals};
use tokio_postgres::Row;

/// The newest moment that the database can be asked about.
const LAST_MOMENT: i64 = i64::MAX;

const OWNER: &str = "owner, available, held, open_holds, last_offset, entries";

/// A walk along the chain of an owner's entries, newest first, from the first place that is known to be late enough.
const OF_OWNER: &str = "WITH RECURSIVE walk (entry_offset, at, body, previous) AS ( \
          SELECT newest.entry_offset, newest.at, newest.body, newest.previous \
            FROM (SELECT coalesce((SELECT entry_offset FROM holdfast.ledger_milestones \
                                    WHERE owner = $1 AND entry_offset >= $2 ORDER BY entry_offset LIMIT 1), \
                                  (SELECT entry_offset FROM holdfast.ledger_milestones \
                                    WHERE owner = $1 AND at > $3 ORDER BY entry_offset LIMIT 1), \
                                  (SELECT last_offset FROM holdfast.ledger_owners WHERE owner = $1))) AS known (entry_offset) \
            JOIN holdfast.ledger_entries AS newest USING (entry_offset) \
          UNION ALL \
          SELECT entry.entry_offset, entry.at, entry.body, entry.previous \
            FROM walk JOIN holdfast.ledger_entries AS entry ON entry.entry_offset = walk.previous WHERE walk.previous > 0) \
    SELECT body FROM walk WHERE entry_offset <= $2 AND at <= $3 LIMIT $4";
const OF_PAYEE: &str = "SELECT body FROM holdfast.ledger_entries WHERE payee = $1 AND entry_offset <= $2 AND at <= $3 \
                        ORDER BY entry_offset DESC LIMIT $4";

/// Where in the order of entries a question is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// This entry and those before it.
    Offset(u64),
    /// The entries of this moment and before.
    Moment(Timestamp),
}

impl Until {
    fn bounds(self) -> (i64, i64) {
        match self {
            Self::Offset(offset) => (i64::try_from(offset).unwrap_or(i64::MAX), LAST_MOMENT),
            Self::Moment(at) => (i64::MAX, i64::try_from(at.millis()).unwrap_or(LAST_MOMENT)),
        }
    }
}

impl PostgresLedger {
    async fn rows(&self, sql: &str, values: Values<'_>) -> Result<Vec<Row>, Refusal> {
        self.read(Question::Words(sql), values).await
    }

    async fn row(&self, sql: &str, values: Values<'_>) -> Result<Row, Refusal> {
        self.rows(sql, values).await?.into_iter().next().ok_or_else(unreadable)
    }

    /// The sums over the whole book.
    pub async fn totals(&self) -> Result<Totals, Refusal> {
        let sql = "SELECT (SELECT count(*) FROM holdfast.ledger_owners), \
                          (SELECT count(*) FROM holdfast.ledger_payees), \
                          (SELECT count(*) FROM holdfast.ledger_lives WHERE expires_at IS NOT NULL), \
                          (SELECT count(*) FROM holdfast.ledger_lives WHERE expires_at IS NULL AND held > 0), \
                          sums.revenue, sums.treasury, (sums.kept + sums.earned)::text \
                     FROM (SELECT coalesce(sum(revenue), 0)::bigint AS revenue, \
                                  coalesce(sum(treasury), 0)::bigint AS treasury, \
                                  coalesce(sum(available + held + escrowed + revenue + treasury), 0) AS kept, \
                                  (SELECT coalesce(sum(balance), 0) FROM holdfast.ledger_payees) AS earned \
                             FROM holdfast.ledger_owners) AS sums";
        let row = self.row(sql, &[]).await?;
        Ok(Totals {
            owners: count(&row, 0)?,
            payees: count(&row, 1)?,
            open_charges: count(&row, 2)?,
            open_escrows: count(&row, 3)?,
            revenue: change(&row, 4)?,
            treasury: change(&row, 5)?,
            imbalance: text(&row, 6)?.parse().map_err(|_| unreadable())?,
        })
    }

    /// What all owners have together, and those who have most.
    pub async fn standing(&self, at_most: usize) -> Result<Standing, Refusal> {
        let sums =
            "SELECT coalesce(sum(available), 0)::bigint, coalesce(sum(held), 0)::bigint FROM holdfast.ledger_owners";
        let sums = self.row(sums, &[]).await?;
        let largest =
            format!("SELECT {OWNER} FROM holdfast.ledger_owners ORDER BY available + held DESC, owner LIMIT $1");
        let rows = self.rows(&largest, &[&limit(at_most)]).await?;
        let largest = rows.iter().map(owner).collect::<Result<_, _>>()?;
        Ok(Standing { available: amount(&sums, 0)?, held: amount(&sums, 1)?, largest })
    }

    /// Owners in the order of their names, after a given one.
    pub async fn owners(&self, after: Option<OwnerId>, at_most: usize) -> Result<Vec<(OwnerId, Balance)>, Refusal> {
        let sql = format!("SELECT {OWNER} FROM holdfast.ledger_owners WHERE owner > $1 ORDER BY owner LIMIT $2");
        let after = after.map(|after| after.to_string()).unwrap_or_default();
        self.rows(&sql, &[&after, &limit(at_most)]).await?.iter().map(owner).collect()
    }

    /// Open reservations and their owners, those that end first before the others.
    pub async fn open_charges(
        &self,
        of: Option<OwnerId>,
        at_most: usize,
    ) -> Result<Vec<(ChargeId, OwnerId, Hold)>, Refusal> {
        let sql = "SELECT substr(life, 3) FROM holdfast.ledger_lives \
                   WHERE expires_at IS NOT NULL AND ($1::text IS NULL OR owner = $1) ORDER BY expires_at, life LIMIT $2";
        let of = of.map(|owner| owner.to_string());
        let rows = self.rows(sql, &[&of, &limit(at_most)]).await?;
        let ids: Vec<ChargeId> =
            rows.iter().map(|row| text(row, 0)?.parse().map_err(|_| unreadable())).collect::<Result<_, _>>()?;
        let wanted = Wanted { charges: ids.clone(), ..Wanted::default() }.in_order();
        self.look(&wanted, |view| {
            let open = |id: ChargeId| match view.charge(id) {
                Ok(Some((Charge::Held(hold), owner))) => Some(Ok((id, owner, hold))),
                // It has ended in between.
                Ok(Some(_) | None) => None,
                Err(refusal) => Some(Err(refusal)),
            };
            ids.iter().filter_map(|id| open(*id)).collect()
        })
        .await?
    }

    /// Open escrows and their owners in the order of their names, after a given one.
    pub async fn open_escrows(
        &self,
        after: Option<EscrowId>,
        at_most: usize,
    ) -> Result<Vec<(EscrowId, OwnerId, Escrowed)>, Refusal> {
        let sql = "SELECT substr(life, 3) FROM holdfast.ledger_lives \
                   WHERE expires_at IS NULL AND held > 0 AND life > $1 ORDER BY life LIMIT $2";
        let after = after.map_or_else(|| "e:".to_owned(), |after| life_name(LifeId::Escrow(after)));
        let rows = self.rows(sql, &[&after, &limit(at_most)]).await?;
        let ids: Vec<EscrowId> =
            rows.iter().map(|row| text(row, 0)?.parse().map_err(|_| unreadable())).collect::<Result<_, _>>()?;
        let wanted = Wanted { escrows: ids.clone(), ..Wanted::default() }.in_order();
        self.look(&wanted, |view| {
            let open = |id: EscrowId| match view.escrow(id) {
                Ok(Some((Escrow::Held(escrowed), owner))) => Some(Ok((id, owner, escrowed))),
                // It has ended in between.
                Ok(Some(_) | None) => None,
                Err(refusal) => Some(Err(refusal)),
            };
            ids.iter().filter_map(|id| open(*id)).collect()
        })
        .await?
    }

    /// Entries of an owner's or a payee's history, newest first, up to a place in the order. `None` for accounts without one.
    pub async fn history(
        &self,
        account: &Account,
        until: Until,
        at_most: usize,
    ) -> Result<Option<Vec<Record>>, Refusal> {
        let (offset, at) = until.bounds();
        let at_most = limit(at_most);
        let rows = match account {
            Account::Available(owner) | Account::Held(owner) => {
                self.rows(OF_OWNER, &[&owner.to_string(), &offset, &at, &at_most]).await?
            }
            Account::Payee(payee) => self.rows(OF_PAYEE, &[&payee.to_string(), &offset, &at, &at_most]).await?,
            Account::Escrow(_) | Account::Revenue | Account::Treasury => return Ok(None),
        };
        rows.iter().map(record).collect::<Result<_, _>>().map(Some)
    }

    /// The balance of `system:revenue` or `treasury:usdc_received` at a place in the order. `None` for other accounts.
    pub async fn system_at(&self, account: &Account, until: Until) -> Result<Option<Change>, Refusal> {
        let column = match account {
            Account::Revenue => "revenue",
            Account::Treasury => "treasury",
            Account::Available(_) | Account::Held(_) | Account::Payee(_) | Account::Escrow(_) => return Ok(None),
        };
        let (offset, at) = until.bounds();
        let sql = format!(
            "SELECT coalesce(sum({column}), 0)::bigint FROM holdfast.ledger_entries WHERE entry_offset <= $1 AND at <= $2"
        );
        change(&self.row(&sql, &[&offset, &at]).await?, 0).map(Some)
    }

    /// The newest entries after entry `after`, at most so many, oldest first.
    pub async fn tail(&self, after: u64, at_most: usize) -> Result<Vec<Record>, Refusal> {
        let sql =
            "SELECT body FROM holdfast.ledger_entries WHERE entry_offset > $1 ORDER BY entry_offset DESC LIMIT $2";
        let after = i64::try_from(after).unwrap_or(i64::MAX);
        let rows = self.rows(sql, &[&after, &limit(at_most)]).await?;
        rows.iter().rev().map(record).collect()
    }

    /// One entry, and its link in its owner's chain.
    pub async fn entry(&self, offset: u64) -> Result<Option<(Record, Vec<u8>)>, Refusal> {
        let sql = "SELECT body, chain FROM holdfast.ledger_entries WHERE entry_offset = $1";
        let offset = i64::try_from(offset).unwrap_or(i64::MAX);
        let rows = self.rows(sql, &[&offset]).await?;
        let chain = |row: &Row| row.try_get::<_, Vec<u8>>(1).map_err(|_| unreadable());
        rows.first().map(|row| Ok((record(row)?, chain(row)?))).transpose()
    }

    /// The moment, by the database's clock.
    pub async fn now(&self) -> Result<Timestamp, Refusal> {
        let row = self.row("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint", &[]).await?;
        let now = row.try_get::<_, i64>(0).ok().and_then(|now| u64::try_from(now).ok());
        now.map(Timestamp::from_millis).ok_or_else(unreadable)
    }

    /// The newest entry's offset; 0 if there is none.
    pub async fn last(&self) -> Result<u64, Refusal> {
        let row = self.row("SELECT coalesce(max(entry_offset), 0) FROM holdfast.ledger_entries", &[]).await?;
        row.try_get::<_, i64>(0).ok().and_then(|last| u64::try_from(last).ok()).ok_or_else(unreadable)
    }

    /// What was earned on each of the `days` days up to `last`, oldest first.
    pub async fn revenue_by_day(&self, last: Day, days: u64) -> Result<Vec<(Day, Change)>, Refusal> {
        let first = last.number().saturating_sub(days.saturating_sub(1));
        let millis = Span::DAY.millis();
        let sql = "SELECT at / $1 AS day, sum(revenue)::bigint FROM holdfast.ledger_entries \
                   WHERE at >= $2 AND at < $3 GROUP BY 1";
        let moment = |day: u64| i64::try_from(day.saturating_mul(millis)).unwrap_or(LAST_MOMENT);
        let rows = self.rows(sql, &[&moment(1), &moment(first), &moment(last.number() + 1)]).await?;
        let mut earned: Vec<(Day, Change)> =
            (first..=last.number()).map(|day| (Day::from_number(day), Change::ZERO)).collect();
        for row in &rows {
            let day: i64 = row.try_get(0).map_err(|_| unreadable())?;
            let sum = change(row, 1)?;
            let place = usize::try_from(day.saturating_sub_unsigned(first)).ok();
            if let Some(slot) = place.and_then(|place| earned.get_mut(place)) {
                slot.1 = sum;
            }
        }
        Ok(earned)
    }

    /// The owners of whom most was earned since a moment, most first.
    pub async fn revenue_by_owner(&self, since: Timestamp, at_most: usize) -> Result<Vec<(String, Change)>, Refusal> {
        let sql = "SELECT owner, sum(revenue)::bigint AS earned FROM holdfast.ledger_entries \
                   WHERE at >= $1 AND revenue <> 0 GROUP BY owner ORDER BY earned DESC, owner LIMIT $2";
        let since = i64::try_from(since.millis()).unwrap_or(LAST_MOMENT);
        let rows = self.rows(sql, &[&since, &limit(at_most)]).await?;
        rows.iter().map(|row| Ok((text(row, 0)?.to_owned(), change(row, 1)?))).collect()
    }
}

fn unreadable() -> Refusal {
    Refusal::Unreadable("the database's rows are not understood".to_owned())
}

fn limit(at_most: usize) -> i64 {
    i64::try_from(at_most).unwrap_or(i64::MAX)
}

fn text(row: &Row, index: usize) -> Result<&str, Refusal> {
    row.try_get(index).map_err(|_| unreadable())
}

fn count(row: &Row, index: usize) -> Result<usize, Refusal> {
    let count: i64 = row.try_get(index).map_err(|_| unreadable())?;
    usize::try_from(count).map_err(|_| unreadable())
}

fn change(row: &Row, index: usize) -> Result<Change, Refusal> {
    row.try_get(index).map(Change::from_units).map_err(|_| unreadable())
}

fn amount(row: &Row, index: usize) -> Result<CreditUnit, Refusal> {
    Ok(change(row, index)?.amount()?)
}

fn record(row: &Row) -> Result<Record, Refusal> {
    let body: &[u8] = row.try_get(0).map_err(|_| unreadable())?;
    Record::decode(body).ok_or_else(unreadable)
}

fn owner(row: &Row) -> Result<(OwnerId, Balance), Refusal> {
    let number = |index| row.try_get::<_, i64>(index).ok().and_then(|number| u64::try_from(number).ok());
    let open_holds: i32 = row.try_get(3).map_err(|_| unreadable())?;
    let balance = Balance {
        available: amount(row, 1)?,
        held: amount(row, 2)?,
        open_holds: u32::try_from(open_holds).map_err(|_| unreadable())?,
        last: number(4).ok_or_else(unreadable)?,
        entries: number(5).ok_or_else(unreadable)?,
    };
    Ok((text(row, 0)?.parse().map_err(|_| unreadable())?, balance))
}
