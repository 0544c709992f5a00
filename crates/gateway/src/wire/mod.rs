//! What goes over the wire: one JSON object in, one out. These are not the domain's types, and turn into them only here.
//!
//! # Invariants
//! - Amounts and prices are canonical decimal strings, never JSON numbers; moments are RFC 3339 in UTC. About escrows whole
//!   numbers are taken as well, because the queue's guide sends them.
//! - Unknown, missing and doubled fields are refused at the door, with a stable code, before anything is decided.

pub(crate) mod answer;
pub(crate) mod command;
pub(crate) mod entry;
pub(crate) mod error;
pub(crate) mod escrows;
pub(crate) mod ids;
pub(crate) mod keys;
pub(crate) mod limits;
pub(crate) mod object;
pub(crate) mod obligations;
pub(crate) mod parse;
pub(crate) mod question;
pub(crate) mod queue;
pub(crate) mod step;
pub(crate) mod time;

use holdfast_domain::{Id, IdKind};
use serde::{Serialize, Serializer};

/// An id as its own text, without a formatter: an answer has several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Named<I>(pub(crate) I);

impl<K: IdKind> Serialize for Named<Id<K>> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.as_str())
    }
}

/// Anything that travels as its own text: amounts, changes, ids, states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shown<T>(pub(crate) T);

impl<T: std::fmt::Display> Serialize for Shown<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}
