//! Rows of the outbox as obligations, and the other way round.

use super::super::line;
use holdfast_domain::delivery::Obligation;
use holdfast_domain::{ObligationId, Timestamp};
use holdfast_engine::obligations::{Answered, Claimed, Lease, LeaseToken, Standing, StoreFailed, Stored};
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

/// How an obligation is told, in the outbox's words: other rails belong to somebody else.
pub(super) const RAIL: &str = "peer";

/// What was put, as columns.
#[derive(Default)]
pub(super) struct Columns {
    pub(super) charges: Vec<String>,
    pub(super) owners: Vec<String>,
    pub(super) ids: Vec<String>,
    pub(super) payloads: Vec<String>,
    pub(super) made_at_ms: Vec<i64>,
}

impl Columns {
    pub(super) fn of(obligations: &[Obligation]) -> Self {
        let mut columns = Self::default();
        for obligation in obligations {
            columns.charges.push(obligation.charge.to_string());
            columns.owners.push(obligation.owner.to_string());
            columns.ids.push(obligation.id.to_string());
            columns.payloads.push(line::encode(obligation));
            columns.made_at_ms.push(i64::try_from(obligation.created_at.millis()).unwrap_or(i64::MAX));
        }
        columns
    }
}

/// One row of a claim.
pub(super) struct Leased {
    pub(super) outbox_id: String,
    pub(super) token: LeaseToken,
    /// What is to be told; `None` if it cannot be read, and then its key.
    pub(super) claimed: Result<Claimed, String>,
    /// When it was due, in microseconds since the epoch by the server's clock.
    pub(super) due_us: i64,
}

impl Leased {
    /// Reads `outbox_id, idempotency_key, payload, attempt_count, lease_token, due`.
    pub(super) fn read(row: &Row) -> Answered<Self> {
        let (outbox_id, key): (String, String) = (column(row, 0)?, column(row, 1)?);
        let (payload, attempts): (String, i32) = (column(row, 2)?, column(row, 3)?);
        let token = token_of(&column::<String>(row, 4)?)?;
        let claimed = match line::decode(&payload) {
            Ok(obligation) if obligation.id.as_str() == key => {
                let lease = Lease { id: obligation.id, token };
                Ok(Claimed { obligation, lease, attempts: u32::try_from(attempts).unwrap_or(0) })
            }
            Ok(_) | Err(_) => Err(key),
        };
        Ok(Self { outbox_id, token, claimed, due_us: column(row, 5)? })
    }
}

/// Reads `idempotency_key, payload, attempt_count, error_text, standing, in_ms, claimed_by`; the id of what cannot be read.
pub(super) fn stored(row: &Row, now: Timestamp) -> Answered<Result<Stored, Option<ObligationId>>> {
    let (key, payload): (String, String) = (column(row, 0)?, column(row, 1)?);
    let (attempts, reason): (i32, Option<String>) = (column(row, 2)?, column(row, 3)?);
    let standing: String = column(row, 4)?;
    let at = || column::<Option<i64>>(row, 5).map(|in_ms| moment(now, in_ms.unwrap_or(0)));
    let standing = match standing.as_str() {
        "DEAD" => Standing::Dead,
        "DUE" => Standing::Due { at: at()? },
        _ => {
            let worker: Option<String> = column(row, 6)?;
            let worker = worker.and_then(|name| name.parse().ok()).ok_or_else(|| strange("a worker's name"))?;
            Standing::Leased { worker, until: at()? }
        }
    };
    Ok(match line::decode(&payload) {
        Ok(obligation) if obligation.id.as_str() == key => {
            let reason = reason.and_then(|reason| reason.parse().ok());
            Ok(Stored { obligation, attempts: u32::try_from(attempts).unwrap_or(0), reason, standing })
        }
        Ok(_) | Err(_) => Err(key.parse().ok()),
    })
}

/// A moment that is so far off, by our clock.
pub(super) fn moment(now: Timestamp, in_ms: i64) -> Timestamp {
    Timestamp::from_millis(now.millis().saturating_add_signed(in_ms))
}

pub(super) fn column<'a, T: FromSql<'a>>(row: &'a Row, index: usize) -> Answered<T> {
    row.try_get(index).map_err(|_| strange("an answer"))
}

/// The proof of a claim, as the database writes it.
pub(super) fn token_of(uuid: &str) -> Answered<LeaseToken> {
    let digits = uuid.replace('-', "");
    let token = u128::from_str_radix(&digits, 16).map_err(|_| strange("a token"))?;
    Ok(LeaseToken(token))
}

/// As the database reads it; it does not mind that there are no dashes.
pub(super) fn uuid_of(token: LeaseToken) -> String {
    format!("{:032x}", token.0)
}

pub(super) fn strange(what: &str) -> StoreFailed {
    StoreFailed(format!("postgres holds what was not written by us: {what} cannot be read"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_goes_there_and_back() {
        let token = token_of("0a1b2c3d-0000-4fff-8abc-0123456789ab").unwrap();
        assert_eq!(uuid_of(token), "0a1b2c3d00004fff8abc0123456789ab");
        assert_eq!(token_of(&uuid_of(token)), Ok(token));
        assert!(token_of("no token").is_err());
    }

    #[test]
    fn a_moment_is_as_far_off_on_our_clock_and_time_has_a_beginning() {
        let now = Timestamp::from_millis(1_000);
        assert_eq!(moment(now, 500), Timestamp::from_millis(1_500));
        assert_eq!(moment(now, -5_000), Timestamp::EPOCH);
        assert_eq!(moment(now, i64::MAX).millis(), 1_000 + i64::MAX.unsigned_abs());
    }
}
