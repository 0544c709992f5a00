//! What a store has to tell whoever runs it: once each, as one line of JSON.

use super::line;
use holdfast_domain::ObligationId;
use holdfast_domain::delivery::Obligation;
use serde_json::json;
use std::io::Write;

/// Something that an operator should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// The durable store does not answer; from now on obligations are kept in memory, and in the log.
    Degraded {
        /// What it said last.
        why: String,
    },
    /// This one is in memory alone. Its line brings it back by `holdfast obligations import`.
    NotStored(Obligation),
    /// The durable store answers again, and has what was kept in memory meanwhile.
    Recovered {
        /// How many were moved into it.
        moved: usize,
    },
    /// Members of the schedule without a record were taken out: somebody has deleted records from the store by hand.
    Orphans {
        /// Which.
        ids: Vec<String>,
    },
    /// A record that cannot be read. It stays where it is, as a dead letter.
    Unreadable {
        /// Which.
        id: ObligationId,
    },
}

impl Notice {
    /// The notice as one line of JSON.
    #[must_use]
    pub fn line(&self) -> String {
        match self {
            Self::NotStored(obligation) => line::encode_line(obligation),
            Self::Degraded { why } => {
                json!({"level": "ERROR", "event": "obligation_store_degraded", "why": why}).to_string()
            }
            Self::Recovered { moved } => {
                json!({"level": "WARN", "event": "obligation_store_recovered", "moved": moved}).to_string()
            }
            Self::Orphans { ids } => {
                json!({"level": "ERROR", "event": "obligation_orphans_removed", "count": ids.len(), "ids": ids})
                    .to_string()
            }
            Self::Unreadable { id } => {
                json!({"level": "ERROR", "event": "obligation_unreadable", "reservation_id": id.as_str()}).to_string()
            }
        }
    }
}

/// Where notices go.
pub trait Notices: Send + Sync + 'static {
    /// Passes one on. It must not wait.
    fn tell(&self, notice: &Notice);
}

/// To the standard error, a line each.
#[derive(Debug, Clone, Copy)]
pub struct StandardError;

impl Notices for StandardError {
    fn tell(&self, notice: &Notice) {
        // There is nobody left to tell if this fails.
        let _ = writeln!(std::io::stderr().lock(), "{}", notice.line());
    }
}
