//! The journal's entries as `holdfast journal cat` prints them.

use super::amount::Micro;
use serde_json::Value;

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) offset: u64,
    pub(crate) kind: String,
    pub(crate) key: Option<String>,
    /// The charge or escrow that it is about.
    pub(crate) subject: Option<String>,
    pub(crate) postings: Vec<(String, Micro)>,
    /// The balances that it says it leaves.
    pub(crate) balances: Vec<(String, Micro)>,
}

impl Entry {
    /// Reads all lines.
    pub(crate) fn read_all(text: &str) -> Result<Vec<Self>, String> {
        text.lines()
            .map(|line| {
                Self::read(line).ok_or_else(|| format!("`journal cat` printed a line that is no entry: {line}"))
            })
            .collect()
    }

    fn read(line: &str) -> Option<Self> {
        let line: Value = serde_json::from_str(line).ok()?;
        let text = |name: &str| line.get(name).and_then(Value::as_str).map(str::to_owned);
        let posting = |one: &Value| Some((one.get("account")?.as_str()?.to_owned(), amount(one, "change_cu")?));
        let account = text("account")?;
        let mut balances = vec![
            (format!("user:{account}:available"), amount(&line, "available_cu")?),
            (format!("user:{account}:held"), amount(&line, "held_cu")?),
        ];
        let payee = text("payee").zip(amount(&line, "payee_available_cu"));
        balances.extend(payee.map(|(payee, balance)| (format!("payee:{payee}:available"), balance)));
        Some(Self {
            offset: line.get("offset")?.as_u64()?,
            kind: text("kind")?,
            key: text("key"),
            subject: text("correlation_id"),
            postings: line.get("postings")?.as_array()?.iter().map(posting).collect::<Option<_>>()?,
            balances,
        })
    }
}

/// The amount in a field.
pub(crate) fn amount(object: &Value, field: &str) -> Option<Micro> {
    Micro::read(object.get(field)?.as_str()?)
}
