//! The rules of Holdfast: money, accounts, balanced entries, and the lives of charges and escrows.
//!
//! Everything here is a pure function of its arguments. There is no I/O, no async, no clock, no randomness, no serde and no
//! floating point: time and ids come in as values, and what happened goes out as an event.
//!
//! # Invariants
//! - An entry cannot be built unless its postings sum to zero: [`Postings::balanced`] is the only constructor.
//! - A life changes only through its `apply`, which refuses an event that cannot follow.
//! - A charge is settled by the terms frozen when it was reserved: `decide` has no other rates to use.
#![deny(clippy::float_arithmetic, clippy::arithmetic_side_effects, clippy::as_conversions, clippy::indexing_slicing)]

mod account;
pub mod budget;
pub mod charge;
pub mod delivery;
mod entry;
pub mod escrow;
mod id;
mod money;
mod price;
pub mod queue;
mod time;

pub use account::{Account, NotAnAccount};
pub use budget::{Budget, Budgets};
pub use charge::Charge;
pub use entry::{Event, Guard, Kind, Mint, Place, Posting, Postings, Side, Unbalanced, ZeroMint, mint};
pub use escrow::Escrow;
pub use id::{
    BudgetId, ChargeId, EscrowId, ID_BYTES_MAX, Id, IdKind, ItemId, Key, Label, NotAText, NotAnId, ObligationId,
    OwnerId, PayeeId, Reason, TEXT_BYTES_MAX, Text,
};
pub use money::{AMOUNT_MAX, Change, CreditUnit, MicroUsd, MicroUsdc, Money, NotMoney, Overflow};
pub use price::{CreditsPerUsd, NotAPrice, NotARequestPrice, Price, Rates, RequestPrice, Rounding, Tokens, Usage};
pub use time::{Day, Span, Timestamp};
