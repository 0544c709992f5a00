//! The file of an export: written once and never over another, and read with every line checked.

use super::line::{self, Head, VERSION};
use super::{Moved, MovingError, Owed};
use holdfast_domain::Timestamp;
use holdfast_engine::Record;
use holdfast_engine::moving::{Stands, Sums};
use holdfast_engine::recovery::Progress;
use holdfast_journal::failpoint;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const BUFFER_BYTES: usize = 128 * 1_024;
/// No line that is written is longer: a record is 2 KiB at most.
const LINE_BYTES_MAX: u64 = 64 * 1_024;

/// Writes an export. Dropped before its end, it takes the file away again.
pub struct Writer {
    path: PathBuf,
    file: BufWriter<File>,
    hasher: blake3::Hasher,
    head: Head,
    sums: Sums,
    last_at: Timestamp,
    is_whole: bool,
}

impl Writer {
    /// Begins a file, for this user alone to read.
    ///
    /// # Errors
    /// If there is one already, or it cannot be written.
    pub fn create(path: &Path, head: Head) -> Result<Self, MovingError> {
        let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file = opened.map_err(|error| {
            let is_there = error.kind() == std::io::ErrorKind::AlreadyExists;
            if is_there { MovingError::Exists(path.to_owned()) } else { MovingError::io(path)(error) }
        })?;
        let file = BufWriter::with_capacity(BUFFER_BYTES, file);
        let (hasher, path) = (blake3::Hasher::new(), path.to_owned());
        let line = line::head(&head);
        let (sums, last_at) = (Sums::NOTHING, Timestamp::EPOCH);
        let mut writer = Self { path, file, hasher, head, sums, last_at, is_whole: false };
        writer.line(&line)?;
        Ok(writer)
    }

    /// Adds the next entry.
    ///
    /// # Errors
    /// If it cannot follow, or not be written.
    pub fn entry(&mut self, record: &Record) -> Result<(), MovingError> {
        let wrong = |what: &str| MovingError::Inconsistent(format!("entry {} {what}", record.offset));
        if record.at < self.last_at {
            return Err(wrong("is older than the one before it"));
        }
        self.last_at = record.at;
        self.sums.add(record).map_err(|_| wrong("takes a sum out of range"))?;
        failpoint::pass("export.mid_entries");
        self.line(&line::entry(record))
    }

    /// Adds how somebody stands.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn stands(&mut self, stands: &Stands) -> Result<(), MovingError> {
        self.line(&line::stands(stands))
    }

    /// Ends the file with the sums by the books that it comes from, which the entries must have come to.
    ///
    /// # Errors
    /// If they have not, or it cannot be written durably.
    pub fn finish(mut self, sums: Sums) -> Result<Moved, MovingError> {
        if self.sums != sums || sums.entries != self.head.entries {
            let (entries, books) = (line::end(&self.sums), line::end(&sums));
            return Err(MovingError::Inconsistent(format!("its entries come to {entries}, and its books say {books}")));
        }
        self.line(&line::end(&sums))?;
        let blake3 = self.hasher.finalize().to_hex().to_string();
        self.line(&line::hash(&blake3))?;
        let synced = self.file.flush().and_then(|()| self.file.get_ref().sync_all());
        synced.and_then(|()| sync_parent(&self.path)).map_err(MovingError::io(&self.path))?;
        self.is_whole = true;
        let owed = Owed::default();
        Ok(Moved { head: self.head.clone(), sums, found: self.sums, blake3, owed })
    }

    fn line(&mut self, text: &str) -> Result<(), MovingError> {
        self.hasher.update(text.as_bytes()).update(b"\n");
        let written = self.file.write_all(text.as_bytes()).and_then(|()| self.file.write_all(b"\n"));
        written.map_err(MovingError::io(&self.path))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.is_whole {
            // Left behind, it would only be in the way: an import refuses it.
            let _removed = std::fs::remove_file(&self.path);
        }
    }
}

/// Makes the name of a file durable.
pub(super) fn sync_parent(path: &Path) -> std::io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

/// What a file says after its first line.
#[derive(Debug, Clone)]
pub enum Item {
    /// An entry.
    Entry(Box<Record>),
    /// How somebody stands.
    Stands(Stands),
}

/// A file that was read to its end and found whole.
#[derive(Debug, Clone)]
pub struct Checked {
    path: PathBuf,
    /// Where from.
    pub head: Head,
    /// The sums.
    pub sums: Sums,
    /// The hash of the file.
    pub blake3: String,
}

/// Reads all of a file, and checks it: every line, their order, the number of entries, the sums, the hash.
///
/// # Errors
/// If it is not a whole export.
pub fn check(path: &Path, progress: &mut dyn FnMut(Progress)) -> Result<Checked, MovingError> {
    let mut lines = Lines::open(path)?;
    while let Some(item) = lines.next()? {
        if let Item::Entry(_) = item {
            progress(Progress { done: lines.sums.entries, total: lines.head.entries });
        }
    }
    let Lines { path, head, sums, blake3, .. } = lines;
    Ok(Checked { path, head, sums, blake3 })
}

