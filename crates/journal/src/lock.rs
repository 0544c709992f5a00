//! One process per data directory: an advisory lock that names its holder.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::Path;

/// The lock, held until it is dropped or the process ends, however it ends.
#[derive(Debug)]
pub struct DirLock {
    _file: File,
}

/// Why the lock was not had.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process has it.
    #[error("the data directory is in use by process {pid}; stop it first, or use another --data directory")]
    Held {
        /// Which process, as it wrote itself down.
        pid: String,
    },
    /// The lock file could not be used.
    #[error("the lock file cannot be used")]
    Io(#[from] io::Error),
}

impl DirLock {
    /// Takes the lock of `directory`, or says who has it.
    pub fn take(directory: &Path) -> Result<Self, LockError> {
        let path = directory.join("lock");
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        match file.try_lock() {
            Ok(()) => {
                file.set_len(0)?;
                write!(file, "{}", std::process::id())?;
                Ok(Self { _file: file })
            }
            Err(TryLockError::WouldBlock) => {
                let mut pid = String::new();
                file.read_to_string(&mut pid)?;
                Err(LockError::Held { pid })
            }
            Err(TryLockError::Error(error)) => Err(LockError::Io(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_taker_is_told_the_holders_pid() {
        let directory = tempfile::tempdir().unwrap();
        let lock = DirLock::take(directory.path()).unwrap();
        match DirLock::take(directory.path()) {
            Err(LockError::Held { pid }) => assert_eq!(pid, std::process::id().to_string()),
            other => panic!("{other:?}"),
        }
        drop(lock);
        DirLock::take(directory.path()).unwrap();
    }
}
