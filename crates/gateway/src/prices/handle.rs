//! The prices as a running server holds them: looked up in nanoseconds, and read anew when the file changes.
//!
//! The file is looked at once a second. What tells that it changed is who it is (device, inode), its size and its times;
//! a file that changes while it is read is read again. Whoever writes the file should write another beside it and rename it,
//! as `holdfast prices import` does: a half-written file may be a smaller whole one.

use super::{ModelPrice, PricesError, Table, UnknownModel};
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

/// How often the file is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The longest file that is read: all models that anybody prices are a hundredth of it.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// What to do at the start if there is no file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IfMissing {
    /// Begin with the built-in models; the file may come later.
    UseBuiltIn,
    /// Somebody named this file, so it must be there.
    Refuse,
}

/// The prices of now. Clones are handles of the same prices.
#[derive(Debug, Clone)]
pub(crate) struct Prices {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    table: RwLock<Arc<Table>>,
    /// What was last seen of the file. Held while the file is read, so that two readers do not race.
    seen: Mutex<Seen>,
}

#[derive(Debug)]
struct Seen {
    stamp: Option<Stamp>,
    error: Option<String>,
}

/// What tells one state of a file from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// How the file and the prices are, for health reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PricesHealth {
    /// The file that is followed.
    pub(crate) path: PathBuf,
    /// How many models have a price.
    pub(crate) models: usize,
    /// Why the file as it is now is not used; the prices before it still are.
    pub(crate) error: Option<String>,
}

/// What a look at the file found.
#[derive(Debug)]
pub(crate) enum Looked {
    /// Nothing new.
    Unchanged,
    /// A new table is in use.
    Loaded {
        /// How many models it prices.
        models: usize,
    },
    /// The file cannot be used; the table before it stays.
    Refused(PricesError),
}

impl Prices {
    /// The prices in a file. A file that is there must be right at the start; later, a bad one is only reported.
    pub(crate) fn open(path: &Path, if_missing: IfMissing) -> Result<Self, PricesError> {
        let (table, stamp) = match read(path) {
            Ok((text, stamp)) => (Table::parse(path, &text)?, Some(stamp)),
            Err(error) if error.kind() == io::ErrorKind::NotFound && if_missing == IfMissing::UseBuiltIn => {
                (Table::built_in(), None)
            }
            Err(error) => return Err(PricesError::Unreadable { path: path.to_owned(), error }),
        };
        let seen = Mutex::new(Seen { stamp, error: None });
        Ok(Self { shared: Arc::new(Shared { path: path.to_owned(), table: RwLock::new(Arc::new(table)), seen }) })
    }

    /// The price of the model that `name` means.
    pub(crate) fn find(&self, name: &str) -> Result<Arc<ModelPrice>, UnknownModel> {
        self.shared.table.read().unwrap_or_else(PoisonError::into_inner).find(name)
    }

