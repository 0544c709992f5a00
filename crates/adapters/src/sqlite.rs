//! What the files of SQLite have in common.

use std::io::{self, ErrorKind};
use std::path::Path;

/// Deletes a file of SQLite with those that it keeps beside it.
pub(crate) fn remove(file: &Path) -> io::Result<()> {
    for suffix in ["", "-wal", "-shm"] {
        let mut file = file.as_os_str().to_owned();
        file.push(suffix);
        match std::fs::remove_file(file) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}
