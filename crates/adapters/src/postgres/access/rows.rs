//! The rows of the access tables, and what they say.

use super::DatabaseError;
use holdfast_domain::{CreditUnit, Label, OwnerId, Reason, Timestamp};
use tokio_postgres::Row;

/// The columns of a [`StoredKey`], in order.
pub(super) const KEY: &str =
    "id, hash, hint, account, name, scopes, daily_limit, total_limit, made_at, expires_at, revoked_at";
/// The columns of a [`StoredLimit`], in order.
pub(super) const LIMIT: &str = "spender, per_day, in_total, within, set_at, version";

/// An API key as it is stored.
pub struct StoredKey {
    /// Its name.
    pub id: Label,
    /// What it is found by.
    pub hash: [u8; 32],
    /// Its first characters.
    pub hint: String,
    /// The account that it spends from.
    pub account: OwnerId,
    /// What it is called.
    pub name: Option<Reason>,
    /// What it is allowed, in words.
    pub scopes: String,
    /// The most on one day.
    pub daily_limit: Option<CreditUnit>,
    /// The most ever.
    pub total_limit: Option<CreditUnit>,
    /// When it was made.
    pub made_at: Timestamp,
    /// When it ends by itself.
    pub expires_at: Option<Timestamp>,
    /// When it was revoked.
    pub revoked_at: Option<Timestamp>,
}

/// A limit as it is stored.
pub struct StoredLimit {
    /// Whose, in words.
    pub spender: String,
    /// The most on one day.
    pub per_day: Option<CreditUnit>,
    /// The most ever.
    pub in_total: Option<CreditUnit>,
    /// What it belongs to.
    pub within: Option<Label>,
    /// When it was set.
    pub set_at: Timestamp,
    /// The version that set it.
    pub version: i64,
}

/// A signing key as it is stored. It is never shown, so it cannot be.
pub struct StoredSigningKey {
    /// Its name.
    pub kid: String,
    /// When it was made.
    pub made_at: Timestamp,
    /// PKCS#8, with the private key.
    pub document: Vec<u8>,
}

impl StoredKey {
    pub(super) fn read(row: &Row) -> Result<Self, DatabaseError> {
        let hash: Vec<u8> = row.try_get(1)?;
        Ok(Self {
            id: parsed(row, 0)?,
            hash: hash.try_into().map_err(|_| strange("hash"))?,
            hint: row.try_get(2)?,
            account: parsed(row, 3)?,
            name: maybe_parsed(row, 4)?,
            scopes: row.try_get(5)?,
            daily_limit: amount(row, 6)?,
            total_limit: amount(row, 7)?,
            made_at: moment(row.try_get(8)?),
            expires_at: row.try_get::<_, Option<i64>>(9)?.map(moment),
            revoked_at: row.try_get::<_, Option<i64>>(10)?.map(moment),
        })
    }
}

impl StoredLimit {
    pub(super) fn read(row: &Row) -> Result<Self, DatabaseError> {
        Ok(Self {
            spender: row.try_get(0)?,
            per_day: amount(row, 1)?,
            in_total: amount(row, 2)?,
            within: maybe_parsed(row, 3)?,
            set_at: moment(row.try_get(4)?),
            version: row.try_get(5)?,
        })
    }
}

impl StoredSigningKey {
    /// A key that stands beside the version in a row; `None` if none does.
    pub(super) fn read(row: &Row) -> Result<Option<Self>, DatabaseError> {
        let Some(kid) = row.try_get::<_, Option<String>>(1)? else { return Ok(None) };
        Ok(Some(Self { kid, made_at: moment(row.try_get(2)?), document: row.try_get(3)? }))
    }
}

/// An amount as it is stored.
pub(super) fn units(amount: CreditUnit) -> i64 {
    amount.units().cast_signed()
}

fn amount(row: &Row, column: usize) -> Result<Option<CreditUnit>, DatabaseError> {
    let units: Option<i64> = row.try_get(column)?;
    let amount = |units: i64| u64::try_from(units).ok().and_then(|units| CreditUnit::new(units).ok());
    units.map(|units| amount(units).ok_or_else(|| strange("amount"))).transpose()
}

fn moment(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis.cast_unsigned())
}

fn parsed<T: std::str::FromStr>(row: &Row, column: usize) -> Result<T, DatabaseError> {
    maybe_parsed(row, column)?.ok_or_else(|| strange("name"))
}

fn maybe_parsed<T: std::str::FromStr>(row: &Row, column: usize) -> Result<Option<T>, DatabaseError> {
    let text: Option<String> = row.try_get(column)?;
    text.map(|text| text.parse()).transpose().map_err(|_| strange("name"))
}

fn strange(what: &str) -> DatabaseError {
    DatabaseError::Failed(format!("a row of the access tables has a strange {what}"))
}
