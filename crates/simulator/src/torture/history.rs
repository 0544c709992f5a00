//! What was sent to one data directory and what came back: the record that everything is checked against.

use super::order::Order;
use serde_json::Value;
use std::time::Instant;

/// A request and what is known of it.
#[derive(Debug, Clone)]
pub(crate) struct Sent {
    pub(crate) order: Order,
    /// Before its first byte was written.
    pub(crate) sent_at: Instant,
    pub(crate) fate: Fate,
    /// Whether a later server has confirmed the answer.
    pub(crate) verified: bool,
}

/// What became of a request, as far as its sender knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fate {
    /// No answer, or one that says that it is not known.
    Unknown,
    /// Refused: nothing may have been done.
    Refused { code: String },
    /// Done, acknowledged, and so durable.
    Done { receipt: Receipt, at: Instant },
}

/// What was told of something done. Equal for every repetition of the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Receipt {
    pub(crate) offset: u64,
    /// Everything in the answer but who did it, as canonical JSON.
    pub(crate) body: String,
}

/// Whether this request did it or an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Applied,
    Replayed,
}

/// An answer of the server to one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    Done { outcome: Outcome, receipt: Receipt },
    Refused { code: String },
}

/// The code that says that the outcome is not known.
pub(crate) const JOURNAL_FAILED: &str = "SERVICE_JOURNAL_FAILED";

impl Answer {
    /// Reads an answer. Anything that is neither a receipt nor a refusal breaks the protocol.
    pub(crate) fn read(mut answer: Value) -> Result<Self, String> {
        Self::take(&mut answer).ok_or_else(|| format!("an answer is neither a receipt nor a refusal: {answer}"))
    }

    fn take(answer: &mut Value) -> Option<Self> {
        if !answer.get("ok")?.as_bool()? {
            let code = answer.get("error")?.get("code")?.as_str()?.to_owned();
            return Some(Self::Refused { code });
        }
        let offset = answer.get("offset")?.as_u64()?;
        let outcome = match answer.as_object_mut()?.remove("outcome")?.as_str()? {
            "applied" => Outcome::Applied,
            "replayed" => Outcome::Replayed,
            _ => return None,
        };
        Some(Self::Done { outcome, receipt: Receipt { offset, body: answer.to_string() } })
    }

    /// What the sender knows after this answer.
    pub(crate) fn fate(self) -> Fate {
        match self {
            Self::Done { receipt, .. } => Fate::Done { receipt, at: Instant::now() },
            Self::Refused { code } if code == JOURNAL_FAILED => Fate::Unknown,
            Self::Refused { code } => Fate::Refused { code },
        }
    }
}

/// Everything that was ever sent to one data directory.
#[derive(Default)]
pub(crate) struct History {
    pub(crate) sent: Vec<Sent>,
    /// The greatest offset in any answer, also to a query: the journal may never end before it again.
    pub(crate) seen: u64,
}

impl History {
    /// Those for which `wanted` holds, by their index.
    pub(crate) fn indices(&self, wanted: impl Fn(&Sent) -> bool) -> Vec<usize> {
        self.sent.iter().enumerate().filter(|(_, sent)| wanted(sent)).map(|(index, _)| index).collect()
    }

    /// The receipts in the journal's order.
    pub(crate) fn receipts(&self) -> Vec<(&Sent, &Receipt, Instant)> {
        let mut receipts: Vec<_> = self
            .sent
            .iter()
            .filter_map(|sent| match &sent.fate {
                Fate::Done { receipt, at } => Some((sent, receipt, *at)),
                Fate::Unknown | Fate::Refused { .. } => None,
            })
            .collect();
        receipts.sort_by_key(|(_, receipt, _)| receipt.offset);
        receipts
    }
}

impl Sent {
    pub(crate) fn new(order: Order) -> Self {
        Self { order, sent_at: Instant::now(), fate: Fate::Unknown, verified: false }
    }

    pub(crate) const fn is_done(&self) -> bool {
        matches!(self.fate, Fate::Done { .. })
    }

    pub(crate) const fn is_unknown(&self) -> bool {
        matches!(self.fate, Fate::Unknown)
    }
}
