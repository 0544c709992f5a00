//! Books that move: written to one file that a person can read, and taken over from it by another engine.
//!
//! ```text
//!  {"holdfast_export":1,"engine":"embedded","id":"…","entries":3}     where from
//!  {"entry":1,"at_ms":…,"kind":"credit_mint",…,"body":"…"}            each entry: for people, and as the engine wrote it
//!  {"owner":"alice","available_cu":"12.5",…}                          how everybody stands, by the books it comes from
//!  {"end":{"entries":3,…,"revenue_cu":"0","treasury_cu":"-12.5"}}     the sums, by the same books
//!  {"blake3":"…"}                                                     a hash over all lines before it
//! ```
//!
//! # Invariants
//! - The file is in an order in which time does not run backwards, and each owner's entries are in their own order.
//! - One content, one text: a line is what would be written for what it says, byte for byte, or the file is refused.
//! - Nothing is written to the target before the whole file was found good, and nothing of it is to be seen there before all
//!   of it is there and has been compared.

mod embedded;
mod failure;
mod file;
mod line;

pub(crate) use embedded::{differ, refused, same};
pub use embedded::{export, import};
pub use failure::MovingError;
pub use file::{Checked, Item, Lines, Writer, check};
pub use line::{Engine, Head};

use holdfast_engine::moving::Sums;

/// What is done with late results that the peer has not acknowledged, where they would go by other ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Late {
    /// The import is refused: whom it was told before would be told twice.
    Refuse,
    /// They go by other ids.
    Rename,
}

/// What was moved.
#[derive(Debug, Clone)]
pub struct Moved {
    /// Where from.
    pub head: Head,
    /// The sums over the books that it came from.
    pub sums: Sums,
    /// The sums over the books where it is now; for an export, those of the entries that were written.
    pub found: Sums,
    /// The hash of the file.
    pub blake3: String,
    /// What became of what the peer is owed; nothing for an export.
    pub owed: Owed,
}

/// What became of what the peer is owed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Owed {
    /// Not acknowledged, and owed in the target too.
    pub pending: u64,
    /// Of these, results that came late and go by another id in the target.
    pub renamed: u64,
    /// Charges that the peer could not be told of: they stay so in the books.
    pub given_up: u64,
}
