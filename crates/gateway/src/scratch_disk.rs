//! A journal that is only read, with everything derived from it in a scratch directory: what a full check runs on.
//!
//! # Invariants
//! - Nothing below the data directory is created, written, renamed or removed.

use holdfast_journal::{Disk, DiskFile, LocalDisk, Location};
use std::fs::File;
use std::io;

const JOURNAL: &str = "journal";

/// The journal of one disk, everything else on another.
#[derive(Clone)]
pub(crate) struct ScratchDisk {
    journal: LocalDisk,
    scratch: LocalDisk,
    /// Where the journal ends for this reading: beyond it somebody is writing.
    end: Option<Location>,
}

/// A file of either.
pub(crate) enum ScratchFile {
    /// Of the journal: read up to a length, and never written.
    Journal { file: File, length: u64 },
    /// Of the scratch directory.
    Scratch(File),
}

impl ScratchDisk {
    /// The journal of `journal`, read up to `end` if somebody is writing.
    pub(crate) fn new(journal: &LocalDisk, scratch: LocalDisk, end: Option<Location>) -> Self {
        Self { journal: journal.clone(), scratch, end }
    }

    fn is_hidden(&self, segment: u32) -> bool {
        self.end.is_some_and(|end| segment > end.segment)
    }
}

/// The segment that a file of the journal is.
fn segment(name: &str) -> Option<u32> {
    name.strip_suffix(".seg")?.parse().ok()
}

fn in_journal(name: &str) -> Option<&str> {
    name.strip_prefix(JOURNAL)?.strip_prefix('/')
}

impl Disk for ScratchDisk {
    type File = ScratchFile;

    fn open(&self, name: &str) -> io::Result<ScratchFile> {
        let Some(of_journal) = in_journal(name) else { return self.scratch.open(name).map(ScratchFile::Scratch) };
        let file = File::open(self.journal.root().join(name))?;
        let whole = file.metadata()?.len();
        let length = match self.end {
            Some(end) if segment(of_journal) == Some(end.segment) => whole.min(u64::from(end.byte)),
            Some(_) | None => whole,
        };
        Ok(ScratchFile::Journal { file, length })
    }

    fn create(&self, name: &str) -> io::Result<ScratchFile> {
        if in_journal(name).is_some() {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        self.scratch.create(name).map(ScratchFile::Scratch)
    }

    fn list(&self, directory: &str) -> io::Result<Vec<String>> {
        if directory != JOURNAL {
            return self.scratch.list(directory);
        }
        let mut names = self.journal.list(directory)?;
        names.retain(|name| !segment(name).is_some_and(|segment| self.is_hidden(segment)));
        Ok(names)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.scratch.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.scratch.remove(name)
    }

    fn create_directory(&self, directory: &str) -> io::Result<()> {
        self.scratch.create_directory(directory)
    }

    fn sync_directory(&self, _directory: &str) -> io::Result<()> {
        // What is here is thrown away.
        Ok(())
    }
}

impl DiskFile for ScratchFile {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        match self {
            Self::Scratch(file) => DiskFile::read_at(file, buffer, position),
            Self::Journal { file, length } => {
                let room = usize::try_from(length.saturating_sub(position)).unwrap_or(usize::MAX);
                let wanted = buffer.len().min(room);
                DiskFile::read_at(file, buffer.get_mut(..wanted).unwrap_or_default(), position)
            }
        }
    }

    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        match self {
            Self::Scratch(file) => DiskFile::write_at(file, bytes, position),
            // A torn tail is cut by zeros; for this reading it is enough that nobody looks beyond the end.
            Self::Journal { .. } => Ok(()),
        }
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn length(&self) -> io::Result<u64> {
        match self {
            Self::Scratch(file) => DiskFile::length(file),
            Self::Journal { length, .. } => Ok(*length),
        }
    }
}
