//! The shell around the rules: one writer over the journal, what it keeps in memory and on disk, and what follows its tail.
//!
//! A request is decided by [`Ledger`] against the book, written into a batch, made durable by the journal, and only then
//! answered. [`Engine`] runs that with threads; [`recovery`] builds it from the disk; projections follow the tail.
#![deny(clippy::float_arithmetic)]

mod alone;
mod archive;
mod book;
mod clock;
mod codec;
pub mod dispatcher;
mod engine;
mod error;
mod expiry;
mod keys;
mod ledger;
mod lent;
mod life;
mod lone;
mod margin;
pub mod moving;
pub mod obligations;
mod open;
pub mod part;
mod projection;
mod query;
pub mod queue;
mod record;
mod records;
pub mod recovery;
mod replay;
mod request;
mod snapshot;
mod submitted;
mod sync;
mod table;
mod turns;
mod upkeep;
mod worker;

pub use alone::Frozen;
pub use archive::OnDisk;
pub use clock::Clock;
pub use engine::{Begun, Engine, Followed, Health, Policy, Prepared};
pub use error::{Action, Refusal};
pub use ledger::{Ledger, Limits, OPEN_HOLDS_MAX};
pub use margin::{Margin, Noted, Notes};
pub use projection::{Applied, Located, Projection, ProjectionFailed, READ_MODEL};
pub use query::{Balance, HistoryEnd, Standing, Totals, View};
pub use record::{Link, OwnerLink, Record, cause_of, cause_tag};
pub use replay::Corrupt;
pub use request::{Answer, BATCH_MAX, Command, Fingerprint, LifeState, Outcome, Receipt, Request, TTL_DEFAULT};
pub use upkeep::{Tail, step_aside};
