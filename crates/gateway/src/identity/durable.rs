//! Small secret files that are there whole or not at all, also after a power cut, and that only their owner may read.

use super::IdentityError;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Makes a directory for its owner only, and its name durable.
pub(super) fn make_dir(dir: &Path) -> Result<(), IdentityError> {
    if dir.is_dir() {
        return Ok(());
    }
    let failed = || IdentityError::io(format!("make {}", dir.display()));
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed())?;
    dir.parent().map_or(Ok(()), sync_dir).map_err(failed())
}

/// Writes a file for its owner only: under another name first, synced, then given its name.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<(), IdentityError> {
    let failed = || IdentityError::io(format!("write {}", path.display()));
    let draft = path.with_extension("draft");
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft).map_err(failed())?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(failed())?;
    fs::rename(&draft, path).map_err(failed())?;
    path.parent().map_or(Ok(()), sync_dir).map_err(failed())
}

/// Reads a secret file, and refuses one that others may read too.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, IdentityError> {
    let failed = || IdentityError::io(format!("read {}", path.display()));
    let mode = fs::metadata(path).map_err(failed())?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(IdentityError::TooOpen(path.to_owned()));
    }
    fs::read(path).map_err(failed())
}

fn sync_dir(dir: &Path) -> std::io::Result<()> {
    // The parent of a relative path without a slash is the empty path.
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    File::open(dir)?.sync_all()
}
