//! The control socket's file: for its owner only, replaced when stale, removed at the end.

use crate::failure::Failure;
use rustix::fs::Mode;
use rustix::process::umask;
use std::fs;
use std::io;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// Where the server of a data directory listens.
pub(crate) fn path(data: &Path) -> PathBuf {
    data.join("holdfast.sock")
}

/// The socket's file, removed when this is dropped.
pub(super) struct Socket {
    path: PathBuf,
}

impl Socket {
    /// Binds the socket of a data directory whose lock the caller holds: a file that is there is a dead server's.
    pub(super) fn bind(data: &Path) -> Result<(Self, UnixListener), Failure> {
        let path = path(data);
        let failure = |error| Failure::Socket { path: path.clone(), error };
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failure(error)),
            Ok(()) | Err(_) => {}
        }
        // The file must never be there with more rights than it is to have.
        let usual = umask(Mode::from_raw_mode(0o177));
        let bound = UnixListener::bind(&path);
        umask(usual);
        let listener = bound.map_err(failure)?;
        listener.set_nonblocking(true).map_err(failure)?;
        Ok((Self { path }, listener))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn failure(&self, error: io::Error) -> Failure {
        Failure::Socket { path: self.path.clone(), error }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // A file that stays behind is replaced by the next start.
        let _removed = fs::remove_file(&self.path);
    }
}