    /// All prices of this moment.
    pub(crate) fn table(&self) -> Arc<Table> {
        Arc::clone(&self.shared.table.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// How the file and the prices are.
    pub(crate) fn health(&self) -> PricesHealth {
        let error = self.shared.seen.lock().unwrap_or_else(PoisonError::into_inner).error.clone();
        PricesHealth { path: self.shared.path.clone(), models: self.table().models().count(), error }
    }

    /// Looks at the file, and reads it if it has changed.
    pub(crate) fn look(&self) -> Looked {
        let path = &self.shared.path;
        let mut seen = self.shared.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = match fs::metadata(path) {
            Ok(metadata) => Some(Stamp::of(&metadata)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return seen.refuse(None, PricesError::Unreadable { path: path.clone(), error }),
        };
        if stamp == seen.stamp {
            return Looked::Unchanged;
        }
        let result = read(path).map_err(|error| PricesError::Unreadable { path: path.clone(), error });
        match result.and_then(|(text, stamp)| Ok((Table::parse(path, &text)?, stamp))) {
            Ok((table, stamp)) => {
                let models = table.models().count();
                *self.shared.table.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(table);
                *seen = Seen { stamp: Some(stamp), error: None };
                Looked::Loaded { models }
            }
            Err(error) => seen.refuse(stamp, error),
        }
    }

    /// Follows the file for ever, and tells what it found. The task may be dropped at any moment: a look is one step.
    pub(crate) async fn watch(self, mut tell: impl FnMut(&Looked)) {
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let prices = self.clone();
            // A look never panics, so this fails only when the runtime stops.
            let Ok(looked) = tokio::task::spawn_blocking(move || prices.look()).await else { return };
            tell(&looked);
        }
    }
}

impl Seen {
    /// Notes why a state of the file is not used, so that it is told once and not at every look.
    fn refuse(&mut self, stamp: Option<Stamp>, error: PricesError) -> Looked {
        let message = error.to_string();
        let again = self.stamp == stamp && self.error.as_ref() == Some(&message);
        *self = Self { stamp, error: Some(message) };
        if again { Looked::Unchanged } else { Looked::Refused(error) }
    }
}

/// The text of a file, and the state of the file that it is the text of.
fn read(path: &Path) -> io::Result<(String, Stamp)> {
    let mut file = File::open(path)?;
    let before = Stamp::of(&file.metadata()?);
    if before.size > FILE_BYTES_MAX {
        return Err(io::Error::other(format!("it has {} bytes, and at most {FILE_BYTES_MAX} are read", before.size)));
    }
    let mut text = String::new();
    file.by_ref().take(FILE_BYTES_MAX).read_to_string(&mut text)?;
    if Stamp::of(&file.metadata()?) != before {
        return Err(io::Error::other("it changed while it was read; it is read again in a second"));
    }
    Ok((text, before))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn text(price: &str) -> String {
        format!("[models.m]\ninput = \"{price}\"\noutput = \"1\"\n")
    }

    fn replace(path: &Path, text: &str) {
        let new = path.with_extension("new");
        fs::write(&new, text).unwrap();
        fs::rename(&new, path).unwrap();
    }

    fn input(prices: &Prices) -> String {
        prices.find("m").map_or_else(|error| error.code().to_owned(), |model| model.rates.input.to_string())
    }

    #[test]
    fn a_changed_file_is_in_use_after_the_next_look() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("prices.toml");
        let prices = Prices::open(&path, IfMissing::UseBuiltIn).unwrap();
        assert_eq!(input(&prices), "INVALID_MODEL");
        assert!(matches!(prices.look(), Looked::Unchanged));
        replace(&path, &text("1"));
        assert!(matches!(prices.look(), Looked::Loaded { models: 3 }));
        assert_eq!(input(&prices), "1");
        // The same length, so only the inode and the times tell.
        replace(&path, &text("2"));
        let handle = prices.clone();
        assert!(matches!(prices.look(), Looked::Loaded { .. }));
        assert_eq!((input(&prices), input(&handle)), ("2".to_owned(), "2".to_owned()));
        assert!(matches!(prices.look(), Looked::Unchanged));
    }

    #[test]
    fn a_bad_file_keeps_the_prices_and_is_told_once_and_in_health() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("prices.toml");
        replace(&path, &text("1"));
        let prices = Prices::open(&path, IfMissing::Refuse).unwrap();
        assert_eq!(prices.health().error, None);
        replace(&path, &text("0"));
        assert!(matches!(prices.look(), Looked::Refused(PricesError::Invalid { line: Some(2), .. })));
        assert!(matches!(prices.look(), Looked::Unchanged));
        assert_eq!(input(&prices), "1");
        assert!(prices.health().error.is_some_and(|error| error.contains("line 2")));
        replace(&path, &text("3"));
        assert!(matches!(prices.look(), Looked::Loaded { .. }));
        assert_eq!((input(&prices), prices.health().error), ("3".to_owned(), None));
    }

    #[test]
    fn a_file_that_goes_away_keeps_the_prices_and_comes_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("prices.toml");
        replace(&path, &text("1"));
        let prices = Prices::open(&path, IfMissing::Refuse).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(matches!(prices.look(), Looked::Refused(PricesError::Unreadable { .. })));
        assert!(matches!(prices.look(), Looked::Unchanged));
        assert_eq!(input(&prices), "1");
        assert!(prices.health().error.is_some());
        replace(&path, &text("1"));
        assert!(matches!(prices.look(), Looked::Loaded { .. }));
        assert_eq!(prices.health().error, None);
    }

    #[test]
    fn a_file_that_is_not_right_at_the_start_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("prices.toml");
        assert_eq!(Prices::open(&path, IfMissing::Refuse).unwrap_err().code(), "PRICES_UNREADABLE");
        fs::write(&path, [0xff, 0xfe]).unwrap();
        assert_eq!(Prices::open(&path, IfMissing::UseBuiltIn).unwrap_err().code(), "PRICES_UNREADABLE");
        fs::write(&path, "models = 1").unwrap();
        assert_eq!(Prices::open(&path, IfMissing::UseBuiltIn).unwrap_err().code(), "INVALID_PRICES");
        fs::remove_file(&path).unwrap();
        symlink(&path, &path).unwrap();
        assert_eq!(Prices::open(&path, IfMissing::UseBuiltIn).unwrap_err().code(), "PRICES_UNREADABLE");
    }

    #[tokio::test(start_paused = true)]
    async fn a_running_server_follows_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("prices.toml");
        let prices = Prices::open(&path, IfMissing::UseBuiltIn).unwrap();
        let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
        let watcher = tokio::spawn(prices.clone().watch(move |looked| {
            if let Looked::Loaded { models } = looked {
                let _stopped = sender.send(*models);
            }
        }));
        replace(&path, &text("1"));
        assert_eq!(receiver.recv().await, Some(3));
        replace(&path, &text("2"));
        assert_eq!(receiver.recv().await, Some(3));
        assert_eq!(input(&prices), "2");
        watcher.abort();
    }
}
