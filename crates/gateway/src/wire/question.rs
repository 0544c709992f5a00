//! The questions on the wire. They change nothing.

use super::error::WireError;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

/// Rows in a page, unless the caller says.
const LIMIT_DEFAULT: usize = 100;
/// The most rows in a page.
const LIMIT_MAX: usize = 1_000;

/// Everything that can be asked.
#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum QuestionBody {
    Balance { account: String },
    BalanceAsOf { account: String, offset: Option<u64>, at: Option<String> },
    Accounts { after: Option<String>, limit: Option<u64> },
    History { account: String, before: Option<u64>, limit: Option<u64> },
    Reservation { id: String },
    Reservations { account: Option<String>, limit: Option<u64> },
    Escrow { escrow_id: String },
    Entry { offset: u64 },
    Totals {},
    Health {},
}

/// Many commands at once. Each stands for itself: one that is refused does not stop the others.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BatchBody<'a> {
    #[serde(rename = "op")]
    _op: IgnoredAny,
    #[serde(borrow)]
    pub(crate) requests: Vec<&'a RawValue>,
}

/// The number of rows that a page may have.
pub(crate) fn page(limit: Option<u64>) -> Result<usize, WireError> {
    let refused = || WireError::Malformed(format!("`limit` is from 1 to {LIMIT_MAX}"));
    let Some(limit) = limit else { return Ok(LIMIT_DEFAULT) };
    usize::try_from(limit).ok().filter(|limit| (1..=LIMIT_MAX).contains(limit)).ok_or_else(refused)
}
