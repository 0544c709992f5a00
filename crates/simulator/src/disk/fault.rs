//! What can go wrong with the simulated disk, how often, and how often it did.

/// A way for one operation to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A read fails.
    Read,
    /// A write fails and writes nothing.
    Write,
    /// A write fails after a part of it.
    ShortWrite,
    /// A sync fails; what it should have covered is half lost, and the next sync says that all is well.
    Sync,
    /// A sync of a directory fails.
    DirectorySync,
    /// A file cannot be created, renamed or removed.
    Name,
    /// No room for a file to grow.
    NoSpace,
}

impl Fault {
    /// Every fault.
    pub const ALL: [Self; 7] =
        [Self::Read, Self::Write, Self::ShortWrite, Self::Sync, Self::DirectorySync, Self::Name, Self::NoSpace];

    /// Its name in a report.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read errors",
            Self::Write => "write errors",
            Self::ShortWrite => "short writes",
            Self::Sync => "sync errors",
            Self::DirectorySync => "directory sync errors",
            Self::Name => "name errors",
            Self::NoSpace => "no space",
        }
    }
}

/// How often each fault happens, out of 1,024 operations that it could hit, and the room that is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Odds {
    /// By the position of the fault in [`Fault::ALL`].
    pub of: [u16; Fault::ALL.len()],
    /// Bytes by which files may still grow.
    pub space: u64,
}

impl Odds {
    /// A disk without a fault.
    pub const NONE: Self = Self { of: [0; Fault::ALL.len()], space: u64::MAX };
}

/// A mistake in how the disk is used, planted to see whether the auditor notices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lie {
    /// Syncs do nothing.
    SkipsSync,
    /// A sync leaves out the newest write.
    SyncsBeforeTheWrite,
    /// A failed sync is tried again, and believed.
    RetriesSync,
    /// Syncs of directories do nothing.
    SkipsDirectorySync,
    /// Files that do not have their last name yet are not synced.
    NamesBeforeSync,
}
