//! The disk as a port: what the journal, the snapshots and the key index need of a file system.
//!
//! Names are relative to the data directory and use `/`. The real one is [`crate::LocalDisk`]; the simulator has one that
//! tears writes, loses what was not synced, flips bits and fails on command.

use std::io;

/// A directory tree of files.
pub trait Disk: Clone + Send + Sync + 'static {
    /// An open file.
    type File: DiskFile;

    /// Opens an existing file.
    fn open(&self, name: &str) -> io::Result<Self::File>;
    /// Creates a file, empty, replacing one of the same name.
    fn create(&self, name: &str) -> io::Result<Self::File>;
    /// The names of the files in a directory, in no order; none if there is no such directory.
    fn list(&self, directory: &str) -> io::Result<Vec<String>>;
    /// Gives a file another name in the same directory, replacing what had it.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes a directory if it is not there, durably.
    fn create_directory(&self, directory: &str) -> io::Result<()>;
    /// Makes the names in a directory durable.
    fn sync_directory(&self, directory: &str) -> io::Result<()>;
}

/// An open file, read and written at positions.
pub trait DiskFile: Send + Sync + 'static {
    /// Reads at most `buffer.len()` bytes at `position`; fewer only at the end of the file.
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize>;
    /// Writes all of `bytes` at `position`.
    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<()>;
    /// Makes everything written so far durable. A failure is final: see finding 3 of fsync semantics, where the second
    /// call on the same file succeeds and the data is gone.
    fn sync(&self) -> io::Result<()>;
    /// Writes all of `bytes` at `position` and makes them durable, and nothing else that was written. A failure is as final.
    fn write_durably_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        self.write_at(bytes, position)?;
        self.sync()
    }
    /// The length of the file.
    fn length(&self) -> io::Result<u64>;
}

/// Reads a whole file.
pub fn read_full<D: Disk>(disk: &D, name: &str) -> io::Result<Vec<u8>> {
    let file = disk.open(name)?;
    let mut bytes = vec![0; crate::bytes::narrow(file.length()?)];
    let read = file.read_at(&mut bytes, 0)?;
    bytes.truncate(read);
    Ok(bytes)
}

/// Writes a whole file so that it is seen under its name only when all of it is durable.
pub fn write_durably<D: Disk>(disk: &D, directory: &str, name: &str, content: &[u8]) -> io::Result<()> {
    let temporary = format!("{directory}/{name}.tmp");
    let file = disk.create(&temporary)?;
    file.write_at(content, 0)?;
    file.sync()?;
    disk.rename(&temporary, &format!("{directory}/{name}"))?;
    disk.sync_directory(directory)
}