impl Checked {
    /// Reads it again. What is read then is checked like the first time, and must be the same file.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn again(&self) -> Result<Lines, MovingError> {
        let mut lines = Lines::open(&self.path)?;
        lines.expected = Some(self.blake3.clone());
        Ok(lines)
    }
}

/// Where in a file a line may stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Section {
    Entries,
    Owners,
    Payees,
    Budgets,
    End,
}

/// The lines of a file, in order.
pub struct Lines {
    path: PathBuf,
    file: BufReader<File>,
    hasher: blake3::Hasher,
    buffer: Vec<u8>,
    number: u64,
    section: Section,
    last_at: Timestamp,
    /// Where from.
    pub head: Head,
    sums: Sums,
    blake3: String,
    expected: Option<String>,
}

impl Lines {
    fn open(path: &Path) -> Result<Self, MovingError> {
        let file = BufReader::with_capacity(BUFFER_BYTES, File::open(path).map_err(MovingError::io(path))?);
        let mut lines = Self {
            path: path.to_owned(),
            file,
            hasher: blake3::Hasher::new(),
            buffer: Vec::new(),
            number: 0,
            section: Section::Entries,
            last_at: Timestamp::EPOCH,
            head: Head::new(line::Engine::Embedded, [0; 16], 0),
            sums: Sums::NOTHING,
            blake3: String::new(),
            expected: None,
        };
        let text = lines.read()?;
        let head: Option<Head> = serde_json::from_str(&text).ok();
        let head = head.filter(|head| line::head(head) == text && head.id_bytes().is_some());
        lines.head = head.ok_or_else(|| lines.damaged("is not the first line of an export"))?;
        if lines.head.holdfast_export != VERSION {
            return Err(lines.damaged("says a version of the format that this program does not know"));
        }
        Ok(lines)
    }

    /// The next entry, or how the next one stands; `None` when all was read and found good.
    ///
    /// # Errors
    /// If a line is not what it should be, or the file not whole.
    #[expect(clippy::should_implement_trait, reason = "it can fail, and an iterator that has failed could be asked on")]
    pub fn next(&mut self) -> Result<Option<Item>, MovingError> {
        if self.section == Section::End {
            return Ok(None);
        }
        let text = self.read()?;
        let section = match text.split_once(':').map(|(name, _)| name) {
            Some("{\"entry\"") => Section::Entries,
            Some("{\"owner\"") => Section::Owners,
            Some("{\"payee\"") => Section::Payees,
            Some("{\"budget\"") => Section::Budgets,
            Some("{\"end\"") => Section::End,
            Some(_) | None => return Err(self.damaged("is not a line of an export")),
        };
        if section < self.section {
            return Err(self.damaged("stands at another place than it should"));
        }
        self.section = section;
        match section {
            Section::Entries => self.entry(&text).map(Some),
            Section::Owners | Section::Payees | Section::Budgets => {
                let stands = line::read_stands(&text).ok_or_else(|| self.damaged("is not understood"))?;
                Ok(Some(Item::Stands(stands)))
            }
            Section::End => self.end(&text).map(|()| None),
        }
    }

    fn entry(&mut self, text: &str) -> Result<Item, MovingError> {
        let record = line::read_entry(text).ok_or_else(|| self.damaged("is not an entry as it was written"))?;
        if record.at < self.last_at {
            return Err(self.damaged("is older than the entry before it"));
        }
        self.last_at = record.at;
        self.sums.add(&record).map_err(|_| self.damaged("takes a sum out of range"))?;
        Ok(Item::Entry(Box::new(record)))
    }

    fn end(&mut self, text: &str) -> Result<(), MovingError> {
        if self.sums.entries != self.head.entries || line::end(&self.sums) != text {
            return Err(self.damaged("says other sums than the entries come to"));
        }
        self.blake3 = self.hasher.finalize().to_hex().to_string();
        if self.read()? != line::hash(&self.blake3) {
            return Err(self.damaged("says another hash than the lines before it have"));
        }
        if self.expected.as_ref().is_some_and(|expected| *expected != self.blake3) {
            return Err(self.damaged("is another one than a moment ago: the file was changed"));
        }
        match self.file.fill_buf().map_err(MovingError::io(&self.path))? {
            [] => Ok(()),
            [..] => Err(self.damaged("is the last, and something follows it")),
        }
    }

    fn read(&mut self) -> Result<String, MovingError> {
        self.number += 1;
        self.buffer.clear();
        let read = (&mut self.file).take(LINE_BYTES_MAX).read_until(b'\n', &mut self.buffer);
        read.map_err(MovingError::io(&self.path))?;
        self.hasher.update(&self.buffer);
        let Some((b'\n', text)) = self.buffer.split_last() else {
            return Err(self.damaged("is not whole: the file is cut, or no export"));
        };
        let text = std::str::from_utf8(text).map(str::to_owned);
        text.map_err(|_| self.damaged("is not text"))
    }

    fn damaged(&self, why: &str) -> MovingError {
        MovingError::Damaged { file: self.path.clone(), line: self.number, why: why.to_owned() }
    }
}
