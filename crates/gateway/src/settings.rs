//! Settings from the environment. A bad one names itself and what is allowed.

use crate::failure::Failure;
use holdfast_engine::Policy;
use holdfast_journal::SEGMENT_BYTES;
use std::env;
use std::ops::RangeInclusive;

/// How a data directory is laid out and kept up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Settings {
    /// The size of a segment file of the journal.
    pub(crate) segment_bytes: u32,
    /// A snapshot after so many entries.
    pub(crate) snapshot_entries: u64,
    /// Keys that collect in memory before they are written out; the engine's own number if not said.
    pub(crate) keys_in_memory: Option<usize>,
}

impl Settings {
    /// The usual ones, changed by `HOLDFAST_SEGMENT_BYTES`, `HOLDFAST_SNAPSHOT_ENTRIES` and `HOLDFAST_KEYS_IN_MEMORY`.
    pub(crate) fn from_environment() -> Result<Self, Failure> {
        let segment_bytes = number("HOLDFAST_SEGMENT_BYTES", 65_536..=1 << 30)?;
        let snapshot_entries = number("HOLDFAST_SNAPSHOT_ENTRIES", 1..=1 << 62)?;
        let keys_in_memory = number("HOLDFAST_KEYS_IN_MEMORY", 1..=1 << 32)?;
        Ok(Self {
            segment_bytes: segment_bytes.and_then(|bytes| u32::try_from(bytes).ok()).unwrap_or(SEGMENT_BYTES),
            snapshot_entries: snapshot_entries.unwrap_or(Policy::STANDARD.snapshot_entries),
            keys_in_memory: keys_in_memory.and_then(|keys| usize::try_from(keys).ok()),
        })
    }
}

/// The number in a variable of the environment; `None` if it is not set.
pub(crate) fn number(name: &'static str, allowed: RangeInclusive<u64>) -> Result<Option<u64>, Failure> {
    let Some(value) = env::var_os(name) else { return Ok(None) };
    let number = value.to_str().and_then(|text| text.parse().ok()).filter(|number| allowed.contains(number));
    number.map(Some).ok_or_else(|| Failure::Setting {
        name,
        value: value.to_string_lossy().into_owned(),
        allowed: format!("a whole number from {} to {}", allowed.start(), allowed.end()),
    })
}
