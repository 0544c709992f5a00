//! Bugs planted on purpose: an auditor that never fired proves nothing.
//!
//! Each is in the simulator's own layers, around the engine and never in it: in how the disk is used, in what the
//! driver passes on and tells, or in the files between two starts.

use crate::disk::{Fault, Lie, Odds};

/// A planted bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// Syncs do nothing.
    SkipSync,
    /// The sync comes before the write that it should cover.
    SyncBeforeWrite,
    /// A failed sync is tried again, and believed.
    RetrySync,
    /// Directories are not synced.
    SkipDirectorySync,
    /// A file gets its name before its content is synced.
    NameBeforeSync,
    /// Answers leave before the batch is on the disk.
    TellBeforeSync,
    /// Answers leave although the journal failed.
    TellAfterFailure,
    /// The journal's file is synced again after a failure.
    TouchAfterFailure,
    /// A balance is shown before what it shows is durable.
    LookBeforeDurable,
    /// A record is left out of a batch whose callers are told that it is there.
    DropRecord,
    /// A batch is written as two frames, and the machine fails between them.
    SplitBatch,
    /// Two records of a batch are written in the wrong order.
    SwapRecords,
    /// A request is done twice, the second time under a new key.
    ApplyTwice,
    /// A key that was used is taken for a new one.
    ForgetKey,
    /// The answer names another balance than the books.
    TellWrongBalance,
    /// Two callers get each other's answers.
    SwapAnswers,
    /// More is credited than was asked for.
    MintMore,
    /// More is charged than the work cost.
    ChargeMore,
    /// Holds are given back an hour before their time.
    ExpireEarly,
    /// Holds are never given back.
    NeverExpire,
    /// A snapshot is saved before its entries are durable.
    SnapshotAhead,
    /// Keys are written out before their entries are durable.
    KeysAhead,
    /// A snapshot is taken in the middle of a batch.
    SnapshotMidBatch,
    /// A process that was replaced goes on writing.
    SecondWriter,
    /// The last acknowledged frame is cut off between two starts.
    CutTail,
    /// The journal's files are put back from an old copy.
    Rollback,
    /// A record is rewritten, and every checksum and hash after it made right again.
    RewriteRecord,
    /// A snapshot has credits that no entry brought, and its hash made right again.
    ForgeSnapshot,
    /// The same, and nothing taken from anywhere for them.
    ForgeSnapshotOutright,
    /// A damaged segment is mended on the way in, and nobody is told.
    MendQuietly,
}

impl Planted {
    /// Every planted bug.
    pub const ALL: [Self; 30] = [
        Self::SkipSync,
        Self::SyncBeforeWrite,
        Self::RetrySync,
        Self::SkipDirectorySync,
        Self::NameBeforeSync,
        Self::TellBeforeSync,
        Self::TellAfterFailure,
        Self::TouchAfterFailure,
        Self::LookBeforeDurable,
        Self::DropRecord,
        Self::SplitBatch,
        Self::SwapRecords,
        Self::ApplyTwice,
        Self::ForgetKey,
        Self::TellWrongBalance,
        Self::SwapAnswers,
        Self::MintMore,
        Self::ChargeMore,
        Self::ExpireEarly,
        Self::NeverExpire,
        Self::SnapshotAhead,
        Self::KeysAhead,
        Self::SnapshotMidBatch,
        Self::SecondWriter,
        Self::CutTail,
        Self::Rollback,
        Self::RewriteRecord,
        Self::ForgeSnapshot,
        Self::ForgeSnapshotOutright,
        Self::MendQuietly,
    ];

    /// The misuse of the disk that it is, if it is one.
    pub(crate) const fn lie(self) -> Option<Lie> {
        match self {
            Self::SkipSync => Some(Lie::SkipsSync),
            Self::SyncBeforeWrite => Some(Lie::SyncsBeforeTheWrite),
            Self::RetrySync => Some(Lie::RetriesSync),
            Self::SkipDirectorySync => Some(Lie::SkipsDirectorySync),
            Self::NameBeforeSync => Some(Lie::NamesBeforeSync),
            Self::TellBeforeSync
            | Self::TellAfterFailure
            | Self::TouchAfterFailure
            | Self::LookBeforeDurable
            | Self::DropRecord
            | Self::SplitBatch
            | Self::SwapRecords
            | Self::ApplyTwice
            | Self::ForgetKey
            | Self::TellWrongBalance
            | Self::SwapAnswers
            | Self::MintMore
            | Self::ChargeMore
            | Self::ExpireEarly
            | Self::NeverExpire
            | Self::SnapshotAhead
            | Self::KeysAhead
            | Self::SnapshotMidBatch
            | Self::SecondWriter
            | Self::CutTail
            | Self::Rollback
            | Self::RewriteRecord
            | Self::ForgeSnapshot
            | Self::ForgeSnapshotOutright
            | Self::MendQuietly => None,
        }
    }

    /// The faults without which it cannot show.
    pub(crate) const fn odds(self, mut odds: Odds) -> Odds {
        if matches!(self, Self::RetrySync | Self::TellAfterFailure | Self::TouchAfterFailure) {
            odds.of[Fault::Sync as usize] = 40;
        }
        odds
    }
}
