//! What the obligations of a charge are called.

use holdfast_domain::{ChargeId, Id, IdKind, ObligationId};
use holdfast_journal::JournalId;

/// A charge's id, as that of its first obligation; and back. Both are plain ids.
pub(crate) fn same<A: IdKind, B: IdKind>(id: Id<A>) -> Id<B> {
    Id::from_bytes(id.as_bytes()).expect("what is an id of one kind is one of another")
}

/// The id of what a late result added: the same whenever the journal is read, and nobody else's, as nobody knows the
/// journal's id beforehand.
pub(crate) fn late_id(journal: JournalId, charge: ChargeId, offset: u64) -> ObligationId {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&journal.0).update(charge.as_bytes()).update(&offset.to_le_bytes());
    let hash = hasher.finalize().to_hex();
    format!("late_{}", &hash.as_str()[..32]).parse().expect("a short plain id")
}
