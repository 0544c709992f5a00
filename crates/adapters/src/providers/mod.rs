//! Model providers: who answers a call, over which wire, in which dialect, and what it used.
//!
//! A call comes in the caller's [`Dialect`] and is answered in it. A model's name resolves to a [`Pool`] of targets; the
//! pool asks one after the other until one answers. Where a provider speaks the caller's dialect, its bytes are passed
//! through; else they are translated, and what cannot be translated is refused. Nothing here knows of money: the usage
//! that a provider reports comes back beside the answer, as disjoint counts.

mod body;
pub mod breaker;
mod call;
pub mod choice;
mod clients;
pub mod config;
mod decode;
pub mod echo;
mod error;
mod gate;
mod http;
mod litellm;
mod pattern;
mod plain;
mod pool;
mod reader;
mod registry;
mod reply;
mod sse;
mod translate;
mod usage;
mod way;

pub use body::{Body, InvalidBody};
pub use call::{Call, Delivery, Dialect, Headers, Pieces, Secret};
pub use config::{Config, ConfigError};
pub use error::{ProviderError, Stage};
pub use litellm::{Imported, from_litellm};
pub use pool::{Answered, Attempt, Pool};
pub use registry::{Model, Providers};
pub use reply::{Piece, PieceStream, Reply, Whole};
pub use usage::{Reported, TOKENS_MAX, Tokens};
